//! The loop around the state machine: watches and outcomes in, calls out, one thing at a time.
//!
//! Decides nothing. Calls run side by side; the machine says how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::stream::{BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::act::Actor;
use crate::election::Lead;
use crate::election::given::Mark;
use crate::metrics::Metrics;
use crate::reconcile::{Now, Outcome, Reconciler, Settings};
use crate::watch::Watched;

/// Events taken in before calls are looked for: a full list of 5,000 objects is not planned for in between.
const EVENTS_AT_ONCE: usize = 256;

/// Begins all watches anew, each with a list.
pub type Watches = Box<dyn Fn() -> SelectAll<BoxStream<'static, Watched>> + Send>;

/// A controller, ready to run.
pub struct Controller {
    reconciler: Reconciler,
    actor: Actor,
    watches: Watches,
    events: SelectAll<BoxStream<'static, Watched>>,
    calls: FuturesUnordered<BoxFuture<'static, Outcome>>,
    mark: Mark,
    synced: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Controller {
    /// One that acts through `actor` upon what `watches` tell, and by `mark` tells the next leader what was given. `synced` is set
    /// once every watch has seen a full list, and stays set: a watch that breaks is no reason to turn reviews away, which nobody
    /// else would answer, and what is acted upon from an old view is refused by its version.
    pub fn new(
        settings: Settings,
        actor: Actor,
        watches: Watches,
        mark: Mark,
        metrics: Arc<Metrics>,
        synced: Arc<AtomicBool>,
    ) -> Self {
        let reconciler = Reconciler::new(settings, metrics.clone());
        // A watch makes no call before it is polled, so that one who leads at once lists once.
        let events = watches();
        Self { reconciler, actor, watches, events, calls: FuturesUnordered::new(), mark, synced, metrics }
    }

    /// Runs until `stop`, then lets the calls under way end. Decides nothing until `lead` says that we lead; who
    /// has led ends with its lead.
    pub async fn run(mut self, mut lead: watch::Receiver<Lead>, stop: CancellationToken) {
        let mut leading = false;
        loop {
            if !leading && lead.borrow_and_update().holds(now()) {
                leading = true;
                self.metrics.leader(true);
                self.reconciler.lead(self.mark.word(), now());
                self.events = (self.watches)();
            }
            if self.reconciler.take_wish_for_lists() {
                tracing::warn!("the API server has an earlier state than was known: listing everything anew");
                self.events = (self.watches)();
            }
            self.start_calls(leading);
            // Looking at thousands of pools may take longer than the Lease bears: whoever shares the thread has its turn in between.
            tokio::task::yield_now().await;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(event) = self.events.next() => self.take(event),
                Some(outcome) = self.calls.next() => self.reconciler.settle(outcome, now()),
                () = sleep_until(self.reconciler.next_wake()) => {}
                () = self.mark.changed(), if leading => self.reconciler.lease_says(self.mark.word()),
                Ok(()) = lead.changed(), if !leading => {}
            }
        }
        while self.calls.next().await.is_some() {}
    }

    fn start_calls(&mut self, leading: bool) {
        if leading {
            // What the Lease says may have become less since the last call was decided upon.
            self.reconciler.lease_says(self.mark.word());
        }
        let clocks = Now { instant: now(), wall: Timestamp::now() };
        for command in self.reconciler.poll(clocks) {
            let actor = self.actor.clone();
            self.calls.push(async move { actor.perform(command).await }.boxed());
        }
        if leading {
            self.mark.want(self.reconciler.wants_of_lease());
        }
    }

    /// Takes in `event` and those that are there already.
    fn take(&mut self, event: Watched) {
        let mut next = Some(event);
        let mut room = EVENTS_AT_ONCE;
        while let Some(event) = next {
            match event {
                Ok(event) => self.reconciler.observe(event, now()),
                Err(watch) => {
                    self.metrics.watch_failed(watch);
                    if watch == crate::watch::NODES {
                        self.reconciler.nodes_out_of_sight(now());
                    }
                }
            }
            room -= 1;
            // What is taken from the stream must be taken in: nobody tells it again.
            next = if room == 0 { None } else { self.events.next().now_or_never().flatten() };
        }
        if !self.synced.load(Ordering::Relaxed) && self.reconciler.is_synced() {
            self.synced.store(true, Ordering::Relaxed);
            tracing::info!("caches are in sync");
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// The monotonic clock, which in tests is the paused one.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
