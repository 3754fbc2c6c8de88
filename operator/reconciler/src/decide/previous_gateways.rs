//! Previous gateways, which a pod on any node may use.
//!
//! By `allocateDefaultGateway`, a pod on any node may have the gateway of an IPPool. While the entry of the node has that gateway, the
//! address is not outside its block. After a change of the gateway, the previous one stays unavailable until every agent has reported about
//! an entry with another gateway. From then on, a previous gateway in use is reported outside a block.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{AddrRange, PoolKind};
use ipam_crds::NodeBlock;

use super::DecisionInput;
use crate::ipam_node::{IpamNodeRecord, barred};

/// Previous gateways that are unavailable, and the nodes whose reports end that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Former {
    /// Addresses that were the gateway, and may still be for some agent.
    pub(super) gateways: Vec<AddrRange>,
    /// Nodes that have not reported about an entry with another gateway.
    pub(super) awaited: BTreeSet<String>,
}

/// Finds gateways other than those that `assignments` are to have. Usually there are none, and this costs one comparison for each node.
pub(super) fn find(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> Former {
    if seen.pool.key.kind != PoolKind::IpPool {
        // Only pods on the node of a prefix use its gateway, and the agent there does not allocate it twice.
        return Former::default();
    }
    let (mut former, current) = (Former::default(), current(seen, assignments));
    for range in candidates(seen, &current) {
        let awaited = awaited(seen, assignments, &current, &range);
        if !awaited.is_empty() {
            former.gateways.push(range);
            former.awaited.extend(awaited);
        }
    }
    former
}

/// The gateways that Active blocks are to have. If the spec serves no node, the one gateway of the entries is the current one.
fn current(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> BTreeSet<IpAddr> {
    let mut active = assignments.iter().filter(|given| given.phase == BlockPhase::Active).peekable();
    if active.peek().is_some() {
        return active.filter_map(|given| given.block.gateway).collect();
    }
    let entries = seen.ipam_nodes.all().values().filter_map(|record| record.block(&seen.pool.key));
    let of_entries: BTreeSet<Option<IpAddr>> = entries.map(gateway_of).collect();
    if of_entries.len() == 1 { of_entries.into_iter().flatten().collect() } else { BTreeSet::new() }
}

/// Addresses that are the gateway in some entry, or were in the plan in force, and are not current. Without a plan in force, as for a new
/// leader, it is unknown which unavailable addresses were a gateway. Then each of them counts as one.
fn candidates(seen: &DecisionInput<'_>, current: &BTreeSet<IpAddr>) -> BTreeSet<AddrRange> {
    let records = || seen.ipam_nodes.all().values();
    let entries = || records().filter_map(|record| record.block(&seen.pool.key));
    let texts: BTreeSet<&str> = entries().filter_map(|entry| entry.gateway.as_deref()).collect();
    let mut gateways: BTreeSet<IpAddr> = texts.into_iter().filter_map(|text| parse_addr(text).ok()).collect();
    gateways.extend(seen.told.iter().filter_map(|told| told.block.gateway));
    let mut ranges: BTreeSet<AddrRange> = gateways.into_iter().filter_map(|addr| AddrRange::new(addr, addr)).collect();
    match seen.former {
        Some(former) => ranges.extend(former),
        None => ranges.extend(entries().flat_map(barred)),
    }
    // A current gateway is unavailable on each node whose entry has another one.
    let is_current = |range: &AddrRange| range.size() == 1 && current.contains(&range.first());
    ranges.into_iter().filter(|range| !is_current(range)).collect()
}

/// The nodes whose agents have not reported about an entry with another gateway than these addresses. A current gateway is none of them.
fn awaited(
    seen: &DecisionInput<'_>,
    assignments: &[Assignment],
    current: &BTreeSet<IpAddr>,
    addrs: &AddrRange,
) -> BTreeSet<String> {
    let key = &seen.pool.key;
    let has_answered = |record: &IpamNodeRecord| {
        let gateway = record.block(key).and_then(gateway_of);
        let is_another = gateway.is_none_or(|gateway| current.contains(&gateway) || !addrs.contains(gateway));
        is_another && !record.write_in_flight && record.observed_generation == Some(record.generation)
    };
    let has_entry = |node: &str| seen.ipam_nodes.get(node).is_some_and(|record| record.block(key).is_some());
    let without_entry = assignments.iter().map(|given| given.node.as_str()).filter(|node| !has_entry(node));
    let with_entry = seen.ipam_nodes.all().iter().filter(|(_, record)| record.block(key).is_some());
    let unanswered = with_entry.filter(|(_, record)| !has_answered(record)).map(|(node, _)| node.as_str());
    without_entry.chain(unanswered).map(str::to_owned).collect()
}

fn gateway_of(entry: &NodeBlock) -> Option<IpAddr> {
    entry.gateway.as_deref().and_then(|text| parse_addr(text).ok())
}
