//! Metrics of decisions, writes and queues. Labels are bounded by the number of pools and of reasons, never by nodes.

use std::time::Duration;

use ipam_core::{PoolKey, PoolKind, Violation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::calls::{CallError, NodeVersion};
use crate::decide::CONDITIONS;
use crate::pool::{PoolRecord, StatusRecord};

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    plan_duration: Family<KindLabels, Histogram, fn() -> Histogram>,
    call_duration: Family<KindLabels, Histogram, fn() -> Histogram>,
    calls: Family<CallLabels, Counter>,
    status_writes: Family<PoolLabels, Counter>,
    status_written: Family<PoolLabels, Counter>,
    status_size: Family<PoolLabels, Gauge>,
    nodes: Family<StateLabels, Gauge>,
    blocks: Family<PoolLabels, Gauge>,
    free_blocks: Family<PoolLabels, Gauge>,
    capacity: Family<PoolLabels, Gauge>,
    in_use: Family<PoolLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    spec_errors: Family<ReasonLabels, Gauge>,
    duplicates: Family<PoolLabels, Gauge>,
    oldest_release: Family<PoolLabels, Gauge>,
    assigned: Family<PoolLabels, Counter>,
    released: Family<PoolLabels, Counter>,
    released_unreported: Family<ReasonLabels, Counter>,
    ipam_node_writes: Family<ResultLabels, Counter>,
    queue_depth: Family<NameLabels, Gauge>,
    nodes_awaiting_report: Gauge,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct NameLabels {
    name: &'static str,
}

/// Labels of histograms. Histograms for each pool would take most of the memory of an operator with thousands of pools.
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
struct CallLabels {
    kind: &'static str,
    pool: String,
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ReasonLabels {
    kind: &'static str,
    pool: String,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ConditionLabels {
    kind: &'static str,
    pool: String,
    r#type: &'static str,
    reason: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// 0.25 ms to 66 s: a call times out after 40 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 19))
}

const NODE_STATES: [&str; 3] = ["served", "unserved", "releasing"];
const RESULTS: [&str; 3] = ["ok", "conflict", "error"];
/// Reasons of the events about blocks that are released without a report.
const UNREPORTED: [&str; 2] = ["ForcedRelease", "GraceExpired"];
const POOLS: &str = "pools";
const IPAM_NODES: &str = "ipamnodes";

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            plan_duration: Family::new_with_constructor(durations),
            call_duration: Family::new_with_constructor(durations),
            calls: Family::default(),
            status_writes: Family::default(),
            status_written: Family::default(),
            status_size: Family::default(),
            nodes: Family::default(),
            blocks: Family::default(),
            free_blocks: Family::default(),
            capacity: Family::default(),
            in_use: Family::default(),
            conditions: Family::default(),
            spec_errors: Family::default(),
            duplicates: Family::default(),
            oldest_release: Family::default(),
            assigned: Family::default(),
            released: Family::default(),
            released_unreported: Family::default(),
            ipam_node_writes: Family::default(),
            queue_depth: Family::default(),
            nodes_awaiting_report: Gauge::default(),
        };
        metrics.begin();
        metrics
    }
}

impl Metrics {
    /// Adds these metrics to the part of a registry that has the operator's prefix.
    pub fn register(&self, r: &mut Registry) {
        let help = "Time to decide about a pool";
        r.register_with_unit("plan_duration", help, Unit::Seconds, self.plan_duration.clone());
        let help = "Time from the decision about a pool until its call succeeded or failed";
        r.register_with_unit("pool_call_duration", help, Unit::Seconds, self.call_duration.clone());
        let help = "Calls about pools: ok, conflict (the object changed meanwhile and is read again) or error";
        r.register("pool_calls", help, self.calls.clone());
        r.register("pool_status_writes", "Statuses of pools written", self.status_writes.clone());
        let help = "Size of the pool statuses written";
        r.register_with_unit("pool_status_written", help, Unit::Bytes, self.status_written.clone());
        let help = "Size of the last pool status that this replica wrote";
        r.register_with_unit("pool_status_size", help, Unit::Bytes, self.status_size.clone());
        let help = "Nodes of a pool: served, unserved (selected, without a block), releasing";
        r.register("pool_nodes", help, self.nodes.clone());
        r.register("pool_blocks", "Blocks of a pool, assigned or free", self.blocks.clone());
        r.register("pool_free_blocks", "Free blocks of a pool", self.free_blocks.clone());
        let help = "Addresses in the assigned blocks of a pool, free or in use";
        r.register("pool_addresses_capacity", help, self.capacity.clone());
        r.register("pool_addresses_in_use", "Addresses of a pool in use", self.in_use.clone());
        let help = "Conditions of a pool with their reasons: 1 if True, 0 if False";
        r.register("pool_condition", help, self.conditions.clone());
        r.register("pool_spec_errors", "Errors in the spec of a pool, by reason", self.spec_errors.clone());
        let help = "Reports of two agents that they use the same address or range of a pool";
        r.register("pool_duplicate_addresses", help, self.duplicates.clone());
        let help = "Since when the block waits that has been Releasing for longest, since 1970; 0 without one";
        r.register_with_unit("pool_oldest_release_timestamp", help, Unit::Seconds, self.oldest_release.clone());
        r.register("pool_blocks_assigned", "Blocks assigned to nodes", self.assigned.clone());
        r.register("pool_blocks_released", "Blocks released", self.released.clone());
        let help = "Blocks released without a report that no address is in use, by the reason of the event";
        r.register("pool_blocks_released_unreported", help, self.released_unreported.clone());
        let help = "Writes of IPAMNodes: ok, conflict (the object changed meanwhile and is read again) or error";
        r.register("ipam_node_writes", help, self.ipam_node_writes.clone());
        let help = "Nodes whose agents have not made a requested report";
        r.register("nodes_awaiting_report", help, self.nodes_awaiting_report.clone());
    }

