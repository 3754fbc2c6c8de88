//! Brings the node's blocks from its one IPAMNode object, or from disk, to the allocator.
//!
//! Decides which spec is in force. Watches exactly one object, by name; keeps the last good spec when the API server is
//! away or the object cannot be read, without limit of time unless an admin wants one; never takes away what pods hold. At a
//! start the copy on disk may be old: no new address is allocated before the API server has answered, or has failed to.
//! After that, the grants in the journal decide from which blocks the agent allocates.
//!
//! Without an IPAMNode object the node has no blocks: nothing is given until it is back, while DEL and CHECK are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::{Stream, StreamExt, stream};
use ipam_core::NodePool;
use ipam_core::node_pool::Pause;
use ipam_crds::{BlockState, IPAMNode, NodeBlock};
use kube::core::DeserializeGuard;
use kube::runtime::utils::ResetTimerBackoff;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Api, Client};
use tokio::sync::watch::Sender;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::allocator::{Allocator, Source};
use crate::blocks::{unsaved, usable};
use crate::contact::Offline;
use crate::identity::Identity;
use crate::lost::{Lost, withdrawn};
use crate::metrics::Metrics;
use crate::note::{Noted, Start, Subject};
use crate::problem::DAMAGED;
use crate::problem::Problem;
use crate::ready::Readiness;
use crate::reclaim::Reclaim;
use crate::spec::NodeSpec;
use crate::standing::Standing;

/// Longest time until the rest of a grace is recorded: a restart loses no more of it.
const RECORD_GRACE: Duration = Duration::from_hours(1);
/// Pause until the agent tries again to record what it could not record.
const RECORD_AGAIN: Duration = Duration::from_secs(2);
/// How long an agent that starts waits for the first word of the API server. One that is there answers in milliseconds, and
/// one that is not mostly refuses as fast; the blocks may have become another node's while the agent was away.
pub const FIRST_WORD: Duration = Duration::from_secs(2);

/// The spec that the allocator works with, as the status report tells it.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct InForce {
    /// The spec.
    pub spec: NodeSpec,
    /// The generation of this object up to which the disk knows it. A report is about no later one: a restart without the API
    /// server goes by the copy on disk, which may lack exclusions of a later spec.
    pub saved: Option<i64>,
    /// Why pods do not get all that it promises.
    pub problems: Vec<Problem>,
    /// Addresses that pods may use without a record.
    pub lost: Option<Lost>,
    /// The store, the machine and the boot.
    pub identity: Identity,
    /// The report that the API server has; `None` before it has shown the object to this process, and while the disk does not
    /// know what only that report tells.
    pub standing: Option<Standing>,
}

/// What a watch tells.
pub type Told = Result<Event<DeserializeGuard<IPAMNode>>, watcher::Error>;

/// Puts specs in force.
pub struct Blocks {
    allocator: Allocator,
    subject: Subject,
    readiness: Readiness,
    in_force: Sender<Option<InForce>>,
    /// What the API server, or at first the disk, said last.
    noted: Noted,
    /// What the journal has of it.
    durable: Noted,
    /// Whether the ledger notes what the journal has.
    is_recorded: bool,
    /// Whether `noted` is the copy from before the start.
    is_copy: bool,
    standing: Option<Standing>,
    /// Objects that the watch has delivered.
    arrivals: u64,
    /// The API server was away for longer than an admin allows.
    offline: bool,
    /// How long addresses that pods of another machine may use stay unavailable; `None` is without limit.
    grace: Option<Duration>,
    /// Until when the time is counted for which such addresses have been unavailable.
    counted: Instant,
    /// Addresses without a record that no pod has any more.
    reclaims: Option<mpsc::Receiver<Reclaim>>,
    /// How long nothing new is given from the copy on disk, for the API server may say otherwise; `None` once it was heard
    /// or missed.
    patience: Option<Duration>,
}

impl Blocks {
    /// Nothing is in force yet. `start` is what the journal has. `in_force` receives every change.
    pub fn new(allocator: Allocator, start: Start, readiness: Readiness, in_force: Sender<Option<InForce>>) -> Self {
        let Start { subject, noted, durable, is_recorded } = start;
        Self {
            allocator,
            subject,
            readiness,
            in_force,
            noted,
            durable,
            is_recorded,
            is_copy: true,
            standing: None,
            arrivals: 0,
            offline: false,
            grace: None,
            counted: Instant::now(),
            reclaims: None,
            patience: None,
        }
    }

    /// Addresses without a record become available as `reclaims` says.
    #[must_use]
    pub fn with_reclaims(self, reclaims: mpsc::Receiver<Reclaim>) -> Self {
        Self { reclaims: Some(reclaims), ..self }
    }

