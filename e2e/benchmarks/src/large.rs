//! A large cluster: thousands of Node objects, the operator, and pools that give each node a block.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use ipam_crds::{IPAMNode, IPPool};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::bound::in_time;
use super::load;
use super::meter::{Memory, Meter};
use super::stage::{NAMESPACE, Stage, pool};
use ipam_e2e::cluster::Operator;
use ipam_e2e::eventually::{Late, eventually_blocking};
use ipam_e2e::http;
use ipam_e2e::progress::Step;

/// Name, subnet and gateway of the pool of a cluster that has one.
pub(super) const POOL: &str = "bench";
pub(super) const SUBNET: &str = "10.0.0.0/8";
pub(super) const GATEWAY: &str = "10.0.0.1";
/// Metric: bytes of pool statuses that the operator has written.
pub(super) const WRITTEN: &str = "nv_ipam_controller_pool_status_written_bytes_total";
/// Metric: the statuses that it has written.
pub(super) const PUTS: &str = "nv_ipam_controller_pool_status_writes_total";
/// Metrics: decisions about pools, and the time that they took.
pub(super) const DECISIONS: &str = "nv_ipam_controller_plan_duration_seconds_count";
pub(super) const SECONDS: &str = "nv_ipam_controller_plan_duration_seconds_sum";
/// Long enough for anything that is not broken.
pub(super) const DEADLINE: Duration = Duration::from_mins(2);
/// Between two looks at all IPAMNodes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long the operator has to be at rest before a measurement begins.
pub(super) const STILL: Duration = Duration::from_millis(300);

/// The cluster. Its pools are applied when somebody says so.
pub(super) struct Large<'a> {
    pub(super) stage: &'a Stage<'a>,
    pub(super) operator: Operator,
    /// Nodes that the cluster began with.
    pub(super) nodes: u32,
    pub(super) pools: Vec<Value>,
    /// How long this program took to create the Node objects.
    pub(super) creating: Duration,
    next: u32,
}

/// How the pools became known to all nodes.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    /// From the call that creates the first pool to the event that shows the last full status.
    pub(super) status: Duration,
    /// From the same call until every IPAMNode has been written.
    pub(super) ipam_nodes: Duration,
    /// Processor time of the operator for all of it.
    pub(super) cpu: Duration,
    /// Memory of the operator when all is done.
    pub(super) memory: Memory,
}

/// One pool of the whole subnet.
pub(super) fn one_pool() -> Vec<Value> {
    let mut only = pool(POOL, SUBNET);
    only["spec"]["gateway"] = json!(GATEWAY);
    vec![only]
}

/// Eight pools with room for 30,000 nodes each, as of a host with eight interfaces.
pub(super) fn eight_pools() -> Vec<Value> {
    (0..8).map(|rail| pool(&format!("rail-{rail}"), &format!("10.{}.0.0/11", rail * 32))).collect()
}

impl<'a> Large<'a> {
    /// Makes the nodes and starts the operator.
    pub(super) fn begin(stage: &'a Stage<'a>, nodes: u32, pools: Vec<Value>) -> Result<Self> {
        let step = Step::start(&format!("{nodes} Node objects"));
        let began = Instant::now();
        stage.runtime.block_on(load::create(&stage.client, 0..nodes))?;
        let creating = began.elapsed();
        step.done();
        Ok(Self { stage, operator: stage.start_operator()?, nodes, pools, creating, next: nodes })
    }

    /// Applies the pools and waits for everything that follows from it.
    pub(super) fn apply(&mut self, within: Duration) -> Result<Applied> {
        let meter = self.meter();
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        let ends = Instant::now() + within;
        let (began, status) = self.block_on(apply(&self.stage.client, &self.pools, self.nodes, within))?;
        let left = ends.saturating_duration_since(Instant::now());
        let written = eventually_blocking("all IPAMNodes", left, || self.written())?;
        self.block_on(ensure_right(&self.stage.client, &self.pools, self.nodes))?;
        meter.settle(STILL)?;
        let cpu = meter.cpu()?.since(&before);
        Ok(Applied { status, ipam_nodes: written.duration_since(began), cpu, memory: meter.memory()? })
    }

    /// When every IPAMNode had been written; an error until then.
    fn written(&self) -> Result<Instant> {
        let now = Instant::now();
        let count = self.counter("nv_ipam_controller_ipam_node_writes_total{result=\"ok\"}")?;
        // Each is created without blocks, and gets its block in a second write.
        let wanted = 2 * u64::from(self.nodes);
        ensure!(count >= wanted, "{count} of {wanted} writes of IPAMNodes");
        let waiting = self.counter("workqueue_depth{name=\"ipamnodes\"}")?;
        ensure!(waiting == 0, "{waiting} IPAMNodes wait to be written");
        if self.pools.len() > 1 {
            // Each status brings a write of its own. A look makes the API server encode all IPAMNodes, which are megabytes.
            let looked = self.block_on(ensure_right(&self.stage.client, &self.pools, self.nodes));
            looked.inspect_err(|_| std::thread::sleep(LOOK_EVERY))?;
        }
        Ok(now)
    }

