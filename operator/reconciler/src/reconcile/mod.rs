//! The operator as a state machine: events and outcomes of calls go in, calls to be made come out.
//!
//! It makes no call and is told the time, so that whole histories are tested without a server. What is to be done is a [`Key`]: a pool,
//! or the IPAMNode of a node. Whoever drives it takes the keys that are woken ([`Reconciler::take_wakes`]) and asks for the next
//! [`Step`] of each: in the operator these are kube-runtime's Controllers, in tests the [`model`] of what a Controller promises.
//!
//! What it holds to:
//! * Nothing is decided before every watch has seen a full list, and nothing at all by one who does not lead.
//! * One call per pool at a time. A status is sent with the resourceVersion that it was decided upon.
//! * An IPAMNode is derived only from statuses that we wrote, or that the API server confirmed to be current while we
//!   led; the entry of any other pool stays as it is.
//! * No change, no call.

mod beside;
mod block_log;
mod budget;
mod lifetime;
pub mod model;
mod node_queue;
mod node_writes;
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

use crate::absence::Absences;
pub use crate::calls::{
    CallError, Command, NodeAction, NodeVersion, NodeWrite, Outcome, PoolEvent, PoolPatch, PoolRef,
};
use crate::decide::{Decision, MetadataPatch, NoPlace, Note, Observation, decide};
use crate::given::{Wish, Word};
use crate::index::{IpamNodes, Map, NodeMeta, Nodes, Relist};
use crate::metrics::Metrics;
use crate::objects::RawObject;
use crate::pool::{FENCED_BY, FINALIZER, FORCE_RELEASE, Life, PoolRecord};
use budget::Budget;
use node_queue::NodeQueue;
use node_writes::queue_holders;
use pool_task::{Applied, Call, LIVELY, PoolTask, changed_nodes};
use recovery::Recovery;
pub use steps::{Key, Step};

/// Something that a watch tells.
#[derive(Debug)]
pub enum Observed {
    /// About a Node: its name, and what is kept of it.
    Node(Event<(String, NodeMeta)>),
    /// About a pool.
    Pool(PoolKind, Event<RawObject>),
    /// About an IPAMNode.
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

/// The event with something else in place of its object.
pub fn map_event<T, K>(event: &Event<T>, of: impl Fn(&T) -> K) -> Event<K> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
    }
}

/// The two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For pauses and deadlines.
    pub instant: Instant,
    /// For what people read.
    pub wall: Timestamp,
}

/// What an admin has set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a block waits for its agent's word once its Node is gone; `None` for ever.
    pub released_block_grace: Option<Duration>,
    /// Labels of the nodes that run an agent; empty if all do.
    pub agent_nodes: BTreeMap<String, String>,
    /// Bytes of pool statuses that may be written in a minute, over all pools.
    pub status_bytes_per_minute: u64,
    /// Seed of the random numbers in grant IDs. No two leaders may have the same.
    pub seed: u64,
}

/// Default of [`Settings::status_bytes_per_minute`]. With 5,000 nodes the statuses of 8 pools have 3 MB, so that a block of a burst of
/// joins waits for eight seconds at most.
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
    absences: Absences,
    ipam_nodes: IpamNodes,
    pools: BTreeMap<PoolKey, PoolTask>,
    node_list: Relist,
    ipam_node_list: Relist,
    pool_lists: BTreeMap<PoolKind, Relist>,
    queue: NodeQueue,
    /// Nodes that are gone and have entries of pools that are gone, too, and since when we know.
    orphaned: Map<String, Instant>,
    /// Nodes that are gone and have an IPAMNode, and since when we know.
    gone: Map<String, Instant>,
    /// Which node may use which addresses, by all records.
    occupancy: Occupancy,
    /// Pools of which a block has changed since the occupancy was brought up to date.
    changed_pools: BTreeSet<PoolKey>,
    /// Which reports are requested, and which blocks are reserved, because records are lost.
    recovery: Recovery,
    /// Whether it has to be settled which of the pools with the same addresses is served.
    overlaps_stale: bool,
    /// Why no IPAMNode can be made, as was told last.
    no_place: Option<NoPlace>,
    /// Until when pools that turn up take part in what follows a list of everything.
    lively_until: Option<Instant>,
    /// Whether everything is to be listed again.
    wants_lists: bool,
    /// Kubernetes Events to be published.
    events: Vec<PoolEvent>,
    /// How many calls about pools were begun.
    calls: u64,
    /// How much may be written.
    budget: Budget,
    leads: Leads,
    /// Whether no pool is looked at before the Lease says something else.
    waits_for_the_lease: bool,
    /// The last request for a write of the Lease.
    lease_write: u64,
    /// Makes grant IDs.
    random: fastrand::Rng,
    metrics: Arc<Metrics>,
}

