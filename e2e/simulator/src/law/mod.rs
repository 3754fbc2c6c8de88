//! The laws that must hold after every step, and those that must hold once no more faults happen.

mod conditions;
mod entries;
mod liveness;
mod lost;
mod safety;
mod seen;
pub(super) mod service;

use std::collections::BTreeSet;

use ipam_core::plan::Claim;
use ipam_core::{AddrRange, Cidr, PoolKey};
use serde_json::Value;

use crate::admin::may_share;
use crate::agent::Node;
use crate::broken::{Broken, broken};
use crate::given::told_without_mark;
use crate::records::{plural_of, pool_of_entry};
use crate::replica::Replica;
use crate::server::{Server, text};
use crate::wire::lock;
use crate::world::{PutBack, World};
use crate::{EarlyAssignment, Unproven};

/// Checks the laws after each step. At most one replica leads. No IPAMNode gets a block before the Lease records assigned
/// blocks. No address is used by two pods, and none in use is recorded for another node. No pool is deleted while a pod
/// has an address of it.
pub fn check(world: &mut World) -> Result<(), Broken> {
    let end = check_now(world);
    world.nodes_seen = world.nodes_seen_by_all();
    if world.put_back.as_ref().is_some_and(|it| it.is_unseen) {
        let is_unseen = !world.leaders_know_pools(&lock(&world.server));
        world.put_back = world.put_back.take().map(|it| PutBack { is_unseen, ..it });
    }
    end
}

fn check_now(world: &mut World) -> Result<(), Broken> {
    one_leads(world)?;
    // A restore under a leader takes back the state of the Lease, or a node's release. The leader writes it again once it
    // knows of that. The law can break with a change alone.
    let has_news = world.checked.0 != lock(&world.server).news();
    let reason = world.is_unmarked.then_some("a restore under a leader");
    if has_news && !world.allowed.judge("lease-says-so-first", reason) {
        what_is_given_is_marked(world)?;
    }
    if let Some((node, wrong)) = world.nodes.iter().find_map(|node| Some((&node.name, node.wrong()?))) {
        return broken("agent-keeps-its-rules", format!("the agent of {node} {wrong}"));
    }
    let moves = world.nodes.iter().map(Node::moves).sum();
    let seen = (lock(&world.server).news(), moves);
    let before = std::mem::replace(&mut world.checked, seen);
    let clock = world.clock();
    let shared = world.server.clone();
    let server = lock(&shared);
    let all_decided = world.leaders_have_decided(&server);
    if before.0 != seen.0 {
        let all_know = world.leaders_know_pools(&server);
        world.records.note_sharing(&server, all_know);
        world.records.note_expired(world.allowed.expired());
        let by_hand = world.by_hand.or(world.is_late_call.then_some(crate::LATE_CALL));
        world.records.read(&server, by_hand, &mut world.activity);
        note_early_assignments(world, &server);
        releases_have_a_cause(world)?;
    }
    let is_served = |object: &Value, pool: &PoolKey, node: &str| {
        safety::is_in_service(&server, world.nodes_seen, object, pool, node) && !seen::may_await_report(&server, node)
    };
    let records = (&*server, &world.records, &*world.nodes);
    world.allowed.renew(records, &world.replicas, before.0, (all_decided, clock), &is_served);
    if all_decided {
        let nodes = &world.nodes;
        world.unproven.retain(|it| !is_proved(&server, nodes, it));
    }
    drop(server);
    if before == seen {
        return Ok(());
    }
    safety::no_pool_in_use_goes(world, before.0)?;
    safety::what_is_assigned_is_recorded(world, before.0)?;
    safety::no_pod_has_a_gateway(world)?;
    safety::only_releasing_nodes_are_forced(world, before.0)?;
    safety::no_address_is_used_twice(world)
}

/// Checks the laws that must hold once nothing has happened for a while.
pub(super) fn at_rest(world: &World) -> Result<(), Broken> {
    what_is_given_is_marked(world)?;
    nodes_are_told(world)?;
    the_older_serves(world)?;
    lost::ends(world)?;
    safety::what_is_held_is_recorded(world)?;
    liveness::check(world)
}

/// Whether the node's agent has by now reported the grant of this block, the status records the block for the node, and no pod of another node
/// has an address of it.
fn is_proved(server: &Server, nodes: &[Node], it: &Unproven) -> bool {
    let pool = server.get(plural_of(&it.pool), &it.pool.name);
    let mut claims = pool.map(|pool| pool.claims()).into_iter().flatten();
    let Some(object) = server.get("ipamnodes", &it.node) else { return false };
    let mut entries = object["spec"]["pools"].as_array().into_iter().flatten();
    let entry = entries.find(|entry| pool_of_entry(entry) == it.pool && entry["state"] == "Active");
    let mut reports = object["status"]["pools"].as_array().into_iter().flatten();
    let mut others = nodes.iter().filter(|node| node.name != it.node).flat_map(Node::held);
    !others.any(|(_, held)| it.range.contains(held.addr))
        && claims.any(|claim| claim.node == it.node && claim.range.contains_range(&it.range))
        && entry.is_some_and(|entry| reports.any(|report| report["grant"] == entry["grant"]))
}

