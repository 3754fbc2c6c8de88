//! The operator is restarted among many in-process agents when nothing has changed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::finding::Finding;
use super::large::{DEADLINE, Large, STILL};
use super::requests::Requests;
use super::stats::Samples;
use ipam_e2e::eventually::eventually_blocking;

const RESTARTS: u32 = 5;
const DECISION_AIM: f64 = 3.0;

pub(super) fn measure(large: &mut Large<'_>) -> Result<Finding> {
    let (mut times, mut writes) = (Vec::new(), 0);
    for _ in 0..RESTARTS {
        let (took, written) = restart(large)?;
        times.push(took);
        writes += written;
    }
    let what = format!("operator restarted among {} in-process agents → first decision", large.nodes);
    Ok(Finding::new(what, Samples::times(times))
        .at_most(DECISION_AIM)
        .demand("no write", writes == 0)
        .also(format!("{writes} writes in all; start of the process and Lease included")))
}

/// The time to the first decision, and writes of our kinds until all is at rest again.
fn restart(large: &mut Large<'_>) -> Result<(Duration, u64)> {
    large.meter().settle(STILL)?;
    large.operator.process().terminate(DEADLINE)?;
    // Reports that were due are written by then.
    let before = at_rest(large)?;
    let began = Instant::now();
    large.operator = large.stage.launch_operator()?;
    large.operator.await_ready()?;
    let decided = || -> Result<Duration> {
        let count = large.counter("nv_ipam_controller_plan_duration_seconds_count")?;
        ensure!(count > 0, "no decision yet");
        Ok(began.elapsed())
    };
    let took = eventually_blocking("the first decision", DEADLINE, decided)?;
    large.meter().settle(STILL)?;
    let requests = large.block_on(Requests::so_far(large.stage))?.since(before);
    Ok((took, requests.writes + requests.reports))
}

/// Waits until no agent writes; returns the requests so far.
fn at_rest(large: &Large<'_>) -> Result<Requests> {
    /// Longer than an agent keeps mere counts to itself.
    const STEP: Duration = Duration::from_secs(11);
    let look = || large.block_on(Requests::so_far(large.stage));
    let mut before = look()?;
    for _ in 0..12 {
        std::thread::sleep(STEP);
        let now = look()?;
        if now.since(before).reports + now.since(before).writes == 0 {
            return Ok(now);
        }
        before = now;
    }
    bail!("the agents do not come to rest")
}
