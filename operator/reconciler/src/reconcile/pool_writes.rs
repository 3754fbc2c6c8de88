//! The calls for a pool: from a decision to the call that it needs, and from its outcome to the plan in force.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ipam_core::PoolKey;

use super::node_writes::queue_holders;
use super::pool_task::{Applied, Call, changed_nodes};
use super::timing::LASTING;
use super::{CallError, Command, Now, PoolPatch, PoolRef, PublishEvent, Reconciler, block_history};
use crate::decide::{Decision, DecisionInput, MetadataPatch, PoolEvent, decide};
use crate::pool::{FENCED_BY, FINALIZER, FORCE_RELEASE, PoolMetadata, PoolRecord};

impl Reconciler {
    pub(super) fn look_at_pool(&mut self, key: &PoolKey, now: Now) -> Option<Command> {
        let (other_pools, no_place) = (self.other_pools(key), self.no_place());
        let task = self.pools.get_mut(key)?;
        let (began, none) = (Instant::now(), BTreeSet::new());
        let waits_for_bytes = task.counts_turn.is_none() && self.budget.counts_at(now.instant) > now.instant;
        let decision = decide(&DecisionInput {
            pool: &task.record,
            nodes: &self.nodes.refs(),
            leaving: self.nodes.leaving(),
            ipam_nodes: &self.ipam_nodes,
            occupancy: &self.occupancy,
            told: task.applied.as_ref().map(|applied| applied.assignments.as_slice()).unwrap_or_default(),
            just_assigned: task.applied.as_ref().map_or(&none, |applied| &applied.just_assigned),
            previous_gateways: task
                .applied
                .as_ref()
                .map(|applied| applied.unavailable_addresses.previous_gateways.as_slice()),
            other_pools: &other_pools,
            grace: self.settings.released_block_grace,
            absences: &self.absences,
            no_place,
            write_error: &|node| self.queue.lasting_error(node).map(str::to_owned),
            finalizers: self.settings.finalizers,
            counts_due: task.counts_at(now.instant) <= now.instant && !waits_for_bytes,
            now: now.wall,
            instant: now.instant,
        });
        self.metrics.planned(key, began.elapsed());
        if let Some(count) = decision.duplicates {
            self.metrics.duplicate_addresses(key, count);
        }
        if decision.counts_deferred {
            // The pool is decided again at its turn, and not whenever other pools leave bytes.
            let bytes = || task.record.status.bytes(key.kind);
            task.counts_turn.get_or_insert_with(|| self.budget.take_counts(bytes(), now.instant));
            task.due.by(task.counts_at(now.instant));
        }
        if let Some(expires) = decision.expires {
            let wait = Duration::try_from(expires.duration_since(now.wall)).unwrap_or_default();
            task.due.by(now.instant + wait);
        }
        self.start_call(key, decision, now.instant)
    }

