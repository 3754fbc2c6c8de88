//! Compares the reasons of conditions, events and errors, and the annotations, with the pages that list them.
//!
//! Most reasons are string literals in several files, and no enum lists them. So these tests scan the sources (`sources`).
//! The scan finds a reason in a new file only if the lists below contain the file or its folder.

use std::collections::BTreeSet;
use std::fs;

use ipam_core::{AdviceCode, Reason};
use ipam_e2e::binaries::workspace;

use crate::pages::read;
use crate::parts::{Parts, Row};
use crate::sources::{is_reason, literals, reasons};

const POOLS: &str = "docs/reference/pools.md";
const ERRORS: &str = "docs/reference/errors.md";

/// Sources of the types and reasons of conditions and events.
const CONDITIONS: &[&str] = &[
    "operator/reconciler/src/decide",
    "operator/reconciler/src/reconcile",
    "operator/src/election/mod.rs",
    "webhook-certs/src/self_managed",
    "node-agent/src/blocks.rs",
    "node-agent/src/lost.rs",
    "node-agent/src/problem.rs",
    "node-agent/src/status.rs",
    "ipam-core/src/node_pool.rs",
];

/// Literals that look like a reason but are not: values of other fields, `Starting`, which ends before the first report, and
/// `Unconfirmed`, which only refusals have.
const OTHERS: &[&str] = &[
    "True",
    "False",
    "Warning",
    "Normal",
    "Acquire",
    "Opaque",
    "KeepCertificates",
    "Starting",
    "Unconfirmed",
    "Secret",
];

#[test]
fn every_reason_of_a_condition_or_event_is_documented() {
    let known: BTreeSet<String> =
        reasons(CONDITIONS).into_iter().filter(|reason| !OTHERS.contains(&reason.as_str())).collect();
    assert!(known.len() > 20, "too few reasons were found: {known:?}");
    let parts = Parts::of(&read(POOLS));
    missing(POOLS, &known);
    let is_listed = |row: &&Row| row.heading.contains("onditions") || row.heading == "Events";
    let spans = parts.rows.iter().filter(is_listed).flat_map(|row| &row.cells[..2]).flat_map(|cell| &cell.spans);
    let listed: BTreeSet<&str> = spans.flat_map(|span| span.split('/')).collect();
    let is_unknown = |word: &&str| is_reason(word) && !OTHERS.contains(word) && !known.contains(*word);
    let unknown: Vec<_> = listed.into_iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "{POOLS} names {unknown:?}, which the code does not have");
}

#[test]
fn every_annotation_and_finalizer_is_documented() {
    const OURS: &str = "nv-ipam.nvidia.com/";
    let literals = literals(&[
        "operator/src",
        "operator/reconciler/src",
        "operator/validate/src",
        "operator/webhook/src",
        "webhook-certs/src",
        "node-agent/src",
        "ipam-core/src",
    ]);
    let is_name = |text: &&String| text.starts_with(OURS) && !text.contains(' ') && text.len() > OURS.len();
    let known: BTreeSet<String> = literals.iter().filter(is_name).cloned().collect();
    assert!(known.len() > 6, "too few annotations were found: {known:?}");
    missing(POOLS, &known);
}

#[test]
fn every_reason_of_the_agents_refusals_is_documented() {
    let mut known =
        reasons(&["ipam-core/src/ledger/refusal.rs", "ipam-core/src/node_pool.rs", "node-agent/src/rpc.rs"]);
    for method in ["Allocate", "IsAllocated", "Deallocate", "ReleaseUnlisted"] {
        assert!(known.remove(method), "{method} is no call of the agent");
    }
    // The agent reports the reason of each violation instead.
    assert!(known.remove("Invalid"));
    known.extend(Reason::ALL.map(|reason| reason.as_str().to_owned()));
    missing(ERRORS, &known);
}

#[test]
fn every_code_of_a_cni_error_is_documented() {
    let source = fs::read_to_string(workspace().join("cni/src/error.rs")).unwrap();
    let codes = source.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
    let known: BTreeSet<u16> = codes.filter_map(|(_, code)| code.parse().ok()).collect();
    assert!(known.len() > 8, "too few codes were found: {known:?}");
    let rows = Parts::of(&read(ERRORS)).rows;
    let codes = rows.iter().filter(|row| row.heading == "CNI error codes");
    let codes = codes.filter_map(|row| row.cells[0].text.parse().ok());
    assert_eq!(codes.collect::<BTreeSet<u16>>(), known, "codes documented (left) and known (right)");
}

#[test]
fn every_code_of_a_warning_is_documented() {
    let mut known: BTreeSet<String> = AdviceCode::ALL.map(|code| code.as_str().to_owned()).into();
    known.extend(["UnknownField", "OtherNamespace"].map(str::to_owned));
    missing("docs/reference/validate.md", &known);
}

fn missing(page: &str, known: &BTreeSet<String>) {
    let parts = Parts::of(&read(page));
    let words = parts.code_words();
    let missing: Vec<_> = known.iter().filter(|word| !words.contains(word.as_str())).collect();
    assert!(missing.is_empty(), "{page} does not name {missing:?}");
}
