//! Objects survive the way in and out, and reach `ipam-core` whole.

use crate::support::{Judge, case_files};
use ipam_core::spec::PoolSpec;
use ipam_crds::{
    CIDRPool, CIDRPoolSpec, IPAMNode, IPAMNodeSpec, IPPool, IPPoolSpec, IPPoolStatus, NodeBlock, PoolType,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const EXAMPLES: [(&str, &str); 12] = [
    ("ippool-blocks-of-24", include_str!("../../examples/ippool-blocks-of-24.yaml")),
    ("ippool-blocks-of-24-allocated", include_str!("../../examples/ippool-blocks-of-24-allocated.yaml")),
    ("ippool-blocks-of-100", include_str!("../../examples/ippool-blocks-of-100.yaml")),
    ("ippool-role-selector", include_str!("../../examples/ippool-role-selector.yaml")),
    ("ippool-role-selector-allocated", include_str!("../../examples/ippool-role-selector-allocated.yaml")),
    ("ippool-ipv4", include_str!("../../examples/ippool-ipv4.yaml")),
    ("ippool-ipv6", include_str!("../../examples/ippool-ipv6.yaml")),
    ("cidrpool-role-selector", include_str!("../../examples/cidrpool-role-selector.yaml")),
    ("cidrpool-role-selector-allocated", include_str!("../../examples/cidrpool-role-selector-allocated.yaml")),
    ("cidrpool-ipv4", include_str!("../../examples/cidrpool-ipv4.yaml")),
    ("cidrpool-ipv6", include_str!("../../examples/cidrpool-ipv6.yaml")),
    ("cidrpool-point-to-point", include_str!("../../examples/cidrpool-point-to-point.yaml")),
];

/// Reads and writes a value through a type.
fn through<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(value.clone()).unwrap()).unwrap()
}

#[test]
fn examples_are_accepted_and_come_out_as_they_went_in() {
    for (name, text) in EXAMPLES {
        let object: Value = serde_yaml::from_str(text).unwrap();
        let kind = object["kind"].as_str().unwrap();
        assert_eq!(Judge::of(kind).judge(&object), [], "{name}");
        let back = if kind == "IPPool" { through::<IPPool>(&object) } else { through::<CIDRPool>(&object) };
        assert_eq!(back, object, "{name}");
    }
}

#[test]
fn every_example_file_is_tried() {
    let folder = std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    let mut files: Vec<String> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let mut tried: Vec<String> = EXAMPLES.iter().map(|(name, _)| format!("{name}.yaml")).collect();
    files.sort();
    tried.sort();
    assert_eq!(files, tried);
}

#[test]
fn absent_fields_stay_absent() {
    let ip = json!({"subnet": "10.0.0.0/8", "perNodeBlockSize": 1});
    assert_eq!(through::<IPPoolSpec>(&ip), ip);
    let cidr = json!({"cidr": "10.0.0.0/8", "perNodeNetworkPrefix": 24});
    assert_eq!(through::<CIDRPoolSpec>(&cidr), cidr);
    assert_eq!(through::<IPAMNodeSpec>(&json!({})), json!({}));
    assert_eq!(through::<IPPoolStatus>(&json!({})), json!({}));
    assert_eq!(
        through::<IPPoolStatus>(&json!({"blocks": {}, "addresses": {"used": 1}})),
        json!({"blocks": {"total": 0, "free": 0}, "addresses": {"capacity": 0, "used": 1}}),
        "a count that is missing reads as zero"
    );
}

#[test]
fn default_gateway_is_true_when_either_spelling_is() {
    for (right, old, result) in [
        (None, None, false),
        (Some(false), None, false),
        (Some(true), None, true),
        (None, Some(true), true),
        (Some(false), Some(true), true),
        (Some(true), Some(false), true),
    ] {
        let ip = IPPoolSpec { default_gateway: right, defaut_gateway: old, ..IPPoolSpec::default() };
        let cidr = CIDRPoolSpec { default_gateway: right, defaut_gateway: old, ..CIDRPoolSpec::default() };
        assert_eq!((ip.default_gateway(), cidr.default_gateway()), (result, result), "{right:?} {old:?}");
        assert_eq!(ip.to_spec().common().default_gateway, result);
        assert_eq!(cidr.to_spec().common().default_gateway, result);
    }
}

fn case_spec(kind: &str, name: &str) -> Value {
    let files = case_files();
    let mut cases = files.iter().filter(|file| file.kind == kind).flat_map(|file| &file.cases);
    cases.find(|case| case.name == name).unwrap().spec.clone()
}

