//! The metrics of the webhook. Label values are fixed strings, never input of a client.

use std::time::Duration;

use ipam_core::PoolKind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::judge::Verdict;
use super::review::{Operation, Review};

/// All metrics of the webhook. Clones share their values.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    reviews: Family<ReviewLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    seconds: Histogram,
    in_flight: Gauge,
    connections: Gauge,
    handshake_failures: Family<ReasonLabels, Counter>,
    cut_off: Family<ReasonLabels, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ReviewLabels {
    kind: &'static str,
    operation: &'static str,
    verdict: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RefusalLabels {
    kind: &'static str,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        let metrics = Self {
            reviews: Family::default(),
            refusals: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            handshake_failures: Family::default(),
            cut_off: Family::default(),
        };
        metrics.begin();
        metrics
    }
}

/// Why clients are disconnected.
const CUT_OFF: [&str; 6] = ["stalled", "broken", "oversized", "evicted", "busy", "turned_away"];

impl WebhookMetrics {
    /// Registers these metrics in `registry`, each with the prefix `webhook`.
    pub fn register(&self, registry: &mut Registry) {
        let r = registry.sub_registry_with_prefix("webhook");
        r.register("reviews", "Reviews by kind, operation and verdict", self.reviews.clone());
        r.register("refusals", "Errors for which reviews were refused, by reason", self.refusals.clone());
        let help = "Time from a request's head to its answer";
        r.register_with_unit("review_duration", help, Unit::Seconds, self.seconds.clone());
        r.register("reviews_in_flight", "Reviews under way", self.in_flight.clone());
        r.register("connections", "Open connections", self.connections.clone());
        let help = "TLS handshakes that failed: error (the client's), timeout";
        r.register("handshake_failures", help, self.handshake_failures.clone());
        let help = "Clients cut off: stalled, broken (off by themselves), oversized, evicted (for others), busy (waited too long), turned_away (no place)";
        r.register("cut_off", help, self.cut_off.clone());
    }

    /// Creates the counters whose labels are known, so that their first increase is visible.
    fn begin(&self) {
        for kind in [PoolKind::IpPool, PoolKind::CidrPool].map(PoolKind::kind) {
            for operation in Operation::ALL.map(Operation::as_str) {
                for verdict in ["allowed", "refused"] {
                    drop(self.reviews.get_or_create(&ReviewLabels { kind, operation, verdict }));
                }
            }
        }
        drop(self.reviews.get_or_create(&ReviewLabels { kind: "", operation: "", verdict: "unread" }));
        for reason in ["error", "timeout"] {
            drop(self.handshake_failures.get_or_create(&ReasonLabels { reason }));
        }
        for reason in CUT_OFF {
            drop(self.cut_off.get_or_create(&ReasonLabels { reason }));
        }
    }

    pub(super) fn began(&self) {
        self.in_flight.inc();
    }

    pub(super) fn ended(&self, took: Duration) {
        self.in_flight.dec();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(super) fn judged(&self, review: &Review, verdict: &Verdict) {
        let kind = review.kind.kind();
        let word = if verdict.refusal.is_none() { "allowed" } else { "refused" };
        let labels = ReviewLabels { kind, operation: review.operation.as_str(), verdict: word };
        self.reviews.get_or_create(&labels).inc();
        for violation in verdict.refusal.iter().flat_map(|refusal| &refusal.violations) {
            self.refusals.get_or_create(&RefusalLabels { kind, reason: violation.reason.as_str() }).inc();
        }
    }

    pub(super) fn unread(&self) {
        self.reviews.get_or_create(&ReviewLabels { kind: "", operation: "", verdict: "unread" }).inc();
    }

    pub(super) fn connections(&self, count: usize) {
        self.connections.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn handshake_failed(&self) {
        self.handshake_failures.get_or_create(&ReasonLabels { reason: "error" }).inc();
    }

    pub(super) fn handshakes_timed_out(&self, count: usize) {
        self.handshake_failures.get_or_create(&ReasonLabels { reason: "timeout" }).inc_by(number(count));
    }

    pub(super) fn cut_off(&self, reason: &'static str, count: usize) {
        self.cut_off.get_or_create(&ReasonLabels { reason }).inc_by(number(count));
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
