//! kube-runtime's Controllers around the state machine. What the watches tell goes in, and what that wakes is reconciled.
//!
//! | Controller of | reconciles |
//! | --- | --- |
//! | `IPPool`, `CIDRPool` | the pool: its finalizer and its status |
//! | `Node` | the IPAMNode of that name, while the Node exists |
//! | `IPAMNode` | the IPAMNode, once its Node is gone |
//!
//! All have one reconcile function. It asks the state machine for the next step, makes the call, and says what came of it, until there is
//! nothing more to do. Nothing is decided here.
//!
//! The state machine says which keys an event concerns, so the watches reach it before they reach a Controller: each Controller has a
//! store that they fill, and is woken for the keys that the state machine names. A store has names alone, for all else is in the state
//! machine.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::{BoxFuture, join_all};
use futures::stream::{BoxStream, SelectAll, pending};
use futures::{FutureExt, StreamExt};
use ipam_core::{PoolKey, PoolKind};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config, Error};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::act::Actor;
use crate::election::Lead;
use crate::election::given::Mark;
use crate::metrics::Metrics;
use crate::objects::{Kind, NodeObject, RawObject};
use crate::reconcile::{Key, Now, Observed, Reconciler, Root, Settings, Step};
use crate::watch::Watched;

/// Pools of one kind reconciled at one time. With thousands of pools the calls of one moment would otherwise keep the API server busy
/// for longer than a leader may go without renewing its Lease.
const POOLS_AT_ONCE: u16 = 16;
/// IPAMNodes reconciled at one time.
const NODES_AT_ONCE: u16 = 48;
/// Events taken in before others have their turn.
const EVENTS_AT_ONCE: usize = 256;

/// Begins all watches anew, each with a list.
pub type Watches = Box<dyn Fn() -> SelectAll<BoxStream<'static, Watched>> + Send>;

/// The Controllers of one process, ready to run.
pub struct Controllers {
    shared: Arc<Shared>,
    watches: Watches,
    mark: Mark,
}

/// What the reconcile functions share.
struct Shared {
    state: Mutex<State>,
    actor: Actor,
    metrics: Arc<Metrics>,
    synced: Arc<AtomicBool>,
    /// Everything is to be listed anew.
    again: Notify,
}

struct State {
    reconciler: Reconciler,
    mark: Mark,
    /// Where woken keys go; `None` while another leads.
    wakes: Option<Wakes>,
}

/// What a Controller reconciles until the watches begin anew.
struct Round {
    shared: Arc<Shared>,
    ends: CancellationToken,
}

impl Controllers {
    /// They act through `actor` upon what `watches` tell, and by `mark` tell the next leader what was given. `synced` is set once every
    /// watch has seen a full list, and stays set: a watch that breaks is no reason to turn reviews away, which nobody else would
    /// answer, and what is acted upon from an old view is refused by its version.
    pub fn new(
        settings: Settings,
        actor: Actor,
        watches: Watches,
        mark: Mark,
        metrics: Arc<Metrics>,
        synced: Arc<AtomicBool>,
    ) -> Self {
        let reconciler = Reconciler::new(settings, metrics.clone());
        let state = Mutex::new(State { reconciler, mark: mark.clone(), wakes: None });
        Self { shared: Arc::new(Shared { state, actor, metrics, synced, again: Notify::new() }), watches, mark }
    }

