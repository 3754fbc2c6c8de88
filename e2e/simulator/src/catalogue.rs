//! The pools that the simulated admin applies. Networks are small, so that blocks run out and are reused often. There are
//! pools of both kinds and families, with blocks of one address and of the whole subnet. Some overlap others, by mistake
//! or on purpose.

use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use serde_json::{Value, json};

/// Plural and name of each pool.
pub(super) const POOLS: [(&str, &str); 7] = [
    ("ippools", "blue"),
    ("cidrpools", "green"),
    ("ippools", "red"),
    ("ippools", "six"),
    ("cidrpools", "lake"),
    ("ippools", "east"),
    ("cidrpools", "west"),
];
/// Pools that may have the same addresses, as separate networks: both have the annotation from the start.
const APART: [&str; 2] = ["east", "west"];

/// The `spec`-th manifest of the `pool`-th pool.
pub(super) fn manifest(pool: u8, spec: u8) -> (&'static str, &'static str, Value) {
    let place = usize::from(pool) % POOLS.len();
    let (plural, name) = POOLS[place];
    let specs = match place {
        0 => blue(),
        1 => green(),
        2 => red(),
        3 => six(),
        4 => lake(),
        5 => vec![json!({"subnet": "10.5.0.0/28", "perNodeBlockSize": 3})],
        _ => vec![json!({"cidr": "10.5.0.0/28", "perNodeNetworkPrefix": 30})],
    };
    let spec = specs[usize::from(spec) % specs.len()].clone();
    let mut metadata = json!({"name": name, "namespace": super::server::NAMESPACE});
    if APART.contains(&name) {
        metadata["annotations"] = json!({ ALLOW_OVERLAP_ANNOTATION: "true" });
    }
    (plural, name, json!({"metadata": metadata, "spec": spec}))
}

fn selector() -> Value {
    json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "group", "operator": "In", "values": ["x"]}]}]})
}

/// Three blocks for four nodes; then larger, with other block sizes, moved, with exclusions, and with an invalid spec.
fn blue() -> Vec<Value> {
    vec![
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 4, "nodeSelector": selector()}),
        json!({"subnet": "10.0.0.0/27", "perNodeBlockSize": 4, "nodeSelector": selector(), "gateway": "10.0.0.1",
            "routes": [{"dst": "10.8.0.0/16"}], "defaultGateway": true}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 2, "nodeSelector": selector()}),
        json!({"subnet": "10.0.0.16/28", "perNodeBlockSize": 4}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 3, "gateway": "10.0.0.2"}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 4, "exclusions": [{"startIP": "10.0.0.1", "endIP": "10.0.0.6"}]}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 4, "gateway": "10.9.9.9"}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 1}),
        json!({"subnet": "10.0.0.0/28", "perNodeBlockSize": 14}),
    ]
}

fn green() -> Vec<Value> {
    vec![
        json!({"cidr": "10.1.0.0/27", "perNodeNetworkPrefix": 29, "gatewayIndex": 1, "nodeSelector": selector()}),
        json!({"cidr": "10.1.0.0/26", "perNodeNetworkPrefix": 29, "gatewayIndex": 1, "nodeSelector": selector(),
            "routes": [{"dst": "10.9.0.0/16"}, {"dst": "10.8.0.0/16"}], "perNodeExclusions": [{"startIndex": 2, "endIndex": 3}]}),
        json!({"cidr": "10.1.0.0/27", "perNodeNetworkPrefix": 30}),
        json!({"cidr": "10.1.0.0/27", "perNodeNetworkPrefix": 29,
            "staticAllocations": [{"nodeName": "node-1", "prefix": "10.1.0.0/29"}, {"prefix": "10.1.0.8/29"}]}),
        json!({"cidr": "10.1.0.0/27", "perNodeNetworkPrefix": 29,
            "staticAllocations": [{"nodeName": "node-2", "prefix": "10.1.0.0/29"}]}),
        json!({"cidr": "10.1.0.32/27", "perNodeNetworkPrefix": 31}),
        json!({"cidr": "10.1.0.5/27", "perNodeNetworkPrefix": 29}),
        json!({"cidr": "10.0.0.0/27", "perNodeNetworkPrefix": 30}),
    ]
}

/// A second pool of the same kind as the first, sometimes over the same addresses.
fn red() -> Vec<Value> {
    vec![
        json!({"subnet": "10.0.0.72/29", "perNodeBlockSize": 2}),
        json!({"subnet": "10.0.0.64/29", "perNodeBlockSize": 2}),
        json!({"subnet": "10.0.0.0/29", "perNodeBlockSize": 3, "nodeSelector": selector()}),
    ]
}

fn lake() -> Vec<Value> {
    vec![
        json!({"cidr": "fd01::/124", "perNodeNetworkPrefix": 126, "gatewayIndex": 1}),
        json!({"cidr": "fd01::/124", "perNodeNetworkPrefix": 127, "nodeSelector": selector()}),
        json!({"cidr": "fd01::/124", "perNodeNetworkPrefix": 128}),
        json!({"cidr": "fd01::/124", "perNodeNetworkPrefix": 126,
            "staticAllocations": [{"nodeName": "node-3", "prefix": "fd01::4/126", "gateway": "fd01::5"}]}),
        json!({"cidr": "fd01::/124", "perNodeNetworkPrefix": 124}),
    ]
}

fn six() -> Vec<Value> {
    vec![
        json!({"subnet": "fd00::/124", "perNodeBlockSize": 4, "gateway": "fd00::1"}),
        json!({"subnet": "fd00::/64", "perNodeBlockSize": 4, "gateway": "fd00::1"}),
        json!({"subnet": "fd00::/124", "perNodeBlockSize": 5, "nodeSelector": selector(),
            "perNodeExclusions": [{"startIndex": 0, "endIndex": 1}]}),
    ]
}
