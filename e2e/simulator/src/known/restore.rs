//! Faults that a restore shows.

use std::time::Duration;

use super::order::{
    LEASE, PutBack, address, adds_for_a_user, adds_on, after, after_last, around, campaigns, deletes_ipam_node,
    ends_a_leader, had_forgotten_user, had_unreported_user, has, has_put_back, is_undefine, is_user, names,
    names_pod_of, names_pool, passes, pools_with_the_address, running, was_silent, was_unreported, writer, writes,
};
use crate::Failure;
use crate::action::{Action, Disk};
use crate::admin::pool_at;
use crate::size::{BACKUP_SECONDS, MOST_NODES, REPLICAS, node_name};

/// A restore takes back a block that is in use. No leader that knows of it continues to run. The agent of its node is
/// down until a leader has acted, or a restore under a leader does not break its watch, so that it does not report the block in time. Then a pod gets the address on another
/// node, or the Node leaves, so that no report can have the address as in use.
pub(super) fn is_of_an_agent_that_is_down(failure: &Failure) -> bool {
    if is_left_with_its_block(failure) || is_down_after_deleted_definitions(failure) {
        return true;
    }
    has_put_back(failure, |it| {
        let acted = it.later.iter().rposition(|action| writes(*action));
        let Some(acted) = acted.map(|at| it.until.len() + 1 + at) else { return false };
        let until = &failure.history[..acted];
        let cut = |node| move |action| matches!(action, Action::AgentLoseWatch { node: it } if it == node);
        let hears_nothing = |node| it.live == Some(false) && !has(&until[it.until.len()..], cut(node));
        let is_it = |node| {
            is_user(failure, node)
                && was_unreported(failure, node, PAUSE)
                && (is_down(until, node) || hears_nothing(node))
        };
        let adds = |node| move |action| adds_on(action, |of| of == node);
        // A pod can also start after the restore, before the agent hears of it or ends.
        let used_until = |node| if hears_nothing(node) { failure.history.len() } else { acted };
        let is_in_use = |node| {
            let given = it.since.iter().position(|action| writes(*action));
            let given = given.map(|at| it.until.len() - it.since.len() + at);
            given.is_some_and(|at| has(&failure.history[at..used_until(node)], adds(node)))
        };
        let is_unrecorded = failure.law.law == "held-is-recorded";
        let leaves = |action| matches!(action, Action::NodeLeaves { node } if is_user(failure, node));
        has(it.before, campaigns)
            && (!it.is_live() || is_led_by_another(it.until, it.later) || ends_by_a_restored_lease(failure, &it))
            && (0..MOST_NODES).any(|node| is_it(node) && is_in_use(node))
            && if is_unrecorded { has(it.later, leaves) } else { adds_for_a_user(failure, &failure.history[acted..]) }
    })
}

/// Instead of a restore, the definitions are deleted, and the leader that saw it ends. Another one assigns the block after the pause, although a
/// node has not reported. That is checked by state.
fn is_down_after_deleted_definitions(failure: &Failure) -> bool {
    let is_it = |node| is_user(failure, node) && was_silent(failure, node, PAUSE);
    let is_over = |action| ends_a_leader(action) || passes(action) >= LEASE;
    let later = after(&failure.history, is_undefine);
    (0..MOST_NODES).any(is_it)
        && has(after(later, is_over), writes)
        && !has_put_back(failure, |_| true)
        && adds_for_a_user(failure, &failure.history)
}

/// Whether the leader under which the backup was restored cannot renew the restored Lease, so that another one leads as the history settles.
fn ends_by_a_restored_lease(failure: &Failure, it: &PutBack<'_>) -> bool {
    let time: u32 = it.later.iter().map(|action| passes(*action)).sum();
    failure.settling && it.live == Some(false) && time >= LEASE
}

/// How long new blocks wait for reports after a restore.
const PAUSE: Duration = Duration::from_mins(2);

/// Whether a replica leads in `later` that did not lead in `before`, or has started since.
fn is_led_by_another(before: &[Action], later: &[Action]) -> bool {
    let starts = |of: u8| move |action| matches!(action, Action::Start { replica, .. } if replica % REPLICAS == of);
    // A replica that has started again does not know what it wrote before.
    let has_led = |of: u8| has(after_last(before, starts(of)), |action| writer(action) == Some(of));
    let mut leaders = later.iter().filter_map(|action| writer(*action));
    leaders.any(|leader| has(later, starts(leader)) || !has_led(leader))
}

