//! A large cluster with an in-process agent for each node, while nodes and pods come and go; and how soon an empty block is free.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use ipam_crds::{IPAMNode, IPPool};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};

use super::bound::in_time;
use super::finding::Finding;
use super::fleet::{Fleet, Member};
use super::large::{DEADLINE, Large, POOL, STILL};
use super::load;
use super::minute::{Minute, PODS};
use super::restart;
use super::stage::NAMESPACE;
use super::stats::{Samples, Unit, number};
use ipam_e2e::eventually::eventually;
use ipam_e2e::progress::Step;

/// Nodes that leave and nodes that join in the minute.
const NODES: u32 = 50;
/// Blocks whose way from empty to free is timed.
const FREED: usize = 20;
const FREE_AIM: f64 = 1.0;
/// The agents' first reports, on two busy cores.
const REPORTS: Duration = Duration::from_mins(10);
/// Agents that start at once. All of them together would keep the API server so busy that the operator loses its Lease.
const GROUP: usize = 100;

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let fleet = Fleet::start(large.stage, &large.pool_names())?;
    let mut members = begin(large, &fleet, REPORTS)?;
    let mut findings = churn(large, &fleet, &mut members)?;
    large.meter().settle(STILL)?;
    findings.push(freed(large, &mut members)?);
    findings.push(restart::measure(large)?);
    Ok(findings)
}

/// One agent for each node, all of which have reported. They start in groups.
pub(super) fn begin(large: &Large<'_>, fleet: &Fleet, within: Duration) -> Result<Vec<Member>> {
    let step = Step::start(&format!("{} in-process agents", large.nodes));
    let api: Api<IPAMNode> = Api::namespaced(large.client(), NAMESPACE);
    let ends = Instant::now() + within;
    let members = large.block_on(async {
        let listed = api.list_metadata(&ListParams::default()).await?.items;
        let names: Vec<String> = listed.into_iter().filter_map(|node| node.metadata.name).collect();
        let mut members = Vec::with_capacity(names.len());
        for group in names.chunks(GROUP) {
            for name in group {
                members.push(fleet.enlist(name.clone())?);
            }
            for name in group {
                let reported = async || -> Result<()> {
                    ensure!(has_reported(&api.get(name).await?), "the agent of {name} has not reported");
                    Ok(())
                };
                eventually("the first report of every agent", ends.saturating_duration_since(Instant::now()), reported)
                    .await?;
            }
        }
        anyhow::Ok(members)
    })?;
    step.done();
    Ok(members)
}

fn has_reported(node: &IPAMNode) -> bool {
    node.status.as_ref().is_some_and(|status| status.observed_generation == node.metadata.generation)
}

/// Nodes and pods come and go for a minute.
fn churn(large: &mut Large<'_>, fleet: &Fleet, members: &mut Vec<Member>) -> Result<Vec<Finding>> {
    let count = NODES.min(large.nodes / 5);
    let mut newcomers: Vec<String> = (0..count).map(|_| large.newcomer()).collect();
    let nodes: Api<Node> = Api::all(large.client());
    let mut gone = Vec::new();
    let minute = Minute::play(large, members, async |turn, members| {
        if turn % (PODS / count) == 0
            && let Some(name) = newcomers.pop()
        {
            gone.push(leave(&nodes, members).await?);
            members.push(fleet.enlist(name.clone())?);
            load::create_one(&nodes, &name).await?;
        }
        Ok(())
    })?;
    large.meter().settle(STILL)?;
    let memory = large.meter().memory()?;
    let resident = |kib: u64| Unit::Memory.show(number(kib));
    let what =
        format!("{} in-process agents, a minute with {count} nodes leaving, {count} joining, {PODS} pods", large.nodes);
    let also = format!("of them reports {}, other writes {}", minute.reports().show(50), minute.writes().show(50));
    let held = format!("memory {}, at most {}", resident(memory.now), resident(memory.most));
    Ok(vec![
        minute.row(format!("{what}: API requests"), minute.requests(), &also).reference("no reports"),
        minute.row("the same: etcd's log".to_owned(), minute.log(), &minute.puts().show(50)),
        minute.row("the same: operator".to_owned(), minute.cpu(), &held),
    ])
}

/// A drained node leaves. Its agent reports by itself that nothing is in use.
async fn leave(nodes: &Api<Node>, members: &mut Vec<Member>) -> Result<Member> {
    ensure!(!members.is_empty(), "no agent is idle");
    let mut member = members.swap_remove(fastrand::usize(..members.len()));
    member.drain().await?;
    let done = nodes.delete(&member.name, &DeleteParams::default()).await;
    done.with_context(|| format!("cannot delete {}", member.name))?;
    Ok(member)
}

/// From the moment at which the last address of a leaving node is freed to the status that no longer names the node.
fn freed(large: &mut Large<'_>, members: &mut Vec<Member>) -> Result<Finding> {
    let client = large.client();
    let mut times = Vec::new();
    for _ in 0..FREED.min(members.len() / 2) {
        large.meter().settle(STILL)?;
        let member = members.pop().context("no agent is left")?;
        times.push(large.block_on(empty_to_free(&client, member))?);
    }
    let what =
        format!("a leaving node frees its last address → its block is free, among {} in-process agents", large.nodes);
    Ok(Finding::new(what, Samples::times(times)).reference("free while in use").at_most(FREE_AIM))
}

async fn empty_to_free(client: &Client, mut member: Member) -> Result<Duration> {
    let name = member.name.clone();
    member.drain().await?;
    member.add().await?;
    await_use(client, &name).await?;
    Api::<Node>::all(client.clone()).delete(&name, &DeleteParams::default()).await?;
    await_release(client, &name).await?;
    let pools: Api<IPPool> = Api::namespaced(client.clone(), NAMESPACE);
    let version = pools.get_metadata(POOL).await?.metadata.resource_version.context("no version")?;
    let only = WatchParams::default().fields(&format!("metadata.name={POOL}"));
    let mut events = pin!(pools.watch(&only, &version).await?);
    let began = Instant::now();
    member.drain().await?;
    let free = async {
        while let Some(event) = events.next().await {
            let took = began.elapsed();
            let WatchEvent::Modified(pool) = event? else { continue };
            if !is_releasing(&pool, &name) {
                return Ok(took);
            }
        }
        anyhow::bail!("the watch of the pool has ended")
    };
    in_time("a free block", DEADLINE, free, || format!("the block of {name} is still being released")).await
}

/// Waits for the report of one address.
async fn await_use(client: &Client, name: &str) -> Result<()> {
    let objects: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let used = async || -> Result<()> {
        let status = objects.get(name).await?.status.context("no status")?;
        ensure!(status.pools.iter().any(|pool| pool.used == 1), "one address is not reported");
        Ok(())
    };
    eventually("the report of one address", DEADLINE, used).await
}

/// Waits until the node's block is being released.
async fn await_release(client: &Client, name: &str) -> Result<()> {
    let pools: Api<IPPool> = Api::namespaced(client.clone(), NAMESPACE);
    let objects: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let releasing = async || -> Result<()> {
        let status = objects.get(name).await?.status.context("no status")?;
        ensure!(status.observed_generation.is_some(), "the agent has not reported");
        ensure!(is_releasing(&pools.get(POOL).await?, name), "the block is not being released");
        Ok(())
    };
    eventually("the release of a block", DEADLINE, releasing).await
}

fn is_releasing(pool: &IPPool, node: &str) -> bool {
    pool.status.as_ref().is_some_and(|status| status.releasing.iter().any(|entry| entry.node_name == node))
}
