//! Nodes that go: their IPAMNodes stay as long as a creation from before may be on its way, and nothing waits for that.

use super::races::{status_json, statuses};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// `n1` and `n2` are served; then `n1` is gone, and its agent says that it holds nothing.
fn left_empty() -> (World, Vec<Command>) {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 0);
    let calls = world.settle();
    (world, calls)
}

/// All that is done after so much time.
fn settled_after(world: &mut World, time: Duration) -> Vec<Command> {
    world.now += time;
    world.settle()
}

fn is_deletion_of(calls: &[Command], node: &str) -> bool {
    matches!(nodes_written(calls)[..], [(of, NodeAction::Delete(..))] if of == node)
}

#[test]
fn the_ipam_node_of_a_node_that_is_gone_stays_empty_for_as_long_as_a_creation_may_be_on_its_way() {
    let (mut world, calls) = left_empty();
    assert!(matches!(nodes_written(&calls)[..], [("n1", NodeAction::Update(_, blocks))] if blocks.is_empty()));
    assert!(statuses(&calls).last().unwrap().releasing.is_empty(), "the block waits for nothing more");
    assert!(world.calls_after(CREATIONS_ARRIVE_WITHIN.saturating_sub(5 * SECOND)).is_empty());
    let version = world.reconciler.ipam_nodes.get("n1").unwrap().resource_version.clone();
    assert!(world.reconciler.next_wake().is_some_and(|wake| wake <= world.now + 5 * SECOND));
    let calls = world.calls_after(5 * SECOND);
    let [("n1", NodeAction::Delete(uid, at))] = &nodes_written(&calls)[..] else { panic!("{calls:#?}") };
    assert_eq!((uid.as_str(), at), ("uid-n1", &version));
    for call in calls {
        world.succeed(call);
    }
    assert!(nodes_written(&settled_after(&mut world, CREATIONS_ARRIVE_WITHIN)).is_empty());
}

#[test]
fn a_node_that_comes_back_has_the_ipam_node_that_is_there_and_keeps_it() {
    let (mut world, _) = left_empty();
    world.now += CREATIONS_ARRIVE_WITHIN.saturating_sub(60 * SECOND);
    world.node_joins("n1");
    let calls = world.settle();
    assert!(matches!(nodes_written(&calls)[..], [("n1", NodeAction::Update(_, blocks))] if blocks.len() == 1));
    report(&mut world, "n1", 2);
    assert!(nodes_written(&settled_after(&mut world, CREATIONS_ARRIVE_WITHIN)).is_empty());
    // It goes again: what was asked for while it was there may be on its way, so that the time begins anew.
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 0);
    world.settle();
    assert!(nodes_written(&settled_after(&mut world, CREATIONS_ARRIVE_WITHIN.saturating_sub(60 * SECOND))).is_empty());
    assert!(is_deletion_of(&settled_after(&mut world, 60 * SECOND), "n1"));
}

#[test]
fn one_who_comes_to_lead_counts_the_time_anew() {
    let kept = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 3, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 3}}));
    let mut world = World::empty();
    world.list(&["n2"], &[blue()], vec![kept.clone()]);
    // A follower has known for long that the Node is gone; the leader may have asked for the object since.
    assert!(world.calls_after(2 * CREATIONS_ARRIVE_WITHIN).is_empty());
    world.reconciler.lead(Given::Nothing, world.now);
    world.list(&["n2"], &[blue()], vec![kept]);
    assert!(nodes_written(&world.settle()).iter().all(|(node, _)| *node == "n2"));
    assert!(world.calls_after(CREATIONS_ARRIVE_WITHIN.saturating_sub(10 * SECOND)).is_empty());
    assert!(is_deletion_of(&world.calls_after(10 * SECOND), "n1"));
}

#[test]
fn a_pool_that_is_deleted_does_not_wait_for_the_ipam_nodes_of_nodes_that_are_gone() {
    let (mut world, calls) = left_empty();
    let status = serde_json::to_value(statuses(&calls).last().unwrap().body(PoolKind::IpPool)).unwrap();
    let mut leaving = pool_object("blue", 900, 2, SPEC, &status);
    leaving.metadata.deletion_timestamp = races::leaving_since();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(leaving)));
    world.settle();
    report(&mut world, "n2", 0);
    let calls = world.settle();
    let unsealed =
        |call: &Command| matches!(call, Command::PatchPool { patch: PoolPatch::Finalizers(all), .. } if all.is_empty());
    assert!(calls.iter().any(unsealed), "{calls:#?}");
    assert!(world.reconciler.ipam_nodes.get("n1").is_some());
}

/// An admin lets go of `n1`'s block, of which its agent held three addresses when the Node went.
fn forced_while_held() -> World {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 3);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    let mut forced = pool_object("blue", 900, 1, SPEC, &status_json(&world.status()));
    forced.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(forced)));
    world
}

