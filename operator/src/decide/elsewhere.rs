//! Addresses that a node holds outside its block, as its agent reports: who else must not give them, and whether somebody
//! has done so already.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::AddrRange;
use ipam_core::plan::{Assignment, Standing};

use super::Observation;
use crate::ipam_node::held_ranges;

/// What nodes may not give of their blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Elsewhere {
    /// Node → addresses of its block that other nodes hold.
    pub held: BTreeMap<String, Vec<AddrRange>>,
    /// Nodes that give no more until a contradiction is over.
    pub suspended: BTreeSet<String>,
}

/// Looks for strays of the pool. There are none as a rule, and then this costs one look at each IPAMNode.
///
/// Also in words: addresses that two nodes hold. The one that holds it outside its block gives no more of the pool: its
/// record is the newer, or was put back.
pub(super) fn find(seen: &Observation<'_>, assignments: &[Assignment]) -> (Elsewhere, Vec<String>) {
    let (mut elsewhere, mut contradictions) = (Elsewhere::default(), Vec::new());
    for (node, range) in strays(seen) {
        if seen.pool.life.forces(node) {
            continue;
        }
        let others = assignments.iter().filter(|other| other.node != *node && other.standing == Standing::Serving);
        for other in others.filter(|other| other.block.range.overlaps(&range)) {
            elsewhere.held.entry(other.node.clone()).or_default().push(range);
        }
        for (other, common) in holders(seen, node, &range) {
            contradictions.push(format!("{common} is held on {other} and on {node}, which gives no more"));
            elsewhere.suspended.insert(node.to_owned());
        }
    }
    for held in elsewhere.held.values_mut() {
        held.sort_unstable();
    }
    contradictions.sort_unstable();
    (elsewhere, contradictions)
}

/// Whether a node that the annotation names still reports what it was to lose.
pub(super) fn has_forced_strays(seen: &Observation<'_>) -> bool {
    strays(seen).any(|(node, _)| seen.pool.life.forces(node))
}

fn strays<'a>(seen: &'a Observation<'_>) -> impl Iterator<Item = (&'a str, AddrRange)> {
    let key = &seen.pool.key;
    seen.ipam_nodes.all().iter().flat_map(move |(node, record)| {
        let of_pool = record.strays.iter().filter(move |(of, _)| of == key);
        of_pool.map(move |(_, range)| (node.as_str(), *range))
    })
}

/// Other nodes whose agents tell that they hold an address of `range`, and which.
fn holders(seen: &Observation<'_>, node: &str, range: &AddrRange) -> Vec<(String, AddrRange)> {
    let mut found = Vec::new();
    for (other, record) in seen.ipam_nodes.all().iter().filter(|(other, _)| *other != node) {
        // A count without addresses proves nothing.
        let Some(report) = record.report(&seen.pool.key).filter(|report| !report.held.is_empty()) else { continue };
        let common = held_ranges(report).into_iter().find_map(|held| held.intersection(range));
        found.extend(common.map(|common| (other.clone(), common)));
    }
    found
}