impl Reconciler {
    /// One that knows nothing and does not lead.
    pub fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        let lists = [PoolKind::IpPool, PoolKind::CidrPool].map(|kind| (kind, Relist::default()));
        let budget = Budget::new(settings.status_bytes_per_minute);
        let random = fastrand::Rng::with_seed(settings.seed);
        Self {
            settings,
            nodes: Nodes::default(),
            absences: Absences::default(),
            ipam_nodes: IpamNodes::default(),
            pools: BTreeMap::new(),
            node_list: Relist::default(),
            ipam_node_list: Relist::default(),
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

    /// Whether every watch has seen a full list.
    pub fn is_synced(&self) -> bool {
        let ours = self.node_list.is_synced() && self.ipam_node_list.is_synced();
        ours && self.pool_lists.values().all(Relist::is_synced)
    }

    /// From now on we lead, by a Lease that says `word`: nothing read before counts, and every pool is looked at once all has been
    /// listed again. What a watch told before may lag behind the writes of the last leader, by any time.
    pub fn lead(&mut self, word: Word, now: Instant) {
        self.leads = Leads::Listing;
        self.lease_write = word.confirmed;
        self.start_over(now);
        self.begin_by(word.given);
        self.wants_lists = false;
    }

    /// Whether this process leads.
    fn is_leading(&self) -> bool {
        self.leads != Leads::No
    }

    /// Whether anything may be decided.
    ///
    /// A watch can list a restored backup before the leader notices. The restore also resets the Lease, so the next write of it fails.
    /// So the leader decides only after a write that began after the last list.
    fn decides(&self) -> bool {
        self.leads == Leads::Confirmed && self.is_synced()
    }

    /// What is wanted of the Lease.
    pub fn wants_of_lease(&self) -> Wish {
        Wish { given: Some(self.wants_lease_to_say()), confirm: self.lease_write }
    }

    /// The Lease is known to say this. What waited for it is looked at again.
    pub fn lease_says(&mut self, word: Word, now: Instant) {
        let is_confirmed = self.leads == Leads::Listed && word.confirmed >= self.lease_write;
        if is_confirmed {
            self.leads = Leads::Confirmed;
        }
        self.lease_gives(word.given);
        if is_confirmed {
            self.wake_all();
        }
        self.tend(now);
    }

    /// The API server has an earlier state than we know.
    fn went_back(&mut self, now: Instant) {
        self.reserve_all();
        self.start_over(now);
    }

    /// What is known is not what the API server has, such as after a restore: no decision before all is listed again. What
    /// was known stays as a guess for the lists to replace, whatever their versions.
    fn start_over(&mut self, now: Instant) {
        for list in [&mut self.node_list, &mut self.ipam_node_list].into_iter().chain(self.pool_lists.values_mut()) {
            list.expire();
        }
        self.absences.lose_sight();
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
        self.ipam_nodes.doubt_all();
        self.lively_until = Some(now + LIVELY);
        self.wants_lists = true;
        self.wake_pools(now);
    }

    /// Whether all watches are to begin again.
    pub fn wants_lists(&self) -> bool {
        self.wants_lists
    }

    /// Whether all watches are to begin again; asking takes the wish away.
    pub fn take_wish_for_lists(&mut self) -> bool {
        std::mem::take(&mut self.wants_lists)
    }

    /// Returns the Kubernetes Events to be published since the last time.
    pub fn take_events(&mut self) -> Vec<PoolEvent> {
        std::mem::take(&mut self.events)
    }

    /// Whether nothing is due, waiting or under way.
    pub fn is_idle(&self) -> bool {
        let is_idle = |task: &PoolTask| task.call.is_none() && task.due.at().is_none();
        let pools_idle = self.pools.values().all(is_idle);
        let trusts_lists = matches!(self.leads, Leads::No | Leads::Confirmed);
        pools_idle && trusts_lists && self.queue.is_empty() && !self.recovery.holds_calls()
    }

    /// The watch of Nodes fails. It may go on without a new list, so that it is not known who came and went meanwhile.
    pub fn nodes_out_of_sight(&mut self, now: Instant) {
        self.absences.lose_sight();
        self.keep_sight(now);
    }

    /// What happens to Nodes is missed while they are listed, and counts for nothing while another leads.
    fn keep_sight(&mut self, now: Instant) {
        if self.is_leading() && self.is_synced() && !self.node_list.is_under_way() {
            self.absences.keep_sight(now);
        } else {
            self.absences.lose_sight();
        }
    }

    /// Takes in what a watch tells.
    fn take_in(&mut self, event: Observed, now: Instant) {
        let was_synced = self.is_synced();
        let is_listed = matches!(event.keys(), Event::InitDone);
        match event {
            Observed::Node(event) => self.observe_node(event, now),
            Observed::Pool(kind, event) => self.observe_pool(kind, event, now),
            Observed::IpamNode(event) => self.observe_ipam_node(event, now),
        }
        self.note_occupancy(now);
        self.keep_sight(now);
        if is_listed && self.is_leading() && self.is_synced() {
            self.lease_write += 1;
            self.leads = Leads::Listed;
        }
        if !was_synced && self.is_synced() {
            self.wake_all();
        }
        self.tend(now);
    }

    /// Takes in what became of a call.
    pub fn settle(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Pool(pool, result) => self.settle_pool(&pool, result, now),
            Outcome::IpamNode(write, result) => self.settle_ipam_node(&write, result, now),
        }
        self.note_occupancy(now);
        self.tend(now);
    }

