//! What must hold after every step, and what must come to be once nothing goes wrong any more.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipam_core::plan::Claim;
use ipam_core::{AddrRange, Cidr, PoolKey, PoolKind};
use ipam_operator::election::given::Given;
use serde_json::Value;

use super::admin::may_share;
use super::agent::Node;
use super::object::Object;
use super::replica::{Replica, given};
use super::server::{Change, Server, text};
use super::wire::lock;
use super::world::World;

/// A law that was broken, in words.
pub type Broken = String;

/// After each step: no two replicas lead, no node is told of a block before the Lease says so, no address is held by two pods,
/// none that a pod holds is recorded as another node's, and no pool goes away while a pod holds an address of it.
pub fn check(world: &mut World) -> Result<(), Broken> {
    one_leads(world)?;
    what_is_given_is_marked(world)?;
    if let Some((node, wrong)) = world.nodes.iter().find_map(|node| Some((&node.name, node.wrong()?))) {
        return Err(format!("the agent of {node} {wrong}"));
    }
    let moves = world.nodes.iter().map(Node::moves).sum();
    let seen = (lock(&world.server).news(), moves);
    let before = std::mem::replace(&mut world.checked, seen);
    let now = world.clock().elapsed;
    world.excuses.renew(&lock(&world.server), &world.nodes, &world.replicas, before.0, now);
    if before == seen {
        return Ok(());
    }
    no_pool_in_use_goes(world, before.0)?;
    no_address_is_held_twice(world)
}

/// A node is told of a block only after the Lease says that blocks are given, for one who leads when all records are gone.
fn what_is_given_is_marked(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    if given(&server) != Given::Nothing {
        return Ok(());
    }
    let is_told = |object: &&Arc<Object>| object["spec"]["pools"].as_array().is_some_and(|pools| !pools.is_empty());
    match server.list("ipamnodes").find(is_told) {
        None => Ok(()),
        Some(object) => Err(format!("{} is told of blocks before the Lease says so", text(object, "/metadata/name"))),
    }
}

/// Each by its own clock: one that stands still wakes up as a leader and must know by itself that it is none.
fn one_leads(world: &World) -> Result<(), Broken> {
    let now = world.clock().instant();
    let leads = |replica: &&Replica| replica.leads_until().is_some_and(|until| until > now);
    match world.replicas.iter().flatten().filter(leads).count() {
        0 | 1 => Ok(()),
        count => Err(format!("{count} replicas lead at one time")),
    }
}

fn no_pool_in_use_goes(world: &World, since: u64) -> Result<(), Broken> {
    let server = lock(&world.server);
    for (plural, kind) in [("ippools", PoolKind::IpPool), ("cidrpools", PoolKind::CidrPool)] {
        let gone = server.since(plural, since).iter().filter(|event| event.change == Change::Deleted);
        for name in gone.map(|event| text(&event.object, "/metadata/name")) {
            if world.excuses.leaves_unguarded(&name) {
                continue;
            }
            let of_it = |pool: &PoolKey| pool.kind == kind && pool.name == name;
            for node in world.nodes.iter().filter(|node| !world.excuses.lets_go(&name, &node.name)) {
                if let Some((pod, _, addr)) = node.known().find(|(_, pool, _)| of_it(pool)) {
                    return Err(format!("{plural}/{name} is gone while {pod} holds {addr} of it"));
                }
            }
        }
    }
    Ok(())
}

/// Who holds an address.
struct Holder<'a> {
    node: &'a str,
    pod: &'a str,
    pool: &'a str,
}

fn no_address_is_held_twice(world: &World) -> Result<(), Broken> {
    let mut holders: BTreeMap<IpAddr, Vec<Holder<'_>>> = BTreeMap::new();
    for node in &world.nodes {
        for (pod, pool, addr) in node.known() {
            if world.excuses.lets_go(&pool.name, &node.name) {
                continue;
            }
            let there = holders.entry(addr).or_default();
            if let Some(other) = there.iter().find(|other| !world.excuses.may_share(other.pool, &pool.name)) {
                let (first, second) = (format!("{} on {}", other.pod, other.node), format!("{pod} on {}", node.name));
                return Err(format!("{addr} of {pool} is held twice: by {first} and by {second}"));
            }
            there.push(Holder { node: &node.name, pod, pool: &pool.name });
        }
    }
    if world.excuses.put_back {
        return Ok(());
    }
    let server = lock(&world.server);
    for object in ["ippools", "cidrpools"].into_iter().flat_map(|plural| server.list(plural)) {
        let Some(name) = object["metadata"]["name"].as_str() else { continue };
        for claim in object.claims() {
            let Claim { node, range, .. } = claim;
            for (addr, there) in holders.range(range.first()..=range.last()) {
                let is_other = |it: &&Holder<'_>| it.node != *node && !world.excuses.may_share(it.pool, name);
                if let Some(Holder { node: there, pod, .. }) = there.iter().find(is_other) {
                    return Err(format!("{addr} is held by {pod} on {there}, but {name} has given {range} to {node}"));
                }
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
            claims.extend(object.claims().iter().map(|claim| (claim.node.clone(), pool.clone(), claim.clone())));
        }
    }
    claims
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
            // What a pool that vanished had given is taken back as long as it takes.
            let is_orphaned = world.excuses.leaves_unguarded(&text(pool, "/name")) && pool["state"] == "Releasing";
            let is_known = is_recorded || (is_orphaned && holds(world, &node, pool));
            if !is_known && !is_invalid(&server, &name) {
                return Err(format!("{node} is told of {name}, which records nothing of it: {pool}"));
            }
        }
    }
    Ok(())
}

