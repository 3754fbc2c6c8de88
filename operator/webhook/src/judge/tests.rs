//! Verdicts by example, from objects as the API server sends them.

use ipam_core::PoolKind;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use ipam_reconciler::cluster_cache::{Labels, NodeMeta};
use ipam_reconciler::reconcile::Observed;

/// A review of IPPool `p` in namespace `pools`.
fn review(old: Option<&Value>, new: Option<&Value>) -> Review {
    let draft = |object: Option<&Value>| {
        object.map(|object| ReviewedPool::read(PoolKind::IpPool, &object.to_string()).unwrap())
    };
    let operation = match (old, new) {
        (None, _) => Operation::Create,
        (_, None) => Operation::Delete,
        _ => Operation::Update,
    };
    Review {
        uid: "u".to_owned(),
        kind: PoolKind::IpPool,
        operation,
        namespace: "pools".to_owned(),
        status_only: false,
        new: draft(new),
        old: draft(old),
    }
}

fn pool(spec: &Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn small() -> Value {
    json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4})
}

/// `small`, of which node `n` has the first block.
fn given() -> Value {
    let mut pool = pool(&small());
    pool["status"] = json!({"allocations": [{"nodeName": "n", "startIP": "10.0.0.1", "endIP": "10.0.0.4"}]});
    pool
}

fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, key) = path.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

fn raw<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// What is known when another pool has this subnet.
fn beside(subnet: &str) -> AdmissionCache {
    let mut known = AdmissionCache::new("pools");
    stand(&mut known, "other", subnet);
    known
}

fn stand(known: &mut AdmissionCache, name: &str, subnet: &str) {
    let pool = json!({"metadata": {"name": name}, "spec": {"subnet": subnet, "perNodeBlockSize": 4}});
    known.observe(&Observed::Pool(PoolKind::IpPool, Event::Apply(raw(&pool))));
}

/// All nodes there are.
fn nodes(known: &mut AdmissionCache, names: &[&str]) {
    let listed = names.iter().map(|name| Event::InitApply(((*name).to_owned(), NodeMeta::default())));
    for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
        known.observe(&Observed::Node(event));
    }
}

/// What is known when the agent of `n` counts so many held addresses.
fn holding(used: i64) -> AdmissionCache {
    let mut known = AdmissionCache::new("pools");
    let block = json!({"name": "p", "poolType": "IPPool", "state": "Active", "startIP": "10.0.0.1", "endIP": "10.0.0.4",
        "subnet": "10.0.0.0/24"});
    let report = json!({"name": "p", "poolType": "IPPool", "startIP": "10.0.0.1", "endIP": "10.0.0.4", "used": used,
        "capacity": 4});
    let node = json!({"metadata": {"name": "n"}, "spec": {"pools": [block]}, "status": {"pools": [report]}});
    known.observe(&Observed::IpamNode(Event::Apply(raw(&node))));
    known
}

fn reasons(verdict: &Verdict) -> Vec<(String, Reason)> {
    let violations = verdict.refusal.iter().flat_map(|refusal| &refusal.violations);
    violations.map(|violation| (violation.field.clone(), violation.reason)).collect()
}

fn refused(verdict: &Verdict) -> (&RefusalStatus, &str) {
    let refusal = verdict.refusal.as_ref().expect("a refusal");
    (&refusal.status, &refusal.message)
}

#[test]
fn every_mistake_of_a_new_pool_is_named_at_once_and_an_overlap_among_them() {
    let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 0, "gateway": "10.1.0.1"});
    let verdict = judge(&review(None, Some(&pool(&spec))), &beside("10.0.0.0/16"));
    let found: Vec<_> = reasons(&verdict);
    let fields: Vec<_> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["spec.perNodeBlockSize", "spec.gateway", "spec.subnet"]);
    assert_eq!(found[2].1, Reason::Overlap);
    assert_eq!(*refused(&verdict).0, RefusalStatus::Invalid);
}

#[test]
fn an_overlap_alone_is_forbidden_and_names_the_other_pool() {
    let verdict = judge(&review(None, Some(&pool(&small()))), &beside("10.0.0.0/16"));
    assert_eq!(reasons(&verdict), [("spec.subnet".to_owned(), Reason::Overlap)]);
    let (status, message) = refused(&verdict);
    assert_eq!(*status, RefusalStatus::Forbidden);
    assert!(message.contains("IPPool \"other\"") && message.contains("allow-overlap"), "{message}");
    assert!(judge(&review(None, Some(&pool(&small()))), &beside("10.1.0.0/16")).refusal.is_none());
}

