//! A campaign: reviews at a steady rate against two replicas, and what is done to them meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::Semaphore;

use super::balancer::{Backend, Balancer};
use super::client::{Client, Known};
use crate::cluster::Operator;
use crate::control_plane::ControlPlane;
use crate::webhook::{Authority, Certificate, Mount, Replica};

/// Reviews under way at a time, at most: what an API server would have at its own limit.
const AT_ONCE: usize = 512;
/// API servers that send, each with connections of its own. With one, a quick machine needs one connection only, and only one of
/// the replicas is ever met.
const SENDERS: usize = 4;
/// Failures that are told in words.
const TOLD: usize = 5;
/// Which of the exchanges brings a broken pair, counted from 0.
const BROKEN: usize = 1;
/// How long a replica may take to end: its drain, and what it finishes.
const ENDS: Duration = Duration::from_secs(30);

/// The metric that counts an operator's reviews.
const REVIEWS: &str = "nv_ipam_controller_webhook_review_duration_seconds_count";

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Reviews a second.
    pub rate: u32,
    /// For how long.
    pub lasts: Duration,
    /// How often the Secret is exchanged meanwhile; the second time for a broken pair.
    pub swaps: u32,
    /// How often the second replica is restarted meanwhile.
    pub restarts: u32,
    /// How long each certificate is valid. Two exchanges have to fit in.
    pub life: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Reviews sent.
    pub sent: u64,
    /// Reviews without the right answer.
    pub failed: u64,
    /// The first of them in words.
    pub failures: Vec<String>,
    /// Reviews answered under a certificate that had ended.
    pub expired: u64,
    /// From the time at which a review was due to its answer, sorted.
    pub latencies: Vec<Duration>,
    /// The replica that was not restarted.
    pub steady: Steady,
}

/// What the first replica did, measured from outside.
#[derive(Debug, Default)]
pub struct Steady {
    /// Reviews that it answered.
    pub reviews: u64,
    /// Exchanges that it took part in, by its own count.
    pub swaps: u64,
    /// Pairs that it refused, by its own count.
    pub refused: u64,
}

/// Runs a campaign in `namespace`. `watch` is told of the first replica before and after.
///
/// # Errors
/// When something does not start; failed reviews are no error but in the report.
pub fn run(
    plane: &ControlPlane,
    namespace: &str,
    campaign: Campaign,
    mut watch: impl FnMut(&mut Operator) -> Result<()>,
) -> Result<Report> {
    // First of all: certificates may be short-lived, and building takes its time.
    crate::binaries::build()?;
    let authority = Authority::new()?;
    let mut mount = Mount::create(&plane.directory().join(format!("{namespace}.secret")))?;
    let known = Known::default();
    mount.exchange(&issue(&authority, campaign.life, &known)?)?;
    let flags = ["--leader-elect", &format!("--leader-elect-namespace={namespace}")];
    let start = || Replica::start(plane, namespace, mount.directory(), &flags);
    let (mut first, mut second) = (start()?, start()?);
    let balancer = Balancer::start(vec![backend(&first), backend(&second)])?;
    let sender = |_| Client::new(balancer.address(), namespace, &authority.pem(), known.clone());
    let senders = (0..SENDERS).map(sender).collect::<Result<Vec<_>>>()?;
    watch(&mut first.operator)?;
    let load = std::thread::spawn(move || load(senders, campaign));
    let began = Instant::now();
    let directory = mount.directory().to_owned();
    // Side by side: a replica that is started while the Secret is broken is ready after the next exchange only.
    std::thread::scope(|scope| {
        let restarts = scope.spawn(|| -> Result<()> {
            for at in spread(campaign.lasts, campaign.restarts) {
                std::thread::sleep(at.saturating_sub(began.elapsed()));
                second.operator.process().terminate(ENDS)?;
                second = Replica::start(plane, namespace, &directory, &flags)?;
                balancer.replace(1, backend(&second));
            }
            Ok(())
        });
        for (number, at) in spread(campaign.lasts, campaign.swaps).enumerate() {
            std::thread::sleep(at.saturating_sub(began.elapsed()));
            let mut pair = issue(&authority, campaign.life, &known)?;
            if number == BROKEN {
                pair.key = authority.issue(campaign.life)?.key;
            }
            mount.exchange(&pair)?;
        }
        restarts.join().map_err(|_| anyhow!("the restarts panicked"))?
    })?;
    let mut report = load.join().map_err(|_| anyhow!("the load panicked"))??;
    watch(&mut first.operator)?;
    let metrics = crate::http::get(&first.operator.metrics(), "/metrics")?.1;
    report.steady = Steady {
        reviews: sum(&metrics, REVIEWS),
        swaps: sum(&metrics, "nv_ipam_controller_webhook_certificate_swaps_total"),
        refused: sum(&metrics, "nv_ipam_controller_webhook_certificate_refusals_total"),
    };
    Ok(report)
}

