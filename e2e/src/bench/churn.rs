//! A large cluster whose agents all report, while nodes and pods come and go: what that costs the API server and the operator,
//! how soon an empty block is free, and what a restart of the operator brings about.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use ipam_crds::{IPAMNode, IPPool};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::time::timeout;

use super::fleet::{Fleet, Member};
use super::large::{DEADLINE, Large, NAMESPACE, POOL, STILL};
use super::load;
use super::meter::{Meter, median, mib, ms, percentile};
use super::table::Finding;
use crate::cluster::Operator;
use crate::eventually::{eventually, eventually_blocking};
use crate::progress::Step;

/// How long nodes and pods come and go.
const LASTS: Duration = Duration::from_mins(1);
/// Nodes that leave and nodes that join meanwhile.
const NODES: u32 = 50;
/// Pods that end and pods that begin meanwhile.
const PODS: u32 = 1_000;
/// Blocks whose way from empty to free is timed.
const FREED: usize = 20;
/// The agents' first reports, on two busy cores.
const REPORTS: Duration = Duration::from_mins(10);
const FREE_AIM: Duration = Duration::from_secs(1);
const RESTART_AIM: Duration = Duration::from_secs(3);

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let fleet = Fleet::start(large.plane)?;
    let mut members = begin(large, &fleet)?;
    let churn = churn(large, &fleet, &mut members)?;
    large.meter().settle(STILL)?;
    let freed = freed(large, &mut members)?;
    let restart = restart(large)?;
    Ok(vec![churn, freed, restart])
}

/// One agent for each node, all of which have reported.
fn begin(large: &Large<'_>, fleet: &Fleet) -> Result<Vec<Member>> {
    let step = Step::start(&format!("{} agents", large.nodes));
    let api: Api<IPAMNode> = Api::namespaced(large.client.clone(), NAMESPACE);
    let members = large.runtime.block_on(async {
        let names: Vec<String> = api
            .list_metadata(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter_map(|node| node.metadata.name)
            .collect();
        let members = names.into_iter().map(|name| fleet.enlist(name)).collect::<Result<Vec<_>>>()?;
        let all = async || -> Result<()> {
            let listed = api.list(&ListParams::default()).await?.items;
            let silent = listed.iter().filter(|node| !has_reported(node)).count();
            ensure!(silent == 0, "{silent} of {} agents have not reported", listed.len());
            Ok(())
        };
        eventually("the first report of every agent", REPORTS, all).await?;
        anyhow::Ok(members)
    })?;
    step.done();
    Ok(members)
}

fn has_reported(node: &IPAMNode) -> bool {
    node.status.as_ref().is_some_and(|status| status.observed_generation == node.metadata.generation)
}

/// Calls about our own kinds that the API server has answered so far, watches apart.
#[derive(Clone, Copy, Default)]
struct Calls {
    /// Writes of an agent's report.
    reports: u64,
    /// All other writes.
    writes: u64,
    reads: u64,
}

impl Calls {
    async fn so_far(client: &Client) -> Result<Self> {
        let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
        let mut calls = Self::default();
        let ours =
            |line: &&str| line.starts_with("apiserver_request_total{") && line.contains("group=\"nv-ipam.nvidia.com\"");
        for line in text.lines().filter(ours) {
            let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse().ok());
            let count: u64 = count.with_context(|| format!("no number in {line:?}"))?;
            let is = |label: &str| line.contains(label);
            if is("verb=\"WATCH\"") || is("verb=\"CONNECT\"") {
            } else if is("verb=\"GET\"") || is("verb=\"LIST\"") {
                calls.reads += count;
            } else if is("resource=\"ipamnodes\"") && is("subresource=\"status\"") {
                calls.reports += count;
            } else {
                calls.writes += count;
            }
        }
        Ok(calls)
    }

    fn since(self, before: Self) -> Self {
        Self {
            reports: self.reports - before.reports,
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
        }
    }
}

/// Nodes and pods come and go for a minute.
fn churn(large: &mut Large<'_>, fleet: &Fleet, members: &mut Vec<Member>) -> Result<Finding> {
    let meter = large.meter();
    meter.settle(STILL)?;
    let before = meter.cpu()?;
    let newcomers: Vec<String> = (0..NODES).map(|_| large.newcomer()).collect();
    let client = large.client.clone();
    let calls = large.runtime.block_on(async {
        let before = Calls::so_far(&client).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let mut newcomers = newcomers.into_iter();
        let mut gone = Vec::new();
        let began = tokio::time::Instant::now();
        for turn in 0..PODS {
            tokio::time::sleep_until(began + LASTS * turn / PODS).await;
            if turn % (PODS / NODES) == 0
                && let Some(name) = newcomers.next()
            {
                gone.push(leave(&nodes, members).await?);
                members.push(fleet.enlist(name.clone())?);
                load::create_one(&nodes, &name).await?;
            }
            pod(members).await?;
        }
        anyhow::Ok(Calls::so_far(&client).await?.since(before))
    })?;
    let cpu = meter.cpu()?.since(&before);
    meter.settle(STILL)?;
    let memory = meter.memory()?;
    let a_second = |count: u64| format!("{:.1}", Duration::from_secs(count).as_secs_f64() / LASTS.as_secs_f64());
    Ok(Finding {
        what: format!(
            "{} agents reporting, {NODES} nodes leave, {NODES} join and {PODS} pods come and go in a minute",
            large.nodes
        ),
        reference: "no reports",
        aim: "–",
        measured: format!(
            "{} reports, {} other writes and {} reads a second; operator {:.2} CPU s, {} resident, at most {}",
            a_second(calls.reports),
            a_second(calls.writes),
            a_second(calls.reads),
            cpu.as_secs_f64(),
            mib(memory.now),
            mib(memory.most)
        ),
        met: true,
    })
}

