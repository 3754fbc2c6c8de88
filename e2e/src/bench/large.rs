//! A large cluster: thousands of Node objects, the operator, and one pool that gives each node a block.

use std::pin::pin;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use ipam_crds::{IPAMNode, IPPool};
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::load;
use super::meter::{Meter, mib};
use super::table::Finding;
use crate::cluster::Operator;
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::http;
use crate::progress::Step;

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const POOL: &str = "bench";
pub(super) const SUBNET: &str = "10.0.0.0/8";
pub(super) const GATEWAY: &str = "10.0.0.1";
pub(super) const BLOCK_SIZE: i64 = 64;
/// Long enough for anything that is not broken.
pub(super) const DEADLINE: Duration = Duration::from_mins(2);
/// How long the operator has to be at rest before a measurement begins.
pub(super) const STILL: Duration = Duration::from_millis(300);

/// The cluster, with the pool applied.
pub(super) struct Large<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) runtime: &'a Runtime,
    pub(super) client: Client,
    pub(super) operator: Operator,
    /// Nodes that the cluster began with.
    pub(super) nodes: u32,
    pub(super) applied: Applied,
    next: u32,
}

/// How the pool became known to all nodes.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    /// What this program took to create the Node objects: the same number of objects on the same API server.
    pub(super) nodes: Duration,
    /// From the call that creates the pool to the event that shows its full status.
    pub(super) status: Duration,
    /// From the same call until every IPAMNode has been written.
    pub(super) ipam_nodes: Duration,
    /// Processor time of the operator for all of it.
    pub(super) cpu: Duration,
}

impl<'a> Large<'a> {
    /// Makes the nodes, starts the operator, applies the pool and waits for everything that follows from it.
    pub(super) fn build(plane: &'a ControlPlane, runtime: &'a Runtime, nodes: u32) -> Result<Self> {
        let client = runtime.block_on(plane.client())?;
        let step = Step::start(&format!("{nodes} Node objects"));
        let creating = Instant::now();
        runtime.block_on(load::create(&client, 0..nodes))?;
        let creating = creating.elapsed();
        step.done();
        let mut operator = Operator::start(plane, NAMESPACE, &[])?;
        let meter = Meter::of(operator.process());
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        let (began, status) = runtime.block_on(apply(&client, nodes))?;
        let written = || -> Result<Instant> {
            let now = Instant::now();
            let count = counter(&operator, "nv_ipam_controller_ipam_node_writes_total{result=\"ok\"}")?;
            ensure!(count >= u64::from(nodes), "{count} of {nodes} IPAMNodes written");
            Ok(now)
        };
        let ipam_nodes = eventually_blocking("all IPAMNodes", DEADLINE, written)?.duration_since(began);
        runtime.block_on(ensure_ipam_nodes(&client, nodes))?;
        meter.settle(STILL)?;
        let applied = Applied { nodes: creating, status, ipam_nodes, cpu: meter.cpu()?.since(&before) };
        Ok(Self { plane, runtime, client, operator, nodes, applied, next: nodes })
    }

    /// Looks at the operator's process.
    pub(super) fn meter(&mut self) -> Meter {
        Meter::of(self.operator.process())
    }

    /// The name of a node that is not there yet.
    pub(super) fn newcomer(&mut self) -> String {
        let name = load::name(self.next);
        self.next += 1;
        name
    }

    /// The sum of all samples of the operator's metrics that begin so.
    pub(super) fn counter(&self, prefix: &str) -> Result<u64> {
        counter(&self.operator, prefix)
    }

    /// The time that the operator has spent between decisions about pools and the API server's answers to them.
    pub(super) fn waited(&self) -> Result<Duration> {
        let seconds: Vec<f64> = samples(&self.operator, "nv_ipam_controller_reconcile_seconds_sum")?;
        Ok(Duration::from_secs_f64(seconds.iter().sum()))
    }
}

fn counter(operator: &Operator, prefix: &str) -> Result<u64> {
    Ok(samples::<u64>(operator, prefix)?.iter().sum())
}

/// The values of all samples of the operator's metrics that begin so.
fn samples<T: FromStr>(operator: &Operator, prefix: &str) -> Result<Vec<T>> {
    let (code, text) = http::get(&operator.metrics(), "/metrics")?;
    ensure!(code == 200, "/metrics answers {code}");
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    let value = |line: &str| line.rsplit_once(' ')?.1.parse().ok();
    lines.map(|line| value(line).with_context(|| format!("no number in {line:?}"))).collect()
}

/// Creates the pool; answers when that was, and how long it took until its status named every node.
async fn apply(client: &Client, nodes: u32) -> Result<(Instant, Duration)> {
    let api: Api<IPPool> = Api::namespaced(client.clone(), NAMESPACE);
    let only = WatchParams::default().fields(&format!("metadata.name={POOL}"));
    let mut events = pin!(api.watch(&only, "0").await?);
    let pool: IPPool = serde_json::from_value(json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": POOL, "namespace": NAMESPACE},
        "spec": {"subnet": SUBNET, "perNodeBlockSize": BLOCK_SIZE, "gateway": GATEWAY},
    }))?;
    let began = Instant::now();
    api.create(&PostParams::default(), &pool).await.context("the pool")?;
    let full = async {
        while let Some(event) = events.next().await {
            let took = began.elapsed();
            let (WatchEvent::Added(pool) | WatchEvent::Modified(pool)) = event? else { continue };
            let given = pool.status.map_or(0, |status| status.allocations.len());
            if given == usize::try_from(nodes)? {
                return Ok(took);
            }
        }
        bail!("the watch of the pool has ended")
    };
    let took = timeout(DEADLINE, full).await.context("no full status")??;
    Ok((began, took))
}

async fn ensure_ipam_nodes(client: &Client, nodes: u32) -> Result<()> {
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let listed = api.list(&ListParams::default()).await?;
    let right = listed.items.iter().filter(|node| node.spec.pools.iter().any(|block| block.name == POOL)).count();
    ensure!(right == usize::try_from(nodes)?, "{right} of {nodes} IPAMNodes have a block of the pool");
    Ok(())
}

const IDLE_AIM: u64 = 60 * 1024;
const PEAK_AIM: u64 = 120 * 1024;

/// Resident memory of the operator: of the one that gave all blocks, and of one that starts when all is given.
pub(super) fn memory(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    large.meter().settle(STILL)?;
    let first = large.meter().memory()?;
    large.operator.process().terminate(DEADLINE)?;
    large.operator = Operator::start(large.plane, NAMESPACE, &[])?;
    large.meter().settle(STILL)?;
    let second = large.meter().memory()?;
    Ok(vec![Finding {
        what: "operator RSS at 5,000, idle / peak".to_owned(),
        reference: "169 / 286 MiB",
        aim: "≤ 60 / 120 MiB",
        measured: format!(
            "{} / {}; restarted {} / {}",
            mib(first.now),
            mib(first.most),
            mib(second.now),
            mib(second.most)
        ),
        met: first.now.max(second.now) <= IDLE_AIM && first.most.max(second.most) <= PEAK_AIM,
    }])
}
