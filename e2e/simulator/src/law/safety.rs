//! Laws that must hold after every call: no address is used twice, and no record of an address in use is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::plan::Claim;
use ipam_core::{AddrRange, PoolKey, PoolKind};
use ipam_reconciler::pool::{FORCE_ALL, FORCE_RELEASE};
use serde_json::Value;

use super::seen::{claims, is_selected, may_await_report};
use crate::agent::{Held, Node};
use crate::allowed::{is_destroyed, is_elsewhere, key_of, shared, taken_back};
use crate::broken::{Broken, broken};
use crate::layout::{Layout, overlapped};
use crate::records::{Assignment, POOL_KINDS, Records, pool_of_entry, range_of_entry};
use crate::server::{Change, Server, text};
use crate::unreported::is_reported;
use crate::wire::lock;
use crate::world::World;

/// The last change is by an admin, who may do this.
const BY_HAND: &str = "an admin did it";
/// An admin destroyed the record.
const DESTROYED: &str = "record destroyed by hand";

/// No pool is deleted while a pod has an address of it, unless its CRD is deleted.
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

/// No IPAMNode gets an Active block that no status records for its node, unless an admin destroyed the record. Such a block no
/// status may record for another node, unless a leader has not seen yet that a restore took back the record. A block that is recorded as being released is allowed: the write may have been on its way when the release was recorded.
pub(super) fn what_is_assigned_is_recorded(world: &World, since: u64) -> Result<(), Broken> {
    let by_hand = world.by_hand.map(|_| BY_HAND);
    let server = lock(&world.server);
    for event in server.since("ipamnodes", since).iter().filter(|event| event.change == Change::Applied) {
        let node = text(&event.object, "/metadata/name");
        let earlier = server.before("ipamnodes", &node, event.version);
        let was = earlier.and_then(|object| object["spec"]["pools"].as_array()).map_or(&[][..], Vec::as_slice);
        let entries = event.object["spec"]["pools"].as_array().into_iter().flatten();
        for entry in entries.filter(|entry| entry["state"] == "Active" && !was.contains(entry)) {
            let (pool, range) = (pool_of_entry(entry), range_of_entry(entry));
            let is_recorded = range.is_some_and(|range| world.records.has(&pool, &node, &range));
            let is_lost = || range.is_some_and(|range| world.records.knows(&pool, &node, &range));
            // A leader that has not read the pools since a restore goes by what it has recorded.
            let is_unseen = || {
                let is_unseen = world.put_back.as_ref().is_some_and(|it| it.is_unseen);
                is_unseen && range.is_some_and(|range| world.records.was_taken_back(&pool, &node, &range))
            };
            let unseen = || is_unseen().then_some("a restore under a leader");
            let reason = || by_hand.or_else(|| is_lost().then_some(DESTROYED)).or_else(unseen);
            let reason = if is_recorded { None } else { reason() };
            if !world.allowed.judge("assigned-is-recorded", reason) && !is_recorded {
                let what = format!("{node} is assigned a block that {pool} does not record: {entry}");
                return broken("assigned-is-recorded", what);
            }
        }
    }
    Ok(())
}

/// No pod has an address that is the gateway in an Active entry of its pool, unless an admin destroyed or gave up the record of the address or of the
/// gateway. No pod of the simulator requests the gateway.
pub(super) fn no_pod_has_a_gateway(world: &World) -> Result<(), Broken> {
    let by_hand = world.by_hand.map(|_| BY_HAND);
    let server = lock(&world.server);
    let (gateways, mut with_gateway) = (gateways(&server), BTreeSet::new());
    for node in &world.nodes {
        for (pod, held) in node.held() {
            let of_entries = gateways.get(&(held.pool.clone(), held.addr));
            if of_entries.is_some() {
                with_gateway.insert((held.pool.clone(), held.addr, node.name.clone(), pod.to_owned()));
            }
            // This call comes before all others, because it remembers the pod for as long as the address is a gateway, also that of a block
            // that is being released. The other reasons may end earlier.
            let allows = || world.allowed.unreported.allows_gateway(&held.pool, held.addr, &node.name, pod);
            let is_unreported = of_entries.is_some() && allows();
            let Some(of_entry) = of_entries.and_then(Option::as_ref) else {
                world.allowed.judge("gateway-is-free", None);
                continue;
            };
            let lost = || is_destroyed(&world.records, held).then_some(DESTROYED);
            let unreported = is_unreported.then_some("an IPAMNode was deleted or restored");
            let reason = world.allowed.released(node, pod, held).or_else(lost).or(unreported).or(by_hand);
            if !world.allowed.judge("gateway-is-free", reason) {
                let (addr, there) = (held.addr, &node.name);
                let what = format!("{of_entry} has the gateway {addr} of {}, which {pod} on {there} holds", held.pool);
                return broken("gateway-is-free", what);
            }
        }
    }
    world.allowed.unreported.retain(&with_gateway);
    Ok(())
}

