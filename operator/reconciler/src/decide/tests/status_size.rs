//! Pools whose status is as large as etcd can store it.

use super::super::status_size::{MOST_BYTES, fit};
use super::*;

const LARGE_SPEC: &str = r#"{"subnet":"10.0.0.0/14","perNodeBlockSize":4}"#;

/// 13,000 nodes with names as clouds make them.
fn large() -> Scene {
    let names: Vec<String> =
        (0..13_000).map(|number| format!("ip-10-0-{number:05}.eu-central-1.compute.internal")).collect();
    Scene { grace: Some(Duration::from_hours(1)), ..Scene::of(&names.iter().map(String::as_str).collect::<Vec<_>>()) }
}

fn bytes(status: &StatusRecord) -> usize {
    usize::try_from(status.bytes(PoolKind::IpPool)).unwrap()
}

#[test]
fn a_pool_assigns_no_block_for_which_its_status_has_no_room() {
    let scene = large();
    let record = pool(LARGE_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    assert!(bytes(status) < MOST_BYTES && bytes(status) > MOST_BYTES * 8 / 10, "{} bytes", bytes(status));
    let counts = status.summary.nodes.unwrap();
    assert_eq!(counts.served + counts.unserved, 13_000);
    assert_eq!(decision.just_assigned.len(), usize::try_from(counts.served).unwrap());
    assert_eq!(status.summary.blocks.unwrap().free + i64::from(counts.served), status.summary.blocks.unwrap().total);
    assert_eq!(status.summary.addresses.unwrap().capacity, 4 * i64::from(counts.served));
    let exhausted = condition(status, EXHAUSTED);
    assert_eq!((exhausted.status.as_str(), exhausted.reason.as_str()), ("True", "StatusFull"));
    assert!(
        exhausted.message.contains("nodeSelector") && exhausted.message.contains("1400 kB"),
        "{}",
        exhausted.message
    );
    assert_eq!(decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["StatusFull"]);
    assert_eq!(scene.decide(&written(&record, &decision)).status, None, "the same is decided again");
}

#[test]
fn a_pool_with_a_full_status_releases_all_its_blocks() {
    let mut scene = large();
    let record = pool(LARGE_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    let record = written(&record, &decision);
    scene.nodes.clear();
    scene.second = 30;
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    assert!(status.allocations.is_empty() && bytes(status) < MOST_BYTES, "{} bytes", bytes(status));
    assert_eq!((status.releasing[0].since, status.releasing[0].node_gone_since), (None, None));
    let record = written(&record, &decision);
    scene.second = 60;
    assert_eq!(scene.decide(&record).status, None, "the same is decided again");
    // The grace counts from when this leader has seen the Nodes missing.
    assert_eq!(scene.decide(&record).revoked.len(), 0);
    scene.second = 3601;
    assert_eq!(scene.decide(&record).revoked.len(), status.releasing.len());
}

#[test]
fn times_are_recorded_as_soon_as_there_is_room() {
    let mut scene = Scene::of(&["n2"]);
    let releasing =
        json!({"releasing": [{"nodeName": "n1", "startIP": "10.0.0.1", "endIP": "10.0.0.4"}], "observedGeneration": 1});
    let record = pool(LARGE_SPEC, 1, &releasing);
    assert!(record.status.intact, "an entry without times is no mistake");
    scene.second = 7;
    let status = scene.decide(&record).status.unwrap();
    assert_eq!((status.releasing[0].since, status.releasing[0].node_gone_since), (Some(at(7)), Some(at(7))));
}

#[test]
fn nodes_that_had_a_block_keep_one_where_room_is_short() {
    let mut record = pool(LARGE_SPEC, 1, &json!({}));
    let spec = record.spec.clone().unwrap();
    let given = Scene::of(&["a", "b", "c"]).decide(&record).assignments.unwrap();
    let before = Claim::from_ip_range("c", "10.0.1.1", "10.0.1.4", ClaimSource::Status).unwrap();
    for (room, served, unserved) in
        [(200, vec!["a", "c"], vec!["b"]), (100, vec!["c"], vec!["a", "b"]), (0, vec![], vec!["a", "b", "c"])]
    {
        record.metadata_bytes = MOST_BYTES - 16_000 - record.spec_text.len() - room;
        let mut plan = Plan { assignments: given.clone(), blocks_free: 7, capacity: 12, ..Plan::default() };
        assert!(fit(&record, &spec, &mut plan, std::slice::from_ref(&before), &|_| true));
        assert_eq!(plan.assignments.iter().map(|given| given.node.as_str()).collect::<Vec<_>>(), served, "{room}");
        assert_eq!(plan.unserved, unserved, "{room}");
        let dropped = u128::try_from(unserved.len()).unwrap();
        assert_eq!((plan.blocks_free, plan.capacity), (7 + dropped, 12 - 4 * dropped), "{room}");
    }
}
