//! Records that an admin, or an accident, takes away while pods hold addresses.

use ipam_e2e::eventually_blocking;
use serde_json::json;

use crate::api::{IPAMNODES, IPPOOLS, SOON};
use crate::stage::{Stage, ip_spec, wiped};

#[test]
fn a_wiped_status_gives_nobody_a_block_that_another_has() {
    let stage = Stage::set("wiped", 2);
    stage.pool(IPPOOLS, "p", ip_spec("10.97.0.0/27", 4));
    let pods = [stage.resident(0, IPPOOLS, "p"), stage.resident(1, IPPOOLS, "p")];
    let before = stage.api.blocks(IPPOOLS, "p");
    stage.kubectl(&["replace", "--subresource=status", "-f", "-"], &wiped(&stage, "p"));
    // The first by name: from an empty status it would get the first block.
    let newcomer = stage.join("0");
    let after = stage.api.await_count(IPPOOLS, "p", 3);
    for (node, block) in &before {
        assert_eq!(&after[node], block);
    }
    assert!(!before.values().any(|block| *block == after[&newcomer]), "{after:?}");
    for pod in &pods {
        pod.check();
    }
    let mut more = stage.pod(0, IPPOOLS, "p");
    more.add().unwrap();
    assert!(pods.iter().all(|pod| pod.address() != more.address()), "{}", more.address());
}

#[test]
fn an_ipam_node_deleted_by_hand_is_made_anew_and_what_pods_hold_stays_held() {
    let stage = Stage::set("remade", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.98.0.0/27", 4));
    let first = stage.resident(0, IPPOOLS, "p");
    let (uid, told) = (stage.api.get(IPAMNODES, &node)["metadata"]["uid"].clone(), stage.told_blocks("p"));
    stage.api.delete(IPAMNODES, &node);
    let deleted = stage.api.get(IPAMNODES, &node);
    assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "the finalizer keeps it: {deleted}");
    let served = stage.resident(0, IPPOOLS, "p");
    served.del();
    stage.api.await_used(&node, "p", 1);
    stage.api.merge(IPAMNODES, &node, &json!({"metadata": {"finalizers": null}}));
    // The new object is told of all that is held, though it never heard of the pod.
    eventually_blocking("the new object has a report of the pod", SOON, || {
        let object = stage.api.find(IPAMNODES, &node).ok_or("there is none")?;
        let is_new = object["metadata"]["uid"] != uid;
        if is_new && object["status"]["pools"][0]["used"] == 1 { Ok(()) } else { Err("the old one, or no report") }
    })
    .unwrap();
    assert_eq!(stage.told_blocks("p"), told);
    first.check();
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    assert_ne!(second.address(), first.address());
    for pod in [&first, &second] {
        pod.del();
    }
    stage.api.await_used(&node, "p", 0);
}
