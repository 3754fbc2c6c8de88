//! Fifty real agents, each a process with the chart's flags, the token of its pod, and a socket, journal and plugin of its own.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ipam_crds::{IPAMNode, IPPool};
use ipam_node_api::client::AgentClient;
use ipam_node_api::v1::{IpamMetadata, IpamParameters};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::agent::Agent;
use super::finding::Finding;
use super::large::{DEADLINE, Large, POOL, STILL, one_pool};
use super::load;
use super::meter::Memory;
use super::requests::Requests;
use super::stage::{NAMESPACE, Stage};
use super::stats::{Samples, Unit, number};
use ipam_e2e::eventually::eventually;
use ipam_e2e::progress::Step;

const AGENTS: u32 = 50;
/// Edits of the pool that change the spec of every IPAMNode.
const EDITS: u32 = 10;
/// Each agent checks for stale addresses once a minute: by now each has done so.
const CHECKED: Duration = Duration::from_secs(75);
/// How long pods come and go.
const WINDOWS: u32 = 12;
const WINDOW: Duration = Duration::from_secs(5);
/// Pods that begin and end in a window.
const PODS: u32 = 40;
const MEMORY_AIM: f64 = 10.0 * 1024.0;

pub(super) fn measure(stage: &Stage<'_>) -> Result<Vec<Finding>> {
    let mut large = Large::begin(stage, AGENTS, one_pool())?;
    large.apply(DEADLINE)?;
    let started = Instant::now();
    let mut agents = start(stage)?;
    large.block_on(all_report(stage))?;
    let mut findings = vec![convergence(&mut large)?];
    std::thread::sleep(CHECKED.saturating_sub(started.elapsed()));
    findings.extend(memory(&agents)?);
    findings.push(reports(stage, &agents)?);
    for agent in &mut agents {
        agent.ensure_running()?;
    }
    Ok(findings)
}

fn start(stage: &Stage<'_>) -> Result<Vec<Agent>> {
    let step = Step::start(&format!("{AGENTS} agents"));
    let launch = |number| Agent::launch(stage, &load::name(number), stage.plane.port());
    let mut agents = (0..AGENTS).map(launch).collect::<Result<Vec<_>>>()?;
    for agent in &mut agents {
        agent.await_ready()?;
    }
    step.done();
    Ok(agents)
}

/// Waits until every agent has reported the spec of today.
async fn all_report(stage: &Stage<'_>) -> Result<()> {
    let api: Api<IPAMNode> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let reported = async || -> Result<()> {
        let nodes = api.list(&ListParams::default()).await?.items;
        let current = |node: &&IPAMNode| {
            node.status.as_ref().is_some_and(|status| status.observed_generation == node.metadata.generation)
        };
        let count = nodes.iter().filter(current).count();
        ensure!(count == nodes.len(), "{count} of {} agents have reported", nodes.len());
        Ok(())
    };
    eventually("the report of every agent", DEADLINE, reported).await
}

/// From the edit of a pool to the last agent's report that it is in force.
fn convergence(large: &mut Large<'_>) -> Result<Finding> {
    let (stage, mut times) = (large.stage, Vec::new());
    for round in 1..=EDITS {
        large.meter().settle(STILL)?;
        // An agent writes at most one report a second: an edit right after the last one would wait for that.
        std::thread::sleep(Duration::from_secs(1));
        times.push(large.block_on(edit(stage, round))?);
    }
    let what = format!("a pool is edited → all {AGENTS} agents (real processes) report it in force");
    Ok(Finding::new(what, Samples::times(times)))
}

async fn edit(stage: &Stage<'_>, round: u32) -> Result<Duration> {
    let pools: Api<IPPool> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let nodes: Api<IPAMNode> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let dst = format!("172.16.{round}.0/24");
    let began = Instant::now();
    let patch = Patch::Merge(json!({"spec": {"routes": [{"dst": dst}]}}));
    pools.patch(POOL, &PatchParams::default(), &patch).await?;
    let in_force = async || -> Result<()> {
        let nodes = nodes.list(&ListParams::default()).await?.items;
        let current = |node: &&IPAMNode| {
            let edited = node.spec.pools.iter().all(|block| block.routes.iter().any(|route| route.dst == dst));
            let status = node.status.as_ref();
            edited && status.is_some_and(|status| status.observed_generation == node.metadata.generation)
        };
        let count = nodes.iter().filter(current).count();
        ensure!(count == nodes.len(), "{count} of {} agents have the edit in force", nodes.len());
        Ok(())
    };
    eventually("the edit in force everywhere", DEADLINE, in_force).await?;
    Ok(began.elapsed())
}

fn memory(agents: &[Agent]) -> Result<Vec<Finding>> {
    let memory = agents.iter().map(|agent| agent.meter().memory()).collect::<Result<Vec<_>>>()?;
    let kib = |read: fn(&Memory) -> u64| Samples::counts(Unit::Memory, memory.iter().map(read));
    let what = format!("memory of {AGENTS} agents (real processes)");
    Ok(vec![
        Finding::new(format!("{what}: idle"), kib(|memory| memory.now)).reference("38.9 MiB").at_most(MEMORY_AIM),
        Finding::new(format!("{what}: most, plugin copied, stale addresses checked"), kib(|memory| memory.most)),
    ])
}

/// Reports while pods begin and end on all agents by turns.
fn reports(stage: &Stage<'_>, agents: &[Agent]) -> Result<Finding> {
    let mut rates = Vec::new();
    stage.runtime.block_on(async {
        let began = tokio::time::Instant::now();
        let mut before = Requests::so_far(stage).await?;
        for pod in 0..=WINDOWS * PODS {
            tokio::time::sleep_until(began + WINDOW * pod / PODS).await;
            if pod > 0 && pod % PODS == 0 {
                let now = Requests::so_far(stage).await?;
                rates.push(number(now.since(before).reports) * 60.0 / WINDOW.as_secs_f64());
                before = now;
            }
            let at = |pod: u32| &agents[usize::try_from(pod % AGENTS).unwrap_or_default()];
            call(at(pod), pod, true).await?;
            // A pod lasts about as long as two windows.
            if let Some(old) = pod.checked_sub(2 * PODS) {
                call(at(old), old, false).await?;
            }
        }
        anyhow::Ok(())
    })?;
    let pods = format!("{} pods a minute begin and as many end", PODS * 12);
    let what = format!("reports of {AGENTS} agents (real processes) under pod churn");
    Ok(Finding::new(what, Samples::new(Unit::Of("a minute"), rates)).also(pods))
}

/// An address for a pod, or its end.
async fn call(agent: &Agent, pod: u32, begins: bool) -> Result<()> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let client = AgentClient::connect(&agent.address(), deadline).await?;
    let parameters = IpamParameters {
        pools: vec![POOL.to_owned()],
        cni_containerid: format!("{pod:064x}"),
        cni_ifname: "net1".to_owned(),
        metadata: Some(IpamMetadata {
            k8s_pod_name: format!("pod-{pod}"),
            k8s_pod_namespace: "default".to_owned(),
            ..IpamMetadata::default()
        }),
        ..IpamParameters::default()
    };
    if begins {
        client.allocate(parameters, deadline).await.map(drop)?;
    } else {
        client.deallocate(parameters, deadline).await?;
    }
    Ok(())
}
