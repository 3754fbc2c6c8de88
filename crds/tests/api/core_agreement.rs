//! The definitions never refuse what `ipam-core` takes, and leave to it only what is marked so.

use ipam_core::{Pool, Violation, spec::PoolSpec};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde_json::Value;

use crate::support::case_files;

/// The spec as the core reads it; `None` if a required field is missing, which only the schema can refuse.
fn to_core(kind: &str, spec: &Value) -> Option<PoolSpec> {
    match kind {
        "IPPool" => serde_json::from_value::<IPPoolSpec>(spec.clone()).ok().map(|spec| spec.to_spec()),
        _ => serde_json::from_value::<CIDRPoolSpec>(spec.clone()).ok().map(|spec| spec.to_spec()),
    }
}

fn violations(spec: &PoolSpec) -> Vec<Violation> {
    Pool::parse("pool", spec).err().unwrap_or_default()
}

#[test]
fn the_core_refuses_what_the_definition_refuses_and_takes_what_it_takes() {
    let mut judged = 0;
    for file in case_files() {
        for case in &file.cases {
            let Some(spec) = to_core(&file.kind, &case.spec) else {
                assert!(!case.refused.is_empty(), "{}: accepted, but cannot be read", case.name);
                continue;
            };
            let found = violations(&spec);
            let should_be_refused = case.left_to_operator || !case.refused.is_empty();
            assert_eq!(!found.is_empty(), should_be_refused, "{}: {}: {found:?}", file.kind, case.name);
            judged += 1;
        }
    }
    assert!(judged > 80, "only {judged} cases reached the core");
}