    /// Addresses that pods of another machine of this name may use become available after the agent has run for `grace`; never without
    /// one.
    #[must_use]
    pub fn with_grace(self, grace: Option<Duration>) -> Self {
        Self { grace, ..self }
    }

    /// Puts the recorded spec in force, if there is one. Nothing new is allocated from it before the API server has answered, or has
    /// failed to for `patience`.
    pub async fn load(&mut self, patience: Duration) {
        if self.noted.spec.generation.is_some() {
            info!(generation = self.noted.spec.generation, "using the blocks recorded last");
            self.patience = Some(patience);
            self.put().await;
        }
    }

    /// Puts what the API server has sent in force and records it.
    async fn tell(&mut self, noted: Noted) {
        log_changes(&self.noted.spec, &noted.spec);
        if self.noted.lost.is_some() && noted.lost.is_none() {
            info!("all addresses of the earlier report are available again");
        }
        self.noted = noted;
        self.put().await;
    }

    /// Why nothing is allocated from what is known.
    fn pause(&self) -> Option<Pause> {
        let starting = self.patience.map(|_| Pause::Starting);
        starting.or_else(|| self.offline.then_some(Pause::Offline))
    }

    async fn put(&mut self) {
        let (pools, problems) = usable(&self.noted, self.pause());
        for Problem { reason, sentence } in &problems {
            warn!(reason, problem = sentence, "a block cannot be used");
        }
        info!(generation = self.noted.spec.generation, pools = pools.len(), "blocks in force");
        self.configure(pools, problems).await;
        if let Some(Problem { reason, sentence }) = unsaved(&self.noted, &self.durable) {
            warn!(reason, problem = sentence, "the blocks are in force and not recorded");
        }
    }

    /// Tries again to record what could not be recorded.
    async fn put_again(&mut self) {
        let (pools, problems) = usable(&self.noted, self.pause());
        self.configure(pools, problems).await;
        if self.is_saved() {
            info!(generation = self.noted.spec.generation, "blocks recorded");
        }
    }

    /// Whether nothing is left to record.
    fn is_saved(&self) -> bool {
        self.is_recorded && self.durable == self.noted
    }

    /// Configures the allocator, and records what is not recorded yet.
    async fn configure(&mut self, pools: Vec<NodePool>, mut problems: Vec<Problem>) {
        let source = if self.is_copy { Source::Copy } else { Source::ApiServer(self.noted.spec.version()) };
        let note = (!self.is_saved()).then(|| self.subject.text(&self.noted));
        // An allocator that has stopped allocates nothing.
        let Ok(is_recorded) = self.allocator.configure(pools, source, note).await else { return };
        if is_recorded {
            self.durable = self.noted.clone();
            self.is_recorded = true;
        }
        problems.extend(unsaved(&self.noted, &self.durable));
        let Noted { spec, lost, identity, .. } = self.noted.clone();
        let (saved, standing) = (self.noted.generation_in(&self.durable), self.to_report_to());
        self.in_force.send_replace(Some(InForce { spec, saved, problems, lost, identity, standing }));
        self.readiness.blocks_are_known();
    }

    /// The report that another may take the place of.
    fn to_report_to(&self) -> Option<Standing> {
        // The report of an agent with a damaged journal keeps what the one before it has.
        let is_damaged = || self.allocator.full().borrow().as_ref().is_some_and(|problem| problem.reason == DAMAGED);
        self.standing.clone().filter(|_| self.noted.allows_a_report(&self.durable) || is_damaged())
    }

