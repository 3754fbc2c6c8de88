//! The operator as a state machine: its input is events and outcomes of calls, its output is the calls to make.
//!
//! It makes no call and gets the time as an argument, so tests play whole histories without a server. It reconciles a [`Key`]: a pool,
//! or the IPAMNode of a node. Its driver takes the woken keys ([`Reconciler::take_wakes`]) and requests the next [`Step`] of each.
//! In the operator the driver is kube-runtime's Controllers. In tests it is the [`model`] of what a Controller promises.
//!
//! Invariants:
//! * It decides only as the leader, after every watch has delivered a full list and the Lease was written after that.
//! * A pool has one call under way at a time. A status write names the resourceVersion that its decision is based on.
//! * An IPAMNode is derived only from statuses that this leader wrote, or that the API server confirmed as current while it led.
//!   Entries of other pools stay as they are.
//! * No change, no call.

mod block_log;
mod budget;
mod lifetime;
pub mod model;
mod node_queue;
mod node_writes;
mod other_pools;
mod pool_events;
mod pool_task;
mod recovery;
mod steps;
mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::{Occupancy, PoolKey, PoolKind};
use jiff::Timestamp;
use kube::runtime::watcher::Event;

use crate::allocation_state::{LeaseRequest, LeaseState};
pub use crate::calls::{
    CallError, Command, NodeAction, NodeVersion, NodeWrite, Outcome, PoolPatch, PoolRef, PublishEvent,
};
use crate::decide::{CreateBlocked, Decision, DecisionInput, MetadataPatch, PoolEvent, decide};
use crate::index::{IpamNodes, ListSync, Map, NodeMeta, Nodes};
use crate::metrics::Metrics;
use crate::node_absence::NodeAbsences;
use crate::objects::RawObject;
use crate::pool::{FENCED_BY, FINALIZER, FORCE_RELEASE, PoolMetadata, PoolRecord};
use budget::Budget;
use node_queue::NodeQueue;
use node_writes::queue_holders;
use pool_task::{Applied, Call, LIVELY, PoolTask, changed_nodes};
use recovery::Recovery;
pub use steps::{Key, Step};

/// An event of a watch.
#[derive(Debug)]
pub enum Observed {
    /// Of a Node: its name, and what the operator keeps of it.
    Node(Event<(String, NodeMeta)>),
    /// Of a pool.
    Pool(PoolKind, Event<RawObject>),
    /// Of an IPAMNode.
    IpamNode(Event<RawObject>),
}

impl Observed {
    /// The event with each object replaced by its key.
    fn keys(&self) -> Event<Key> {
        match self {
            Self::Node(event) => map_event(event, |(name, _)| Key::Node(name.clone())),
            Self::Pool(kind, event) => map_event(event, |object| Key::Pool(PoolKey::new(*kind, object.name()))),
            Self::IpamNode(event) => map_event(event, |object| Key::IpamNode(object.name().to_owned())),
        }
    }
}

/// Returns the event with `of` applied to its object.
pub fn map_event<T, K>(event: &Event<T>, of: impl Fn(&T) -> K) -> Event<K> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
    }
}

/// The time of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For pauses and deadlines.
    pub instant: Instant,
    /// For times in a status, the grace of a block, and grant IDs.
    pub wall: Timestamp,
}

/// The configuration of the reconciler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a block whose Node is gone waits for the agent's report; `None` for ever.
    pub released_block_grace: Option<Duration>,
    /// Labels of the nodes that run an agent; empty if all do.
    pub agent_nodes: BTreeMap<String, String>,
    /// Bytes of pool statuses that may be written in a minute, over all pools.
    pub status_bytes_per_minute: u64,
    /// Seed of the random numbers in IDs. No two leaders may have the same.
    pub seed: u64,
}

/// Default of [`Settings::status_bytes_per_minute`]. With 5,000 nodes the statuses of 8 pools have 3 MB. So a block in a burst of
/// joins waits for at most eight seconds.
pub const STATUS_BYTES_PER_MINUTE: u64 = 36_000_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            released_block_grace: Some(Duration::from_hours(24)),
            agent_nodes: BTreeMap::new(),
            status_bytes_per_minute: STATUS_BYTES_PER_MINUTE,
            seed: fastrand::u64(..),
        }
    }
}

/// Whether this process leads, and how far it is with its first lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leads {
    /// Another process leads, or none.
    No,
    /// Not every watch has listed.
    Listing,
    /// All watches have listed. A write of the Lease is awaited.
    Listed,
    /// The Lease was written after the last list.
    Confirmed,
}

