//! IPAMNodes: the spec of each, when it is written, and what is known of it while a write is under way.
//!
//! While a status write may change the node's entry of the pool, the entry stays as it is. The node waits for the answer for some
//! seconds. Then, and after a write whose outcome is unknown, the entries of other pools are written.

use std::collections::BTreeSet;
use std::time::Instant;

use ipam_core::plan::BlockPhase;
use ipam_core::{AddrRange, GrantId, PoolKey};
use ipam_crds::{BlockState, NodeBlock};

use super::node_queue::{NodeQueue, Turn};
use super::pool_task::{Applied, PoolTask};
use super::{CallError, Command, NodeAction, NodeVersion, NodeWrite, Now, Reconciler, Step};
use crate::cluster_cache::{IpamNodes, key_of};
use crate::ipam_node::{IpamNodeRecord, entry, grant, is_about, set_unavailable, sort, unavailable};

impl Reconciler {
    pub(super) fn step_node(&mut self, node: &str, clocks: Now) -> Step {
        let now = clocks.instant;
        loop {
            match self.queue.take(node, now) {
                Turn::Now => {}
                Turn::At(at) => return Step::Wait(at),
                Turn::None => return Step::Done,
            }
            if let Some(until) = self.waits_for_a_status(node, now) {
                self.queue.push_at_latest(node, until);
                return Step::Wait(until);
            }
            self.note_orphans(node, now);
            self.note_gone(node, now);
            self.end_doubt_without_agent(node, now);
            let Some(action) = self.wanted(node, clocks) else {
                let had_error = self.queue.lasting_error(node).is_some();
                self.queue.forget(node);
                self.wake_pools_that_show(node, had_error, now);
                self.ipam_nodes.accept(node);
                // The agent may have reported while the status that the node waited for was written.
                self.wake_pools_that_wait_for(node, now);
                continue;
            };
            if self.waits_for_the_lease(node, &action) {
                return Step::Done;
            }
            let creates = matches!(action, NodeAction::Create { .. });
            if let Some(until) = self.creates_after(now).filter(|_| creates) {
                self.queue.push_at(node, until);
                return Step::Wait(until);
            }
            self.queue.begin(node);
            self.ipam_nodes.begin_write(node, action.blocks());
            let write = NodeWrite { node: node.to_owned(), action };
            return Step::Call(Box::new(Command::WriteIpamNode(write)));
        }
    }

    /// Returns until when the node waits for a status write under way that changes its part of a pool, so that a node which joins two
    /// pools gets both blocks in one write. The node returns to the queue with the answer.
    fn waits_for_a_status(&mut self, node: &str, now: Instant) -> Option<Instant> {
        let known = self.ipam_nodes.get(node);
        self.pools.values_mut().find_map(|task| task.holds_up(node, known, now))
    }

    /// Returns the pools of which the node's entry stays as it is. The node returns to the queue once their status is known.
    fn unsure_pools(&mut self, node: &str) -> BTreeSet<PoolKey> {
        let known = self.ipam_nodes.get(node);
        let unsure = self.pools.iter_mut().filter_map(|(key, task)| task.keeps_entry(node, known).then(|| key.clone()));
        unsure.collect()
    }

    /// Returns the due action on a node's IPAMNode, if any.
    fn wanted(&mut self, node: &str, clocks: Now) -> Option<NodeAction> {
        let now = clocks.instant;
        let unsure = self.unsure_pools(node);
        let mut blocks = self.blocks_of(node, &unsure, now);
        self.grant(node, &mut blocks, &unsure, clocks);
        let Some(known) = self.ipam_nodes.get(node) else {
            let request = self.recovery.request_to(node).cloned();
            return self.nodes.contains(node).then_some(NodeAction::Create { request });
        };
        let is_released = self.is_released_by_hand(node);
        let is_over = is_released || self.is_grace_over(node, now);
        let may_report_use = known.is_doubted && known.has_finalizer() && !is_over;
        let is_kept = !blocks.is_empty() || may_report_use || self.report_counts(node, known, now);
        let finalizers = known.finalizers_for(is_kept && self.settings.finalizers);
        let request = self.recovery.request_to(node).or(known.request.as_ref()).cloned();
        let is_as_wanted = blocks == known.blocks && finalizers == known.finalizers && request == known.request;
        // After a lost answer, the operator writes even an unchanged spec again. The answer shows whether the earlier write took effect.
        // The new version makes the earlier write fail from then on.
        if !is_as_wanted || known.write_in_flight {
            let version = known.resource_version.clone();
            let fence = known.write_in_flight.then(|| format!("{:016x}", self.random.u64(..)));
            return Some(NodeAction::Update { version, blocks, finalizers, request, fence });
        }
        let is_awaited = (self.is_awaited(node) && !is_released) || self.is_recorded(node);
        let ends = !self.nodes.contains(node) && !is_kept && !is_awaited && !known.deleting;
        ends.then(|| NodeAction::Delete(known.uid.clone(), known.resource_version.clone()))
    }

