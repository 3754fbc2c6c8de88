//! Brings the node's blocks from its one IPAMNode object, or from disk, to the allocator.
//!
//! Decides which spec is in force. Watches exactly one object, by name; keeps the last good spec when the API server is
//! away or the object cannot be read; never takes away what pods hold.

use std::sync::Arc;

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

    /// Puts a spec of the API server in force and saves it.
    async fn tell(&self, spec: NodeSpec) {
        let known = self.in_force.borrow().as_ref().is_some_and(|in_force| in_force.spec == spec);
        if known {
            return;
        }
        // Saved first: what pods are given next is of a spec that the next start knows.
        if let Err(error) = self.file.save(&spec) {
            let path = self.file.path().display();
            warn!(%path, %error, "cannot save the blocks; after a restart without the API server older ones are used");
        }
        self.put(spec).await;
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
        let (mut listed, mut up) = (None, None);
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => event,
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
                self.on_event(event, &mut listed).await;
            }
        }
    }

    async fn on_event(&self, event: Event<DeserializeGuard<IPAMNode>>, listed: &mut Option<Listed>) {
        match event {
            Event::Init => *listed = None,
            Event::InitApply(object) => *listed = Some(read(object)),
            Event::Apply(object) => self.on_object(read(object)).await,
            // No object: no pools to give from. What is held stays held, and DEL works.
            Event::Delete(_) => self.on_object(Listed::Absent).await,
            Event::InitDone => self.on_object(listed.take().unwrap_or(Listed::Absent)).await,
        }
    }

    async fn on_object(&self, object: Listed) {
        match object {
            Listed::Spec(spec) => self.tell(spec).await,
            Listed::Absent => self.tell(NodeSpec::default()).await,
            Listed::Unreadable(error) => {
                warn!(error, "this node's IPAMNode cannot be read, serving what is known");
            }
        }
    }
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
