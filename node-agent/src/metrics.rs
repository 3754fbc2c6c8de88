//! What /metrics tells. No label ever names a pod, container or address: their number has no bound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::PoolUsage;
use ipam_daemon::metrics::Requests;
use ipam_node_store::Position;
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

/// A pool of this node from which nothing new is allocated.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct PauseLabels {
    pool: String,
    kind: &'static str,
    reason: &'static str,
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
    cooling: Family<PoolLabels, Gauge>,
    unavailable: Family<PoolLabels, Gauge>,
    paused: Family<PauseLabels, Gauge>,
    /// The pools that are shown, and why each is paused.
    known: Mutex<Vec<(PoolKey, Option<&'static str>)>>,
    /// Requests that wait for the allocator.
    pub queue: Gauge,
    /// Requests whose caller was gone before the decision.
    pub abandoned: Counter,
    journal_bytes: Gauge,
    journal_epoch: Gauge,
    journal_sequence: Gauge,
    /// Journal compactions.
    pub compactions: Counter,
    /// How often the disk was full: requests that were refused, and grants whose steps began to wait.
    pub store_full: Counter,
    /// 1 while the disk has no room for allocations.
    pub disk_full: Gauge,
    /// 1 while the disk can only be read.
    pub disk_read_only: Gauge,
    /// Whether the journal is damaged.
    pub journal_damaged: Gauge,
    /// Addresses given back because their pod is gone.
    pub stale_released: Counter,
    /// Checks for addresses of pods that are gone, which could not be made.
    pub stale_checks_failed: Counter,
    /// When the last such check was made, in Unix seconds.
    pub stale_checked: Gauge,
    /// Requests of the spool that wait.
    pub spool_waiting: Gauge,
    /// Requests of the spool that were applied.
    pub spool_applied: Counter,
    /// 1 while the watch of the node's blocks is in order.
    pub watch_up: Gauge,
    /// When the watch delivered the node's object last, in Unix seconds.
    pub spec_received: Gauge,
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
            cooling: Family::default(),
            unavailable: Family::default(),
            paused: Family::default(),
            queue: Gauge::default(),
            abandoned: Counter::default(),
            journal_bytes: Gauge::default(),
            journal_epoch: Gauge::default(),
            journal_sequence: Gauge::default(),
            stale_checks_failed: Counter::default(),
            stale_checked: Gauge::default(),
            spool_waiting: Gauge::default(),
            spool_applied: Counter::default(),
            spec_received: Gauge::default(),
            known: Mutex::default(),
            compactions: Counter::default(),
            store_full: Counter::default(),
            disk_full: Gauge::default(),
            disk_read_only: Gauge::default(),
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
        r.register("addresses_cooling", "Addresses freed a short time ago", metrics.cooling.clone());
        r.register(
            "addresses_unavailable",
            "Addresses of the block that pods without a record may use",
            metrics.unavailable.clone(),
        );
        r.register("pool_paused", "Pools of which no new address is allocated, by reason", metrics.paused.clone());
        r.register("queue_length", "Requests that wait for a decision", metrics.queue.clone());
        r.register(
            "requests_abandoned",
            "Requests whose caller was gone before the decision",
            metrics.abandoned.clone(),
        );
        r.register_with_unit("journal", "Size of the journal's records", Unit::Bytes, metrics.journal_bytes.clone());
        r.register("journal_epoch", "How often the journal was replaced by a new file", metrics.journal_epoch.clone());
        r.register(
            "journal_sequence",
            "Records of the journal since it was replaced",
            metrics.journal_sequence.clone(),
        );
        r.register("journal_compactions", "Compactions of the journal", metrics.compactions.clone());
        r.register(
            "journal_full",
            "How often the disk was full: requests refused, and grants that began to wait",
            metrics.store_full.clone(),
        );
        r.register("disk_full", "Whether the disk has no room for allocations", metrics.disk_full.clone());
        r.register("disk_read_only", "Whether the journal's disk can only be read", metrics.disk_read_only.clone());
        r.register("journal_damaged", "Whether the journal is damaged", metrics.journal_damaged.clone());
        r.register("stale_released", "Addresses given back because their pod is gone", metrics.stale_released.clone());
        r.register(
            "stale_checks_failed",
            "Checks for addresses of pods that are gone, which could not be made",
            metrics.stale_checks_failed.clone(),
        );
        r.register_with_unit(
            "stale_check_last_success_timestamp",
            "When the last of these checks was made",
            Unit::Seconds,
            metrics.stale_checked.clone(),
        );
        r.register(
            "spool_requests",
            "Requests to free addresses that wait in the spool",
            metrics.spool_waiting.clone(),
        );
        r.register("spool_applied", "Requests of the spool that were applied", metrics.spool_applied.clone());
        r.register_with_unit(
            "spec_received_timestamp",
            "When the API server sent the node's blocks last",
            Unit::Seconds,
            metrics.spec_received.clone(),
        );
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

    /// Shows how far the journal has come, and the bytes of its records.
    pub fn set_journal(&self, position: Position, bytes: usize) {
        self.journal_epoch.set(i64::try_from(position.epoch).unwrap_or(i64::MAX));
        self.journal_sequence.set(i64::try_from(position.sequence).unwrap_or(i64::MAX));
        self.journal_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Shows how full the pools are; those that are no longer there are no longer shown.
    pub fn set_usage(&self, usage: &[PoolUsage]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, pause) in known.iter() {
            let now = usage.iter().find(|pool| pool.key == *key);
            if now.is_none() {
                let labels = labels(key);
                for family in [&self.held, &self.capacity, &self.cooling, &self.unavailable] {
                    family.remove(&labels);
                }
            }
            if let Some(reason) = pause
                && now.is_none_or(|pool| pool.pause != Some(reason))
            {
                self.paused.remove(&paused(key, reason));
            }
        }
        for pool in usage {
            let labels = labels(&pool.key);
            self.held.get_or_create(&labels).set(i64::try_from(pool.used).unwrap_or(i64::MAX));
            self.capacity.get_or_create(&labels).set(i64::try_from(pool.capacity).unwrap_or(i64::MAX));
            self.cooling.get_or_create(&labels).set(i64::try_from(pool.cooling).unwrap_or(i64::MAX));
            self.unavailable.get_or_create(&labels).set(i64::try_from(pool.unavailable).unwrap_or(i64::MAX));
            if let Some(reason) = pool.pause {
                self.paused.get_or_create(&paused(&pool.key, reason)).set(1);
            }
        }
        let is_same = |((key, pause), pool): (&(PoolKey, _), &PoolUsage)| *key == pool.key && *pause == pool.pause;
        if known.len() != usage.len() || !known.iter().zip(usage).all(is_same) {
            *known = usage.iter().map(|pool| (pool.key.clone(), pool.pause)).collect();
        }
    }
}

fn labels(key: &PoolKey) -> PoolLabels {
    PoolLabels { pool: key.name.clone(), kind: key.kind.kind() }
}

fn paused(key: &PoolKey, reason: &'static str) -> PauseLabels {
    PauseLabels { pool: key.name.clone(), kind: key.kind.kind(), reason }
}
