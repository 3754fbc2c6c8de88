//! What a person sees who applies, edits and deletes pools.

use std::time::Duration;

use ipam_e2e::cluster::register_node;
use ipam_e2e::eventually_blocking;
use serde_json::{Value, json};

use crate::stage::{Stage, plane};

const PATIENCE: Duration = Duration::from_mins(1);

/// All of these parts are said.
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{said:?} lacks {part:?}");
    }
}

#[test]
fn a_good_pool_is_applied_and_a_bad_one_is_refused_with_every_mistake_in_words() {
    let stage = Stage::set("wh-apply");
    let good = stage.pool("IPPool", "good", &json!({"subnet": "10.1.0.0/24", "perNodeBlockSize": 4}));
    let (applied, said) = stage.apply(&good);
    assert!(applied, "{said}");
    // Both mistakes are of the kind that the CRD's own rules cannot see.
    let exclusions = json!([{"startIP": "fd00::9", "endIP": "fd00::1"}, {"startIP": "fd00::19", "endIP": "fd00::11"}]);
    let spec = json!({"subnet": "fd00::/64", "perNodeBlockSize": 4, "exclusions": exclusions});
    let (applied, said) = stage.apply(&stage.pool("IPPool", "bad", &spec));
    assert!(!applied);
    says(
        &said,
        &[
            "The IPPool \"bad\" is invalid",
            "* spec.exclusions[0].endIP: \"fd00::1\" lies before startIP \"fd00::9\"; write the lower address first",
            "* spec.exclusions[1].endIP",
        ],
    );
}

#[test]
fn all_that_the_definition_sees_comes_at_once_and_then_all_that_the_webhook_sees() {
    let stage = Stage::set("wh-both");
    let exclusions = json!([{"startIP": "fd00::9", "endIP": "fd00::1"}, {"startIP": "fd00::19", "endIP": "fd00::11"}]);
    let mut spec = json!({
        "subnet": "fd00::/64", "perNodeBlockSize": 4, "gateway": "10.9.0.1", "exclusions": exclusions,
        "nodeSelector": {"matchLabels": {"rack": "r1"}},
    });
    let (applied, said) = stage.apply(&stage.pool("IPPool", "bad", &spec));
    assert!(!applied);
    let labels = "* spec.nodeSelector.matchLabels: Forbidden: a node selector has no matchLabels; write nodeSelectorTerms: \
                  [{matchExpressions: [{key: KEY, operator: In, values: [VALUE]}]}], with an expression for each label";
    says(&said, &["The IPPool \"bad\" is invalid", "* spec.gateway: Invalid value: 10.9.0.1 must lie inside", labels]);
    assert!(!said.contains("exclusions"), "the webhook is not asked: {said}");
    spec["gateway"] = "fd00::1".into();
    spec["nodeSelector"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]});
    let (applied, said) = stage.apply(&stage.pool("IPPool", "bad", &spec));
    assert!(!applied);
    says(
        &said,
        &[
            "* spec.exclusions[0].endIP: \"fd00::1\" lies before",
            "* spec.exclusions[1].endIP: \"fd00::11\" lies before",
        ],
    );
}

#[test]
fn what_works_but_surprises_is_applied_with_a_warning() {
    let stage = Stage::set("wh-warn");
    let spec = json!({"subnet": "10.1.0.0/24", "perNodeBlockSize": 4, "gateway": "10.1.0.2", "defautGateway": true});
    let (applied, said) = stage.apply(&stage.pool("IPPool", "odd", &spec));
    assert!(applied, "{said}");
    says(&said, &["Warning: spec.defautGateway", "ippool.nv-ipam.nvidia.com/odd created"]);
}

#[test]
fn a_pool_over_the_addresses_of_another_is_refused_whatever_its_kind() {
    let stage = Stage::set("wh-overlap");
    let (applied, said) =
        stage.apply(&stage.pool("IPPool", "first", &json!({"subnet": "10.1.0.0/16", "perNodeBlockSize": 4})));
    assert!(applied, "{said}");
    let second = stage.pool("CIDRPool", "second", &json!({"cidr": "10.1.128.0/17", "perNodeNetworkPrefix": 24}));
    // The watch tells of the first a moment after kubectl does.
    let said = eventually_blocking("the overlap is seen", PATIENCE, || {
        let (applied, said) = stage.kubectl(&["create", "--dry-run=server", "-f", "-"], &second.to_string());
        if applied { Err("let through") } else { Ok(said) }
    });
    says(
        &said.unwrap(),
        &["(Forbidden)", "denied the request: spec.cidr", "IPPool \"first\" (10.1.0.0/16)", "allow-overlap"],
    );
}

#[test]
fn an_edit_that_would_take_a_block_away_is_refused_and_a_deletion_says_who_may_hold_addresses() {
    let stage = Stage::set("wh-edit");
    let node = format!("{}-n1", stage.namespace);
    register_node(plane(), &node, &[("wh", &stage.namespace)]).unwrap();
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "wh", "operator": "In", "values": [stage.namespace]}]}]});
    let pool = |subnet: &str| {
        let spec = json!({"subnet": subnet, "perNodeBlockSize": 4, "nodeSelector": selector});
        stage.pool("IPPool", "used", &spec)
    };
    let (applied, said) = stage.apply(&pool("10.1.0.0/24"));
    assert!(applied, "{said}");
    eventually_blocking("the node has its block", PATIENCE, || {
        let (_, said) = stage.kubectl(&["get", "ippool", "used", "-o", "json"], "");
        let pool: Value = serde_json::from_str(&said)?;
        anyhow::ensure!(pool["status"]["allocations"][0]["nodeName"] == *node, "{said}");
        anyhow::Ok(())
    })
    .unwrap();
    let (applied, said) = stage.apply(&pool("10.2.0.0/24"));
    assert!(!applied, "{said}");
    says(&said, &["(Forbidden)", "spec.subnet", &node, "not reported: counts as held", "keep \"10.1.0.0/24\""]);
    let (applied, said) = stage.apply(&pool("10.1.0.0/16"));
    assert!(applied, "growing is free: {said}");
    let (labelled, said) = stage.kubectl(&["label", "ippool", "used", "a=b"], "");
    assert!(labelled, "{said}");
    let (deleted, said) = stage.kubectl(&["delete", "ippool", "used", "--wait=false"], "");
    assert!(deleted, "{said}");
    says(&said, &["Warning:", "still held", &node]);
}
