//! kube-runtime's Controllers around the state machine: events of the watches go in, and the keys that they wake are reconciled.
//!
//! | Controller of | reconciles |
//! | --- | --- |
//! | `IPPool`, `CIDRPool` | the pool: its finalizer and its status |
//! | `Node` | the IPAMNode of that name, while the Node exists |
//! | `IPAMNode` | the IPAMNode, once its Node is gone |
//!
//! All have one reconcile function. It gets the next step from the state machine, makes the call and returns the outcome, until no
//! step is left. It decides nothing.
//!
//! The state machine knows which keys an event concerns. So it gets each event before the Controllers, and names the keys to reconcile.
//! A Controller reconciles only keys in its store. The watches fill the stores with names alone, because the state machine has all else.
//! The end of a pause and the times of nodes have a timer here, because a node with neither object has no Controller that waits.
//!
//! Kubernetes Events are published independently of the Controllers, with one try each. No pool waits for the API server to store one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures::channel::mpsc::{self, UnboundedSender, unbounded};
use futures::future::{BoxFuture, join_all};
use futures::stream::{BoxStream, SelectAll, pending};
use futures::{FutureExt, StreamExt};
use ipam_core::PoolKind;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config, Error};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::api_writer::ApiWriter;
use crate::election::Leadership;
use crate::election::marker::MarkerHandle;
use crate::metrics::Metrics;
use crate::watch::Watched;
use ipam_reconciler::objects::{Kind, RawObject};
use ipam_reconciler::reconcile::{Key, Now, Observed, PublishEvent, Reconciler, Settings, Step, map_event};

/// Pools of one kind reconciled at one time. Without this limit, the calls of thousands of pools would keep the API server busy for
/// longer than the renew deadline of the Lease.
const POOLS_AT_ONCE: u16 = 16;
/// IPAMNodes reconciled at one time.
const NODES_AT_ONCE: u16 = 48;
/// The Controllers, and how many objects each reconciles at one time.
const CONTROLLERS: [(Kind, u16); 4] = [
    (Kind::Pool(PoolKind::IpPool), POOLS_AT_ONCE),
    (Kind::Pool(PoolKind::CidrPool), POOLS_AT_ONCE),
    (Kind::IpamNode, NODES_AT_ONCE),
    (Kind::Node, NODES_AT_ONCE),
];
/// Watch events taken in before other tasks get a turn.
const EVENTS_AT_ONCE: usize = 256;
/// Kubernetes Events that wait to be published, as many as client-go keeps. Further ones are dropped.
const MOST_PENDING: usize = 1000;
/// Kubernetes Events published at one time.
const PUBLISHED_AT_ONCE: usize = 4;

/// Starts all watches, each with a list.
pub type Watches = Box<dyn Fn() -> SelectAll<BoxStream<'static, Watched>> + Send>;

/// The Controllers of one process, ready to run.
pub struct Controllers {
    shared: Arc<Shared>,
    watches: Watches,
    marker: MarkerHandle,
    pending: mpsc::Receiver<PublishEvent>,
}

/// What the reconcile functions share.
struct Shared {
    state: Mutex<State>,
    actor: ApiWriter,
    metrics: Arc<Metrics>,
    /// Wakes the loop of [`Controllers::run`]: it has something else to do or to wait for.
    loop_wake: Notify,
    /// Cancelled when no further call is to be made.
    ends: CancellationToken,
}

struct State {
    reconciler: Reconciler,
    marker: MarkerHandle,
    /// Where woken keys go; `None` while this process does not lead.
    wakes: Option<Wakes>,
    /// Where Kubernetes Events go that are to be published.
    pending: mpsc::Sender<PublishEvent>,
    /// When the timer of the state machine ends.
    next_tick: Option<Instant>,
}

impl Controllers {
    /// Returns Controllers that call the API server through `actor`, read `watches`, and pass the allocation state to the next leader
    /// through `marker`. They reconcile nothing before every watch has delivered a full list. The API server refuses a write that is based
    /// on an old version.
    pub fn new(
        settings: Settings,
        actor: ApiWriter,
        watches: Watches,
        marker: MarkerHandle,
        metrics: Arc<Metrics>,
    ) -> Self {
        let reconciler = Reconciler::new(settings, metrics.reconciler.clone());
        let (sender, pending) = mpsc::channel(MOST_PENDING);
        let state =
            Mutex::new(State { reconciler, marker: marker.clone(), wakes: None, pending: sender, next_tick: None });
        let shared = Shared { state, actor, metrics, loop_wake: Notify::new(), ends: CancellationToken::new() };
        Self { shared: Arc::new(shared), watches, marker, pending }
    }

