//! What the operator tells Prometheus. Labels are bounded by the number of pools and of reason words; never by nodes.

use std::time::Duration;

use ipam_core::{PoolKey, Violation};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::pool::{PoolRecord, Summary};
use crate::reconcile::{CallError, NodeVersion};

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    plan_seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
    reconcile_seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
    status_writes: Family<PoolLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    nodes: Family<StateLabels, Gauge>,
    blocks: Family<StateLabels, Gauge>,
    addresses: Family<StateLabels, Gauge>,
    violations: Family<ViolationLabels, Gauge>,
    contradictions: Family<PoolLabels, Gauge>,
    ipam_node_writes: Family<ResultLabels, Counter>,
    ipam_nodes_waiting: Gauge,
    nodes_awaiting_report: Gauge,
    watch_failures: Family<WatchLabels, Counter>,
    leader: Gauge,
}

/// Histograms are of kinds: one for each pool would be most of the operator's memory where there are thousands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct PoolLabels {
    kind: &'static str,
    pool: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StateLabels {
    kind: &'static str,
    pool: String,
    state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct FailureLabels {
    kind: &'static str,
    pool: String,
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ViolationLabels {
    kind: &'static str,
    pool: String,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct WatchLabels {
    watch: &'static str,
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
}

const NODE_STATES: [&str; 3] = ["served", "unserved", "departed"];
const BLOCK_STATES: [&str; 2] = ["total", "free"];
const ADDRESS_STATES: [&str; 2] = ["capacity", "used"];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            plan_seconds: Family::new_with_constructor(durations),
            reconcile_seconds: Family::new_with_constructor(durations),
            status_writes: Family::default(),
            failures: Family::default(),
            nodes: Family::default(),
            blocks: Family::default(),
            addresses: Family::default(),
            violations: Family::default(),
            contradictions: Family::default(),
            ipam_node_writes: Family::default(),
            ipam_nodes_waiting: Gauge::default(),
            nodes_awaiting_report: Gauge::default(),
            watch_failures: Family::default(),
            leader: Gauge::default(),
        }
    }
}

