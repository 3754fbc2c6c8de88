//! Faults that neither a restore nor the definitions' deletion shows alone.

use super::order::{
    adds_on, after, applies_named, around, ends, has, has_put_back, is_unanswered, is_undefine, looks, names,
    names_node, names_pool, overlap, put_backs, writes,
};
use crate::Failure;
use crate::action::{Action, Fate};
use crate::admin::{may_share, pool_at};
use crate::catalogue::{POOLS, manifest};
use crate::layout::Layout;
use crate::records::POOL_KINDS;
use crate::world::REPLICAS;

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
    names(failure, "AgentsSilent")
        && has(&failure.history, is_named)
        && (has(&failure.history, is_refused) || has_put_back(failure, |_| true))
}

/// A call has no answer that tells whether it was done, the replica does not look, and the status of the pool that is named is wiped.
pub(super) fn is_of_a_plan_from_before(failure: &Failure) -> bool {
    let is_wipe = |action| matches!(action, Action::WipeStatus { pool } if names_pool(failure, pool));
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    around(&failure.history, is_unanswered).any(|(before, action, later)| {
        let (Action::Call { replica, .. } | Action::WorkAgainst { replica, .. }) = action else { return false };
        let unseen = later.split(|action| looks(*action, replica % REPLICAS)).next();
        has(before, joins) && unseen.is_some_and(|unseen| has(unseen, is_wipe))
    })
}

/// A pool overlaps the one that is named, and a leader acts. Its status is wiped, and a node waits for a block of the other.
pub(super) fn is_of_a_pool_that_is_not_woken(failure: &Failure) -> bool {
    let is_full = names(failure, "NoFreeRanges") || names(failure, "NoFreePrefixes");
    let wipes = |action| matches!(action, Action::WipeStatus { .. });
    let overlaps = |before: &[Action], wiped: u8| {
        let mut named = POOLS.iter().filter(|(_, name)| names(failure, name));
        named.any(|(_, name)| overlap(before, pool_at(wiped).1, name))
    };
    is_full
        && around(&failure.history, wipes).any(|(before, action, _)| {
            let Action::WipeStatus { pool } = action else { return false };
            let known = before.iter().rposition(|action| writes(*action)).map_or(&[][..], |at| &before[..at]);
            !names_pool(failure, pool) && overlaps(known, pool)
        })
}

/// A call has no answer that tells whether it was done. Then the Node that is named leaves, and the spec of another pool than the one
/// that is named becomes invalid.
pub(super) fn is_of_an_unanswered_creation(failure: &Failure) -> bool {
    let is_of_another = |action| matches!(action, Action::Apply { pool, .. } if !names_pool(failure, pool));
    let is_invalid = |action| is_of_another(action) && is_invalid(action);
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if names_node(failure, node));
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    around(&failure.history, is_unanswered)
        .any(|(before, _, later)| has(before, joins) && has(later, leaves) && has(later, is_invalid))
}

/// A pool is applied with an invalid spec.
fn is_invalid(action: Action) -> bool {
    let Action::Apply { pool, spec } = action else { return false };
    let (plural, _, object) = manifest(pool, spec);
    let mut kinds = POOL_KINDS.into_iter().filter(|(of, _)| *of == plural);
    kinds.any(|(_, kind)| Layout::read(kind, &object).is_some_and(|layout| layout.is_frozen()))
}

/// Two pools that overlap share addresses, and a leader and pods act. One of the pools does not share any more when the history ends.
/// Not bound: the nodes with addresses of both. The law names nothing.
pub(super) fn is_of_pools_that_stop_sharing(failure: &Failure) -> bool {
    let history = &failure.history;
    let shares = |history: &[Action], pool: u8| {
        let changes = |action: &&Action| matches!(action, Action::Share { pool: it } if pool_at(*it) == pool_at(pool));
        may_share(&manifest(pool, 0).2) != (history.iter().filter(changes).count() % 2 == 1)
    };
    let pools = || (0..).take(POOLS.len());
    let stops = |action| matches!(action, Action::Share { .. });
    around(history, stops).any(|(before, action, _)| {
        let Action::Share { pool } = action else { return false };
        let with = |other: u8| shares(before, other) && overlap(before, pool_at(pool).1, pool_at(other).1);
        shares(before, pool) && !shares(history, pool) && has(before, writes) && pools().any(with)
    }) && has(after(history, writes), |action| adds_on(action, |_| true))
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

/// An IPAMNode's creation is given up, and its replica ends. A leader acts by a force-release of the node and pool that are named. Then
/// a call arrives.
/// Not bound: the IPAMNode that the call creates. The actions say only how many calls a replica has.
pub(super) fn is_of_a_creation_after_a_force_release(failure: &Failure) -> bool {
    let history = &failure.history;
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let forces = |action| match action {
        Action::ForceRelease { pool, node } => names_pool(failure, pool) && names_node(failure, node),
        Action::ForceAll { pool } => names_pool(failure, pool),
        _ => false,
    };
    let is_late =
        |action| matches!(action, Action::Call { fate: Fate::Late, .. } | Action::WorkAgainst { fate: Fate::Late, .. });
    let arrives = |action| matches!(action, Action::Orphan { .. });
    around(history, is_late).any(|(before, action, later)| {
        let (Action::Call { replica, .. } | Action::WorkAgainst { replica, .. }) = action else { return false };
        let Some(last) = later.iter().rposition(|action| arrives(*action)) else { return false };
        let until = &later[..last];
        let is_forced = has(until, writes) && (has(before, forces) || has(after(until, forces), writes));
        has(before, joins) && is_forced && has(until, |action| ends(action, replica % REPLICAS))
    })
}
