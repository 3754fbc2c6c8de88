//! A spec read field by field: what the types read too is read alike, and a value of the wrong type hides nothing.

use ipam_core::{PoolKind, Violation};
use ipam_crds::read::{judge, parse, read, read_text};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde_json::{Value, json};

use crate::support::case_files;

fn told(kind: PoolKind, spec: &Value) -> Vec<String> {
    judge(kind, "pool", spec).err().unwrap_or_default().iter().map(Violation::to_string).collect()
}

#[test]
fn what_the_types_read_is_read_alike() {
    let mut both = 0;
    for file in case_files() {
        let kind = PoolKind::from_kind(&file.kind).unwrap();
        for case in &file.cases {
            let typed = match kind {
                PoolKind::IpPool => serde_json::from_value::<IPPoolSpec>(case.spec.clone()).map(|spec| spec.to_spec()),
                PoolKind::CidrPool => {
                    serde_json::from_value::<CIDRPoolSpec>(case.spec.clone()).map(|spec| spec.to_spec())
                }
            };
            let (spec, found) = read(kind, &case.spec);
            match typed {
                Ok(typed) => assert_eq!((&spec, found.len()), (&typed, 0), "{}", case.name),
                Err(error) => assert!(!found.is_empty(), "{}: {error}", case.name),
            }
            both += usize::from(found.is_empty());
            assert_eq!(read_text(kind, Some(&case.spec.to_string())), (spec, found), "{}", case.name);
        }
    }
    assert!(both > 80, "{both}");
}

#[test]
fn a_spec_that_is_none_is_one_mistake() {
    assert_eq!(told(PoolKind::IpPool, &Value::Null), ["spec: is missing"]);
    assert_eq!(told(PoolKind::CidrPool, &json!([1])), ["spec: is a list, but must be an object"]);
    assert_eq!(told(PoolKind::CidrPool, &json!("x")), ["spec: is the text \"x\", but must be an object"]);
}

#[test]
fn all_wrong_types_come_at_once_beside_what_the_core_finds() {
    let spec = json!({
        "subnet": "10.0.0.0/24", "perNodeBlockSize": "10", "gateway": "10.9.0.1",
        "exclusions": [{"startIP": 7, "endIP": "10.0.0.1"}, "10.0.0.9", {"startIP": "10.0.0.9", "endIP": "10.0.0.8"}],
        "perNodeExclusions": {"startIndex": 0}, "defaultGateway": "true", "unknown": 1,
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": [true]}]}]},
    });
    assert_eq!(
        told(PoolKind::IpPool, &spec),
        [
            "spec.gateway: \"10.9.0.1\" is not in the subnet 10.0.0.0/24",
            "spec.exclusions[2].endIP: \"10.0.0.8\" lies before startIP \"10.0.0.9\"; write the lower address first",
            "spec.perNodeBlockSize: is the text \"10\", but must be an integer; leave the quotes out",
            "spec.defaultGateway: is the text \"true\", but must be true or false; leave the quotes out",
            "spec.exclusions[0].startIP: is 7, but must be a text; put it in quotes",
            "spec.exclusions[1]: is the text \"10.0.0.9\", but must be an object",
            "spec.perNodeExclusions: is an object, but must be a list",
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values[0]: is true, but must be a text; put it in quotes",
        ]
    );
}

#[test]
fn null_counts_as_absent() {
    let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4, "gateway": null, "exclusions": null, "nodeSelector": null, "routes": null});
    assert_eq!(told(PoolKind::IpPool, &spec), [""; 0]);
    assert_eq!(told(PoolKind::IpPool, &json!({"subnet": null, "perNodeBlockSize": 4})), ["spec.subnet: is missing"]);
}

#[test]
fn a_text_that_is_none_or_lies_too_deep_is_one_mistake() {
    let told = |text: Option<&str>| {
        let (spec, unread) = read_text(PoolKind::IpPool, text);
        let told = parse("pool", &spec, unread).unwrap_err();
        told.iter().map(Violation::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told(None), ["spec: is missing"]);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for text in [deep.as_str(), "{", ""] {
        let told = told(Some(text));
        assert!(told.len() == 1 && told[0].starts_with("spec: does not read as JSON"), "{told:?}");
    }
}
