//! Faults that a loss of records by hand shows: of the CRDs, an IPAMNode, a pool, or a status.

use std::time::Duration;

use super::order::{
    LEASE, PutBack, adds_for_a_user, after, around, campaigns, deletes_ipam_node, ends, ends_a_leader,
    expires_beside_another, had_forgotten_user_without_a_node, had_unreported_user, has, is_undefine, is_user, looks,
    names_pool, pools_with_the_address, put_backs, running, starts_again, was_unreported, writes,
};
use crate::Failure;
use crate::action::{Action, Fate};
use crate::admin::pool_at;
use crate::size::REPLICAS;

/// A pool that has the address is deleted without its finalizer, and the IPAMNode of the node is deleted. The records
/// were written before. No running replica reads its watches between the first and the last of these; a pool that was deleted before goes with
/// its finalizer. A replica whose call was on its way may read once: it waits after the conflict. No restore takes back writes of a leader. Or the pool is created again, and no
/// running replica reads its watches after the IPAMNode was deleted.
pub(super) fn is_of_a_pool_removed_by_hand(failure: &Failure) -> bool {
    let history = &failure.history;
    let pools = pools_with_the_address(failure, history);
    let is_of_it = |pool: u8| {
        // This law names the pool of the pod. The others may name the pool that has assigned the address to another node.
        pools.contains(pool_at(pool).1) && (failure.law.law != "held-is-recorded" || names_pool(failure, pool))
    };
    let deletes = |action: Action, pool: u8| match action {
        Action::Strip { pool: it } => pool_at(it) == pool_at(pool),
        _ => false,
    };
    let removes =
        |action: Action, pool: u8| matches!(action, Action::Remove { pool: it } if pool_at(it) == pool_at(pool));
    let of = |pool: u8| {
        let places = |is_it: &dyn Fn(Action) -> bool| -> Vec<usize> {
            history.iter().enumerate().filter(|(_, action)| is_it(**action)).map(|(at, _)| at).collect()
        };
        let (stripped, gone) = (places(&|it| deletes(it, pool)), places(&|it| removes(it, pool)));
        let ipam_nodes = places(&|it| deletes_ipam_node(failure, it));
        let mut all = stripped.iter().flat_map(|a| gone.iter().map(move |b| (*a, *b)));
        all.any(|(strip, remove)| {
            let first = if remove < strip { strip } else { remove };
            ipam_nodes.iter().any(|it| is_unseen(history, [strip, first, *it]))
        })
    };
    let mut stripped = history.iter().filter_map(|action| match action {
        Action::Strip { pool } if is_of_it(*pool) => Some(*pool),
        _ => None,
    });
    let is_made_anew = |pool: u8| {
        let applied = |action: Action| matches!(action, Action::Apply { pool: it, .. } if pool_at(it) == pool_at(pool));
        let place = |is_it: &dyn Fn(Action) -> bool| history.iter().position(|action| is_it(*action));
        let places = (place(&|action| deletes(action, pool)), place(&|action| removes(action, pool)));
        let (Some(strip), Some(remove)) = places else { return false };
        has(&history[strip.max(remove)..], applied)
            && has(after(history, writes), |action| deletes_ipam_node(failure, action))
            && is_last_deletion_unseen(failure)
    };
    stripped.any(|pool| of(pool) || is_made_anew(pool))
        && had_unreported_user(failure)
        && adds_for_a_user(failure, after(history, writes))
        && put_backs(history).iter().all(|it| !it.takes_back_writes())
        && !has(history, is_undefine)
}

/// Whether a leader writes before all three, and no replica that still runs at the last reads its watches between them.
/// One look is allowed to a replica whose call was on its way.
fn is_unseen(history: &[Action], mut places: [usize; 3]) -> bool {
    places.sort_unstable();
    let [first, .., last] = places;
    let has_call = matches!(history[..first].last(), Some(Action::Call { fate: Fate::Done, .. }));
    // A leader that ends before the last of them loses what it knows.
    let knows = |at: usize, replica: u8| {
        let ends_between = has(&history[at..last], |action| ends(action, replica));
        looks(history[at], replica) && !ends_between && running_at(history, last).any(|it| it == replica)
    };
    let is_look = |at: &usize| running_at(history, *at).any(|replica| knows(*at, replica));
    has(&history[..first], writes) && (first..last).filter(is_look).count() <= usize::from(has_call)
}

/// Whether the IPAMNode of a node on which a pod has the address is deleted, and no replica that runs then reads its
/// watches later.
fn is_last_deletion_unseen(failure: &Failure) -> bool {
    let history = &failure.history;
    let mut places = (0..history.len()).filter(|at| deletes_ipam_node(failure, history[*at]));
    places.any(|at| !running_at(history, at).any(|replica| has(&history[at..], |action| looks(action, replica))))
}

/// The replicas that run here, without those whose Lease has expired and those that are stopped.
fn running_at(history: &[Action], at: usize) -> impl Iterator<Item = u8> {
    let has_expired = move |replica: u8| {
        let own = history[..at].iter().rposition(|action| {
            looks(*action, replica) || matches!(action, Action::Start { replica: it, .. } if it % REPLICAS == replica)
        });
        let later = own.map_or(&[][..], |own| &history[own + 1..at]);
        let stands_still = |action| matches!(action, Action::Freeze { replica: it, .. } if it % REPLICAS == replica);
        let times = later.iter().map(|action| if let Action::Pass(time) = action { *time } else { 0 });
        times.sum::<u32>() >= LEASE || has(later, stands_still)
    };
    running(&history[..at]).into_iter().filter(move |replica| !has_expired(*replica))
}

/// All records are lost, and a leader ends. Later a Node leaves whose pod has the address and whose agent has not reported, and another leader
/// does not wait for its report. That is checked by state, or else by the order. Or a restore takes back the block, and the Node leaves before a leader has requested its report.
/// A leader also ends with a restore of a backup that lacks these records, and without an action when its Lease expires. It then starts again.
pub(super) fn is_of_a_node_that_left_before_a_leader(failure: &Failure) -> bool {
    let history = &failure.history;
    let is_it = |node: u8| is_user(failure, node) && was_unreported(failure, node, Duration::ZERO);
    let leaves = |action| matches!(action, Action::NodeLeaves { node } if is_it(node));
    let ends = |action| ends_a_leader(action) || action == Action::Restore;
    let is_of_it = |(before, _, later): (&[Action], Action, &[Action])| {
        // The leader that requested the report ends before or after the Node leaves, and another one writes.
        let lost = before.len() - after(before, is_undefine).len();
        let ended_before = (has(&before[lost..], ends) || starts_again(before, lost)) && has(later, writes);
        let ended_after =
            has(after(later, ends), writes) || starts_again(history, before.len()) || expires_beside_another(later);
        ended_before || (has(before, is_undefine) && ended_after)
    };
    let lacks_them = |it: &PutBack<'_>| has(it.before, is_undefine);
    // Or a restore takes back the block, and the Node leaves before the next leader reads the records.
    let is_taken_back = |it: &PutBack<'_>| {
        has(it.before, campaigns)
            && it.takes_back_writes()
            && around(it.later, leaves).any(|(_, _, later)| has(later, writes))
    };
    let restores = put_backs(history);
    let is_forgotten =
        || (has(history, is_undefine) || !restores.is_empty()) && had_forgotten_user_without_a_node(failure);
    adds_for_a_user(failure, history)
        && (is_forgotten()
            || restores.iter().any(is_taken_back)
            || (around(history, leaves).any(is_of_it) && restores.iter().all(lacks_them)))
}
