//! Faults that a restore shows.

use super::order::{
    PutBack, adds_for_a_user, adds_on, after, applies_named, deletes_ipam_node, ends, has, has_put_back, is_undefine,
    is_user, looks, names, names_node, names_pod_of, names_pool, overlap, pools_with_the_address, running, writer,
    writes,
};
use crate::Failure;
use crate::action::Action;
use crate::admin::pool_at;
use crate::catalogue::POOLS;
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

/// A leader assigns a block, and a backup has it without a report. The agent reports the block, and a pod starts. After the restore the
/// node loses the block, and the operator takes it for one that was never used.
/// Not bound: whether the pod starts before or after the restore. Its agent has the confirmed grant in both.
pub(super) fn is_of_a_grant_never_used(failure: &Failure) -> bool {
    let is_it = |node| is_user(failure, node) || names_pod_of(failure, node);
    let reports = |action| match action {
        Action::AgentWork { node } | Action::Report { node, .. } => is_it(node),
        Action::Round { .. } => true,
        _ => false,
    };
    let loses = |action| match action {
        Action::Cordon { node } | Action::Relabel { node } | Action::NodeTerminates { node } => is_it(node),
        Action::Apply { .. } | Action::Remove { .. } => true,
        _ => false,
    };
    has_put_back(failure, |it| {
        let adds = |history: &[Action]| has(history, |action| adds_on(action, is_it));
        let is_used = adds(after(it.since, reports)) || adds(it.later);
        has(it.before, writes) && has(it.since, reports) && is_used && has(it.later, loses)
    })
}

/// A leader writes, a backup is made, and a leader writes again. A restore under a replica that runs on takes that back, and no watch
/// breaks. Later a leader acts, or an agent allocates: by its spec from before the restore, or, after its node was set up again, by the restored one.
/// Where no replica runs, one starts and acts later, and then the agent allocates.
/// Not bound: whose watch lags, the leader's or the agent's. A `Round` moves both, and so does what settles at the end.
pub(super) fn is_of_a_lagging_watch(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let is_wiped = has(it.later, |action| matches!(action, Action::Wipe { node } if is_user(failure, node)));
        let started = after(it.later, |action| matches!(action, Action::Start { .. }));
        it.live == Some(false)
            && has(it.before, writes)
            && it.takes_back_writes()
            && (!running(it.until).is_empty() || adds_for_a_user(failure, after(started, writes)))
            && adds_for_a_user(failure, &failure.history)
            && (is_wiped || failure.settling || has(it.later, writes) || adds_for_a_user(failure, it.later))
    })
}

/// Two pools with the address are applied. A restore takes back what a leader wrote of them.
///
/// Either a pod of a node that is named starts between the two, so that the restore takes back its block, or one of the pools stopped
/// sharing addresses before the backup. Or the leader leads on, and the pod starts after the restore, before its agent knows of it.
/// Not bound: which of the two pools has which block. That follows from the specs, the creation times and the order of nodes.
pub(super) fn is_of_overlapping_pools(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let pools = pools_with_the_address(failure, it.until);
        let is_of_one = |pool| pools.contains(pool_at(pool).1);
        let stops_sharing = has(it.before, |action| matches!(action, Action::Share { pool } if is_of_one(pool)));
        let is_used = if it.is_live() {
            adds_for_a_user(failure, it.later)
        } else {
            adds_for_a_user(failure, it.until) && (stops_sharing || takes_back_a_block_in_use(failure, it))
        };
        pools.len() > 1 && pools.iter().any(|pool| names(failure, pool)) && it.takes_back_writes() && is_used
    })
}

/// A restore under a leader that leads on takes back a block: of the pool that is named, or of one that overlaps it. A Node changes, or
/// the pool that is named, after the backup or after the restore; or the other pool after the backup.
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
    // The pool with the block was applied after the backup, or edited. It overlaps the one that is named.
    let is_beside = |it: PutBack<'_>| {
        let applied = it.since.iter().filter_map(|action| match action {
            Action::Apply { pool, .. } => Some(pool_at(*pool).1),
            _ => None,
        });
        let mut named = POOLS.iter().filter(|(_, name)| names(failure, name));
        let others: Vec<&str> = applied.collect();
        named.any(|(_, name)| others.iter().any(|other| overlap(&failure.history, other, name)))
    };
    is_full
        && has_put_back(failure, |it| {
            let is_of_it = applies_named(failure, it.before) || (applies_named(failure, it.later) && is_beside(it));
            let is_changed = has(it.since, changes) || has(it.later, changes) || is_beside(it);
            it.is_live() && is_of_it && leads_on(it) && is_changed
        })
}

/// A replica that has written before the restore runs on, and no other starts.
fn leads_on(it: PutBack<'_>) -> bool {
    let of_writer = |replica: u8| has(it.since, |action| writer(action) == Some(replica));
    let stays = |replica: u8| !has(it.later, |action| ends(action, replica));
    running(it.until).into_iter().any(|replica| of_writer(replica) && stays(replica))
        && !has(it.later, |action| matches!(action, Action::Start { .. }))
}

