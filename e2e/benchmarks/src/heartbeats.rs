//! Heartbeats of kubelets, which are none of the operator's business.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::finding::Finding;
use super::large::{DEADLINE, Large, STILL};
use super::load;
use super::stats::Samples;
use ipam_e2e::eventually::eventually_blocking;

const BEATS: u32 = 200;
const ROUNDS: u32 = 5;
const CPU_AIM: f64 = 0.05;

/// What must not grow with heartbeats: decisions about pools and writes of any kind.
const WORK: [&str; 3] = [
    "nv_ipam_controller_plan_duration_seconds_count",
    "nv_ipam_controller_pool_status_writes_total",
    "nv_ipam_controller_ipam_node_writes_total",
];

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let (meter, client) = (large.meter(), large.client());
    let mut times: Vec<Duration> = Vec::new();
    let work_before = idle(large)?;
    let log_before = large.operator.process().output().len();
    for round in 1..=ROUNDS {
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        large.block_on(load::beat(&client, 0..BEATS.min(large.nodes), round))?;
        meter.settle(STILL)?;
        times.push(meter.cpu()?.since(&before));
    }
    let (work, log) = (work(large)? - work_before, large.operator.process().output().len() - log_before);
    let what = format!("{BEATS} heartbeats at {} nodes: CPU of the operator", large.nodes);
    Ok(vec![
        Finding::new(what, Samples::times(times))
            .reference("1.2–1.5 s, 7–9 MB of log")
            .at_most(CPU_AIM)
            .demand("no reconcile, no write, no log", work == 0 && log == 0)
            .also(format!("{work} reconciles or writes, {log} B of log")),
    ])
}

/// Waits until the operator has done nothing for longer than it keeps mere counts to itself. Answers its work so far.
fn idle(large: &mut Large<'_>) -> Result<u64> {
    const STEP: Duration = Duration::from_secs(11);
    eventually_blocking("an operator without work", DEADLINE, || {
        let before = work(large)?;
        std::thread::sleep(STEP);
        let done = work(large)? - before;
        ensure!(done == 0, "{done} reconciles or writes in {} s", STEP.as_secs());
        large.meter().settle(STILL)?;
        work(large)
    })
}

fn work(large: &Large<'_>) -> Result<u64> {
    WORK.iter().map(|prefix| large.counter(prefix)).sum()
}
