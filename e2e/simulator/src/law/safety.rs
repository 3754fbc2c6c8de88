//! What must hold after every call: no address is used twice, and nothing that is in use is lost.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_core::plan::Claim;
use ipam_core::{PoolKey, PoolKind};

use super::{Broken, broken};
use crate::agent::{Held, Node};
use crate::allowed::{is_destroyed, key_of, shared, taken_back};
use crate::layout::Layout;
use crate::records::{POOL_KINDS, pool_of_entry, range_of_entry};
use crate::server::{Change, Server, text};
use crate::wire::lock;
use crate::world::World;

/// No pool goes while a pod has an address of it, unless its definition is deleted.
pub(super) fn no_pool_in_use_goes(world: &World, since: u64) -> Result<(), Broken> {
    if world.by_hand == Some(crate::UNDEFINE) {
        return Ok(());
    }
    let server = lock(&world.server);
    for (plural, kind) in POOL_KINDS {
        let gone = server.since(plural, since).iter().filter(|event| event.change == Change::Deleted);
        for name in gone.map(|event| text(&event.object, "/metadata/name")) {
            let pool = PoolKey::new(kind, name);
            let pods = world.nodes.iter().flat_map(|node| node.held().map(move |(pod, held)| (node, pod, held)));
            let mut reason = None;
            for (node, pod, held) in pods.filter(|(.., held)| held.pool == pool) {
                reason = world.allowed.gone(&world.records, node, pod, held);
                if reason.is_none() {
                    let what = format!("{pool} is gone while {pod} holds {} of it", held.addr);
                    return broken("pool-in-use-stays", what);
                }
            }
            world.allowed.judge("pool-in-use-stays", reason);
        }
    }
    Ok(())
}

/// No IPAMNode gets an Active block that no status records for its node, as assigned or as being released (its write may have been
/// on its way when the release was recorded), unless an admin destroyed the record.
pub(super) fn what_is_assigned_is_recorded(world: &World, since: u64) -> Result<(), Broken> {
    if world.by_hand.is_some() {
        return Ok(());
    }
    let server = lock(&world.server);
    for event in server.since("ipamnodes", since).iter().filter(|event| event.change == Change::Applied) {
        let node = text(&event.object, "/metadata/name");
        let earlier = server.before("ipamnodes", &node, event.version);
        let was = earlier.and_then(|object| object["spec"]["pools"].as_array()).map_or(&[][..], Vec::as_slice);
        let entries = event.object["spec"]["pools"].as_array().into_iter().flatten();
        for entry in entries.filter(|entry| entry["state"] == "Active" && !was.contains(entry)) {
            let (pool, range) = (pool_of_entry(entry), range_of_entry(entry));
            if !range.is_some_and(|range| world.records.knows(&pool, &node, &range)) {
                let what = format!("{node} is assigned a block that {pool} does not record: {entry}");
                return broken("assigned-is-recorded", what);
            }
        }
    }
    Ok(())
}

/// A pod that has an address.
struct Holder<'a> {
    node: &'a Node,
    pod: &'a str,
    held: &'a Held,
}

/// No address is had by two pods, and none is recorded as another node's.
pub(super) fn no_address_is_used_twice(world: &World) -> Result<(), Broken> {
    let mut holders: BTreeMap<IpAddr, Vec<Holder<'_>>> = BTreeMap::new();
    let (allowed, records) = (&world.allowed, &world.records);
    for node in &world.nodes {
        for (pod, held) in node.held() {
            if allowed.judge("one-holder", allowed.released(node, pod, held)) {
                continue;
            }
            let there = holders.entry(held.addr).or_default();
            let is_wrong = |other: &&Holder<'_>| {
                let pair = [(&other.held.pool, other.held.assignment), (&held.pool, held.assignment)];
                !allowed.judge("one-holder", shared(records, pair))
            };
            if let Some(other) = there.iter().find(is_wrong) {
                let (first, second) =
                    (format!("{} on {}", other.pod, other.node.name), format!("{pod} on {}", node.name));
                let what = format!("{} of {} is held twice: by {first} and by {second}", held.addr, held.pool);
                return broken("one-holder", what);
            }
            there.push(Holder { node, pod, held });
        }
    }
    recorded_as_its_own(world, &holders)
}

fn recorded_as_its_own(world: &World, holders: &BTreeMap<IpAddr, Vec<Holder<'_>>>) -> Result<(), Broken> {
    let server = lock(&world.server);
    let (allowed, records) = (&world.allowed, &world.records);
    for (plural, _) in POOL_KINDS {
        for object in server.list(plural) {
            let pool = key_of(plural, object["metadata"]["name"].as_str().unwrap_or_default());
            for Claim { node, range, .. } in object.claims() {
                for (addr, there) in holders.range(range.first()..=range.last()) {
                    let id = || {
                        records.recorded().iter().find(|it| it.pool == pool && it.node == *node && it.range == *range)
                    };
                    let reason = |it: &Holder<'_>| {
                        let pair = [(&it.held.pool, it.held.assignment), (&pool, id().map(|it| it.id))];
                        taken_back(records, it.held).or_else(|| shared(records, pair))
                    };
                    let is_wrong = |it: &&Holder<'_>| {
                        let is_own = it.node.name == *node;
                        let reason = if is_own { None } else { reason(it) };
                        !allowed.judge("held-is-nobody-elses", reason) && !is_own
                    };
                    if let Some(Holder { node: there, pod, .. }) = there.iter().find(is_wrong) {
                        let (there, name) = (&there.name, &pool.name);
                        let what =
                            format!("{addr} is held by {pod} on {there}, but {name} has given {range} to {node}");
                        return broken("held-is-nobody-elses", what);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether the node's agent reports that the address is in use.
fn is_reported(server: &Server, node: &str, held: &Held) -> bool {
    let Some(object) = server.get("ipamnodes", node) else { return false };
    let mut reports = object["status"]["pools"].as_array().into_iter().flatten();
    reports.any(|report| {
        pool_of_entry(report) == held.pool
            && super::liveness::reported(report).iter().any(|run| run.contains(held.addr))
    })
}

/// Once all has settled: what pods have is recorded as their node's. Where an admin destroyed the record, the agent reports it, unless there
/// is no pool that assigns blocks.
pub(super) fn what_is_held_is_recorded(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    let has_pools = Layout::all(&server).iter().any(|pool| pool.is_valid && !pool.is_deleting);
    for node in &world.nodes {
        for (pod, held) in node.held() {
            let (pool, addr) = (&held.pool, held.addr);
            let plural = if pool.kind == PoolKind::IpPool { "ippools" } else { "cidrpools" };
            let object = server.get(plural, &pool.name);
            let claims = object.map(|object| object.claims()).unwrap_or_default();
            let is_told = || !has_pools || is_reported(&server, &node.name, held);
            let is_recorded = claims.iter().any(|claim| claim.node == node.name && claim.range.contains(addr))
                || (is_destroyed(&world.records, held) && is_told());
            let is_invalid = object.is_some_and(|object| super::has_reason(object, "InvalidSpec"));
            let reason = || world.allowed.unrecorded(node, pod, held, is_invalid);
            let reason = if is_recorded { None } else { reason() };
            if !world.allowed.judge("held-is-recorded", reason) && !is_recorded {
                let what = format!("{addr} is held by {pod} on {}, and {pool} does not record it", node.name);
                return broken("held-is-recorded", what);
            }
        }
    }
    Ok(())
}