    /// Follows a stream of events of the one object until `stop`. With `limit`, nothing new is given while the API server
    /// is away for longer than that.
    pub async fn follow(
        mut self,
        events: impl Stream<Item = Told>,
        limit: Option<Offline>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) {
        let mut events = std::pin::pin!(events);
        let mut state = Following { listed: None, up: None, limit };
        let started = Instant::now();
        let mut reclaims = self.reclaims.take();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => event,
                () = tokio::time::sleep_until(started + self.patience.unwrap_or_default()), if self.patience.is_some() => {
                    self.go_on().await;
                    continue;
                }
                () = tokio::time::sleep(RECORD_AGAIN), if !self.is_saved() => {
                    self.put_again().await;
                    continue;
                }
                Some(reclaim) = next(&mut reclaims) => {
                    let noted = self.noted.clone().reclaimed(reclaim);
                    self.tell(noted).await;
                    continue;
                }
                () = self.end_of_grace() => {
                    let seconds = self.count();
                    self.tell(self.noted.clone().after(seconds)).await;
                    continue;
                }
                heard = turn(state.limit.as_mut(), self.offline) => {
                    self.set_offline(!heard).await;
                    continue;
                }
            };
            let Some(event) = event else { return };
            let was_away = state.up == Some(false);
            if state.heard(&event) {
                metrics.watch_up.set(i64::from(event.is_ok()));
                if event.is_ok() {
                    metrics.spec_received.set(jiff::Timestamp::now().as_second());
                }
                self.on_answer(event.is_ok(), was_away).await;
            }
            match event {
                Ok(event) => self.on_event(event, &mut state).await,
                Err(_) => self.go_on().await,
            }
        }
    }

    /// Waits until addresses of another machine are available, or until it is time to record how long they have been unavailable. A wall
    /// clock that is set ends no grace: only time in which this process runs counts.
    async fn end_of_grace(&self) {
        let Some(left) = self.noted.next_end() else { return std::future::pending().await };
        tokio::time::sleep_until(self.counted + Duration::from_secs(left).min(RECORD_GRACE)).await;
    }

    /// Whole seconds since the last call.
    fn count(&mut self) -> u64 {
        let seconds = self.counted.elapsed().as_secs();
        self.counted += Duration::from_secs(seconds);
        seconds
    }

    /// The API server was heard, or was missed.
    async fn on_answer(&mut self, is_heard: bool, was_away: bool) {
        if is_heard {
            self.set_offline(false).await;
        }
        if is_heard && was_away {
            // For those who wait between tries of their own.
            self.in_force.send_modify(|_| {});
        }
    }

    /// The API server says nothing better: the copy on disk is what the agent goes by.
    async fn go_on(&mut self) {
        if self.patience.take().is_some() {
            info!("no word of the API server, giving from the blocks saved last");
            self.put().await;
        }
    }

    async fn set_offline(&mut self, offline: bool) {
        if self.offline == offline {
            return;
        }
        self.offline = offline;
        if offline {
            warn!("the API server is away for longer than --offline-limit: nothing new is given until it is back");
        } else {
            info!("the API server is back, addresses are given again");
        }
        self.put().await;
    }

    async fn on_event(&mut self, event: Event<DeserializeGuard<IPAMNode>>, state: &mut Following) {
        let object = match event {
            Event::Init => {
                state.listed = None;
                return;
            }
            Event::InitApply(object) => {
                state.listed = Some(read(object));
                return;
            }
            Event::Apply(object) => read(object),
            Event::Delete(_) => Listed::Absent,
            Event::InitDone => state.listed.take().unwrap_or(Listed::Absent),
        };
        self.on_object(object).await;
    }

    async fn on_object(&mut self, object: Listed) {
        let spec = match object {
            Listed::Object(spec, standing) => {
                self.arrivals += 1;
                self.standing = Some(Standing { arrival: self.arrivals, ..*standing });
                spec
            }
            Listed::Absent => {
                self.standing = None;
                NodeSpec::default()
            }
            Listed::Unreadable(error) => {
                self.go_on().await;
                return warn!(error, "this node's IPAMNode cannot be read, serving what is known");
            }
        };
        let was_copy = std::mem::take(&mut self.is_copy);
        let (told, confirmed) = (self.in_force.borrow().is_some(), self.patience.take().is_some() || was_copy);
        let mut noted = self.noted.followed_by(spec).discarded_by(self.standing.as_ref());
        let found = self.noted.found(self.grace.map(|grace| grace.as_secs()));
        if let Some((found, standing)) = found.zip(self.standing.as_ref()) {
            // Grants that the report has as idle allocate nothing before they are confirmed again, and ended ones never again.
            drop(self.allocator.withdraw(withdrawn(standing, &found)).await);
            // What is found now is unavailable from now on.
            let seconds = self.counted.elapsed().as_secs();
            noted = noted.after(seconds).compared(Lost::find(standing, &found));
            self.counted += Duration::from_secs(seconds);
        }
        if !told || self.noted != noted {
            return self.tell(noted).await;
        }
        if confirmed {
            self.put().await;
        } else {
            let standing = self.to_report_to();
            self.in_force.send_if_modified(|in_force| match in_force {
                Some(in_force) if in_force.standing != standing => {
                    in_force.standing = standing;
                    true
                }
                _ => false,
            });
        }
    }
}

/// The next reclaim; `None` at once where none can come.
async fn next(reclaims: &mut Option<mpsc::Receiver<Reclaim>>) -> Option<Reclaim> {
    reclaims.as_mut()?.recv().await
}

/// Waits for what changes whether the agent is offline: `true` once the API server is heard, `false` after too long
/// without it. Without a limit, never.
async fn turn(limit: Option<&mut Offline>, offline: bool) -> bool {
    match limit {
        Some(limit) => limit.turn(offline).await,
        None => std::future::pending().await,
    }
}

