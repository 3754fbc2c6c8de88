//! Which work an event causes.
//!
//! The rules that keep the operator quiet are here. A heartbeat of a Node, the echo of the operator's own write, and an event
//! older than such a write wake nothing. New counts wake a pool only when they may be written.

use std::collections::HashSet;
use std::time::Instant;

use ipam_core::plan::Assignment;
use ipam_core::{AddrRange, PoolKey, PoolKind};
use kube::runtime::watcher::Event;

use super::other_pools::blocks;
use super::pool_task::PoolTask;
use super::{Reconciler, block_history, node_writes::queue_holders};
use crate::calls::PoolRef;
use crate::cluster_cache::{Labels, NodeMeta};
use crate::ipam_node::IpamNodeRecord;
use crate::objects::{RawObject, is_older};
use crate::pool::{PoolRecord, StatusRecord, created};

impl Reconciler {
    pub(super) fn observe_node(&mut self, event: Event<(String, NodeMeta)>, now: Instant) {
        match event {
            Event::Init => self.node_list.begin(),
            Event::InitApply((name, meta)) => {
                self.node_list.name(&name);
                self.node_is_there(&name, meta, now);
            }
            Event::Apply((name, meta)) => self.node_is_there(&name, meta, now),
            Event::Delete((name, _)) => self.node_is_gone(&name, now),
            Event::InitDone => {
                for name in self.node_list.finish(self.nodes.names()) {
                    self.node_is_gone(&name, now);
                }
            }
        }
    }

    fn node_is_there(&mut self, name: &str, meta: NodeMeta, now: Instant) {
        let joins = !self.nodes.contains(name);
        let (before, left) = (self.nodes.labels(name).cloned(), self.nodes.leaving().get(name).copied());
        if self.nodes.apply(name, meta) {
            self.absences.comes(name);
            // If the Node is deleted again before the next step, its grace starts over.
            self.orphaned.remove(name);
            self.gone.remove(name);
            self.expired.remove(name);
            self.queue.push(name);
            let turns = joins || left != self.nodes.leaving().get(name).copied();
            self.wake_pools_that_select(name, before.as_ref().filter(|_| !turns), now);
        }
    }

    /// Wakes the pools that select the node by its labels and did not by the labels `before`, or the other way round. Without
    /// `before` it wakes all pools.
    fn wake_pools_that_select(&mut self, name: &str, before: Option<&Labels>, now: Instant) {
        let labels = self.nodes.labels(name);
        let Some((before, labels)) = before.zip(labels) else { return self.wake_pools(now) };
        for task in self.pools.values_mut() {
            // An invalid spec selects no further node. Only an event of the pool can change that.
            let selects = |labels: &Labels| task.record.spec.as_ref().is_ok_and(|pool| pool.selects(name, labels));
            if selects(before) != selects(labels) {
                task.due.wake(now);
            }
        }
    }

    fn node_is_gone(&mut self, name: &str, now: Instant) {
        if self.nodes.delete(name) {
            self.absences.goes(name, now, self.settings.released_block_grace);
            self.push_gone(name);
            self.wake_pools(now);
        }
    }

    /// Queues the node of an object that is gone. A process that does not lead takes nothing from the queue, so it forgets a node with
    /// neither object.
    fn push_gone(&mut self, name: &str) {
        let is_there = self.nodes.contains(name) || self.ipam_nodes.get(name).is_some();
        if self.is_leading() || is_there {
            self.queue.push(name);
        } else {
            self.queue.remove(name);
        }
    }