    /// The metric of the queues, which has the same name in each controller.
    pub fn register_queues(&self, r: &mut Registry) {
        r.register("workqueue_depth", "Objects that wait for a decision or a call", self.queue_depth.clone());
    }

    /// Creates the counters and gauges without a pool, so that their first increase is visible.
    fn begin(&self) {
        for result in RESULTS {
            drop(self.ipam_node_writes.get_or_create(&ResultLabels { result }));
        }
        self.queued(0, 0);
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            drop(self.plan_duration.get_or_create(&KindLabels { kind: kind.kind() }));
            drop(self.call_duration.get_or_create(&KindLabels { kind: kind.kind() }));
        }
    }

    /// The counters that a pool has as long as it exists.
    fn pool_counters(&self) -> [&Family<PoolLabels, Counter>; 4] {
        [&self.status_writes, &self.status_written, &self.assigned, &self.released]
    }

    /// The gauges with the labels of a pool only.
    fn pool_gauges(&self) -> [&Family<PoolLabels, Gauge>; 7] {
        [
            &self.status_size,
            &self.blocks,
            &self.free_blocks,
            &self.capacity,
            &self.in_use,
            &self.duplicates,
            &self.oldest_release,
        ]
    }

    /// A decision about a pool was made.
    pub fn planned(&self, key: &PoolKey, took: Duration) {
        self.plan_duration.get_or_create(&kind_labels(key)).observe(took.as_secs_f64());
    }

    /// The call about a pool has ended, this long after the decision.
    pub fn called(&self, key: &PoolKey, result: &Result<String, CallError>, took: Duration) {
        self.call_duration.get_or_create(&kind_labels(key)).observe(took.as_secs_f64());
        let result = result.as_ref().map_or_else(word, |_| "ok");
        self.calls.get_or_create(&call_labels(key, result)).inc();
    }

    /// A status of this size was written.
    pub fn status_written(&self, key: &PoolKey, bytes: u64) {
        self.status_writes.get_or_create(&pool_labels(key)).inc();
        self.status_written.get_or_create(&pool_labels(key)).inc_by(bytes);
        self.status_size.get_or_create(&pool_labels(key)).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// These numbers of blocks of a pool were assigned and released.
    pub fn blocks_changed(&self, key: &PoolKey, assigned: u64, released: u64) {
        self.assigned.get_or_create(&pool_labels(key)).inc_by(assigned);
        self.released.get_or_create(&pool_labels(key)).inc_by(released);
    }

    /// An event with this reason was published about a pool.
    pub fn noted(&self, key: &PoolKey, reason: &'static str) {
        if UNREPORTED.contains(&reason) {
            self.released_unreported.get_or_create(&reason_labels(key, reason)).inc();
        }
    }

    /// A pool is new.
    pub fn began(&self, pool: &PoolRecord) {
        let key = &pool.key;
        for family in self.pool_counters() {
            drop(family.get_or_create(&pool_labels(key)));
        }
        for result in RESULTS {
            drop(self.calls.get_or_create(&call_labels(key, result)));
        }
        for reason in UNREPORTED {
            drop(self.released_unreported.get_or_create(&reason_labels(key, reason)));
        }
        self.duplicate_addresses(key, 0);
        self.spec_errors(pool);
        self.status(key, &StatusRecord::default(), &pool.status);
    }

    /// A pool's status is `now`, and was `before`.
    pub fn status(&self, key: &PoolKey, before: &StatusRecord, now: &StatusRecord) {
        let set = |family: &Family<PoolLabels, Gauge>, value: i64| {
            family.get_or_create(&pool_labels(key)).set(value);
        };
        let nodes = now.summary.nodes.unwrap_or_default();
        for (state, count) in NODE_STATES.into_iter().zip([nodes.served, nodes.unserved, nodes.releasing]) {
            self.nodes.get_or_create(&state_labels(key, state)).set(i64::from(count));
        }
        let blocks = now.summary.blocks.unwrap_or_default();
        set(&self.blocks, blocks.total);
        set(&self.free_blocks, blocks.free);
        let addresses = now.summary.addresses.unwrap_or_default();
        set(&self.capacity, addresses.capacity);
        set(&self.in_use, addresses.used);
        let since = now.releasing.iter().filter_map(|release| release.since).map(Timestamp::as_second).min();
        set(&self.oldest_release, since.unwrap_or_default());
        let shown: Vec<ConditionLabels> =
            condition_labels(key, &now.summary.conditions).map(|(labels, _)| labels).collect();
        for (old, _) in condition_labels(key, &before.summary.conditions).filter(|(old, _)| !shown.contains(old)) {
            self.conditions.remove(&old);
        }
        for (labels, value) in condition_labels(key, &now.summary.conditions) {
            self.conditions.get_or_create(&labels).set(value);
        }
    }

    /// A write of an IPAMNode has ended.
    pub fn ipam_node_written(&self, result: &Result<Option<NodeVersion>, CallError>) {
        let result = result.as_ref().map_or_else(word, |_| "ok");
        self.ipam_node_writes.get_or_create(&ResultLabels { result }).inc();
    }

    /// These numbers of pools and IPAMNodes wait for a decision or a call.
    pub fn queued(&self, pools: usize, ipam_nodes: usize) {
        for (name, count) in [(POOLS, pools), (IPAM_NODES, ipam_nodes)] {
            self.queue_depth.get_or_create(&NameLabels { name }).set(number(count));
        }
    }

    /// The number of nodes whose agents have not made a requested report.
    pub fn nodes_awaiting_report(&self, count: usize) {
        self.nodes_awaiting_report.set(number(count));
    }

    /// Two agents report this number of addresses of a pool as in use.
    pub fn duplicate_addresses(&self, key: &PoolKey, count: usize) {
        self.duplicates.get_or_create(&pool_labels(key)).set(number(count));
    }

    /// Adds the errors in the spec of a pool.
    pub fn spec_errors(&self, pool: &PoolRecord) {
        for violation in errors(pool) {
            self.spec_errors.get_or_create(&reason_labels(&pool.key, violation.reason.as_str())).inc();
        }
    }

    /// Removes the errors in the spec of a pool.
    pub fn forget_spec_errors(&self, pool: &PoolRecord) {
        for violation in errors(pool) {
            self.spec_errors.remove(&reason_labels(&pool.key, violation.reason.as_str()));
        }
    }

    /// Removes all metrics of a pool that is gone.
    pub fn forget(&self, pool: &PoolRecord) {
        let key = &pool.key;
        for family in self.pool_counters() {
            family.remove(&pool_labels(key));
        }
        for family in self.pool_gauges() {
            family.remove(&pool_labels(key));
        }
        for result in RESULTS {
            self.calls.remove(&call_labels(key, result));
        }
        for reason in UNREPORTED {
            self.released_unreported.remove(&reason_labels(key, reason));
        }
        for state in NODE_STATES {
            self.nodes.remove(&state_labels(key, state));
        }
        for (labels, _) in condition_labels(key, &pool.status.summary.conditions) {
            self.conditions.remove(&labels);
        }
        self.forget_spec_errors(pool);
    }
}

