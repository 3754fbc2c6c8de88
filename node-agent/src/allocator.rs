//! The one owner of ledger and store.
//!
//! A thread of its own decides every request, makes a whole batch durable with one sync, and only then answers (group
//! commit). The runtime's thread is never blocked by a sync. Nobody else ever touches ledger or store.
//!
//! A request whose caller is gone before the decision changes nothing. After any failed write nothing is acknowledged any
//! more and the thread ends with the error; `main` ends the process with it.

mod commands;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use ipam_core::ledger::{Allocation, Change, GrantStep, Ledger, Owner, Refusal, Request, Reservation};
use ipam_core::{GrantId, NodePool, PoolKey};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::problem::Problem;
use commands::{Command, Deferred};
pub use commands::{Holdings, Source, Unlisted};
use ipam_node_store::{Room, Store, StoreError, payload_bytes, room_for_releases};

/// Requests that may wait; more are turned away, since a runtime that waits longer gives up anyhow.
const QUEUE: usize = 1024;
/// Requests decided together; bounds how long the first of them waits for the last.
const BATCH: usize = 256;
/// Reservations of one page; bounds how long a request waits for it.
const PAGE: usize = 256;

/// Tells the time in Unix seconds.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    Arc::new(|| jiff::Timestamp::now().as_second())
}

/// Why a request has no answer of the ledger.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The ledger says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal takes nothing for now; nothing was changed.
    #[error("{text}")]
    Store {
        /// One word, as in [`Problem`].
        reason: &'static str,
        /// What is wrong.
        text: String,
    },
    /// Too many requests wait.
    #[error("too many requests wait, try again")]
    Busy,
    /// The allocator has stopped, by shutdown or for a broken store.
    #[error("the agent is stopping, try again")]
    Stopped,
}

/// The way to the allocator's thread. Cheap to clone; the thread ends when all clones are gone, or one is told to [close](Self::close).
#[derive(Clone)]
pub struct Allocator {
    commands: mpsc::Sender<Command>,
    changed: watch::Receiver<u64>,
    full: watch::Receiver<Option<Problem>>,
}

/// How the thread ends: with the error of the store that ended it, if one did.
pub type Ended = oneshot::Receiver<Result<(), StoreError>>;

impl Allocator {
    /// Starts the thread with a ledger and the store that holds the same.
    pub fn start(
        ledger: Ledger,
        store: Box<dyn Store>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> io::Result<(Self, Ended)> {
        let (allocator, mut worker) = Self::inline(ledger, store, clock, metrics);
        let (ended, has_ended) = oneshot::channel();
        // A panic of the thread drops `ended`, which its receiver takes for a failure.
        let work = move || {
            let result = worker.run();
            // The store's lock is let go before anyone hears of the end, so that the next agent finds it free.
            drop(worker);
            drop(ended.send(result));
        };
        thread::Builder::new().name("allocator".to_owned()).spawn(work)?;
        Ok((allocator, has_ended))
    }

    /// The same without a thread: a request waits until the caller [plays](Worker::play) the worker.
    pub fn inline(ledger: Ledger, store: Box<dyn Store>, clock: Clock, metrics: Arc<Metrics>) -> (Self, Worker) {
        let (commands, queue) = mpsc::channel(QUEUE);
        let (versions, changed) = watch::channel(0);
        let (is_full, full) = watch::channel(None);
        let worker =
            Worker { ledger, store, clock, metrics, versions, full: is_full, queue, steps_wait: false, closed: false };
        worker.publish();
        (Self { commands, changed, full }, worker)
    }

    /// One address of each pool; returns when they are durable.
    pub async fn allocate(&self, request: Request) -> Result<Allocation, Failure> {
        self.ask(|reply| Command::Allocate { request, reply }).await?
    }

    /// Whether `owner` holds an address in each pool, and none but `expected` (when that is not empty).
    pub async fn check(&self, pools: Vec<PoolKey>, owner: Owner, expected: Vec<IpAddr>) -> Result<(), Failure> {
        self.ask(|reply| Command::Check { pools, owner, expected, reply }).await?
    }

    /// Gives back what `owner` holds in `pools`; returns how many addresses that were, when that is durable.
    pub async fn release(&self, pools: Vec<PoolKey>, owner: Owner) -> Result<usize, Failure> {
        self.ask(|reply| Command::Release { pools, owner, until: i64::MAX, reply }).await?
    }

    /// The same for what was allocated until then, in Unix seconds. Later allocations stay.
    pub async fn release_until(&self, pools: Vec<PoolKey>, owner: Owner, until: i64) -> Result<usize, Failure> {
        self.ask(|reply| Command::Release { pools, owner, until, reply }).await?
    }

    /// Gives back what a network holds beyond the attachments listed; returns how many addresses that were.
    pub async fn release_unlisted(&self, unlisted: &Unlisted) -> Result<usize, Failure> {
        let mut released = 0;
        let mut pages = self.pages();
        while let Some(mut page) = pages.next().await? {
            page.retain(|held| unlisted.has(held));
            if !page.is_empty() {
                released += self.release_stale(page).await?;
            }
        }
        Ok(released)
    }

    /// Gives back these reservations if they are still the same; returns how many were.
    pub async fn release_stale(&self, stale: Vec<Reservation>) -> Result<usize, Failure> {
        self.ask(|reply| Command::ReleaseStale { stale, reply }).await?
    }

    /// Sets the pools of this node. The steps of their grants are durable when it returns, unless the disk is full: then they
    /// wait for room. The `note` is durable together with these steps. Returns whether it is; on a full disk it is not.
    pub async fn configure(&self, pools: Vec<NodePool>, source: Source, note: Option<String>) -> Result<bool, Failure> {
        // Waits for a place instead of failing: a spec that is turned away would never be told again.
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Configure { pools, source, note, reply }).await.map_err(|_| Failure::Stopped)?;
        answer.await.map_err(|_| Failure::Stopped)
    }

