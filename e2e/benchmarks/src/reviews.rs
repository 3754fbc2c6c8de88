//! The webhook: a minute of reviews with everything that may happen to it, and what a review costs among many pools. The operators
//! of these rows take their certificates from files, so that the rows can exchange them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt};
use ipam_crds::{IPPool, IPPoolSpec};
use kube::api::{Api, PostParams};

use super::finding::Finding;
use super::load::AT_ONCE;
use super::meter::Meter;
use super::stage::Stage;
use super::stats::{Samples, Unit, number};
use ipam_e2e::cluster::Operator;
use ipam_e2e::eventually::eventually_blocking;
use ipam_e2e::reviews::{Campaign, Client, Report, answered, beside, run, stall};

/// Pools that are known in the second measurement.
const POOLS: u32 = 10_000;
/// Clients of each kind that stall, and reviews beside them.
const STALLED: usize = 500;
const BESIDE: u32 = 300;
/// What each sends of a body: as much as there is room for of all.
const SENT: usize = 60 << 10;
/// Samples of processor time in a campaign.
const WINDOWS: u32 = 12;
const MEMORY_AIM: f64 = 40.0 * 1024.0;

const CAMPAIGN: Campaign =
    Campaign { rate: 1000, lasts: Duration::from_mins(1), swaps: 20, restarts: 5, life: Duration::from_secs(20) };
/// With a certificate that outlives the time that 10,000 new pools take.
const AMONG_MANY: Campaign =
    Campaign { rate: 200, lasts: Duration::from_secs(12), swaps: 0, restarts: 0, life: Duration::from_hours(1) };

/// What a campaign cost the replica that was not restarted.
struct Cost {
    report: Report,
    /// Processor seconds per review.
    cpu: Samples,
    /// The most resident memory, in KiB.
    memory: u64,
}

pub(super) fn measure(stage: &Stage<'_>) -> Result<Vec<Finding>> {
    let few = cost(stage, &stage.plane.namespace("bench-reviews")?, CAMPAIGN)?;
    let crowded = stage.plane.namespace("bench-many")?;
    stage.runtime.block_on(make_pools(stage, &crowded))?;
    let many = cost(stage, &crowded, AMONG_MANY)?;
    let memory = |what: &str, most| Finding::new(what, Samples::counts(Unit::Memory, [most])).at_most(MEMORY_AIM);
    Ok(vec![
        campaign(&few.report),
        Finding::new("CPU of a review of a pool with 10 exclusions, handshakes included", few.cpu).at_most(0.0005),
        Finding::new(format!("the same among {POOLS} known pools"), many.cpu).at_most(0.002),
        memory("most memory of an operator under these 1,000 reviews/s", few.memory),
        memory(&format!("most memory of a leader of {POOLS} pools"), many.memory),
    ])
}

fn campaign(report: &Report) -> Finding {
    let latencies = Samples::times(report.latencies.iter().copied());
    let first = report.failures.first().map(|first| format!(", the first: {first}")).unwrap_or_default();
    let also = format!(
        "{} sent, p99 {}; {} failed{first}; {} under an expired certificate",
        report.sent,
        latencies.show(99),
        report.failed,
        report.expired
    );
    Finding::new("1,000 reviews/s for 60 s, 20 exchanges of the Secret, 5 restarts of one of two replicas", latencies)
        .demand("none fails or sees an expired certificate", report.failed + report.expired == 0)
        .also(also)
}

pub(super) fn stalled(stage: &Stage<'_>) -> Result<Vec<Finding>> {
    let times = Samples::times(stage.runtime.block_on(beside_stalled(stage))?);
    let also = format!("p99 {}, at most {}", times.show(99), times.show(100));
    let what = format!("a review beside {STALLED} stalled handshakes and {STALLED} stalled bodies");
    Ok(vec![Finding::new(what, times).each_at_most(0.05).also(also)])
}

/// How long reviews take while clients stall.
async fn beside_stalled(stage: &Stage<'_>) -> Result<Vec<Duration>> {
    let (replica, client) = Client::with_replica(stage.plane, &stage.plane.namespace("bench-stalled")?)?;
    let stalled = stall(&client, STALLED, SENT).await?;
    // Done before the first of the handshakes is cut off for its time.
    let times = beside(&client, BESIDE, Duration::from_millis(10)).await?;
    drop((stalled, replica));
    Ok(times)
}

fn cost(stage: &Stage<'_>, namespace: &str, campaign: Campaign) -> Result<Cost> {
    let (mut sampler, mut cpu, mut memory): (Option<Sampler>, Vec<f64>, u64) = (None, Vec::new(), 0);
    let report = run(stage.plane, namespace, campaign, |operator| {
        if let Some(running) = sampler.take() {
            cpu = running.end()?;
            memory = Meter::of(operator.process()).memory()?.most;
        } else {
            at_rest(Meter::of(operator.process()))?;
            sampler = Some(Sampler::start(operator, campaign.lasts / WINDOWS));
        }
        Ok(())
    })?;
    ensure!(report.steady.reviews > 0, "the replica that is measured has answered no review");
    Ok(Cost { report, cpu: Samples::new(Unit::Time, cpu), memory })
}

/// Samples what a review costs one replica, window by window.
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Sampler {
    fn start(operator: &mut Operator, window: Duration) -> Self {
        let (meter, metrics, stop) = (Meter::of(operator.process()), operator.metrics(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || sample(meter, &metrics, window, &stopped));
        Self { stop, thread }
    }

    fn end(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the sampler panicked"))?
    }
}

/// Processor seconds per review of each window that had reviews.
fn sample(meter: Meter, metrics: &str, window: Duration, stop: &AtomicBool) -> Result<Vec<f64>> {
    let began = Instant::now();
    let mut before = (meter.cpu()?, answered(metrics)?);
    let mut samples = Vec::new();
    for turn in 1_u32.. {
        std::thread::sleep((window * turn).saturating_sub(began.elapsed()));
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let now = (meter.cpu()?, answered(metrics)?);
        let reviews = now.1 - before.1;
        if reviews > 0 {
            samples.push(now.0.since(&before.0).as_secs_f64() / number(reviews));
        }
        before = now;
    }
    Ok(samples)
}

/// Waits until what the start brought about is done: statuses of thousands of pools, say. Leases and probes go on.
fn at_rest(meter: Meter) -> Result<()> {
    const STILL: Duration = Duration::from_millis(50);
    eventually_blocking("the operator comes to rest", Duration::from_mins(10), || {
        let before = meter.cpu()?;
        std::thread::sleep(Duration::from_secs(1));
        let used = meter.cpu()?.since(&before);
        ensure!(used < STILL, "{used:?} of CPU in a second");
        Ok(())
    })
}

async fn make_pools(stage: &Stage<'_>, namespace: &str) -> Result<()> {
    let pools: Api<IPPool> = Api::namespaced(stage.client.clone(), namespace);
    let writes = (0..POOLS).map(|number| {
        let spec = IPPoolSpec {
            subnet: format!("11.{}.{}.0/24", number >> 8, number & 255),
            per_node_block_size: 4,
            ..IPPoolSpec::default()
        };
        let (pools, pool) = (pools.clone(), IPPool::new(&format!("pool-{number}"), spec));
        async move { pools.create(&PostParams::default(), &pool).await.map(drop) }
    });
    futures::stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<()>().await.context("a pool is refused")
}
