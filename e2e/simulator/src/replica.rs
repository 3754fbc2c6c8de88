//! One replica of the operator: the real state machine, the real election and the real calls. The simulator controls
//! everything around them: when a watch delivers events, when a call reaches the server, when its answer comes back, and
//! whether.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::PoolKind;
use ipam_operator::election::campaign::Next;
use ipam_reconciler::cluster_cache::NodeMeta;
use ipam_reconciler::metrics::Metrics;
use ipam_reconciler::objects::{NodeObject, RawObject};
use ipam_reconciler::reconcile::model::Model;
use ipam_reconciler::reconcile::{Command, Now, Observed, Outcome, Reconciler, Settings};
use kube::runtime::watcher::Event;
use serde::Deserialize as _;

use super::action::Fate;
use super::clock::Clock;
use super::election::{Election, Stepped};
use super::object::Object;
use super::server::{Change, Server, text};
use super::watch::{Told, Watch};
use super::wire::{Made, Wire};

/// The kinds that the operator watches, in the order of its watches.
const WATCHED: [&str; 4] = ["ippools", "cidrpools", "ipamnodes", "nodes"];

/// How long a leader itself must have seen a Node missing, if the grace is longer.
const OBSERVED: Duration = Duration::from_mins(5);
/// How far the wall clocks of two replicas are apart at most where blocks have a grace, and unless one is set.
const CLOCKS_APART: Duration = Duration::from_secs(40);

/// A running process.
pub(super) struct Replica {
    reconciler: Reconciler,
    controllers: Model,
    election: Election,
    wire: Wire,
    watches: Vec<Watch>,
    /// Calls on their way to the server, each with whether the replica led when it made it. A replica that does not lead
    /// sends nothing.
    sent: Vec<(Command, bool)>,
    /// Answers on their way back.
    answers: Vec<Outcome>,
    leading: bool,
    /// When its leadership ends, or last ended, by the simulator's clock.
    pub(super) led_until: Duration,
    /// How far this host's wall clock is off, in seconds.
    skew: i64,
    /// Until when the process is stopped (SIGSTOP), by the simulator's clock.
    pub(super) frozen_until: Duration,
    /// Steps that a process that slept through its deadline still does before its timer ends it.
    last_steps: u32,
    /// The grace: how long a Node must be gone before its block is released.
    grace: Option<Duration>,
    sight: Sight,
    /// The version up to which it has received all changes of Nodes.
    nodes_seen: u64,
    /// The same when it sent the first of the calls on their way.
    nodes_seen_by_calls: u64,
}

/// The result of making a call.
pub(super) struct Delivered {
    /// The call, if it is still on its way.
    pub(super) late: Option<Command>,
    /// Whether it was sent at all.
    pub(super) is_sent: bool,
}

/// The Nodes that a replica knows, and since when it has seen others missing.
#[derive(Default)]
struct Sight {
    /// Which watches have delivered a whole list since it leads.
    listed: [bool; WATCHED.len()],
    /// Since when it leads with all of them listed.
    since: Option<Duration>,
    nodes: BTreeSet<String>,
    gone: BTreeMap<String, Duration>,
}

impl Sight {
    fn note(&mut self, watch: usize, told: &Told, now: Duration) {
        match told {
            Told::Init => {
                self.listed[watch] = false;
                if watch == 3 {
                    (self.since, self.nodes, self.gone) = (None, BTreeSet::new(), BTreeMap::new());
                }
            }
            Told::Done => self.listed[watch] = true,
            Told::Listed(object) | Told::Changed(Change::Applied, object) if watch == 3 => {
                let name = text(object, "/metadata/name");
                self.gone.remove(&name);
                self.nodes.insert(name);
            }
            Told::Changed(Change::Deleted, object) if watch == 3 => {
                let name = text(object, "/metadata/name");
                // The watch may deliver it again.
                if self.nodes.remove(&name) {
                    self.gone.insert(name, now);
                }
            }
            Told::Listed(_) | Told::Changed(..) => {}
        }
        if self.listed.iter().all(|listed| *listed) {
            self.since.get_or_insert(now);
        }
    }
}

