//! Faults that neither a restore nor the definitions' deletion shows alone.

use super::order::{adds_for_a_user, after, ends_a_leader, has, names_node, names_pool, waits_for_reports, writes};
use crate::Failure;
use crate::action::Action;

/// The law that the Lease says first that blocks are assigned.
pub(super) const LEASE_FIRST: &str = "lease-says-so-first";

/// The operator waits without a limit for the agent of a node that has none. The Lease says that blocks were assigned, and no record is
/// there. This is bound to what the condition says and not to the order of actions: many orders lead there.
pub(super) fn is_of_an_awaited_node(failure: &Failure) -> bool {
    let is_named = |action| matches!(action, Action::WithoutAgent { node } if names_node(failure, node));
    waits_for_reports(failure) && has(&failure.history, is_named)
}

/// The status of the pool that is named is wiped, and the leader ends or stands still with a call under way. Another leads, and writes. Then the call
/// arrives. The law about the Lease names no pool, and is broken without a pod.
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
