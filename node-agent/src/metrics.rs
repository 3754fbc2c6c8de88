//! What /metrics tells. No label ever names a pod, container or address: their number has no bound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::PoolUsage;
use ipam_daemon::metrics::Requests;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// A finished call.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct CallLabels {
    method: &'static str,
    code: String,
}

/// A method.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct MethodLabels {
    method: &'static str,
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ReasonLabels {
    reason: String,
}

/// A pool of this node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct PoolLabels {
    pool: String,
    kind: &'static str,
}

/// All metrics of the agent.
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    call_seconds: Family<MethodLabels, Histogram, fn() -> Histogram>,
    refusals: Family<ReasonLabels, Counter>,
    batch_changes: Histogram,
    sync_seconds: Histogram,
    held: Family<PoolLabels, Gauge>,
    capacity: Family<PoolLabels, Gauge>,
    known: Mutex<Vec<PoolKey>>,
    /// Journal compactions.
    pub compactions: Counter,
    /// How often the disk was full: requests that were refused, and grants whose steps began to wait.
    pub store_full: Counter,
    /// 1 while the disk has no room for allocations.
    pub disk_full: Gauge,
    /// Whether the journal is damaged.
    pub journal_damaged: Gauge,
    /// Addresses given back because their pod is gone.
    pub stale_released: Counter,
    /// 1 while the watch of the node's blocks is in order.
    pub watch_up: Gauge,
    /// Status reports that the API server did not take.
    pub report_failures: Counter,
    /// Requests to the API server.
    pub requests: Requests,
}

/// 50 µs to 1.6 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(seconds),
            refusals: Family::default(),
            batch_changes: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            sync_seconds: seconds(),
            held: Family::default(),
            capacity: Family::default(),
            known: Mutex::default(),
            compactions: Counter::default(),
            store_full: Counter::default(),
            disk_full: Gauge::default(),
            journal_damaged: Gauge::default(),
            stale_released: Counter::default(),
            watch_up: Gauge::default(),
            report_failures: Counter::default(),
            requests: Requests::default(),
        }
    }
}

impl Metrics {
    /// The metrics, and the registry that shows them.
    pub fn registered() -> (Arc<Self>, Registry) {
        let metrics = Self::default();
        let mut registry = ipam_daemon::metrics::registry(&metrics.requests);
        let r = ipam_daemon::metrics::own(&mut registry, "ipam_node");
        r.register("requests", "Calls of the CNI plugin, by outcome", metrics.calls.clone());
        r.register_with_unit(
            "request_duration",
            "Time from call to answer",
            Unit::Seconds,
            metrics.call_seconds.clone(),
        );
        r.register("refusals", "Calls refused, by reason", metrics.refusals.clone());
        r.register("commit_changes", "Changes made durable together", metrics.batch_changes.clone());
        r.register_with_unit(
            "commit_duration",
            "Time to make a batch durable (write and sync)",
            Unit::Seconds,
            metrics.sync_seconds.clone(),
        );
        r.register("addresses_held", "Addresses of the pool that this node holds", metrics.held.clone());
        r.register("addresses_capacity", "Addresses that the node's block can give", metrics.capacity.clone());
        r.register("journal_compactions", "Compactions of the journal", metrics.compactions.clone());
        r.register(
            "journal_full",
            "How often the disk was full: requests refused, and grants that began to wait",
            metrics.store_full.clone(),
        );
        r.register("disk_full", "Whether the disk has no room for allocations", metrics.disk_full.clone());
        r.register("journal_damaged", "Whether the journal is damaged", metrics.journal_damaged.clone());
        r.register("stale_released", "Addresses given back because their pod is gone", metrics.stale_released.clone());
        r.register("watch_up", "Whether the watch of the node's blocks is in order", metrics.watch_up.clone());
        r.register("report_failures", "Status reports the API server did not take", metrics.report_failures.clone());
        (Arc::new(metrics), registry)
    }

    /// Counts a finished call.
    pub fn called(&self, method: &'static str, code: tonic::Code, took: Duration) {
        self.calls.get_or_create(&CallLabels { method, code: format!("{code:?}") }).inc();
        self.call_seconds.get_or_create(&MethodLabels { method }).observe(took.as_secs_f64());
    }

    /// Counts a refusal.
    pub fn refused(&self, reason: &str) {
        self.refusals.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    /// Counts a batch made durable.
    pub fn committed(&self, changes: usize, took: Duration) {
        self.batch_changes.observe(f64::from(u32::try_from(changes).unwrap_or(u32::MAX)));
        self.sync_seconds.observe(took.as_secs_f64());
    }

    /// Shows how full the pools are; those that are no longer there are no longer shown.
    pub fn set_usage(&self, usage: &[PoolUsage]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in known.iter().filter(|key| !usage.iter().any(|pool| pool.key == **key)) {
            self.held.remove(&labels(gone));
            self.capacity.remove(&labels(gone));
        }
        for pool in usage {
            self.held.get_or_create(&labels(&pool.key)).set(i64::try_from(pool.used).unwrap_or(i64::MAX));
            self.capacity.get_or_create(&labels(&pool.key)).set(i64::try_from(pool.capacity).unwrap_or(i64::MAX));
        }
        if known.len() != usage.len() || !known.iter().zip(usage).all(|(key, pool)| *key == pool.key) {
            *known = usage.iter().map(|pool| pool.key.clone()).collect();
        }
    }
}

fn labels(key: &PoolKey) -> PoolLabels {
    PoolLabels { pool: key.name.clone(), kind: key.kind.kind() }
}