    /// The API server has confirmed these grants. Those that wait for that allocate from now on; returns how many.
    pub async fn confirm(&self, grants: Vec<(PoolKey, GrantId)>) -> Result<usize, Failure> {
        self.ask(|reply| Command::Confirm { grants, reply }).await?
    }

    /// Of these grants, those that are confirmed and of which no address is in use become idle; returns how many. They allocate
    /// again only after another confirmation.
    pub async fn rest(&self, grants: Vec<(PoolKey, GrantId)>) -> Result<usize, Failure> {
        self.ask(|reply| Command::Rest { grants, reply }).await?
    }

    /// The API server has heard that these grants are idle or have ended, and the journal does not know it. They allocate nothing from
    /// now on; an idle one does once it is confirmed again.
    pub async fn withdraw(&self, steps: Vec<(PoolKey, GrantId, GrantStep)>) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Withdraw { steps, reply }).await.map_err(|_| Failure::Stopped)?;
        answer.await.map_err(|_| Failure::Stopped)
    }

    /// Ends the thread once what was asked before is answered; whoever asks later is told that it has stopped.
    pub async fn close(&self) {
        drop(self.commands.send(Command::Close).await);
    }

    /// All reservations at once, for a caller that needs them so.
    pub async fn reservations(&self) -> Result<Vec<Reservation>, Failure> {
        let (mut all, mut pages) = (Vec::new(), self.pages());
        while let Some(page) = pages.next().await? {
            all.extend(page);
        }
        Ok(all)
    }

    /// All reservations, in pages. A reservation that is made or ends meanwhile may be in a page or not.
    pub const fn pages(&self) -> Pages<'_> {
        Pages { allocator: self, behind: None, is_done: false }
    }

    /// What is held of each pool, all of it durable.
    pub async fn holdings(&self) -> Result<Holdings, Failure> {
        self.ask(|reply| Command::Holdings { reply }).await
    }

    /// Moves with every change of what is held or configured, and when the disk becomes full or has room again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Why the store takes no allocations: the disk is full, or the journal is damaged. `None` while it does. Moves with each change.
    pub fn full(&self) -> watch::Receiver<Option<Problem>> {
        self.full.clone()
    }

    /// Looks whether the disk has room for allocations, as each of them does.
    pub async fn look_for_room(&self) -> Result<(), Failure> {
        self.ask(|reply| Command::LookForRoom { reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(command(reply)).map_err(|error| match error {
            TrySendError::Full(_) => Failure::Busy,
            TrySendError::Closed(_) => Failure::Stopped,
        })?;
        answer.await.map_err(|_| Failure::Stopped)
    }
}

/// All reservations, by pool and address, in pages.
pub struct Pages<'a> {
    allocator: &'a Allocator,
    /// The last address of the page before.
    behind: Option<(PoolKey, IpAddr)>,
    is_done: bool,
}

