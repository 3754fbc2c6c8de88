//! What the operator says and does about pools and nodes that change, seen through the API server.

use serde_json::json;

use crate::api::{CIDRPOOLS, IPAMNODES, IPPOOLS};
use crate::stage::{GROUP, Stage};

#[test]
fn an_invalid_edit_keeps_what_was_given_and_says_why() {
    let stage = Stage::set("invalid");
    let first = stage.join("a");
    let spec = stage.for_us(json!({"cidr": "fd77::/64", "perNodeNetworkPrefix": 120, "gatewayIndex": 1}));
    stage.api.create(CIDRPOOLS, "p", &spec);
    let before = [(first.as_str(), "fd77::/120 via fd77::1")];
    stage.api.await_blocks(CIDRPOOLS, "p", &before);
    let given = stage.api.await_ipam_node(&first, 1)["spec"].clone();

    // CEL has no order of IPv6 addresses, so the API server takes this.
    let exclusions = json!([{"startIP": "fd77::9", "endIP": "fd77::3"}]);
    stage.api.merge(CIDRPOOLS, "p", &json!({"spec": {"exclusions": exclusions}}));
    let refused = stage.api.await_condition(CIDRPOOLS, "p", ("Ready", "False", "InvalidSpec"));
    assert!(refused["message"].as_str().unwrap().contains("spec.exclusions[0]"), "{refused}");
    assert!(stage.api.await_event("p", "InvalidSpec").contains("spec.exclusions[0]"));
    assert_eq!(stage.api.blocks(CIDRPOOLS, "p").len(), 1, "what was given stays");
    assert_eq!(stage.api.get(IPAMNODES, &first)["spec"], given, "and so does what the agent serves");

    let second = stage.join("b");
    stage.api.merge(CIDRPOOLS, "p", &json!({"spec": {"exclusions": null}}));
    let after = [before[0], (second.as_str(), "fd77::100/120 via fd77::101")];
    stage.api.await_blocks(CIDRPOOLS, "p", &after);
    stage.api.await_condition(CIDRPOOLS, "p", ("Ready", "True", "Valid"));
    assert_eq!(stage.api.events("p", "InvalidSpec").len(), 1, "said once");
}

#[test]
fn a_pool_without_room_leaves_nodes_out_and_says_so_in_a_condition_and_an_event() {
    let stage = Stage::set("full");
    let served = stage.join("a");
    let left_out = stage.join("b");
    let spec = stage.for_us(json!({"subnet": "10.3.0.0/29", "perNodeBlockSize": 4}));
    stage.api.create(IPPOOLS, "ranges", &spec);
    let spec = stage.for_us(json!({"cidr": "10.4.0.0/24", "perNodeNetworkPrefix": 24}));
    stage.api.create(CIDRPOOLS, "prefixes", &spec);
    for (kind, pool, block, reason) in [
        (IPPOOLS, "ranges", "10.3.0.1-10.3.0.4", "NoFreeRanges"),
        (CIDRPOOLS, "prefixes", "10.4.0.0/24", "NoFreePrefixes"),
    ] {
        stage.api.await_blocks(kind, pool, &[(&served, block)]);
        let exhausted = stage.api.await_condition(kind, pool, ("Exhausted", "True", reason));
        assert!(exhausted["message"].as_str().unwrap().contains(&left_out), "{exhausted}");
        assert!(stage.api.await_event(pool, reason).contains(&left_out));
        let status = stage.api.get(kind, pool)["status"].clone();
        assert_eq!(status["nodes"], json!({"served": 1, "unserved": 1, "releasing": 0}));
        assert_eq!(status["blocks"], json!({"total": 1, "free": 0}));
        assert_eq!(stage.api.events(pool, reason).len(), 1, "said once");
    }
    stage.api.await_ipam_node(&left_out, 0);
}

