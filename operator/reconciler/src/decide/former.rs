//! Previous gateways, which a pod on any node may use.
//!
//! By `allocateDefaultGateway`, a pod on any node may have the gateway of an IPPool. While the entry of the node has that gateway, the
//! address is not outside its block. After a change of the gateway, the previous one stays unavailable until every agent has reported about
//! an entry with the current gateway. From then on, a previous gateway in use is reported outside a block.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{AddrRange, PoolKind};

use super::DecisionInput;
use crate::ipam_node::{IpamNodeRecord, barred};

/// Previous gateways that are unavailable, and the nodes whose reports end that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Former {
    /// Addresses that were the gateway, and may still be for some agent.
    pub(super) gateways: Vec<AddrRange>,
    /// Nodes that have not reported about an entry with the current gateway.
    pub(super) awaited: BTreeSet<String>,
}

/// Finds gateways other than those that `assignments` are to have. Usually there are none, and this costs one comparison for each node.
pub(super) fn find(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> Former {
    if seen.pool.key.kind != PoolKind::IpPool {
        // Only pods on the node of a prefix use its gateway, and the agent there does not allocate it twice.
        return Former::default();
    }
    let serving = assignments.iter().filter(|given| given.phase == BlockPhase::Active);
    let mut now: BTreeSet<Option<IpAddr>> = serving.map(|given| given.block.gateway).collect();
    if now.is_empty() {
        // If the spec serves no node, the gateway of the entries is the current one.
        let entries = seen.ipam_nodes.all().values().filter_map(|record| record.block(&seen.pool.key));
        let texts: BTreeSet<Option<&str>> = entries.map(|entry| entry.gateway.as_deref()).collect();
        now.extend(texts.into_iter().map(|text| text.and_then(|text| parse_addr(text).ok())));
    }
    let gateways = candidates(seen, &now);
    let awaited = if gateways.is_empty() { BTreeSet::new() } else { awaited(seen, assignments, &now) };
    if awaited.is_empty() { Former::default() } else { Former { gateways, awaited } }
}

/// Addresses that are the gateway in some entry, or were in the plan in force, and are not the one of `now` for all. Without a plan in
/// force, as for a new leader, it is unknown which unavailable addresses were a gateway. Then each of them counts as one.
fn candidates(seen: &DecisionInput<'_>, now: &BTreeSet<Option<IpAddr>>) -> Vec<AddrRange> {
    let records = || seen.ipam_nodes.all().values();
    let entries = || records().filter_map(|record| record.block(&seen.pool.key));
    let texts: BTreeSet<&str> = entries().filter_map(|entry| entry.gateway.as_deref()).collect();
    let mut gateways: BTreeSet<IpAddr> = texts.into_iter().filter_map(|text| parse_addr(text).ok()).collect();
    gateways.extend(seen.told.iter().filter_map(|told| told.block.gateway));
    if now.len() == 1 {
        gateways.retain(|gateway| !now.contains(&Some(*gateway)));
    }
    let gateways = gateways.into_iter().filter_map(|gateway| AddrRange::new(gateway, gateway));
    let mut ranges: BTreeSet<AddrRange> = gateways.collect();
    match seen.former {
        Some(former) => ranges.extend(former),
        None => ranges.extend(entries().flat_map(barred)),
    }
    // No node allocates the current gateway.
    let is_now = |range: &AddrRange| range.size() == 1 && now.len() == 1 && now.contains(&Some(range.first()));
    ranges.into_iter().filter(|range| !is_now(range)).collect()
}

/// The nodes whose agents have not reported about an entry with the gateway of `now`.
fn awaited(seen: &DecisionInput<'_>, assignments: &[Assignment], now: &BTreeSet<Option<IpAddr>>) -> BTreeSet<String> {
    let key = &seen.pool.key;
    let has_answered = |record: &IpamNodeRecord| {
        let gateway = record.block(key).map(|entry| entry.gateway.as_deref().and_then(|text| parse_addr(text).ok()));
        let is_of_now = gateway.is_some_and(|gateway| now.len() == 1 && now.contains(&gateway));
        is_of_now && !record.write_in_flight && record.observed_generation == Some(record.generation)
    };
    let has_entry = |node: &str| seen.ipam_nodes.get(node).is_some_and(|record| record.block(key).is_some());
    let without_entry = assignments.iter().map(|given| given.node.as_str()).filter(|node| !has_entry(node));
    let told = seen.ipam_nodes.all().iter().filter(|(_, record)| record.block(key).is_some());
    let silent = told.filter(|(_, record)| !has_answered(record)).map(|(node, _)| node.as_str());
    without_entry.chain(silent).map(str::to_owned).collect()
}