impl Pages<'_> {
    /// The next page; `None` behind the last one.
    pub async fn next(&mut self) -> Result<Option<Vec<Reservation>>, Failure> {
        if self.is_done {
            return Ok(None);
        }
        let behind = self.behind.take();
        let page = self.allocator.ask(|reply| Command::Page { behind, reply }).await?;
        self.behind = page.last().map(|last| (last.pool.clone(), last.addr));
        self.is_done = page.len() < PAGE;
        Ok(Some(page))
    }
}

/// The owner of ledger and store. It decides the requests of its [`Allocator`]s in their order.
pub struct Worker {
    ledger: Ledger,
    store: Box<dyn Store>,
    clock: Clock,
    metrics: Arc<Metrics>,
    versions: watch::Sender<u64>,
    full: watch::Sender<Option<Problem>>,
    queue: mpsc::Receiver<Command>,
    /// Steps of grants wait for room on the disk.
    steps_wait: bool,
    /// A request to close was read; nothing after it is decided.
    closed: bool,
}

/// What a batch has decided and not yet told.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    /// What `changes` take in the payload of a record.
    bytes: usize,
    answers: Vec<Deferred>,
    configured: bool,
}

impl Worker {
    /// Decides and answers all requests that wait now. After an error the caller must drop the worker.
    ///
    /// # Errors
    /// The store failed.
    pub fn play(&mut self) -> Result<(), StoreError> {
        while !self.closed
            && let Ok(first) = self.queue.try_recv()
        {
            self.batch(first)?;
        }
        Ok(())
    }

    /// Whether the journal takes nothing but releases, which it forgets.
    pub fn is_waiting(&self) -> bool {
        self.store.is_waiting()
    }

    fn run(&mut self) -> Result<(), StoreError> {
        while !self.closed {
            let Some(first) = self.queue.blocking_recv() else { break };
            self.batch(first)?;
        }
        Ok(())
    }