/// The gateways in entries and in statuses, and a node with an Active entry that has the gateway, if there is one. Only the status of a CIDRPool
/// records gateways.
fn gateways(server: &Server) -> BTreeMap<(PoolKey, IpAddr), Option<String>> {
    let mut found: BTreeMap<(PoolKey, IpAddr), Option<String>> = BTreeMap::new();
    for pool in server.list("cidrpools") {
        let key = key_of("cidrpools", &text(pool, "/metadata/name"));
        let lists = ["allocations", "releasing"].into_iter().filter_map(|list| pool["status"][list].as_array());
        let gateways = lists.flatten().filter_map(|block| block["gateway"].as_str()?.parse().ok());
        found.extend(gateways.map(|gateway| ((key.clone(), gateway), None)));
    }
    for object in server.list("ipamnodes") {
        let entries = object["spec"]["pools"].as_array().into_iter().flatten();
        for entry in entries {
            if let Some(gateway) = entry["gateway"].as_str().and_then(|text| text.parse().ok()) {
                let node = found.entry((pool_of_entry(entry), gateway)).or_default();
                if entry["state"] == "Active" {
                    *node = Some(text(object, "/metadata/name"));
                }
            }
        }
    }
    found
}

/// The names that the operator writes in place of `*` are of nodes that may lose something of the pool. They do not
/// include a node that the pool serves and whose block is Active.
pub(super) fn only_releasing_nodes_are_forced(world: &World, since: u64) -> Result<(), Broken> {
    let by_hand = world.by_hand.map(|_| BY_HAND);
    let server = lock(&world.server);
    for (plural, kind) in POOL_KINDS {
        for event in server.since(plural, since).iter().filter(|event| event.change == Change::Applied) {
            let name = text(&event.object, "/metadata/name");
            let Some(before) = server.before(plural, &name, event.version) else { continue };
            let now = forced_names(&event.object);
            if forced_names(before) != [FORCE_ALL] || now.iter().any(|node| node == FORCE_ALL) {
                continue;
            }
            let pool = PoolKey::new(kind, name);
            for node in now {
                // Where records are missing, the name ends the wait for the node's report.
                let is_awaited = may_await_report(&server, &node);
                let is_wrong = is_in_service(&server, world.nodes_seen, before, &pool, &node);
                let awaited = is_awaited.then_some("records may be missing");
                let reason = if is_wrong { by_hand.or(awaited) } else { None };
                if !world.allowed.judge("force-all-names-releasing-nodes", reason) && is_wrong {
                    let what = format!("{node} takes the place of * on {pool}, which serves it: {before}");
                    return broken("force-all-names-releasing-nodes", what);
                }
            }
        }
    }
    Ok(())
}

