//! Which records of earlier decisions are put before the plan.
//!
//! A pool's status is the first record and the IPAMNodes, derived from it, the second. Where two nodes are recorded with
//! one address, the plan goes by the first record and then by name; so a status that was edited by hand could take a
//! block from the node that uses it. Therefore a status entry that nothing confirms gives way here to a record that
//! nothing contradicts.

use std::collections::HashMap;
use std::hash::BuildHasher;

use ipam_core::plan::Claim;
use ipam_core::{Family, PoolKey, RunSet};

use crate::ipam_node::IpamNodeRecord;

/// The claims that count for the pool `key`, and in words those that do not.
///
/// Trusted are a status entry that the IPAMNode of its node repeats, and an IPAMNode's entry of a node of which the
/// status has none. A status entry that is not trusted and overlaps a trusted claim is left out. That an IPAMNode says
/// something else than the status entry of its own node is no contradiction: it is derived later.
pub(super) fn gather<S: BuildHasher>(
    key: &PoolKey,
    status: &[Claim],
    ipam_nodes: &HashMap<String, IpamNodeRecord, S>,
) -> (Vec<Claim>, Vec<String>) {
    let first: HashMap<&str, &Claim> = status.iter().map(|claim| (claim.node.as_str(), claim)).collect();
    let mut trusted = Ranges::default();
    let (mut second, mut confirmed) = (Vec::new(), 0);
    for (node, record) in ipam_nodes {
        let Some(claim) = record.claim(node, key) else { continue };
        match first.get(node.as_str()) {
            Some(entry) if entry.range == claim.range => {
                confirmed += 1;
                trusted.insert(&claim);
            }
            entry => {
                if entry.is_none() {
                    trusted.insert(&claim);
                }
                second.push(claim);
            }
        }
    }
    if confirmed == status.len() && second.is_empty() {
        return (status.to_vec(), Vec::new());
    }
    let confirms = |claim: &Claim| {
        let repeated = ipam_nodes.get(&claim.node).and_then(|record| record.claim(&claim.node, key));
        repeated.is_some_and(|repeated| repeated.range == claim.range)
    };
    let (spurned, mut claims): (Vec<Claim>, Vec<Claim>) =
        status.iter().cloned().partition(|claim| trusted.overlap(claim) && !confirms(claim));
    claims.append(&mut second);
    let dropped = spurned.iter().map(|claim| {
        format!(
            "node {:?}: {} in the status is not its block, for the IPAMNode of another node has it",
            claim.node, claim.range
        )
    });
    (claims, dropped.collect())
}

/// Addresses of both families.
#[derive(Default)]
struct Ranges {
    v4: RunSet,
    v6: RunSet,
}

impl Ranges {
    fn insert(&mut self, claim: &Claim) {
        let (first, last) = claim.range.numbers();
        match claim.range.family() {
            Family::V4 => self.v4.insert(first, last),
            Family::V6 => self.v6.insert(first, last),
        }
    }

    fn overlap(&self, claim: &Claim) -> bool {
        let (first, last) = claim.range.numbers();
        match claim.range.family() {
            Family::V4 => self.v4.intersects(first, last),
            Family::V6 => self.v6.intersects(first, last),
        }
    }
}