    pub(super) fn observe_pool(&mut self, kind: PoolKind, event: Event<RawObject>, now: Instant) {
        match event {
            Event::Init => self.pool_list(kind, super::ListSync::begin),
            Event::InitApply(object) => {
                self.pool_list(kind, |list| list.name(object.name()));
                let known = self.pools.get(&PoolKey::new(kind, object.name())).map(|task| &task.record);
                let is_ours = self.pool_lists.get(&kind).is_some_and(|list| list.has_written(object.name()));
                let is_older = known.is_some_and(|known| self.is_replaced_by_an_older(known, &object));
                let known = known.map(|known| (known.uid.as_str(), known.resource_version.as_str()));
                if is_older || (!is_ours && self.is_rolled_back(known, &object)) {
                    return self.rolled_back(now);
                }
                self.pool_is_there(kind, object, now);
            }
            Event::Apply(object) => self.pool_is_there(kind, object, now),
            Event::Delete(object) => self.pool_is_gone(&PoolKey::new(kind, object.name()), now),
            Event::InitDone => {
                let ours = self.pools.keys().filter(|key| key.kind == kind).map(|key| &key.name);
                let gone = self.pool_lists.get_mut(&kind).map(|list| list.finish(ours)).unwrap_or_default();
                for name in gone {
                    self.pool_is_gone(&PoolKey::new(kind, name), now);
                }
            }
        }
    }

    fn pool_list(&mut self, kind: PoolKind, with: impl FnOnce(&mut super::ListSync)) {
        if let Some(list) = self.pool_lists.get_mut(&kind) {
            with(list);
        }
    }

    fn pool_is_there(&mut self, kind: PoolKind, object: RawObject, now: Instant) {
        let key = PoolKey::new(kind, object.name());
        let recreated = |task: &PoolTask| object.metadata.uid.as_deref() != Some(&task.record.uid);
        match self.pools.get_mut(&key) {
            Some(task) if recreated(task) => {
                self.pool_is_gone(&key, now);
                self.pool_is_new(key, &object, now);
            }
            // The answer to the call under way may show that this event is its echo.
            Some(task) if task.call.is_some() => task.pending_event = Some(object),
            Some(_) => self.renew(&key, &object, now),
            None => self.pool_is_new(key, &object, now),
        }
    }

    /// Whether a list has `object` in an older version than the known one. Then the object is back in an earlier state, or this leader
    /// has written it since the list began.
    fn is_rolled_back(&self, known: Option<(&str, &str)>, object: &RawObject) -> bool {
        let same = |uid: &str| object.metadata.uid.as_deref() == Some(uid);
        self.is_leading()
            && known.is_some_and(|(uid, version)| same(uid) && is_older(object.resource_version(), version))
    }

    /// Whether a list has another pool of the same name that was created before the known one. That also means an earlier state. A known
    /// pool without a version is untrusted already, and proves nothing.
    fn is_replaced_by_an_older(&self, known: &PoolRecord, object: &RawObject) -> bool {
        let is_another = object.metadata.uid.as_deref() != Some(&known.uid);
        let is_trusted = self.is_leading() && !known.resource_version.is_empty();
        is_trusted && is_another && created(&object.metadata) < known.life.created
    }

