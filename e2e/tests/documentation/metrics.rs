//! The metrics that the registries of both daemons show, and the page that lists them.

use std::collections::BTreeMap;

use ipam_operator::webhook::metrics::WebhookMetrics;
use ipam_webhook_certs::{Pair, ServerCertificates, system_clock};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::pages::Page;

/// Name as scraped → type.
type Metrics = BTreeMap<String, String>;

#[test]
fn every_metric_is_documented_with_its_type() {
    let mut known = of(&operator());
    known.extend(of(&ipam_node_agent::metrics::Metrics::registered().1));
    let rows = Page::read("docs/reference/metrics.md").rows();
    let metric = |cells: &[String]| {
        let name = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        let is_ours = ["nv_ipam_", "ipam_node_"].iter().any(|prefix| name.starts_with(prefix));
        // A unit may follow the type.
        let kind = cells.get(1)?.split(", ").next()?;
        is_ours.then(|| (name.to_owned(), kind.to_owned()))
    };
    let documented: Metrics = rows.iter().filter_map(|row| metric(&row.cells)).collect();
    assert_eq!(documented, known, "metrics documented (left) and known (right)");
}

/// All that an operator with the webhook shows, once a certificate is served.
fn operator() -> Registry {
    let mut registry = ipam_operator::metrics::Metrics::default().registry();
    WebhookMetrics::default().register(&mut registry);
    let certificates = ServerCertificates::new(system_clock());
    let made = rcgen::generate_simple_self_signed(["nv-ipam-webhook.kube-system.svc".to_owned()]).unwrap();
    certificates.offer(&Pair::parse(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()));
    certificates.register(&mut registry);
    registry
}

/// The names of counters end with `_total` where they are scraped.
fn of(registry: &Registry) -> Metrics {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    described
        .map(|(name, kind)| (if kind == "counter" { format!("{name}_total") } else { name.to_owned() }, kind.to_owned()))
        .collect()
}