#[test]
fn all_of_an_ippool_reaches_the_core() {
    let spec: IPPoolSpec = serde_json::from_value(case_spec("IPPool", "everything set")).unwrap();
    let PoolSpec::Ip(core) = spec.to_spec() else { panic!("wrong kind") };
    assert_eq!((core.subnet.as_str(), core.per_node_block_size), ("192.168.0.0/16", 100));
    assert_eq!(core.gateway.as_deref(), Some("192.168.0.1"));
    let exclusions: Vec<_> = core.common.exclusions.iter().map(|e| (e.start_ip.as_str(), e.end_ip.as_str())).collect();
    assert_eq!(exclusions, [("192.168.0.10", "192.168.0.20"), ("192.168.0.15", "192.168.0.15")]);
    let indexes: Vec<_> = core.common.per_node_exclusions.iter().map(|e| (e.start_index, e.end_index)).collect();
    assert_eq!(indexes, [(0, 3), (99, 99)]);
    assert_eq!((core.common.default_gateway, core.common.routes), (true, vec!["5.5.0.0/24".to_owned()]));
    let terms = core.common.node_selector.unwrap().terms;
    let shape: Vec<_> = terms.iter().map(|term| (term.match_expressions.len(), term.match_fields.len())).collect();
    assert_eq!(shape, [(6, 0), (0, 1), (0, 0)]);
    let first = &terms[0].match_expressions[0];
    assert_eq!((first.key.as_str(), first.operator.as_str()), ("kubernetes.io/hostname", "In"));
    assert_eq!(first.values, ["a", "b"]);
    assert_eq!(
        (terms[1].match_fields[0].key.as_str(), &terms[1].match_fields[0].values[0][..]),
        ("metadata.name", "node-1")
    );
}

#[test]
fn all_of_a_cidrpool_reaches_the_core() {
    let spec: CIDRPoolSpec = serde_json::from_value(case_spec("CIDRPool", "everything set")).unwrap();
    let PoolSpec::Cidr(core) = spec.to_spec() else { panic!("wrong kind") };
    assert_eq!((core.cidr.as_str(), core.per_node_network_prefix, core.gateway_index), ("192.168.0.0/16", 24, Some(1)));
    let entries: Vec<_> = core
        .static_allocations
        .iter()
        .map(|entry| (entry.node_name.as_deref(), entry.gateway.as_deref(), entry.prefix.as_str()))
        .collect();
    assert_eq!(
        entries,
        [
            (Some("node-33"), Some("192.168.33.10"), "192.168.33.0/24"),
            (None, None, "192.168.1.0/24"),
            (Some(""), Some(""), "192.168.2.0/24"),
        ]
    );
    assert_eq!(core.common.exclusions.len(), 1);
    assert_eq!(core.common.per_node_exclusions[0].end_index, 255);
    assert_eq!(core.common.node_selector.unwrap().terms.len(), 1);
    assert_eq!(core.common.routes, ["5.5.0.0/24"]);
}

#[test]
fn a_node_object_reads_as_it_is_written() {
    let object = json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode", "metadata": {"name": "n"},
        "spec": {"pools": [{
            "name": "p", "poolType": "CIDRPool", "grant": "6500000000000001", "neverUsed": true, "state": "Releasing",
            "startIP": "10.0.0.1", "endIP": "10.0.0.254", "subnet": "10.0.0.0/24", "gateway": "10.0.0.1", "exclusions": [{"startIP": "10.0.0.5", "endIP": "10.0.0.6"}],
            "routes": [{"dst": "0.0.0.0/0"}], "defaultGateway": true
        }]},
        "status": {
            "observedGeneration": 3, "agentVersion": "1",
            "pools": [{"name": "p", "poolType": "CIDRPool", "startIP": "10.0.0.1", "endIP": "10.0.0.254",
                       "grant": "6500000000000001", "ended": true, "used": 1, "capacity": 251}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "message": "", "observedGeneration": 3,
                            "lastTransitionTime": "2024-01-01T00:00:00Z"}]
        }
    });
    assert_eq!(Judge::of("IPAMNode").judge(&object), []);
    assert_eq!(through::<IPAMNode>(&object), object);
}

#[test]
fn blocks_sort_as_their_kinds_are_spelled() {
    let block = |pool_type, name: &str| NodeBlock { pool_type, name: name.into(), ..NodeBlock::default() };
    let mut blocks = [block(PoolType::IPPool, "a"), block(PoolType::CIDRPool, "b"), block(PoolType::CIDRPool, "a")];
    blocks.sort_by(|one, other| (one.pool_type, &one.name).cmp(&(other.pool_type, &other.name)));
    let order: Vec<_> = blocks.iter().map(|block| (block.pool_type, block.name.as_str())).collect();
    assert_eq!(order, [(PoolType::CIDRPool, "a"), (PoolType::CIDRPool, "b"), (PoolType::IPPool, "a")]);
}
