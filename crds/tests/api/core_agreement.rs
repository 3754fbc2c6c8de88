//! The definitions never refuse what `ipam-core` takes, and leave to it only what is marked so.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::{PoolKind, Violation};
use ipam_crds::read::judge;
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::support::{Judge, case_files};

fn violations(kind: &str, name: &str, spec: &Value) -> Vec<Violation> {
    judge(PoolKind::from_kind(kind).unwrap(), name, spec).err().unwrap_or_default()
}

#[test]
fn the_core_refuses_what_the_definition_refuses_and_takes_what_it_takes() {
    let mut judged = 0;
    for file in case_files() {
        for case in &file.cases {
            let found = violations(&file.kind, &case.pool, &case.spec);
            assert_eq!(!found.is_empty(), case.is_refused_by_itself(), "{}: {}: {found:?}", file.kind, case.name);
            judged += 1;
        }
    }
    assert!(judged > 250, "only {judged} cases reached the core");
}

/// Calls `look` for every field of `value` that holds no other fields, with its name.
fn each_leaf(value: &mut Value, name: &str, look: &mut impl FnMut(&str, &mut Value)) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, field)| each_leaf(field, name, look)),
        Value::Array(items) => items.iter_mut().for_each(|item| each_leaf(item, name, look)),
        leaf => look(name, leaf),
    }
}

/// What stands in the fields of a name in any case, both kinds together.
fn seen_values() -> BTreeMap<String, Vec<Value>> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for case in case_files().iter_mut().flat_map(|file| &mut file.cases).filter(|case| case.emulated) {
        each_leaf(&mut case.spec, "", &mut |name, leaf| {
            seen.entry(name.to_owned()).or_default().insert(leaf.to_string());
        });
    }
    let parse = |texts: BTreeSet<String>| texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    seen.into_iter().map(|(name, texts)| (name, parse(texts))).collect()
}

/// The field right below `spec` in a path: `exclusions` in `spec.exclusions[2].endIP`.
fn top_field(path: &str) -> &str {
    path.trim_start_matches("spec.").split(['.', '[']).next().unwrap_or_default()
}

/// Crosses the cases: each change puts what some case has in a field into a field of that name.
fn crossed(mut spec: Value, changes: &[(Index, Index)], seen: &BTreeMap<String, Vec<Value>>) -> Value {
    for (place, value) in changes {
        let mut leaves = 0;
        each_leaf(&mut spec, "", &mut |_, _| leaves += 1);
        let (chosen, mut at) = (place.index(leaves), 0);
        each_leaf(&mut spec, "", &mut |name, leaf| {
            if at == chosen {
                *leaf = seen[name][value.index(seen[name].len())].clone();
            }
            at += 1;
        });
    }
    spec
}

fn assert_core_refuses_in_the_same_field(kind: &str) {
    let (seen, definition) = (seen_values(), Judge::of(kind));
    let cases = case_files().into_iter().filter(|file| file.kind == kind).flat_map(|file| file.cases);
    let cases = cases.filter(|case| case.emulated);
    let specs: Vec<Value> = cases.map(|case| case.spec).filter(|spec| *spec != json!({})).collect();
    let changes = prop::collection::vec((any::<Index>(), any::<Index>()), 1..4);
    proptest!(ProptestConfig::with_cases(300), |(start in prop::sample::select(specs), changes in changes)| {
        let spec = crossed(start, &changes, &seen);
        let core: Vec<Violation> = violations(kind, "pool", &spec);
        for error in definition.judge(&json!({ "spec": spec })) {
            let known = core.iter().any(|violation| top_field(&violation.field) == top_field(&error.field));
            prop_assert!(known, "only the definition refuses {spec}: {error:?}; the core: {core:?}");
        }
    });
}

#[test]
fn whatever_the_ippool_definition_refuses_the_core_refuses_in_the_same_field() {
    assert_core_refuses_in_the_same_field("IPPool");
}

#[test]
fn whatever_the_cidrpool_definition_refuses_the_core_refuses_in_the_same_field() {
    assert_core_refuses_in_the_same_field("CIDRPool");
}
