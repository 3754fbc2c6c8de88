//! Faults that neither a restore nor a deletion of the CRDs shows alone.

use super::order::{
    adds_for_a_user, after, around, ends_a_leader, has, is_undefine, names_node, names_pool, put_backs,
    waits_for_reports, writes,
};
use crate::Failure;
use crate::action::Action;

/// The law that the Lease must record assigned blocks before an IPAMNode gets one.
pub(super) const LEASE_FIRST: &str = "lease-says-so-first";

/// The operator awaits the report of a node without a limit, although neither a restore nor a deletion of the CRDs took a record. A leader
/// that wrote has ended, or another one started. The node has no agent, or its Node left and does not come back.
pub(super) fn is_of_a_last_release(failure: &Failure) -> bool {
    let history = &failure.history;
    let is_without_agent = |action| matches!(action, Action::WithoutAgent { node } if names_node(failure, node));
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if names_node(failure, node));
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let has_left = || around(history, leaves).any(|(_, _, later)| !has(later, joins));
    let starts = |action| matches!(action, Action::Start { .. });
    let changes_the_leader = |action| starts(action) || ends_a_leader(action);
    waits_for_reports(failure)
        && has(after(history, starts), changes_the_leader)
        && has(history, writes)
        && put_backs(history).is_empty()
        && !has(history, is_undefine)
        && (has(history, is_without_agent) || has_left())
}

/// The status of the named pool is wiped, and the leader ends or is stopped with a call under way. Another leader writes.
/// Then the call arrives. The law about the Lease names no pool, and is broken without a pod.
pub(super) fn is_of_a_call_of_a_former_leader(failure: &Failure) -> bool {
    let is_of_the_lease = failure.law.law == LEASE_FIRST;
    let wipes = |action| matches!(action, Action::WipeStatus { pool } if is_of_the_lease || names_pool(failure, pool));
    let since = after(&failure.history, wipes);
    let starts = |action| matches!(action, Action::Start { .. });
    let arrives = |action| matches!(action, Action::Orphan { .. });
    let later = after(after(after(since, ends_a_leader), writes), arrives);
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let is_used = if is_of_the_lease { has(&failure.history, joins) } else { adds_for_a_user(failure, later) };
    is_used && has(since, starts) && has(&failure.history, |action| matches!(action, Action::Decide { .. }))
}