    /// Returns the entries that the node must have, in order. A new entry has an empty grant.
    fn blocks_of(&self, node: &str, unsure: &BTreeSet<PoolKey>, now: Instant) -> Vec<NodeBlock> {
        let known = self.ipam_nodes.get(node);
        let mut blocks = self.orphans(node, now);
        for (key, task) in &self.pools {
            match task.applied.as_ref().filter(|_| !unsure.contains(key)) {
                Some(applied) => blocks.extend(self.entry_of(node, key, applied)),
                None => blocks.extend(known.and_then(|known| known.told(key).or_else(|| known.block(key))).cloned()),
            }
        }
        sort(&mut blocks);
        blocks
    }

    /// Returns the node's entry of a pool. The entry of a block that the node loses stays until the status has released the block.
    fn entry_of(&self, node: &str, key: &PoolKey, applied: &Applied) -> Option<NodeBlock> {
        let given = applied.of(node)?;
        let known = self.ipam_nodes.get(node);
        let has_entry = || known.is_some_and(|known| known.block(key).is_some());
        let is_revoked = given.phase != BlockPhase::Active && applied.revoked.contains(node);
        // If there is no entry and the object is not fenced, a revoked entry is written. So a former leader's write of an entry fails.
        let is_fenced = known.is_none_or(|known| known.fenced);
        if is_revoked && !has_entry() && is_fenced {
            return None;
        }
        let mut block = entry(key, applied.pool.as_deref(), given, known);
        set_unavailable(&mut block, applied.unavailable_addresses.held.get(node).map_or(&[], Vec::as_slice));
        if is_revoked {
            block.state = BlockState::Revoked;
        } else if applied.unavailable_addresses.suspended.contains(node) && block.state == BlockState::Active {
            block.state = BlockState::Releasing;
        }
        Some(block)
    }

    /// Makes the missing grants of entries, except of `unsure` pools. An entry without a plan in force stays as it is, unless the status
    /// of an invalid pool has its block: such a pool is served as before.
    ///
    /// While recovery waits for reports, other nodes may use the addresses. Then no Active entry gets a new grant.
    fn grant(&mut self, node: &str, blocks: &mut Vec<NodeBlock>, unsure: &BTreeSet<PoolKey>, now: Now) {
        let (is_paused, has_no_agent) = (self.recovery.is_paused(), !self.may_have_agent(node));
        let second = u32::try_from(now.wall.as_second()).unwrap_or_default();
        let known = self.ipam_nodes.get(node);
        for block in blocks.iter_mut() {
            let key = key_of(block);
            if unsure.contains(&key) {
                continue;
            }
            let before = (block.grant.clone(), block.never_used);
            let Some(task) = self.pools.get(&key) else {
                // Only an entry with a grant can end.
                if block.grant.is_empty() {
                    block.grant = GrantId::new(second, self.random.u32(..)).to_string();
                }
                continue;
            };
            if task.applied.is_none() {
                if !task.serves_on(node, block) {
                    continue;
                }
                let used: Vec<AddrRange> = self.used_elsewhere(node, &key).chain(unavailable(block)).collect();
                set_unavailable(block, &used);
            }
            // A repeated write keeps its grant.
            let sent = self.ipam_nodes.sent(node, &key).filter(|sent| is_same_range(sent, block)).cloned();
            let is_unused = task.has_just_assigned(node) || has_no_agent;
            let random = &mut self.random;
            grant(block, known, sent.as_ref(), is_unused, |least| GrantId::new(second.max(least), random.u32(..)));
            if is_paused && block.state == BlockState::Active {
                (block.grant, block.never_used) = before;
            }
        }
        let is_there = |block: &NodeBlock| known.is_some_and(|known| known.block(&key_of(block)).is_some());
        blocks.retain(|block| !block.grant.is_empty() || is_there(block));
    }

    /// Addresses of the pool that other nodes report as in use outside their blocks.
    fn used_elsewhere(&self, node: &str, key: &PoolKey) -> impl Iterator<Item = AddrRange> {
        self.occupancy.outside_blocks(key).filter(move |fact| *fact.node != *node).map(|fact| fact.range)
    }

