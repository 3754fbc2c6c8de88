//! One replica of the operator: the real state machine, the real election and the real calls, with everything around them
//! in the simulator's hand: when a watch tells, when a call reaches the server, when its answer comes back, and whether.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::PoolKind;
use ipam_operator::election::campaign::Next;
use ipam_reconciler::index::{CORDON, Labels, Leaving, NodeMeta};
use ipam_reconciler::metrics::Metrics;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::reconcile::model::Model;
use ipam_reconciler::reconcile::{Command, Now, Observed, Outcome, Reconciler, Settings};
use kube::runtime::watcher::Event;

use super::action::Fate;
use super::clock::Clock;
use super::election::{Election, Stepped};
use super::object::Object;
use super::server::{Change, Server, text};
use super::watch::{Told, Watch};
use super::wire::{Made, Wire};

/// The kinds that the operator watches, in the order of its watches.
const WATCHED: [&str; 4] = ["ippools", "cidrpools", "ipamnodes", "nodes"];

/// A running process.
pub(super) struct Replica {
    reconciler: Reconciler,
    controllers: Model,
    election: Election,
    wire: Wire,
    watches: Vec<Watch>,
    /// Calls on their way to the server, each with whether the replica led when it made it. One that does not lead sends nothing.
    sent: Vec<(Command, bool)>,
    /// Answers on their way back.
    answers: Vec<Outcome>,
    leading: bool,
    /// Until when it leads, or led at last, by the simulator's clock.
    pub(super) led_until: Duration,
    /// How far this host's wall clock is off, in seconds.
    skew: i64,
    /// Until when the process is stopped (SIGSTOP), by the simulator's clock.
    pub(super) frozen_until: Duration,
    /// Steps that a process which slept through its deadline still does before its timer ends it.
    last_steps: u32,
    /// After how long it lets time release the block of a Node that is gone.
    grace: Option<Duration>,
    sight: Sight,
}

/// What became of a call that was made.
pub(super) struct Delivered {
    /// The call, if it is still on its way.
    pub(super) late: Option<Command>,
    /// Whether it was sent at all.
    pub(super) is_sent: bool,
}

