//! A pod that requests an address gets one if one is free, once all has settled.

use std::net::IpAddr;
use std::time::Duration;

use ipam_core::AddrRange;
use ipam_core::addr::number;
use serde_json::Value;

use super::has_reason;
use super::seen::claims;
use crate::agent::{Added, UNCONFIRMED};
use crate::broken::{Broken, broken};
use crate::disk::COOLDOWN;
use crate::object::Object;
use crate::records::{pool_of_entry, range_of_entry, reported};
use crate::request::Wish;
use crate::wire::lock;
use crate::world::World;
use ipam_node_agent::status::{UNREACHED, WRITE_TIMEOUT};

/// Reports that may come before the confirmation of a grant: the first may be about grants of other pools that become idle meanwhile.
const REPORTS: usize = 2;

/// Requests an address of each Active block for a pod, and then a free one by its index or by its value. All laws are checked while these pods run, and then they end.
pub(crate) fn check(world: &mut World) -> Result<(), Broken> {
    let mut served = Vec::new();
    let mut by_index = false;
    for node in world.machines() {
        let clock = world.clock();
        world.nodes[usize::from(node)].check_all(clock);
        if !world.nodes[usize::from(node)].has_agent() {
            continue;
        }
        let name = world.nodes[usize::from(node)].name.clone();
        let Some(object) = lock(&world.server).get("ipamnodes", &name).cloned() else { continue };
        let entries = object["spec"]["pools"].as_array().into_iter().flatten();
        let is_served = |entry: &Value| entry["state"] == "Active" && !is_stopped(world, &name, entry);
        for entry in entries.filter(|entry| is_served(entry)).collect::<Vec<_>>() {
            let Some(place) = world.nodes[usize::from(node)].place_of(&pool_of_entry(entry)) else {
                return unserved(format!("the agent of {name} does not have this entry: {entry}"));
            };
            let it = Served { node, name: &name, ipam_node: &object, entry, place };
            if !request_any(world, &it)? {
                continue;
            }
            served.push(node);
            // Each block gets one of the two requests.
            by_index = !by_index;
            if request_named(world, &it, by_index)? {
                served.push(node);
            }
        }
    }
    // The rules of the agents check the answers of CHECK.
    super::check(world)?;
    for node in served {
        world.end_newest_pod(node);
    }
    Ok(())
}

/// A block from which an agent allocates.
struct Served<'a> {
    node: u8,
    /// The name of the node.
    name: &'a str,
    ipam_node: &'a Object,
    entry: &'a Value,
    /// The number of its pool.
    place: usize,
}

/// Requests any address. Returns whether the pod got one.
fn request_any(world: &mut World, it: &Served<'_>) -> Result<bool, Broken> {
    let free = free_address(world, it);
    let mut added = world.add(it.node, it.place, Wish::Any);
    for _ in 0..REPORTS {
        if added != Added::Refused(UNCONFIRMED) {
            break;
        }
        // The request has woken an idle grant. The confirmation waits for the write that is under way, or for its
        // next try.
        world.clock.elapsed += world.until_report(it.node).min(WRITE_TIMEOUT + UNREACHED);
        world.report(it.node);
        added = world.add(it.node, it.place, Wish::Any);
    }
    if added == Added::Refused("ADD refused: Exhausted") {
        // If a clock was set back, a cooldown takes at most twice its time.
        world.clock.elapsed += Duration::from_secs(2 * COOLDOWN.unsigned_abs());
        added = world.add(it.node, it.place, Wish::Any);
    }
    match (free, added) {
        (Some(free), Added::Refused(why)) => {
            let (name, entry) = (it.name, it.entry);
            unserved(format!("{name} serves no pod although {free} is free ({why}): {entry}"))
        }
        _ => Ok(added == Added::Served),
    }
}

/// Requests a free address, if there is one, by its index or by its value. Returns whether the pod got it.
fn request_named(world: &mut World, it: &Served<'_>, by_index: bool) -> Result<bool, Broken> {
    let Some(free) = free_address(world, it) else { return Ok(false) };
    let first = range_of_entry(it.entry).map_or(0, |range| range.numbers().0);
    let wish = Wish::Named { offset: number(free).saturating_sub(first), by_index };
    match world.add(it.node, it.place, wish) {
        Added::Refused(why) => {
            let (name, entry, how) = (it.name, it.entry, if by_index { "index" } else { "value" });
            unserved(format!("{name} does not serve a pod that requests {free} by its {how} ({why}): {entry}"))
        }
        added => Ok(added == Added::Served),
    }
}

fn unserved<T>(what: String) -> Result<T, Broken> {
    broken("free-address-is-served", what)
}

/// Whether the pool of the entry is invalid and does not assign this block to the node. Such a pool changes no entry, and
/// the agent may have reported that the grant has ended.
fn is_stopped(world: &World, node: &str, entry: &Value) -> bool {
    let plural = if entry["poolType"] == "CIDRPool" { "cidrpools" } else { "ippools" };
    let server = lock(&world.server);
    let Some(pool) = entry["name"].as_str().and_then(|name| server.get(plural, name)) else { return false };
    let block = range_of_entry(entry);
    let is_it =
        |(of, range): &(String, AddrRange)| of == node && block.is_some_and(|block| range.contains_range(&block));
    let is_assigned = claims(pool, "allocations").iter().any(is_it);
    has_reason(pool, "InvalidSpec") && !is_assigned
}

/// An address of the entry that is not in use, not excluded and not unavailable.
fn free_address(world: &World, Served { node, ipam_node, entry, .. }: &Served<'_>) -> Option<IpAddr> {
    let range = range_of_entry(entry)?;
    let it = &world.nodes[usize::from(*node)];
    let runs = ["exclusions", "heldElsewhere"].into_iter().filter_map(|field| entry[field].as_array()).flatten();
    let runs: Vec<_> = runs.filter_map(range_of_entry).collect();
    let reports = ipam_node["status"]["pools"].as_array().into_iter().flatten();
    let reported: Vec<_> = reports.flat_map(reported).collect();
    let (first, last) = range.numbers();
    let mut addrs = (first..=last).map(|number| range.family().addr(number));
    addrs.find(|addr| {
        let is_gateway = entry["gateway"].as_str() == Some(&addr.to_string());
        let is_held = it.held().any(|(_, held)| held.addr == *addr);
        let is_barred = runs.iter().chain(&reported).any(|run| run.contains(*addr));
        !is_gateway && !is_held && !is_barred
    })
}