/// After the backup a node gets a block, and its Node leaves. A restore under a leader takes back the IPAMNode, and does not break the
/// watch of the agent, or the agent has not heard of it yet. A pod starts there, and without a Node nothing can have its address.
fn is_left_with_its_block(failure: &Failure) -> bool {
    let is_left = |it: PutBack<'_>, node: u8| {
        let leaves = |action| matches!(action, Action::NodeLeaves { node: it } if it == node);
        let cut = |action| matches!(action, Action::AgentLoseWatch { node: it } if it == node);
        let hears =
            |action| matches!(action, Action::AgentHear { node: it, .. } if it == node) || reports(action, node);
        let until = it.later.iter().position(|action| hears(*action)).unwrap_or(it.later.len());
        let deaf = if it.live == Some(false) { it.later } else { &it.later[..until] };
        has(after(it.since, writes), leaves) && !has(deaf, cut) && has(deaf, |action| adds_on(action, |of| of == node))
    };
    let users =
        || (0..MOST_NODES).filter(|node| is_user(failure, *node) && was_unreported(failure, *node, Duration::ZERO));
    failure.law.law == "held-is-recorded"
        && has_put_back(failure, |it| it.is_live() && users().any(|node| is_left(it, node)))
}

/// Whether the agent of this node is down after this history.
fn is_down(history: &[Action], node: u8) -> bool {
    !while_down(history, node).is_empty()
}

/// What happens from the end of the node's agent onwards, if it is down after this history.
fn while_down(history: &[Action], node: u8) -> &[Action] {
    let kills = |action: &Action| match *action {
        Action::AgentKill { node: it }
        | Action::PutStoreBack { node: it }
        | Action::Wipe { node: it }
        | Action::AddAndCrash { node: it, .. }
        | Action::AddAndCut { node: it, .. }
        | Action::AgentHearAndKill { node: it, .. }
        | Action::PowerCut { node: it, .. }
        | Action::FailSync { node: it, .. } => it == node,
        // The agent runs, but cannot record anything.
        Action::Disk { node: it, is } => it == node && is != Disk::Well,
        _ => false,
    };
    // After a restore all agents are started before an operator is.
    let rebuilds = |at: usize| {
        let is_first = |since: &[Action]| !has(since, |action| matches!(action, Action::Start { .. }));
        let restored = history[..at].iter().rposition(|action| *action == Action::Restore);
        restored.is_some_and(|restored| is_first(&history[restored..at]))
    };
    let starts = |at: usize| match history[at] {
        Action::AgentStart { node: it } => it == node,
        Action::Start { .. } => rebuilds(at),
        _ => false,
    };
    let joins = |action| matches!(action, Action::NodeJoins { node: it } if it == node);
    let started = (0..history.len()).rev().find(|at| starts(*at)).map_or(0, |at| at + 1);
    let at = history[started..].iter().position(kills).map(|at| started + at);
    let at = at.filter(|at| has(&history[..*at], joins));
    at.map_or(&[], |at| &history[at..])
}

/// Whether by the action the node loses its block of the pool that the law names.
fn takes_block(failure: &Failure, action: Action, node: u8) -> bool {
    match action {
        Action::Cordon { node: it }
        | Action::Relabel { node: it }
        | Action::NodeTerminates { node: it }
        | Action::NodeLeaves { node: it } => it == node,
        // The node also loses it to an older pool with the address.
        Action::Apply { pool, .. } | Action::Remove { pool } => {
            names_pool(failure, pool) || pools_with_the_address(failure, &failure.history).contains(pool_at(pool).1)
        }
        _ => false,
    }
}

/// The agent of a node ends or cannot write, and is so when the backup is put in place. Meanwhile the node loses its block. After the backup a
/// leader acts, and a pod starts on another node that has the address by the law. It can also start after a restore under a leader, of which
/// that agent need not hear. So the agent does not know of the release, and allocates from the restored block before an operator knows of the
/// other node.
/// Not checked: why the block was free without a report. An admin force-released it, the grace was over, or the grant was idle.
pub(super) fn is_of_an_agent_that_was_down(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let is_of = |node: u8| {
            let taken = after(while_down(it.until, node), |action| takes_block(failure, action, node));
            let released = after(&taken[taken.len().saturating_sub(it.since.len())..], writes);
            let adds_elsewhere = |action| adds_on(action, |of| of != node && is_user(failure, of));
            (has(released, adds_elsewhere) || (!released.is_empty() && it.is_live() && has(it.later, adds_elsewhere)))
                && (failure.settling || has(it.later, |action| adds_on(action, |of| of == node)))
        };
        has(it.before, writes) && (0..MOST_NODES).any(|node| is_user(failure, node) && is_of(node))
    })
}