    /// Returns the call that `decision` needs. Without a new status, the version of the decision may be an old one. Unless it is
    /// known to be current, the call confirms it first.
    fn start_call(&mut self, key: &PoolKey, decision: Decision, now: Instant) -> Option<Command> {
        let task = self.pools.get_mut(key)?;
        if let Some(status) = decision.status.as_ref().filter(|_| !decision.only_counts) {
            let turn = *task.turn.get_or_insert_with(|| self.budget.take_turn(status.bytes(key.kind), now));
            if turn > now {
                // The pool is decided again then, with all events until then.
                let wait = turn.saturating_duration_since(now);
                tracing::info!(pool = %key, ?wait, "the status waits for bytes of --status-bytes-per-minute");
                task.not_before = Some(turn);
                task.due.by(turn);
                return None;
            }
        }
        for line in &decision.dropped {
            tracing::warn!(pool = %key, "record not honoured: {line}");
        }
        let record = &task.record;
        self.calls += 1;
        let call = self.calls;
        let (uid, resource_version) = (record.uid.clone(), record.resource_version.clone());
        let pool = PoolRef { key: key.clone(), uid, resource_version, call };
        let spec = record.spec.as_ref().ok().cloned();
        let (revoked, expired) = (decision.revoked, decision.expired);
        let unavailable_addresses = decision.unavailable_addresses;
        // Only a status write of this leader assigns a free block.
        let just_assigned = if decision.status.is_some() { decision.just_assigned } else { BTreeSet::new() };
        let ended_pauses = self.recovery.ended_pauses();
        let applies = decision.assignments.map(|given| Applied {
            revoked,
            expired,
            unavailable_addresses,
            just_assigned,
            ended_pauses,
            ..Applied::new(spec, given)
        });
        if let Some(patch) = decision.patch {
            let change = change(&record.life, &patch);
            // The events about the status come with it: the next decision has them again.
            let notes = decision.patch_notes;
            task.call = Some(Call { patch: Some(patch), notes, ..Call::new(call, now) });
            return Some(Command::PatchPool { pool, patch: change });
        }
        if task.doubt.is_some() {
            // This patch makes a new version, so that the last status write cannot take effect later. If it has taken effect, the patch
            // fails, and an event of the watch follows.
            let patch = MetadataPatch::Fence(format!("{:016x}", self.random.u64(..)));
            let change = change(&record.life, &patch);
            task.call = Some(Call { patch: Some(patch), ..Call::new(call, now) });
            Some(Command::PatchPool { pool, patch: change })
        } else if let Some(status) = decision.status {
            let sent = status.clone();
            let bytes = status.bytes(key.kind);
            let has_taken = task.counts_turn.take().is_some();
            if !decision.only_counts {
                task.turn = None;
            }
            match (has_taken, decision.only_counts) {
                (true, _) => {}
                (false, true) => drop(self.budget.take_counts(bytes, now)),
                (false, false) => self.budget.carry_counts(bytes, now),
            }
            if !status.has_blocks_of(&task.record.status) {
                self.changed_pools.insert(key.clone());
            }
            let notes = decision.notes;
            task.call = Some(Call { status: Some(status), bytes, applies, notes, ..Call::new(call, now) });
            Some(Command::WriteStatus { pool, status: sent })
        } else if applies.is_some() && !task.is_confirmed() {
            task.call = Some(Call { applies, ..Call::new(call, now) });
            Some(Command::Confirm { pool })
        } else {
            if let Some(applied) = applies {
                self.apply(key, applied, now);
            }
            None
        }
    }

    pub(super) fn settle_pool(&mut self, pool: &PoolRef, result: Result<String, CallError>, now: Instant) {
        let Some(task) = self.pools.get_mut(&pool.key).filter(|task| task.record.uid == pool.uid) else { return };
        let Some(mut call) = task.call.take_if(|call| call.id == pool.call) else { return };
        for node in std::mem::take(&mut call.held) {
            self.queue.push(&node);
        }
        self.metrics.called(&pool.key, &result, now.saturating_duration_since(call.began));
        match result {
            Ok(version) if call.writes() || version == pool.resource_version => {
                if let Some(list) = self.pool_lists.get_mut(&pool.key.kind).filter(|_| call.writes()) {
                    list.wrote(&pool.key.name);
                }
                task.not_before = None;
                // The write before it is retried now. It may fail again, so the pauses keep growing.
                if !call.is_fence() {
                    task.has_succeeded();
                }
                self.succeed(pool, call, version, now);
            }
            // The version is not the one of the decision. An event of the watch follows.
            Ok(_) => task.due.by(now + task.backoff.pause()),
            Err(error) => {
                let pause = task.backoff.pause();
                task.doubt(&mut call);
                match &error {
                    // The event of the other write causes the next decision.
                    CallError::Conflict(_) => tracing::debug!(pool = %pool.key, %error, "observing again"),
                    CallError::CreateBlocked(_) | CallError::Failed(_) => {
                        task.not_before = Some(now + pause);
                        tracing::warn!(pool = %pool.key, %error, ?pause, "call failed");
                    }
                }
                task.due.by(now + pause);
                if matches!(error, CallError::Failed(_)) {
                    task.errors = task.errors.saturating_add(1);
                    if task.errors >= LASTING {
                        self.note(pool, std::iter::once(PoolEvent::not_written()));
                    }
                }
            }
        }
        self.catch_up(&pool.key, now);
    }