    fn renew(&mut self, key: &PoolKey, object: &RawObject, now: Instant) {
        let (is_leading, sees_losses) = (self.is_leading(), self.sees_losses());
        let Some(task) = self.pools.get_mut(key).filter(|task| !task.knows(object)) else { return };
        let record = PoolRecord::read(key.kind, object, Some(&task.record));
        let before = std::mem::replace(&mut task.record, record.clone());
        task.keep_names(|node| self.recovery.request_to(node).is_some());
        task.due.wake(now);
        let doubt = task.doubt.take();
        for node in doubt.iter().flat_map(|doubt| &doubt.held) {
            self.queue.push(node);
        }
        // No other write results in the status that was sent, because the operator sends it only if it differs from the last one.
        let is_done = task.unacknowledged.as_ref() == Some(&record.status);
        let mut changed = Vec::new();
        if before.status != record.status {
            if !before.status.has_blocks_of(&record.status) {
                self.changed_pools.insert(key.clone());
                // No entry is made for a block that the status no longer records, nor a new grant in place of one that is over.
                let recorded: HashSet<(&str, AddrRange)> = blocks(&record.status).collect();
                let ipam_nodes = &self.ipam_nodes;
                let stays = |given: &Assignment| {
                    recorded.contains(&(given.node.as_str(), given.block.range))
                        || ipam_nodes.may_serve(&given.node, key)
                };
                if let Some(applied) = &mut task.applied {
                    for dropped in applied.assignments.extract_if(.., |given| !stays(given)) {
                        self.queue.push(&dropped.node);
                    }
                }
            }
            // A write of this leader without an answer, or a write of another client.
            if is_leading {
                changed = block_history::log(key, &before.status, &record.status, &self.metrics);
            }
            // IPAMNodes may have been deleted before the status was wiped.
            if sees_losses {
                let lost = lost_claims(&before.status, &record.status, task.unacknowledged.as_ref());
                let unused = task.just_assigned();
                self.status_lost(key, lost, |node| unused.contains(node), now);
            }
        }
        // A write at the version before can no longer take effect. A version from before a rollback proves nothing.
        let unacknowledged = self.pools.get_mut(key).map(|task| &mut task.unacknowledged);
        let unacknowledged = unacknowledged.filter(|_| !before.resource_version.is_empty());
        if unacknowledged.and_then(Option::take).is_some() {
            self.changed_pools.insert(key.clone());
        }
        self.metrics.observed(&record);
        for node in &record.life.force_release {
            self.queue.push(node);
        }
        self.note_change(&before, &record, now);
        if let Some(doubt) = doubt.filter(|_| is_done) {
            let (uid, resource_version) = (record.uid.clone(), record.resource_version.clone());
            let pool = PoolRef { key: key.clone(), uid, resource_version, call: self.calls };
            self.note(&pool, doubt.notes.into_iter().chain(changed));
            self.apply(key, doubt.plan, now);
        }
    }

    fn pool_is_new(&mut self, key: PoolKey, object: &RawObject, now: Instant) {
        let mut task = PoolTask::new(PoolRecord::read(key.kind, object, None));
        task.lively_until = self.lively_until;
        task.keep_names(|node| self.recovery.request_to(node).is_some());
        task.due.wake(now);
        self.metrics.observed(&task.record);
        self.changed_pools.insert(key.clone());
        // While a pool that shares addresses does not exist, its blocks are unavailable to other pools.
        if task.record.life.allows_overlap {
            self.wake_pools(now);
        }
        self.pools.insert(key, task);
        self.overlaps_stale = true;
    }

    fn pool_is_gone(&mut self, key: &PoolKey, now: Instant) {
        if let Some(task) = self.pools.remove(key) {
            self.status_lost(key, task.blocks(), |node| task.has_just_assigned(node), now);
            self.overlaps_stale = true;
            self.changed_pools.insert(key.clone());
            queue_holders(&mut self.queue, &self.ipam_nodes, key);
            // A node whose first entry is being written is not yet known to have one.
            for assignment in task.applied.iter().flat_map(|applied| &applied.assignments) {
                self.queue.push(&assignment.node);
            }
            for node in task.call.iter().flat_map(|call| &call.held) {
                self.queue.push(node);
            }
            self.metrics.forget(&task.record);
        }
    }

    /// Takes in the event that came while a call was under way.
    pub(super) fn catch_up(&mut self, key: &PoolKey, now: Instant) {
        let Some(task) = self.pools.get_mut(key) else { return };
        if let Some(object) = task.pending_event.take() {
            self.renew(key, &object, now);
        }
    }

