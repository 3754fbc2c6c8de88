//! The second door: `ipam-controller validate`. It sees manifests, so of a case it sees what stands in a file: the spec that
//! is put and the other pools, but not what is held.

use std::collections::BTreeMap;

use ipam_core::Reason;
use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_e2e::cases::{Case, POOL, Refusal, Warning, fleet, load};
use ipam_operator::validate::{Nodes, Options, PoolReport, validate};
use serde_json::{Value, json};

use crate::verdict::{Verdict, assert_none, disagreement, expected};

fn manifest(kind: &str, name: &str, allow_overlap: Option<&str>, spec: &Value) -> Value {
    let annotations: BTreeMap<&str, &str> =
        allow_overlap.map(|value| (ALLOW_OVERLAP_ANNOTATION, value)).into_iter().collect();
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind,
        "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    })
}

/// The others first, the case's pool last: in files the later one is the newcomer.
fn manifests(case: &Case) -> String {
    let others =
        case.others.iter().map(|other| manifest(&other.kind, &other.name, other.allow_overlap.as_deref(), &other.spec));
    let own = manifest(case.kind().kind(), POOL, case.allow_overlap.as_deref(), &case.spec);
    json!({"apiVersion": "v1", "kind": "List", "items": others.chain([own]).collect::<Vec<_>>()}).to_string()
}

fn nodes() -> Nodes {
    let node =
        |(name, labels)| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    let items: Vec<Value> = fleet().into_iter().map(node).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    Nodes::from_file("fleet", list.as_bytes()).unwrap()
}

fn offline(case: &Case) -> Verdict {
    let options = Options { nodes: case.fleet.then(nodes), ..Options::default() };
    let report = validate([(case.name.as_str(), manifests(case).as_bytes())], &options);
    assert_eq!((report.strays.len(), report.skipped), (0, 0), "{}", case.title());
    let pool: &PoolReport = report.pools.last().unwrap();
    assert_eq!((pool.kind, pool.name.as_str()), (case.kind(), POOL));
    let refused = pool
        .problems
        .iter()
        .map(|problem| Refusal { field: problem.field.clone(), reason: problem.reason.to_string() });
    let warned = pool.warnings.iter().map(|one| Warning { field: one.field.clone(), code: one.code.clone() });
    Verdict { refused: refused.collect(), warned: warned.collect() }
}

/// What can be seen in files.
fn in_files(case: &Case) -> Verdict {
    let mut verdict = expected(case);
    verdict.refused.retain(|refusal| refusal.reason != Reason::InUse.as_str());
    verdict
}

#[test]
fn validate_gives_every_case_the_verdict_that_files_show() {
    let cases = load().unwrap();
    // Whether an edit made an overlap or found it there does not stand in a file.
    let judged = cases.iter().filter(|case| case.old.is_none() || case.others.is_empty());
    let wrong: Vec<String> = judged.filter_map(|case| disagreement(case, in_files(case), offline(case))).collect();
    assert_none(&wrong);
}