/// The state machine.
#[derive(Debug)]
pub struct Reconciler {
    settings: Settings,
    nodes: Nodes,
    absences: NodeAbsences,
    ipam_nodes: IpamNodes,
    pools: BTreeMap<PoolKey, PoolTask>,
    node_list: ListSync,
    ipam_node_list: ListSync,
    pool_lists: BTreeMap<PoolKind, ListSync>,
    queue: NodeQueue,
    /// Nodes without a Node object whose IPAMNodes have entries of deleted pools, and since when this leader knows.
    orphaned: Map<String, Instant>,
    /// Nodes without a Node object that have an IPAMNode, or a kept or awaited report, and since when this leader knows.
    gone: Map<String, Instant>,
    /// Which node may use which addresses, by all records.
    occupancy: Occupancy,
    /// Pools whose blocks have changed since the last update of `occupancy`.
    changed_pools: BTreeSet<PoolKey>,
    /// Which reports are requested, and which blocks are reserved, because records are lost.
    recovery: Recovery,
    /// Whether the overlaps of pools must be computed again.
    overlaps_stale: bool,
    /// Why no IPAMNode can be created, by the last creation; `None` if one can.
    no_place: Option<CreateBlocked>,
    /// Until when a new pool writes counts more often, as all pools do after a list of everything.
    lively_until: Option<Instant>,
    /// Whether all watches must list again.
    wants_lists: bool,
    /// Kubernetes Events to be published.
    events: Vec<PublishEvent>,
    /// Number of calls about pools so far, which is the ID of the last one.
    calls: u64,
    /// How many bytes of statuses may be written.
    budget: Budget,
    leads: Leads,
    /// Whether no pool is decided before the Lease has another state.
    waits_for_the_lease: bool,
    /// Number of the last request for a write of the Lease.
    lease_write: u64,
    /// Makes the IDs of grants, report requests and fences.
    random: fastrand::Rng,
    metrics: Arc<Metrics>,
}

