//! One agent with one large block, and the API server idle beside it.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::runtime::Runtime;

use super::agent::Agent;
use super::finding::Finding;
use super::stage::Stage;
use super::stats::{Samples, Unit};

const NODE: &str = "lone.example.org";
/// The pool of the block, with room for all that the rows ask for.
pub(super) const POOL: &str = "wide";

/// An agent alone on its node.
pub(super) struct Lone<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) agent: Agent,
}

impl<'a> Lone<'a> {
    /// An agent with a block of 65,000 addresses, at rest. No operator runs.
    pub(super) fn start(stage: &Stage<'a>) -> Result<Self> {
        let block = json!({
            "name": POOL, "poolType": "IPPool", "grant": "6500000000000001", "state": "Active", "subnet": "10.1.0.0/16",
            "gateway": "10.1.0.1", "startIP": "10.1.0.1", "endIP": "10.1.255.254",
        });
        stage.assign(NODE, &json!([block]))?;
        let agent = Agent::start(stage, NODE, stage.plane.port())?;
        agent.await_answers(stage.runtime)?;
        agent.meter().settle(Duration::from_secs(2))?;
        Ok(Self { runtime: stage.runtime, agent })
    }
}

/// Resident memory after all calls of this run.
pub(super) fn memory(lone: &mut Lone<'_>) -> Result<Vec<Finding>> {
    let memory = lone.agent.meter().memory()?;
    let most = Unit::Memory.show(super::stats::number(memory.most));
    Ok(vec![
        Finding::new("agent memory after the calls above", Samples::counts(Unit::Memory, [memory.now]))
            .also(format!("one agent; at most {most}")),
    ])
}