    /// Back to the Nodes alone, as if there had never been a pool; with a new operator.
    pub(super) fn reset(&mut self) -> Result<()> {
        self.operator.process().terminate(DEADLINE)?;
        let pools = self.pool_names();
        self.block_on(load::forget(&self.stage.client, NAMESPACE, &pools))?;
        self.operator = self.stage.start_operator()?;
        Ok(())
    }

    /// Ends the operator and starts another.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// Ends the operator.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.operator.process().terminate(DEADLINE)?;
        Ok(())
    }

    /// Starts another operator in the place of one that has ended.
    pub(super) fn start(&mut self) -> Result<()> {
        self.operator = self.stage.start_operator()?;
        Ok(())
    }

    /// Where the operator has ended, a row could not finish for that reason: it is missed.
    pub(super) fn unless_ended(&mut self, done: Result<()>) -> Result<()> {
        let Err(error) = done else { return Ok(()) };
        let Some(status) = self.operator.process().ended()? else { return Err(error) };
        let log = self.operator.process().output();
        let last = log.lines().last().unwrap_or_default();
        let reached = format!("the operator ended, {status}: {last}");
        Err(error.context(Late { what: "the operator runs on".to_owned(), within: Duration::ZERO, reached }))
    }

    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.stage.runtime.block_on(work)
    }

    pub(super) fn client(&self) -> Client {
        self.stage.client.clone()
    }

    pub(super) fn pool_names(&self) -> Vec<String> {
        names(&self.pools)
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
        Ok(samples::<u64>(&self.operator, prefix)?.iter().sum())
    }

    /// The same of a metric in seconds.
    pub(super) fn seconds(&self, prefix: &str) -> Result<Duration> {
        Ok(Duration::from_secs_f64(samples::<f64>(&self.operator, prefix)?.iter().sum()))
    }
}

fn names(pools: &[Value]) -> Vec<String> {
    pools.iter().filter_map(|pool| pool["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// The values of all samples of the operator's metrics that begin so.
fn samples<T: FromStr>(operator: &Operator, prefix: &str) -> Result<Vec<T>> {
    let (code, text) = http::get(&operator.metrics(), "/metrics")?;
    ensure!(code == 200, "/metrics answers {code}");
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    let value = |line: &str| line.rsplit_once(' ')?.1.parse().ok();
    lines.map(|line| value(line).with_context(|| format!("no number in {line:?}"))).collect()
}

/// Creates the pools; answers when that was, and how long it took until the status of each named every node.
async fn apply(client: &Client, pools: &[Value], nodes: u32, within: Duration) -> Result<(Instant, Duration)> {
    let api: Api<IPPool> = Api::namespaced(client.clone(), NAMESPACE);
    let mut events = pin!(api.watch(&WatchParams::default(), "0").await?);
    let (wanted, full) = (usize::try_from(nodes)?, Cell::new(0));
    let began = Instant::now();
    load::apply_pools(client, NAMESPACE, pools).await?;
    let all = async {
        let mut done = BTreeSet::new();
        while let Some(event) = events.next().await {
            let took = began.elapsed();
            let (WatchEvent::Added(pool) | WatchEvent::Modified(pool)) = event? else { continue };
            if pool.status.map_or(0, |status| status.allocations.len()) == wanted {
                done.extend(pool.metadata.name);
                full.set(done.len());
            }
            if done.len() == pools.len() {
                return Ok(took);
            }
        }
        Err(Late { what: "full statuses".to_owned(), within: began.elapsed(), reached: "the watch ended".to_owned() }
            .into())
    };
    let reached = || format!("{} of {} pools have a full status", full.get(), pools.len());
    Ok((began, in_time("full statuses", within, all, reached).await?))
}

/// A quick answer is worth nothing if it is wrong: each node has a block of its own of each pool.
async fn ensure_right(client: &Client, pools: &[Value], nodes: u32) -> Result<()> {
    let wanted = usize::try_from(nodes)?;
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    // Not any version: the API server's cache may lag behind the last writes.
    let listed = api.list(&ListParams::default()).await?.items;
    for pool in names(pools) {
        let blocks = listed.iter().flat_map(|node| &node.spec.pools).filter(|block| block.name == pool);
        let distinct: BTreeSet<&str> = blocks.map(|block| block.start_ip.as_str()).collect();
        ensure!(distinct.len() == wanted, "{} of {wanted} nodes have a block of {pool}", distinct.len());
    }
    Ok(())
}