/// Times spread evenly, the last of them before the end.
fn spread(lasts: Duration, count: u32) -> impl Iterator<Item = Duration> {
    (1..=count).map(move |number| lasts * number / (count + 1))
}

fn backend(replica: &Replica) -> Backend {
    Backend { port: replica.port(), probes: replica.operator.probes() }
}

fn issue(authority: &Authority, life: Duration, known: &Known) -> Result<Certificate> {
    let expires = SystemTime::now() + life;
    let pair = authority.issue(life)?;
    let leaf = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).context("no certificate")?;
    let mut known: std::sync::MutexGuard<'_, HashMap<_, _>> = known.lock().unwrap_or_else(PoisonError::into_inner);
    // Certificates count whole seconds, the last included.
    known.insert(leaf.to_vec(), expires + Duration::from_secs(1));
    Ok(pair)
}

/// Reviews that an operator has answered so far, by its own count.
///
/// # Errors
/// When its metrics cannot be read.
pub fn answered(metrics: &str) -> Result<u64> {
    Ok(sum(&crate::http::get(metrics, "/metrics")?.1, REVIEWS))
}

/// The sum of a metric over its labels.
fn sum(metrics: &str, name: &str) -> u64 {
    let values = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value =
            rest.strip_prefix('{').map_or(Some(rest), |labelled| labelled.split_once('}').map(|(_, rest)| rest))?;
        value.trim().parse::<u64>().ok()
    });
    values.sum()
}

fn load(senders: Vec<Client>, campaign: Campaign) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let senders: Vec<_> = senders.into_iter().map(Arc::new).collect();
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let (latencies, failures) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let expired = Arc::new(AtomicU64::new(0));
        let began = tokio::time::Instant::now();
        let count = u64::from(campaign.rate) * campaign.lasts.as_secs();
        let mut tasks = Vec::new();
        for (number, client) in (0..count).zip(senders.iter().cycle()) {
            let due = began + Duration::from_secs(number) / campaign.rate;
            tokio::time::sleep_until(due).await;
            let place = places.clone().acquire_owned().await?;
            let (client, latencies, failures, expired) =
                (client.clone(), latencies.clone(), failures.clone(), expired.clone());
            tasks.push(tokio::spawn(async move {
                match client.review(&format!("uid-{number}")).await {
                    Ok(answer) => {
                        expired.fetch_add(u64::from(answer.expired), Ordering::Relaxed);
                        lock(&latencies).push(due.elapsed());
                    }
                    Err(error) => lock(&failures).push(format!("{:?} after the start: {error:#}", began.elapsed())),
                }
                drop(place);
            }));
        }
        for task in tasks {
            task.await?;
        }
        let mut latencies = std::mem::take(&mut *lock(&latencies));
        latencies.sort_unstable();
        let mut failures = std::mem::take(&mut *lock(&failures));
        let failed = u64::try_from(failures.len())?;
        failures.truncate(TOLD);
        let expired = expired.load(Ordering::Relaxed);
        Ok(Report { sent: count, failed, failures, expired, latencies, steady: Steady::default() })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_spread_evenly_within_the_campaign() {
        let seconds: Vec<_> = spread(Duration::from_mins(1), 5).map(|at| at.as_secs()).collect();
        assert_eq!(seconds, [10, 20, 30, 40, 50]);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_mixed_up_with_a_longer_name() {
        let text = "a_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 9\na_total 4\n";
        assert_eq!(sum(text, "a_total"), 9);
    }
}