impl Replica {
    /// A process that has just started.
    pub(super) fn start(skew: i64, grace: Option<Duration>, seed: u64, wire: Wire, election: Election) -> Self {
        let settings = Settings { released_block_grace: grace, seed, ..Settings::default() };
        Self {
            reconciler: Reconciler::new(settings, Arc::new(Metrics::default())),
            controllers: Model::of_seed(seed),
            election,
            wire,
            watches: WATCHED.map(|plural| Watch::new(plural, None)).into(),
            sent: Vec::new(),
            answers: Vec::new(),
            leading: false,
            led_until: Duration::ZERO,
            skew,
            frozen_until: Duration::ZERO,
            last_steps: 3,
            grace,
            sight: Sight::default(),
            nodes_seen: 0,
            nodes_seen_by_calls: 0,
        }
    }

    /// The version up to which it had received all changes of Nodes when it decided on the oldest call on its way; without a call, up to now.
    /// `None` if it does not lead.
    pub(super) fn nodes_seen(&self) -> Option<u64> {
        let oldest = if self.sent.is_empty() { self.nodes_seen } else { self.nodes_seen_by_calls };
        self.leading.then_some(oldest)
    }

    /// The calls that it has sent and that may reach the server after its end, and the one about the Lease.
    pub(super) fn into_sent(self) -> (Vec<Command>, Option<Next>) {
        let sent = self.sent.into_iter().filter_map(|(command, leads)| leads.then_some(command));
        (sent.collect(), self.election.into_sent())
    }

    /// The wall clock jumps by this many seconds.
    pub(super) fn jump(&mut self, seconds: i64) {
        self.skew += seconds;
    }

    /// How long a Node must be gone before its block is released; `None` is never.
    pub(super) fn grace(&self) -> Option<Duration> {
        self.grace
    }

    /// Whether it leads and has seen the Node missing for so long that the grace can be over. Of a long grace, earlier leaders may have seen
    /// a part. `gone` is since when the Node is gone, by what leaders have recorded; `set_by` is by how much wall clocks were set. The Node may
    /// have returned while none led.
    pub(super) fn may_expire(&self, node: &str, gone: Option<Duration>, set_by: Duration, clock: Clock) -> bool {
        let leads = self.leading && self.leads_until().is_some_and(|until| until > clock.instant());
        let since = self.sight.gone.get(node).copied().max(self.sight.since);
        let is_missing = self.sight.since.is_some() && !self.sight.nodes.contains(node);
        let is_over = self.grace.zip(since).is_some_and(|(grace, since)| {
            let gone = gone.map(|gone| self.sight.gone.get(node).copied().unwrap_or(gone));
            let is_gone = gone.is_none_or(|gone| clock.elapsed + CLOCKS_APART + set_by >= gone + grace);
            is_gone && clock.elapsed >= since + grace.min(OBSERVED)
        });
        leads && is_missing && is_over
    }

    /// How its calls are made.
    pub(super) fn wire(&self) -> Wire {
        self.wire.clone()
    }

    /// Number of calls on their way.
    pub(super) fn calls(&self) -> usize {
        self.sent.len()
    }

    /// Whether an answer is on its way.
    pub(super) fn awaits(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether it leads, as far as it knows.
    pub(super) fn is_leading(&self) -> bool {
        self.leading
    }

    /// When its leadership ends, by its own clock. A stopped replica cannot know that it has lost the Lease.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.election.leads_until()
    }

    /// When the next step of its election is due.
    pub(super) fn next_campaign(&self) -> Duration {
        self.election.due()
    }

    /// Its election.
    pub(super) const fn election(&self) -> &Election {
        &self.election
    }

    /// When it has something to do, if no event comes before.
    pub(super) fn next_wake(&self, clock: Clock) -> Option<Duration> {
        self.controllers.next_due(&self.reconciler).map(|wake| wake.saturating_duration_since(clock.start))
    }

