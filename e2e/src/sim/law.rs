//! What must hold after every step, and what must come to be once nothing goes wrong any more.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_core::AddrRange;
use ipam_core::plan::{Claim, ClaimSource};
use serde_json::Value;

use super::server::{Server, text};
use super::wire::lock;
use super::world::World;

/// A law that was broken, in words.
pub type Broken = String;

/// No address is held by two pods, and no address that a pod holds is recorded as another node's.
pub fn check(world: &World) -> Result<(), Broken> {
    let mut holders: BTreeMap<IpAddr, (&str, &str)> = BTreeMap::new();
    for node in &world.nodes {
        for (pod, pool, addr) in node.held() {
            if world.given_up.contains(&(pool.name.as_str(), node.name.clone())) {
                continue;
            }
            if let Some((other, there)) = holders.insert(addr, (pod, &node.name)) {
                return Err(format!(
                    "{addr} of {pool} is held twice: by {other} on {there} and by {pod} on {}",
                    node.name
                ));
            }
        }
    }
    for (node, pool, claim) in claims(world) {
        for (addr, (pod, there)) in &holders {
            if claim.range.contains(*addr) && node != *there {
                return Err(format!(
                    "{addr} is held by {pod} on {there}, but {pool} has given {} to {node}",
                    claim.range
                ));
            }
        }
    }
    Ok(())
}

/// Who has which block, by the statuses of all pools.
fn claims(world: &World) -> Vec<(String, String, Claim)> {
    let server = lock(&world.server);
    let mut claims = Vec::new();
    for plural in ["ippools", "cidrpools"] {
        for object in server.list(plural) {
            let pool = format!("{plural}/{}", text(object, "/metadata/name"));
            for list in ["/status/allocations", "/status/releasing"] {
                let entries = object.pointer(list).and_then(Value::as_array).into_iter().flatten();
                claims.extend(entries.filter_map(claim).map(|claim| (claim.node.clone(), pool.clone(), claim)));
            }
        }
    }
    claims
}

fn claim(entry: &Value) -> Option<Claim> {
    let node = entry["nodeName"].as_str()?;
    match entry["prefix"].as_str() {
        Some(prefix) => Claim::from_prefix(node, prefix, None, ClaimSource::Status),
        None => Claim::from_ip_range(node, entry["startIP"].as_str()?, entry["endIP"].as_str()?, ClaimSource::Status),
    }
}

/// Once all has settled: every node is told what the statuses record, and nothing else. Of a pool whose spec is invalid a node
/// knows what it was told before: what an entry is to say nobody can know then.
pub fn nodes_are_told(world: &World) -> Result<(), Broken> {
    let recorded = claims(world);
    let server = lock(&world.server);
    for (node, pool, claim) in &recorded {
        if is_invalid(&server, pool) {
            continue;
        }
        // A name without a Node and without an IPAMNode has nobody to tell.
        if server.get("nodes", node).is_none() && server.get("ipamnodes", node).is_none() {
            continue;
        }
        let told = server.get("ipamnodes", node).map(|object| told(object, pool)).unwrap_or_default();
        if !told.iter().any(|range| claim.range.contains_range(range)) {
            return Err(format!("{pool} records {} for {node}, which is told {told:?}", claim.range));
        }
    }
    for object in server.list("ipamnodes") {
        let node = text(object, "/metadata/name");
        for pool in object["spec"]["pools"].as_array().into_iter().flatten() {
            let name = pool_name(pool);
            let is_recorded = recorded.iter().any(|(of, in_pool, _)| *of == node && *in_pool == name);
            if !is_recorded && !is_invalid(&server, &name) {
                return Err(format!("{node} is told of {name}, which records nothing of it: {pool}"));
            }
        }
    }
    Ok(())
}

fn is_invalid(server: &Server, pool: &str) -> bool {
    let object = pool.split_once('/').and_then(|(plural, name)| {
        let plural = ["ippools", "cidrpools"].into_iter().find(|known| *known == plural)?;
        server.get(plural, name)
    });
    let conditions = object.and_then(|object| object["status"]["conditions"].as_array());
    conditions.into_iter().flatten().any(|condition| condition["reason"] == "InvalidSpec")
}

/// The ranges of a pool that an IPAMNode tells.
fn told(object: &Value, pool: &str) -> Vec<AddrRange> {
    let entries = object["spec"]["pools"].as_array().into_iter().flatten();
    let ours = entries.filter(|entry| pool_name(entry) == pool);
    let end = |entry: &Value, field: &str| entry[field].as_str()?.parse().ok();
    ours.filter_map(|entry| AddrRange::new(end(entry, "startIP")?, end(entry, "endIP")?)).collect()
}

fn pool_name(entry: &Value) -> String {
    let plural = if entry["poolType"] == "IPPool" { "ippools" } else { "cidrpools" };
    format!("{plural}/{}", text(entry, "/name"))
}

/// Once all has settled and no pod runs any more: nothing that goes away is still there. What a node has whose Node is gone may
/// stay: its agent may be without a word for ever, and how long that is waited for is an admin's choice.
pub fn nothing_is_left(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    for plural in ["ippools", "cidrpools"] {
        for object in server.list(plural) {
            let entries = object["status"]["releasing"].as_array().into_iter().flatten();
            let (silent, others): (Vec<_>, Vec<_>) =
                entries.partition(|entry| server.get("nodes", &text(entry, "/nodeName")).is_none());
            let is_leaving = !object["metadata"]["deletionTimestamp"].is_null() && silent.is_empty();
            let name = text(object, "/metadata/name");
            // By a spec that is invalid nothing is decided, and so nothing taken back, until the pool is deleted.
            let waits = !others.is_empty() && !is_invalid(&server, &format!("{plural}/{name}"));
            if is_leaving || waits {
                return Err(format!("{plural}/{name} does not let go of what nobody holds: {object}"));
            }
        }
    }
    Ok(())
}