/// The node has a block to release, the leader and the agent act, and the backup is made. Then the node gets the block again, and the
/// backup is put in place under a leader. The node is one on which a pod has the address, or gets it right after.
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
        // The agent may allocate before it knows of the restore.
        let is_used =
            takes_back_a_block_in_use(failure, it) || (it.takes_back_writes() && adds_for_a_user(failure, it.later));
        it.is_live() && is_seen && is_used
    })
}

/// A replica starts after the backup and acquires the Lease, and hears nothing before the backup is put in place. A node that is named
/// got a block after the backup from an earlier leader.
pub(super) fn is_of_a_leader_that_saw_nothing(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let starts = it.since.iter().rposition(|action| matches!(action, Action::Start { .. }));
        let Some(at) = starts else { return false };
        let Action::Start { replica, .. } = it.since[at] else { return false };
        let (earlier, then) = (&it.since[..at], &it.since[at + 1..]);
        let acquires = |action| matches!(action, Action::Rest(_) | Action::Campaign { .. } | Action::Lease { .. });
        let acts = |action| writer(action) == Some(replica % REPLICAS);
        let of_another = |action| writer(action).is_some_and(|of| of != replica % REPLICAS);
        it.is_live()
            && (has(earlier, writes) || has(then, of_another))
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

/// A node has its block when a backup is made. Then the block is released, and the backup is put in place under the leader, which
/// leads on. The law names the node.
/// Not bound: the pool, and whether all other blocks are released, too. The law names neither.
pub(super) fn is_of_a_lease_without_blocks(failure: &Failure) -> bool {
    let joins = |action| matches!(action, Action::NodeJoins { node } if names_node(failure, node));
    let releases = |action| match action {
        Action::Cordon { node }
        | Action::Relabel { node }
        | Action::NodeTerminates { node }
        | Action::NodeLeaves { node } => names_node(failure, node),
        Action::Remove { .. } => true,
        _ => false,
    };
    has_put_back(failure, |it| {
        // The release is due before the backup or after it, and done after it.
        let is_due = |done: &[Action]| has(after(it.before, writes), releases) || has(done, releases);
        let last = it.since.iter().rposition(|action| writes(*action));
        it.is_live() && has(it.before, joins) && leads_on(it) && last.is_some_and(|last| is_due(&it.since[..last]))
    })
}

/// A leader writes, and a backup is made. Then a node is to lose its block, and the leader acts. The backup is put in place under it, and
/// pods start. By the law a pod on this node has the address. The leader replaces the restored grant, which has ended, before it knows that
/// another node uses the block.
pub(super) fn is_of_a_block_that_moved(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let is_moved = |at: usize| {
            let loses = match it.since[at] {
                Action::Cordon { node }
                | Action::Relabel { node }
                | Action::NodeTerminates { node }
                | Action::NodeLeaves { node } => is_user(failure, node),
                _ => false,
            };
            loses && has(&it.since[at + 1..], writes)
        };
        let has_moved = (0..it.since.len()).any(is_moved);
        it.is_live() && has(it.before, writes) && has_moved && leads_on(it) && adds_for_a_user(failure, it.later)
    })
}

/// A leader writes, a backup is made, and the definitions are deleted and the pools applied again. A leader acts, the backup is put in
/// place under it, and the watches break. Then a pod starts on a node on which a pod has the address.
pub(super) fn is_of_definitions_deleted_before_a_restore(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let applied = after(after(it.since, is_undefine), |action| action == Action::Reapply);
        it.live == Some(true)
            && has(it.before, writes)
            && applies_named(failure, it.before)
            && has(applied, writes)
            && leads_on(it)
            && adds_for_a_user(failure, it.later)
    })
}

/// After the backup a node is to lose its block, a leader acts, the node's store is lost, and pods start. The backup is put in place,
/// and a pod starts on the node. By the law a pod on it and one on another node have the address.
/// Not bound: whether a store that is put back is an earlier one or deleted, and whether a replica runs. The agent does not know of
/// the release in any case.
pub(super) fn is_of_a_lost_store(failure: &Failure) -> bool {
    has_put_back(failure, |it| {
        let loses_store = |action| match action {
            Action::Wipe { node } | Action::PutStoreBack { node } if is_user(failure, node) => Some(node),
            _ => None,
        };
        let is_of = |lost: u8| {
            let loses = |action| match action {
                Action::Cordon { node }
                | Action::Relabel { node }
                | Action::NodeTerminates { node }
                | Action::NodeLeaves { node } => node == lost,
                Action::Apply { pool, .. } | Action::Remove { pool } => names_pool(failure, pool),
                _ => false,
            };
            let released = after(after(it.since, loses), writes);
            let is_of_another = |node| node != lost && is_user(failure, node);
            has(released, |action| loses_store(action) == Some(lost))
                && has(released, |action| adds_on(action, is_of_another))
                && has(it.later, |action| adds_on(action, |node| node == lost))
        };
        has(it.before, writes) && it.since.iter().copied().filter_map(loses_store).any(is_of)
    })
}
