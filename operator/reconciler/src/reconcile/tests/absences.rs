//! Blocks of Nodes that are gone, and leaders who have not seen for how long.

use super::*;
use crate::node_absence::OBSERVED;
use crate::reconcile::pool_task::Applied;

/// A leader that has just started. By the status `n1` has been gone for much longer than the grace.
fn after_a_long_absence() -> World {
    let (pool, mut ipam_nodes) = left_behind(&["n1", "n2"]);
    let mut status: Value = serde_json::from_str(pool.status.as_ref().unwrap().get()).unwrap();
    let mut release = status["allocations"].as_array_mut().unwrap().remove(0);
    for time in ["since", "nodeGoneSince"] {
        release[time] = json!("2023-01-01T00:00:00Z");
    }
    status["releasing"] = json!([release]);
    let told =
        ipam_nodes[0].spec.as_ref().unwrap().get().replace("Active", "Releasing").replace(r#""neverUsed":true,"#, "");
    ipam_nodes[0].spec = object(&json!({"metadata": {}, "spec": serde_json::from_str::<Value>(&told).unwrap()})).spec;
    let mut world = World::new(&["n2"], &[pool_object("blue", 40, 1, SPEC, &status)], ipam_nodes);
    let calls = world.settle();
    assert!(nodes_written(&calls).is_empty(), "{calls:#?}");
    world
}

fn lists_nodes_anew(world: &mut World, nodes: &[&str]) {
    world.tell(Observed::Node(Event::Init));
    for node in nodes {
        world.tell(Observed::Node(Event::InitApply(((*node).to_owned(), NodeMeta::default()))));
    }
    world.tell(Observed::Node(Event::InitDone));
}

const A_MINUTE: Duration = Duration::from_mins(1);
const ALMOST: Duration = OBSERVED.saturating_sub(A_MINUTE);

#[test]
fn a_new_leader_lets_go_of_no_block_before_it_has_seen_the_node_missing_for_a_while() {
    let mut world = after_a_long_absence();
    assert!(world.calls_after(ALMOST).is_empty());
    let wake = world.next_wake().expect("it looks again by itself");
    assert!(wake <= world.now + A_MINUTE);
    let Command::WriteIpamNode(write) = only(world.calls_after(A_MINUTE)) else { panic!("the grant is revoked first") };
    assert_eq!((write.node.as_str(), write.action.blocks()[0].state), ("n1", BlockState::Revoked));
}

#[test]
fn a_list_of_nodes_that_begins_anew_does_not_tell_who_was_there_before_it() {
    let mut world = after_a_long_absence();
    world.calls_after(ALMOST);
    lists_nodes_anew(&mut world, &["n2"]);
    assert!(world.calls_after(ALMOST).is_empty());
    assert_eq!(nodes_written(&world.calls_after(A_MINUTE)).len(), 1);
}

#[test]
fn a_node_that_is_back_for_a_moment_is_waited_for_anew() {
    let mut world = after_a_long_absence();
    world.calls_after(ALMOST);
    world.node_joins("n1");
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    let status = only(world.calls_after(A_MINUTE));
    let since = status_of(&status).releasing[0].node_gone_since;
    let now = Timestamp::from_second(world.clocks().wall.as_second()).unwrap();
    assert_eq!(since, Some(now), "the whole grace begins anew");
    world.succeed(status);
    assert!(world.calls_after(OBSERVED).is_empty());
}

#[test]
fn a_report_ends_with_the_grace_of_the_block_whoever_leads() {
    // The Node was gone for 23 hours and 56 minutes when this leader came to lead.
    let since = Timestamp::from_second(1_700_000_000 - 24 * 3600 + 240).unwrap().to_string();
    let (_, ipam_nodes) = left_behind(&["n1"]);
    let status = json!({"releasing": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
        "since": since, "nodeGoneSince": since}]});
    let mut spec: Value = serde_json::from_str(ipam_nodes[0].spec.as_ref().unwrap().get()).unwrap();
    spec["pools"][0]["state"] = json!("Releasing");
    let block = spec["pools"][0].clone();
    let report = json!({"name": "blue", "poolType": "IPPool", "grant": block["grant"], "startIP": block["startIP"],
        "endIP": block["endIP"], "used": 1, "capacity": 3, "held": [{"startIP": "192.168.0.2", "endIP": "192.168.0.2"}]});
    let n1 = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50",
        "finalizers": ipam_nodes[0].metadata.finalizers}, "spec": spec, "status": {"observedGeneration": 1, "pools": [report]}}));
    let mut pool = pool_object("blue", 40, 1, SPEC, &status);
    pool.metadata.finalizers = Some(vec![crate::pool::FINALIZER.to_owned()]);
    let mut world = World::new(&["n2"], &[pool], vec![n1]);
    world.has_agents = false;
    world.settle();
    assert_eq!(world.status().releasing.len(), 1);
    world.now += Duration::from_mins(6);
    world.settle();
    assert!(world.status().releasing.is_empty(), "{:?}", world.status());
    assert_eq!(world.reconciler.ipam_nodes.all().keys().collect::<Vec<_>>(), ["n2"], "its report counts no more");
    let reasons = world.status().summary.conditions.into_iter().map(|it| it.reason).collect::<Vec<_>>();
    assert!(!reasons.contains(&"InUseWithoutBlock".to_owned()), "{reasons:?}");
}

#[test]
fn the_grace_ends_though_the_plan_that_released_is_dropped() {
    let mut world = World::new(&["n2"], &[blue()], vec![]);
    world.settle();
    let key = PoolKey::new(PoolKind::IpPool, "blue");
    let before = world.reconciler.pools[&key].applied.clone().unwrap();
    let released = Applied { expired: ["n1".to_owned()].into(), ended_pauses: before.ended_pauses + 1, ..before };
    world.reconciler.apply(&key, released, world.now);
    assert!(world.reconciler.expired.contains("n1"), "its status is written already");
}

#[test]
fn what_a_vanished_pool_gave_is_not_let_go_of_across_a_return_that_nobody_looked_at() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    let grace = Settings::default().released_block_grace.unwrap();
    assert!(world.calls_after(grace.saturating_sub(A_MINUTE)).is_empty());
    world.node_joins("n1");
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    assert!(world.calls().is_empty());
    assert!(world.calls_after(grace.saturating_sub(A_MINUTE)).is_empty());
    assert_eq!(nodes_written(&world.calls_after(A_MINUTE)).len(), 1);
}

#[test]
fn an_entry_of_a_vanished_pool_outlasts_an_unobserved_grace() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    let grace = Settings::default().released_block_grace.unwrap();
    assert!(world.calls_after(grace.saturating_sub(A_MINUTE)).is_empty());
    // The Node may have been back while the leader saw none.
    world.reconciler.nodes_out_of_sight(world.now);
    assert!(
        world.calls_after(ALMOST).is_empty(),
        "the grace is over, and the leader has seen the Node missing for 4 minutes"
    );
    assert_eq!(nodes_written(&world.calls_after(A_MINUTE)).len(), 1);
}