#[test]
fn whoever_does_not_touch_the_spec_is_never_refused_however_bad_it_is() {
    let bad = with(pool(&json!({"subnet": "nonsense", "perNodeBlockSize": 0})), "/metadata/finalizers", json!(["x"]));
    let going = with(bad.clone(), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    for new in [
        with(bad.clone(), "/metadata/labels", json!({"a": "b"})),
        with(bad.clone(), "/status", json!({"observedGeneration": 1})),
        with(going.clone(), "/metadata/finalizers", json!([])),
    ] {
        let verdict = judge(&review(Some(&bad), Some(&new)), &beside("10.0.0.0/8"));
        assert_eq!(verdict, Verdict::default(), "{new}");
    }
    let unreadable = pool(&json!({"subnet": 7}));
    assert_eq!(judge(&review(Some(&unreadable), Some(&unreadable)), &AdmissionCache::default()), Verdict::default());
    let mut status = review(Some(&bad), Some(&pool(&json!({"subnet": "other"}))));
    status.status_only = true;
    assert_eq!(judge(&status, &AdmissionCache::default()), Verdict::default());
}

#[test]
fn an_edit_of_a_bad_spec_must_make_it_good() {
    let bad = pool(&json!({"subnet": "nonsense", "perNodeBlockSize": 4}));
    assert!(judge(&review(Some(&bad), Some(&pool(&small()))), &AdmissionCache::default()).refusal.is_none());
    let worse = pool(&json!({"subnet": "nonsense", "perNodeBlockSize": 0}));
    assert_eq!(reasons(&judge(&review(Some(&bad), Some(&worse)), &AdmissionCache::default())).len(), 2);
}

#[test]
fn an_edit_that_leaves_the_network_alone_is_not_held_to_an_overlap_that_is_there() {
    let mut known = beside("10.0.0.0/16");
    stand(&mut known, "far", "10.9.0.0/16");
    let grown = with(pool(&small()), "/spec/gateway", json!("10.0.0.1"));
    assert!(judge(&review(Some(&pool(&small())), Some(&grown)), &known).refusal.is_none());
    let moved = with(pool(&small()), "/spec/subnet", json!("10.9.1.0/24"));
    assert_eq!(reasons(&judge(&review(Some(&pool(&small())), Some(&moved)), &known)).len(), 1);
}

#[test]
fn of_several_overlaps_an_edit_is_told_those_that_it_makes() {
    let mut known = beside("10.0.0.0/24");
    stand(&mut known, "next", "10.0.1.0/24");
    let grown = with(pool(&small()), "/spec/subnet", json!("10.0.0.0/23"));
    let verdict = judge(&review(Some(&pool(&small())), Some(&grown)), &known);
    let (_, message) = refused(&verdict);
    assert!(message.contains("\"next\"") && !message.contains("\"other\""), "{message}");
    let shrunk = with(pool(&small()), "/spec/subnet", json!("10.0.0.0/25"));
    assert!(judge(&review(Some(&pool(&small())), Some(&shrunk)), &known).refusal.is_none());
}

#[test]
fn a_spec_with_values_of_wrong_types_is_refused_field_by_field() {
    let spec = json!({"subnet": 7, "perNodeBlockSize": 0, "exclusions": "none", "gateway": "10.0.0.1"});
    let found = reasons(&judge(&review(None, Some(&pool(&spec))), &AdmissionCache::default()));
    let fields: Vec<_> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["spec.perNodeBlockSize", "spec.subnet", "spec.exclusions"]);
    assert_eq!(
        reasons(&judge(&review(None, Some(&json!({"metadata": {"name": "p"}}))), &AdmissionCache::default())).len(),
        1
    );
}

