//! Each alert of the chart fires on the series that it is about, and none on those of a healthy cluster: promtool evaluates the
//! rules as Helm renders them.
//!
//! promtool comes with Debian's package `prometheus`, so this runs by name only: `cargo test -p ipam-e2e --test alerts`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;

use ipam_e2e::chart::{self, helm};
use ipam_e2e::{assets, binaries, child};
use serde::Deserialize as _;
use serde_json::Value;

/// What Helm renders of the rules, as promtool reads it.
fn rules() -> String {
    let chart = chart::folder().display().to_string();
    let only = ["--show-only", "templates/monitoring.yaml", "--set", "monitoring.rules.create=true"];
    let text = helm(&[&["template", "nv-ipam", &chart, "--namespace", "net"], &only[..]].concat()).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    let rule = documents.into_iter().find(|document| document["kind"] == "PrometheusRule").unwrap();
    rule["spec"].to_string()
}

#[test]
fn every_alert_fires_on_its_cause_and_on_nothing_else() {
    let promtool = assets::on_path("promtool").expect("promtool is missing: install Debian's package prometheus");
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("rules.yaml"), rules()).unwrap();
    let cases = home.path().join("cases.yaml");
    fs::copy(binaries::workspace().join("e2e/tests/alerts/cases.yaml"), &cases).unwrap();
    let output = child::output(Command::new(promtool).args(["test", "rules"]).arg(&cases)).unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}
