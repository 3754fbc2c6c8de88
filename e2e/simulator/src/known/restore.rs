//! Faults that a restore shows.

use super::order::{
    PutBack, adds_for_a_user, after, applies_named, deletes_ipam_node, ends, has, has_put_back, is_undefine, is_user,
    looks, names, names_node, names_pool, pools_with_the_address, put_backs, running, writer, writes,
};
use crate::Failure;
use crate::action::{Action, Fate};
use crate::admin::pool_at;
use crate::world::REPLICAS;

/// A restore takes back a block that is in use. The operator starts, and the agents report. Then the IPAMNode of the node is deleted,
/// alone or with the definitions.
pub(super) fn is_of_a_report_lost_after_a_restore(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let started = after(it.later, |action| matches!(action, Action::Start { .. }));
        !it.is_live()
            && takes_back_a_block_in_use(failure, it)
            && has(started, |action| deletes_ipam_node(failure, action) || is_undefine(action))
    })
}

/// After the backup a leader writes, and later a pod starts on a node on which a pod has the address.
fn takes_back_a_block_in_use(failure: &Failure, it: PutBack<'_>) -> bool {
    adds_for_a_user(failure, after(it.since, writes))
}

/// A restore under a replica that runs on takes back a block, a pod of the node starts, and the definitions are deleted.
/// Not bound: whether the replica's or the agent's watch has shown the restore. The block is unknown to both records either way.
pub(super) fn is_of_definitions_deleted_after_a_restore(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        it.is_live()
            && it.takes_back_writes()
            && has(it.later, is_undefine)
            && adds_for_a_user(failure, after(&failure.history, writes))
    })
}

/// A restore takes back a block of a node on which a pod has the address, and a backup that was made after it is restored, too. Then
/// a pod starts on a node on which a pod has the address.
pub(super) fn is_of_two_restores(failure: &Failure) -> bool {
    let all = put_backs(&failure.history);
    let [first, .., second] = all.as_slice() else { return false };
    takes_back_a_block_in_use(failure, *first)
        && has(second.later, writes)
        && adds_for_a_user(failure, after(second.later, writes))
}

/// A leader writes, a backup is made, and a leader writes again. A restore under a replica that runs on takes that back, and no watch
/// breaks. Later a leader acts, or an agent allocates: by its spec of before, or, if its node is set up again, by the restored one.
/// Not bound: whose watch lags, the leader's or the agent's. A `Round` moves both, and so does what settles at the end.
pub(super) fn is_of_a_lagging_watch(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let is_wiped = has(it.later, |action| matches!(action, Action::Wipe { node } if is_user(failure, node)));
        it.live == Some(false)
            && has(it.before, writes)
            && it.takes_back_writes()
            && !running(it.until).is_empty()
            && adds_for_a_user(failure, &failure.history)
            && (is_wiped || failure.settling || has(it.later, writes) || adds_for_a_user(failure, it.later))
    })
}

/// A restore under a leader takes back writes, and the agent's watch does not break. Then the pods of the node that is named end, and
/// the node or the pool is changed so that the block is to be released, in any order.
pub(super) fn is_of_a_block_that_stays(failure: &Failure) -> bool {
    let empties = |action| match action {
        Action::Drain { node } | Action::Delete { node, .. } | Action::Vanish { node, .. } => names_node(failure, node),
        _ => false,
    };
    has_put_back(failure, |it| {
        it.live == Some(false)
            && it.takes_back_writes()
            && !running(it.until).is_empty()
            && has(it.later, empties)
            && has(it.later, |action| releases(failure, action))
    })
}

/// The node or the pool that is named is changed so that the node is not to have its block, or is to have it again.
fn releases(failure: &Failure, action: Action) -> bool {
    match action {
        Action::Cordon { node }
        | Action::Relabel { node }
        | Action::NodeTerminates { node }
        | Action::NodeLeaves { node } => names_node(failure, node),
        Action::Apply { pool, .. } | Action::Remove { pool } => names_pool(failure, pool),
        _ => false,
    }
}

/// Two pools with the address are applied. A restore takes back what a leader wrote of them.
///
/// Either a pod of a node that is named starts between the two, so that the restore takes back its block, or one of the pools stopped
/// sharing addresses before the backup.
/// Not bound: which of the two pools has which block. That follows from the specs, the creation times and the order of nodes.
pub(super) fn is_of_overlapping_pools(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let pools = pools_with_the_address(failure, it.until);
        let is_of_one = |pool| pools.contains(pool_at(pool).1);
        let stops_sharing = has(it.before, |action| matches!(action, Action::Share { pool } if is_of_one(pool)));
        !it.is_live()
            && pools.len() > 1
            && pools.iter().any(|pool| names(failure, pool))
            && it.takes_back_writes()
            && adds_for_a_user(failure, it.until)
            && (stops_sharing || takes_back_a_block_in_use(failure, it))
    })
}

