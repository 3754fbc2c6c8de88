//! One node joins a large cluster.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use ipam_crds::{IPAMNode, IPPool};
use k8s_openapi::api::core::v1::Node;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::time::timeout;

use super::large::{DEADLINE, Large, NAMESPACE, POOL, STILL};
use super::load;
use super::meter::{median, ms, percentile};
use super::table::Finding;

const JOINS: u32 = 25;
const TIME_AIM: Duration = Duration::from_millis(100);
const CPU_AIM: Duration = Duration::from_millis(20);

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let meter = large.meter();
    let waited = large.waited()?;
    let (mut times, mut cpu) = (Vec::new(), Duration::ZERO);
    for _ in 0..JOINS {
        let name = large.newcomer();
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        times.push(large.runtime.block_on(join(&large.client, &name))?);
        // The call is over, but not what it leaves to do.
        meter.settle(STILL)?;
        cpu += meter.cpu()?.since(&before);
        large.runtime.block_on(ensure_same_block(&large.client, &name))?;
    }
    let (cpu, waited) = (cpu / JOINS, large.waited()?.saturating_sub(waited) / JOINS);
    Ok(vec![Finding {
        what: "one node joins at 5,000".to_owned(),
        reference: "0.5–1.1 s, 0.4–1.35 CPU s",
        aim: "≤ 0.1 s, ≤ 0.02 CPU s",
        measured: format!(
            "{} (p90 {}), of which the API server's answer to the status {} on average; {:.4} CPU s; {JOINS} joins",
            ms(median(&times)),
            ms(percentile(&times, 90)),
            ms(waited),
            cpu.as_secs_f64()
        ),
        met: median(&times) <= TIME_AIM && cpu <= CPU_AIM,
    }])
}

/// From the call that creates the Node to the event that shows its IPAMNode. The operator writes that after the pool's status.
pub(super) async fn join(client: &Client, name: &str) -> Result<Duration> {
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(api.watch(&only, "0").await?);
    let began = Instant::now();
    load::create_one(&Api::<Node>::all(client.clone()), name).await?;
    let there = async {
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(_) = event? {
                return Ok(began.elapsed());
            }
        }
        bail!("the watch of an IPAMNode has ended")
    };
    timeout(DEADLINE, there).await.with_context(|| format!("no IPAMNode {name}"))?
}

/// An error unless status and IPAMNode name the same block. The agent's first address may be one further than the block's.
async fn ensure_same_block(client: &Client, name: &str) -> Result<()> {
    let pool = Api::<IPPool>::namespaced(client.clone(), NAMESPACE).get(POOL).await?;
    let given = pool.status.into_iter().flat_map(|status| status.allocations).find(|given| given.node_name == name);
    let given = given.with_context(|| format!("the pool's status does not name {name}"))?;
    let object = Api::<IPAMNode>::namespaced(client.clone(), NAMESPACE).get(name).await?;
    let [block] = &object.spec.pools[..] else { bail!("{name} has not one block") };
    let (of_status, of_node) = ((&given.start_ip, &given.end_ip), (&block.start_ip, &block.end_ip));
    ensure!(of_status == of_node, "{name}: the status says {of_status:?}, its IPAMNode {of_node:?}");
    Ok(())
}
