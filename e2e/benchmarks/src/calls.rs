//! Calls to an agent that holds 10,000 addresses: one caller after another, and 32 at a time. Each answer is durable.

use std::fs::File;
use std::io::{Seek as _, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use ipam_node_api::v1::{IpamMetadata, IpamParameters};

use super::agent::Agent;
use super::finding::Finding;
use super::lone::{Lone, POOL};
use super::stats::{Samples, Unit};

const HELD: u32 = 10_000;
const SINGLE: u32 = 1_000;
const CALLERS: u32 = 32;
const CALLS_EACH: u32 = 200;
const ROUNDS: u32 = 5;
const LATENCY_AIM: f64 = 0.002;
const RATE_AIM: f64 = 3_000.0;
const DEADLINE: Duration = Duration::from_secs(30);

pub(super) fn measure(lone: &mut Lone<'_>) -> Result<Vec<Finding>> {
    let (runtime, address) = (lone.runtime, lone.agent.address());
    let sync = Samples::times(syncs(&lone.agent)?);
    runtime.block_on(all(&address, 0..HELD, true))?;
    let times = Samples::times(runtime.block_on(one_caller(&address))?);
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let containers = HELD..HELD + CALLERS * CALLS_EACH;
        let took = runtime.block_on(all(&address, containers.clone(), true))?;
        rates.push(f64::from(CALLERS * CALLS_EACH) / took.as_secs_f64());
        runtime.block_on(all(&address, containers, false))?;
    }
    let single = format!("p99 {}, connecting included; one fdatasync {}", times.show(99), sync.show(50));
    Ok(vec![
        Finding::new("agent with 10,000 addresses in use: ADD of one caller", times)
            .reference("60.7 ms")
            .at_most(LATENCY_AIM)
            .also(single),
        Finding::new("agent with 10,000 addresses in use: 32 callers", Samples::new(Unit::Of("ADD/s"), rates))
            .reference("16.7 ADD/s")
            .at_least(RATE_AIM)
            .also(format!("each sample {} ADDs", CALLERS * CALLS_EACH)),
    ])
}

/// ADDs one after another, each on a connection of its own, as a plugin makes it; each address is freed again, unmeasured.
async fn one_caller(address: &AgentAddress) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for number in HELD..HELD + SINGLE {
        let began = Instant::now();
        let client = AgentClient::connect(address, deadline()).await?;
        let allocated = client.allocate(parameters(number), deadline()).await?;
        times.push(began.elapsed());
        ensure!(allocated.len() == 1, "{} addresses of one pool", allocated.len());
        client.deallocate(parameters(number), deadline()).await?;
    }
    Ok(times)
}

/// Allocates an address for each container, or frees it: 32 callers, each on a connection that it keeps, each one call at a time.
/// Answers how long the calls took, without connecting.
pub(super) async fn all(address: &AgentAddress, containers: Range<u32>, allocate: bool) -> Result<Duration> {
    let connecting = (0..CALLERS).map(|_| AgentClient::connect(address, deadline()));
    let clients = try_join_all(connecting).await?;
    let share = |caller: usize| containers.clone().skip(caller).step_by(clients.len());
    let began = Instant::now();
    let calling = clients.iter().enumerate().map(|(caller, client)| async move {
        for number in share(caller) {
            if allocate {
                client.allocate(parameters(number), deadline()).await.map(drop)?;
            } else {
                client.deallocate(parameters(number), deadline()).await?;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(calling).await.context("a call failed")?;
    Ok(began.elapsed())
}

pub(super) fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + DEADLINE
}

/// What a plugin sends; container ids are as long as real ones.
pub(super) fn parameters(number: u32) -> IpamParameters {
    IpamParameters {
        pools: vec![POOL.to_owned()],
        cni_containerid: format!("{number:064x}"),
        cni_ifname: "net1".to_owned(),
        metadata: Some(IpamMetadata {
            k8s_pod_name: format!("pod-{number}"),
            k8s_pod_namespace: "default".to_owned(),
            k8s_pod_uid: format!("00000000-0000-4000-8000-{number:012x}"),
            ..IpamMetadata::default()
        }),
        ..IpamParameters::default()
    }
}

fn syncs(agent: &Agent) -> Result<Vec<Duration>> {
    let mut probe = SyncProbe::new(agent)?;
    (0..500).map(|_| probe.time()).collect()
}

/// What the disk below the agent's store takes to make a small record durable, for comparison.
pub(super) struct SyncProbe(File);

impl SyncProbe {
    /// Records that have room in the file.
    const RECORDS: u64 = 1_000;
    const RECORD: [u8; 300] = [1; 300];

    pub(super) fn new(agent: &Agent) -> Result<Self> {
        let mut file = File::create(agent.home().join("sync"))?;
        // Room ahead of the writes, as the journal has it: else each sync would pay for the file's growth.
        for _ in 0..Self::RECORDS {
            file.write_all(&[0; Self::RECORD.len()])?;
        }
        file.sync_all()?;
        file.rewind()?;
        Ok(Self(file))
    }

    /// Writes a record and syncs it.
    pub(super) fn time(&mut self) -> Result<Duration> {
        if self.0.stream_position()? >= self.0.metadata()?.len() {
            self.0.rewind()?;
        }
        let began = Instant::now();
        self.0.write_all(&Self::RECORD)?;
        self.0.sync_data()?;
        Ok(began.elapsed())
    }
}