    /// Runs until `stop`, then waits for the calls under way. Reconciles nothing until this process leads, by `lead`. A process that
    /// loses its leadership ends.
    pub async fn run(mut self, mut lead: watch::Receiver<Leadership>, stop: CancellationToken) {
        // A watch makes no call before it is polled. So a process that leads at once lists once.
        let mut events = (self.watches)();
        while !lead.borrow_and_update().holds(now()) {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = events.next() => self.shared.take(event, &mut events, None),
                Ok(()) = lead.changed() => {}
            }
        }
        self.shared.metrics.leader(true);
        let state = self.marker.state();
        self.shared.with(|reconciler, now| reconciler.lead(state, now.instant));
        let (mut stores, wakes, mut controllers) = begin(&self.shared);
        let mut publishing = publish(self.shared.clone(), self.pending);
        self.shared.lock().wakes = Some(wakes);
        events = (self.watches)();
        loop {
            let (next_tick, wants_lists) = self.shared.turn();
            if wants_lists {
                tracing::warn!(
                    "the API server has an earlier state than the operator knows: listing all objects again"
                );
                events = (self.watches)();
            }
            // The election and the webhook run on the same thread. They get a turn between two batches of events.
            tokio::task::yield_now().await;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(event) = events.next() => self.shared.take(event, &mut events, Some(&mut stores)),
                () = self.marker.changed() => self.shared.with(|_, _| ()),
                () = self.shared.loop_wake.notified() => {}
                () = at(next_tick) => self.shared.with(|reconciler, now| reconciler.tick(now.instant)),
                () = &mut publishing => unreachable!("events are published until the end"),
                () = &mut controllers => unreachable!("Controllers run until they are stopped"),
            }
        }
        self.shared.metrics.leader(false);
        self.shared.ends.cancel();
        // A Controller whose store is not filled yet would wait for that.
        drop(stores);
        controllers.await;
    }
}

/// Publishes Kubernetes Events. The process does not wait for pending events when it ends.
fn publish(shared: Arc<Shared>, pending: mpsc::Receiver<PublishEvent>) -> BoxFuture<'static, ()> {
    let publish = move |event| {
        let shared = shared.clone();
        async move { shared.actor.publish(event).await }
    };
    pending.for_each_concurrent(PUBLISHED_AT_ONCE, publish).boxed()
}

/// Waits until `time`; without a time for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

impl Shared {
    /// Returns the state. If a change of it panicked, the process ends, because a half-changed state must decide nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| unreachable!("the state machine is used after a panic in it"))
    }

    /// Returns when the timer of the loop ends, and whether all watches must list again.
    fn turn(&self) -> (Option<Instant>, bool) {
        let mut state = self.lock();
        state.next_tick = state.reconciler.next_tick();
        (state.next_tick, state.reconciler.take_wish_for_lists())
    }

    /// Changes the state machine. Then wakes keys and requests writes of the Lease.
    fn with<T>(&self, change: impl FnOnce(&mut Reconciler, Now) -> T) -> T {
        let mut state = self.lock();
        let State { reconciler, marker, wakes, pending, next_tick } = &mut *state;
        let now = Now { instant: now(), wall: Timestamp::now() };
        if wakes.is_some() {
            // A later write of the Lease may have a lower state than the one that the last decision relied on.
            reconciler.on_lease_state(marker.state(), now.instant);
        }
        let result = change(reconciler, now);
        let woken = reconciler.take_wakes(now);
        if let Some(wakes) = wakes {
            for key in woken {
                wake(wakes, &key);
            }
            marker.send(reconciler.lease_request());
            let (pools, ipam_nodes) = reconciler.queued(now.instant);
            self.metrics.reconciler.queued(pools, ipam_nodes);
        }
        if *next_tick != reconciler.next_tick() || reconciler.wants_lists() {
            self.loop_wake.notify_one();
        }
        for event in reconciler.take_events() {
            if let Err(refused) = pending.try_send(event) {
                let why = if refused.is_full() { "too many wait" } else { "the operator ends" };
                let PublishEvent { pool, note } = refused.into_inner();
                tracing::warn!(pool = %pool.key, reason = note.reason, "event not published: {why}");
            }
        }
        result
    }

    /// Takes in `event` and the events that are ready, [`EVENTS_AT_ONCE`] at most.
    fn take(
        &self,
        event: Watched,
        events: &mut SelectAll<BoxStream<'static, Watched>>,
        mut stores: Option<&mut Stores>,
    ) {
        let mut next = Some(event);
        let mut room = EVENTS_AT_ONCE;
        self.with(|reconciler, now| {
            while let Some(event) = next.take() {
                match event {
                    Ok(event) => {
                        if let Some(stores) = &mut stores {
                            store(stores, &event);
                        }
                        reconciler.observe(event, now.instant);
                    }
                    Err(watch) => {
                        self.metrics.watch_failed(watch);
                        if watch == crate::watch::NODES {
                            reconciler.nodes_out_of_sight(now.instant);
                        }
                    }
                }
                room -= 1;
                // An event that is taken from the stream must be processed, because it does not come again.
                next = if room == 0 { None } else { events.next().now_or_never().flatten() };
            }
        });
    }
}

