//! Metrics of decisions, writes and queues. Labels are bounded by the number of pools and of reasons, never by nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipam_core::{PoolKey, PoolKind};
use ipam_crds::{AddressCounts, BlockCounts, NodeCounts};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::calls::{CallError, NodeVersion};
use crate::decide::CONDITIONS;
use crate::pool::{PoolRecord, StatusRecord};

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    // Histograms for each pool would take most of the memory of an operator with thousands of pools.
    plan_duration: Family<Label, Histogram, fn() -> Histogram>,
    call_duration: Family<Label, Histogram, fn() -> Histogram>,
    ipam_node_writes: Family<Label, Counter>,
    queue_depth: Family<Label, Gauge>,
    nodes_awaiting_report: Gauge,
    pools: Arc<Pools>,
}

/// The only label of a metric, with its value.
type Label = [(&'static str, &'static str); 1];

/// 0.25 ms to 66 s: a call times out after 40 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 19))
}

const RESULTS: [&str; 3] = ["ok", "conflict", "error"];
/// Reasons of the events about blocks that are released without a report.
const UNREPORTED: [&str; 2] = ["ForcedRelease", "GraceExpired"];

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            plan_duration: Family::new_with_constructor(durations),
            call_duration: Family::new_with_constructor(durations),
            ipam_node_writes: Family::default(),
            queue_depth: Family::default(),
            nodes_awaiting_report: Gauge::default(),
            pools: Arc::default(),
        };
        // The first increase of a counter is visible only if the counter was there before.
        for result in RESULTS {
            drop(metrics.ipam_node_writes.get_or_create(&[("result", result)]));
        }
        metrics.queued(0, 0);
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            drop(metrics.plan_duration.get_or_create(&of_kind(kind)));
            drop(metrics.call_duration.get_or_create(&of_kind(kind)));
        }
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
        let help = "Writes of IPAMNodes: ok, conflict (the object changed meanwhile and is read again) or error";
        r.register("ipam_node_writes", help, self.ipam_node_writes.clone());
        let help = "Nodes whose agents have not made a requested report";
        r.register("nodes_awaiting_report", help, self.nodes_awaiting_report.clone());
        r.register_collector(Box::new(self.pools.clone()));
    }

    /// The metric of the queues, which has the same name in each controller.
    pub fn register_queues(&self, r: &mut Registry) {
        r.register("workqueue_depth", "Objects that wait for a decision or a call", self.queue_depth.clone());
    }

    /// A decision about a pool was made.
    pub fn planned(&self, key: &PoolKey, took: Duration) {
        self.plan_duration.get_or_create(&of_kind(key.kind)).observe(took.as_secs_f64());
    }

    /// The call about a pool has ended, this long after the decision.
    pub fn called(&self, key: &PoolKey, result: &Result<String, CallError>, took: Duration) {
        self.call_duration.get_or_create(&of_kind(key.kind)).observe(took.as_secs_f64());
        self.pool(key, |pool| count(&mut pool.calls, RESULTS, word(result)));
    }

    /// A status of this size was written.
    pub fn status_written(&self, key: &PoolKey, bytes: u64) {
        self.pool(key, |pool| {
            pool.status_writes += 1;
            pool.status_written = pool.status_written.saturating_add(bytes);
            pool.status_size = Some(bytes);
        });
    }

    /// These numbers of blocks of a pool were assigned and released.
    pub fn blocks_changed(&self, key: &PoolKey, assigned: u64, released: u64) {
        self.pool(key, |pool| {
            pool.assigned += assigned;
            pool.released += released;
        });
    }

    /// An event with this reason was published about a pool.
    pub fn noted(&self, key: &PoolKey, reason: &'static str) {
        self.pool(key, |pool| count(&mut pool.released_unreported, UNREPORTED, reason));
    }

    /// A pool is new or has changed.
    pub fn observed(&self, pool: &PoolRecord) {
        let mut pools = self.pools.lock();
        let figures = pools.entry(pool.key.clone()).or_default();
        figures.spec_errors.clear();
        for violation in pool.spec.as_ref().err().into_iter().flatten() {
            *figures.spec_errors.entry(violation.reason.as_str()).or_default() += 1;
        }
        figures.show(&pool.status);
    }

    /// This is the status of a pool.
    pub fn status(&self, key: &PoolKey, status: &StatusRecord) {
        self.pool(key, |pool| pool.show(status));
    }

    /// Two agents report this number of addresses of a pool as in use.
    pub fn duplicate_addresses(&self, key: &PoolKey, count: usize) {
        self.pool(key, |pool| pool.duplicates = number(count));
    }

    /// Removes all metrics of a pool that is gone.
    pub fn forget(&self, pool: &PoolRecord) {
        self.pools.lock().remove(&pool.key);
    }

    /// A write of an IPAMNode has ended.
    pub fn ipam_node_written(&self, result: &Result<Option<NodeVersion>, CallError>) {
        self.ipam_node_writes.get_or_create(&[("result", word(result))]).inc();
    }

    /// These numbers of pools and IPAMNodes wait for a decision or a call.
    pub fn queued(&self, pools: usize, ipam_nodes: usize) {
        for (name, count) in [("pools", pools), ("ipamnodes", ipam_nodes)] {
            self.queue_depth.get_or_create(&[("name", name)]).set(number(count));
        }
    }

    /// The number of nodes whose agents have not made a requested report.
    pub fn nodes_awaiting_report(&self, count: usize) {
        self.nodes_awaiting_report.set(number(count));
    }

    fn pool(&self, key: &PoolKey, change: impl FnOnce(&mut Figures)) {
        if let Some(pool) = self.pools.lock().get_mut(key) {
            change(pool);
        }
    }
}

