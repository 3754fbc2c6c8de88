//! Gateways of before, which a pod on any node may hold.
//!
//! By `allocateDefaultGateway` a pod on any node may have the gateway of an IPPool, which is no stray while its node's entry
//! names that gateway. So once the gateway is another, the node whose block has the address may not give it before every
//! agent has reported about an entry with the gateway of now: what is held of it then shows as held outside its block.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, Standing};
use ipam_core::{AddrRange, PoolKind};

use super::Observation;
use crate::ipam_node::{IpamNodeRecord, barred};

/// What is barred for a while, and until whose word.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Former {
    /// Addresses that were the gateway, and may be so still for some agent.
    pub(super) gateways: Vec<AddrRange>,
    /// Nodes that have not reported about an entry with the gateway of now.
    pub(super) awaited: BTreeSet<String>,
}

/// Looks for gateways other than those that `assignments` are to have. None as a rule, and then this costs one comparison
/// for each node.
pub(super) fn find(seen: &Observation<'_>, assignments: &[Assignment]) -> Former {
    if seen.pool.key.kind != PoolKind::IpPool {
        // The gateway of a prefix is held on its own node alone, whose agent does not give it twice.
        return Former::default();
    }
    let serving = assignments.iter().filter(|given| given.standing == Standing::Serving);
    let mut now: BTreeSet<Option<IpAddr>> = serving.map(|given| given.block.gateway).collect();
    if now.is_empty() {
        // Where nobody is served by the spec, that of the entries is the gateway.
        let entries = seen.ipam_nodes.all().values().filter_map(|record| record.block(&seen.pool.key));
        let texts: BTreeSet<Option<&str>> = entries.map(|entry| entry.gateway.as_deref()).collect();
        now.extend(texts.into_iter().map(|text| text.and_then(|text| parse_addr(text).ok())));
    }
    let gateways = candidates(seen, &now);
    let awaited = if gateways.is_empty() { BTreeSet::new() } else { awaited(seen, assignments, &now) };
    if awaited.is_empty() { Former::default() } else { Former { gateways, awaited } }
}

/// Addresses that are the gateway by some entry, or were by what we told, and are not the one of `now` for all. Who comes to
/// lead has told nothing, and does not know which of the addresses that are barred was a gateway: each counts as one.
fn candidates(seen: &Observation<'_>, now: &BTreeSet<Option<IpAddr>>) -> Vec<AddrRange> {
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
    // One that is the gateway again is given by nobody.
    let is_now = |range: &AddrRange| range.size() == 1 && now.len() == 1 && now.contains(&Some(range.first()));
    ranges.into_iter().filter(|range| !is_now(range)).collect()
}

/// The nodes whose agents have not answered for an entry with the gateway of `now`.
fn awaited(seen: &Observation<'_>, assignments: &[Assignment], now: &BTreeSet<Option<IpAddr>>) -> BTreeSet<String> {
    let key = &seen.pool.key;
    let has_answered = |record: &IpamNodeRecord| {
        let gateway = record.block(key).map(|entry| entry.gateway.as_deref().and_then(|text| parse_addr(text).ok()));
        let is_of_now = gateway.is_some_and(|gateway| now.len() == 1 && now.contains(&gateway));
        is_of_now && !record.unsettled && record.observed_generation == Some(record.generation)
    };
    let has_entry = |node: &str| seen.ipam_nodes.get(node).is_some_and(|record| record.block(key).is_some());
    let untold = assignments.iter().map(|given| given.node.as_str()).filter(|node| !has_entry(node));
    let told = seen.ipam_nodes.all().iter().filter(|(_, record)| record.block(key).is_some());
    let silent = told.filter(|(_, record)| !has_answered(record)).map(|(node, _)| node.as_str());
    untold.chain(silent).map(str::to_owned).collect()
}
