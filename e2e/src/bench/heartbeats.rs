//! Heartbeats of kubelets, which are none of the operator's business.

use std::time::Duration;

use anyhow::Result;

use super::large::{Large, STILL};
use super::load;
use super::meter::median;
use super::table::Finding;

const BEATS: u32 = 200;
const ROUNDS: u32 = 5;
const CPU_AIM: Duration = Duration::from_millis(50);

/// What must not grow with heartbeats: decisions about pools and writes of any kind.
const WORK: [&str; 3] = [
    "nv_ipam_controller_plan_seconds_count",
    "nv_ipam_controller_status_writes_total",
    "nv_ipam_controller_ipam_node_writes_total",
];

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let meter = large.meter();
    let mut times = Vec::new();
    meter.settle(STILL)?;
    let work_before = work(large)?;
    let log_before = large.operator.process().output().len();
    for round in 1..=ROUNDS {
        meter.settle(STILL)?;
        let before = meter.cpu()?;
        let beats = load::beat(&large.client, 0..BEATS.min(large.nodes), round);
        large.runtime.block_on(beats)?;
        meter.settle(STILL)?;
        times.push(meter.cpu()?.since(&before));
    }
    let (work, log) = (work(large)? - work_before, large.operator.process().output().len() - log_before);
    let cpu = median(&times);
    Ok(vec![Finding {
        what: "200 heartbeats at 5,000".to_owned(),
        reference: "1.2–1.5 CPU s, 7–9 MB of log",
        aim: "no reconcile, ≤ 0.05 CPU s, no log",
        measured: format!(
            "{work} reconciles or writes, {:.4} CPU s, {log} B of log; {ROUNDS} rounds",
            cpu.as_secs_f64()
        ),
        met: work == 0 && log == 0 && cpu <= CPU_AIM,
    }])
}

fn work(large: &Large<'_>) -> Result<u64> {
    WORK.iter().map(|prefix| large.counter(prefix)).sum()
}