#[test]
fn a_block_of_a_node_that_is_gone_or_no_longer_selected_is_being_taken_back_and_nobody_elses() {
    let mut stage = Stage::set("departed");
    let [gone, relabelled, stays] = ["a", "b", "c"].map(|short| stage.join(short));
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.5.0.0/24", "perNodeBlockSize": 4})));
    let (first, second) = ((gone.as_str(), "10.5.0.1-10.5.0.4"), (relabelled.as_str(), "10.5.0.5-10.5.0.8"));
    let third = (stays.as_str(), "10.5.0.9-10.5.0.12");
    stage.api.await_blocks(IPPOOLS, "p", &[first, second, third]);
    for leaving in [&gone, &relabelled] {
        stage.api.use_blocks(leaving, 1);
    }
    stage.api.delete_node(&gone);
    stage.api.label_node(&relabelled, &json!({GROUP: null}));
    let newcomer = stage.join("d");
    let fourth = (newcomer.as_str(), "10.5.0.13-10.5.0.16");
    stage.api.await_blocks(IPPOOLS, "p", &[third, fourth]);
    let status = stage.api.get(IPPOOLS, "p")["status"].clone();
    assert_eq!(status["nodes"], json!({"served": 2, "unserved": 0, "releasing": 2}));
    let releasing: Vec<_> = status["releasing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["nodeName"].as_str(), one["startIP"].as_str()))
        .collect();
    assert_eq!(releasing, [(Some(gone.as_str()), Some("10.5.0.1")), (Some(relabelled.as_str()), Some("10.5.0.5"))]);
    let condition = stage.api.await_condition(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
    let said = condition["message"].as_str().unwrap();
    assert!(said.contains(&gone) && said.contains(&relabelled) && !said.contains(&stays), "{said}");

    stage.crash_operator();
    let late = stage.join("e");
    let fifth = (late.as_str(), "10.5.0.17-10.5.0.20");
    stage.api.await_blocks(IPPOOLS, "p", &[third, fourth, fifth]);
    stage.api.create_node(&gone, &json!({GROUP: stage.namespace}));
    stage.api.label_node(&relabelled, &json!({GROUP: stage.namespace}));
    stage.api.await_blocks(IPPOOLS, "p", &[first, second, third, fourth, fifth]);
    let nodes = json!({"served": 5, "unserved": 0, "releasing": 0});
    assert_eq!(stage.api.get(IPPOOLS, "p")["status"]["nodes"], nodes, "both are back with what they had");
}

#[test]
fn heartbeats_and_the_blocks_of_other_pools_cause_no_write() {
    let stage = Stage::set("beats");
    let nodes = ["a", "b"].map(|short| stage.join(short));
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.6.0.0/24", "perNodeBlockSize": 4})));
    let other = crate::stage::selecting(json!({"cidr": "10.7.0.0/16", "perNodeNetworkPrefix": 24}), "beats-other");
    stage.api.create(CIDRPOOLS, "other", &other);
    stage.api.await_count(IPPOOLS, "p", 2);
    stage.api.await_condition(CIDRPOOLS, "other", ("Ready", "True", "Valid"));
    let versions = || {
        let version = |kind, name: &str| stage.api.get(kind, name)["metadata"]["resourceVersion"].clone();
        [version(IPPOOLS, "p"), version(IPAMNODES, &nodes[0]), version(IPAMNODES, &nodes[1])]
    };
    for node in &nodes {
        stage.api.await_ipam_node(node, 1);
    }
    // The server takes a write of what is there already without a trace, so the operator's own counts are asked as well.
    // That nothing is even due after a heartbeat is shown where time stands still, in the state machine's own tests.
    let counts = || ["pool_status_writes_total", "pool_call_duration_seconds_count"].map(|name| count(&stage, name));
    let (before, calls) = (versions(), counts());
    for beat in 0..20 {
        for node in &nodes {
            stage.api.beat(node, beat);
        }
    }
    for node in &nodes {
        stage.api.label_node(node, &json!({"example.com/unrelated": "1"}));
    }
    // Nodes are watched in one stream: once this join is answered, all that was said before has been heard.
    stage.api.create_node(&stage.name("last"), &json!({GROUP: "beats-other"}));
    stage.api.await_count(CIDRPOOLS, "other", 1);
    assert_eq!(counts(), calls, "no call for heartbeats, labels that nobody selects by and blocks of other pools");
    assert_eq!(versions(), before);
}

#[test]
fn labels_that_no_pool_selects_by_make_no_plan() {
    let stage = Stage::set("labels");
    let [node, last] = ["a", "last"].map(|short| stage.name(short));
    stage.api.create_node(&node, &json!({GROUP: stage.namespace}));
    stage.api.create_node(&last, &json!({}));
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.10.8.0/24", "perNodeBlockSize": 4})));
    let other = crate::stage::selecting(json!({"cidr": "10.11.0.0/16", "perNodeNetworkPrefix": 24}), "labels-other");
    stage.api.create(CIDRPOOLS, "other", &other);
    stage.api.await_ipam_node(&node, 1);
    let mut round = 0;
    // A Node of another test that joins makes plans. So one round without a plan is enough.
    ipam_e2e::eventually_blocking("a round of labels makes no plan", crate::api::SOON, || {
        round += 1;
        let before = count(&stage, "plan_duration_seconds_count");
        for label in ["example.com/first", "example.com/second"] {
            stage.api.label_node(&node, &json!({label: round.to_string()}));
        }
        // Nodes are watched in one stream: once this label has its effect, the operator has heard of the others.
        stage.api.label_node(&last, &json!({GROUP: "labels-other"}));
        stage.api.await_count(CIDRPOOLS, "other", 1);
        let after = count(&stage, "plan_duration_seconds_count");
        stage.api.label_node(&last, &json!({GROUP: null}));
        stage.api.await_count(CIDRPOOLS, "other", 0);
        if before == after { Ok(()) } else { Err(format!("{} plans", after - before)) }
    })
    .unwrap();
}

/// A count in the operator's metrics, of IPPools, of which there is one.
fn count(stage: &Stage, name: &str) -> u64 {
    let (code, text) = ipam_e2e::http::get(&stage.operator.metrics(), "/metrics").unwrap();
    assert_eq!(code, 200, "{text}");
    let line = text.lines().find(|line| line.contains(name) && line.contains("\"IPPool\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} of IPPools in:\n{text}"))
}

#[test]
fn a_deleted_record_of_a_node_is_made_anew_from_the_status() {
    let stage = Stage::set("anew");
    let node = stage.join("a");
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.8.0.0/24", "perNodeBlockSize": 4})));
    stage.api.await_count(IPPOOLS, "p", 1);
    let told = stage.api.await_ipam_node(&node, 1);
    stage.api.delete(IPAMNODES, &node);
    let deleted = stage.api.get(IPAMNODES, &node);
    assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "the finalizer keeps it: {deleted}");
    assert_eq!(deleted["spec"], told["spec"]);
    stage.api.merge(IPAMNODES, &node, &json!({"metadata": {"finalizers": null}}));
    let again = ipam_e2e::eventually_blocking("there is a new record", crate::api::SOON, || {
        let object = stage.api.await_ipam_node(&node, 1);
        if object["metadata"]["uid"] == told["metadata"]["uid"] { Err("the old one") } else { Ok(object) }
    })
    .unwrap();
    let block = |object: &serde_json::Value| {
        let mut block = object["spec"]["pools"][0].clone();
        let fields = block.as_object_mut().unwrap();
        let (grant, never_used) = (fields.remove("grant"), fields.remove("neverUsed"));
        (block, grant, never_used)
    };
    let (before, after) = (block(&told), block(&again));
    assert_eq!(after.0, before.0);
    assert_ne!(after.1, before.1, "the agent may have used the former grant");
    assert_eq!((before.2, after.2), (Some(json!(true)), None), "the block was not free");
    stage.api.await_blocks(IPPOOLS, "p", &[(&node, "10.8.0.1-10.8.0.4")]);
}

#[test]
fn an_ipam_node_has_no_managed_fields() {
    let stage = Stage::set("unmanaged");
    let node = stage.join("a");
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.5.9.0/24", "perNodeBlockSize": 4})));
    // Also a report brings none back.
    stage.api.use_blocks(&node, 1);
    let object = stage.api.get(IPAMNODES, &node);
    assert_eq!(object["metadata"].get("managedFields"), None, "{object}");
}