    /// Returns the entries of pools that do not exist: each was deleted in spite of its finalizer. Their addresses may be in use, and a
    /// pool that is created again must know that. So these blocks are released like others.
    fn orphans(&self, node: &str, now: Instant) -> Vec<NodeBlock> {
        let Some(known) = self.ipam_nodes.get(node) else { return Vec::new() };
        if self.orphan_expiry(node, now).is_some_and(|expiry| expiry <= now) {
            return Vec::new();
        }
        let is_unused = |block: &NodeBlock| known.is_unused(block) && !known.write_in_flight;
        let stays = |key: &PoolKey| !self.pools.contains_key(key) && (known.write_in_flight || !known.is_over(key));
        let told = known.intended_blocks.as_ref().unwrap_or(&known.blocks);
        let added = known.blocks.iter().filter(|block| known.told(&key_of(block)).is_none());
        let orphans = told.iter().chain(added).filter(|block| stays(&key_of(block)) && !is_unused(block));
        orphans.map(|block| NodeBlock { state: BlockState::Releasing, ..block.clone() }).collect()
    }

    /// Records since when entries have neither Node nor pool, and queues the node for the end of the grace.
    fn note_orphans(&mut self, node: &str, now: Instant) {
        let has_orphans = self
            .ipam_nodes
            .get(node)
            .is_some_and(|known| known.blocks.iter().any(|block| !self.pools.contains_key(&key_of(block))));
        if !has_orphans || self.nodes.contains(node) {
            self.orphaned.remove(node);
            return;
        }
        self.orphaned.entry(node.to_owned()).or_insert(now);
        if let Some(expiry) = self.orphan_expiry(node, now).filter(|expiry| *expiry > now) {
            self.queue.push_at(node, expiry);
        }
    }

    fn orphan_expiry(&self, node: &str, now: Instant) -> Option<Instant> {
        let grace = self.settings.released_block_grace?;
        let seen = self.absences.observed_at(node, grace, now);
        Some((*self.orphaned.get(node)? + grace).max(seen))
    }

    pub(super) fn settle_ipam_node(
        &mut self,
        write: &NodeWrite,
        result: Result<Option<NodeVersion>, CallError>,
        now: Instant,
    ) {
        self.metrics.ipam_node_written(&result);
        self.ipam_nodes.end_write(&write.node, result.is_ok());
        let had_error = self.queue.lasting_error(&write.node).is_some();
        match result {
            Ok(version) => {
                self.ipam_node_list.wrote(&write.node);
                self.ipam_node_is_written(write, version, now);
            }
            Err(error) => self.ipam_node_is_not_written(write, &error, now),
        }
        self.wake_pools_that_show(&write.node, had_error, now);
    }

    /// Wakes the pools with a block of the node if the node has an error to show that it had not before, or the other way round.
    fn wake_pools_that_show(&mut self, node: &str, had_error: bool, now: Instant) {
        if self.queue.lasting_error(node).is_some() != had_error {
            let is_of_node =
                |task: &&mut PoolTask| task.applied.as_ref().is_some_and(|applied| applied.of(node).is_some());
            self.pools.values_mut().filter(is_of_node).for_each(|task| task.due.wake(now));
        }
    }

    fn ipam_node_is_written(&mut self, write: &NodeWrite, version: Option<NodeVersion>, now: Instant) {
        let NodeWrite { node, action } = write;
        let creates = matches!(action, NodeAction::Create { .. });
        if creates {
            self.creation_succeeded(now);
        }
        if self.queue.succeed(node) && self.ipam_nodes.get(node).is_none() {
            // The written object may be deleted already. If the operator relied on it, the node would stay without its blocks.
            self.queue.push(node);
        } else {
            let is_kept = !matches!(action, NodeAction::Delete(..)) && !self.nodes.contains(node);
            let changes = self.ipam_nodes.get(node).is_none_or(|known| known.blocks != action.blocks());
            self.note_written(node, action, version);
            self.note_entries(node, None);
            if changes {
                self.wake_pools_that_await(node, now);
            }
            let can_be_revoked = self.loses_an_unused_grant(node);
            // If the blocks are unchanged, an earlier write whose answer was lost took no effect. The event of this write wakes nothing,
            // because its version is known by now. So the node is queued here.
            // A new IPAMNode gets its blocks, one without a Node may be deleted, and a grant may be revoked.
            if !changes || is_kept || creates || can_be_revoked {
                self.queue.push(node);
            }
        }
        self.wake_pools_that_wait_for(node, now);
    }