impl Metrics {
    /// A registry that shows these metrics, and build information.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("nv_ipam_controller");
        let r = &mut registry;
        r.register_with_unit("plan", "Time to decide about a pool", Unit::Seconds, self.plan_seconds.clone());
        let help = "Time from the decision about a pool until its call succeeded or failed";
        r.register_with_unit("reconcile", help, Unit::Seconds, self.reconcile_seconds.clone());
        r.register("status_writes", "Statuses of pools written", self.status_writes.clone());
        let help = "Calls about pools that failed: conflict (observed again) or error";
        r.register("pool_call_failures", help, self.failures.clone());
        r.register("pool_nodes", "Nodes of a pool: served, unserved, departed", self.nodes.clone());
        r.register("pool_blocks", "Blocks of a pool: total, free", self.blocks.clone());
        r.register("pool_addresses", "Addresses in the blocks of a pool: capacity, used", self.addresses.clone());
        r.register("pool_violations", "Mistakes in the spec of a pool, by reason", self.violations.clone());
        let help = "Addresses of a pool that two agents report as held";
        r.register("pool_contradictions", help, self.contradictions.clone());
        let help = "Writes of IPAMNodes: ok, conflict (observed again) or error";
        r.register("ipam_node_writes", help, self.ipam_node_writes.clone());
        let help = "IPAMNodes to be looked at or being written";
        r.register("ipam_nodes_waiting", help, self.ipam_nodes_waiting.clone());
        let help = "Nodes whose agents have not made a requested report";
        r.register("nodes_awaiting_report", help, self.nodes_awaiting_report.clone());
        r.register("watch_failures", "Watches that broke, by resource", self.watch_failures.clone());
        r.register("leader", "1 if this replica leads", self.leader.clone());
        registry
    }

    /// A pool was decided about.
    pub fn planned(&self, key: &PoolKey, took: Duration) {
        self.plan_seconds.get_or_create(&kind_labels(key)).observe(took.as_secs_f64());
    }

    /// The call about a pool is done, this long after the decision.
    pub fn reconciled(&self, key: &PoolKey, took: Duration) {
        self.reconcile_seconds.get_or_create(&kind_labels(key)).observe(took.as_secs_f64());
    }

    /// A status that says this is written.
    pub fn status_written(&self, key: &PoolKey, summary: &Summary) {
        self.status_writes.get_or_create(&pool_labels(key)).inc();
        self.summary(key, summary);
    }

    /// A pool's status says this.
    pub fn summary(&self, key: &PoolKey, summary: &Summary) {
        let set = |family: &Family<StateLabels, Gauge>, state: &'static str, value: i64| {
            family.get_or_create(&state_labels(key, state)).set(value);
        };
        let nodes = summary.nodes.unwrap_or_default();
        for (state, count) in NODE_STATES.into_iter().zip([nodes.served, nodes.unserved, nodes.departed]) {
            set(&self.nodes, state, i64::from(count));
        }
        let blocks = summary.blocks.unwrap_or_default();
        for (state, count) in BLOCK_STATES.into_iter().zip([blocks.total, blocks.free]) {
            set(&self.blocks, state, count);
        }
        let addresses = summary.addresses.unwrap_or_default();
        for (state, count) in ADDRESS_STATES.into_iter().zip([addresses.capacity, addresses.used]) {
            set(&self.addresses, state, count);
        }
    }

    /// A call about a pool failed.
    pub fn pool_call_failed(&self, key: &PoolKey, error: &CallError) {
        let PoolLabels { kind, pool } = pool_labels(key);
        self.failures.get_or_create(&FailureLabels { kind, pool, result: word(error) }).inc();
    }

    /// An IPAMNode was written, or not.
    pub fn ipam_node_written(&self, result: &Result<Option<NodeVersion>, CallError>) {
        let result = result.as_ref().map_or_else(word, |_| "ok");
        self.ipam_node_writes.get_or_create(&ResultLabels { result }).inc();
    }

    /// So many IPAMNodes are to be looked at or being written.
    pub fn ipam_nodes_waiting(&self, count: usize) {
        self.ipam_nodes_waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The number of nodes whose agents have not made a requested report.
    pub fn nodes_awaiting_report(&self, count: usize) {
        self.nodes_awaiting_report.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A watch broke and is being renewed.
    pub fn watch_failed(&self, watch: &'static str) {
        self.watch_failures.get_or_create(&WatchLabels { watch }).inc();
    }

    /// Whether this replica leads.
    pub fn leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// So many addresses of a pool are reported by two agents.
    pub fn contradictions(&self, key: &PoolKey, count: usize) {
        self.contradictions.get_or_create(&pool_labels(key)).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// These are the mistakes in a pool's spec now.
    pub fn violations(&self, pool: &PoolRecord) {
        for violation in mistakes(pool) {
            self.violations.get_or_create(&violation_labels(&pool.key, violation.reason.as_str())).inc();
        }
    }

    /// The mistakes told of this pool are to be told anew, or no longer.
    pub fn forget_violations(&self, pool: &PoolRecord) {
        for violation in mistakes(pool) {
            self.violations.remove(&violation_labels(&pool.key, violation.reason.as_str()));
        }
    }

    /// A pool is gone, and what was told of it.
    pub fn forget(&self, pool: &PoolRecord) {
        let key = &pool.key;
        self.status_writes.remove(&pool_labels(key));
        self.contradictions.remove(&pool_labels(key));
        for result in ["conflict", "error"] {
            let PoolLabels { kind, pool } = pool_labels(key);
            self.failures.remove(&FailureLabels { kind, pool, result });
        }
        let states =
            [(&self.nodes, NODE_STATES.as_slice()), (&self.blocks, &BLOCK_STATES), (&self.addresses, &ADDRESS_STATES)];
        for (family, states) in states {
            for state in states {
                family.remove(&state_labels(key, state));
            }
        }
        self.forget_violations(pool);
    }
}

fn mistakes(pool: &PoolRecord) -> &[Violation] {
    pool.spec.as_ref().err().map_or(&[], Vec::as_slice)
}

fn word(error: &CallError) -> &'static str {
    match error {
        CallError::Conflict(_) => "conflict",
        CallError::Failed(_) | CallError::NoPlace(_) => "error",
    }
}

fn kind_labels(key: &PoolKey) -> KindLabels {
    KindLabels { kind: key.kind.kind() }
}

fn pool_labels(key: &PoolKey) -> PoolLabels {
    PoolLabels { kind: key.kind.kind(), pool: key.name.clone() }
}

fn state_labels(key: &PoolKey, state: &'static str) -> StateLabels {
    StateLabels { kind: key.kind.kind(), pool: key.name.clone(), state }
}

fn violation_labels(key: &PoolKey, reason: &'static str) -> ViolationLabels {
    ViolationLabels { kind: key.kind.kind(), pool: key.name.clone(), reason }
}
