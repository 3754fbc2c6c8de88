//! The agent's process on one node: its real allocator on its real journal, and its real reporter and collector. A model
//! of its watch (`node-agent/src/watch.rs`) surrounds the real decisions about specs. The simulator controls disk and
//! time.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ipam_core::node_pool::Pause;
use ipam_core::{GrantId, NodePool, PoolKey};
use ipam_crds::{IPAMNode, NodeBlock};
use ipam_node_agent::allocator::{Allocator, Source, Worker};
use ipam_node_agent::blocks::{unsaved, usable};
use ipam_node_agent::gc::Observations;
use ipam_node_agent::identity::Identity;
use ipam_node_agent::lost::{Lost, withdrawn};
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::note::{Noted, Subject};
use ipam_node_agent::problem::Problem;
use ipam_node_agent::reclaim::{Reclaim, Sightings};
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::standing::Standing;
use ipam_node_agent::status::{Next, Outcome, Reports, Write};
use ipam_node_agent::watch::{FIRST_WORD, InForce};
use serde::Deserialize as _;
use tokio::sync::watch::Receiver;

use super::clock::Clock;
use super::disk::{Disk, OpenStore};
use super::inline::{self, StoreFailed};
use super::object::Object;
use super::server::Change;
use super::watch::{Told, Watch};

/// A running agent.
pub(super) struct Process {
    allocator: Allocator,
    worker: RefCell<Worker>,
    /// The store has failed, which ends the process.
    is_broken: Cell<bool>,
    metrics: Arc<Metrics>,
    /// Compactions of the journal that were counted.
    compactions: Cell<u64>,
    /// Changes with every change of what is in use or configured.
    changes: RefCell<Receiver<u64>>,
    /// What the garbage collection has counted.
    pub(super) observations: Observations,
    pub(super) sightings: Sightings,
    pub(super) in_force: Option<InForce>,
    pub(super) noted: Noted,
    subject: Subject,
    /// What the journal has of it.
    pub(super) durable: Noted,
    /// Whether the ledger notes what the journal has.
    is_recorded: bool,
    pub(super) watch: Watch,
    reports: RefCell<Reports>,
    /// Whether `noted` is the copy from before the start.
    is_copy: bool,
    standing: Option<Standing>,
    /// Objects that the watch has delivered.
    arrivals: u64,
    listed: Option<IPAMNode>,
    /// Until when nothing new is allocated from the copy on disk, while the first event is awaited; `None` once it came
    /// or is overdue.
    starting: Option<Duration>,
    /// When the next report is due, if it is known: to find out takes the whole report.
    due: Cell<Due>,
}

/// When a report is due, as far as it is known.
#[derive(Clone, Copy)]
enum Due {
    Unasked,
    Never,
    At(tokio::time::Instant),
}

/// When an agent is killed that processes an event of the watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Killed {
    /// Before the spec is recorded.
    BeforeSaving,
    /// When the spec is recorded, and before the reporter knows of it.
    BeforeItIsInForce,
}

/// The result of an event of the watch.
pub(super) enum Heard {
    /// Nothing is known yet.
    Nothing,
    /// A spec, and the agent is killed while it processes it.
    Killed,
    /// The object, or that it does not exist.
    Object,
    /// The object with this report, for the first time since the start: the agent has compared it with the journal.
    FirstReport(Box<Standing>),
}

impl Process {
    /// A process that starts with what is on `disk`; `Ok(None)` if it cannot. `wall` is the node's clock, in Unix seconds.
    ///
    /// # Errors
    /// The journal is not what the agent had acknowledged.
    pub(super) fn start(
        node: &str,
        disk: &mut Disk,
        here: Identity,
        wall: &Arc<AtomicI64>,
        clock: Clock,
    ) -> Result<Option<Self>, String> {
        let Some(OpenStore { ledger, journal, start }) = disk.open(node, here)? else { return Ok(None) };
        let wall = Arc::clone(wall);
        let wall = Arc::new(move || wall.load(Ordering::Relaxed));
        let metrics = Arc::new(Metrics::default());
        let (allocator, worker) = Allocator::inline(ledger, Box::new(journal), wall, Arc::clone(&metrics));
        let mut process = Self {
            metrics,
            compactions: Cell::new(0),
            changes: RefCell::new(allocator.changes()),
            allocator,
            worker: RefCell::new(worker),
            is_broken: Cell::new(false),
            observations: Observations::default(),
            sightings: Sightings::default(),
            in_force: None,
            noted: start.noted().clone(),
            durable: start.durable().clone(),
            is_recorded: start.is_recorded(),
            subject: start.subject().clone(),
            watch: Watch::new("ipamnodes", Some(node.to_owned())),
            reports: RefCell::new(Reports::new(clock.instant().into())),
            is_copy: true,
            standing: None,
            arrivals: 0,
            listed: None,
            starting: None,
            due: Cell::new(Due::Unasked),
        };
        if process.noted.spec.generation.is_some() {
            // An admin who restores a store makes sure that the API server is reachable.
            process.starting = Some(if disk.went_back() { Duration::MAX } else { clock.elapsed + FIRST_WORD });
            process.put(clock);
        }
        Ok(Some(process))
    }