/// A node that has been drained leaves. Its agent ends after it has told that nothing is held, which it does by itself.
async fn leave(nodes: &Api<Node>, members: &mut Vec<Member>) -> Result<Member> {
    let mut member = members.swap_remove(fastrand::usize(..members.len()));
    member.drain().await?;
    nodes
        .delete(&member.name, &DeleteParams::default())
        .await
        .with_context(|| format!("cannot delete {}", member.name))?;
    Ok(member)
}

/// A pod begins on one node and one ends on another. A node that has just joined may not have its block yet.
async fn pod(members: &mut [Member]) -> Result<()> {
    // Those that joined are last.
    let settled = members.len() - usize::try_from(NODES)?;
    members[fastrand::usize(..settled)].add().await?;
    let begin = fastrand::usize(..settled);
    let place = (0..settled).map(|step| (begin + step) % settled).find(|place| members[*place].holds());
    match place {
        Some(place) => members[place].remove().await,
        None => Ok(()),
    }
}

/// From the moment at which a node gives back its last address to the status that no longer names it.
fn freed(large: &mut Large<'_>, members: &mut Vec<Member>) -> Result<Finding> {
    let client = large.client.clone();
    let mut times = Vec::new();
    for _ in 0..FREED {
        large.meter().settle(STILL)?;
        let member = members.pop().context("no agent is left")?;
        times.push(large.runtime.block_on(empty_to_free(&client, member))?);
    }
    Ok(Finding {
        what: "a leaving node's last address is given back → its block is free".to_owned(),
        reference: "free while in use",
        aim: "≤ 1 s",
        measured: format!(
            "{} (p90 {}); {FREED} nodes among {}",
            ms(median(&times)),
            ms(percentile(&times, 90)),
            large.nodes
        ),
        met: median(&times) <= FREE_AIM,
    })
}

async fn empty_to_free(client: &Client, mut member: Member) -> Result<Duration> {
    let name = member.name.clone();
    let (nodes, objects): (Api<Node>, Api<IPAMNode>) =
        (Api::all(client.clone()), Api::namespaced(client.clone(), NAMESPACE));
    member.drain().await?;
    member.add().await?;
    let used = async || -> Result<()> {
        let status = objects.get(&name).await?.status.context("no status")?;
        ensure!(status.pools.iter().any(|pool| pool.used == 1), "one address is not reported");
        Ok(())
    };
    eventually("the report of one address", DEADLINE, used).await?;
    nodes.delete(&name, &DeleteParams::default()).await?;
    let releasing = |pool: &IPPool| {
        pool.status.as_ref().is_some_and(|status| status.releasing.iter().any(|entry| entry.node_name == name))
    };
    let (pools, only): (Api<IPPool>, _) =
        (Api::namespaced(client.clone(), NAMESPACE), WatchParams::default().fields(&format!("metadata.name={POOL}")));
    let told = async || -> Result<()> {
        ensure!(
            objects.get(&name).await?.status.is_some_and(|status| status.observed_generation.is_some()),
            "no report"
        );
        ensure!(releasing(&pools.get(POOL).await?), "the block is not being released");
        Ok(())
    };
    eventually("the release of a block", DEADLINE, told).await?;
    let version = pools.get_metadata(POOL).await?.metadata.resource_version.context("no version")?;
    let mut events = pin!(pools.watch(&only, &version).await?);
    let began = Instant::now();
    member.drain().await?;
    let free = async {
        while let Some(event) = events.next().await {
            let took = began.elapsed();
            let WatchEvent::Modified(pool) = event? else { continue };
            if !releasing(&pool) {
                return Ok(took);
            }
        }
        bail!("the watch of the pool has ended")
    };
    timeout(DEADLINE, free).await.context("the block does not become free")?
}

/// The operator is restarted when nothing has changed.
fn restart(large: &mut Large<'_>) -> Result<Finding> {
    large.meter().settle(STILL)?;
    large.operator.process().terminate(DEADLINE)?;
    // Reports that were due are written by then.
    let before = quiet(large)?;
    let began = Instant::now();
    large.operator = Operator::start(large.plane, NAMESPACE, &["--leader-elect"])?;
    let decided = || -> Result<Duration> {
        let count = large.counter("nv_ipam_controller_plan_seconds_count")?;
        ensure!(count > 0, "no decision yet");
        Ok(began.elapsed())
    };
    let took = eventually_blocking("the first decision", DEADLINE, decided)?;
    Meter::of(large.operator.process()).settle(STILL)?;
    let calls = large.runtime.block_on(Calls::so_far(&large.client))?.since(before);
    let writes = calls.writes + calls.reports;
    Ok(Finding {
        what: format!("operator restarted among {} agents, nothing changed", large.nodes),
        reference: "–",
        aim: "first decision ≤ 3 s, no write",
        measured: format!(
            "first decision after {:.2} s, process and lease included; {writes} writes",
            took.as_secs_f64()
        ),
        met: took <= RESTART_AIM && writes == 0,
    })
}

/// Waits until nobody writes; returns the calls so far.
fn quiet(large: &Large<'_>) -> Result<Calls> {
    /// Longer than an agent keeps mere counts to itself.
    const STEP: Duration = Duration::from_secs(11);
    let look = || large.runtime.block_on(Calls::so_far(&large.client));
    let mut before = look()?;
    for _ in 0..12 {
        std::thread::sleep(STEP);
        let now = look()?;
        if now.since(before).reports + now.since(before).writes == 0 {
            return Ok(now);
        }
        before = now;
    }
    bail!("the agents do not fall quiet")
}