/// Once all has settled: what pods hold is recorded as their node's, unless an admin has taken that upon himself.
pub fn what_is_held_is_recorded(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    for node in &world.nodes {
        for (pod, pool, addr) in node.known() {
            if world.excuses.leaves_unguarded(&pool.name) || world.excuses.lets_go(&pool.name, &node.name) {
                continue;
            }
            let plural = if pool.kind == PoolKind::IpPool { "ippools" } else { "cidrpools" };
            // While a spec is invalid, a status that was wiped is not put right.
            if world.excuses.is_wiped(&pool.name) && is_invalid(&server, &format!("{plural}/{}", pool.name)) {
                continue;
            }
            let claims = server.get(plural, &pool.name).map(|object| object.claims()).unwrap_or_default();
            if !claims.iter().any(|claim| claim.node == node.name && claim.range.contains(addr)) {
                return Err(format!("{addr} is held by {pod} on {}, and {pool} does not record it", node.name));
            }
        }
    }
    Ok(())
}

/// Once all has settled: of two pools over the same addresses one has nodes that it serves, at most.
pub fn the_older_serves(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    let mut serving: Vec<(&str, Cidr, bool)> = Vec::new();
    for object in ["ippools", "cidrpools"].into_iter().flat_map(|plural| server.list(plural)) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let spec = &object["spec"];
        let Some((range, _)) = spec["subnet"].as_str().or(spec["cidr"].as_str()).and_then(|it| Cidr::parse(it).ok())
        else {
            continue;
        };
        let gives = object["status"]["allocations"].as_array().is_some_and(|given| !given.is_empty());
        if !gives || has_reason(object, "InvalidSpec") {
            continue;
        }
        let shares = may_share(object);
        let is_wrong =
            |(_, there, may): &&(&str, Cidr, bool)| !(shares && *may) && there.range().overlaps(&range.range());
        if let Some((other, there, _)) = serving.iter().find(is_wrong) {
            return Err(format!("{other} ({there}) and {name} ({range}) both serve"));
        }
        serving.push((name, range, shares));
    }
    Ok(())
}

fn holds(world: &World, node: &str, entry: &Value) -> bool {
    let of_it = |pool: &PoolKey| entry["name"] == *pool.name && entry["poolType"] == pool.kind.kind();
    world.nodes.iter().any(|it| it.name == node && (it.has_lost() || it.held().any(|(_, pool, _)| of_it(pool))))
}

fn has_reason(object: &Value, reason: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["reason"] == reason)
}

fn is_invalid(server: &Server, pool: &str) -> bool {
    let object = pool.split_once('/').and_then(|(plural, name)| {
        let plural = ["ippools", "cidrpools"].into_iter().find(|known| *known == plural)?;
        server.get(plural, name)
    });
    object.is_some_and(|object| has_reason(object, "InvalidSpec"))
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
/// stay where an admin waits for its agent's word for ever.
pub fn nothing_is_left(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    let waits_for_ever = world.excuses.grace.is_none();
    for plural in ["ippools", "cidrpools"] {
        for object in server.list(plural) {
            let entries = object["status"]["releasing"].as_array().into_iter().flatten();
            let (silent, others): (Vec<_>, Vec<_>) =
                entries.partition(|entry| waits_for_ever && server.get("nodes", &text(entry, "/nodeName")).is_none());
            let is_leaving = !object["metadata"]["deletionTimestamp"].is_null() && silent.is_empty();
            let name = text(object, "/metadata/name");
            // By a spec that is invalid nothing is decided, and so nothing taken back, until the pool is deleted.
            let waits = !others.is_empty() && !is_invalid(&server, &format!("{plural}/{name}"));
            if is_leaving || waits {
                return Err(format!("{plural}/{name} does not let go of what nobody holds: {object}"));
            }
        }
    }
    for object in server.list("ipamnodes") {
        let is_empty = object["spec"]["pools"].as_array().is_none_or(Vec::is_empty);
        if is_empty && server.get("nodes", &text(object, "/metadata/name")).is_none() {
            return Err(format!("an IPAMNode that says nothing outlives its Node: {object}"));
        }
    }
    Ok(())
}
