//! What the certificates tell Prometheus. Labels are a fixed set of words.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::served::ServerCertificates;

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

/// Reads the validity when it is asked, for time passes without an event.
#[derive(Debug)]
pub(crate) struct Validity(pub(crate) ServerCertificates);

impl Collector for Validity {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: i64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let help = "1 if the webhook has a certificate that is valid now";
        gauge("webhook_certificate_ready", help, i64::from(self.0.is_ready()))?;
        let Some(pair) = self.0.pair() else { return Ok(()) };
        let help = "When the certificate that the webhook serves expires, in seconds since 1970";
        gauge("webhook_certificate_not_after_timestamp_seconds", help, pair.info().not_after.as_second())
    }
}