#[test]
fn withdrawing_the_annotation_of_a_pool_that_overlaps_is_a_conflict() {
    let allowing = with(
        pool(&small()),
        "/metadata/annotations",
        json!({"nv-ipam.nvidia.com/allow-overlap": "true", "kubectl.kubernetes.io/last-applied-configuration": "…"}),
    );
    let mut known = AdmissionCache::new("pools");
    let other = with(allowing.clone(), "/metadata/name", json!("other"));
    known.observe(&Observed::Pool(PoolKind::IpPool, Event::Apply(raw(&other))));
    let verdict = judge(&review(Some(&allowing), Some(&pool(&small()))), &known);
    assert_eq!(reasons(&verdict), [("spec.subnet".to_owned(), Reason::Overlap)]);
    let going = with(pool(&small()), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    assert!(judge(&review(Some(&allowing), Some(&going)), &known).refusal.is_none());
    assert!(judge(&review(Some(&allowing), Some(&pool(&small()))), &beside("10.1.0.0/16")).refusal.is_none());
    let before = judge(&review(Some(&allowing), Some(&pool(&small()))), &beside("10.0.0.0/16"));
    assert!(before.refusal.is_none(), "one that does not allow it was in the way all along");
}

#[test]
fn an_annotation_that_says_nothing_is_warned_of_when_it_comes_and_with_each_new_spec_and_not_otherwise() {
    let yes =
        |spec: &Value| with(pool(spec), "/metadata/annotations", json!({"nv-ipam.nvidia.com/allow-overlap": "yes"}));
    let warnings =
        |old: Option<&Value>, new: &Value| judge(&review(old, Some(new)), &AdmissionCache::new("pools")).warnings;
    let of_small = yes(&small());
    for old in [None, Some(pool(&small())), Some(yes(&json!({"subnet": "10.0.0.0/25", "perNodeBlockSize": 4})))] {
        let said = warnings(old.as_ref(), &of_small);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("allow-overlap: \"yes\" allows nothing; write \"true\""), "{said:?}");
    }
    assert_eq!(warnings(Some(&of_small), &of_small), [""; 0]);
}

#[test]
fn a_selector_that_leaves_out_a_node_whose_pods_hold_addresses_is_let_through_with_its_name() {
    let requirement = |rack: &str| json!({"key": "rack", "operator": "In", "values": [rack]});
    let selecting = |rack: &str| {
        let terms = json!([{"matchExpressions": [requirement(rack)]}]);
        with(given(), "/spec/nodeSelector", json!({"nodeSelectorTerms": terms}))
    };
    let mut known = holding(3);
    known.observe(&Observed::Node(Event::Init));
    let labels = Labels::from([("rack".to_owned(), "r1".to_owned())]);
    known.observe(&Observed::Node(Event::InitApply(("n".to_owned(), NodeMeta::from(labels)))));
    known.observe(&Observed::Node(Event::InitDone));
    let verdict = judge(&review(Some(&given()), Some(&selecting("r2"))), &known);
    assert!(verdict.refusal.is_none(), "{verdict:?}");
    let said = verdict.warnings.iter().find(|warning| warning.contains("takes the blocks")).unwrap();
    assert!(said.starts_with("spec.nodeSelector: ") && said.ends_with(": n (3 held)"), "{said}");
    for (old, new) in [(given(), selecting("r1")), (selecting("r2"), selecting("r2"))] {
        let said = judge(&review(Some(&old), Some(&new)), &known).warnings;
        assert!(!said.iter().any(|warning| warning.contains("takes the blocks")), "{said:?}");
    }
}

#[test]
fn an_edit_that_takes_a_block_away_names_node_and_count_and_unknown_counts_as_held() {
    let moved = with(given(), "/spec/subnet", json!("10.9.0.0/24"));
    for (known, part) in [(holding(3), "3 held"), (AdmissionCache::new("pools"), "not reported: counts as held")] {
        let verdict = judge(&review(Some(&given()), Some(&moved)), &known);
        assert_eq!(reasons(&verdict), [("spec.subnet".to_owned(), Reason::InUse)]);
        let (status, message) = refused(&verdict);
        assert_eq!(*status, RefusalStatus::Forbidden);
        assert!(message.contains("\"n\"") && message.contains(part), "{message}");
    }
    assert!(judge(&review(Some(&given()), Some(&moved)), &holding(0)).refusal.is_none());
}

#[test]
fn a_block_that_only_the_ipam_node_tells_of_is_not_taken_away_either() {
    let moved = with(pool(&small()), "/spec/subnet", json!("10.9.0.0/24"));
    let verdict = judge(&review(Some(&pool(&small())), Some(&moved)), &holding(1));
    assert_eq!(reasons(&verdict), [("spec.subnet".to_owned(), Reason::InUse)]);
}