/// Records which nodes had not reported when a block was assigned.
fn note_early_assignments(world: &mut World, server: &Server) {
    let assigned = world.records.take_assigned();
    let unreported: BTreeSet<String> = world.allowed.unreported.names().map(str::to_owned).collect();
    if assigned.is_empty() || unreported.is_empty() {
        return;
    }
    let since = world.clock().elapsed.saturating_sub(world.lost_at);
    let forgotten: BTreeSet<String> = world.allowed.unreported.forgotten().map(str::to_owned).collect();
    let gone: BTreeSet<String> =
        unreported.iter().filter(|name| server.get("nodes", name).is_none()).cloned().collect();
    let early = |(node, range)| EarlyAssignment {
        node,
        range,
        since,
        unreported: unreported.clone(),
        forgotten: forgotten.clone(),
        gone: gone.clone(),
    };
    world.early.extend(assigned.into_iter().map(early));
}

/// A status loses a block by an admin's action, or for one of these reasons. An admin has force-released it. Its Node was gone for the
/// grace. Or by the last report each of its grants has ended with no address in use, was never used, or is unknown to the agent.
fn releases_have_a_cause(world: &mut World) -> Result<(), Broken> {
    for (it, what) in world.records.take_unexplained() {
        let reason = world.allowed.is_unguarded(&it.pool).then_some("finalizer removed by hand");
        if !world.allowed.judge("release-has-a-cause", reason) {
            let what = format!("{} of {} is released from {} for no known reason, {what}", it.range, it.pool, it.node);
            return broken("release-has-a-cause", what);
        }
    }
    Ok(())
}

/// An IPAMNode gets a block only after the Lease records assigned blocks. A later leader needs that when all records are gone.
fn what_is_given_is_marked(world: &World) -> Result<(), Broken> {
    match told_without_mark(&lock(&world.server)) {
        None => Ok(()),
        Some(object) => broken(
            "lease-says-so-first",
            format!("{} has blocks before the Lease says so", text(object, "/metadata/name")),
        ),
    }
}

/// At most one replica leads, by its own clock. A stopped replica wakes up as a leader and must find out by itself that
/// it is not.
fn one_leads(world: &World) -> Result<(), Broken> {
    let now = world.clock().instant();
    let leads = |replica: &&Replica| replica.leads_until().is_some_and(|until| until > now);
    match world.replicas.iter().flatten().filter(leads).count() {
        0 | 1 => Ok(()),
        count => broken("one-leader", format!("{count} replicas lead at one time")),
    }
}

/// Which node has which block, by the statuses of all pools.
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

/// Once all has settled: every IPAMNode has the blocks that the statuses record, and no others. Pools with an invalid
/// spec are not checked: their entries stay as they were, because the correct content is unknown.
pub fn nodes_are_told(world: &World) -> Result<(), Broken> {
    let recorded = claims(world);
    let server = lock(&world.server);
    for (node, pool, claim) in &recorded {
        if is_invalid(&server, pool) {
            continue;
        }
        // Without a Node and an IPAMNode there is no object to write.
        if server.get("nodes", node).is_none() && server.get("ipamnodes", node).is_none() {
            continue;
        }
        let told = server.get("ipamnodes", node).map(|object| told(object, pool)).unwrap_or_default();
        if !told.iter().any(|range| claim.range.contains_range(range)) {
            return broken(
                "ipam-node-has-its-blocks",
                format!("{pool} records {} for {node}, whose IPAMNode has {told:?}", claim.range),
            );
        }
    }
    for object in server.list("ipamnodes") {
        let node = text(object, "/metadata/name");
        for pool in object["spec"]["pools"].as_array().into_iter().flatten() {
            let name = pool_name(pool);
            let is_recorded = recorded.iter().any(|(of, in_pool, _)| *of == node && *in_pool == name);
            // Blocks of a pool that is gone are being released as long as addresses are in use.
            let is_orphaned = pool["state"] == "Releasing";
            let is_known = is_recorded || (is_orphaned && holds(world, &node, pool)) || is_invalid(&server, &name);
            let key = pool_of_entry(pool);
            let is_lost = || lost::lost(world, &node).iter().any(|(of, _)| *of == key);
            let has_no_agent = || world.nodes.iter().any(|it| it.name == node && !it.has_agent());
            let reason = || {
                let no_agent = has_no_agent().then_some(seen::NO_AGENT);
                no_agent.or_else(|| is_lost().then_some(lost::LOST))
            };
            let reason = if is_known || !is_orphaned { None } else { reason() };
            if !world.allowed.judge("ipam-node-has-no-other-block", reason) && !is_known {
                return broken(
                    "ipam-node-has-no-other-block",
                    format!("the IPAMNode of {node} has a block of {name}, which records none: {pool}"),
                );
            }
        }
    }
    Ok(())
}

/// Once all has settled: of two pools with the same addresses, at most one serves nodes.
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
            return broken("one-pool-serves", format!("{other} ({there}) and {name} ({range}) both serve"));
        }
        serving.push((name, range, shares));
    }
    Ok(())
}

fn holds(world: &World, node: &str, entry: &Value) -> bool {
    let of_it = |pool: &PoolKey| entry["name"] == *pool.name && entry["poolType"] == pool.kind.kind();
    world.nodes.iter().any(|it| it.name == node && it.held().any(|(_, held)| of_it(&held.pool)))
}

/// The condition of this type.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
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

/// The ranges of a pool in an IPAMNode.
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
