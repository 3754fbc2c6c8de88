//! Events in, answers out.

use ipam_core::PoolKind;
use serde_json::{Value, json};

use super::*;
use ipam_reconciler::cluster_cache::Labels;

fn object(value: &Value) -> RawObject {
    serde_json::from_str(&value.to_string()).unwrap()
}

fn pool(name: &str, subnet: &str) -> RawObject {
    object(&json!({"metadata": {"name": name}, "spec": {"subnet": subnet, "perNodeBlockSize": 4}}))
}

fn ipam_node(name: &str, range: [&str; 2], report: &Value) -> RawObject {
    object(&json!({"metadata": {"name": name},
        "spec": {"pools": [{"name": "p", "poolType": "IPPool", "state": "Active", "startIP": range[0], "endIP": range[1],
            "subnet": "10.0.0.0/24"}]},
        "status": {"pools": [report]}}))
}

fn report(range: [&str; 2], used: i64, held: &Value) -> Value {
    json!({"name": "p", "poolType": "IPPool", "startIP": range[0], "endIP": range[1], "used": used, "capacity": 4,
        "held": held})
}

fn contender(network: &str) -> OverlapCandidate {
    OverlapCandidate {
        key: PoolKey::new(PoolKind::IpPool, "new"),
        network: ipam_core::Cidr::parse(network).unwrap().0,
        created: i64::MAX,
        allows_overlap: false,
    }
}

fn names(known: &AdmissionCache, network: &str) -> Vec<String> {
    known.conflicts_made(None, &contender(network)).into_iter().map(|other| other.key.name.clone()).collect()
}

fn apply(known: &mut AdmissionCache, object: RawObject) {
    known.observe(&Observed::Pool(PoolKind::IpPool, Event::Apply(object)));
}

#[test]
fn a_pool_is_in_the_way_of_others_from_its_first_event_to_its_last() {
    let mut known = AdmissionCache::default();
    apply(&mut known, pool("a", "10.0.0.0/24"));
    assert_eq!(names(&known, "10.0.0.128/25"), ["a"]);
    apply(&mut known, pool("a", "10.0.1.0/24"));
    assert!(names(&known, "10.0.0.128/25").is_empty(), "it has moved");
    known.observe(&Observed::Pool(PoolKind::IpPool, Event::Delete(pool("a", "10.0.1.0/24"))));
    assert!(names(&known, "10.0.0.0/8").is_empty());
}

#[test]
fn a_pool_that_a_new_list_does_not_name_is_gone() {
    let mut known = AdmissionCache::default();
    let mut hear = |event| known.observe(&Observed::Pool(PoolKind::IpPool, event));
    for event in [Event::Init, Event::InitApply(pool("a", "10.0.0.0/24")), Event::InitApply(pool("b", "10.0.1.0/24"))] {
        hear(event);
    }
    for event in [Event::InitDone, Event::Init, Event::InitApply(pool("b", "10.0.1.0/24")), Event::InitDone] {
        hear(event);
    }
    assert_eq!(names(&known, "10.0.0.0/8"), ["b"]);
}

#[test]
fn an_invalid_pool_is_in_the_way_only_while_it_has_given_blocks() {
    let mut known = AdmissionCache::default();
    let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 0});
    apply(&mut known, object(&json!({"metadata": {"name": "a"}, "spec": spec})));
    assert!(names(&known, "10.0.0.0/8").is_empty());
    let status = json!({"allocations": [{"nodeName": "n", "startIP": "10.0.0.1", "endIP": "10.0.0.4"}]});
    apply(&mut known, object(&json!({"metadata": {"name": "a"}, "spec": spec, "status": status})));
    assert_eq!(names(&known, "10.0.0.0/8"), ["a"]);
}

#[test]
fn what_a_node_holds_is_what_its_agent_said_about_this_very_block() {
    let key = PoolKey::new(PoolKind::IpPool, "p");
    let block = ["10.0.0.1", "10.0.0.4"];
    let heard = |report: &Value| {
        let mut known = AdmissionCache::default();
        known.observe(&Observed::IpamNode(Event::Apply(ipam_node("n", block, report))));
        assert_eq!(known.claims(&key).count(), 1);
        known.held(&key, "n")
    };
    let run = json!([{"startIP": "10.0.0.2", "endIP": "10.0.0.3"}]);
    assert_eq!(heard(&report(block, 2, &run)), Held::Addresses(RangeSet::from_iter([(0x0a00_0002, 0x0a00_0003)])));
    assert_eq!(heard(&report(block, 3, &run)), Held::Count(3), "the runs are not all of them");
    assert_eq!(heard(&report(block, 0, &json!([]))).count(), Some(0));
    assert_eq!(heard(&report(["10.0.0.1", "10.0.0.8"], 0, &json!([]))), Held::Unknown, "of another block");
    assert_eq!(heard(&report(block, -1, &json!([]))), Held::Unknown);
    assert_eq!(AdmissionCache::default().held(&key, "n"), Held::Unknown);
}

#[test]
fn an_ipam_node_that_changes_or_goes_takes_what_it_said_along() {
    let key = PoolKey::new(PoolKind::IpPool, "p");
    let block = ["10.0.0.1", "10.0.0.4"];
    let mut known = AdmissionCache::default();
    let full = ipam_node("n", block, &report(block, 4, &json!([])));
    known.observe(&Observed::IpamNode(Event::Apply(full.clone())));
    known.observe(&Observed::IpamNode(Event::Apply(object(&json!({"metadata": {"name": "n"}, "spec": {}})))));
    assert_eq!((known.claims(&key).count(), known.held(&key, "n")), (0, Held::Unknown));
    known.observe(&Observed::IpamNode(Event::Apply(full.clone())));
    known.observe(&Observed::IpamNode(Event::Delete(full)));
    assert_eq!((known.claims(&key).count(), known.held(&key, "n")), (0, Held::Unknown));
}

#[test]
fn labels_are_no_copy_of_what_the_controller_is_told() {
    let labels = Labels::from([("rack".to_owned(), "r1".to_owned())]);
    let mut known = AdmissionCache::default();
    known.observe(&Observed::Node(Event::Apply(("n".to_owned(), NodeMeta::from(labels.clone())))));
    assert!(std::ptr::eq(&raw const **known.nodes.labels("n").unwrap(), &raw const *labels));
}

#[test]
fn nodes_are_told_only_once_all_of_them_are_known() {
    let mut known = AdmissionCache::default();
    known.observe(&Observed::Node(Event::Init));
    known.observe(&Observed::Node(Event::InitApply(("n".to_owned(), NodeMeta::default()))));
    assert!(known.nodes().is_none());
    known.observe(&Observed::Node(Event::InitDone));
    assert_eq!(known.nodes().unwrap().len(), 1);
}