    /// Decides the first request together with those that wait behind it.
    fn batch(&mut self, first: Command) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        self.show_queue();
        self.ledger.expire((self.clock)());
        let mut next = Some(first);
        while let Some(command) = next {
            if matches!(command, Command::Close) {
                self.closed = true;
                break;
            }
            let full = command.ends_batch() || batch.answers.len() + 1 >= BATCH;
            self.decide(command, &mut batch)?;
            next = if full { None } else { self.queue.try_recv().ok() };
        }
        self.finish(batch)?;
        self.show_queue();
        Ok(())
    }

    fn show_queue(&self) {
        self.metrics.queue.set(i64::try_from(self.queue.len()).unwrap_or(i64::MAX));
    }

    /// Decides one command. What it changes is in the ledger at once, so that the next one sees it, but is told to
    /// nobody before it is durable.
    fn decide(&mut self, command: Command, batch: &mut Batch) -> Result<(), StoreError> {
        if command.is_abandoned() {
            self.metrics.abandoned.inc();
            return Ok(());
        }
        if command.ends_batch() {
            self.step_grants(batch)?;
        }
        batch.configured |= matches!(command, Command::Configure { .. });
        let frees = command.frees();
        if matches!(command, Command::LookForRoom { .. }) {
            if self.store.is_waiting() {
                self.compact()?;
            }
            let room = self.room(1);
            self.make_room(batch.bytes, room)?;
        }
        let (changes, answer) = command.decide(&mut self.ledger, (self.clock)());
        let reserved = changes.iter().filter(|change| matches!(change, Change::Reserve { .. })).count();
        let room = if frees { Room::Release } else { self.room(reserved) };
        if self.store.is_waiting() && answer.allocates() {
            // What was read may not be on the disk, so that not even a repeated request may be told its address.
            let why = self.make_room(batch.bytes, self.room(1))?;
            batch.answers.push(if let Some(why) = why { answer.refused(&why) } else { answer });
            return Ok(());
        }
        let note = changes.iter().find(|change| matches!(change, Change::Note { .. })).cloned();
        let full = match self.add(batch, changes, room)? {
            // The grant waits for room, not for the API server.
            None if self.steps_wait && answer.waits_for_confirmation() => self.make_room(batch.bytes, self.room(1))?,
            full => full,
        };
        match full {
            None => batch.answers.push(answer),
            Some(why) => {
                self.count(&why);
                // The journal gets it with the next compaction, which must not write an earlier one.
                if let Some(note) = note {
                    self.ledger.apply(&note);
                }
                batch.answers.push(answer.refused(&why));
            }
        }
        Ok(())
    }

    /// Makes room for a record with `bytes` of payload. Otherwise returns why there is none.
    fn make_room(&mut self, bytes: usize, room: Room) -> Result<Option<StoreError>, StoreError> {
        match self.store.make_room(bytes, room) {
            Ok(()) => {
                // Room for a release alone does not mean that there is room for an allocation.
                if room != Room::Release && self.full.send_replace(None).is_some() {
                    info!("the journal takes records again: the agent serves ADD");
                    self.move_version();
                }
                Ok(None)
            }
            Err(error) => {
                let Some(problem) = Problem::of_store(&error) else { return Err(error) };
                if self.full.send_replace(Some(problem.clone())).is_none() {
                    warn!(reason = problem.reason, "{}", problem.sentence);
                    self.move_version();
                }
                Ok(Some(error))
            }
        }
    }

    /// Adds changes to the batch and records them in the ledger. If there is no room for them, nothing is changed, and the error says so.
    fn add(&mut self, batch: &mut Batch, changes: Vec<Change>, room: Room) -> Result<Option<StoreError>, StoreError> {
        if changes.is_empty() {
            return Ok(None);
        }
        let bytes = payload_bytes(&changes);
        if let Some(full) = self.make_room(batch.bytes + bytes, room)? {
            return Ok(Some(full));
        }
        batch.bytes += bytes;
        for change in &changes {
            self.ledger.apply(change);
        }
        batch.changes.extend(changes);
        Ok(None)
    }

    /// The room of a change that is no release. So many bytes stay that each address in use can be freed on a full disk, and `more` addresses.
    fn room(&self, more: usize) -> Room {
        let in_use = usize::try_from(self.ledger.in_use()).unwrap_or(usize::MAX);
        Room::Other { spare: room_for_releases(in_use.saturating_add(more)) }
    }

    /// Adds the steps of grants that follow from the batch. Without room on the disk they wait for the next batch, whatever that
    /// one changes.
    fn step_grants(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        let has_waited = std::mem::take(&mut self.steps_wait);
        let steps = self.ledger.grant_steps();
        if steps.is_empty() {
            return Ok(());
        }
        let room = self.room(0);
        if let Some(why) = self.add(batch, steps, room)? {
            self.steps_wait = true;
            if !has_waited {
                self.count(&why);
                warn!(
                    error = %why,
                    "the journal takes no records: the agent uses no new block and reports no released block as ended"
                );
            }
        }
        Ok(())
    }

    /// Counts what the disk had no room for. A damaged journal takes nothing however much room there is.
    fn count(&self, why: &StoreError) {
        if why.is_harmless() {
            self.metrics.store_full.inc();
        }
    }

    /// Makes the batch durable, then tells.
    fn finish(&mut self, mut batch: Batch) -> Result<(), StoreError> {
        if self.steps_wait || batch.configured || !batch.changes.is_empty() {
            self.step_grants(&mut batch)?;
        }
        if !batch.changes.is_empty() {
            let started = std::time::Instant::now();
            // Room was made before the decisions, so even a full disk at this point is unexpected, and final: the
            // ledger is ahead of the store.
            self.store.commit(&batch.changes)?;
            self.metrics.committed(batch.changes.len(), started.elapsed());
        }
        let changed = batch.configured || !batch.changes.is_empty();
        if changed {
            self.publish();
        }
        let position = self.store.position();
        let full = self.full.borrow().clone();
        batch.answers.into_iter().for_each(|answer| answer.tell(position, full.as_ref()));
        if changed && self.store.wants_compaction() {
            self.compact()?;
        }
        Ok(())
    }

    fn publish(&self) {
        self.metrics.set_usage(&self.ledger.usage());
        self.metrics.set_journal(self.store.position(), self.store.bytes());
        self.move_version();
    }

    fn move_version(&self) {
        self.versions.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// Writes the journal once more, as a snapshot. A journal that waits takes records from then on, if the disk does.
    fn compact(&mut self) -> Result<(), StoreError> {
        let is_waiting = self.store.is_waiting();
        match self.store.compact(&mut self.ledger.snapshot()) {
            Ok(()) => {
                self.metrics.compactions.inc();
                self.metrics.set_journal(self.store.position(), self.store.bytes());
                info!("journal compacted");
            }
            // The agent logs once why the journal waits: see `make_room`.
            Err(lack) if lack.is_harmless() && is_waiting => {}
            Err(lack) if lack.is_harmless() => warn!(error = %lack, "journal not compacted, going on with the old one"),
            Err(broken) => return Err(broken),
        }
        Ok(())
    }
}