    /// Whether the node has an entry with a grant that is idle or was never used, and is to lose the block. The entry of a stale block is
    /// Active until the agent reports.
    fn loses_an_unused_grant(&self, node: &str) -> bool {
        let Some(known) = self.ipam_nodes.get(node) else { return false };
        let is_losing = |task: &PoolTask| {
            let given = task.applied.as_ref().and_then(|applied| applied.of(node));
            given.is_some_and(|given| given.phase != BlockPhase::Active)
        };
        let is_unused = |key: &PoolKey| {
            known.block(key).is_some_and(|entry| entry.state == BlockState::Active && known.is_unused(entry))
        };
        known.has_unused_releasing() || self.pools.iter().any(|(key, task)| is_losing(task) && is_unused(key))
    }

    fn ipam_node_is_not_written(&mut self, write: &NodeWrite, error: &CallError, now: Instant) {
        let node = &write.node;
        match error {
            CallError::Conflict(_) => tracing::debug!(%node, %error, "observing again"),
            // Each error of a node is logged once.
            CallError::CreateBlocked(_) | CallError::Failed(_) if self.queue.had_error(node, &error.to_string()) => {
                tracing::debug!(%node, %error, "IPAMNode not written");
            }
            CallError::CreateBlocked(_) | CallError::Failed(_) => tracing::warn!(%node, %error, "IPAMNode not written"),
        }
        if let CallError::CreateBlocked(why) = error {
            self.creation_blocked(*why, now);
        }
        let why = match error {
            CallError::Conflict(_) => None,
            CallError::CreateBlocked(_) | CallError::Failed(_) => Some(error.to_string()),
        };
        self.queue.fail(node, why, now);
    }

    /// Wakes the pools that wait for a report of the node's agent. They need none once the node has no entry.
    fn wake_pools_that_await(&mut self, node: &str, now: Instant) {
        let awaiting = self.pools.values_mut().filter(|task| task.awaits(node));
        awaiting.for_each(|task| task.due.wake(now));
    }

    /// Wakes the pools with a block of the node that is free now, because its grant is over or its entry is gone.
    pub(super) fn wake_pools_that_wait_for(&mut self, node: &str, now: Instant) {
        for (key, task) in &mut self.pools {
            let loses = |applied: &Applied| applied.of(node).is_some_and(|given| given.phase != BlockPhase::Active);
            let has_released = |known: &IpamNodeRecord| known.has_released(key);
            let is_free =
                || self.ipam_nodes.has_no_entry(node, key) || self.ipam_nodes.get(node).is_some_and(has_released);
            if task.applied.as_ref().is_some_and(loses) && is_free() {
                task.due.wake(now);
            }
        }
    }

    /// Records the result of a write of this leader, without waiting for the watch event.
    fn note_written(&mut self, node: &str, action: &NodeAction, version: Option<NodeVersion>) {
        // The watch reports when a deleted object is gone, which a finalizer of others may delay.
        let Some(version) = version else { return };
        let blocks = action.blocks().to_vec();
        let finalizers = match action {
            NodeAction::Update { finalizers, .. } => finalizers.clone(),
            NodeAction::Create { .. } | NodeAction::Delete(..) => Vec::new(),
        };
        let request = action.request().cloned();
        let NodeVersion { uid, resource_version, generation } = version;
        match self.ipam_nodes.get_mut(node) {
            Some(known) if known.uid == uid => {
                if !crate::objects::is_older(&resource_version, &known.resource_version) {
                    known.request = request;
                    known.written(resource_version, generation, blocks, finalizers);
                }
            }
            Some(_) => {}
            None => {
                let made = IpamNodeRecord {
                    uid,
                    generation,
                    resource_version,
                    blocks,
                    finalizers,
                    request,
                    is_doubted: self.is_awaited(node),
                    ..IpamNodeRecord::default()
                };
                drop(self.ipam_nodes.apply(node, made));
            }
        }
    }
}

impl PoolTask {
    /// Whether the spec is invalid, and the status has exactly this block for the node.
    fn serves_on(&self, node: &str, block: &NodeBlock) -> bool {
        let mut claims = self.record.status.allocations.iter();
        self.record.spec.is_err() && claims.any(|claim| claim.node == node && is_about(block, &claim.range))
    }
}

fn is_same_range(one: &NodeBlock, other: &NodeBlock) -> bool {
    (&one.start_ip, &one.end_ip) == (&other.start_ip, &other.end_ip)
}

/// Queues every node whose IPAMNode has an entry of the pool.
pub(super) fn queue_holders(queue: &mut NodeQueue, ipam_nodes: &IpamNodes, key: &PoolKey) {
    for (node, _) in ipam_nodes.all().iter().filter(|(_, record)| record.block(key).is_some()) {
        queue.push(node);
    }
}