#[test]
fn what_an_agent_said_that_was_let_go_of_goes_at_once_and_a_placeholder_takes_the_name() {
    let mut world = forced_while_held();
    let calls = world.settle();
    assert!(
        matches!(nodes_written(&calls)[..], [("n1", NodeAction::Delete(..)), ("n1", NodeAction::Placeholder)]),
        "{calls:#?}"
    );
    assert!(world.status().releasing.is_empty(), "{:?}", world.status());
    let mut echo = pool_object("blue", 950, 1, SPEC, &status_json(&world.status()));
    echo.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(echo)));
    let lifted =
        |call: &Command| matches!(call, Command::PatchPool { patch: PoolPatch::Annotation(FORCE_RELEASE, None), .. });
    assert!(world.settle().iter().any(lifted), "its work is done");
    // Another node gets all of the block, with nothing barred.
    world.node_joins("n3");
    let calls = world.settle();
    let [("n3", NodeAction::Create(blocks))] = &nodes_written(&calls)[..] else { panic!("{calls:#?}") };
    assert_eq!((blocks[0].start_ip.as_str(), blocks[0].held_elsewhere.len()), ("192.168.0.1", 0));
    assert!(world.calls_after(CREATIONS_ARRIVE_WITHIN.saturating_sub(60 * SECOND)).is_empty());
    assert!(is_deletion_of(&settled_after(&mut world, 60 * SECOND), "n1"));
    assert!(nodes_written(&settled_after(&mut world, 2 * CREATIONS_ARRIVE_WITHIN)).is_empty(), "once is enough");
}

#[test]
fn a_placeholder_goes_in_time_also_by_another_leader_who_lets_go_of_nothing_by_time() {
    let kept = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50",
        "annotations": {"nv-ipam.nvidia.com/created-as": "placeholder"}}, "spec": {"pools": []}}));
    let mut world = World::empty();
    world.reconciler.settings.released_block_grace = None;
    world.reconciler.lead(Given::Nothing, world.now);
    world.list(&["n2"], &[blue()], vec![kept]);
    world.settle();
    assert!(world.calls_after(CREATIONS_ARRIVE_WITHIN.saturating_sub(10 * SECOND)).is_empty());
    assert!(is_deletion_of(&world.calls_after(10 * SECOND), "n1"));
}

#[test]
fn a_placeholder_whose_name_is_taken_is_asked_for_no_more() {
    let mut world = forced_while_held();
    let mut calls = world.calls();
    while let Some(call) = calls.pop() {
        match call {
            Command::WriteIpamNode(NodeWrite { action: NodeAction::Placeholder, .. }) => {
                world.fail(call, CallError::Conflict("it is there".into()));
            }
            call => world.succeed(call),
        }
        calls.extend(world.calls());
    }
    assert!(world.reconciler.replaced.is_empty());
}

#[test]
fn a_placeholder_in_which_an_agent_that_lives_on_reports_is_not_replaced_again_and_again() {
    let mut world = forced_while_held();
    world.settle();
    let reported = json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "960",
            "annotations": {"nv-ipam.nvidia.com/created-as": "placeholder"}}, "spec": {"pools": []},
        "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool",
            "startIP": "192.168.0.1", "endIP": "192.168.0.4", "used": 3, "capacity": 3}]}});
    world.tell(Observed::IpamNode(Event::Apply(object(&reported))));
    assert!(nodes_written(&world.settle()).is_empty());
    // Once it has told its Node something it is an object like any other.
    let told = |generation: i64| {
        let mut told = reported.clone();
        told["metadata"]["generation"] = json!(generation);
        crate::ipam_node::IpamNodeRecord::read(&object(&told)).placeholder
    };
    assert_eq!((told(1), told(2)), (true, false));
}

#[test]
fn what_a_node_that_is_gone_told_last_counts_no_more_after_the_grace() {
    let all = json!([{"startIP": "192.168.0.1", "endIP": "192.168.0.254"}]);
    let told = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool",
            "startIP": "192.168.0.1", "endIP": "192.168.0.254", "used": 254, "capacity": 254, "held": all}]}}));
    let one_block = r#"{"subnet":"192.168.0.0/24","perNodeBlockSize":254}"#;
    let blue = pool_object("blue", 10, 1, one_block, &json!({}));
    let mut world = World::new(&["n1", "n2"], &[blue], vec![told]);
    world.settle();
    world.tell(Observed::IpamNode(Event::Delete(object(&json!({"metadata": {"name": "n1", "uid": "uid-n1",
        "generation": 1, "resourceVersion": "51"}})))));
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    let served = |calls: &[Command]| statuses(calls).iter().flat_map(|it| it.allocations.clone()).count();
    let grace = Settings::default().released_block_grace.unwrap();
    assert_eq!(served(&settled_after(&mut world, grace.saturating_sub(60 * SECOND))), 0, "an agent may live on there");
    settled_after(&mut world, 120 * SECOND);
    assert_eq!(served(&settled_after(&mut world, SECOND)), 1, "n2 has a block");
}
