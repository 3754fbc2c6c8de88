//! What a join costs the agents in bytes from the API server: those of the other nodes, and the new node's own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ipam_crds::IPAMNode;
use kube::{Api, Client, Resource};
use serde_json::Value;

use super::agent::Agent;
use super::finding::Finding;
use super::joins::join;
use super::large::{DEADLINE, Large, STILL};
use super::load;
use super::relay::{CountingRelay, Traffic};
use super::stage::NAMESPACE;
use super::stats::{Samples, Unit};
use ipam_e2e::eventually::eventually;

const JOINS: usize = 7;
const OWN_AIM: f64 = 4_000.0;
/// A connection on which nothing has come for this long is quiet. An agent reports at most once a second.
const QUIET: Duration = Duration::from_millis(1_500);

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    // The first and one of the middle: a pool's order must not matter.
    let relay = CountingRelay::start(large.stage.plane.port())?;
    let names = [load::name(0), load::name(large.nodes / 2)];
    let start = |name: &String| Agent::start(large.stage, name, relay.port());
    let mut others = names.iter().map(start).collect::<Result<Vec<_>>>()?;
    large.block_on(await_reports(&large.client(), &names))?;
    let rounds = (0..JOINS).map(|_| round(large, &relay)).collect::<Result<Vec<_>>>()?;
    for other in &mut others {
        other.ensure_running()?;
    }
    Ok(findings(large.nodes, &rounds, u64::try_from(others.len())?))
}

/// What one join has cost.
struct Round {
    others: Traffic,
    own: Traffic,
    /// The object's size as JSON, before its agent has reported and after.
    object: (usize, usize),
}

/// A Node joins, and then its agent starts cold. All that the agent hears until it is quiet is its own: TLS handshakes, its first
/// list, its watch and the answer to its report.
fn round(large: &mut Large<'_>, relay: &CountingRelay) -> Result<Round> {
    let (name, client) = (large.newcomer(), large.client());
    quiet(relay)?;
    large.meter().settle(STILL)?;
    let before = relay.traffic();
    large.block_on(join(&client, &name, large.pools.len(), DEADLINE))?;
    let own = CountingRelay::start(large.stage.plane.port())?;
    let mut agent = Agent::start(large.stage, &name, own.port())?;
    large.block_on(await_reports(&client, std::slice::from_ref(&name)))?;
    quiet(&own)?;
    let object = large.block_on(sizes(&client, &name))?;
    agent.ensure_running()?;
    let round = Round { others: relay.traffic().since(before), own: own.traffic(), object };
    ensure!(round.own.connections > 0, "the new node's agent does not go through the relay");
    Ok(round)
}

fn findings(nodes: u32, rounds: &[Round], others: u64) -> Vec<Finding> {
    let bytes = |read: fn(&Round) -> u64| Samples::counts(Unit::Bytes, rounds.iter().map(read));
    let each = rounds.iter().map(|round| round.others.received / others);
    let total: u64 = rounds.iter().map(|round| round.others.received).sum();
    let connections = rounds.iter().map(|round| round.own.connections).max().unwrap_or_default();
    let (without, with) = rounds.first().map(|round| round.object).unwrap_or_default();
    let own = format!(
        "sent {}; at most {connections} connections; object {without} B, {with} B with the report",
        bytes(|round| round.own.sent).show(50)
    );
    vec![
        Finding::new(format!("bytes to each other agent per join at {nodes}"), Samples::counts(Unit::Bytes, each))
            .reference("342–357 kB")
            .at_most(0.0)
            .also(format!("{total} B in all to {others} other agents, their idle connections included")),
        Finding::new(
            "bytes to the new node's agent, from its start to its first report",
            bytes(|round| round.own.received),
        )
        .at_most(OWN_AIM)
        .also(own),
    ]
}

/// Waits until nothing more comes.
fn quiet(relay: &CountingRelay) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < DEADLINE {
        let before = relay.traffic();
        std::thread::sleep(QUIET);
        if relay.traffic() == before {
            return Ok(());
        }
    }
    bail!("an agent does not come to rest")
}

/// Waits until the agents of these nodes have reported on the spec of today.
async fn await_reports(client: &Client, names: &[String]) -> Result<()> {
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    for name in names {
        let reported = async || -> Result<()> {
            let object = api.get(name).await?;
            let observed = object.status.context("no status")?.observed_generation;
            ensure!(observed == object.metadata.generation, "generation {observed:?} observed");
            Ok(())
        };
        eventually(&format!("the report of {name}"), DEADLINE, reported).await?;
    }
    Ok(())
}

/// What the API server sends for an IPAMNode, without the agent's report and with it.
async fn sizes(client: &Client, name: &str) -> Result<(usize, usize)> {
    let path = IPAMNode::url_path(&(), Some(NAMESPACE));
    let text = client.request_text(http::Request::get(format!("{path}/{name}")).body(Vec::new())?).await?;
    let mut object: Value = serde_json::from_str(&text)?;
    let with = object.to_string().len();
    object.as_object_mut().context("no object")?.remove("status");
    if let Some(fields) = object["metadata"]["managedFields"].as_array_mut() {
        fields.retain(|fields| fields["subresource"].is_null());
    }
    Ok((object.to_string().len(), with))
}
