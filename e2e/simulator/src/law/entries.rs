//! The entries of an IPAMNode agree with the pool's status and spec, once all has settled.

use ipam_core::{AddrRange, PoolKind, RangeSet};
use serde_json::Value;

use super::seen::{NO_AGENT, Seen, claims};
use crate::broken::{Broken, broken};
use crate::layout::{Block, Layout};
use crate::records::{pool_of_entry, range_of_entry};

/// Checks state, addresses, mask, gateway, exclusions and routes of each entry of the pool.
pub(super) fn agree(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    let object = seen.object(layout);
    for (list, state) in [("allocations", "Active"), ("releasing", "Releasing")] {
        for (node, range) in claims(object, list) {
            let Some(ipam_node) = seen.server.get("ipamnodes", &node) else { continue };
            let mut entries = ipam_node["spec"]["pools"].as_array().into_iter().flatten();
            let Some(entry) = entries.find(|entry| pool_of_entry(entry) == layout.key) else { continue };
            // An invalid pool changes no entry, even if a late write has left another block in it.
            let is_left = layout.is_frozen() && !range_of_entry(entry).is_some_and(|it| range.contains_range(&it));
            if state == "Active" && entry["state"] == state && has_ended(ipam_node, entry) && !is_left {
                return broken(
                    "ended-grant-is-replaced",
                    format!("{range} of {} is assigned to {node} by a grant that has ended: {entry}", layout.key),
                );
            }
            if layout.is_frozen() {
                continue;
            }
            let is_other = entry["state"] != state;
            let is_suspended = || is_other && entry["state"] == "Releasing" && seen.is_contradicted_on(layout, &node);
            if !seen.leaves_out("entry-agrees-with-status", &[("addresses are held twice", is_suspended())]) && is_other
            {
                return broken(
                    "entry-agrees-with-status",
                    format!("{range} of {} is in {list}, and the IPAMNode of {node} has {entry}", layout.key),
                );
            }
            if let Some(run) = unavailable_without_a_reason(seen, layout, &node, entry) {
                return broken(
                    "held-elsewhere-is-true",
                    format!("{run} is unavailable to {node}, and no other agent reports it: {entry}"),
                );
            }
            let block = layout.block_of(&node, &range);
            if let Some(block) = block.filter(|_| list == "allocations" && seen.serves(layout))
                && let Err(what) = of_spec(seen, layout, block, entry)
            {
                let of = format!("{range} of {}", layout.key);
                return broken(
                    "entry-agrees-with-spec",
                    format!("the IPAMNode of {node} has another {what} of {of} than the spec: {entry}"),
                );
            }
        }
    }
    Ok(())
}

/// Whether the entry has no grant, or the agent reports that it has ended.
fn has_ended(ipam_node: &Value, entry: &Value) -> bool {
    let has_none = entry["grant"].as_str().is_none_or(str::is_empty);
    let mut reports = ipam_node["status"]["pools"].as_array().into_iter().flatten();
    let is_of_it = |report: &Value| {
        let is_same = |field: &str| report[field] == entry[field];
        ["name", "poolType", "grant"].into_iter().all(is_same) && report["ended"] == true
    };
    has_none || reports.any(is_of_it)
}

/// Whether another pool, which may not share the addresses, has them in a block of another node that is Releasing or of an earlier spec.
fn is_released_elsewhere(seen: &Seen<'_>, layout: &Layout, node: &str, run: &AddrRange) -> bool {
    let others = seen.layouts.iter().filter(|other| other.key != layout.key && seen.counts(layout, &other.key));
    let blocks = others.flat_map(|other| {
        let given = claims(seen.object(other), "allocations").into_iter();
        let stale = given.filter(|(of, range)| other.block_of(of, range).is_none());
        claims(seen.object(other), "releasing").into_iter().chain(stale)
    });
    cover(blocks.filter(|(of, _)| of != node).map(|(_, range)| range), run)
}

/// Whether the ranges together have all addresses of the run.
fn cover(ranges: impl Iterator<Item = AddrRange>, run: &AddrRange) -> bool {
    let mut all = RangeSet::new();
    for (first, last) in ranges.filter(|range| range.family() == run.family()).map(|range| range.numbers()) {
        all.insert(first, last);
    }
    let (first, last) = run.numbers();
    all.covers(first, last)
}

