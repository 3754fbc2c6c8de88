//! The YAML beside `Cargo.toml`, and its copy in the chart, say what the Rust types say, and the API server's own conditions on a
//! schema hold.

use std::{fs, path::Path};

use ipam_crds::custom_resource_definitions;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::support::{each_schema, schemas};

const HEADER: &str = "# Generated from the Rust types by `cargo test -p ipam-crds`. Do not edit.\n";

fn file_name(definition: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural)
}

/// Where definitions lie: here for `kubectl apply`, and in the chart, since Helm reads nothing outside of one.
const FOLDERS: [&str; 2] = [".", "../charts/nv-ipam/files/crds"];

/// Rewrites the files that are stale, and names them.
fn rewrite_if_stale(definition: &CustomResourceDefinition) -> Vec<String> {
    let wanted = format!("{HEADER}{}", serde_yaml::to_string(definition).unwrap());
    let mut stale = Vec::new();
    for folder in FOLDERS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(file_name(definition));
        if fs::read_to_string(&path).ok().as_deref() != Some(wanted.as_str()) {
            fs::write(&path, &wanted).unwrap();
            stale.push(format!("{folder}/{}", file_name(definition)));
        }
    }
    stale
}

#[test]
fn yaml_files_are_what_the_types_generate() {
    let stale: Vec<String> = custom_resource_definitions().iter().flat_map(rewrite_if_stale).collect();
    assert!(
        stale.is_empty(),
        "{stale:?} did not match the Rust types and are now rewritten: look at them and commit them"
    );
}

#[test]
fn the_chart_has_the_definitions_and_no_others() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDERS[1]);
    let mut found: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    let mut wanted: Vec<String> = custom_resource_definitions().iter().map(file_name).collect();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn yaml_files_read_back_as_the_same_definitions() {
    for definition in custom_resource_definitions() {
        let text = serde_yaml::to_string(&definition).unwrap();
        assert_eq!(serde_yaml::from_str::<CustomResourceDefinition>(&text).unwrap(), definition);
    }
}

#[test]
fn no_field_is_nullable_and_no_number_is_unsigned() {
    for (kind, schema) in schemas() {
        each_schema(&schema, &kind, &mut |path, at| {
            assert!(at.get("nullable").is_none(), "{path} is nullable");
            assert!(at.get("anyOf").is_none(), "{path} is not structural");
            if at["type"] == "integer" {
                assert!(matches!(at["format"].as_str(), Some("int32" | "int64")), "{path} has format {}", at["format"]);
            }
        });
    }
}

#[test]
fn numbers_have_the_widths_of_the_contract() {
    for (kind, schema) in schemas() {
        each_schema(&schema, &kind, &mut |path, at| {
            let wanted = match path.rsplit('.').next() {
                Some("perNodeBlockSize") => "int64",
                Some("startIndex" | "endIndex" | "gatewayIndex" | "perNodeNetworkPrefix") => "int32",
                _ => return,
            };
            assert_eq!(at["format"], wanted, "{path}");
        });
    }
    let fields = |kind: &str, names: &[&str]| {
        let (_, schema) = schemas().into_iter().find(|(found, _)| found == kind).unwrap();
        let spec = &schema["properties"]["spec"]["properties"];
        let index = &spec["perNodeExclusions"]["items"]["properties"];
        assert!(names.iter().all(|&name| spec[name].is_object() || index[name].is_object()), "{kind} lacks {names:?}");
    };
    fields("IPPool", &["perNodeBlockSize", "startIndex", "endIndex"]);
    fields("CIDRPool", &["perNodeNetworkPrefix", "gatewayIndex", "startIndex", "endIndex"]);
}

#[test]
fn every_rule_says_what_would_be_right_and_gives_a_reason() {
    for (kind, schema) in schemas() {
        each_schema(&schema, &kind, &mut |path, at| {
            for rule in at["x-kubernetes-validations"].as_array().into_iter().flatten() {
                assert!(rule["messageExpression"].is_string(), "a rule of {path} has no message: {rule}");
                assert!(rule["reason"].is_string(), "a rule of {path} has no reason: {rule}");
                assert!(at["type"] != "object" || rule["fieldPath"].is_string(), "a rule of {path} has no field path");
            }
        });
    }
}

#[test]
fn lists_of_named_things_are_merged_by_their_names() {
    let keys = |schema: &Value, pointer: &str| schema.pointer(pointer).unwrap()["x-kubernetes-list-map-keys"].clone();
    for (kind, schema) in schemas() {
        let status = "/properties/status/properties";
        assert_eq!(keys(&schema, &format!("{status}/conditions")), serde_json::json!(["type"]), "{kind}");
        if kind == "IPAMNode" {
            let reported = schema.pointer(&format!("{status}/pools/x-kubernetes-list-type")).unwrap();
            assert_eq!(
                reported, "atomic",
                "one agent writes all of it; as a map, managedFields would grow with the pools"
            );
            let by_pool = serde_json::json!(["poolType", "name"]);
            assert_eq!(keys(&schema, "/properties/spec/properties/pools"), by_pool);
        } else {
            let allocations = schema.pointer(&format!("{status}/allocations/x-kubernetes-list-type")).unwrap();
            assert_eq!(allocations, "atomic", "{kind}: as a map, managedFields would grow with the nodes");
        }
    }
}

#[test]
fn names_and_columns_are_those_users_know() {
    let described: Vec<(String, Vec<String>, Vec<String>)> = custom_resource_definitions()
        .into_iter()
        .map(|definition| {
            let version = &definition.spec.versions[0];
            assert_eq!((definition.spec.group.as_str(), version.name.as_str()), ("nv-ipam.nvidia.com", "v1alpha1"));
            assert_eq!(definition.spec.scope, "Namespaced");
            assert_eq!(definition.spec.names.categories.as_deref(), Some(["nv-ipam".to_owned()].as_slice()));
            assert!(version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some()));
            let columns =
                version.additional_printer_columns.iter().flatten().map(|column| column.name.clone()).collect();
            (definition.spec.names.plural, definition.spec.names.short_names.unwrap_or_default(), columns)
        })
        .collect();
    let row = |plural: &str, short: &str, columns: &[&str]| {
        (plural.to_owned(), vec![short.to_owned()], columns.iter().map(|&name| name.to_owned()).collect())
    };
    assert_eq!(
        described,
        [
            row(
                "ippools",
                "ipp",
                &[
                    "Subnet",
                    "Gateway",
                    "Block Size",
                    "Nodes",
                    "Free Blocks",
                    "Used",
                    "Capacity",
                    "Ready",
                    "Unserved",
                    "Releasing",
                    "Reason",
                    "Age"
                ]
            ),
            row(
                "cidrpools",
                "cidrp",
                &[
                    "CIDR",
                    "Gateway index",
                    "Per Node Network Prefix",
                    "Nodes",
                    "Free Blocks",
                    "Used",
                    "Capacity",
                    "Ready",
                    "Unserved",
                    "Releasing",
                    "Reason",
                    "Age"
                ]
            ),
            row("ipamnodes", "ipn", &["Ready", "Agent Version", "Pools", "Age"]),
        ]
    );
}