    /// Sends a request to the allocator and runs it. Returns the answer, if there is one, and whether the store still works.
    pub(super) fn ask<T, F: Future<Output = T>>(
        &self,
        question: impl FnOnce(Allocator) -> F,
    ) -> (Option<T>, Result<(), StoreFailed>) {
        let (answer, works) = inline::ask(&mut self.worker.borrow_mut(), question(self.allocator.clone()));
        self.is_broken.set(self.is_broken.get() || works.is_err());
        (answer, works)
    }

    /// Whether the journal takes nothing but releases, which it forgets.
    pub(super) fn is_waiting(&self) -> bool {
        self.worker.borrow().is_waiting()
    }

    /// Whether the store has failed, so that the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.is_broken.get()
    }

    /// Compactions of the journal since the last call of this function.
    pub(super) fn compactions(&self) -> u64 {
        let now = self.metrics.compactions.get();
        now - self.compactions.replace(now)
    }

    /// A pool in force, Active or not: the agent must refuse by itself.
    pub(super) fn block(&self, pick: usize) -> Option<&NodeBlock> {
        let blocks = &self.in_force.as_ref()?.spec.blocks;
        blocks.get(pick.checked_rem(blocks.len())?)
    }

    /// The pools in force, with the grant of each.
    pub(super) fn grants(&self) -> Vec<(PoolKey, String)> {
        let blocks = self.in_force.iter().flat_map(|in_force| &in_force.spec.blocks);
        blocks.map(|block| (pool_of(block), block.grant.clone())).collect()
    }

    /// Whether the journal was compared with the report that the server had.
    pub(super) const fn has_compared(&self) -> bool {
        self.noted.uncompared.is_none()
    }

    /// When the next report is due.
    pub(super) fn due(&self, clock: Clock) -> Option<Duration> {
        let mut changes = self.changes.borrow_mut();
        if changes.has_changed().unwrap_or_default() {
            changes.mark_unchanged();
            self.due.set(Due::Unasked);
        }
        if matches!(self.due.get(), Due::Unasked) {
            self.due.set(match self.next(clock, 0) {
                Next::Wait => Due::Never,
                Next::At(due) => Due::At(due),
                Next::Rest(_) | Next::Write(_) => Due::At(clock.instant().into()),
            });
        }
        match self.due.get() {
            Due::At(due) => Some(due.into_std().saturating_duration_since(clock.start)),
            Due::Unasked | Due::Never => None,
        }
    }

    /// What the reporter does next. Like its own loop, it waits until the server has shown the object.
    pub(super) fn next(&self, clock: Clock, skew: i64) -> Next {
        let Some(in_force) = self.in_force.as_ref().filter(|it| it.standing.is_some()) else { return Next::Wait };
        let Some(Ok(holdings)) = self.ask(|allocator| async move { allocator.holdings().await }).0 else {
            return Next::Wait;
        };
        self.reports.borrow_mut().next(in_force, &holdings, clock.instant().into(), clock.wall(skew))
    }

    /// The write that is due.
    pub(super) fn write(&self, clock: Clock, skew: i64) -> Option<Write> {
        match self.next(clock, skew) {
            Next::Write(write) => Some(*write),
            Next::Wait | Next::At(_) | Next::Rest(_) => None,
        }
    }

    /// The grants that the reporter makes idle now. The caller must request that of the allocator.
    pub(super) fn to_rest(&self, clock: Clock) -> Option<Vec<(PoolKey, GrantId)>> {
        let Next::Rest(grants) = self.next(clock, 0) else { return None };
        self.due.set(Due::Unasked);
        self.reports.borrow_mut().rested(&grants);
        Some(grants)
    }

    /// Records that the write has ended, this long after it began.
    pub(super) fn ended(&mut self, write: Write, outcome: &Outcome, took: Duration, clock: Clock) {
        self.due.set(Due::Unasked);
        self.reports.borrow_mut().ended(write, outcome, (clock.instant() + took).into());
    }

    /// Uses the copy on disk if the first event is overdue.
    pub(super) fn goes_on(&mut self, clock: Clock) {
        if self.starting.take_if(|until| *until <= clock.elapsed).is_some() {
            self.put(clock);
        }
    }

    /// Processes an event of the watch; may be killed meanwhile.
    pub(super) fn hear(&mut self, told: Told, killed: Option<Killed>, clock: Clock) -> Heard {
        let object = match self.observe(told) {
            Known::NotYet => return Heard::Nothing,
            Known::Absent => None,
            Known::Object(object) => Some(*object),
        };
        self.see(object.as_ref());
        let spec = object.as_ref().map(NodeSpec::from).unwrap_or_default();
        let was_copy = std::mem::take(&mut self.is_copy);
        let confirmed = self.starting.take().is_some() || was_copy;
        let mut noted = self.noted.followed_by(spec).discarded_by(self.standing.as_ref());
        let first = self.noted.found(None).zip(self.standing.clone());
        if let Some((found, standing)) = &first {
            let steps = withdrawn(standing, found);
            drop(self.ask(|allocator| async move { allocator.withdraw(steps).await }));
            noted = noted.compared(Lost::find(standing, found));
        }
        if self.in_force.is_none() || self.noted != noted {
            self.noted = noted;
            if killed == Some(Killed::BeforeSaving) {
                return Heard::Killed;
            }
            let is_configured = self.configure();
            if killed == Some(Killed::BeforeItIsInForce) {
                return Heard::Killed;
            }
            if is_configured {
                self.publish(clock);
            }
        } else if confirmed {
            self.put(clock);
        } else {
            self.show(clock);
        }
        first.map_or(Heard::Object, |(_, standing)| Heard::FirstReport(Box::new(standing)))
    }

    /// Addresses without a record become available.
    pub(super) fn reclaim(&mut self, reclaim: Reclaim, clock: Clock) {
        self.noted = self.noted.clone().reclaimed(reclaim);
        self.put(clock);
    }

    /// Tries again to record what could not be recorded.
    pub(super) fn put_again(&mut self, clock: Clock) {
        if !self.is_saved() {
            self.put(clock);
        }
    }

    /// The object by the events of the watch, or that it does not exist, once that is known. Like the agent's own watch.
    fn observe(&mut self, told: Told) -> Known {
        match told {
            Told::Init => {
                self.listed = None;
                Known::NotYet
            }
            Told::Listed(object) => {
                self.listed = read(&object);
                Known::NotYet
            }
            Told::Done => self.listed.take().map_or(Known::Absent, |object| Known::Object(Box::new(object))),
            Told::Changed(Change::Applied, object) => {
                read(&object).map_or(Known::NotYet, |object| Known::Object(Box::new(object)))
            }
            Told::Changed(Change::Deleted, _) => Known::Absent,
        }
    }

    /// Records the report that the server shows.
    fn see(&mut self, object: Option<&IPAMNode>) {
        self.arrivals += u64::from(object.is_some());
        let standing = object.map(|object| Standing { arrival: self.arrivals, ..Standing::from(object) });
        self.standing = standing;
    }

    fn put(&mut self, clock: Clock) {
        if self.configure() {
            self.publish(clock);
        }
    }

    /// The pools of what is noted, and what is wrong with them.
    fn usable(&self) -> (Vec<NodePool>, Vec<Problem>) {
        usable(&self.noted, self.starting.map(|_| Pause::Starting))
    }

    /// Whether nothing is left to record.
    fn is_saved(&self) -> bool {
        self.is_recorded && self.durable == self.noted
    }

    /// Configures the allocator, and records what is not recorded yet. Returns whether the allocator still works.
    fn configure(&mut self) -> bool {
        let (pools, _) = self.usable();
        let source = if self.is_copy { Source::Copy } else { Source::ApiServer(self.noted.spec.version()) };
        let note = (!self.is_saved()).then(|| self.subject.text(&self.noted));
        let answer = self.ask(|allocator| async move { allocator.configure(pools, source, note).await }).0;
        let Some(Ok(is_recorded)) = answer else { return false };
        if is_recorded {
            self.durable.clone_from(&self.noted);
            self.is_recorded = true;
        }
        true
    }

    fn publish(&mut self, clock: Clock) {
        let (_, mut problems) = self.usable();
        problems.extend(unsaved(&self.noted, &self.durable));
        let spec = self.noted.spec.clone();
        let (saved, lost) = (self.noted.generation_in(&self.durable), self.noted.lost().cloned());
        let identity = self.noted.identity.clone();
        self.in_force = Some(InForce { spec, saved, problems, lost, identity, standing: self.to_report_to() });
        self.is_in_force(clock);
    }

    /// Puts another report of the same spec in force.
    fn show(&mut self, clock: Clock) {
        let standing = self.to_report_to();
        let Some(in_force) = self.in_force.as_mut().filter(|in_force| in_force.standing != standing) else { return };
        in_force.standing = standing;
        self.is_in_force(clock);
    }

    /// Notifies the reporter of what is in force, and that the server is reachable.
    fn is_in_force(&self, clock: Clock) {
        self.due.set(Due::Unasked);
        self.reports.borrow_mut().heard(clock.instant().into());
    }

    /// The report that another may replace.
    fn to_report_to(&self) -> Option<Standing> {
        self.standing.clone().filter(|_| self.noted.allows_a_report(&self.durable))
    }
}

/// What a watch has shown of the one object so far.
enum Known {
    NotYet,
    Absent,
    Object(Box<IPAMNode>),
}

fn read(object: &Object) -> Option<IPAMNode> {
    IPAMNode::deserialize(&**object).ok()
}

/// The pool of an entry.
pub(super) fn pool_of(block: &NodeBlock) -> PoolKey {
    PoolKey::new(block.pool_type.into(), block.name.clone())
}