impl Reconciler {
    /// Returns a state machine without any object, which does not lead.
    pub fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        let lists = [PoolKind::IpPool, PoolKind::CidrPool].map(|kind| (kind, ListSync::default()));
        let budget = Budget::new(settings.status_bytes_per_minute);
        let random = fastrand::Rng::with_seed(settings.seed);
        Self {
            settings,
            nodes: Nodes::default(),
            absences: NodeAbsences::default(),
            ipam_nodes: IpamNodes::default(),
            pools: BTreeMap::new(),
            node_list: ListSync::default(),
            ipam_node_list: ListSync::default(),
            pool_lists: BTreeMap::from(lists),
            queue: NodeQueue::default(),
            orphaned: Map::default(),
            gone: Map::default(),
            occupancy: Occupancy::new(),
            changed_pools: BTreeSet::new(),
            recovery: Recovery::default(),
            overlaps_stale: false,
            no_place: None,
            lively_until: None,
            wants_lists: false,
            events: Vec::new(),
            calls: 0,
            budget,
            leads: Leads::No,
            waits_for_the_lease: false,
            lease_write: 0,
            random,
            metrics,
        }
    }

    /// Whether every watch has delivered a full list.
    pub fn is_synced(&self) -> bool {
        let ours = self.node_list.is_synced() && self.ipam_node_list.is_synced();
        ours && self.pool_lists.values().all(ListSync::is_synced)
    }

    /// Begins the leadership by a Lease with the state `word`. Earlier events may lag behind the writes of the last leader, by any
    /// time. So no earlier read counts, and each pool is decided only after all watches have listed again.
    pub fn lead(&mut self, word: LeaseState, now: Instant) {
        self.leads = Leads::Listing;
        self.lease_write = word.confirmed;
        self.start_over(now);
        self.begin_by(word.allocation);
        self.wants_lists = false;
    }

    /// Whether this process leads.
    fn is_leading(&self) -> bool {
        self.leads != Leads::No
    }

    /// Whether the state machine may decide.
    ///
    /// A watch can list a restored backup before the leader notices. The restore also resets the Lease, so the next write of it fails.
    /// So the leader decides only after a write that began after the last list.
    fn decides(&self) -> bool {
        self.leads == Leads::Confirmed && self.is_synced()
    }

    /// Returns the state that the Lease must have, and the last request for a write.
    pub fn lease_request(&self) -> LeaseRequest {
        LeaseRequest { allocation: Some(self.wanted_state()), confirm: self.lease_write }
    }

    /// Takes in the known state of the Lease, and wakes the keys that waited for it.
    pub fn on_lease_state(&mut self, word: LeaseState, now: Instant) {
        let is_confirmed = self.leads == Leads::Listed && word.confirmed >= self.lease_write;
        if is_confirmed {
            self.leads = Leads::Confirmed;
        }
        self.on_allocation_state(word.allocation);
        if is_confirmed {
            self.wake_all();
        }
        self.tend(now);
    }

    /// The API server is back in an earlier state: reserves all known blocks, and lists again.
    fn rolled_back(&mut self, now: Instant) {
        self.reserve_all();
        self.start_over(now);
    }

    /// Marks all known objects as untrusted, such as after a restore. The leader decides nothing before all watches have listed
    /// again. The lists replace the known objects, whatever their versions.
    fn start_over(&mut self, now: Instant) {
        for list in [&mut self.node_list, &mut self.ipam_node_list].into_iter().chain(self.pool_lists.values_mut()) {
            list.expire();
        }
        self.absences.reset();
        if self.leads == Leads::Listed {
            self.leads = Leads::Listing;
        }
        self.doubt_records();
        for task in self.pools.values_mut() {
            (task.confirmed, task.applied) = (None, None);
            for node in task.end_doubt() {
                self.queue.push(&node);
            }
            task.lively_until = Some(now + LIVELY);
            task.record.resource_version.clear();
        }
        self.ipam_nodes.invalidate_all();
        self.lively_until = Some(now + LIVELY);
        self.wants_lists = true;
        self.wake_pools(now);
    }

    /// Whether all watches must list again.
    pub fn wants_lists(&self) -> bool {
        self.wants_lists
    }

    /// Whether all watches must list again. Resets the flag.
    pub fn take_wish_for_lists(&mut self) -> bool {
        std::mem::take(&mut self.wants_lists)
    }

    /// Returns the Kubernetes Events to publish since the last call.
    pub fn take_events(&mut self) -> Vec<PublishEvent> {
        std::mem::take(&mut self.events)
    }

    /// Whether nothing is due, waiting or under way.
    pub fn is_idle(&self) -> bool {
        let is_idle = |task: &PoolTask| task.call.is_none() && task.due.at().is_none();
        let pools_idle = self.pools.values().all(is_idle);
        let trusts_lists = matches!(self.leads, Leads::No | Leads::Confirmed);
        pools_idle && trusts_lists && self.queue.is_empty() && !self.recovery.holds_calls()
    }

    /// The watch of Nodes failed. It may resume without a new list, so Nodes may have come and gone unseen.
    pub fn nodes_out_of_sight(&mut self, now: Instant) {
        self.absences.reset();
        self.resume(now);
    }

    /// Resumes or resets the observation of missing Nodes. A list does not show which Nodes came and went before it, and only a
    /// leader observes.
    fn resume(&mut self, now: Instant) {
        if self.is_leading() && self.is_synced() && !self.node_list.is_under_way() {
            self.absences.resume(now);
        } else {
            self.absences.reset();
        }
    }

    /// Takes in an event of a watch.
    fn take_in(&mut self, event: Observed, now: Instant) {
        let was_synced = self.is_synced();
        let is_listed = matches!(event.keys(), Event::InitDone);
        match event {
            Observed::Node(event) => self.observe_node(event, now),
            Observed::Pool(kind, event) => self.observe_pool(kind, event, now),
            Observed::IpamNode(event) => self.observe_ipam_node(event, now),
        }
        self.note_occupancy(now);
        self.resume(now);
        if is_listed && self.is_leading() && self.is_synced() {
            self.lease_write += 1;
            self.leads = Leads::Listed;
        }
        if !was_synced && self.is_synced() {
            self.wake_all();
        }
        self.tend(now);
    }

    /// Takes in the outcome of a call.
    pub fn settle(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Pool(pool, result) => self.settle_pool(&pool, result, now),
            Outcome::IpamNode(write, result) => self.settle_ipam_node(&write, result, now),
        }
        self.note_occupancy(now);
        self.tend(now);
    }

    fn look_at_pool(&mut self, key: &PoolKey, now: Now) -> Option<Command> {
        let other_pools = self.other_pools(key);
        let task = self.pools.get_mut(key)?;
        let (began, none) = (Instant::now(), BTreeSet::new());
        let decision = decide(&DecisionInput {
            pool: &task.record,
            nodes: &self.nodes.refs(),
            leaving: self.nodes.leaving(),
            ipam_nodes: &self.ipam_nodes,
            occupancy: &self.occupancy,
            told: task.applied.as_ref().map(|applied| applied.assignments.as_slice()).unwrap_or_default(),
            just_assigned: task.applied.as_ref().map_or(&none, |applied| &applied.just_assigned),
            former: task.applied.as_ref().map(|applied| applied.unavailable_addresses.former.as_slice()),
            other_pools: &other_pools,
            grace: self.settings.released_block_grace,
            absences: &self.absences,
            no_place: self.no_place,
            counts_due: task.counts_due(now.instant) && self.budget.counts_at(now.instant) <= now.instant,
            now: now.wall,
            instant: now.instant,
        });
        self.metrics.planned(key, began.elapsed());
        if let Some(count) = decision.duplicates {
            self.metrics.duplicate_addresses(key, count);
        }
        if decision.counts_deferred {
            task.due.by(task.counts_at(now.instant).max(self.budget.counts_at(now.instant)));
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
        let may_write = self.budget.urgent_at(now);
        if decision.status.is_some() && may_write > now {
            // The pool is decided again then, with all events until then.
            let wait = may_write.saturating_duration_since(now);
            tracing::info!(pool = %key, ?wait, "the status waits for bytes of --status-bytes-per-minute");
            task.not_before = Some(may_write);
            task.due.by(may_write);
            return None;
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
        let (revoked, unavailable_addresses) = (decision.revoked, decision.unavailable_addresses);
        // Only a status write of this leader assigns a free block.
        let just_assigned = if decision.status.is_some() { decision.just_assigned } else { BTreeSet::new() };
        let ended_pauses = self.recovery.ended_pauses();
        let applies = decision.assignments.map(|given| Applied {
            revoked,
            unavailable_addresses,
            just_assigned,
            ended_pauses,
            ..Applied::new(spec, given)
        });
        if let Some(patch) = decision.patch {
            let change = change(&record.life, &patch);
            task.call = Some(Call { patch: Some(patch), ..Call::new(call, now) });
            return Some(Command::PatchPool { pool, patch: change });
        }
        if decision.status.is_some() && task.doubt.is_some() {
            // The outcome of the last status write must be known first: at most one write may have an unknown outcome.
            task.call = Some(Call::new(call, now));
            Some(Command::Confirm { pool })
        } else if let Some(status) = decision.status {
            let sent = status.clone();
            let bytes = status.bytes(key.kind);
            self.budget.take(bytes, decision.only_counts, now);
            if !status.has_blocks_of(&task.record.status) {
                self.changed_pools.insert(key.clone());
            }
            let notes = decision.notes;
            task.call = Some(Call { status: Some(status), bytes, applies, notes, ..Call::new(call, now) });
            Some(Command::WriteStatus { pool, status: sent })
        } else if applies.is_some() && task.unacknowledged.is_some() {
            // The status is right already. This patch makes a new version, so that an earlier write cannot change the status later.
            let patch = MetadataPatch::Fence(format!("{:016x}", self.random.u64(..)));
            let change = change(&record.life, &patch);
            task.call = Some(Call { patch: Some(patch), ..Call::new(call, now) });
            Some(Command::PatchPool { pool, patch: change })
        } else if (applies.is_some() && !task.is_confirmed()) || task.doubt.is_some() {
            task.call = Some(Call { applies, ..Call::new(call, now) });
            Some(Command::Confirm { pool })
        } else {
            if let Some(applied) = applies {
                self.apply(key, applied, now);
            }
            None
        }
    }

    fn settle_pool(&mut self, pool: &PoolRef, result: Result<String, CallError>, now: Instant) {
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
                // A read back is not a success of the write that is retried now, so the pauses keep growing.
                if call.reads_back() {
                    task.due.by(now);
                } else {
                    task.backoff.reset();
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
            }
        }
        self.catch_up(&pool.key, now);
    }

    fn succeed(&mut self, pool: &PoolRef, call: Call, version: String, now: Instant) {
        let Some(task) = self.pools.get_mut(&pool.key) else { return };
        let mut changed = Vec::new();
        if let Some(status) = call.status {
            self.metrics.status_written(&pool.key, call.bytes);
            self.metrics.status(&pool.key, &task.record.status, &status);
            changed = block_log::log(&pool.key, &task.record.status, &status, &self.metrics);
            if task.unacknowledged.is_some() || !status.has_blocks_of(&task.record.status) {
                self.changed_pools.insert(pool.key.clone());
            }
            (task.record.status, task.unacknowledged) = (status, None);
            task.record.resource_version.clone_from(&version);
            task.written_at = Some(now);
            if task.record.life.deleting || !task.record.life.force_release.is_empty() {
                // After this status, the next decision may remove the finalizer, or node names from the force-release annotation.
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
    fn note(&mut self, pool: &PoolRef, notes: impl Iterator<Item = PoolEvent>) {
        for note in notes {
            self.metrics.noted(&pool.key, note.reason);
            self.events.push(PublishEvent { pool: pool.clone(), note });
        }
    }

    /// Derives IPAMNodes from this plan from now on, and queues the nodes whose IPAMNodes may differ. If a wait for reports has ended
    /// since the plan was made, the pool is decided again instead.
    fn apply(&mut self, key: &PoolKey, mut new: Applied, now: Instant) {
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
        task.applied = Some(new);
    }

    fn wake_pools(&mut self, now: Instant) {
        for task in self.pools.values_mut() {
            task.due.wake(now);
        }
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

#[cfg(test)]
mod tests;
