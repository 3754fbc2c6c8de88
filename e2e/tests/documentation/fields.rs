//! Compares the fields and printer columns of the CustomResourceDefinitions with the page that lists them.

use std::collections::BTreeSet;

use ipam_crds::{CIDRPool, IPAMNode, IPPool};
use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::pages::read;
use crate::parts::Parts;

const PAGE: &str = "docs/reference/pools.md";

#[test]
fn every_field_and_printer_column_is_documented() {
    let parts = Parts::of(&read(PAGE));
    let words: BTreeSet<&str> = parts.code_words().into_iter().flat_map(|word| word.split('.')).collect();
    let mut missing = BTreeSet::new();
    for definition in [IPPool::crd(), CIDRPool::crd(), IPAMNode::crd()] {
        let definition = serde_json::to_value(definition).unwrap();
        let version = &definition["spec"]["versions"][0];
        let mut names = BTreeSet::new();
        for part in ["spec", "status"] {
            fields(&version["schema"]["openAPIV3Schema"]["properties"][part], &mut names);
        }
        assert!(names.len() > 10, "too few fields were found: {names:?}");
        missing.extend(names.into_iter().filter(|name| !words.contains(name.as_str())));
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let columns = columns.iter().map(|column| column["name"].as_str().unwrap());
        missing.extend(columns.filter(|name| !parts.spans.iter().any(|span| span == name)).map(str::to_owned));
    }
    assert_eq!(missing, BTreeSet::new(), "fields and columns that {PAGE} lacks");
}

/// The names of all properties. Those of a condition are the API's own.
fn fields(schema: &Value, names: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        names.insert(name.clone());
        if name != "conditions" {
            fields(property, names);
        }
    }
    if schema["items"].is_object() {
        fields(&schema["items"], names);
    }
}
