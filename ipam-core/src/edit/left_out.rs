//! Nodes that an edit of the selector leaves without their blocks.

use std::collections::BTreeSet;

use super::{Held, holders_listed};
use crate::plan::Claim;
use crate::spec::PoolSpec;
use crate::{Advice, AdviceCode};

/// Nodes that are named; the rest is counted. API servers show 256 characters of a warning.
const MOST_NAMED: usize = 3;

/// What to say of an edit from `old` to `new` after which nodes are no longer selected that have a block of which addresses may be
/// held. It is let through: nothing is taken from their pods. Nodes are sorted by name.
///
/// `claims` are the records of who has which block, without those that are being taken back already; `is_selected` says whether
/// the new spec selects a node, `usage` what is held of its block.
pub fn left_out(
    old: &PoolSpec,
    new: &PoolSpec,
    claims: &[Claim],
    is_selected: &dyn Fn(&str) -> bool,
    usage: &dyn Fn(&str) -> Held,
) -> Option<Advice> {
    if old.common().node_selector == new.common().node_selector {
        return None;
    }
    let left_out: BTreeSet<&str> =
        claims.iter().map(|claim| claim.node.as_str()).filter(|node| !is_selected(node)).collect();
    let holders: Vec<(&str, Held)> = left_out.into_iter().map(|node| (node, usage(node))).collect();
    let holders = holders_listed(&holders, MOST_NAMED)?;
    let message = format!("takes the blocks of nodes back as soon as their pods hold no address: {holders}");
    Some(Advice::new("spec.nodeSelector", AdviceCode::NodesLeftOut, message))
}