/// Which Nodes a replica has heard of, and since when it has seen others missing.
#[derive(Default)]
struct Sight {
    /// Which watches have told a whole list since it leads.
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
                // The watch may say it again.
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
        }
    }

    /// What it has sent and what may reach the server after its end, a call about the Lease apart.
    pub(super) fn into_sent(self) -> (Vec<Command>, Option<Next>) {
        let sent = self.sent.into_iter().filter_map(|(command, leads)| leads.then_some(command));
        (sent.collect(), self.election.into_sent())
    }

    /// The wall clock jumps by so many seconds.
    pub(super) fn jump(&mut self, seconds: i64) {
        self.skew += seconds;
    }

    /// After how long it lets time release the block of a Node that is gone; `None` is never.
    pub(super) fn grace(&self) -> Option<Duration> {
        self.grace
    }

    /// Whether it leads and has seen the Node missing for the grace.
    pub(super) fn may_expire(&self, node: &str, clock: Clock) -> bool {
        let leads = self.leading && self.leads_until().is_some_and(|until| until > clock.instant());
        let since = self.sight.gone.get(node).copied().max(self.sight.since);
        let is_missing = self.sight.since.is_some() && !self.sight.nodes.contains(node);
        let is_over = self.grace.zip(since).is_some_and(|(grace, since)| clock.elapsed >= since + grace);
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

    /// Whether it leads, as far as it knows.
    pub(super) fn is_leading(&self) -> bool {
        self.leading
    }

    /// Until when it leads, by its own clock. One that stands still does not know better.
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

    /// When it has something to do, if nothing happens before.
    pub(super) fn next_wake(&self, clock: Clock) -> Option<Duration> {
        self.controllers.next_due(&self.reconciler).map(|wake| wake.saturating_duration_since(clock.start))
    }

    /// The state machine has changed: the keys that it has woken go to their Controllers.
    fn pass_on(&mut self, clock: Clock) {
        let now = self.now(clock);
        self.controllers.take_wakes(&mut self.reconciler, now);
    }

    fn now(&self, clock: Clock) -> Now {
        Now { instant: clock.instant(), wall: clock.wall(self.skew) }
    }

    /// Whether it has heard of all pools as they are.
    pub(super) fn knows_pools(&self, server: &Server) -> bool {
        self.watches.iter().take(2).all(|watch| watch.is_current(server))
    }

    /// Whether nothing is under way or untold.
    pub(super) fn has_done_all(&self, server: &Server) -> bool {
        let told = self.watches.iter().all(|watch| watch.is_current(server));
        told && self.sent.is_empty() && self.answers.is_empty()
    }

    /// Whether the process ends now: it has led, and its time is over.
    pub(super) fn is_past_its_deadline(&mut self, clock: Clock) -> bool {
        // One that has read a Lease which another process released does not lead, and is about to write.
        let is_over = self.leads_until().map_or(!self.election.is_under_way(), |until| until <= clock.instant());
        let over = self.leading && is_over;
        if over && self.last_steps > 0 {
            self.last_steps -= 1;
            return false;
        }
        over
    }

    /// One watch tells up to `count` words.
    pub(super) fn hear(&mut self, watch: usize, count: usize, server: &Server, clock: Clock) {
        let index = watch % WATCHED.len();
        for _ in 0..count {
            let Some(told) = self.watches[index].next(server) else { return };
            self.observe(index, told, clock);
        }
    }

    /// A watch tells all there is, of each object only the last.
    pub(super) fn hear_last(&mut self, watch: usize, server: &Server, clock: Clock) {
        let index = watch % WATCHED.len();
        for told in self.watches[index].rest(server) {
            self.observe(index, told, clock);
        }
    }

    /// A watch says its last word again.
    pub(super) fn hear_again(&mut self, watch: usize, clock: Clock) {
        let index = watch % WATCHED.len();
        if let Some(told) = self.watches[index].repeat() {
            self.observe(index, told, clock);
        }
    }

    /// Whether it sees which Nodes are missing: it leads, and has listed all kinds.
    pub(super) const fn sees_nodes(&self) -> bool {
        self.sight.since.is_some()
    }

    /// A watch breaks and begins anew.
    pub(super) fn lose_watch(&mut self, watch: usize) {
        self.watches[watch % WATCHED.len()].expire();
    }

    /// The watch of Nodes is answered by an error. Whom it sees missing, it sees missing from now on.
    pub(super) fn watch_fails(&mut self, clock: Clock) {
        self.sight.since = self.sight.since.map(|_| clock.elapsed);
        self.reconciler.nodes_out_of_sight(clock.instant());
        self.pass_on(clock);
    }

    fn observe(&mut self, index: usize, told: Told, clock: Clock) {
        let now = clock.instant();
        self.sight.note(index, &told, clock.elapsed);
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

    /// Decides what is due; the calls are then on their way.
    pub(super) fn decide(&mut self, clock: Clock) {
        if self.leading {
            self.reconciler.lease_says(self.election.word(), clock.instant());
        }
        let leads = self.leads_until().is_some_and(|until| until > clock.instant());
        let now = self.now(clock);
        let commands = self.controllers.poll(&mut self.reconciler, now);
        self.pass_on(clock);
        drop(self.reconciler.take_events());
        tracing::debug!(leads = self.leading, lease = ?self.reconciler.wants_of_lease(), ?commands, "decided");
        self.sent.extend(commands.into_iter().map(|command| (command, leads)));
        if self.leading {
            self.election.want(self.reconciler.wants_of_lease(), clock);
        }
    }

    /// A call reaches the server, or does not. `None` if there is no call.
    pub(super) fn deliver(&mut self, call: usize, fate: Fate, clock: Clock) -> Option<Delivered> {
        let (command, _) = self.sent.remove(call.checked_rem(self.sent.len())?);
        let leads = self.leads_until().is_some_and(|until| until > clock.instant());
        let late = (fate == Fate::Late && leads).then(|| command.clone());
        let Made { outcome, is_sent } = self.wire.make(command, fate, leads);
        self.answers.push(outcome);
        Some(Delivered { late, is_sent })
    }

    /// An answer arrives.
    pub(super) fn settle(&mut self, answer: usize, clock: Clock) {
        if !self.answers.is_empty() {
            let outcome = self.answers.remove(answer % self.answers.len());
            self.controllers.settle(&mut self.reconciler, outcome, clock.instant());
            self.pass_on(clock);
        }
    }

    /// All answers that are on their way arrive.
    pub(super) fn settle_all(&mut self, clock: Clock) {
        for outcome in std::mem::take(&mut self.answers) {
            self.controllers.settle(&mut self.reconciler, outcome, clock.instant());
        }
        self.pass_on(clock);
    }

    /// The next step of the election.
    pub(super) fn step_election(&mut self, fate: Fate, clock: Clock) -> Stepped {
        let stepped = self.election.step(&self.wire, fate, clock, clock.wall(self.skew));
        if self.leading {
            self.reconciler.lease_says(self.election.word(), clock.instant());
        }
        if let Some(until) = self.leads_until() {
            self.led_until = until.saturating_duration_since(clock.start);
            if !self.leading && until > clock.instant() {
                self.leading = true;
                self.sight = Sight::default();
                self.reconciler.lead(self.election.word(), clock.instant());
                self.watches.iter_mut().for_each(Watch::expire);
            }
        }
        self.pass_on(clock);
        stepped
    }

    /// Stops in good order: the write that releases the Lease, if it has it.
    pub(super) fn release(&mut self, clock: Clock) -> Option<Next> {
        self.election.release(clock.wall(self.skew))
    }

    /// Watches whose connection a restore has cut begin anew.
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
    let name = object["metadata"]["name"].as_str()?.to_owned();
    let labels = object["metadata"]["labels"].as_object();
    let labels = labels.into_iter().flatten();
    let labels: Labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let cordoned = object["metadata"]["annotations"][CORDON] == "true";
    let leaving = if object["metadata"]["deletionTimestamp"].is_string() {
        Some(Leaving::Terminating)
    } else {
        cordoned.then_some(Leaving::Cordoned)
    };
    Some((name, NodeMeta { labels, leaving }))
}
