//! Addresses that a node has in its block and must not allocate: other nodes may use them, or they are, were or are to be a gateway. And
//! addresses that two nodes use already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{AddrRange, PoolKey};

use super::DecisionInput;
use super::previous_gateways::PreviousGateways;
use crate::ipam_node::{held_ranges, is_exact};

/// Addresses that nodes must not allocate from their blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnavailableAddresses {
    /// Node → addresses of its block that other nodes may use, or that are, were or are to be a gateway.
    pub held: BTreeMap<String, Vec<AddrRange>>,
    /// Nodes that allocate no more addresses until duplicate addresses are gone.
    pub suspended: BTreeSet<String>,
    /// Nodes whose next report the pool waits for, whatever it contains.
    pub awaited: BTreeSet<String>,
    /// Addresses that were the gateway, and that pods on any node may use.
    pub previous_gateways: Vec<AddrRange>,
}

impl UnavailableAddresses {
    /// Makes an address unavailable on each node that may use it, and waits for their reports that it is free.
    pub(super) fn add_new_gateways(&mut self, holders: &BTreeMap<String, IpAddr>) {
        for (node, addr) in holders {
            self.held.entry(node.clone()).or_default().extend(AddrRange::new(*addr, *addr));
            self.awaited.insert(node.clone());
        }
    }

    /// Makes addresses unavailable that nodes may use from another pool. Usually there are none.
    pub(super) fn add_beside(&mut self, in_use: &[(&str, AddrRange)], assignments: &[Assignment]) {
        if in_use.is_empty() {
            return;
        }
        let allocating = Allocating::new(assignments);
        for (node, range) in in_use {
            for given in allocating.overlapping(range) {
                self.held.entry(given.node.clone()).or_default().push(*range);
                self.awaited.insert((*node).to_owned());
            }
        }
    }

    /// Makes the gateways of other nodes unavailable.
    pub(super) fn add_gateways(&mut self, of_other_nodes: Vec<(String, IpAddr)>) {
        for (node, gateway) in of_other_nodes {
            self.held.entry(node).or_default().extend(AddrRange::new(gateway, gateway));
        }
    }

    /// Sorts the addresses of each node, so that equal ones compare as equal.
    pub(super) fn tidy(&mut self) {
        for held in self.held.values_mut() {
            held.sort_unstable();
            held.dedup();
        }
    }

    /// Makes previous gateways unavailable on all nodes.
    pub(super) fn add_previous_gateways(&mut self, previous: PreviousGateways, assignments: &[Assignment]) {
        if previous.gateways.is_empty() {
            return;
        }
        let allocating = Allocating::new(assignments);
        for range in &previous.gateways {
            for given in allocating.overlapping(range) {
                self.held.entry(given.node.clone()).or_default().push(*range);
            }
        }
        self.awaited.extend(previous.awaited);
        self.previous_gateways = previous.gateways;
    }
}

/// The assignments whose nodes may allocate, by address. Assignments of a pool do not overlap.
struct Allocating<'a>(Vec<&'a Assignment>);

impl<'a> Allocating<'a> {
    /// A node with a Stale block allocates like any other. Only a node that is losing its block does not.
    fn new(assignments: &'a [Assignment]) -> Self {
        let allocating = assignments.iter().filter(|given| given.phase != BlockPhase::Releasing);
        let mut allocating: Vec<&Assignment> = allocating.collect();
        allocating.sort_unstable_by_key(|given| given.block.range);
        Self(allocating)
    }

    fn overlapping(&self, range: &AddrRange) -> impl Iterator<Item = &'a Assignment> {
        let place = |given: &&Assignment| {
            (given.block.range.family(), given.block.range.last()) < (range.family(), range.first())
        };
        let from = self.0.partition_point(place);
        let end = (range.family(), range.last());
        let near = self.0.iter().skip(from).copied();
        near.take_while(move |given| (given.block.range.family(), given.block.range.first()) <= end)
    }
}

/// The addresses that are unavailable because nodes use them outside their blocks, and descriptions of duplicate addresses. Usually there
/// are none.
///
/// A node that uses a duplicate address outside its block stops allocating from the pool: its record is the newer, or is from before a
/// rollback.
pub(super) fn find(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> (UnavailableAddresses, Vec<String>) {
    let (mut unavailable_addresses, mut duplicates) = (UnavailableAddresses::default(), Vec::new());
    let outside = seen.occupancy.outside_blocks(&seen.pool.key);
    let outside: BTreeSet<(&str, AddrRange)> = outside.map(|fact| (&*fact.node, fact.range)).collect();
    let allocating = Allocating::new(if outside.is_empty() { &[] } else { assignments });
    for (node, range) in outside {
        // Addresses that an admin has force-released are available to other nodes. That two nodes then report one is a duplicate all the same.
        let is_available = is_revoked(seen, assignments, node);
        for other in allocating.overlapping(&range).filter(|other| other.node != *node) {
            if is_available {
                // Each report of that node may begin or end a duplicate, also one with the same count.
                unavailable_addresses.awaited.insert(other.node.clone());
            } else {
                unavailable_addresses.held.entry(other.node.clone()).or_default().push(range);
            }
        }
        for (other, common, is_certain) in users(seen, node, &range) {
            if is_certain {
                duplicates.push(format!(
                    "{} on node {other} and on node {node}, which allocates no more addresses",
                    addresses(&common)
                ));
                unavailable_addresses.suspended.insert(node.to_owned());
            } else {
                duplicates.push(format!(
                    "{} perhaps on node {other} and on node {node}, one of which has too many addresses to report each",
                    addresses(&common)
                ));
            }
        }
    }
    for Duplicate { range, node, other, pool } in duplicates_beside(seen) {
        let is_older = seen.other_pools.older.contains(pool);
        // The decision about the other pool names the same node.
        let yields = if is_older { node } else { other };
        duplicates.push(format!(
            "{} on node {node} and, of {pool}, on node {other}; node {yields} allocates no more addresses",
            addresses(&range)
        ));
        if is_older {
            unavailable_addresses.suspended.insert(node.to_owned());
        }
    }
    duplicates.sort_unstable();
    (unavailable_addresses, duplicates)
}

/// The addresses as text.
fn addresses(range: &AddrRange) -> String {
    if range.first() == range.last() { range.first().to_string() } else { range.to_string() }
}

/// Addresses that one node uses from this pool, and another node from another pool.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Duplicate<'a> {
    range: AddrRange,
    node: &'a str,
    other: &'a str,
    pool: &'a PoolKey,
}

