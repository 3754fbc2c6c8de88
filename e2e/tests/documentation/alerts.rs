//! The alerts and the dashboard of the chart: they name metrics that exist, and each alert has a section and a test.

use std::collections::BTreeSet;
use std::fs;

use ipam_e2e::binaries::workspace;
use serde_json::Value;

use crate::metrics::{PREFIXES, known};
use crate::pages::read;
use crate::parts::Parts;

const ALERTS: &str = "charts/nv-ipam/files/alerts.yaml";
const CASES: &str = "e2e/tests/alerts/cases.yaml";

/// The names of all alerts.
fn alerts() -> BTreeSet<String> {
    let text = fs::read_to_string(workspace().join(ALERTS)).unwrap();
    let file: Value = serde_yaml::from_str(&text).unwrap();
    let names = file["rules"].as_array().unwrap().iter().map(|rule| rule["alert"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn each_alert_has_its_section() {
    let headings = Parts::of(&read("docs/operations/alerts.md")).headings;
    let sections: BTreeSet<String> = headings.into_iter().filter(|heading| heading.starts_with("NvIpam")).collect();
    assert_eq!(sections, alerts(), "sections (left) and alerts (right)");
}

#[test]
fn each_alert_has_a_test_that_makes_it_fire() {
    let file: Value = serde_yaml::from_str(&fs::read_to_string(workspace().join(CASES)).unwrap()).unwrap();
    let tests = file["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let expecting = tests.filter(|test| test["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()));
    let fired: BTreeSet<String> = expecting.map(|test| test["alertname"].as_str().unwrap().to_owned()).collect();
    assert_eq!(fired, alerts(), "alerts with a test (left) and all alerts (right)");
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() {
    let known = known();
    for (place, least) in [(ALERTS, 15), ("charts/nv-ipam/files/dashboard.json", 25)] {
        let text = fs::read_to_string(workspace().join(place)).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<&str> =
            words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).collect();
        assert!(names.len() >= least, "too few metrics were found in {place}: {names:?}");
        let series = |name: &str| name.strip_suffix("_bucket").unwrap_or(name).to_owned();
        let unknown: Vec<_> = names.into_iter().filter(|name| !known.contains(&series(name))).collect();
        assert!(unknown.is_empty(), "{place} names {unknown:?}");
    }
}
