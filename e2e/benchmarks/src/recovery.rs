//! Records are lost on a large cluster with eight pools, while pods of every node use addresses of each: the CRDs are deleted and
//! installed again, and etcd is restored from a backup that lacks one pool with all its blocks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use ipam_crds::{IPAMNode, IPPool};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use super::bound::Bound;
use super::churn;
use super::finding::Finding;
use super::fleet::{Fleet, Member};
use super::large::{Large, STILL, eight_pools};
use super::load;
use super::meter::Cpu;
use super::outside::leases;
use super::stage::{NAMESPACE, Stage};
use super::stats::{Samples, Unit, number};
use ipam_e2e::cluster::install_crds;
use ipam_e2e::eventually::eventually_blocking;

/// For all of it.
const LIMIT: Duration = Duration::from_mins(20);
/// Every status is right after so many seconds.
const AIM: f64 = 60.0;
/// A Lease that no leader has renewed for a minute shows a restore.
const OLD: Duration = Duration::from_secs(75);
/// Between two looks at the statuses. Each makes the API server encode all of them, which are megabytes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pods that begin at the same time.
const AT_ONCE: usize = 50;

/// The block of each node, by pool.
type Blocks = BTreeMap<String, BTreeMap<String, (String, String)>>;

pub(super) fn measure(stage: &Stage<'_>, nodes: u32) -> Result<Vec<Finding>> {
    let at = format!("{nodes} nodes, 8 pools, all in use");
    Bound::run(LIMIT, |bound| {
        let what = bound.begin(format!("{at}: CRDs deleted and installed again → statuses right"));
        bound.expect([restored_row(&at)]);
        let mut large = Large::begin(stage, nodes, eight_pools())?;
        large.apply(bound.left())?;
        let done = losses(bound, &mut large, what, &at);
        large.unless_ended(done)
    })
}

fn restored_row(at: &str) -> String {
    format!("{at}: etcd restored from a backup without one pool → statuses right")
}

fn losses(bound: &mut Bound, large: &mut Large<'_>, what: String, at: &str) -> Result<()> {
    let fleet = Fleet::start(large.stage, &large.pool_names())?;
    let members = churn::begin(large, &fleet, bound.left())?;
    let _members = large.block_on(pods(members))?;
    at_rest(large, bound.left())?;
    let wanted = blocks(large.block_on(pools(&large.client()))?);
    for pool in large.pool_names() {
        let count = wanted.get(&pool).map_or(0, BTreeMap::len);
        ensure!(count == usize::try_from(large.nodes)?, "{count} nodes have a block of {pool}");
    }

    let loss = Loss::begin(large)?;
    reinstall_crds(large)?;
    let loss = loss.timed_from(Instant::now());
    apply(large, &wanted)?;
    bound.found(loss.row(what, large, &wanted, bound.left())?);

    // The backup is from a time at which the last pool did not exist. Its blocks were assigned since.
    let what = bound.begin(restored_row(at));
    let mut others = wanted.clone();
    let newest: Blocks = others.pop_last().into_iter().collect();
    reinstall_crds(large)?;
    apply(large, &others)?;
    right(large, &others, bound.left())?;
    at_rest(large, bound.left())?;
    // The API server is away meanwhile. A leader could lose its Lease to that.
    large.stop()?;
    large.stage.plane.backup()?;
    let saved = Instant::now();
    large.start()?;
    apply(large, &newest)?;
    right(large, &wanted, bound.left())?;
    at_rest(large, bound.left())?;
    // By the age of its Lease, a leader sees that the state is an earlier one.
    std::thread::sleep(OLD.saturating_sub(saved.elapsed()));
    large.stage.plane.restore()?;
    let served = Instant::now();
    // The leader sees that its Lease is an earlier one, and ends. Its Deployment would start it again.
    large.operator.process().wait(bound.left())?;
    large.start()?;
    let loss = Loss::begin(large)?.timed_from(served);
    apply(large, &newest)?;
    bound.found(loss.row(what, large, &wanted, bound.left())?);
    Ok(())
}

/// A loss of records, and what was so before it or before its end.
struct Loss {
    began: Instant,
    leases: (Option<String>, Option<i32>),
    cpu: Cpu,
}

impl Loss {
    fn begin(large: &mut Large<'_>) -> Result<Self> {
        let leases = large.block_on(leases(&large.client()))?;
        Ok(Self { began: Instant::now(), leases, cpu: large.meter().cpu()? })
    }

    /// Times it from when the API server serves again.
    fn timed_from(self, began: Instant) -> Self {
        Self { began, ..self }
    }

