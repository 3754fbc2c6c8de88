//! A pool is applied to a large cluster, again and again; and the memory that the operator has then, or after a restart.

use std::time::Duration;

use anyhow::Result;

use super::finding::Finding;
use super::large::{Applied, DEADLINE, Large, STILL};
use super::meter::Memory;
use super::stats::{Samples, Unit};

/// Pools applied to Nodes alone, and operators started among all IPAMNodes.
const ROUNDS: usize = 5;
const STATUS_AIM: f64 = 0.53;
/// All IPAMNodes are written within so many times the time in which this program creates the Nodes.
const IPAM_NODES_AIM: f64 = 1.2;
const IDLE_AIM: f64 = 60.0 * 1024.0;
const PEAK_AIM: f64 = 120.0 * 1024.0;

/// The first round is the one that the cluster was built with.
pub(super) fn measure(large: &mut Large<'_>, first: Applied) -> Result<Vec<Finding>> {
    let mut rounds = vec![first];
    while rounds.len() < ROUNDS {
        large.reset()?;
        rounds.push(large.apply(DEADLINE)?);
    }
    let nodes = large.nodes;
    let times = |read: fn(&Applied) -> Duration| Samples::times(rounds.iter().map(read));
    let creating = format!("this program took {} to create the Nodes", Unit::Time.show(large.creating.as_secs_f64()));
    let cpu = format!("CPU of the operator for everything: {}", times(|round| round.cpu).show(50));
    let memory: Vec<Memory> = rounds.iter().map(|round| round.memory).collect();
    let status = Finding::new(format!("{nodes} nodes, pool applied → full status"), times(|round| round.status));
    let written = Finding::new(format!("the same → all {nodes} IPAMNodes written"), times(|round| round.ipam_nodes));
    let mut findings = vec![
        status.reference("0.53 s").at_most(STATUS_AIM).also(creating),
        written.at_most(IPAM_NODES_AIM * large.creating.as_secs_f64()).also(cpu),
    ];
    findings.extend(resident(&format!("operator memory at {nodes} nodes, all blocks just assigned"), &memory));
    Ok(findings)
}

/// Resident memory of an operator that starts when all blocks are assigned.
pub(super) fn memory(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let mut memory = Vec::new();
    for _ in 0..ROUNDS {
        large.restart()?;
        large.meter().settle(STILL)?;
        memory.push(large.meter().memory()?);
    }
    Ok(resident(&format!("operator memory at {} nodes, restarted", large.nodes), &memory))
}

fn resident(what: &str, memory: &[Memory]) -> Vec<Finding> {
    let kib = |read: fn(&Memory) -> u64| Samples::counts(Unit::Memory, memory.iter().map(read));
    vec![
        Finding::new(format!("{what}: at rest"), kib(|memory| memory.now)).reference("169 MiB").at_most(IDLE_AIM),
        Finding::new(format!("{what}: most"), kib(|memory| memory.most)).reference("286 MiB").at_most(PEAK_AIM),
    ]
}