/// Addresses that are unavailable by the entry, that no other agent reports as in use, and that are in no block of another pool which another node still
/// releases or is to release. A previous gateway is unavailable as long as blocks are being released or are of an earlier spec. Other laws check that this ends.
fn unavailable_without_a_reason(seen: &Seen<'_>, layout: &Layout, node: &str, entry: &Value) -> Option<AddrRange> {
    let law = "held-elsewhere-is-true";
    let mut runs = entry["heldElsewhere"].as_array().into_iter().flatten().filter_map(range_of_entry);
    let unreported = runs.find(|run| {
        // The agent itself may have allocated the address that is to be the gateway.
        let is_gateway = layout.blocks.iter().any(|block| block.gateway == Some(run.first()));
        !seen.is_reported(layout, run, |other, key| is_gateway || other != node || *key != layout.key)
            && !is_released_elsewhere(seen, layout, node, run)
    });
    let is = |reason: &dyn Fn() -> bool| unreported.is_some() && reason();
    // A new leader takes each unavailable address for a previous gateway, until each node with a block of the pool has reported.
    let object = seen.object(layout);
    let changes = || {
        !claims(object, "releasing").is_empty()
            || claims(object, "allocations").iter().any(|(node, range)| layout.block_of(node, range).is_none())
    };
    // A pool with an invalid spec keeps its blocks, in its status or, where that was wiped, in IPAMNodes. An invalid spec overlaps no other
    // pool.
    let is_of_invalid = || {
        let is_it = |other: &&Layout| other.is_frozen() && seen.counts(layout, &other.key);
        let others = || seen.layouts.iter().filter(is_it);
        let recorded = others().flat_map(|other| claims(seen.object(other), "allocations"));
        let entries = seen.server.list("ipamnodes").filter_map(|object| object["spec"]["pools"].as_array()).flatten();
        let entries = entries.filter(|entry| others().any(|other| pool_of_entry(entry) == other.key));
        let blocks = recorded.map(|(_, range)| range).chain(entries.filter_map(range_of_entry));
        unreported.is_some_and(|run| cover(blocks, &run))
    };
    let waits = || {
        let blocks = claims(object, "allocations").into_iter().chain(claims(object, "releasing"));
        blocks.map(|(node, _)| node).any(|node| seen.is_without_agent(&node))
    };
    let reasons = [
        ("blocks are released or of an earlier spec", is(&changes)),
        ("an invalid pool has the block", is_of_invalid()),
        (NO_AGENT, is(&waits)),
    ];
    let is_left_out = seen.leaves_out(law, &reasons);
    unreported.filter(|_| !is_left_out)
}

/// The field of the entry that differs from the spec.
fn of_spec(seen: &Seen<'_>, layout: &Layout, block: &Block, entry: &Value) -> Result<(), &'static str> {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    if (text("startIP"), text("endIP")) != (block.hosts.first().to_string(), block.hosts.last().to_string()) {
        return Err("range");
    }
    let subnet = match layout.key.kind {
        PoolKind::IpPool => format!("{}/{}", layout.network.first(), layout.prefix_len),
        PoolKind::CidrPool => {
            let host_bits = block.range.size().trailing_zeros();
            let bits = if block.range.first().is_ipv4() { 32 } else { 128 };
            format!("{}/{}", block.range.first(), bits - host_bits)
        }
    };
    if text("subnet") != subnet {
        return Err("mask");
    }
    let gateway = block.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
    let waits = text("gateway") != gateway && seen.gateway_waits(layout, block);
    let waits = seen.leaves_out("entry-agrees-with-spec", &[("the gateway may be in use", waits)]);
    if text("gateway") != gateway && !waits {
        return Err("gateway");
    }
    let routes = entry["routes"].as_array().cloned().unwrap_or_default();
    let routes: Vec<&str> = routes.iter().filter_map(|route| route["dst"].as_str()).collect();
    if routes != layout.routes || (entry["defaultGateway"] == true) != layout.default_gateway {
        return Err("route");
    }
    let excluded = entry["exclusions"].as_array().cloned().unwrap_or_default();
    let is_in = |addr, run: &Value| {
        let end = |field: &str| run[field].as_str()?.parse().ok();
        Some(AddrRange::new(end("startIP")?, end("endIP")?)?.contains(addr))
    };
    let (first, last) = block.hosts.numbers();
    for number in first..=last {
        let addr = block.hosts.family().addr(number);
        let is_told = excluded.iter().any(|run| is_in(addr, run) == Some(true));
        let is_gateway = block.gateway == Some(addr);
        if !is_gateway && is_told == layout.allows(block, number) {
            return Err("exclusion");
        }
    }
    Ok(())
}