    /// Waits until all is right again.
    fn row(self, what: String, large: &mut Large<'_>, wanted: &Blocks, within: Duration) -> Result<Finding> {
        right(large, wanted, within)?;
        let took = self.began.elapsed();
        let is_alive = large.operator.process().ensure_running().is_ok();
        let kept = self.leases == large.block_on(leases(&large.client()))? && is_alive;
        let meter = large.meter();
        let cpu = Unit::Time.show(meter.cpu()?.since(&self.cpu).as_secs_f64());
        let memory = Unit::Memory.show(number(large.meter().memory()?.most));
        let also = format!("operator: CPU {cpu}, memory at most {memory}");
        Ok(Finding::new(what, Samples::times([took])).at_most(AIM).demand("Lease kept", kept).also(also))
    }
}

/// Applies these pools.
fn apply(large: &Large<'_>, names: &Blocks) -> Result<()> {
    let is_named = |pool: &&Value| pool["metadata"]["name"].as_str().is_some_and(|name| names.contains_key(name));
    let pools: Vec<Value> = large.pools.iter().filter(is_named).cloned().collect();
    large.block_on(load::apply_pools(&large.client(), NAMESPACE, &pools))
}

fn reinstall_crds(large: &Large<'_>) -> Result<()> {
    large.block_on(delete_crds(&large.client()))?;
    install_crds(large.stage.plane)
}

/// Waits until the statuses record these blocks and no pool is paused.
fn right(large: &Large<'_>, wanted: &Blocks, within: Duration) -> Result<()> {
    let client = large.client();
    let look = || -> Result<()> {
        let pools = large.block_on(pools(&client))?;
        let paused = pools.iter().filter(|pool| is_paused(pool)).count();
        ensure!(paused == 0, "{paused} pools assign nothing");
        let known = blocks(pools);
        for (pool, wanted) in wanted {
            let right = known.get(pool).into_iter().flatten().filter(|(node, block)| wanted.get(*node) == Some(block));
            let right = right.count();
            ensure!(right == wanted.len(), "{right} of {} blocks of {pool} are recorded", wanted.len());
        }
        Ok(())
    };
    eventually_blocking("all statuses are right", within, || look().inspect_err(|_| std::thread::sleep(LOOK_EVERY)))
}

/// A pod of each node uses an address of each pool.
async fn pods(members: Vec<Member>) -> Result<Vec<Member>> {
    let add = |mut member: Member| async move {
        member.add().await?;
        anyhow::Ok(member)
    };
    stream::iter(members).map(add).buffer_unordered(AT_ONCE).try_collect().await
}

/// Waits until reports and counts are written.
fn at_rest(large: &mut Large<'_>, within: Duration) -> Result<()> {
    let meter = large.meter();
    eventually_blocking("the operator comes to rest", within, || {
        let before = large.counter(super::large::PUTS)?;
        // Longer than counts wait.
        std::thread::sleep(Duration::from_secs(12));
        let count = large.counter(super::large::PUTS)?.saturating_sub(before);
        ensure!(count == 0, "{count} statuses were written");
        meter.settle(STILL)
    })
}

/// All pools, as the API server has them in memory.
async fn pools(client: &Client) -> Result<Vec<IPPool>> {
    let api = Api::<IPPool>::namespaced(client.clone(), NAMESPACE);
    Ok(api.list(&ListParams::default().match_any()).await?.items)
}

/// The blocks that the statuses record.
fn blocks(pools: Vec<IPPool>) -> Blocks {
    let of = |pool: IPPool| {
        let allocations = pool.status.into_iter().flat_map(|status| status.allocations);
        let blocks = allocations.map(|block| (block.node_name, (block.start_ip, block.end_ip))).collect();
        Some((pool.metadata.name?, blocks))
    };
    pools.into_iter().filter_map(of).collect()
}

/// Whether a pool assigns nothing until nodes have reported.
fn is_paused(pool: &IPPool) -> bool {
    let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == "AllocationPaused" && condition.status == "True")
}

/// Deletes the CRDs with all their objects. No finalizer holds these.
async fn delete_crds(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let names = ["ippools", "cidrpools", "ipamnodes"].map(|plural| format!("{plural}.nv-ipam.nvidia.com"));
    for name in &names {
        crds.delete(name, &DeleteParams::default()).await.with_context(|| format!("cannot delete {name}"))?;
    }
    let pools: Api<IPPool> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    while has_any(&crds, &names).await? {
        load::strip(&pools).await?;
        load::strip(&nodes).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn has_any(crds: &Api<CustomResourceDefinition>, names: &[String]) -> Result<bool> {
    for name in names {
        if crds.get_metadata_opt(name).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
