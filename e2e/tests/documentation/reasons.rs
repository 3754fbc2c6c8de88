//! Compares the reasons of conditions, events and errors, and the annotations, with the pages that list them.
//!
//! Most reasons are string literals in several files, and no enum lists them. So these tests scan the sources (`sources`).
//! The scan finds a reason in a new file only if the lists below contain the file or its folder.

use std::collections::BTreeSet;

use ipam_core::{AdviceCode, Reason};

use crate::pages::Page;
use crate::sources::{literals, reasons};

/// Sources of the types and reasons of conditions and events.
const CONDITIONS: &[&str] = &[
    "operator/src/decide",
    "operator/src/reconcile",
    "webhook-certs/src/self_managed",
    "node-agent/src/blocks.rs",
    "node-agent/src/lost.rs",
    "node-agent/src/status.rs",
    "ipam-core/src/node_pool.rs",
];

/// Literals that look like a reason but are not: values of other fields, and `Starting`, which ends before the first report.
const OTHERS: &[&str] = &["True", "False", "Warning", "Normal", "Opaque", "KeepCertificates", "Starting", "Secret"];

#[test]
fn every_reason_of_a_condition_or_event_is_documented() {
    let known: BTreeSet<String> =
        reasons(CONDITIONS).into_iter().filter(|reason| !OTHERS.contains(&reason.as_str())).collect();
    assert!(known.len() > 20, "too few reasons were found: {known:?}");
    let page = Page::read("docs/reference/pools.md");
    missing("docs/reference/pools.md", &known, &page.code_words());
    let listed = page.rows().into_iter().filter(|row| row.heading.contains("onditions") || row.heading == "Events");
    let listed: BTreeSet<String> = listed.flat_map(|row| spans(&row.cells[..2])).collect();
    let unknown: Vec<_> = listed.iter().filter(|word| is_camel(word) && !known.contains(*word)).collect();
    assert!(unknown.iter().all(|word| OTHERS.contains(&word.as_str())), "not in the code: {unknown:?}");
}

#[test]
fn every_annotation_and_finalizer_is_documented() {
    const OURS: &str = "nv-ipam.nvidia.com/";
    let literals = literals(&["operator/src", "webhook-certs/src", "node-agent/src", "ipam-core/src"]);
    let is_name = |text: &&String| text.starts_with(OURS) && !text.contains(' ') && text.len() > OURS.len();
    let known: BTreeSet<String> = literals.iter().filter(is_name).cloned().collect();
    assert!(known.len() > 6, "too few annotations were found: {known:?}");
    missing("docs/reference/pools.md", &known, &Page::read("docs/reference/pools.md").code_words());
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
    missing("docs/reference/errors.md", &known, &Page::read("docs/reference/errors.md").code_words());
}

#[test]
fn every_code_of_a_cni_error_is_documented() {
    let source = std::fs::read_to_string(ipam_e2e::binaries::workspace().join("cni/src/error.rs")).unwrap();
    let codes = source.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
    let known: BTreeSet<u16> = codes.filter_map(|(_, code)| code.parse().ok()).collect();
    assert!(known.len() > 8, "too few codes were found: {known:?}");
    let rows = Page::read("docs/reference/errors.md").rows();
    let codes = rows.iter().filter(|row| row.heading == "CNI error codes").filter_map(|row| row.cells[0].parse().ok());
    assert_eq!(codes.collect::<BTreeSet<u16>>(), known, "codes documented (left) and known (right)");
}

#[test]
fn every_code_of_a_warning_is_documented() {
    let mut known: BTreeSet<String> = AdviceCode::ALL.map(|code| code.as_str().to_owned()).into();
    known.extend(["UnknownField", "OtherNamespace"].map(str::to_owned));
    missing("docs/reference/validate.md", &known, &Page::read("docs/reference/validate.md").code_words());
}

fn missing(page: &str, known: &BTreeSet<String>, words: &BTreeSet<String>) {
    let words: BTreeSet<&str> =
        words.iter().flat_map(|word| std::iter::once(word.as_str()).chain(word.split('/'))).collect();
    let missing: Vec<_> = known.iter().filter(|word| !words.contains(word.as_str())).collect();
    assert!(missing.is_empty(), "{page} does not name {missing:?}");
}

fn spans(cells: &[String]) -> Vec<String> {
    let spans = cells.iter().flat_map(|cell| crate::pages::code_spans(cell));
    spans.flat_map(|span| span.split(['=', '/']).map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn is_camel(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphabetic())
}
