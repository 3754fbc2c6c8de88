//! The metrics of the certificates. Label values are a fixed set of strings.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    swaps: Counter,
    refusals: Family<Refusal, Counter>,
    repairs: Family<Repair, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Refusal {
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Repair {
    what: &'static str,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Certificates that the webhook took into service";
        registry.register("webhook_certificate_swaps", help, self.swaps.clone());
        let help = "Certificates found and not served, by reason; what was served before still is, while it is valid";
        registry.register("webhook_certificate_refusals", help, self.refusals.clone());
        let help = "Writes to keep our own certificates: authority, certificate, authorities (of the Secret), bundle";
        registry.register("webhook_certificate_repairs", help, self.repairs.clone());
    }

    pub(crate) fn swapped(&self) {
        self.swaps.inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&Refusal { reason }).inc();
    }

    pub(crate) fn repaired(&self, what: &'static str) {
        self.repairs.get_or_create(&Repair { what }).inc();
    }
}
