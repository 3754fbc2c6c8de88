//! The operator's metrics.

use std::sync::Arc;

use ipam_daemon::metrics::{Requests, own};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::election::LEASE_NAME;
use crate::watch::RESOURCES;

/// The prefix of the metrics that no other component of a cluster has.
const PREFIX: &str = "nv_ipam_controller";

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    /// Requests to the API server.
    pub requests: Requests,
    /// Metrics of decisions, writes and queues.
    pub reconciler: Arc<ipam_reconciler::metrics::Metrics>,
    leader: Family<NameLabels, Gauge>,
    watch_failures: Family<WatchLabels, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct NameLabels {
    name: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct WatchLabels {
    resource: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            requests: Requests::default(),
            reconciler: Arc::default(),
            leader: Family::default(),
            watch_failures: Family::default(),
        };
        // Every series exists from the start, so that its first increase is visible.
        metrics.leader(false);
        for resource in RESOURCES {
            drop(metrics.watch_failures.get_or_create(&WatchLabels { resource }));
        }
        metrics
    }
}

impl Metrics {
    /// Adds these metrics to `registry`. Returns the part of it for metrics with the operator's prefix.
    pub fn register<'a>(&self, registry: &'a mut Registry) -> &'a mut Registry {
        registry.register("leader_election_master_status", "1 if this replica is the leader", self.leader.clone());
        self.reconciler.register_queues(registry);
        let own = own(registry, PREFIX);
        self.reconciler.register(own);
        own.register("watch_failures", "Watches that broke, by resource", self.watch_failures.clone());
        own
    }

    /// The watch of a resource broke and is being renewed.
    pub fn watch_failed(&self, resource: &'static str) {
        self.watch_failures.get_or_create(&WatchLabels { resource }).inc();
    }

    /// Sets whether this replica is the leader.
    pub fn leader(&self, leads: bool) {
        self.leader.get_or_create(&NameLabels { name: LEASE_NAME }).set(i64::from(leads));
    }
}