fn forced_names(pool: &Value) -> Vec<String> {
    let words = pool["metadata"]["annotations"][FORCE_RELEASE].as_str().unwrap_or_default().split(',');
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Whether the node has an Active block of the pool by its status and its IPAMNode, and no reason to lose it. The block
/// is of the spec, the pool must serve, and the Node was selected in each state that the operator may have decided on: the last one up to the
/// version `seen`, and all later ones.
pub(super) fn is_in_service(server: &Server, seen: u64, pool: &Value, key: &PoolKey, node: &str) -> bool {
    let is_releasing = claims(pool, "releasing").iter().any(|(of, _)| of == node);
    let ipam_node = server.get("ipamnodes", node);
    let mut entries = ipam_node.and_then(|object| object["spec"]["pools"].as_array()).into_iter().flatten();
    let is_active = entries.any(|entry| pool_of_entry(entry) == *key && entry["state"] == "Active");
    let layouts = Layout::all(server);
    let Some(layout) = layouts.iter().find(|layout| layout.key == *key) else { return false };
    let is_of_spec =
        claims(pool, "allocations").iter().any(|(of, range)| of == node && layout.block_of(of, range).is_some());
    let is_served =
        layout.is_valid && !layout.is_deleting && overlapped(&layouts).iter().all(|(loser, _)| loser != key);
    let was_selected = server.before("nodes", node, seen + 1).is_some_and(|object| is_selected(layout, object));
    let states = server.since("nodes", seen).iter().filter(|event| text(&event.object, "/metadata/name") == node);
    let mut lost = states.filter(|event| event.change == Change::Deleted || !is_selected(layout, &event.object));
    !is_releasing && is_active && is_of_spec && is_served && was_selected && lost.next().is_none()
}

/// A pod that has an address.
struct Holder<'a> {
    node: &'a Node,
    pod: &'a str,
    held: &'a Held,
}

