//! Which records of earlier decisions are put before the plan.
//!
//! A pool's status is the first record and the IPAMNodes, derived from it, the second. Where two nodes are recorded with
//! one address, the plan goes by the first record and then by name; so a status that was edited by hand could take a
//! block from the node that uses it. Therefore a status entry that nothing confirms gives way here to a record that
//! nothing contradicts.

use std::collections::HashMap;
use std::hash::BuildHasher;

use ipam_core::plan::{Assignment, Claim};
use ipam_core::{Family, PoolKey, RunSet};
use ipam_crds::BlockState;

use super::Observation;
use crate::ipam_node::IpamNodeRecord;

/// The claims that count for the pool `key`, and in words those that do not.
///
/// Trusted are a status entry that the IPAMNode of its node repeats, an IPAMNode's entry of a node of which the status
/// has none, and one by which a node gives since we told it so. A status entry that is not trusted is left out if it
/// overlaps a trusted claim, or if its node has one. Any other IPAMNode that says something else than the status entry of
/// its own node is no contradiction: it is derived later.
pub(super) fn gather<S: BuildHasher>(key: &PoolKey, seen: &Observation<'_, S>) -> (Vec<Claim>, Vec<String>) {
    let status = &seen.pool.status.allocations;
    let first: HashMap<&str, &Claim> = status.iter().map(|claim| (claim.node.as_str(), claim)).collect();
    let mut trusted = Ranges::default();
    let (mut second, mut confirmed) = (Vec::new(), 0);
    for (node, record) in seen.ipam_nodes {
        let Some(claim) = record.claim(node, key) else { continue };
        match first.get(node.as_str()) {
            Some(entry) if entry.range == claim.range => {
                confirmed += 1;
                trusted.insert(&claim);
            }
            entry => {
                if entry.is_none() || gives_as_told(key, record, &claim, seen.told) {
                    trusted.insert(&claim);
                }
                second.push(claim);
            }
        }
    }
    if confirmed == status.len() && second.is_empty() {
        return (status.clone(), Vec::new());
    }
    let is_spurned = |claim: &Claim| {
        let Some((record, repeated)) = own_claim(key, seen, claim) else { return trusted.overlap(claim) };
        repeated.range != claim.range && (trusted.overlap(claim) || gives_as_told(key, record, &repeated, seen.told))
    };
    let (spurned, mut claims): (Vec<Claim>, Vec<Claim>) = status.iter().cloned().partition(is_spurned);
    claims.append(&mut second);
    let dropped = spurned.iter().map(|claim| {
        format!("node {:?}: {} in the status is not its block, for IPAMNodes say otherwise", claim.node, claim.range)
    });
    (claims, dropped.collect())
}

/// What the IPAMNode of the claim's node says of the pool.
fn own_claim<'a, S: BuildHasher>(
    key: &PoolKey,
    seen: &'a Observation<'_, S>,
    claim: &Claim,
) -> Option<(&'a IpamNodeRecord, Claim)> {
    let record = seen.ipam_nodes.get(&claim.node)?;
    Some((record, record.claim(&claim.node, key)?))
}

/// Whether the IPAMNode lets its node give from the very block that we told it of. No status of ours takes such a block
/// away, since a node is first told to give no more; so a status that does was written by another hand.
fn gives_as_told(key: &PoolKey, record: &IpamNodeRecord, claim: &Claim, told: &[Assignment]) -> bool {
    let is_active = record.block(key).is_some_and(|block| block.state == BlockState::Active);
    let place = told.binary_search_by(|assignment| assignment.node.as_str().cmp(&claim.node));
    is_active && place.is_ok_and(|place| told[place].block.range == claim.range)
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