/// Finds addresses in use from this pool and from another that must not share them. Usually there are none.
fn duplicates_beside<'a>(seen: &'a DecisionInput<'_>) -> BTreeSet<Duplicate<'a>> {
    let key = &seen.pool.key;
    let others = seen.other_pools.unavailable.iter().filter(|fact| *fact.pool != *key);
    let others: BTreeSet<(&PoolKey, &str)> = others.map(|fact| (&*fact.pool, &*fact.node)).collect();
    let mut found = BTreeSet::new();
    for (pool, other) in others {
        for in_use in named_in_use(seen, other, pool) {
            for node in nodes_with(seen, &in_use) {
                let ranges = named_in_use(seen, node, key).into_iter().filter_map(|own| own.intersection(&in_use));
                found.extend(ranges.map(|range| Duplicate { range, node, other, pool }));
            }
        }
    }
    found
}

/// The addresses of a pool that the agent lists as in use. A count without addresses proves nothing, and neither do ranges that include
/// free addresses.
fn named_in_use(seen: &DecisionInput<'_>, node: &str, pool: &PoolKey) -> Vec<AddrRange> {
    let report = seen.ipam_nodes.get(node).and_then(|record| record.report(pool));
    report.filter(|report| is_exact(report)).map(held_ranges).unwrap_or_default()
}

/// The nodes that may use an address of `range` from this pool.
fn nodes_with<'a>(seen: &DecisionInput<'a>, range: &AddrRange) -> BTreeSet<&'a str> {
    let facts = seen.occupancy.overlapping(range).filter(|fact| *fact.pool == seen.pool.key);
    facts.map(|fact| &*fact.node).collect()
}

/// The nodes that report addresses of the pool in use and have no block of it, by name. The block was released while pods used them, or the
/// node has them from before a restore. These addresses are unavailable to other nodes.
pub(super) fn without_block(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> Vec<String> {
    let has_block = |node: &str| assignments.binary_search_by(|given| given.node.as_str().cmp(node)).is_ok();
    let nodes = seen.occupancy.outside_blocks(&seen.pool.key).map(|fact| &*fact.node);
    let nodes: BTreeSet<&str> = nodes.filter(|node| !has_block(node)).collect();
    nodes.into_iter().map(str::to_owned).collect()
}

/// The nodes that the annotation force-release names, and that still report addresses outside a block.
pub(super) fn forced_strays(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> impl Iterator<Item = String> {
    let outside = seen.occupancy.outside_blocks(&seen.pool.key).map(|fact| &*fact.node);
    outside.filter(|node| is_revoked(seen, assignments, node)).map(str::to_owned)
}

/// Whether an admin has force-released what the node reports. A node that is served again has a block that the admin did not mean. So its
/// name is removed, and addresses that it still reports are unavailable to others again.
pub(super) fn is_revoked(seen: &DecisionInput<'_>, assignments: &[Assignment], node: &str) -> bool {
    let is_served = || {
        let place = assignments.binary_search_by(|given| given.node.as_str().cmp(node));
        place.is_ok_and(|place| assignments[place].phase == BlockPhase::Active)
    };
    seen.pool.life.force_releases(node) && !is_served()
}

/// Other nodes whose agents report addresses of `range` in use, the first such addresses, and whether both reports are exact.
fn users<'a>(seen: &DecisionInput<'a>, node: &str, range: &AddrRange) -> Vec<(&'a str, AddrRange, bool)> {
    let key = &seen.pool.key;
    let own = seen.ipam_nodes.get(node).and_then(|record| record.report(key)).is_some_and(is_exact);
    let mut found = Vec::new();
    for other in nodes_with(seen, range).into_iter().filter(|other| *other != node) {
        // A count without addresses proves nothing.
        let report = seen.ipam_nodes.get(other).and_then(|record| record.report(key));
        let Some(report) = report.filter(|report| !report.held.is_empty()) else { continue };
        let common = held_ranges(report).into_iter().find_map(|in_use| in_use.intersection(range));
        found.extend(common.map(|common| (other, common, own && is_exact(report))));
    }
    found
}
