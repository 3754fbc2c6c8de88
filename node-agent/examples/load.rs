//! Measures a running agent: fills its pool, then times ADD and DEL of one caller and of many.
//!
//! `cargo run --release -p ipam-node-agent --example load -- unix:///path/daemon.sock POOL HELD CALLERS OPERATIONS`
//!
//! Leaves what it filled in held, so that the agent's memory can be looked at.

#![expect(clippy::print_stdout, reason = "a table on stdout is what this program is for")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipam_node_api::client::AgentClient;
use ipam_node_api::v1::{IpamMetadata, IpamParameters};

fn parameters(pool: &str, container: String) -> IpamParameters {
    let metadata = IpamMetadata {
        k8s_pod_name: format!("pod-{container}"),
        k8s_pod_namespace: "default".to_owned(),
        k8s_pod_uid: "00000000-0000-0000-0000-000000000000".to_owned(),
        ..IpamMetadata::default()
    };
    IpamParameters {
        pools: vec![pool.to_owned()],
        cni_containerid: container,
        cni_ifname: "net1".to_owned(),
        metadata: Some(metadata),
        ..IpamParameters::default()
    }
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(30)
}

/// One caller: `count` times ADD and DEL. Returns the time of each operation.
async fn caller(client: AgentClient, pool: String, name: String, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(2 * count);
    for number in 0..count {
        let one = parameters(&pool, format!("{name}-{number}"));
        let started = Instant::now();
        client.allocate(one.clone(), deadline()).await?;
        times.push(started.elapsed());
        let started = Instant::now();
        client.deallocate(one, deadline()).await?;
        times.push(started.elapsed());
    }
    Ok(times)
}

async fn fill(client: &AgentClient, pool: &str, held: usize) -> Result<()> {
    let workers = (0..64).map(|worker| {
        let (client, pool) = (client.clone(), pool.to_owned());
        tokio::spawn(async move {
            for number in (worker..held).step_by(64) {
                client.allocate(parameters(&pool, format!("held-{number}")), deadline()).await?;
            }
            Ok::<_, tonic::Status>(())
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await??;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, pool, held, callers, operations] = &args[..] else {
        bail!("usage: load ADDRESS POOL HELD CALLERS OPERATIONS");
    };
    let (held, callers, operations): (usize, usize, usize) = (held.parse()?, callers.parse()?, operations.parse()?);
    let client = AgentClient::connect(&address.parse()?, deadline()).await.context("connect")?;
    fill(&client, pool, held).await?;
    for callers in [1, callers] {
        let started = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|n| tokio::spawn(caller(client.clone(), pool.clone(), format!("c{n}"), operations / 2 / callers)))
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await??);
        }
        times.sort_unstable();
        let (total, count) = (started.elapsed(), u32::try_from(times.len())?);
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        let rate = f64::from(count) / total.as_secs_f64();
        println!("{callers:3} callers, {held} held: {rate:8.0} op/s, p50 {:?}, p99 {:?}", at(50), at(99));
    }
    Ok(())
}
