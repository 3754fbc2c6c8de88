//! One node joins a large cluster.

use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use futures::future::try_join_all;
use ipam_crds::{IPAMNode, IPPool};
use k8s_openapi::api::core::v1::Node;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};

use super::bound::in_time;
use super::finding::Finding;
use super::large::{DEADLINE, Large, POOL, STILL};
use super::load;
use super::stage::NAMESPACE;
use super::stats::{Samples, Unit};
use ipam_e2e::eventually::Late;

const JOINS: u32 = 25;
/// What a join may take beyond the time that the API server needs for the statuses.
pub(super) const BEYOND_AIM: f64 = 0.1;
const CPU_AIM: f64 = 0.02;
/// How often this program writes the statuses itself.
const WRITES: u32 = 10;

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let at = format!("one node joins at {}", large.nodes);
    let mut joined = Joined::default();
    for _ in 0..JOINS {
        joined.add(large, DEADLINE)?;
    }
    let row = joined.row(format!("{at}: Node created → IPAMNode"), &statuses(large)?);
    Ok(vec![
        row.reference("0.5–1.1 s"),
        Finding::new(format!("{at}: CPU of the operator"), joined.cpu()).reference("0.4–1.35 s").at_most(CPU_AIM),
    ])
}

/// What some joins took.
#[derive(Default)]
pub(super) struct Joined {
    times: Vec<Duration>,
    cpu: Vec<Duration>,
}

impl Joined {
    /// One more node joins a cluster at rest.
    pub(super) fn add(&mut self, large: &mut Large<'_>, within: Duration) -> Result<String> {
        let (name, meter, client) = (large.newcomer(), large.meter(), large.client());
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        self.times.push(large.block_on(join(&client, &name, large.pools.len(), within))?);
        // The call is over, but not what it leaves to do.
        meter.settle(STILL)?;
        self.cpu.push(meter.cpu()?.since(&before));
        if large.pools.len() == 1 {
            large.block_on(ensure_same_block(&client, &name))?;
        }
        Ok(name)
    }

    pub(super) fn times(&self) -> Samples {
        Samples::times(self.times.iter().copied())
    }

    /// A row about the time of a join, of which the API server needs `statuses` for the statuses.
    pub(super) fn row(&self, what: String, statuses: &Samples) -> Finding {
        let (times, needed) = (self.times(), statuses.median());
        let beyond = times.median() - needed;
        let aim = format!("≤ {} beyond the statuses", Unit::Time.show(BEYOND_AIM));
        let also = format!(
            "this program needs {} to write the same statuses; beyond: {}",
            Unit::Time.show(needed),
            Unit::Time.show(beyond.max(0.0))
        );
        Finding::new(what, times).demand(aim, beyond <= BEYOND_AIM).also(also)
    }

    pub(super) fn cpu(&self) -> Samples {
        Samples::times(self.cpu.iter().copied())
    }
}

/// How long the API server needs for the statuses of all pools, written at once: this program writes each again with another count.
/// No operator runs meanwhile. The watches of the Lease and of its webhook are gone with it.
pub(super) fn statuses(large: &mut Large<'_>) -> Result<Samples> {
    large.stop()?;
    let (client, pools) = (large.client(), large.pool_names());
    let times = large.block_on(async {
        let api: Api<IPPool> = Api::namespaced(client, NAMESPACE);
        let mut times = Vec::new();
        for _ in 0..WRITES {
            let mut objects = try_join_all(pools.iter().map(|name| api.get(name))).await?;
            for object in &mut objects {
                let addresses = object.status.as_mut().and_then(|status| status.addresses.as_mut());
                addresses.context("a pool has no counts")?.used += 1;
            }
            let began = Instant::now();
            let options = PostParams::default();
            let mut writes = Vec::new();
            for (name, object) in pools.iter().zip(&objects) {
                writes.push(api.replace_status(name, &options, object));
            }
            try_join_all(writes).await?;
            times.push(began.elapsed());
        }
        anyhow::Ok(times)
    })?;
    large.start()?;
    Ok(Samples::times(times))
}

/// From the call that creates the Node to the event that shows its IPAMNode with as many blocks. The operator writes that after
/// the pools' statuses.
pub(super) async fn join(client: &Client, name: &str, blocks: usize, within: Duration) -> Result<Duration> {
    const WHAT: &str = "the IPAMNode of a new node";
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(api.watch(&only, "0").await?);
    let began = Instant::now();
    load::create_one(&Api::<Node>::all(client.clone()), name).await?;
    let has = Cell::new(0);
    let there = async {
        while let Some(event) = events.next().await {
            let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = event? else { continue };
            has.set(node.spec.pools.len());
            if has.get() == blocks {
                return Ok(began.elapsed());
            }
        }
        Err(Late {
            what: WHAT.to_owned(),
            within: began.elapsed(),
            reached: format!("{} of {blocks} blocks", has.get()),
        }
        .into())
    };
    let reached = || format!("{} of {blocks} blocks of {name}", has.get());
    in_time(WHAT, within, there, reached).await
}

/// An error unless status and IPAMNode name the same block. The agent's first address may be one further than the block's.
async fn ensure_same_block(client: &Client, name: &str) -> Result<()> {
    let pool = Api::<IPPool>::namespaced(client.clone(), NAMESPACE).get(POOL).await?;
    let assigned = pool.status.into_iter().flat_map(|status| status.allocations).find(|entry| entry.node_name == name);
    let assigned = assigned.with_context(|| format!("the pool's status does not name {name}"))?;
    let object = Api::<IPAMNode>::namespaced(client.clone(), NAMESPACE).get(name).await?;
    let [block] = &object.spec.pools[..] else { bail!("{name} has not one block") };
    let (of_status, of_node) = ((&assigned.start_ip, &assigned.end_ip), (&block.start_ip, &block.end_ip));
    ensure!(of_status == of_node, "{name}: the status has {of_status:?}, its IPAMNode {of_node:?}");
    Ok(())
}
