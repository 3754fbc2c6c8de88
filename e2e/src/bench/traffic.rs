//! What a join costs the agents in bytes from the API server: those of the other nodes, and the new node's own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ipam_crds::IPAMNode;
use kube::{Api, Client, Resource};
use serde_json::Value;

use super::agent::Agent;
use super::joins::join;
use super::large::{DEADLINE, Large, NAMESPACE, STILL};
use super::load;
use super::relay::{CountingRelay, Traffic};
use super::table::Finding;
use crate::eventually::eventually;

const JOINS: usize = 7;
const OWN_AIM: u64 = 4_000;
/// A connection on which nothing has come for this long is quiet. An agent reports at most once a second.
const QUIET: Duration = Duration::from_millis(1_500);

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    // The first and one of the middle: a pool's order must not matter.
    let relay = CountingRelay::start(large.plane.port())?;
    let mut others = Vec::new();
    for number in [0, large.nodes / 2] {
        others.push(Agent::start(large.plane, NAMESPACE, &load::name(number), relay.port())?);
    }
    large.runtime.block_on(await_reports(&large.client, &[load::name(0), load::name(large.nodes / 2)]))?;
    let mut rounds = Vec::new();
    for _ in 0..JOINS {
        rounds.push(round(large, &relay)?);
    }
    for other in &mut others {
        other.ensure_running()?;
    }
    Ok(findings(&rounds, u64::try_from(others.len())?))
}

/// What one join has cost.
struct Round {
    others: Traffic,
    own: Traffic,
    /// The object's size as JSON, before its agent has reported and after.
    object: (usize, usize),
}

fn round(large: &mut Large<'_>, relay: &CountingRelay) -> Result<Round> {
    let name = large.newcomer();
    let own = CountingRelay::start(large.plane.port())?;
    let mut agent = Agent::start(large.plane, NAMESPACE, &name, own.port())?;
    quiet(&own)?;
    quiet(relay)?;
    large.meter().settle(STILL)?;
    let (before, own_before) = (relay.traffic(), own.traffic());
    large.runtime.block_on(join(&large.client, &name))?;
    large.runtime.block_on(await_reports(&large.client, std::slice::from_ref(&name)))?;
    quiet(&own)?;
    let object = large.runtime.block_on(sizes(&large.client, &name))?;
    let round = Round { others: relay.traffic().since(before), own: own.traffic().since(own_before), object };
    agent.ensure_running()?;
    ensure!(round.own.received > 0, "the new node's agent has heard nothing: it does not go through the relay");
    Ok(round)
}

fn findings(rounds: &[Round], others: u64) -> Vec<Finding> {
    let middle = |read: fn(&Round) -> u64| {
        let mut values: Vec<u64> = rounds.iter().map(read).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let total: u64 = rounds.iter().map(|round| round.others.received).sum();
    let (of_others, of_own) = (middle(|round| round.others.received) / others, middle(|round| round.own.received));
    let count = rounds.len();
    vec![
        Finding {
            what: "bytes to every *other* agent per join at 5,000".to_owned(),
            reference: "342–357 kB",
            aim: "0",
            measured: format!("{of_others} B; {total} B to {others} agents in {count} joins"),
            met: of_others == 0,
        },
        Finding {
            what: "bytes to the new node's own agent".to_owned(),
            reference: "–",
            aim: "≤ 4 kB",
            measured: format!(
                "{of_own} B over TLS, its report and its {} new connections included; it sent {} B; the object is {} B, {} B with \
                 the report",
                middle(|round| round.own.connections),
                middle(|round| round.own.sent),
                rounds[0].object.0,
                rounds[0].object.1
            ),
            met: of_own <= OWN_AIM,
        },
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
    bail!("an agent does not fall quiet")
}

/// Waits until the agents of these nodes have said that they serve their blocks.
async fn await_reports(client: &Client, names: &[String]) -> Result<()> {
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    for name in names {
        let reported = async || -> Result<()> {
            let status = api.get(name).await?.status.context("no status")?;
            ensure!(status.observed_generation.is_some(), "no generation observed");
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