/// Says which blocks came, went or changed.
fn log_changes(before: &NodeSpec, after: &NodeSpec) {
    let same_pool = |a: &NodeBlock, b: &NodeBlock| (a.pool_type, &a.name) == (b.pool_type, &b.name);
    for block in &after.blocks {
        let known = before.blocks.iter().find(|known| same_pool(known, block));
        if known == Some(block) {
            continue;
        }
        let what = match (known, block.state) {
            (None, BlockState::Active) => "block received",
            (_, BlockState::Releasing) => "block is Releasing, no new addresses are allocated from it",
            (_, BlockState::Revoked) => "block revoked",
            (Some(_), BlockState::Active) => "block changed",
        };
        let NodeBlock { name, grant, start_ip, end_ip, .. } = block;
        info!(pool = name, kind = ?block.pool_type, grant, start_ip, end_ip, generation = after.generation, "{what}");
    }
    for block in before.blocks.iter().filter(|block| !after.blocks.iter().any(|other| same_pool(block, other))) {
        let NodeBlock { name, grant, start_ip, end_ip, .. } = block;
        info!(pool = name, kind = ?block.pool_type, grant, start_ip, end_ip, generation = after.generation, "block removed");
    }
}

/// What the events so far have left to be done.
struct Following {
    /// The object, as far as the list under way has told.
    listed: Option<Listed>,
    /// Whether the API server answered last time; `None` if it was not yet asked.
    up: Option<bool>,
    limit: Option<Offline>,
}

impl Following {
    /// Notes whether the API server was heard. Returns whether the event tells that at all: the start of a list is told
    /// before anybody is asked.
    fn heard(&mut self, event: &Told) -> bool {
        match event {
            Ok(Event::Init) => return false,
            Err(error) => {
                if self.up == Some(false) {
                    debug!(%error, "still cannot watch this node's blocks");
                } else {
                    warn!(%error, "cannot watch this node's blocks, serving what is known");
                }
                self.limit.iter_mut().for_each(Offline::lost);
            }
            Ok(_) => {
                if self.up == Some(false) {
                    info!("watching this node's blocks again");
                }
                self.limit.iter_mut().for_each(Offline::heard);
            }
        }
        self.up = Some(event.is_ok());
        true
    }
}

enum Listed {
    Object(NodeSpec, Box<Standing>),
    Unreadable(String),
    Absent,
}

fn read(object: DeserializeGuard<IPAMNode>) -> Listed {
    match object.0 {
        Ok(object) => Listed::Object(NodeSpec::from(&object), Box::new(Standing::from(&object))),
        Err(error) => Listed::Unreadable(error.to_string()),
    }
}

/// The events of this node's object.
///
/// After an error, and at each signal of `relist`, the next watch begins with a list. While the API server was away, it may have been
/// restored to an earlier version. A watch that resumes would wait until the API server reaches its version, and show nothing until then.
pub fn events(client: Client, namespace: &str, node: &str, relist: Arc<Notify>) -> impl Stream<Item = Told> + use<> {
    let api: Api<DeserializeGuard<IPAMNode>> = Api::namespaced(client, namespace);
    let only_this = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let failed = Arc::new(AtomicBool::new(false));
    let mut pauses = pauses();
    let watch = move || {
        let pause = failed.swap(false, Ordering::Relaxed).then(|| pauses.next()).flatten();
        let waits = stream::iter(pause).then(tokio::time::sleep).filter_map(|()| std::future::ready(None));
        let (relist, fails, failed) = (Arc::clone(&relist), Arc::new(Notify::new()), Arc::clone(&failed));
        let until = {
            let fails = Arc::clone(&fails);
            async move {
                tokio::select! { () = relist.notified() => {}, () = fails.notified() => {} }
            }
        };
        let look = move |told: &Told| {
            if told.is_err() {
                failed.store(true, Ordering::Relaxed);
                fails.notify_one();
            }
        };
        waits.chain(watcher(api.clone(), only_this.clone())).inspect(look).take_until(Box::pin(until))
    };
    stream::repeat_with(watch).flatten()
}

/// Longest pause before the next watch, without jitter. Jitter makes a pause up to twice as long.
/// Where the API server refuses all calls, 5,000 agents make about 330 calls a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After so long without an error the pauses begin again with the shortest, as in client-go.
const PAUSES_RESET: Duration = Duration::from_mins(2);

/// Returns the pauses after errors. They grow whatever was heard in between: kube-runtime's own backoff begins again with each list that
/// is tried.
fn pauses() -> impl Iterator<Item = Duration> + use<> {
    let growing = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(800))
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter();
    ResetTimerBackoff::new(ExponentialBackoff::from(growing), PAUSES_RESET)
}