    fn look_at_pool(&mut self, key: &PoolKey, now: Now) -> Option<Command> {
        let beside = self.beside(key);
        let task = self.pools.get_mut(key)?;
        let (began, none) = (Instant::now(), BTreeSet::new());
        let decision = decide(&Observation {
            pool: &task.record,
            nodes: &self.nodes.refs(),
            leaving: self.nodes.leaving(),
            ipam_nodes: &self.ipam_nodes,
            occupancy: &self.occupancy,
            told: task.applied.as_ref().map(|applied| applied.assignments.as_slice()).unwrap_or_default(),
            just_assigned: task.applied.as_ref().map_or(&none, |applied| &applied.just_assigned),
            former: task.applied.as_ref().map(|applied| applied.elsewhere.former.as_slice()),
            beside: &beside,
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

    /// The call that `decision` asks for. Without a new status the version decided upon may still be an old one:
    /// unless it is known to be current, that is asked first.
    fn start_call(&mut self, key: &PoolKey, decision: Decision, now: Instant) -> Option<Command> {
        let task = self.pools.get_mut(key)?;
        let may_write = self.budget.urgent_at(now);
        if decision.status.is_some() && may_write > now {
            // All of it is decided again then. Whatever happens before joins in.
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
        let (let_go, elsewhere) = (decision.let_go, decision.elsewhere);
        // Only a status write of ours has assigned what was free.
        let just_assigned = if decision.status.is_some() { decision.just_assigned } else { BTreeSet::new() };
        let ended_pauses = self.recovery.ended_pauses();
        let applies = decision.assignments.map(|given| Applied {
            let_go,
            elsewhere,
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
            // What became of the last status is found out first: of one write at a time it may be unknown whether it was done.
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
        } else if applies.is_some() && task.unanswered.is_some() {
            // The status is right as it is. A write that was sent before must not change it later.
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
                // To have read back is no success of the write that is tried again now: its pauses go on to grow.
                if call.reads_back() {
                    task.due.by(now);
                } else {
                    task.backoff.reset();
                }
                self.succeed(pool, call, version, now);
            }
            // A version that is not the one decided upon: the watch is about to tell of it.
            Ok(_) => task.due.by(now + task.backoff.pause()),
            Err(error) => {
                let pause = task.backoff.pause();
                task.doubt(&mut call);
                match &error {
                    // The event that caused it brings what to decide upon next.
                    CallError::Conflict(_) => tracing::debug!(pool = %pool.key, %error, "observing again"),
                    CallError::NoPlace(_) | CallError::Failed(_) => {
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
            if task.unanswered.is_some() || !status.has_blocks_of(&task.record.status) {
                self.changed_pools.insert(pool.key.clone());
            }
            (task.record.status, task.unanswered) = (status, None);
            task.record.resource_version.clone_from(&version);
            task.written_at = Some(now);
            if task.record.life.deleting || !task.record.life.force_release.is_empty() {
                // Once it is said that nobody has a block any more, the finalizer goes; and the name that let go of one, with it.
                task.due.by(now);
            }
        }
        if let Some(patch) = call.patch {
            // What was to be done besides waits for this.
            note_patched(&mut task.record, &patch, &version);
            task.due.by(now);
            // An earlier write names another version.
            if task.unanswered.take().is_some() {
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

    /// Counts events about a pool, and has them published.
    fn note(&mut self, pool: &PoolRef, notes: impl Iterator<Item = Note>) {
        for note in notes {
            self.metrics.noted(&pool.key, note.reason);
            self.events.push(PoolEvent { pool: pool.clone(), note });
        }
    }

    /// From now on IPAMNodes are derived from this plan, and those that may differ are looked at. If a wait for reports has ended since it
    /// was made, the pool is decided again instead.
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

/// What `patch` means for a pool whose metadata says `life`.
fn change(life: &Life, patch: &MetadataPatch) -> PoolPatch {
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
