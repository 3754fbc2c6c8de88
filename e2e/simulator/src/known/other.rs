//! Faults that neither a restore nor the definitions' deletion shows alone.

use super::order::{adds_for_a_user, after, has, has_put_back, is_undefine, names, names_node, names_pool, writes};
use crate::Failure;
use crate::action::{Action, Fate};

/// The operator waits for the agent of a node that has none, after records were lost or a write was refused.
pub(super) fn is_of_an_awaited_node(failure: &Failure) -> bool {
    let is_named = |action| matches!(action, Action::WithoutAgent { node } if names_node(failure, node));
    let is_refused = |action| match action {
        Action::WorkAgainst { fate, .. } | Action::Call { fate, .. } => fate != Fate::Done,
        _ => is_undefine(action) || matches!(action, Action::WipeStatus { .. }),
    };
    names(failure, "AwaitingAgentReports")
        && has(&failure.history, is_named)
        && (has(&failure.history, is_refused) || has_put_back(failure, |_| true))
}

/// The status of the pool that is named is wiped, and the leader ends with a call under way. Another leads, and writes. Then the call
/// arrives.
pub(super) fn is_of_a_call_of_a_former_leader(failure: &Failure) -> bool {
    let wipes = |action| matches!(action, Action::WipeStatus { pool } if names_pool(failure, pool));
    let ends = |action| matches!(action, Action::Kill { .. });
    let starts = |action| matches!(action, Action::Start { .. });
    let arrives = |action| matches!(action, Action::Orphan { .. });
    let led = after(after(after(&failure.history, wipes), ends), starts);
    let later = after(after(led, writes), arrives);
    adds_for_a_user(failure, later) && has(&failure.history, |action| matches!(action, Action::Decide { .. }))
}
