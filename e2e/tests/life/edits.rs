//! Edits of pools that pods hold addresses of.

use serde_json::json;

use crate::api::{CIDRPOOLS, IPAMNODES, IPPOOLS};
use crate::stage::{Stage, ip_spec};

#[test]
fn another_block_size_waits_for_what_pods_hold_and_then_takes_effect() {
    let stage = Stage::set("resized", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.91.0.0/24", 4));
    let first = stage.resident(0, IPPOOLS, "p");
    // The definition refuses such an edit where the status proves that it takes addresses from pods, and webhooks may be on;
    // it gets in all the same while some block is being taken back, for then a status proves nothing.
    let gone = stage.join("gone");
    stage.api.await_count(IPPOOLS, "p", 2);
    stage.api.use_blocks(&gone, 1);
    stage.api.delete_node(&gone);
    stage.await_releasing(IPPOOLS, "p", &[&gone]);
    stage.api.merge(IPPOOLS, "p", &json!({"spec": {"perNodeBlockSize": 8}}));
    let said = stage.told(IPPOOLS, "p", ("Ready", "False", "EditDeferred"));
    assert!(said.contains(&format!("{node} (1 in use)")), "{said}");
    assert!(stage.api.await_event("p", "EditDeferred").contains(&node));
    // The last good plan is served, and others are served by the new spec where both can hold.
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    assert_eq!([first.address(), second.address()], ["10.91.0.1/24", "10.91.0.2/24"]);
    let newcomer = stage.join("x");
    let of_newcomer = (newcomer.as_str(), "10.91.0.9-10.91.0.16");
    stage.api.await_blocks(IPPOOLS, "p", &[(&node, "10.91.0.1-10.91.0.4"), of_newcomer]);
    for pod in [&first, &second] {
        pod.del();
    }
    stage.api.await_condition(IPPOOLS, "p", ("Ready", "True", "Valid"));
    // Half of the first block of the new size is the node's that is gone.
    stage.api.await_blocks(IPPOOLS, "p", &[(&node, "10.91.0.17-10.91.0.24"), of_newcomer]);
    assert_eq!(stage.api.events("p", "EditDeferred").len(), 1, "said once");
}

#[test]
fn a_spec_that_turns_invalid_takes_nothing_gives_nothing_and_heals() {
    let stage = Stage::set("broken", 2);
    let [stays, leaves] = [0, 1].map(|index| stage.name(index).to_owned());
    stage.pool(CIDRPOOLS, "p", json!({"cidr": "fd96::/64", "perNodeNetworkPrefix": 120}));
    let pods = [stage.resident(0, CIDRPOOLS, "p"), stage.resident(1, CIDRPOOLS, "p")];
    let before = stage.api.blocks(CIDRPOOLS, "p");
    // The definition has no order of IPv6 addresses, so that the API server takes this.
    let backwards = json!([{"startIP": "fd96::9", "endIP": "fd96::3"}]);
    stage.api.merge(CIDRPOOLS, "p", &json!({"spec": {"exclusions": backwards}}));
    let said = stage.told(CIDRPOOLS, "p", ("Ready", "False", "InvalidSpec"));
    assert!(said.contains("spec.exclusions[0]"), "{said}");
    // Were the status cleared, this one would get the first block, and its pods addresses that are held.
    let newcomer = stage.join("0");
    stage.api.delete_node(&leaves);
    let mut late = stage.pod(0, CIDRPOOLS, "p");
    late.add().expect("the last good state is served");
    assert_eq!(stage.api.blocks(CIDRPOOLS, "p"), before, "frozen: nothing given, nothing taken back");

    stage.api.merge(CIDRPOOLS, "p", &json!({"spec": {"exclusions": null}}));
    stage.api.await_condition(CIDRPOOLS, "p", ("Ready", "True", "Valid"));
    stage.await_releasing(CIDRPOOLS, "p", &[&leaves]);
    let after = stage.api.await_count(CIDRPOOLS, "p", 2);
    assert_eq!(after[&stays], before[&stays]);
    assert!(!before.values().any(|block| *block == after[&newcomer]), "{newcomer} has {}", after[&newcomer]);
    for pod in &pods {
        pod.check();
        pod.del();
    }
    stage.await_releasing(CIDRPOOLS, "p", &[]);
    // Its Node is gone, and nothing of it is in use.
    stage.await_gone(IPAMNODES, &leaves);
}

#[test]
fn a_gateway_moved_onto_a_held_address_waits_for_the_pod_and_is_told_to_nobody_before() {
    let stage = Stage::set("gateway", 2);
    let holder = stage.name(0).to_owned();
    let spec = json!({"subnet": "10.88.0.0/24", "perNodeBlockSize": 4, "gateway": "10.88.0.254"});
    stage.pool(IPPOOLS, "p", spec);
    let first = stage.resident(0, IPPOOLS, "p");
    assert_eq!(first.address(), "10.88.0.1/24");
    stage.api.merge(IPPOOLS, "p", &json!({"spec": {"gateway": "10.88.0.1"}}));
    let said = stage.told(IPPOOLS, "p", ("Ready", "False", "EditDeferred"));
    assert!(said.contains(&format!("{holder} (may use 10.88.0.1)")), "{said}");
    let mut later = [stage.pod(0, IPPOOLS, "p"), stage.pod(1, IPPOOLS, "p")];
    for pod in &mut later {
        pod.add().unwrap();
        assert_eq!(pod.gateway(), "10.88.0.254", "the last good one");
    }
    first.check();
    first.del();
    stage.api.await_condition(IPPOOLS, "p", ("Ready", "True", "Valid"));
    for node in [0, 1] {
        stage.await_gateway(node, "10.88.0.1");
        let mut pod = stage.pod(node, IPPOOLS, "p");
        pod.add().unwrap();
        assert_eq!(pod.gateway(), "10.88.0.1");
        assert_ne!(pod.address(), first.address(), "the gateway is given to no pod");
    }
}