/// A restore brings back a grant that no report of the backup has. After the backup the agent reported it, or the
/// operator revoked it. So the agent has the grant and the operator treats it as never used, or the agent confirms it
/// once more.
/// Checked is the state of the restored objects and not the order of actions: many orders lead there.
pub(super) fn is_of_a_grant_never_used(failure: &Failure) -> bool {
    let address = address(failure);
    failure.evidence.unproven.iter().any(|it| {
        let is_user = (0..MOST_NODES)
            .any(|node| node_name(node) == it.node && (is_user(failure, node) || names_pod_of(failure, node)));
        // A law without an address names the pool.
        is_user && address.map_or_else(|| names(failure, &it.pool.name), |address| it.range.contains(address))
    })
}

/// The backup is from before any replica could acquire the Lease, so the restored state is that of a new cluster. After the backup a leader
/// assigns blocks and pods start, also on a node that has the address by the law; or they start after a restore under a leader, before the
/// agent hears of it. After the restore another leader assigns blocks at once, and a pod starts on the other node.
/// Not checked: whether the agent reports late. The first leader requests no report.
pub(super) fn is_of_a_backup_without_the_lease(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        !has(it.before, campaigns)
            && had_unreported_user(failure)
            && it.takes_back_writes()
            && (adds_for_a_user(failure, after(it.since, writes)) || it.is_live())
            && (adds_for_a_user(failure, after(it.later, writes)) || leaves_unrecorded(failure, it.later))
    })
}

/// Whether the Node of a user leaves, where the law is about an address without a record.
fn leaves_unrecorded(failure: &Failure, history: &[Action]) -> bool {
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if is_user(failure, node));
    failure.law.law == "held-is-recorded" && has(history, leaves)
}

/// The Lease of the backup seems to be less than a minute old, because the wall clocks of the replica that wrote it and of the one that acquires
/// it after the restore are off by about the age of the backup. So the leader takes the restored records for current ones. After the backup a pod
/// started. The law names its pool or its node.
/// Not checked: what the restored records release.
pub(super) fn is_of_a_backup_that_seems_current(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let Some(at) = it.later.iter().position(|action| writes(*action)) else { return false };
        let read = writer(it.later[at]).map_or(0, |replica| offset(failure, &it.later[..at], replica));
        let mut writers = it.before.iter().filter_map(|action| writer(*action));
        let seems_current = |of: u8| (BACKUP_SECONDS + read - offset(failure, it.before, of)).abs() <= 2 * A_MINUTE;
        let adds = |node: u8| {
            (is_user(failure, node) || names_pod_of(failure, node))
                && has(it.since, |action| adds_on(action, |of| of == node))
        };
        !it.is_live() && writers.any(seems_current) && (0..MOST_NODES).any(adds)
    })
}

const A_MINUTE: i64 = 60;

/// By how many seconds the wall clock of the replica is off after this history.
fn offset(failure: &Failure, history: &[Action], of: u8) -> i64 {
    let has_grace = has(&failure.history, |action| matches!(action, Action::Grace(_)));
    let mut offset = 0;
    for action in history {
        match *action {
            Action::Start { replica, skew } if replica % REPLICAS == of => {
                offset = i64::from(if has_grace { skew / 8 } else { skew });
            }
            Action::Jump { replica, minutes } if replica % REPLICAS == of => offset += i64::from(minutes) * A_MINUTE,
            _ => {}
        }
    }
    offset
}

