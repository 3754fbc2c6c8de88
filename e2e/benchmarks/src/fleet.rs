//! In-process agents: thousands of them as tasks of this program. Each has a connection, the watch, the ledger, the reports and the identity
//! of the real one. It has no socket, no garbage collection and no token, and its journal keeps nothing. The rows that use them measure
//! the API server and the operator.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow};
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Pick, Refusal, Request};
use ipam_core::node_pool::Pause;
use ipam_core::{PoolKey, PoolKind};
use ipam_daemon::cluster::shared_client;
use ipam_node_agent::allocator::{Allocator, Failure, system_clock};
use ipam_node_agent::identity::Identity;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::note::{Start, Subject};
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::status::Reporter;
use ipam_node_agent::watch::{Blocks, events};
use ipam_node_store::{Position, Room, Store, StoreError};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::large::DEADLINE;
use super::stage::{NAMESPACE, Stage};

/// The epoch of the next agent's journal.
static EPOCH: AtomicU64 = AtomicU64::new(1);

/// A journal that keeps nothing.
struct Forgetful(Position);

impl Store for Forgetful {
    fn make_room(&mut self, _: usize, _: Room) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.sequence += u64::try_from(changes.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    fn position(&self) -> Position {
        self.0
    }

    fn wants_compaction(&self) -> bool {
        false
    }

    fn compact(&mut self, _: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// One agent, as the plugin on its node uses it.
pub(super) struct Member {
    /// Its node.
    pub(super) name: String,
    allocator: Allocator,
    pools: Arc<[PoolKey]>,
    stop: CancellationToken,
    pods: VecDeque<String>,
    made: u32,
}

impl Member {
    /// Whether a pod has an address of this node.
    pub(super) fn holds(&self) -> bool {
        !self.pods.is_empty()
    }

    /// A pod gets an interface with an address of each pool, in a call each.
    pub(super) async fn add(&mut self) -> Result<()> {
        self.made += 1;
        let pod = format!("{}-{}", self.name, self.made);
        for (place, pool) in self.pools.iter().enumerate() {
            let attachment =
                Attachment { pod_name: pod.clone(), pod_namespace: "default".to_owned(), ..Attachment::default() };
            let (pools, owner, pick) = (vec![pool.clone()], interface(&pod, place), Pick::Next);
            let request = Request { pools, owner, attachment, requested: Vec::new(), pick };
            let allocated = tokio::time::timeout(DEADLINE, self.allocate(&request)).await;
            allocated.map_err(Into::into).flatten().with_context(|| format!("no address on {}", self.name))?;
        }
        self.pods.push_back(pod);
        Ok(())
    }

    /// Allocates once the grants of the blocks are confirmed, as the agent's socket does. A report is in the API a moment earlier.
    async fn allocate(&self, request: &Request) -> Result<()> {
        let mut changes = self.allocator.changes();
        loop {
            match self.allocator.allocate(request.clone()).await {
                Err(Failure::Refused(Refusal::Paused { pause: Pause::Unconfirmed, .. })) => changes.changed().await?,
                done => return Ok(done.map(drop)?),
            }
        }
    }

    /// The oldest pod ends, if there is one.
    pub(super) async fn remove(&mut self) -> Result<()> {
        let Some(pod) = self.pods.pop_front() else { return Ok(()) };
        for (place, pool) in self.pools.iter().enumerate() {
            let released = self.allocator.release(vec![pool.clone()], interface(&pod, place)).await;
            released.with_context(|| format!("nothing freed on {}", self.name))?;
        }
        Ok(())
    }

    /// Every pod ends.
    pub(super) async fn drain(&mut self) -> Result<()> {
        while !self.pods.is_empty() {
            self.remove().await?;
        }
        Ok(())
    }

    /// The node dies: its agent reports no more.
    pub(super) fn die(&self) {
        self.stop.cancel();
    }
}

fn interface(pod: &str, place: usize) -> Owner {
    Owner::new(pod, format!("net{}", place + 1))
}

/// What one agent's tasks need.
struct Recruit {
    name: String,
    allocator: Allocator,
    start: Start,
    stop: CancellationToken,
}

/// All agents. They end with it.
pub(super) struct Fleet {
    recruits: mpsc::UnboundedSender<Recruit>,
    pools: Arc<[PoolKey]>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Fleet {
    /// A thread of its own for the agents' tasks. Their pods draw from all of `pools`.
    pub(super) fn start(stage: &Stage<'_>, pools: &[String]) -> Result<Self> {
        let (recruits, enlisted) = mpsc::unbounded_channel();
        let (metrics, _) = Metrics::registered();
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let folder = stage.plane.directory().join("agents");
        std::fs::create_dir_all(&folder)?;
        let kubeconfig = Box::new(stage.kubeconfig_as_agent()?);
        let base = Base { kubeconfig, folder, metrics: Arc::clone(&metrics), stop: stop.clone() };
        std::thread::Builder::new().name("fleet".to_owned()).spawn(move || runtime.block_on(base.run(enlisted)))?;
        let pools = pools.iter().map(|pool| PoolKey::new(PoolKind::IpPool, pool.as_str())).collect();
        Ok(Self { recruits, pools, metrics, stop })
    }

    /// The agent of a node, which need not exist yet.
    pub(super) fn enlist(&self, name: String) -> Result<Member> {
        // Later than what any agent of this program has reported.
        let position = Position { epoch: EPOCH.fetch_add(1, Ordering::Relaxed), sequence: 0 };
        let subject = Subject { node: name.clone(), namespace: NAMESPACE.to_owned() };
        let mut ledger = Ledger::new(0);
        let start = Start::new(subject, &mut ledger, position, Identity::default()).recorded();
        let store = Box::new(Forgetful(position));
        let (allocator, _) = Allocator::start(ledger, store, system_clock(), Arc::clone(&self.metrics))?;
        let stop = self.stop.child_token();
        let recruit = Recruit { name: name.clone(), allocator: allocator.clone(), start, stop: stop.clone() };
        self.recruits.send(recruit).map_err(|_| anyhow!("the fleet has ended"))?;
        Ok(Member { name, allocator, pools: Arc::clone(&self.pools), stop, pods: VecDeque::new(), made: 0 })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What all agents share.
struct Base {
    /// The kubeconfig of a node's agent.
    kubeconfig: Box<dyn Fn(&str) -> Value + Send + Sync>,
    /// Where these files are.
    folder: PathBuf,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Base {
    async fn run(self, mut enlisted: mpsc::UnboundedReceiver<Recruit>) {
        let base = Arc::new(self);
        loop {
            tokio::select! {
                () = base.stop.cancelled() => return,
                recruit = enlisted.recv() => {
                    let Some(recruit) = recruit else { return };
                    let base = Arc::clone(&base);
                    tokio::spawn(async move {
                        let name = recruit.name.clone();
                        if let Err(error) = Box::pin(base.serve(recruit)).await {
                            ipam_e2e::progress::say(&format!("bench: the agent of {name}: {error:#}"));
                        }
                    });
                }
            }
        }
    }

    /// What `ipam-node` does beside its socket and its garbage collection.
    async fn serve(&self, recruit: Recruit) -> Result<()> {
        let Recruit { name, allocator, start, stop } = recruit;
        let path = self.folder.join(&name);
        std::fs::write(&path, (self.kubeconfig)(&name).to_string())?;
        let client = shared_client(Some(&path), &self.metrics.requests).await?;
        let (told, in_force) = watch::channel(None);
        let blocks = Blocks::new(allocator.clone(), start, Readiness::default(), told);
        let metrics = &self.metrics;
        let reporter = Reporter::new(client.clone(), NAMESPACE, &name, allocator, in_force, Arc::clone(metrics));
        let watching =
            blocks.follow(events(client, NAMESPACE, &name, Arc::default()), None, Arc::clone(metrics), stop.clone());
        tokio::join!(watching, reporter.run(stop.clone()));
        Ok(())
    }
}
