//! Nodes that an edit of the selector deselects.

use std::collections::BTreeSet;

use super::{Held, holders_listed};
use crate::plan::Claim;
use crate::spec::PoolSpec;
use crate::{Advice, AdviceCode};

/// Nodes that are named; the rest is counted. API servers show 256 characters of a warning.
const MOST_NAMED: usize = 3;

/// The advice about an edit from `old` to `new` that deselects nodes with addresses that may be in use. The edit is
/// accepted, since pods keep their addresses. Nodes are sorted by name.
///
/// `claims` are the records of which node has which block, without blocks that are being released already. `is_selected`
/// returns whether the new spec selects a node, and `usage` the addresses in use.
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