/// The operator's conditions with their values. Other writers can add any number of conditions, which are left out.
fn condition_labels<'a>(
    key: &'a PoolKey,
    conditions: &'a [Condition],
) -> impl Iterator<Item = (ConditionLabels, i64)> + 'a {
    conditions.iter().filter_map(|condition| {
        let known = CONDITIONS.into_iter().find(|known| *known == condition.type_)?;
        let PoolLabels { kind, pool } = pool_labels(key);
        let labels = ConditionLabels { kind, pool, r#type: known, reason: condition.reason.clone() };
        Some((labels, i64::from(condition.status == "True")))
    })
}

fn errors(pool: &PoolRecord) -> &[Violation] {
    pool.spec.as_ref().err().map_or(&[], Vec::as_slice)
}

fn word(error: &CallError) -> &'static str {
    match error {
        CallError::Conflict(_) => "conflict",
        CallError::Failed(_) | CallError::CreateBlocked(_) => "error",
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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

fn call_labels(key: &PoolKey, result: &'static str) -> CallLabels {
    CallLabels { kind: key.kind.kind(), pool: key.name.clone(), result }
}

fn reason_labels(key: &PoolKey, reason: &'static str) -> ReasonLabels {
    ReasonLabels { kind: key.kind.kind(), pool: key.name.clone(), reason }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;
    use crate::objects::RawObject;

    fn shown(metrics: &Metrics) -> Vec<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        let ours = text.lines().filter(|line| line.starts_with("pool_"));
        ours.filter(|line| line.contains("pool=")).map(|line| line.replacen("pool_", "", 1)).collect()
    }

    fn pool(spec: &serde_json::Value, status: &serde_json::Value) -> PoolRecord {
        let object = json!({
            "metadata": {"name": "rdma", "uid": "1", "resourceVersion": "1", "generation": 1}, "spec": spec, "status": status
        });
        let object: RawObject = serde_json::from_value(object).unwrap();
        PoolRecord::read(PoolKind::IpPool, &object, None)
    }

    fn status(reason: &str, ready: &str, releasing: &serde_json::Value) -> serde_json::Value {
        let ready = json!({"type": "Ready", "status": ready, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({
            "observedGeneration": 1, "conditions": [ready], "allocations": [], "releasing": releasing,
            "nodes": {"served": 3, "unserved": 2, "releasing": 1}, "blocks": {"total": 9, "free": 5}, "addresses": {"capacity": 40, "used": 7}
        })
    }

    #[test]
    fn a_pool_shows_its_counts_and_conditions_until_it_goes() {
        let metrics = Metrics::default();
        let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4});
        let releasing =
            json!([{"nodeName": "a", "startIP": "10.0.0.1", "endIP": "10.0.0.4", "since": "2026-01-01T00:00:10Z"}]);
        let before = pool(&spec, &status("Valid", "True", &releasing));
        metrics.began(&before);
        let lines = shown(&metrics);
        for line in [
            "condition{kind=\"IPPool\",pool=\"rdma\",type=\"Ready\",reason=\"Valid\"} 1",
            "nodes{kind=\"IPPool\",pool=\"rdma\",state=\"unserved\"} 2",
            "blocks{kind=\"IPPool\",pool=\"rdma\"} 9",
            "free_blocks{kind=\"IPPool\",pool=\"rdma\"} 5",
            "addresses_capacity{kind=\"IPPool\",pool=\"rdma\"} 40",
            "addresses_in_use{kind=\"IPPool\",pool=\"rdma\"} 7",
            "oldest_release_timestamp_seconds{kind=\"IPPool\",pool=\"rdma\"} 1767225610",
            "blocks_assigned_total{kind=\"IPPool\",pool=\"rdma\"} 0",
            "blocks_released_unreported_total{kind=\"IPPool\",pool=\"rdma\",reason=\"GraceExpired\"} 0",
            "calls_total{kind=\"IPPool\",pool=\"rdma\",result=\"conflict\"} 0",
        ] {
            assert!(lines.iter().any(|it| it == line), "{line} in {lines:#?}");
        }
        let now = pool(&spec, &status("Overlap", "False", &json!([])));
        metrics.status(&now.key, &before.status, &now.status);
        let lines = shown(&metrics);
        let conditions: Vec<&String> = lines.iter().filter(|line| line.starts_with("condition")).collect();
        assert_eq!(conditions, ["condition{kind=\"IPPool\",pool=\"rdma\",type=\"Ready\",reason=\"Overlap\"} 0"]);
        assert!(lines.iter().any(|line| line.starts_with("oldest_release") && line.ends_with(" 0")), "{lines:#?}");
        metrics.forget(&now);
        assert_eq!(shown(&metrics), Vec::<String>::new());
    }

    #[test]
    fn errors_in_a_spec_are_counted_by_reason() {
        let metrics = Metrics::default();
        let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4, "gateway": "10.9.9.9"});
        let invalid = pool(&spec, &json!({}));
        assert!(invalid.spec.is_err());
        metrics.began(&invalid);
        let errors =
            |metrics: &Metrics| shown(metrics).into_iter().filter(|line| line.starts_with("spec_errors")).count();
        assert_eq!(errors(&metrics), 1);
        metrics.forget_spec_errors(&invalid);
        assert_eq!(errors(&metrics), 0);
    }
}
