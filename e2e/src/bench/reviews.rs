//! The webhook: a minute of reviews with everything that may happen to it, and what a review costs among many pools.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use ipam_crds::{IPPool, IPPoolSpec};
use kube::api::{Api, PostParams};
use tokio::runtime::Runtime;

use super::meter::{Cpu, Meter, ms, percentile};
use super::table::Finding;
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::reviews::{Campaign, Client, Report, beside, run, stall};

/// Pools that are known in the second measurement.
const POOLS: u32 = 10_000;
/// Clients of each kind that stall, and reviews beside them.
const STALLED: usize = 500;
const BESIDE: u32 = 300;
/// What each sends of a body: as much as there is room for of all.
const SENT: usize = 60 << 10;
/// Writes under way while they are made.
const AT_ONCE: usize = 64;

const CAMPAIGN: Campaign =
    Campaign { rate: 1000, lasts: Duration::from_mins(1), swaps: 20, restarts: 5, life: Duration::from_secs(20) };
/// With a certificate that outlives the time that 10,000 new pools take.
const AMONG_MANY: Campaign =
    Campaign { rate: 200, lasts: Duration::from_secs(10), swaps: 0, restarts: 0, life: Duration::from_hours(1) };

/// What a campaign cost the replica that was not restarted.
struct Cost {
    report: Report,
    cpu_per_review: Duration,
    /// The most resident memory, in KiB.
    memory: u64,
}

pub(super) fn measure(plane: &ControlPlane, runtime: &Runtime) -> Result<Vec<Finding>> {
    let alone = plane.namespace("bench-reviews")?;
    let cost = cost(plane, &alone, CAMPAIGN)?;
    let crowded = plane.namespace("bench-many")?;
    runtime.block_on(make_pools(plane, &crowded))?;
    let many = self::cost(plane, &crowded, AMONG_MANY)?;
    let unanswered = cost.report.failed + cost.report.expired;
    Ok(vec![
        Finding {
            what: "reviews: 1,000/s for 60 s, 20 Secret swaps (one broken), 5 restarts of one of two replicas".into(),
            reference: "no server",
            aim: "none failed, none under an expired certificate",
            measured: told(&cost.report),
            met: unanswered == 0,
        },
        costs("review of a pool with 10 exclusions, handshakes included", "≤ 0.5 ms CPU", &cost, 500),
        costs("the same among 10,000 known pools", "≤ 2 ms CPU", &many, 2000),
        Finding {
            what: "operator with webhook under that load, most resident memory".into(),
            reference: "—",
            aim: "≤ 40 MiB",
            measured: format!("{} MiB; among 10,000 pools {} MiB", cost.memory >> 10, many.memory >> 10),
            met: cost.memory <= 40 << 10,
        },
    ])
}

pub(super) fn stalled(plane: &ControlPlane, runtime: &Runtime) -> Result<Vec<Finding>> {
    let times = runtime.block_on(beside_stalled(plane))?;
    let at = |percent| ms(percentile(&times, percent));
    Ok(vec![Finding {
        what: "a review beside 500 stalled handshakes and 500 half bodies".into(),
        reference: "no server",
        aim: "< 50 ms",
        measured: format!("p50 {}, p99 {}, at most {} of {BESIDE}", at(50), at(99), at(100)),
        met: percentile(&times, 100) < Duration::from_millis(50),
    }])
}

/// How long reviews take while clients stall; sorted.
async fn beside_stalled(plane: &ControlPlane) -> Result<Vec<Duration>> {
    let (replica, client) = Client::with_replica(plane, &plane.namespace("bench-stalled")?)?;
    let stalled = stall(&client, STALLED, SENT).await?;
    // Done before the first of the handshakes is cut off for its time.
    let times = beside(&client, BESIDE, Duration::from_millis(10)).await?;
    drop((stalled, replica));
    Ok(times)
}

fn cost(plane: &ControlPlane, namespace: &str, campaign: Campaign) -> Result<Cost> {
    let (mut before, mut used, mut memory): (Option<Cpu>, Duration, u64) = (None, Duration::ZERO, 0);
    let report = run(plane, namespace, campaign, |process| {
        let meter = Meter::of(process);
        if let Some(before) = &before {
            used = meter.cpu()?.since(before);
            memory = meter.memory()?.most;
        } else {
            quiet(meter)?;
            before = Some(meter.cpu()?);
        }
        Ok(())
    })?;
    let reviews = u32::try_from(report.steady.reviews).context("too many reviews")?;
    ensure!(reviews > 0, "the replica that is measured has reviewed nothing: {}", told(&report));
    Ok(Cost { report, cpu_per_review: used / reviews, memory })
}

/// Waits until what the start brought about is done: statuses of thousands of pools, say. Leases and probes go on.
fn quiet(meter: Meter) -> Result<()> {
    const STILL: Duration = Duration::from_millis(50);
    eventually_blocking("the operator comes to rest", Duration::from_mins(10), || {
        let before = meter.cpu()?;
        std::thread::sleep(Duration::from_secs(1));
        let used = meter.cpu()?.since(&before);
        ensure!(used < STILL, "{used:?} of CPU in a second");
        Ok(())
    })
}

fn costs(what: &str, aim: &'static str, cost: &Cost, most_micros: u64) -> Finding {
    Finding {
        what: what.to_owned(),
        reference: "no server",
        aim,
        measured: format!("{:.3} ms CPU over {} reviews", millis(cost.cpu_per_review), cost.report.steady.reviews),
        met: cost.cpu_per_review <= Duration::from_micros(most_micros),
    }
}

fn told(report: &Report) -> String {
    let at = |percent: usize| {
        let place = (report.latencies.len() * percent / 100).min(report.latencies.len().saturating_sub(1));
        millis(report.latencies.get(place).copied().unwrap_or_default())
    };
    let first = report.failures.first().map(|first| format!(", the first: {first}")).unwrap_or_default();
    format!(
        "{} sent, {} failed{first}, {} under an expired certificate; p50 {:.2} ms, p99 {:.2} ms",
        report.sent,
        report.failed,
        report.expired,
        at(50),
        at(99)
    )
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn make_pools(plane: &ControlPlane, namespace: &str) -> Result<()> {
    let pools: Api<IPPool> = Api::namespaced(plane.client().await?, namespace);
    let writes = (0..POOLS).map(|number| {
        let spec = IPPoolSpec {
            subnet: format!("11.{}.{}.0/24", number >> 8, number & 255),
            per_node_block_size: 4,
            ..IPPoolSpec::default()
        };
        let (pools, pool) = (pools.clone(), IPPool::new(&format!("pool-{number}"), spec));
        async move { pools.create(&PostParams::default(), &pool).await.map(drop) }
    });
    let all: Vec<()> = futures::stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await?;
    drop(all);
    Ok(())
}
