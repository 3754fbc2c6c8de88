//! Who still has which block of a pool that serves nobody any more: one that is being deleted, or that another stands in
//! the way of. Needs no valid spec, since nothing is given.

use std::collections::BTreeMap;

use super::{Assignment, Claim, Plan, Standing, Usage};
use crate::Block;

/// Keeps, as [`Standing::Departed`], the block of every node that `claims` name and whose block is not known to be empty.
/// Of a node with several claims the most trusted counts. Nobody is given anything; blocks may overlap, as they were found.
pub fn wind_down(claims: &[Claim], usage: &dyn Fn(&str) -> Usage) -> Plan {
    let mut by_node: BTreeMap<&str, &Claim> = BTreeMap::new();
    for claim in claims {
        let first = by_node.entry(&claim.node).or_insert(claim);
        // All fields take part, so that the order of telling has no say.
        if (claim.source, claim.range, claim.gateway) < (first.source, first.range, first.gateway) {
            *first = claim;
        }
    }
    let held = by_node.into_values().filter(|claim| usage(&claim.node) != Usage::Empty);
    let assignments = held.map(|claim| Assignment {
        node: claim.node.clone(),
        block: Block { range: claim.range, gateway: claim.gateway },
        standing: Standing::Departed,
    });
    Plan { assignments: assignments.collect(), ..Plan::default() }
}
