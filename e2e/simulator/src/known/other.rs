//! Faults that neither a restore nor a deletion of the CRDs shows alone.

use super::order::{
    LEASE, adds_for_a_user, after, after_last, after_time, around, ends_a_leader, has, is_undefine, moves, names_node,
    names_pool, passes, put_backs, waits_for_reports, writer, writes,
};
use crate::Failure;
use crate::action::Action;
use crate::size::REPLICAS;

/// The law that the Lease must record assigned blocks before an IPAMNode gets one.
pub(super) const LEASE_FIRST: &str = "lease-says-so-first";

/// The operator awaits the report of a node without a limit, although neither a restore nor a deletion of the CRDs removed what a leader
/// wrote. The node has no agent, or its Node left and does not come back.
fn waits_for_a_node_without_an_agent(failure: &Failure) -> bool {
    let history = &failure.history;
    let is_without_agent = |action| matches!(action, Action::WithoutAgent { node } if names_node(failure, node));
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if names_node(failure, node));
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let has_left = || around(history, leaves).any(|(_, _, later)| !has(later, joins));
    waits_for_reports(failure)
        && put_backs(history).iter().all(|it| !it.takes_back_writes())
        && !has(history, is_undefine)
        && (has(history, is_without_agent) || has_left())
}

/// A node loses its block, a leader writes, and it ends or its Lease expires. By then it has not marked the Lease. An edit that moves the named pool takes blocks, too.
pub(super) fn is_of_a_last_release(failure: &Failure) -> bool {
    let history = &failure.history;
    let is_edit =
        |action| matches!(action, Action::Apply { pool, .. } if names_pool(failure, pool) && moves(history, action));
    let is_over = |action| ends_a_leader(action) || passes(action) >= LEASE;
    let releases = |action| {
        matches!(
            action,
            Action::Cordon { .. }
                | Action::Relabel { .. }
                | Action::NodeTerminates { .. }
                | Action::NodeLeaves { .. }
                | Action::Remove { .. }
                | Action::ForceRelease { .. }
                | Action::ForceAll { .. }
        ) || is_edit(action)
    };
    let is_of_it = |(_, _, later): (&[Action], Action, &[Action])| has(after(later, writes), is_over);
    waits_for_a_node_without_an_agent(failure) && around(history, releases).any(is_of_it)
}

/// A leader writes and ends. Then the named pool, whose finalizer was removed by hand, is deleted, or its status is wiped. Or that happens
/// first, and the leader does nothing until its Lease expires or a backup is restored.
pub(super) fn is_of_a_last_record_deleted(failure: &Failure) -> bool {
    let history = &failure.history;
    let strips = |action| matches!(action, Action::Strip { pool } if names_pool(failure, pool));
    let removes = |action| matches!(action, Action::Remove { pool } if names_pool(failure, pool));
    let wipes = |action| matches!(action, Action::WipeStatus { pool } if names_pool(failure, pool));
    let is_of_it = |(before, _, later): (&[Action], Action, &[Action])| {
        has(before, writes) && (has(later, wipes) || (has(history, strips) && has(later, removes)))
    };
    let expires = |action| match action {
        Action::Pass(time) => time >= LEASE,
        Action::RestoreLive { .. } => true,
        _ => false,
    };
    let is_unseen = |(before, _, _): (&[Action], Action, &[Action])| {
        let since = after_last(before, writes);
        !since.is_empty() && (has(since, wipes) || (has(since, strips) && has(since, removes)))
    };
    waits_for_a_node_without_an_agent(failure)
        && (around(history, ends_a_leader).any(is_of_it) || around(history, expires).any(is_unseen))
}

/// The named pool is edited, and a leader decides. It ends or its Lease expires, and another leader writes. Then a call of the first one
/// arrives, and a pod starts on the named node. Before the other leader, the pool is edited again, which the first one may not learn.
/// Not checked: what the edits change. By the law, the pod has the gateway of the last one.
pub(super) fn is_of_a_call_between_two_edits(failure: &Failure) -> bool {
    let history = &failure.history;
    let edits = |action| matches!(action, Action::Apply { pool, .. } if names_pool(failure, pool));
    let decides = |action| matches!(action, Action::Decide { .. });
    let arrives = |action| matches!(action, Action::Orphan { .. });
    let is_over = |action| ends_a_leader(action) || passes(action) >= LEASE;
    around(history, edits).any(|(before, _, later)| {
        let under_way = after(after(after(before, edits), edits), decides);
        let is_edited_twice = !after(after(before, edits), edits).is_empty();
        let ends_later = !under_way.is_empty() && has(later, is_over);
        let decides_later = is_edited_twice && has(after(later, decides), is_over);
        (has(under_way, is_over) || ends_later || decides_later)
            && adds_for_a_user(failure, after(after(later, writes), arrives))
    })
}

/// The status of the named pool is wiped, and the leader ends or is stopped with a call under way. Another leader writes.
/// Then the call arrives. The law about the Lease names no pool. It and the law about records are broken without a pod.
pub(super) fn is_of_a_call_of_a_former_leader(failure: &Failure) -> bool {
    let is_of_the_lease = failure.law.law == LEASE_FIRST;
    let wipes = |action| matches!(action, Action::WipeStatus { pool } if is_of_the_lease || names_pool(failure, pool));
    let since = after(&failure.history, wipes);
    let starts = |action| matches!(action, Action::Start { .. });
    let arrives = |action| matches!(action, Action::Orphan { .. });
    let caller = failure.history.iter().rev().find_map(|action| match action {
        Action::Decide { replica } => Some(*replica % REPLICAS),
        _ => None,
    });
    let is_of_another = |action| writer(action).is_some_and(|of| Some(of) != caller);
    let ended = after(after(since, ends_a_leader), writes);
    // Its Lease can also expire.
    let written = if ended.is_empty() { after(after_time(since, LEASE), is_of_another) } else { ended };
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let is_used = match failure.law.law {
        LEASE_FIRST | "assigned-is-recorded" => has(&failure.history, joins) && has(written, arrives),
        _ => adds_for_a_user(failure, after(written, arrives)),
    };
    is_used && has(since, starts) && has(&failure.history, |action| matches!(action, Action::Decide { .. }))
}