    pub(super) fn observe_ipam_node(&mut self, event: Event<RawObject>, now: Instant) {
        match event {
            Event::Init => {
                self.ipam_node_list.begin();
                self.queue.lost_sight();
            }
            Event::InitApply(object) => {
                self.ipam_node_list.name(object.name());
                let known = self.ipam_nodes.get(object.name());
                let is_ours = self.ipam_node_list.has_written(object.name());
                let known = known.map(|known| (known.uid.as_str(), known.resource_version.as_str()));
                if !is_ours && self.is_rolled_back(known, &object) {
                    return self.rolled_back(now);
                }
                self.ipam_node_is_there(&object, now);
            }
            Event::Apply(object) => self.ipam_node_is_there(&object, now),
            Event::Delete(object) => self.ipam_node_is_gone(object.name(), now),
            Event::InitDone => {
                for name in self.ipam_node_list.finish(self.ipam_nodes.all().keys()) {
                    self.ipam_node_is_gone(&name, now);
                }
            }
        }
    }

    fn ipam_node_is_there(&mut self, object: &RawObject, now: Instant) {
        let name = object.name();
        let Ok(before) = self.ipam_nodes.apply(name, IpamNodeRecord::read(object)) else { return };
        if let Some(before) = before.as_ref().filter(|_| self.is_leading()) {
            self.ipam_nodes.note_edit(name, before);
        }
        self.queue.push(name);
        self.note_report(name, now);
        self.note_entries(name, before.as_ref());
        let Some(record) = self.ipam_nodes.get(name) else { return };
        let reports_changed = before.as_ref().is_none_or(|before| before.reports != record.reports);
        for (key, task) in &mut self.pools {
            if task.awaits(name) || (reports_changed && task.bars_addresses()) {
                task.due.wake(now);
            }
            if record.has_released(key) && task.waits_for_blocks() {
                task.due.wake(now);
            } else if before.as_ref().map(|before| before.counted(key)) != Some(record.counted(key)) {
                task.due.by(task.burst_of_counts_at(now));
            }
        }
    }

    /// A block with an entry may be in use from then on. So may each block of the node, if another IPAMNode has replaced the known one.
    pub(super) fn note_entries(&mut self, name: &str, before: Option<&IpamNodeRecord>) {
        let Some(record) = self.ipam_nodes.get(name) else { return };
        let is_another = before.is_some_and(|before| before.uid != record.uid);
        for (key, task) in &mut self.pools {
            if is_another || record.block(key).is_some() {
                task.forget_just_assigned(name);
            }
        }
    }

    /// An IPAMNode was deleted. If its Node exists, the operator creates it again, and adds the blocks of the statuses. Its counts are
    /// unknown. Addresses in use outside its blocks stay unavailable until the agent has reported again.
    fn ipam_node_is_gone(&mut self, name: &str, now: Instant) {
        self.queue.lost(name);
        if let Some(gone) = self.ipam_nodes.delete(name) {
            self.pools.values_mut().for_each(|task| task.forget_just_assigned(name));
            self.ipam_node_lost(name, &gone, now);
            // A Node whose records are lost may exist, and its event may arrive later. The finalizer keeps an IPAMNode whose report counts,
            // so such an IPAMNode was not deleted in order.
            let is_lost = self.is_awaited(name) || self.is_recorded(name) || self.report_counts(name, &gone, now);
            if self.nodes.contains(name) || is_lost {
                self.keep_report(name, &gone, now);
            }
            self.push_gone(name);
            for task in self.pools.values_mut() {
                task.due.by(task.burst_of_counts_at(now));
            }
            self.wake_pools_that_wait_for(name, now);
        }
    }
}

/// Returns the nodes and blocks that a status no longer records. A status that this leader sent without an answer loses none, because
/// it releases only free blocks.
fn lost_claims(
    before: &StatusRecord,
    now: &StatusRecord,
    unacknowledged: Option<&StatusRecord>,
) -> Vec<(String, AddrRange)> {
    let said: HashSet<(&str, AddrRange)> = blocks(now).collect();
    if unacknowledged.is_some_and(|sent| blocks(sent).collect::<HashSet<_>>() == said) {
        return Vec::new();
    }
    blocks(before).filter(|block| !said.contains(block)).map(|(node, range)| (node.to_owned(), range)).collect()
}