    fn succeed(&mut self, pool: &PoolRef, call: Call, version: String, now: Instant) {
        let Some(task) = self.pools.get_mut(&pool.key) else { return };
        let mut changed = Vec::new();
        if let Some(status) = call.status {
            self.metrics.status_written(&pool.key, call.bytes);
            self.metrics.status(&pool.key, &status);
            changed = block_history::log(&pool.key, &task.record.status, &status, &self.metrics);
            if task.unacknowledged.is_some() || !status.has_blocks_of(&task.record.status) {
                self.changed_pools.insert(pool.key.clone());
            }
            (task.record.status, task.unacknowledged) = (status, None);
            task.record.resource_version.clone_from(&version);
            task.written_at = Some(now);
            let life = &task.record.life;
            if life.deleting || life.is_sealed() != self.settings.finalizers || !life.force_release.is_empty() {
                // After this status, the next decision may add or remove the finalizer, or remove node names from the force-release annotation.
                task.due.by(now);
            }
        }
        if let Some(patch) = call.patch {
            // The rest of the decision waited for this patch.
            note_patched(&mut task.record, &patch, &version);
            task.due.by(now);
            // An earlier write names another version, so it fails.
            if task.unacknowledged.take().is_some() {
                self.changed_pools.insert(pool.key.clone());
            }
        }
        task.confirmed = Some(version.clone());
        for node in task.end_doubt() {
            self.queue.push(&node);
        }
        let pool = PoolRef { resource_version: version, ..pool.clone() };
        self.note(&pool, call.notes.into_iter().chain(changed));
        if let Some(applied) = call.applies {
            self.apply(&pool.key, applied, now);
        }
    }

    /// Counts events about a pool, and queues them for publishing.
    pub(super) fn note(&mut self, pool: &PoolRef, notes: impl Iterator<Item = PoolEvent>) {
        for note in notes {
            self.metrics.noted(&pool.key, note.reason);
            self.events.push(PublishEvent { pool: pool.clone(), note });
        }
    }

    /// Derives IPAMNodes from this plan from now on, and queues the nodes whose IPAMNodes may differ. If a wait for reports has ended
    /// since the plan was made, the pool is decided again instead.
    pub(super) fn apply(&mut self, key: &PoolKey, mut new: Applied, now: Instant) {
        for node in std::mem::take(&mut new.expired) {
            self.grace_has_ended(&node);
        }
        let Some(task) = self.pools.get_mut(key) else { return };
        if new.ended_pauses != self.recovery.ended_pauses() {
            self.recovery.recorded(key, &new);
            task.due.wake(now);
            return;
        }
        if let Some(before) = &task.applied {
            new.follow(before);
        }
        if let Some(old) = task.applied.as_ref().filter(|old| old.is_of_the_spec_of(&new)) {
            for node in changed_nodes(&old.assignments, &new.assignments) {
                self.queue.push(node);
            }
            for node in old.specials(&new) {
                self.queue.push(node);
            }
        } else {
            let old = task.applied.iter().flat_map(|old| &old.assignments);
            for assignment in old.chain(&new.assignments) {
                self.queue.push(&assignment.node);
            }
            queue_holders(&mut self.queue, &self.ipam_nodes, key);
        }
        self.recovery.recorded(key, &new);
        task.kept_names.retain(|node| new.serves(node));
        task.applied = Some(new);
        task.keep_names(|node| self.recovery.request_to(node).is_some());
    }
}

/// Returns the call for `patch` on a pool with the metadata `life`.
fn change(life: &PoolMetadata, patch: &MetadataPatch) -> PoolPatch {
    let others = life.finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).cloned();
    match patch {
        MetadataPatch::Seal => PoolPatch::Finalizers(others.chain([FINALIZER.to_owned()]).collect()),
        MetadataPatch::Unseal => PoolPatch::Finalizers(others.collect()),
        MetadataPatch::Force(nodes) => {
            let named: Vec<&str> = nodes.iter().map(String::as_str).collect();
            PoolPatch::Annotation(FORCE_RELEASE, (!named.is_empty()).then(|| named.join(",")))
        }
        MetadataPatch::Fence(id) => PoolPatch::Annotation(FENCED_BY, Some(id.clone())),
    }
}

fn note_patched(record: &mut PoolRecord, patch: &MetadataPatch, version: &str) {
    if let MetadataPatch::Force(nodes) = patch {
        record.life.force_release.clone_from(nodes);
    } else if let PoolPatch::Finalizers(finalizers) = change(&record.life, patch) {
        record.life.finalizers = finalizers;
    }
    version.clone_into(&mut record.resource_version);
}