    /// Passes the keys that the state machine has woken to their Controllers.
    fn pass_on(&mut self, clock: Clock) {
        let now = self.now(clock);
        self.controllers.take_wakes(&mut self.reconciler, now);
    }

    fn now(&self, clock: Clock) -> Now {
        Now { instant: clock.instant(), wall: clock.wall(self.skew) }
    }

    /// Whether it has received the current state of all pools.
    pub(super) fn knows_pools(&self, server: &Server) -> bool {
        self.watches.iter().take(2).all(|watch| watch.is_current(server))
    }

    /// Whether no call is under way and no event is pending.
    pub(super) fn has_done_all(&self, server: &Server) -> bool {
        let told = self.watches.iter().all(|watch| watch.is_current(server));
        told && self.sent.is_empty() && self.answers.is_empty()
    }

    /// Whether the process ends now: it has led, and its time is over.
    pub(super) fn is_past_its_deadline(&mut self, clock: Clock) -> bool {
        // A replica that has read a Lease that another process released does not lead, and is about to write.
        let is_over = self.leads_until().map_or(!self.election.is_under_way(), |until| until <= clock.instant());
        let over = self.leading && is_over;
        if over && self.last_steps > 0 {
            self.last_steps -= 1;
            return false;
        }
        over
    }

    /// Delivers up to `count` events of one watch.
    pub(super) fn hear(&mut self, watch: usize, count: usize, server: &Server, clock: Clock) {
        let index = watch % WATCHED.len();
        for _ in 0..count {
            let Some(told) = self.watches[index].next(server) else { return };
            self.observe(index, told, clock);
        }
    }

    /// Delivers all pending events of a watch, but only the last of each object.
    pub(super) fn hear_last(&mut self, watch: usize, server: &Server, clock: Clock) {
        let index = watch % WATCHED.len();
        for told in self.watches[index].rest(server) {
            self.observe(index, told, clock);
        }
    }

    /// Delivers the last event of a watch again.
    pub(super) fn hear_again(&mut self, watch: usize, clock: Clock) {
        let index = watch % WATCHED.len();
        if let Some(told) = self.watches[index].repeat() {
            self.observe(index, told, clock);
        }
    }

    /// Whether it tracks missing Nodes: it leads, and has listed all kinds.
    pub(super) const fn sees_nodes(&self) -> bool {
        self.sight.since.is_some()
    }

    /// A watch breaks and lists again.
    pub(super) fn lose_watch(&mut self, watch: usize) {
        self.watches[watch % WATCHED.len()].expire();
    }

    /// The watch of Nodes returns an error. All missing Nodes count as missing only from now on.
    pub(super) fn watch_fails(&mut self, clock: Clock) {
        self.sight.since = self.sight.since.map(|_| clock.elapsed);
        self.reconciler.nodes_out_of_sight(clock.instant());
        self.pass_on(clock);
    }

    fn observe(&mut self, index: usize, told: Told, clock: Clock) {
        let now = clock.instant();
        self.sight.note(index, &told, clock.elapsed);
        if index == 3 && matches!(told, Told::Done | Told::Changed(..)) {
            self.nodes_seen = self.watches[index].version().unwrap_or(self.nodes_seen);
        }
        let observed = match index {
            0 => Observed::Pool(PoolKind::IpPool, raw(told)),
            1 => Observed::Pool(PoolKind::CidrPool, raw(told)),
            2 => Observed::IpamNode(raw(told)),
            _ => Observed::Node(event(told, &node)),
        };
        self.controllers.observe(&mut self.reconciler, observed, now);
        if self.reconciler.take_wish_for_lists() {
            self.watches.iter_mut().for_each(Watch::expire);
        }
        self.pass_on(clock);
    }

