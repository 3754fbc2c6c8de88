//! Faults that neither a restore nor the definitions' deletion shows alone.

use super::order::{
    adds_for_a_user, adds_on, after, applies_named, around, has, has_put_back, is_undefine, names, names_node,
    names_pool, overlap, put_backs, writes,
};
use crate::Failure;
use crate::action::{Action, Fate};
use crate::admin::pool_at;
use crate::catalogue::{POOLS, manifest};
use crate::layout::Layout;
use crate::records::POOL_KINDS;

/// A node's agent reports addresses outside its blocks, after a force-release, a restore or the definitions' deletion. Its Node leaves
/// and does not come back.
/// The law may name the node. Those about another node's entry or block do not.
pub(super) fn is_of_a_report_that_is_kept(failure: &Failure) -> bool {
    let is_named = failure.law.law == "conditions-agree";
    let leaves = |action| matches!(action, Action::NodeLeaves { .. });
    around(&failure.history, leaves).any(|(before, action, later)| {
        let Action::NodeLeaves { node } = action else { return false };
        let forces = |action| match action {
            Action::ForceRelease { node: it, .. } => it == node,
            Action::ForceAll { .. } => true,
            _ => false,
        };
        let reports = |action| match action {
            Action::Round { .. } => true,
            Action::AgentWork { node: it } | Action::Report { node: it, fate: Fate::Done } => it == node,
            _ => false,
        };
        let is_cause = has(after(before, |action| forces(action) || is_undefine(action)), reports)
            || put_backs(before).iter().any(|it| has(it.later, reports));
        let joins = |action| matches!(action, Action::NodeJoins { node: it } if it == node);
        names_node(failure, node) == is_named
            && is_cause
            && has(before, |action| adds_on(action, |it| it == node))
            && !has(later, joins)
    })
}

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

/// A pool is applied with an invalid spec.
fn is_invalid(action: Action) -> bool {
    let Action::Apply { pool, spec } = action else { return false };
    let (plural, _, object) = manifest(pool, spec);
    let mut kinds = POOL_KINDS.into_iter().filter(|(of, _)| *of == plural);
    kinds.any(|(_, kind)| Layout::read(kind, &object).is_some_and(|layout| layout.is_frozen()))
}

/// A pool has a block, its status is wiped, and its spec becomes invalid before a leader puts the status right. Another pool, which the
/// law names, overlaps it and is applied after the status is wiped.
pub(super) fn is_of_a_block_of_an_invalid_pool(failure: &Failure) -> bool {
    let history = &failure.history;
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let wipes = |action| matches!(action, Action::WipeStatus { .. });
    let has_joined = has(history, joins);
    around(history, wipes).any(|(before, action, later)| {
        let Action::WipeStatus { pool } = action else { return false };
        let of_it = |action| matches!(action, Action::Apply { pool: it, .. } if pool_at(it) == pool_at(pool));
        let becomes_invalid = |action| of_it(action) && is_invalid(action);
        let unseen = later.split(|action| writes(*action)).next();
        // While the spec is invalid, no leader puts the status right.
        let was_invalid = before.iter().rev().find(|action| of_it(**action)).is_some_and(|action| is_invalid(*action));
        let mut named = POOLS.iter().filter(|(_, name)| names(failure, name));
        has_joined
            && has(after(before, of_it), writes)
            && (was_invalid || unseen.is_some_and(|unseen| has(unseen, becomes_invalid)))
            && applies_named(failure, later)
            && named.any(|(_, name)| overlap(history, pool_at(pool).1, name))
    })
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
