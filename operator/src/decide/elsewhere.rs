//! Addresses that a node has in its block and may not give: others hold them, as their agents report, or they are to be a
//! gateway. And whether somebody has given one already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::plan::{Assignment, Standing};
use ipam_core::{AddrRange, PoolKey};

use super::Observation;
use super::former::Former;
use crate::ipam_node::{held_ranges, is_exact};

/// What nodes may not give of their blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Elsewhere {
    /// Node → addresses of its block that other nodes hold, or that are to be a gateway.
    pub held: BTreeMap<String, Vec<AddrRange>>,
    /// Nodes that give no more until a contradiction is over.
    pub suspended: BTreeSet<String>,
    /// Nodes whose next word, whatever it is, something waits for.
    pub awaited: BTreeSet<String>,
    /// Addresses that were the gateway, and that pods on any node may hold.
    pub former: Vec<AddrRange>,
}

impl Elsewhere {
    /// Lets nodes give no more an address that they may hold already, and wait for their word that they do not.
    pub(super) fn bar(&mut self, holders: &BTreeMap<String, IpAddr>) {
        for (node, addr) in holders {
            self.held.entry(node.clone()).or_default().extend(AddrRange::new(*addr, *addr));
            self.awaited.insert(node.clone());
        }
    }

    /// Lets nobody give what a pool that may not have the same addresses gave, or may be giving. None as a rule.
    pub(super) fn bar_beside(&mut self, held: &[(String, AddrRange)], assignments: &[Assignment]) {
        if held.is_empty() {
            return;
        }
        let mut giving: Vec<&Assignment> =
            assignments.iter().filter(|given| given.standing != Standing::Departed).collect();
        giving.sort_unstable_by_key(|given| given.block.range);
        for (node, range) in held {
            // The blocks of a pool are apart.
            let from = giving.partition_point(|given| given.block.range.last() < range.first());
            for given in giving[from..].iter().take_while(|given| given.block.range.overlaps(range)) {
                self.held.entry(given.node.clone()).or_default().push(*range);
                self.awaited.insert(node.clone());
            }
        }
    }

    /// Lets nobody give a gateway of before.
    pub(super) fn bar_former(&mut self, former: Former, assignments: &[Assignment]) {
        let gives = assignments.iter().filter(|given| given.standing != Standing::Departed);
        for given in gives.filter(|_| !former.gateways.is_empty()) {
            let of_block = former.gateways.iter().filter(|range| range.overlaps(&given.block.range));
            let of_block: Vec<AddrRange> = of_block.copied().collect();
            if !of_block.is_empty() {
                self.held.entry(given.node.clone()).or_default().extend(of_block);
            }
        }
        self.awaited.extend(former.awaited);
        self.former = former.gateways;
    }
}

/// Looks for strays of the pool. There are none as a rule, and then this costs one look at each IPAMNode.
///
/// Also in words: addresses that two nodes hold. The one that holds it outside its block gives no more of the pool: its
/// record is the newer, or was put back.
pub(super) fn find(seen: &Observation<'_>, assignments: &[Assignment]) -> (Elsewhere, Vec<String>) {
    let (mut elsewhere, mut contradictions) = (Elsewhere::default(), Vec::new());
    for (node, range) in strays(seen) {
        if is_let_go(seen, assignments, node) {
            continue;
        }
        // A node on an outdated block gives from it like any other; only one that is losing its block gives nothing.
        let others = assignments.iter().filter(|other| other.node != *node && other.standing != Standing::Departed);
        for other in others.filter(|other| other.block.range.overlaps(&range)) {
            elsewhere.held.entry(other.node.clone()).or_default().push(range);
        }
        for (other, common, is_certain) in holders(seen, node, &range) {
            if is_certain {
                contradictions.push(format!("{common} is held on {other} and on {node}, which gives no more"));
                elsewhere.suspended.insert(node.to_owned());
            } else {
                contradictions.push(format!(
                    "{common} may be held on {other} and on {node}: they hold so many addresses that one of them tells no single ones"
                ));
            }
        }
    }
    for Doubled { range, node, other, pool, is_older } in doubled_beside(seen) {
        // The other pool says the same, of the same node.
        let yields = if is_older { node } else { other };
        contradictions.push(format!("{range} is held on {node} and, of {pool}, on {other}: {yields} gives no more"));
        if is_older {
            elsewhere.suspended.insert(node.to_owned());
        }
    }
    for held in elsewhere.held.values_mut() {
        held.sort_unstable();
    }
    contradictions.sort_unstable();
    (elsewhere, contradictions)
}

