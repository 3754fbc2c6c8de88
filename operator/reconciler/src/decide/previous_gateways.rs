//! Previous gateways, which a pod on any node may use.
//!
//! By `allocateDefaultGateway`, a pod on any node may have the gateway of an IPPool. While the entry of the node has that gateway, the
//! address is not outside its block. After a change of the gateway, the previous one stays unavailable until every agent has reported about
//! an entry with another gateway. From then on, a previous gateway in use is reported outside a block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{AddrRange, PoolKind};

use super::DecisionInput;
use crate::ipam_node::{IpamNodeRecord, gateway_of, unavailable};

/// Previous gateways that are unavailable, and the nodes whose reports end that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct PreviousGateways {
    /// Addresses that were the gateway, and may still be for some agent.
    pub(super) gateways: Vec<AddrRange>,
    /// Nodes that have not reported about an entry with another gateway.
    pub(super) awaited: BTreeSet<String>,
}

/// Finds gateways other than those that `assignments` are to have. Usually there are none, and this costs one comparison for each node.
pub(super) fn find(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> PreviousGateways {
    if seen.pool.key.kind != PoolKind::IpPool {
        // Only pods on the node of a prefix use its gateway, and the agent there does not allocate it twice.
        return PreviousGateways::default();
    }
    let mut found = PreviousGateways::default();
    let current = current(seen, assignments);
    let candidates = candidates(seen, &current);
    if candidates.is_empty() {
        return found;
    }
    let answers = Answers::new(seen, assignments, &current);
    for range in candidates {
        let mut with_gateway = answers.with.range(range.first()..=range.last()).flat_map(|(_, nodes)| nodes).peekable();
        if with_gateway.peek().is_some() || !answers.missing.is_empty() {
            found.awaited.extend(with_gateway.map(|node| (*node).to_owned()));
            found.gateways.push(range);
        }
    }
    if !found.gateways.is_empty() {
        found.awaited.extend(answers.missing.into_iter().map(str::to_owned));
    }
    found
}

/// What the agents have reported about entries.
struct Answers<'a> {
    /// Nodes whose agents have not reported about the present entry, or that have none yet.
    missing: BTreeSet<&'a str>,
    /// Gateway that is not current → the other nodes whose entry has it.
    with: BTreeMap<IpAddr, Vec<&'a str>>,
}

impl<'a> Answers<'a> {
    fn new(seen: &'a DecisionInput<'_>, assignments: &'a [Assignment], current: &BTreeSet<IpAddr>) -> Self {
        let block = |record: &'a IpamNodeRecord| record.block(&seen.pool.key);
        let has_entry = |node: &str| seen.ipam_nodes.get(node).and_then(block).is_some();
        let without_entry = assignments.iter().map(|given| given.node.as_str()).filter(|node| !has_entry(node));
        let mut answers = Self { missing: without_entry.collect(), with: BTreeMap::new() };
        for (node, record) in seen.ipam_nodes.all() {
            let Some(entry) = block(record) else { continue };
            if record.write_in_flight || record.observed_generation != Some(record.generation) {
                answers.missing.insert(node);
            } else if let Some(gateway) = gateway_of(entry).filter(|gateway| !current.contains(gateway)) {
                answers.with.entry(gateway).or_default().push(node);
            }
        }
        answers
    }
}

/// The gateways that Active blocks are to have. If there are none, the one gateway of all entries is the current one, those that are still to
/// be written included.
fn current(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> BTreeSet<IpAddr> {
    let mut active = assignments.iter().filter(|given| given.phase == BlockPhase::Active).peekable();
    if active.peek().is_some() {
        return active.filter_map(|given| given.block.gateway).collect();
    }
    let block = |record: &'_ IpamNodeRecord| record.block(&seen.pool.key).map(gateway_of);
    let new = assignments.iter().filter(|given| seen.ipam_nodes.get(&given.node).and_then(block).is_none());
    let new = new.map(|given| given.block.gateway);
    let of_entries: BTreeSet<Option<IpAddr>> = seen.ipam_nodes.all().values().filter_map(block).chain(new).collect();
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
    match seen.previous_gateways {
        Some(previous) => ranges.extend(previous),
        None => ranges.extend(entries().flat_map(unavailable)),
    }
    // A current gateway is unavailable on each node whose entry has another one.
    let is_current = |range: &AddrRange| range.size() == 1 && current.contains(&range.first());
    ranges.into_iter().filter(|range| !is_current(range)).collect()
}