/// The figures of all pools that exist.
#[derive(Debug, Default)]
struct Pools(Mutex<BTreeMap<PoolKey, Figures>>);

/// The figures of a pool.
#[derive(Debug, Default)]
struct Figures {
    /// In the order of [`RESULTS`].
    calls: [u64; 3],
    status_writes: u64,
    status_written: u64,
    /// `None` until this replica writes a status.
    status_size: Option<u64>,
    assigned: u64,
    released: u64,
    /// In the order of [`UNREPORTED`].
    released_unreported: [u64; 2],
    nodes: NodeCounts,
    blocks: BlockCounts,
    addresses: AddressCounts,
    /// Seconds since 1970.
    oldest_release: i64,
    /// Type and reason of the operator's conditions → whether the condition is true.
    conditions: BTreeMap<(&'static str, String), bool>,
    /// Reason → number of errors.
    spec_errors: BTreeMap<&'static str, i64>,
    duplicates: i64,
}

impl Figures {
    /// Takes over what the status has. Other writers can add any number of conditions, which are left out.
    fn show(&mut self, status: &StatusRecord) {
        let summary = &status.summary;
        self.nodes = summary.nodes.unwrap_or_default();
        self.blocks = summary.blocks.unwrap_or_default();
        self.addresses = summary.addresses.unwrap_or_default();
        let since = status.releasing.iter().filter_map(|release| release.since).map(Timestamp::as_second).min();
        self.oldest_release = since.unwrap_or_default();
        let conditions = summary.conditions.iter().filter_map(|condition| {
            let known = CONDITIONS.into_iter().find(|known| *known == condition.type_)?;
            Some(((known, condition.reason.clone()), condition.status == "True"))
        });
        self.conditions = conditions.collect();
    }
}

impl Pools {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PoolKey, Figures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Pools {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder, pools: &self.lock() };
        let help = "Calls about pools: ok, conflict (the object changed meanwhile and is read again) or error";
        page.add("pool_calls", help, None, |pool| by("result", RESULTS, pool.calls.map(ConstCounter::new)))?;
        let help = "Statuses of pools written";
        page.add("pool_status_writes", help, None, |pool| one(ConstCounter::new(pool.status_writes)))?;
        let help = "Size of the pool statuses written";
        page.add("pool_status_written", help, Some(&Unit::Bytes), |pool| one(ConstCounter::new(pool.status_written)))?;
        let help = "Size of the last pool status that this replica wrote";
        page.add("pool_status_size", help, Some(&Unit::Bytes), |pool| {
            pool.status_size.map(|size| one(ConstGauge::new(size))).unwrap_or_default()
        })?;
        let help = "Nodes of a pool: served, unserved (selected, without a block), releasing";
        page.add("pool_nodes", help, None, |pool| {
            let NodeCounts { served, unserved, releasing } = pool.nodes;
            let counts = [served, unserved, releasing].map(i64::from).map(ConstGauge::new);
            by("state", ["served", "unserved", "releasing"], counts)
        })?;
        let help = "Blocks of a pool, assigned or free";
        page.add("pool_blocks", help, None, |pool| one(ConstGauge::new(pool.blocks.total)))?;
        page.add("pool_free_blocks", "Free blocks of a pool", None, |pool| one(ConstGauge::new(pool.blocks.free)))?;
        let help = "Addresses in the assigned blocks of a pool, free or in use";
        page.add("pool_addresses_capacity", help, None, |pool| one(ConstGauge::new(pool.addresses.capacity)))?;
        let help = "Addresses of a pool in use";
        page.add("pool_addresses_in_use", help, None, |pool| one(ConstGauge::new(pool.addresses.used)))?;
        let help = "Conditions of a pool with their reasons: 1 if True, 0 if False";
        page.add("pool_condition", help, None, |pool| {
            let conditions = pool.conditions.iter().map(|((type_, reason), is_true)| {
                (vec![("type", *type_), ("reason", reason.as_str())], ConstGauge::new(i64::from(*is_true)))
            });
            conditions.collect()
        })?;
        page.add("pool_spec_errors", "Errors in the spec of a pool, by reason", None, |pool| {
            let errors = pool.spec_errors.iter();
            errors.map(|(reason, count)| (vec![("reason", *reason)], ConstGauge::new(*count))).collect()
        })?;
        let help = "Reports of two agents that they use the same address or range of a pool";
        page.add("pool_duplicate_addresses", help, None, |pool| one(ConstGauge::new(pool.duplicates)))?;
        let help = "Since when the block waits that has been Releasing for longest, since 1970; 0 without one";
        let name = "pool_oldest_release_timestamp";
        page.add(name, help, Some(&Unit::Seconds), |pool| one(ConstGauge::new(pool.oldest_release)))?;
        let help = "Blocks assigned to nodes";
        page.add("pool_blocks_assigned", help, None, |pool| one(ConstCounter::new(pool.assigned)))?;
        page.add("pool_blocks_released", "Blocks released", None, |pool| one(ConstCounter::new(pool.released)))?;
        let help = "Blocks released without a report that no address is in use, by the reason of the event";
        page.add("pool_blocks_released_unreported", help, None, |pool| {
            by("reason", UNREPORTED, pool.released_unreported.map(ConstCounter::new))
        })
    }
}