    /// Runs until `stop`, then lets the calls under way end. Nothing is reconciled until `lead` says that we lead; who has led ends
    /// with its lead.
    pub async fn run(mut self, mut lead: watch::Receiver<Lead>, stop: CancellationToken) {
        // A watch makes no call before it is polled, so that one who leads at once lists once.
        let mut events = (self.watches)();
        while !lead.borrow_and_update().holds(now()) {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = events.next() => self.shared.take(event, &mut events, None),
                Ok(()) = lead.changed() => {}
            }
        }
        drop(events);
        self.shared.metrics.leader(true);
        let word = self.mark.word();
        self.shared.with(|reconciler, now| reconciler.lead(word, now.instant));
        while self.lead_on(&stop).await {
            tracing::warn!("the API server has an earlier state than was known: listing everything anew");
        }
    }

    /// Reconciles until `stop`, or until all watches are to begin anew. Whether they are.
    async fn lead_on(&mut self, stop: &CancellationToken) -> bool {
        let round = Arc::new(Round { shared: self.shared.clone(), ends: CancellationToken::new() });
        let (mut stores, wakes, controllers) = begin(&round);
        self.shared.lock().wakes = Some(wakes);
        let mut controllers = controllers.fuse();
        let mut events = (self.watches)();
        let begins_anew = loop {
            // Whoever shares the thread has its turn between two batches of events.
            tokio::task::yield_now().await;
            tokio::select! {
                () = stop.cancelled() => break false,
                () = self.shared.again.notified() => break true,
                Some(event) = events.next() => self.shared.take(event, &mut events, Some(&mut stores)),
                () = self.mark.changed() => self.shared.with(|_, _| ()),
                () = &mut controllers => break false,
            }
        };
        round.ends.cancel();
        // A Controller whose store is not filled yet would wait for that.
        drop(stores);
        if !futures::future::FusedFuture::is_terminated(&controllers) {
            controllers.await;
        }
        begins_anew
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state machine, and passes on what follows.
    fn with<T>(&self, change: impl FnOnce(&mut Reconciler, Now) -> T) -> T {
        let mut state = self.lock();
        let State { reconciler, mark, wakes } = &mut *state;
        let now = Now { instant: now(), wall: Timestamp::now() };
        if wakes.is_some() {
            // It may have become less since the last call was decided upon.
            reconciler.lease_says(mark.word(), now.instant);
        }
        let result = change(reconciler, now);
        let woken = reconciler.take_wakes(now);
        if let Some(wakes) = wakes {
            for key in woken {
                let root = if let Key::Node(node) = &key { reconciler.root(node) } else { None };
                wakes.send(key, root);
            }
            mark.want(reconciler.wants_of_lease());
        }
        if reconciler.take_wish_for_lists() {
            self.again.notify_one();
        }
        self.metrics.ipam_nodes_waiting(reconciler.ipam_nodes_waiting());
        result
    }

    /// Takes in `event` and those that are there already.
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
                        let (is_whole, key) = (is_init_done(&event), key_of(&event));
                        if let Some(stores) = &mut stores {
                            stores.apply(&event);
                        }
                        reconciler.observe(event, now.instant);
                        // What was woken before the object was in the store is woken once more.
                        if is_whole || key.is_some() {
                            reconciler.is_stored(key.as_ref());
                        }
                    }
                    Err(watch) => {
                        self.metrics.watch_failed(watch);
                        if watch == crate::watch::NODES {
                            reconciler.nodes_out_of_sight(now.instant);
                        }
                    }
                }
                room -= 1;
                // What is taken from the stream must be taken in: nobody tells it again.
                next = if room == 0 { None } else { events.next().now_or_never().flatten() };
            }
            if !self.synced.load(Ordering::Relaxed) && reconciler.is_synced() {
                self.synced.store(true, Ordering::Relaxed);
                tracing::info!("caches are in sync");
            }
        });
    }

    /// The next step of `key`. A node is reconciled by one Controller at a time, which `root` names.
    fn step(&self, key: &Key, root: Option<Root>) -> Step {
        self.with(|reconciler, now| match key {
            Key::Node(node) if reconciler.root(node) != root => {
                reconciler.is_stored(Some(key));
                Step::Done
            }
            key => reconciler.step(key, now),
        })
    }
}

/// Does what is to be done about `key`, call by call.
async fn reconcile(round: Arc<Round>, key: Key, root: Option<Root>) -> Result<Action, Infallible> {
    while !round.ends.is_cancelled() {
        match round.shared.step(&key, root) {
            Step::Call(call) => {
                let outcome = round.shared.actor.perform(*call).await;
                round.shared.with(|reconciler, now| reconciler.settle(outcome, now.instant));
            }
            Step::Wait(until) => return Ok(Action::requeue(until.saturating_duration_since(now()))),
            Step::Done => break,
        }
    }
    Ok(Action::await_change())
}

/// Where keys go that are woken.
struct Wakes {
    ip_pools: UnboundedSender<ObjectRef<RawObject>>,
    cidr_pools: UnboundedSender<ObjectRef<RawObject>>,
    ipam_nodes: UnboundedSender<ObjectRef<RawObject>>,
    nodes: UnboundedSender<ObjectRef<NodeObject>>,
}

impl Wakes {
    /// A Controller that has ended is woken by nothing.
    fn send(&self, key: Key, root: Option<Root>) {
        let object = |kind: Kind, name: &str| ObjectRef::new_with(name, kind);
        let sent = match (key, root) {
            (Key::Pool(PoolKey { kind, name }), _) => {
                let to = if kind == PoolKind::IpPool { &self.ip_pools } else { &self.cidr_pools };
                to.unbounded_send(object(Kind::Pool(kind), &name)).is_ok()
            }
            (Key::Node(name), Some(Root::Node)) => self.nodes.unbounded_send(ObjectRef::new(&name)).is_ok(),
            (Key::Node(name), Some(Root::IpamNode)) => {
                self.ipam_nodes.unbounded_send(object(Kind::IpamNode, &name)).is_ok()
            }
            (Key::Node(_), None) => true,
        };
        if !sent {
            tracing::debug!("woken after the end of the Controllers");
        }
    }
}

