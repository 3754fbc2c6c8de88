//! The plan of a pool that is not served any more, because it is being deleted or conflicts with another pool. It needs
//! no valid spec, since no block is assigned.

use std::collections::BTreeMap;

use super::{Assignment, BlockPhase, Claim, Plan, Usage};
use crate::Block;

/// Keeps the block of every node in `claims` as [`BlockPhase::Releasing`], unless the block is known to be empty. If a
/// node has several claims, the most trusted one counts. No block is assigned. Blocks may overlap, as in the claims.
pub fn release_all(claims: &[Claim], usage: &dyn Fn(&str) -> Usage) -> Plan {
    let mut by_node: BTreeMap<&str, &Claim> = BTreeMap::new();
    for claim in claims {
        let first = by_node.entry(&claim.node).or_insert(claim);
        // All fields are compared, so that the order of the claims does not matter.
        if (claim.source, claim.range, claim.gateway) < (first.source, first.range, first.gateway) {
            *first = claim;
        }
    }
    let held = by_node.into_values().filter(|claim| usage(&claim.node) != Usage::Empty);
    let assignments = held.map(|claim| Assignment {
        node: claim.node.clone(),
        block: Block { range: claim.range, gateway: claim.gateway },
        phase: BlockPhase::Releasing,
    });
    Plan { assignments: assignments.collect(), ..Plan::default() }
}
