//! A pool that is nearly as large as an object may be in etcd.

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::{Operator, install_crds};
use ipam_e2e::eventually::eventually_blocking;
use serde_json::{Map, Value, json};

use crate::api::{Api, IPPOOLS, SOON, text};

const NODES: usize = 900;
/// Bytes of etcd's limit for an object.
const LIMIT: usize = 1_572_864;

/// A name of 253 characters, the longest one.
fn long_name(number: usize) -> String {
    let label = "x".repeat(62);
    format!("node-{number:04}.{label}.{label}.{label}.{}", "x".repeat(54))
}

/// Metadata of others with 1.3 MB: each label is in the managed fields, too.
fn metadata() -> Value {
    let labels =
        (0..1_800).map(|number| (format!("{}.example.org/{number:062}", "x".repeat(180)), json!("x".repeat(63))));
    let labels: Map<String, Value> = labels.collect();
    json!({"labels": labels, "annotations": {"example.org/note": "x".repeat(250_000)}})
}

/// Objects with IPv6 addresses and long names reach the limit at fewer nodes. A cluster of its own, because every operator would make
/// IPAMNodes for these nodes.
#[test]
fn pool_near_the_limit_of_etcd_is_served_and_deleted() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("full").unwrap();
    let _operator = Operator::start(&plane, &namespace, &[]).unwrap();
    let api = Api::new(&plane, &namespace);
    api.create(IPPOOLS, "p", &json!({"subnet": "fd00:1234:5678:9abc::/64", "perNodeBlockSize": 4}));
    api.merge(IPPOOLS, "p", &json!({"metadata": metadata()}));
    for number in 0..NODES {
        api.create_node(&long_name(number), &json!({}));
    }

    let full = api.await_condition(IPPOOLS, "p", ("Exhausted", "True", "StatusFull"));
    assert!(text(&full["message"]).contains("1400 kB"), "{full}");
    let settled = eventually_blocking("all nodes are counted", SOON, || {
        let pool = api.get(IPPOOLS, "p");
        let count = |state: &str| pool["status"]["nodes"][state].as_u64().unwrap_or_default();
        let all = usize::try_from(count("served") + count("unserved")).unwrap();
        if all == NODES { Ok(pool) } else { Err(pool["status"]["nodes"].to_string()) }
    });
    let pool = settled.unwrap();
    let served = pool["status"]["allocations"].as_array().unwrap().len();
    let size = pool.to_string().len();
    assert!(served > 20 && served < NODES && size < LIMIT, "{served} nodes served, {size} bytes");

    // Its blocks are released and it is deleted, with no room for anything more.
    api.remove_pool(IPPOOLS, "p");
}