/// The stores of the Controllers.
struct Stores {
    ip_pools: Writer<RawObject>,
    cidr_pools: Writer<RawObject>,
    ipam_nodes: Writer<RawObject>,
    nodes: Writer<NodeObject>,
}

impl Stores {
    fn apply(&mut self, event: &Observed) {
        let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let object = |object: &RawObject| RawObject { metadata: named(object.name()), spec: None, status: None };
        match event {
            Observed::Pool(PoolKind::IpPool, event) => self.ip_pools.apply_watcher_event(&root(event, object)),
            Observed::Pool(PoolKind::CidrPool, event) => self.cidr_pools.apply_watcher_event(&root(event, object)),
            Observed::IpamNode(event) => self.ipam_nodes.apply_watcher_event(&root(event, object)),
            Observed::Node(event) => {
                let node = |(name, _): &(String, _)| NodeObject { metadata: named(name) };
                self.nodes.apply_watcher_event(&root(event, node));
            }
        }
    }
}

/// The event as a store takes it.
fn root<T, K>(event: &Event<T>, of: impl Fn(&T) -> K) -> Event<K> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
    }
}

/// The key that an event is about, if it is about an object that is there.
fn key_of(event: &Observed) -> Option<Key> {
    fn applied<T>(event: &Event<T>) -> Option<&T> {
        if let Event::Apply(object) = event { Some(object) } else { None }
    }
    match event {
        Observed::Pool(kind, event) => applied(event).map(|object| Key::Pool(PoolKey::new(*kind, object.name()))),
        Observed::IpamNode(event) => applied(event).map(|object| Key::Node(object.name().to_owned())),
        Observed::Node(event) => applied(event).map(|(name, _)| Key::Node(name.clone())),
    }
}

fn is_init_done(event: &Observed) -> bool {
    match event {
        Observed::Pool(_, event) | Observed::IpamNode(event) => matches!(event, Event::InitDone),
        Observed::Node(event) => matches!(event, Event::InitDone),
    }
}

/// The Controllers of a round: their stores, how they are woken, and what runs until the round ends and their calls have ended.
fn begin(round: &Arc<Round>) -> (Stores, Wakes, BoxFuture<'static, ()>) {
    let pools = |kind| {
        let key = move |object: &RawObject| Key::Pool(PoolKey::new(kind, object.name()));
        controller(round, Kind::Pool(kind), POOLS_AT_ONCE, key, None)
    };
    let (ip_pools, cidr_pools) = (pools(PoolKind::IpPool), pools(PoolKind::CidrPool));
    let ipam_node = |object: &RawObject| Key::Node(object.name().to_owned());
    let ipam_nodes = controller(round, Kind::IpamNode, NODES_AT_ONCE, ipam_node, Some(Root::IpamNode));
    let node = |node: &NodeObject| Key::Node(node.metadata.name.clone().unwrap_or_default());
    let nodes = controller(round, (), NODES_AT_ONCE, node, Some(Root::Node));
    let stores = Stores { ip_pools: ip_pools.0, cidr_pools: cidr_pools.0, ipam_nodes: ipam_nodes.0, nodes: nodes.0 };
    let wakes = Wakes { ip_pools: ip_pools.1, cidr_pools: cidr_pools.1, ipam_nodes: ipam_nodes.1, nodes: nodes.1 };
    let all = join_all([ip_pools.2, cidr_pools.2, ipam_nodes.2, nodes.2]);
    (stores, wakes, all.map(drop).boxed())
}

type Begun<K> = (Writer<K>, UnboundedSender<ObjectRef<K>>, BoxFuture<'static, ()>);

fn controller<K>(
    round: &Arc<Round>,
    kind: K::DynamicType,
    at_once: u16,
    key: impl Fn(&K) -> Key + Send + 'static,
    root: Option<Root>,
) -> Begun<K>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone + std::fmt::Debug + Unpin + Send + Sync,
{
    let writer = Writer::new(kind.clone());
    let (wakes, woken) = unbounded();
    let run = Controller::for_stream_with(pending(), writer.as_reader(), kind)
        .with_config(Config::default().concurrency(at_once))
        .reconcile_on(woken)
        .graceful_shutdown_on(round.ends.clone().cancelled_owned())
        .run(
            move |object, round| reconcile(round, key(&object), root),
            |_, never: &Infallible, _| match *never {},
            round.clone(),
        )
        .for_each(|reconciled| {
            match reconciled {
                // An object that is gone meanwhile: what its end means for others, the state machine has said. Or the round ended
                // before the store was filled.
                Ok(_) | Err(Error::ObjectNotFound(_) | Error::RunnerError(_)) => {}
                Err(error) => tracing::error!(error = %crate::act::chain(&error), "a Controller failed"),
            }
            futures::future::ready(())
        });
    (writer, wakes, run.boxed())
}

/// The monotonic clock, which in tests is the paused one.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
