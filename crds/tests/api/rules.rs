//! The rules in the definitions refuse what they should, for the reason they should, and nothing else.

use std::collections::BTreeSet;

use crate::support::{Case, Found, Judge, case_files, schema_of};
use serde_json::{Value, json};

/// What does not agree between what is expected of a case and what was found.
fn disagreement(case: &Case, mut found: Vec<Found>) -> Option<String> {
    let mut missing = Vec::new();
    for expected in &case.definition {
        let at =
            found.iter().position(|error| error.field == expected.field && error.message.contains(&expected.message));
        match at {
            Some(at) => drop(found.swap_remove(at)),
            None => missing.push(expected),
        }
    }
    (!missing.is_empty() || !found.is_empty())
        .then(|| format!("\n{}\n  missing: {missing:?}\n  not expected: {found:?}", case.name))
}

#[test]
fn every_case_gets_exactly_its_errors() {
    for file in case_files() {
        let judge = Judge::of(&file.kind);
        let wrong: Vec<String> = file
            .cases
            .iter()
            .filter(|case| case.emulated)
            .filter_map(|case| {
                let (new, old) = case.objects(&file.kind);
                disagreement(case, judge.judge_edit(&new, old.as_ref()))
            })
            .collect();
        assert!(wrong.is_empty(), "{}: {}", file.kind, wrong.concat());
    }
}

/// Every rule of a schema, as its text.
fn rules(schema: &Value, into: &mut BTreeSet<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        into.insert(rule["rule"].as_str().unwrap().to_owned());
    }
    for property in schema["properties"].as_object().into_iter().flat_map(|properties| properties.values()) {
        rules(property, into);
    }
    if schema["items"].is_object() {
        rules(&schema["items"], into);
    }
}

#[test]
fn every_rule_is_broken_by_some_case() {
    for kind in ["IPPool", "CIDRPool"] {
        let judge = Judge::of(kind);
        let mut silent = BTreeSet::new();
        rules(&schema_of(kind), &mut silent);
        assert!(silent.len() > 15, "{kind} has lost rules");
        // Rules on node selectors and exclusions are the same text in both kinds: the cases of one prove them.
        for file in case_files() {
            for case in file.cases.iter().filter(|case| !case.definition.is_empty()) {
                // An edit of the one kind says nothing about the status of the other.
                let (new, old) = case.objects(&file.kind);
                for error in judge.broken_rules(&new, old.as_ref().filter(|_| file.kind == kind)) {
                    silent.remove(&error.rule);
                }
            }
        }
        assert!(silent.is_empty(), "{kind}: no case breaks {silent:#?}");
    }
}

#[test]
fn every_rule_compiles() {
    for kind in ["IPPool", "CIDRPool", "IPAMNode"] {
        let mut all = BTreeSet::new();
        rules(&schema_of(kind), &mut all);
        for rule in all {
            assert!(kube::core::cel::cel::Program::compile(&rule).is_ok(), "{kind}: {rule}");
        }
    }
}

#[test]
fn a_node_with_texts_that_are_no_addresses_is_refused() {
    let block = |start: &str, subnet: &str| json!({"name": "p", "poolType": "IPPool", "state": "Active", "startIP": start, "endIP": "10.0.0.4", "subnet": subnet});
    let judge = Judge::of("IPAMNode");
    let fields = |pools: Value| -> Vec<String> {
        let mut fields: Vec<_> =
            judge.judge(&json!({"spec": {"pools": pools}})).into_iter().map(|error| error.field).collect();
        fields.sort();
        fields
    };
    assert_eq!(fields(json!([block("10.0.0.1", "10.0.0.0/8")])), Vec::<String>::new());
    assert_eq!(fields(json!([block("x", "10.0.0.0")])), ["spec.pools[0].startIP", "spec.pools[0].subnet"]);
    assert_eq!(fields(json!([block("10.0.0.1", "10.0.0.0/8"), block("10.0.0.1", "10.0.0.0/8")])), ["spec.pools[1]"]);
}