/// Reconciles `key`, call by call.
async fn reconcile(shared: Arc<Shared>, key: Key) -> Result<Action, Infallible> {
    while !shared.ends.is_cancelled() {
        match shared.with(|reconciler, now| reconciler.step(&key, now)) {
            Step::Call(call) => {
                let outcome = shared.actor.perform(*call).await;
                shared.with(|reconciler, now| reconciler.settle(outcome, now.instant));
            }
            Step::Wait(until) => return Ok(Action::requeue(until.saturating_duration_since(now()))),
            Step::Done => break,
        }
    }
    Ok(Action::await_change())
}

/// Where the Controller of each kind gets its woken keys.
type Wakes = BTreeMap<Kind, UnboundedSender<ObjectRef<RawObject>>>;

/// Sends the key to its Controller. A Controller that has ended does not get it.
fn wake(wakes: &Wakes, key: &Key) {
    let object = ObjectRef::new_with(key.name(), key.kind());
    if wakes.get(&key.kind()).is_none_or(|wakes| wakes.unbounded_send(object).is_err()) {
        tracing::debug!("woken after the end of the Controllers");
    }
}

/// The store of the Controller of each kind.
type Stores = BTreeMap<Kind, Writer<RawObject>>;

/// Applies the event to the store of its Controller.
fn store(stores: &mut Stores, event: &Observed) {
    let named = |key: &Key| {
        let metadata = ObjectMeta { name: Some(key.name().to_owned()), ..ObjectMeta::default() };
        RawObject { metadata, metadata_bytes: 0, spec: None, status: None }
    };
    if let Some(store) = stores.get_mut(&event.kind()) {
        store.apply_watcher_event(&map_event(&event.keys(), named));
    }
}

/// Returns the stores of the Controllers, the queues of their woken keys, and a future that runs the Controllers. It ends after
/// [`Shared::ends`] and the last call.
fn begin(shared: &Arc<Shared>) -> (Stores, Wakes, BoxFuture<'static, ()>) {
    let (mut stores, mut wakes, mut controllers) = (Stores::new(), Wakes::new(), Vec::new());
    for (kind, at_once) in CONTROLLERS {
        let store = Writer::new(kind);
        let (sender, woken) = unbounded();
        let controller = Controller::for_stream_with(pending(), store.as_reader(), kind)
            .with_config(Config::default().concurrency(at_once))
            .reconcile_on(woken)
            .graceful_shutdown_on(shared.ends.clone().cancelled_owned())
            .run(
                move |object: Arc<RawObject>, shared| reconcile(shared, Key::new(kind, object.name())),
                |_, never: &Infallible, _| match *never {},
                shared.clone(),
            )
            .for_each(|reconciled| {
                match reconciled {
                    // The object is gone, and the state machine has that event, too. Or the process ends before the store is filled.
                    Ok(_) | Err(Error::ObjectNotFound(_) | Error::RunnerError(_)) => {}
                    Err(error) => tracing::error!(error = %ipam_daemon::chain(&error), "a Controller failed"),
                }
                futures::future::ready(())
            });
        stores.insert(kind, store);
        wakes.insert(kind, sender);
        controllers.push(controller);
    }
    (stores, wakes, join_all(controllers).map(drop).boxed())
}

/// The monotonic clock, which in tests is the paused one.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
