//! `ipam-controller validate`: what it finds in manifests, how it says so, and what it does with input that no one wrote
//! in good faith.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod against;
mod command;
mod golden;
mod hostile;
mod large;
mod memory;
mod networks;
mod nodes;
mod outputs;
mod retold;
mod rules;
mod selection;

use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;
use std::time::Duration;

use ipam_validate::{Options, Report, human, validate};

/// Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs a program to its end. The test fails if the program still runs after [`PATIENCE`].
fn output(command: &mut assert_cmd::Command) -> Output {
    let output = command.timeout(PATIENCE).output().unwrap();
    assert_ne!(output.status.signal(), Some(9), "the program still ran after {PATIENCE:?} and was killed");
    output
}

/// What is said about one file.
fn judged(text: &str) -> Report {
    validate([("pools.yaml", text.as_bytes())], &Options::default())
}

fn strictly(text: &str) -> Report {
    validate([("pools.yaml", text.as_bytes())], &Options { strict: true, ..Options::default() })
}

/// Field and reason of all mistakes, strays first.
fn mistakes(report: &Report) -> Vec<(String, &'static str)> {
    let strays = report.strays.iter().map(|stray| &stray.problem);
    let problems = strays.chain(report.pools.iter().flat_map(|pool| &pool.problems));
    problems.map(|problem| (problem.field.clone(), problem.reason.as_str())).collect()
}

fn has(report: &Report, expected: &[(&str, &str)]) {
    let found = mistakes(report);
    let found: Vec<_> = found.iter().map(|(field, reason)| (field.as_str(), *reason)).collect();
    assert_eq!(found, expected);
}

fn words(report: &Report) -> String {
    let mut text = String::new();
    human::write(report, &mut text).unwrap();
    text
}

/// A manifest of an IPPool with this spec, in YAML flow style.
fn ip_pool(name: &str, spec: &str) -> String {
    format!("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

/// A NetworkAttachmentDefinition with this configuration.
fn network(name: &str, config: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: {name}}}\nspec: {{config: '{config}'}}\n"
    )
}

fn cidr_pool(name: &str, spec: &str) -> String {
    format!("apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}