/// Addresses that a node holds of this pool, and a node of another that may not have them.
struct Doubled<'a> {
    range: AddrRange,
    node: &'a str,
    other: &'a str,
    pool: &'a PoolKey,
    is_older: bool,
}

/// Looks through what is held of pools that may not have addresses of this one. There are none as a rule.
fn doubled_beside<'a>(seen: &'a Observation<'_>) -> Vec<Doubled<'a>> {
    let mut doubled = Vec::new();
    for (pool, is_older) in &seen.beside.rivals {
        let mut theirs = held_of(seen, pool);
        theirs.sort_unstable();
        for (own, node) in held_of(seen, &seen.pool.key) {
            // What agents hold of one pool is apart, or else told as a contradiction within it.
            let from = theirs.partition_point(|(range, _)| range.last() < own.first());
            let next = theirs[from..].iter().take_while(|(range, _)| range.overlaps(&own));
            doubled.extend(next.filter_map(|(range, other)| {
                let range = range.intersection(&own)?;
                Some(Doubled { range, node, other, pool, is_older: *is_older })
            }));
        }
    }
    doubled
}

/// The addresses that agents name as held of a pool. A count without addresses proves nothing, nor do runs that only cover them.
fn held_of<'a>(seen: &'a Observation<'_>, key: &PoolKey) -> Vec<(AddrRange, &'a str)> {
    let records = seen.ipam_nodes.all().iter();
    let reports = records.filter_map(|(node, record)| Some((node, record.report(key)?)));
    let named = reports.filter(|(_, report)| is_exact(report));
    named.flat_map(|(node, report)| held_ranges(report).into_iter().map(move |range| (range, node.as_str()))).collect()
}

/// The nodes that hold addresses of the pool, as far as their agents have said, and have no block of it, by name: one was let go
/// of while pods had them, or the node has them from before a restore. Nobody else is given these addresses.
pub(super) fn without_block(seen: &Observation<'_>, assignments: &[Assignment]) -> Vec<String> {
    let has_block = |node: &str| assignments.binary_search_by(|given| given.node.as_str().cmp(node)).is_ok();
    let holders: BTreeSet<&str> = strays(seen).map(|(node, _)| node).filter(|node| !has_block(node)).collect();
    holders.into_iter().map(str::to_owned).collect()
}

/// The nodes that the annotation names and that still report what they were to lose.
pub(super) fn forced_strays(seen: &Observation<'_>, assignments: &[Assignment]) -> impl Iterator<Item = String> {
    strays(seen).filter(|(node, _)| is_let_go(seen, assignments, node)).map(|(node, _)| node.to_owned())
}

/// Whether an admin has spoken of what the node reports. One that is served again has a block that no admin has spoken of: it
/// is named no longer, and what it still reports bars others again.
fn is_let_go(seen: &Observation<'_>, assignments: &[Assignment], node: &str) -> bool {
    let is_served = || {
        let place = assignments.binary_search_by(|given| given.node.as_str().cmp(node));
        place.is_ok_and(|place| assignments[place].standing == Standing::Serving)
    };
    seen.pool.life.forces(node) && !is_served()
}

fn strays<'a>(seen: &'a Observation<'_>) -> impl Iterator<Item = (&'a str, AddrRange)> {
    let of_pool = seen.ipam_nodes.strays().filter(|(_, of, _)| **of == seen.pool.key);
    of_pool.map(|(node, _, range)| (node, range))
}

/// Other nodes whose agents tell that they hold an address of `range`; which; and whether that is certain of both.
fn holders(seen: &Observation<'_>, node: &str, range: &AddrRange) -> Vec<(String, AddrRange, bool)> {
    let key = &seen.pool.key;
    let own = seen.ipam_nodes.get(node).and_then(|record| record.report(key)).is_some_and(is_exact);
    let mut found = Vec::new();
    for (other, record) in seen.ipam_nodes.all().iter().filter(|(other, _)| *other != node) {
        // A count without addresses proves nothing.
        let Some(report) = record.report(key).filter(|report| !report.held.is_empty()) else { continue };
        let common = held_ranges(report).into_iter().find_map(|held| held.intersection(range));
        found.extend(common.map(|common| (other.clone(), common, own && is_exact(report))));
    }
    found
}
