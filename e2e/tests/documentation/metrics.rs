//! Compares the metrics that both daemons register with the page that lists them.
//!
//! The encoder omits a family without values. So names and units come from the debug output of the registries. That output has
//! no types, so the types come from a scan of the sources. Metrics of a collector are in the encoded text alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ipam_core::PoolKind;
use ipam_e2e::binaries::workspace;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::pool::PoolRecord;
use ipam_webhook::metrics::WebhookMetrics;
use ipam_webhook_certs::{Pair, ServerCertificates, system_clock};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::pages::{all, read};
use crate::parts::{Cell, Parts};

/// Sources that register metrics.
const SOURCES: &[&str] = &[
    "operator/src/metrics.rs",
    "operator/reconciler/src/metrics.rs",
    "operator/webhook/src/metrics.rs",
    "webhook-certs/src/metrics.rs",
    "node-agent/src/metrics.rs",
    "daemon/src/metrics.rs",
];

/// How the names of our metrics begin.
pub(crate) const PREFIXES: [&str; 6] =
    ["nv_ipam_controller_", "ipam_node_", "rest_client_", "workqueue_", "process_", "leader_election_"];

/// Name as scraped → type.
type Metrics = BTreeMap<String, String>;

#[test]
fn every_metric_is_documented_with_its_type() {
    let mut known = of(&operator());
    known.extend(of(&ipam_node_agent::metrics::Metrics::registered().1));
    let rows = Parts::of(&read("docs/reference/metrics.md")).rows;
    let metric = |cells: &[Cell]| {
        let name = cells.first()?.spans.first()?;
        let is_ours = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        // A unit may follow the type.
        let kind = cells.get(1)?.text.split(", ").next()?;
        is_ours.then(|| (name.clone(), kind.to_owned()))
    };
    let documented: Metrics = rows.iter().filter_map(|row| metric(&row.cells)).collect();
    assert_eq!(documented, known, "metrics documented (left) and known (right)");
}

#[test]
fn no_page_names_a_metric_that_is_unknown() {
    let known = known();
    for page in all() {
        let words = page.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names = words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)));
        for name in names {
            assert!(known.contains(name), "{} names {name}", page.place);
        }
    }
}

/// The names of all metrics, as scraped. Those of a histogram end without `_bucket`.
pub(crate) fn known() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = of(&operator()).into_keys().collect();
    known.extend(of(&ipam_node_agent::metrics::Metrics::registered().1).into_keys());
    known
}

/// The metrics of an operator with the webhook, a valid certificate, and a pool whose spec is invalid.
fn operator() -> Registry {
    let metrics = ipam_operator::metrics::Metrics::default();
    let ready = json!({"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let pool = json!({"metadata": {"name": "rdma"}, "spec": {}, "status": {"conditions": [ready]}});
    let pool: RawObject = serde_json::from_value(pool).unwrap();
    let pool = PoolRecord::read(PoolKind::IpPool, &pool, None);
    metrics.reconciler.observed(&pool);
    metrics.reconciler.status_written(&pool.key, 1);
    let mut registry = ipam_daemon::metrics::registry(&metrics.requests);
    let own = metrics.register(&mut registry);
    WebhookMetrics::default().register(own);
    let certificates = ServerCertificates::new(system_clock());
    let made = rcgen::generate_simple_self_signed(["nv-ipam-webhook.kube-system.svc".to_owned()]).unwrap();
    certificates.offer(&Pair::parse(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()));
    certificates.register(own);
    registry
}

/// All metrics of a registry: the encoded ones, which include those of collectors, and the registered ones.
fn of(registry: &Registry) -> Metrics {
    let types = types();
    let mut metrics = encoded(registry);
    for (name, full) in described(registry) {
        let kind = types.get(&name).unwrap_or_else(|| panic!("the type of {name} is in none of {SOURCES:?}"));
        let (full, kind) = scraped(&full, kind);
        let before = metrics.insert(full, kind.clone());
        assert!(before.is_none_or(|before| before == kind), "{name} is not a {kind}");
    }
    metrics
}

/// The name and type as scraped: the encoder appends `_total` to counters and `_info` to infos.
fn scraped(name: &str, kind: &str) -> (String, String) {
    match kind {
        "counter" => (format!("{name}_total"), kind.to_owned()),
        // Prometheus stores an info as a gauge.
        "info" => (format!("{name}_info"), "gauge".to_owned()),
        _ => (name.to_owned(), kind.to_owned()),
    }
}

fn encoded(registry: &Registry) -> Metrics {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    described.map(|(name, kind)| scraped(name, kind)).collect()
}

/// Name as registered, and with prefix and unit.
fn described(registry: &Registry) -> Vec<(String, String)> {
    let text = format!("{registry:?}");
    let (mut found, mut prefix) = (Vec::new(), "");
    let mut rest = text.as_str();
    while let Some((at, mark)) =
        ["Prefix(\"", "Descriptor { name: \""].iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min()
    {
        let (name, after) = rest[at + mark.len()..].split_once('"').unwrap();
        rest = after;
        if mark.starts_with("Prefix") {
            prefix = name;
        } else {
            let after = after.split("unit: ").nth(1).unwrap();
            let units = [("Some(Seconds)", "_seconds"), ("Some(Bytes)", "_bytes")];
            let unit =
                units.into_iter().find_map(|(it, unit)| after.starts_with(it).then_some(unit)).unwrap_or_default();
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}_") };
            found.push((name.to_owned(), format!("{prefix}{name}{unit}")));
        }
    }
    assert!(found.len() > 10, "no metrics in {text}");
    found
}

/// Name as registered → type, by the declaration of the field that is registered.
fn types() -> Metrics {
    let mut types = Metrics::from([("build".to_owned(), "info".to_owned())]);
    for source in SOURCES {
        let text = fs::read_to_string(workspace().join(source)).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for call in text.split(".register").skip(1).filter_map(|call| call.split_once(".clone()")) {
            let Some(name) = call.0.split('"').nth(1) else { continue };
            let field = call.0.rsplit('.').next().unwrap();
            let declared = text
                .lines()
                .find_map(|line| line.trim().trim_start_matches("pub ").strip_prefix(&format!("{field}: ")));
            let declared = declared.unwrap_or_else(|| panic!("{source} declares no {field}"));
            let kind = ["Counter", "Gauge", "Histogram"].into_iter().find(|kind| declared.contains(kind));
            types.insert(name.to_owned(), kind.unwrap().to_lowercase());
        }
    }
    types
}