/// A restore takes back a block that is in use, or the CRDs are deleted, so that its addresses are outside blocks, and only reports have them
/// as in use. The IPAMNode with such a report is deleted by hand, alone or with the CRDs. Then a replica leads that did not lead before, and
/// does not know the report. Or the history settles without a call of those that ran: the Lease of the leader has expired. Or, after the CRDs
/// were deleted, the leader that assigned the address did not lead yet when the report was lost. Or the Node leaves.
pub(super) fn is_of_a_deleted_report(failure: &Failure) -> bool {
    let is_led_by_the_next = |later: &[Action]| {
        let runs = running(&failure.history[..failure.history.len() - later.len()]);
        failure.settling && !has(later, |action| writer(action).is_some_and(|of| runs.contains(&of)))
    };
    // Without a Node, the IPAMNode goes before the agent has reported again.
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if is_user(failure, node));
    let is_forgotten = |until: &[Action], later: &[Action]| match failure.law.law {
        "held-is-recorded" => has(later, leaves),
        _ => is_led_by_another(until, later) || is_led_by_the_next(later),
    };
    let is_after_the_crds = || {
        // A pod can also start before the agent hears of the deletion.
        around(&failure.history, is_undefine).any(|(before, _, later)| {
            let mut deletions = around(later, |action| deletes_ipam_node(failure, action));
            has(before, writes)
                && had_unreported_user(failure)
                && deletions.any(|(until, _, later)| {
                    (adds_for_a_user(failure, after(before, writes)) || adds_for_a_user(failure, until))
                        && (is_forgotten(until, later) || had_forgotten_user(failure))
                })
        })
    };
    has_put_back(failure, |it| {
        let mut deletions = around(it.later, |action| deletes_ipam_node(failure, action));
        let mut with_the_crds = around(it.later, is_undefine);
        it.takes_back_writes()
            && had_unreported_user(failure)
            && adds_for_a_user(failure, it.since)
            && (deletions.any(|(before, _, later)| is_forgotten(before, later))
                || with_the_crds
                    .any(|(before, _, later)| is_led_by_another(before, later) && has_not_reported(failure, later)))
    }) || is_after_the_crds()
}

/// Whether no user of the address has reported between the deletion of the CRDs and the next leader that starts and writes.
fn has_not_reported(failure: &Failure, later: &[Action]) -> bool {
    let starts = later.iter().position(|action| matches!(action, Action::Start { .. })).unwrap_or(later.len());
    let next = later[starts..].iter().position(|action| writes(*action)).map_or(later.len(), |at| starts + at);
    let deleted = &failure.history[..failure.history.len() - later.len()];
    let mut users = (0..MOST_NODES).filter(|node| is_user(failure, *node));
    users.any(|node| is_down(deleted, node) || !has(&later[..next], |action| reports(action, node)))
}

/// Whether the node's agent may report.
fn reports(action: Action, node: u8) -> bool {
    match action {
        Action::AgentWork { node: it } | Action::Report { node: it, .. } => it == node,
        Action::Round { .. } => true,
        _ => false,
    }
}

/// A node loses its block, a leader acts after the backup, and pods start, at the latest after the restore. The backup is
/// restored, and a pod starts on the node, at the latest as the history settles. The node's store is lost after that
/// leader acted, and before a leader acts after the restore. By the law, a pod on this node and one on another node have
/// the address. Or the store is lost after the node lost its block and before the release, and no agent starts until the restore.
/// Not checked: whether a restored store is an earlier one or deleted, and whether a replica runs. In any case the agent
/// does not know of the release.
pub(super) fn is_of_a_lost_store(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let loses_store = |action| match action {
            Action::Wipe { node } | Action::PutStoreBack { node } if is_user(failure, node) => Some(node),
            _ => None,
        };
        let is_of = |lost: u8| {
            // A Node that terminates before the backup can lose it after the backup, and so can one of which no leader knows yet.
            let is_terminating =
                has(it.before, |action| matches!(action, Action::NodeTerminates { node } if node == lost));
            let is_losing =
                is_terminating || has(after_last(it.before, writes), |action| takes_block(failure, action, lost));
            let taken = after(it.since, |action| takes_block(failure, action, lost));
            let taken = if is_losing { it.since } else { taken };
            let released = after(taken, writes);
            let is_of_another = |node| node != lost && is_user(failure, node);
            let until = it.later.iter().position(|action| writes(*action)).unwrap_or(it.later.len());
            let loses_its_store = |action| loses_store(action) == Some(lost);
            let is_lost_before = !released.is_empty() && has(taken, loses_its_store) && is_down(it.until, lost);
            (is_lost_before
                || has(released, loses_its_store)
                || (!released.is_empty() && has(&it.later[..until], loses_its_store)))
                && [released, it.later].into_iter().any(|when| has(when, |action| adds_on(action, is_of_another)))
                && (failure.settling || has(it.later, |action| adds_on(action, |node| node == lost)))
        };
        has(it.before, writes) && it.since.iter().chain(it.later).copied().filter_map(loses_store).any(is_of)
    })
}