#[test]
fn a_block_that_is_being_taken_back_hinders_an_edit_only_if_its_node_is_selected_again() {
    let entry = json!({"nodeName": "n", "startIP": "10.0.0.1", "endIP": "10.0.0.4", "since": "2026-01-01T00:00:00Z"});
    let leaving = with(pool(&small()), "/status", json!({"releasing": [entry]}));
    let moved = with(leaving.clone(), "/spec/subnet", json!("10.9.0.0/24"));
    let mut known = AdmissionCache::new("pools");
    let asked = |known: &AdmissionCache| reasons(&judge(&review(Some(&leaving), Some(&moved)), known));
    assert_eq!(asked(&known), [("spec.subnet".to_owned(), Reason::InUse)], "nobody knows which nodes there are");
    nodes(&mut known, &["m"]);
    assert!(asked(&known).is_empty(), "the node is gone: the spec has no say in when its block is free");
    nodes(&mut known, &["m", "n"]);
    assert_eq!(asked(&known), [("spec.subnet".to_owned(), Reason::InUse)]);
    let warnings = judge(&review(Some(&leaving), None), &known).warnings;
    assert!(warnings[0].contains("n (not reported)"), "{warnings:?}");
}

#[test]
fn growing_is_free() {
    let grown = with(given(), "/spec/subnet", json!("10.0.0.0/16"));
    assert!(judge(&review(Some(&given()), Some(&grown)), &holding(4)).refusal.is_none());
}

#[test]
fn a_deletion_is_let_through_and_says_who_holds_how_many() {
    let verdict = judge(&review(Some(&given()), None), &holding(3));
    assert!(verdict.refusal.is_none());
    assert!(verdict.warnings[0].contains("n (3 held)"), "{:?}", verdict.warnings);
    let unknown = judge(&review(Some(&given()), None), &AdmissionCache::new("pools"));
    assert!(unknown.warnings[0].contains("n (not reported)"), "{:?}", unknown.warnings);
    assert_eq!(judge(&review(Some(&given()), None), &holding(0)), Verdict::default());
}

#[test]
fn what_works_but_surprises_is_said_of_the_spec_and_of_the_nodes() {
    let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4, "gateway": "10.0.0.1", "defautGateway": true,
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}});
    let warnings = judge(&review(None, Some(&pool(&spec))), &AdmissionCache::default()).warnings;
    assert!(warnings.iter().any(|warning| warning.starts_with("spec.defautGateway")), "{warnings:?}");
    assert!(!warnings.iter().any(|warning| warning.starts_with("spec.nodeSelector")), "nodes are not known yet");
    let mut known = AdmissionCache::default();
    nodes(&mut known, &["n"]);
    let warnings = judge(&review(None, Some(&pool(&spec))), &known).warnings;
    assert!(warnings.iter().any(|warning| warning.starts_with("spec.nodeSelector")), "{warnings:?}");
}

#[test]
fn a_pool_elsewhere_is_judged_by_itself_and_told_that_nothing_serves_it() {
    let elsewhere = |mut review: Review| {
        review.namespace = "default".to_owned();
        judge(&review, &beside("10.0.0.0/16"))
    };
    let verdict = elsewhere(review(None, Some(&pool(&small()))));
    assert!(verdict.refusal.is_none(), "no overlap with pools of another namespace");
    assert!(verdict.warnings.iter().any(|warning| warning.contains("namespace \"pools\" alone")), "{verdict:?}");
    assert!(elsewhere(review(None, Some(&pool(&json!({"subnet": "x", "perNodeBlockSize": 4}))))).refusal.is_some());
}

#[test]
fn a_status_that_names_one_node_for_thousands_of_blocks_takes_no_longer_than_one_of_thousands_of_nodes() {
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string();
    let took = |node: &dyn Fn(u32) -> String| {
        let entry =
            |at: u32| json!({"nodeName": node(at), "startIP": address(4 * at + 1), "endIP": address(4 * at + 4)});
        let mut old = pool(&json!({"subnet": "10.0.0.0/8", "perNodeBlockSize": 4}));
        old["status"] = json!({"allocations": (0..60_000).map(entry).collect::<Vec<_>>()});
        let review = review(Some(&old), Some(&pool(&json!({"subnet": "10.0.0.0/8", "perNodeBlockSize": 8}))));
        let began = std::time::Instant::now();
        assert!(judge(&review, &AdmissionCache::new("pools")).refusal.is_some());
        began.elapsed()
    };
    let (many, one) = (took(&|at| format!("n{at}")), took(&|_| "n".to_owned()));
    assert!(one < many * 10 + std::time::Duration::from_secs(1), "{one:?} where many nodes take {many:?}");
}