/// No address is used by two pods, and none in use is recorded for another node.
pub(super) fn no_address_is_used_twice(world: &World) -> Result<(), Broken> {
    world.nodes.iter().try_for_each(no_two_pods_of_a_node_have_an_address)?;
    let mut holders: BTreeMap<IpAddr, Vec<Holder<'_>>> = BTreeMap::new();
    let (allowed, records) = (&world.allowed, &world.records);
    for node in &world.nodes {
        for (pod, held) in node.held() {
            let reason = allowed.released(node, pod, held);
            allowed.judge("one-holder", reason);
            if let Some(reason) = reason {
                // So a reason shows whether it is needed.
                if is_elsewhere(records, &world.nodes, &node.name, held) {
                    allowed.happens(reason);
                }
                continue;
            }
            let there = holders.entry(held.addr).or_default();
            let is_wrong = |other: &&Holder<'_>| {
                let pair = [(&other.held.pool, other.held.assignment), (&held.pool, held.assignment)];
                let reason = shared(records, pair);
                if let Some(reason) = reason {
                    allowed.happens(reason);
                }
                !allowed.judge("one-holder", reason)
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

/// Nothing that happens elsewhere lets an agent allocate an address of a pool twice.
fn no_two_pods_of_a_node_have_an_address(node: &Node) -> Result<(), Broken> {
    let mut first: BTreeMap<(&PoolKey, IpAddr), &str> = BTreeMap::new();
    for (pod, held) in node.held().filter(|(pod, _)| node.is_known(pod)) {
        if let Some(other) = first.insert((&held.pool, held.addr), pod) {
            let what =
                format!("{} of {} is held twice on {}: by {other} and by {pod}", held.addr, held.pool, node.name);
            return broken("one-holder", what);
        }
    }
    Ok(())
}

/// A block that a status records.
struct Recorded<'a> {
    pool: PoolKey,
    node: &'a str,
    range: AddrRange,
}

/// Each pod that has an address is checked once, against all blocks of other nodes. Its own node's block cannot break the law.
fn recorded_as_its_own(world: &World, holders: &BTreeMap<IpAddr, Vec<Holder<'_>>>) -> Result<(), Broken> {
    let server = lock(&world.server);
    let mut blocks = Vec::new();
    for (plural, _) in POOL_KINDS {
        for object in server.list(plural) {
            let pool = key_of(plural, object["metadata"]["name"].as_str().unwrap_or_default());
            let claims = object.claims().iter();
            blocks.extend(claims.map(|Claim { node, range, .. }| Recorded { pool: pool.clone(), node, range: *range }));
        }
    }
    for (addr, holder) in holders.iter().flat_map(|(addr, there)| there.iter().map(move |holder| (addr, holder))) {
        let is_other = |block: &&Recorded<'_>| block.node != holder.node.name && block.range.contains(*addr);
        let mut reason = None;
        for block in blocks.iter().filter(is_other) {
            reason = why_it_may_be_of_another(&world.records, holder.held, block)
                .or_else(|| is_gateway(&server, holder.held, block).then_some("the address is the gateway by now"));
            if reason.is_none() {
                let (there, pod) = (&holder.node.name, holder.pod);
                let Recorded { pool, node, range } = block;
                let what = format!("{addr} is held by {pod} on {there}, but {} has given {range} to {node}", pool.name);
                return broken("address-has-one-node", what);
            }
        }
        world.allowed.judge("address-has-one-node", reason);
    }
    Ok(())
}

/// Whether the address is or was the gateway of the pool, and the node with the block cannot allocate it. Its entry has
/// this gateway or names the address as unavailable. Before it has an entry, the address must be the gateway of the spec.
/// An admin can make an address in use the gateway.
fn is_gateway(server: &Server, held: &Held, block: &Recorded<'_>) -> bool {
    if held.pool != block.pool || held.pool.kind != PoolKind::IpPool {
        return false;
    }
    let address = held.addr.to_string();
    if !server.has_been_gateway(&held.pool.name, &address) {
        return false;
    }
    let is_of_spec = server.get("ippools", &held.pool.name).is_some_and(|object| object["spec"]["gateway"] == address);
    let entries = server.get("ipamnodes", block.node).and_then(|object| object["spec"]["pools"].as_array());
    let entry = entries.into_iter().flatten().find(|entry| pool_of_entry(entry) == held.pool);
    entry.map_or(is_of_spec, |entry| {
        let mut unavailable = entry["heldElsewhere"].as_array().into_iter().flatten().filter_map(range_of_entry);
        entry["gateway"] == address || unavailable.any(|run| run.contains(held.addr))
    })
}

fn why_it_may_be_of_another(records: &Records, held: &Held, block: &Recorded<'_>) -> Option<&'static str> {
    let is_it = |it: &&Assignment| it.pool == block.pool && it.node == block.node && it.range == block.range;
    let id = records.recorded().iter().find(is_it).map(|it| it.id);
    taken_back(records, held).or_else(|| shared(records, [(&held.pool, held.assignment), (&block.pool, id)]))
}

/// Once all has settled: the addresses of pods are recorded for their node. If an admin destroyed the record, the agent
/// must report them, unless no pool assigns blocks.
pub(super) fn what_is_held_is_recorded(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    let has_pools = Layout::all(&server).iter().any(|pool| pool.is_valid && !pool.is_deleting);
    for node in &world.nodes {
        for (pod, held) in node.held() {
            let (pool, addr) = (&held.pool, held.addr);
            let plural = if pool.kind == PoolKind::IpPool { "ippools" } else { "cidrpools" };
            let object = server.get(plural, &pool.name);
            let claims = object.map(|object| object.claims()).unwrap_or_default();
            let is_destroyed = is_destroyed(&world.records, held);
            // A restore can bring back another block than the one that the node has by now. A status records one block of a node.
            let is_beside = || {
                let mut others = node.held().filter(|(_, other)| other.pool == *pool).map(|(_, other)| other.addr);
                let own = claims.iter().find(|claim| claim.node == node.name);
                taken_back(&world.records, held).is_some()
                    && own.is_some_and(|own| others.any(|addr| own.range.contains(addr)))
            };
            let is_recorded = claims.iter().any(|claim| claim.node == node.name && claim.range.contains(addr))
                || (is_destroyed && is_reported(&server, &node.name, held));
            let is_invalid = object.is_some_and(|object| super::has_reason(object, "InvalidSpec"));
            let reason = || {
                // With the CRDs each IPAMNode was deleted, also one that repeated a block that a late status write had removed.
                let is_lost = is_destroyed || (world.allowed.unreported.contains(&node.name) && object.is_none());
                let unasked = (is_lost && !has_pools).then_some("no pool assigns blocks");
                let beside = || is_beside() && is_reported(&server, &node.name, held);
                let unrecorded = || world.allowed.unrecorded(node, pod, held, is_invalid);
                unasked.or_else(unrecorded).or_else(|| beside().then_some("a restore brought back another block"))
            };
            let reason = if is_recorded { None } else { reason() };
            if !world.allowed.judge("held-is-recorded", reason) && !is_recorded {
                let what = format!("{addr} is held by {pod} on {}, and {pool} does not record it", node.name);
                return broken("held-is-recorded", what);
            }
        }
    }
    Ok(())
}
