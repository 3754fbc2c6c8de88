//! Brings the node's blocks from its one IPAMNode object, or from disk, to the allocator.
//!
//! Decides which spec is in force. Watches exactly one object, by name; keeps the last good spec when the API server is
//! away or the object cannot be read; never takes away what pods hold, and never leaves a copy on disk that promises the
//! next start a block which the node has lost.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use ipam_core::PoolKey;
use ipam_crds::IPAMNode;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::allocator::Allocator;
use crate::blocks::node_pools;
use crate::metrics::Metrics;
use crate::ready::Readiness;
use crate::spec::{NodeSpec, SpecFile};

/// Pause until a spec that could not be saved is saved again.
const SAVE_AGAIN: Duration = Duration::from_secs(10);

/// The spec that the allocator works with, as the status report tells it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InForce {
    /// The spec.
    pub spec: NodeSpec,
    /// The pools that could be used.
    pub pools: Vec<PoolKey>,
    /// Why the others could not.
    pub problems: Vec<String>,
}

/// Puts specs in force.
pub struct Blocks {
    allocator: Allocator,
    file: SpecFile,
    readiness: Readiness,
    in_force: Sender<Option<InForce>>,
}

impl Blocks {
    /// Nothing is in force yet. `in_force` is told of every change.
    pub fn new(allocator: Allocator, file: SpecFile, readiness: Readiness, in_force: Sender<Option<InForce>>) -> Self {
        Self { allocator, file, readiness, in_force }
    }

    /// Puts the copy on disk in force, if there is a usable one.
    pub async fn load(&self) {
        match self.file.load() {
            Ok(Some(spec)) => {
                info!(path = %self.file.path().display(), generation = spec.generation, "using the blocks saved last");
                self.put(spec).await;
            }
            Ok(None) => {}
            Err(why) => {
                let path = self.file.path().display();
                warn!(%path, why, "the saved blocks cannot be used, waiting for the API server");
            }
        }
    }

    /// Puts a spec of the API server in force and saves it. Returns whether it is on disk.
    async fn tell(&self, spec: NodeSpec) -> bool {
        // Saved first: what pods are given next is of a spec that the next start knows.
        let saved = self.save(spec.clone()).await;
        if let Err(error) = &saved {
            let path = self.file.path().display();
            warn!(%path, error, "cannot save the blocks, trying again; until then a restart needs the API server");
        }
        self.put(spec).await;
        saved.is_ok()
    }

    /// The disk may take its time; the calls of the runtime must not wait for it.
    async fn save(&self, spec: NodeSpec) -> Result<(), String> {
        let file = self.file.clone();
        let saving = tokio::task::spawn_blocking(move || file.save(&spec));
        saving.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Saves what is in force once more. Returns whether it is on disk.
    async fn save_again(&self) -> bool {
        let in_force = self.in_force.borrow().as_ref().map(|in_force| in_force.spec.clone());
        let Some(spec) = in_force else { return false };
        let saved = self.save(spec).await;
        match &saved {
            Ok(()) => info!(path = %self.file.path().display(), "blocks saved again"),
            Err(error) => debug!(error, "still cannot save the blocks"),
        }
        saved.is_ok()
    }

    async fn put(&self, spec: NodeSpec) {
        let (pools, problems) = node_pools(&spec.blocks);
        for problem in &problems {
            warn!(problem, "a block cannot be used");
        }
        let keys = pools.iter().map(|pool| pool.key.clone()).collect();
        info!(generation = spec.generation, pools = pools.len(), "blocks in force");
        if self.allocator.configure(pools).await.is_ok() {
            self.in_force.send_replace(Some(InForce { spec, pools: keys, problems }));
            self.readiness.blocks_are_known();
        }
    }

    /// Follows a stream of events of the one object until `stop`.
    pub async fn follow(
        &self,
        events: impl Stream<Item = Result<Event<DeserializeGuard<IPAMNode>>, watcher::Error>>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) {
        let mut events = std::pin::pin!(events);
        let (mut state, mut up) = (Following { listed: None, saved: true }, None);
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => event,
                () = tokio::time::sleep(SAVE_AGAIN), if !state.saved => {
                    state.saved = self.save_again().await;
                    continue;
                }
            };
            let Some(event) = event else { return };
            match &event {
                Err(error) if up != Some(false) => {
                    warn!(%error, "cannot watch this node's blocks, serving what is known");
                }
                Err(error) => debug!(%error, "still cannot watch this node's blocks"),
                Ok(_) if up == Some(false) => info!("watching this node's blocks again"),
                Ok(_) => {}
            }
            up = Some(event.is_ok());
            metrics.watch_up.set(i64::from(event.is_ok()));
            if let Ok(event) = event {
                self.on_event(event, &mut state).await;
            }
        }
    }

    async fn on_event(&self, event: Event<DeserializeGuard<IPAMNode>>, state: &mut Following) {
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
            // No object: no pools to give from. What is held stays held, and DEL works.
            Event::Delete(_) => Listed::Absent,
            Event::InitDone => state.listed.take().unwrap_or(Listed::Absent),
        };
        let spec = match object {
            Listed::Spec(spec) => spec,
            Listed::Absent => NodeSpec::default(),
            Listed::Unreadable(error) => {
                return warn!(error, "this node's IPAMNode cannot be read, serving what is known");
            }
        };
        let known = self.in_force.borrow().as_ref().is_some_and(|in_force| in_force.spec == spec);
        if !known {
            state.saved = self.tell(spec).await;
        }
    }
}

/// What the events so far have left to be done.
struct Following {
    /// The object, as far as the list under way has told.
    listed: Option<Listed>,
    /// Whether what is in force is on disk.
    saved: bool,
}

enum Listed {
    Spec(NodeSpec),
    Unreadable(String),
    Absent,
}

fn read(object: DeserializeGuard<IPAMNode>) -> Listed {
    match object.0 {
        Ok(object) => Listed::Spec(NodeSpec::from(&object)),
        Err(error) => Listed::Unreadable(error.to_string()),
    }
}

/// The events of this node's object.
pub fn events(
    client: Client,
    namespace: &str,
    node: &str,
) -> impl Stream<Item = Result<Event<DeserializeGuard<IPAMNode>>, watcher::Error>> + use<> {
    let api: Api<DeserializeGuard<IPAMNode>> = Api::namespaced(client, namespace);
    let only_this = watcher::Config::default().fields(&format!("metadata.name={node}"));
    // From 0.8 s to 30 s, with jitter: 5,000 agents must not come back in step.
    watcher(api, only_this).default_backoff()
}
