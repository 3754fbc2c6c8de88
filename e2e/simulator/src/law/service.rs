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
            let free = free_address(world, node, &object, entry);
            let Some(place) = world.nodes[usize::from(node)].place_of(&pool_of_entry(entry)) else {
                return broken(
                    "free-address-is-served",
                    format!("the agent of {name} does not have this entry: {entry}"),
                );
            };
            let mut added = world.add(node, place, Wish::Any);
            for _ in 0..REPORTS {
                if added != Added::Refused(UNCONFIRMED) {
                    break;
                }
                // The request has woken an idle grant. The confirmation waits for the write that is under way, or for its
                // next try.
                world.clock.elapsed += world.until_report(node).min(WRITE_TIMEOUT + UNREACHED);
                world.report(node);
                added = world.add(node, place, Wish::Any);
            }
            if added == Added::Refused("ADD refused: Exhausted") {
                // If a clock was set back, a cooldown takes at most twice its time.
                world.clock.elapsed += Duration::from_secs(2 * COOLDOWN.unsigned_abs());
                added = world.add(node, place, Wish::Any);
            }
            if added == Added::Served {
                served.push(node);
            }
            if let (Some(free), Added::Refused(why)) = (free, added) {
                return broken(
                    "free-address-is-served",
                    format!("{name} serves no pod although {free} is free ({why}): {entry}"),
                );
            }
            // Each block gets one of the two requests.
            let by_index = served.len().is_multiple_of(2);
            let Some(free) = free_address(world, node, &object, entry).filter(|_| added == Added::Served) else {
                continue;
            };
            let wish = Wish::Named { offset: offset(entry, free), by_index };
            match world.add(node, place, wish) {
                Added::Served => served.push(node),
                Added::Refused(why) => {
                    let how = if by_index { "by its index" } else { "by its value" };
                    let what = format!("{name} does not serve a pod that requests {free} {how} ({why}): {entry}");
                    return broken("free-address-is-served", what);
                }
                _ => {}
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

/// How far into the block of the entry the address is.
fn offset(entry: &Value, addr: IpAddr) -> u128 {
    let first = range_of_entry(entry).map_or(0, |range| range.numbers().0);
    number(addr).saturating_sub(first)
}

/// An address of the entry that is not in use, not excluded and not unavailable.
fn free_address(world: &World, node: u8, object: &Value, entry: &Value) -> Option<IpAddr> {
    let range = range_of_entry(entry)?;
    let it = &world.nodes[usize::from(node)];
    let runs = ["exclusions", "heldElsewhere"].into_iter().filter_map(|field| entry[field].as_array()).flatten();
    let runs: Vec<_> = runs.filter_map(range_of_entry).collect();
    let reports = object["status"]["pools"].as_array().into_iter().flatten();
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
