//! The operator as a state machine: its input is events and outcomes of calls, its output is the calls to make.
//!
//! It makes no call and gets the time as an argument, so tests play whole histories without a server. It reconciles a [`Key`]: a pool,
//! or the IPAMNode of a node. Its driver takes the woken keys ([`Reconciler::take_wakes`]) and requests the next [`Step`] of each.
//! In the operator the driver is kube-runtime's Controllers. In tests it is the `model` of what a Controller promises.
//!
//! Invariants:
//! * It decides only as the leader, after every watch has delivered a full list and the Lease was written after that.
//! * A pool has one call under way at a time. A status write names the resourceVersion that its decision is based on.
//! * An IPAMNode is derived only from statuses that this leader wrote, or that the API server confirmed as current while it led.
//!   Entries of other pools stay as they are.
//! * No change, no call.

mod block_history;
mod budget;
mod lifetime;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod node_queue;
mod node_writes;
mod other_pools;
mod pool_events;
mod pool_task;
mod pool_writes;
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
use crate::cluster_cache::{IpamNodes, ListSync, Map, NodeMeta, Nodes};
use crate::metrics::Metrics;
use crate::node_absence::NodeAbsences;
use crate::objects::{Kind, RawObject};
use budget::Budget;
use lifetime::NoPlace;
use node_queue::NodeQueue;
use pool_task::{LIVELY, PoolTask};
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
    /// The kind of its object.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Pool(kind, _) => Kind::Pool(*kind),
            Self::IpamNode(_) => Kind::IpamNode,
        }
    }

    /// The event with each object replaced by its key.
    pub fn keys(&self) -> Event<Key> {
        match self {
            Self::Node(event) => map_event(event, |(name, _)| Key::new(self.kind(), name)),
            Self::Pool(_, event) | Self::IpamNode(event) => {
                map_event(event, |object| Key::new(self.kind(), object.name()))
            }
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
    /// Whether finalizers keep pools and IPAMNodes that may be in use. Without them, a deleted object is gone at once.
    pub finalizers: bool,
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
            finalizers: true,
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
    /// Nodes that are missing for the grace, as it released a block of them.
    expired: BTreeSet<String>,
    /// Which node may use which addresses, by all records.
    occupancy: Occupancy,
    /// Pools whose blocks have changed since the last update of `occupancy`.
    changed_pools: BTreeSet<PoolKey>,
    /// Which reports are requested, and which blocks are reserved, because records are lost.
    recovery: Recovery,
    /// Whether the overlaps of pools must be computed again.
    overlaps_stale: bool,
    /// Whether IPAMNodes can be created, by the last creation.
    no_place: Option<NoPlace>,
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
            expired: BTreeSet::new(),
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
        pools_idle && trusts_lists && self.queue.is_empty() && self.recovery.held_calls() == 0
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

    fn wake_pools(&mut self, now: Instant) {
        for task in self.pools.values_mut() {
            task.due.wake(now);
        }
    }
}

#[cfg(test)]
mod tests;