/// Values of a metric for one pool, each with its labels besides `kind` and `pool`.
type Samples<'a, M> = Vec<(Vec<(&'static str, &'a str)>, M)>;

fn one<M>(value: M) -> Samples<'static, M> {
    vec![(Vec::new(), value)]
}

fn by<M, const N: usize>(label: &'static str, names: [&'static str; N], values: [M; N]) -> Samples<'static, M> {
    names.into_iter().zip(values).map(|(name, value)| (vec![(label, name)], value)).collect()
}

/// Where the metrics of pools are written.
struct Page<'e, 'p> {
    encoder: DescriptorEncoder<'e>,
    pools: &'p BTreeMap<PoolKey, Figures>,
}

impl Page<'_, '_> {
    /// Adds a metric of all pools. Like a [`Family`], it is left out if it has no value.
    fn add<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl Fn(&Figures) -> Samples<'_, M>,
    ) -> fmt::Result {
        let all = self.pools.iter().flat_map(|(key, pool)| values(pool).into_iter().map(move |value| (key, value)));
        let mut all = all.peekable();
        let Some((_, (_, first))) = all.peek() else { return Ok(()) };
        let (help, kind) = (format!("{help}."), first.metric_type());
        let mut metric = self.encoder.encode_descriptor(name, &help, unit, kind)?;
        for (key, (more, value)) in all {
            let labels = ([("kind", key.kind.kind()), ("pool", key.name.as_str())], more);
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Increments the count of `name`, if it is one of `names`.
fn count<const N: usize>(counts: &mut [u64; N], names: [&str; N], name: &str) {
    for (count, _) in counts.iter_mut().zip(names).filter(|(_, known)| *known == name) {
        *count += 1;
    }
}

fn word<T>(result: &Result<T, CallError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(CallError::Conflict(_)) => "conflict",
        Err(CallError::Failed(_) | CallError::CreateBlocked(_)) => "error",
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn of_kind(kind: PoolKind) -> Label {
    [("kind", kind.kind())]
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
        metrics.observed(&before);
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
        metrics.status(&now.key, &now.status);
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
        metrics.observed(&invalid);
        let errors =
            |metrics: &Metrics| shown(metrics).into_iter().filter(|line| line.starts_with("spec_errors")).count();
        assert_eq!(errors(&metrics), 1);
        metrics.observed(&pool(&json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4}), &json!({})));
        assert_eq!(errors(&metrics), 0);
    }
}