/// A restore under a leader that leads on takes back a block. Then a Node changes, or the pool that is named.
/// Not bound: the node for which the block is reserved. The law names the node that waits for a block, and this is another.
pub(super) fn is_of_a_reservation(failure: &Failure) -> bool {
    let is_full = names(failure, "NoFreeRanges") || names(failure, "NoFreePrefixes");
    let changes = |action| match action {
        Action::Cordon { .. } | Action::Relabel { .. } | Action::NodeTerminates { .. } | Action::NodeLeaves { .. } => {
            true
        }
        Action::Apply { pool, .. } => names_pool(failure, pool),
        _ => false,
    };
    is_full
        && has_put_back(failure, |it| {
            it.is_live() && applies_named(failure, it.before) && leads_on(it) && has(it.later, changes)
        })
}

/// A replica that has written before the restore runs on, and no other starts.
fn leads_on(it: PutBack<'_>) -> bool {
    let of_writer = |replica: u8| has(it.since, |action| writer(action) == Some(replica));
    let stays = |replica: u8| !has(it.later, |action| ends(action, replica));
    running(it.until).into_iter().any(|replica| of_writer(replica) && stays(replica))
        && !has(it.later, |action| matches!(action, Action::Start { .. }))
}

/// A replica has decided or given up a call before a restore, and the call arrives after it: of a replica that is gone or has given
/// it up, or of one that has not decided since. The node that is named joined before the restore.
/// Not bound: whether the call or the backup is earlier. A call that is sent before the backup may take effect after it.
pub(super) fn is_of_a_creation_after_a_restore(failure: &Failure) -> bool {
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    has_put_back(failure, |it| {
        let is_given_up = has(it.until, |action| {
            matches!(action, Action::Call { fate: Fate::Late, .. } | Action::WorkAgainst { fate: Fate::Late, .. })
        });
        let decided = last_decision(it.until);
        let is_left = decided.is_some_and(|(at, replica)| has(&it.until[at..], |action| ends(action, replica)));
        let calls = |action| match action {
            Action::Call { replica, .. } => decided.is_some_and(|(_, of)| of == replica % REPLICAS),
            _ => false,
        };
        let early = it.later.split(|action| matches!(action, Action::Decide { .. })).next();
        let arrives = has(it.later, |action| matches!(action, Action::Orphan { .. }));
        it.is_live()
            && it.takes_back_writes()
            && has(it.until, joins)
            && ((arrives && (is_given_up || is_left)) || early.is_some_and(|early| has(early, calls)))
    })
}

/// The place and the replica of the last decision.
fn last_decision(history: &[Action]) -> Option<(usize, u8)> {
    let mut all = history.iter().enumerate().rev();
    all.find_map(|(at, action)| match action {
        Action::Decide { replica } => Some((at, *replica % REPLICAS)),
        _ => None,
    })
}

/// The node has a block to release, the leader and the agent act, and the backup is made. Then the node gets the block again, and the
/// backup is put in place under a leader. The node is one on which a pod has the address.
pub(super) fn is_of_an_early_release(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let begun = after(it.before, writes);
        let is_release = |at: usize| match begun[at] {
            Action::Cordon { node }
            | Action::Relabel { node }
            | Action::NodeTerminates { node }
            | Action::NodeLeaves { node } => is_user(failure, node),
            // An edit or a deletion: the pool was applied before the leader acted.
            Action::Apply { pool, .. } | Action::Remove { pool } => {
                let is_it = |action| matches!(action, Action::Apply { pool: it, .. } if pool_at(it) == pool_at(pool));
                names_pool(failure, pool) && has(it.before.split_at(it.before.len() - begun.len() + at).0, is_it)
            }
            _ => false,
        };
        let is_seen = (0..begun.len()).any(|at| is_release(at) && has(&begun[at + 1..], writes));
        it.is_live() && is_seen && takes_back_a_block_in_use(failure, it)
    })
}

/// A replica starts after the backup and acquires the Lease, and hears nothing before the backup is put in place. A node that is named
/// got a block after the backup.
pub(super) fn is_of_a_leader_that_saw_nothing(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let starts = it.since.iter().rposition(|action| matches!(action, Action::Start { .. }));
        let Some(at) = starts else { return false };
        let Action::Start { replica, .. } = it.since[at] else { return false };
        let (earlier, then) = (&it.since[..at], &it.since[at + 1..]);
        let acquires = |action| matches!(action, Action::Rest(_) | Action::Campaign { .. } | Action::Lease { .. });
        let acts = |action| writer(action) == Some(replica % REPLICAS);
        it.is_live()
            && has(earlier, writes)
            && has(then, acquires)
            && !has(then, |action| looks(action, replica % REPLICAS))
            && adds_for_a_user(failure, after(it.later, acts))
    })
}

/// The pool that is named is deleted, a backup is made, a leader acts, and the backup is put in place under it while it leads on.
pub(super) fn is_of_a_pool_that_stays(failure: &Failure) -> bool {
    let deletes = |action| matches!(action, Action::Remove { pool } if names_pool(failure, pool));
    has_put_back(failure, |it| it.is_live() && has(it.before, deletes) && leads_on(it))
}

/// A backup is made, a replica acquires the Lease, and the backup is put in place while another runs, too.
pub(super) fn is_of_two_leaders(failure: &Failure) -> bool {
    let campaigns =
        |action| writes(action) || matches!(action, Action::Rest(_) | Action::Campaign { .. } | Action::Lease { .. });
    has_put_back(failure, |it| it.is_live() && running(it.until).len() > 1 && has(it.since, campaigns))
}