    /// Decides what is due, and sends the calls.
    pub(super) fn decide(&mut self, clock: Clock) {
        if self.leading {
            self.reconciler.on_lease_state(self.election.state(), clock.instant());
        }
        let leads = self.leads_until().is_some_and(|until| until > clock.instant());
        let now = self.now(clock);
        let commands = self.controllers.poll(&mut self.reconciler, now);
        self.pass_on(clock);
        drop(self.reconciler.take_events());
        tracing::debug!(leads = self.leading, lease = ?self.reconciler.lease_request(), ?commands, "decided");
        if self.sent.is_empty() {
            self.nodes_seen_by_calls = self.nodes_seen;
        }
        self.sent.extend(commands.into_iter().map(|command| (command, leads)));
        if self.leading {
            self.election.want(self.reconciler.lease_request(), clock);
        }
    }

    /// Delivers a call to the server, or does not. `None` if there is no call.
    pub(super) fn deliver(&mut self, call: usize, fate: Fate, clock: Clock) -> Option<Delivered> {
        let (command, _) = self.sent.remove(call.checked_rem(self.sent.len())?);
        let left = self.leads_until().and_then(|until| until.checked_duration_since(clock.instant()));
        let sent = command.clone();
        let Made { outcome, is_sent } = self.wire.make(command, fate, left);
        let late = (fate == Fate::Late && is_sent).then_some(sent);
        self.answers.push(outcome);
        Some(Delivered { late, is_sent })
    }

    /// Delivers an answer.
    pub(super) fn settle(&mut self, answer: usize, clock: Clock) {
        if !self.answers.is_empty() {
            let outcome = self.answers.remove(answer % self.answers.len());
            self.controllers.settle(&mut self.reconciler, outcome, clock.instant());
            self.pass_on(clock);
        }
    }

    /// Delivers all answers that are on their way.
    pub(super) fn settle_all(&mut self, clock: Clock) {
        for outcome in std::mem::take(&mut self.answers) {
            self.controllers.settle(&mut self.reconciler, outcome, clock.instant());
        }
        self.pass_on(clock);
    }

    /// Takes the next step of the election.
    pub(super) fn step_election(&mut self, fate: Fate, clock: Clock) -> Stepped {
        let stepped = self.election.step(&self.wire, fate, clock, clock.wall(self.skew));
        if self.leading {
            self.reconciler.on_lease_state(self.election.state(), clock.instant());
        }
        if let Some(until) = self.leads_until() {
            self.led_until = until.saturating_duration_since(clock.start);
            if !self.leading && until > clock.instant() {
                self.leading = true;
                self.sight = Sight::default();
                self.reconciler.lead(self.election.state(), clock.instant());
                self.watches.iter_mut().for_each(Watch::expire);
            }
        }
        self.pass_on(clock);
        stepped
    }

    /// Shuts down gracefully: returns the write that releases the Lease, if it has it.
    pub(super) fn release(&mut self, clock: Clock) -> Option<Next> {
        self.election.release(clock.wall(self.skew))
    }

    /// Makes the watches list again whose connection a restore has cut.
    pub(super) fn expire_watches(&mut self, server: &Server) {
        self.watches.iter_mut().for_each(|watch| watch.expire_if_restored(server));
    }
}

fn event<T>(told: Told, read: &dyn Fn(&Object) -> Option<T>) -> Event<T> {
    let all = |object: Arc<Object>, wrap: fn(T) -> Event<T>| read(&object).map_or(Event::Init, wrap);
    match told {
        Told::Init => Event::Init,
        Told::Done => Event::InitDone,
        Told::Listed(object) => all(object, Event::InitApply),
        Told::Changed(Change::Applied, object) => all(object, Event::Apply),
        Told::Changed(Change::Deleted, object) => all(object, Event::Delete),
    }
}

fn raw(told: Told) -> Event<RawObject> {
    event(told, &Object::raw)
}

fn node(object: &Object) -> Option<(String, NodeMeta)> {
    NodeObject::deserialize(&**object).ok().as_ref().map(NodeMeta::of)
}
