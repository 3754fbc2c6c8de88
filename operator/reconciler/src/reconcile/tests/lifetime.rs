//! IPAMNodes from their creation to their deletion.

use super::*;
use crate::ipam_node::FINALIZER as NODE_FINALIZER;

const SECOND: Duration = Duration::from_secs(1);

/// The Node is deleted.
fn leaves(world: &mut World, node: &str) {
    world.tell(Observed::Node(Event::Delete((node.into(), NodeMeta::default()))));
}

/// All that is done after so much time.
fn settled_after(world: &mut World, time: Duration) -> Vec<Command> {
    world.now += time;
    world.settle()
}

fn is_deletion_of(calls: &[Command], node: &str) -> bool {
    matches!(nodes_written(calls)[..], [(of, NodeAction::Delete(..))] if of == node)
}

/// What each write of an IPAMNode leaves: how many blocks, and whether our finalizer is on it.
fn left(calls: &[Command]) -> Vec<(&str, usize, bool)> {
    let writes = nodes_written(calls).into_iter().filter_map(|(node, action)| match action {
        NodeAction::Update { blocks, finalizers, .. } => {
            Some((node, blocks.len(), finalizers.iter().any(|finalizer| finalizer == NODE_FINALIZER)))
        }
        NodeAction::Create { .. } | NodeAction::Delete(..) => None,
    });
    writes.collect()
}

#[test]
fn a_node_gets_an_empty_ipam_node_before_any_status_is_written() {
    let mut world = World::new(&[], &[blue()], vec![]);
    world.settle();
    world.node_joins("n1");
    let calls = world.calls_after(Duration::ZERO);
    assert!(matches!(nodes_written(&calls)[..], [("n1", NodeAction::Create { .. })]), "{calls:#?}");
    assert!(statuses(&calls).is_empty(), "{calls:#?}");
    for call in calls {
        world.succeed(call);
    }
    assert_eq!(left(&world.settle()), [("n1", 1, true)]);
}

#[test]
fn a_node_has_an_ipam_node_before_there_is_a_pool() {
    let mut world = World::new(&[], &[], vec![]);
    world.node_joins("n1");
    assert!(matches!(nodes_written(&world.settle())[..], [("n1", NodeAction::Create { .. })]));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(blue())));
    assert_eq!(left(&world.settle()), [("n1", 1, true)]);
}

#[test]
fn while_no_ipam_node_can_be_created_one_is_tried_for_all() {
    let mut world = World::new(&[], &[], vec![]);
    for node in ["n1", "n2", "n3"] {
        world.node_joins(node);
    }
    let mut tries = 0;
    for _ in 0..3 {
        // Creations that are under way together may all be refused.
        let calls = world.calls_after(Duration::from_secs(40));
        tries += calls.len();
        for call in calls {
            world.fail(call, CallError::CreateBlocked(CreateBlocked::NamespaceEnds));
        }
        assert!(world.calls_after(Duration::from_millis(400)).is_empty(), "all wait");
    }
    assert_eq!(tries, 9);
    world.node_joins("n4");
    assert!(world.calls_after(Duration::from_millis(400)).is_empty(), "a Node that joins waits, too");
    let mut calls = world.calls_after(Duration::from_secs(40)).into_iter();
    world.succeed(calls.next().unwrap());
    calls.for_each(|call| world.fail(call, CallError::CreateBlocked(CreateBlocked::NamespaceEnds)));
    settled_after(&mut world, Duration::from_secs(40));
    assert_eq!(world.reconciler.ipam_nodes.all().len(), 4);
}

#[test]
fn the_first_block_and_the_finalizer_come_in_one_patch_and_go_in_one() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    assert_eq!(left(&world.settle()), [("n1", 1, true)]);
    leaves(&mut world, "n1");
    assert_eq!(left(&world.settle()), [("n1", 1, true)], "Releasing");
    report(&mut world, "n1", 0);
    let calls = world.settle();
    assert_eq!(left(&calls), [("n1", 0, false)]);
    assert!(statuses(&calls)[0].releasing.is_empty());
    assert!(matches!(nodes_written(&calls)[1..], [("n1", NodeAction::Delete(..))]), "{calls:#?}");
    assert!(world.settle().is_empty() && world.reconciler.is_idle());
}

/// The agent of the node has an empty block, and its grant is idle.
fn rests(world: &mut World, node: &str) {
    let record = world.reconciler.ipam_nodes.get(node).unwrap();
    world.version = world.version.max(record.resource_version.parse().unwrap_or(0)) + 1;
    let block = &record.blocks[0];
    let report = json!({"name": block.name, "poolType": "IPPool", "grant": block.grant, "idle": true, "startIP": block.start_ip,
        "endIP": block.end_ip, "used": 0, "capacity": 3});
    let event = json!({
        "metadata": {"name": node, "uid": record.uid, "generation": record.generation,
            "resourceVersion": world.version.to_string(), "finalizers": record.finalizers},
        "spec": {"pools": record.blocks}, "status": {"observedGeneration": record.generation, "pools": [report]},
    });
    world.tell(Observed::IpamNode(Event::Apply(object(&event))));
}

#[test]
fn a_node_that_is_gone_returns_an_idle_block_at_once() {
    for is_idle in [true, false] {
        let mut world = World::new(&["n1"], &[blue()], vec![]);
        world.settle();
        if is_idle {
            rests(&mut world, "n1");
        }
        let version = world.version.to_string();
        leaves(&mut world, "n1");
        let calls = settled_after(&mut world, Duration::from_secs(1));
        let revokes = nodes_written(&calls).into_iter().any(|(node, action)| {
            let NodeAction::Update { version: of, blocks, .. } = action else { return false };
            node == "n1" && *of == version && blocks.iter().all(|block| block.state == BlockState::Revoked)
        });
        assert_eq!((revokes, world.status().releasing.is_empty()), (is_idle, is_idle), "{calls:#?}");
    }
}

#[test]
fn an_ipam_node_stays_until_the_status_says_that_its_block_is_free() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    leaves(&mut world, "n1");
    world.settle();
    report(&mut world, "n1", 0);
    let status = only(world.calls());
    world.fail(status, CallError::Failed("connection refused".into()));
    let fence = only(world.calls_after(SECOND));
    assert!(is_fence(&fence), "the entry stays: {fence:#?}");
    world.succeed(fence);
    let calls = settled_after(&mut world, SECOND);
    assert_eq!(left(&calls), [("n1", 0, false)]);
    assert!(matches!(nodes_written(&calls)[1..], [("n1", NodeAction::Delete(..))]), "{calls:#?}");
}

#[test]
fn an_empty_ipam_node_of_a_former_creation_is_deleted_when_there_is_no_node() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::IpamNode(Event::Apply(empty("n2"))));
    assert!(is_deletion_of(&world.settle(), "n2"));
}

#[test]
fn a_node_that_comes_back_gets_its_block_in_the_ipam_node_that_is_there() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    leaves(&mut world, "n1");
    world.settle();
    world.node_joins("n1");
    let calls = world.settle();
    assert_eq!(left(&calls), [("n1", 1, true)]);
    assert_eq!(nodes_written(&calls).len(), 1, "{calls:#?}");
}

#[test]
fn a_terminating_ipam_node_is_served_unchanged_until_its_block_is_released() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    let known = world.reconciler.ipam_nodes.get("n1").unwrap();
    let terminating = |version: &str, blocks: &[ipam_crds::NodeBlock]| {
        object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 2, "resourceVersion": version,
            "finalizers": [NODE_FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"pools": blocks}}))
    };
    let event = terminating("900", &known.blocks);
    world.version = 900;
    world.tell(Observed::IpamNode(Event::Apply(event)));
    assert!(nodes_written(&world.settle()).is_empty());
    leaves(&mut world, "n1");
    assert_eq!(left(&world.settle()), [("n1", 1, true)], "Releasing, and still there");
    world.reconciler.ipam_nodes.get_mut("n1").unwrap().deleting = true;
    report(&mut world, "n1", 0);
    world.reconciler.ipam_nodes.get_mut("n1").unwrap().deleting = true;
    let calls = world.settle();
    assert_eq!(left(&calls), [("n1", 0, false)]);
    assert_eq!(nodes_written(&calls).len(), 1, "the API server deletes it with the last finalizer: {calls:#?}");
}

#[test]
fn finalizers_of_others_stay_and_ours_is_not_added_to_a_terminating_object() {
    let read = |finalizers: &[&str], deleting: bool| crate::ipam_node::IpamNodeRecord {
        finalizers: finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect(),
        deleting,
        ..crate::ipam_node::IpamNodeRecord::default()
    };
    assert_eq!(read(&["a/b"], false).finalizers_for(true), ["a/b", NODE_FINALIZER]);
    assert_eq!(
        read(&[NODE_FINALIZER, "a/b"], true).finalizers_for(true),
        [NODE_FINALIZER, "a/b"],
        "no write for an order"
    );
    assert_eq!(read(&["a/b"], true).finalizers_for(true), ["a/b"]);
    assert_eq!(read(&[NODE_FINALIZER, "a/b"], true).finalizers_for(false), ["a/b"]);
}

#[test]
fn without_finalizers_pools_and_ipam_nodes_get_none_and_lose_earlier_ones() {
    let mut world = World::without_finalizers();
    // The pools have a finalizer of an operator with finalizers.
    world.list(&["n1"], &[blue(), pool_object("red", 11, 1, "{}", &Value::Null)], vec![empty("n1")]);
    let calls = world.settle();
    let unsealed = calls.iter().filter_map(|call| match call {
        Command::PatchPool { pool, patch: PoolPatch::Finalizers(all), .. } => Some((pool.key.name.as_str(), all.len())),
        _ => None,
    });
    assert_eq!(unsealed.collect::<BTreeMap<_, _>>(), BTreeMap::from([("blue", 0), ("red", 0)]), "{calls:#?}");
    assert_eq!(left(&calls), [("n1", 1, false)]);
    assert!(world.settle().is_empty(), "it is at rest");
}

/// An admin releases `n1`'s block by force, of which its agent reported three addresses when the Node left.
fn forced_while_in_use() -> World {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 3);
    world.settle();
    leaves(&mut world, "n1");
    world.settle();
    let mut forced = pool_object("blue", 900, 1, SPEC, &status_json(&world.status()));
    forced.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(forced)));
    world
}

#[test]
fn a_report_that_was_released_by_force_goes_with_its_ipam_node() {
    let mut world = forced_while_in_use();
    let calls = world.settle();
    assert_eq!(left(&calls), [("n1", 1, true), ("n1", 0, false)], "Revoked, and then removed");
    assert!(matches!(nodes_written(&calls)[2..], [("n1", NodeAction::Delete(..))]), "{calls:#?}");
    assert!(world.status().releasing.is_empty(), "{:?}", world.status());
    let mut echo = pool_object("blue", 950, 1, SPEC, &status_json(&world.status()));
    echo.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(echo)));
    let lifted =
        |call: &Command| matches!(call, Command::PatchPool { patch: PoolPatch::Annotation(FORCE_RELEASE, None), .. });
    assert!(world.settle().iter().any(lifted), "its work is done");
    // Another node gets all of the block, with nothing unavailable.
    world.node_joins("n3");
    world.settle();
    let block = &world.reconciler.ipam_nodes.get("n3").unwrap().blocks[0];
    assert_eq!((block.start_ip.as_str(), block.held_elsewhere.len()), ("192.168.0.1", 0));
}

#[test]
fn a_name_set_before_its_node_leaves_releases_the_block() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 3);
    world.settle();
    super::recovery::force(&mut world, "n1");
    assert_eq!(world.status().allocations.len(), 2);
    leaves(&mut world, "n1");
    let calls = world.settle();
    assert_eq!(left(&calls), [("n1", 1, true), ("n1", 0, false)], "Revoked, and then removed");
    assert!(matches!(nodes_written(&calls)[2..], [("n1", NodeAction::Delete(..))]), "{calls:#?}");
    assert!(world.status().releasing.is_empty() && world.warnings().contains(&"ForcedRelease"));
}

#[test]
fn a_kept_name_keeps_the_report_of_a_served_node() {
    // The spec is invalid, so the pool has no plan. A client removed the entry of n1.
    let block = json!({"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"});
    let mut named = pool_object("blue", 10, 2, "{}", &json!({"allocations": [block]}));
    named.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    let held = [("192.168.0.2", "192.168.0.2")];
    let mut world = World::new(&["n1"], &[named.clone()], vec![super::outside::told("n1", 50, None, &held)]);
    assert!(left(&world.settle()).is_empty());
    assert!(world.reconciler.ipam_nodes.get("n1").unwrap().has_finalizer(), "the report of use keeps it");
    // The status does not have the block any more, so the name acts on the addresses.
    named.status = pool_object("blue", 10, 2, "{}", &json!({})).status;
    named.metadata.resource_version = Some("900".to_owned());
    world = World::new(&["n1"], &[named], vec![super::outside::told("n1", 50, None, &held)]);
    assert_eq!(left(&world.settle()), [("n1", 0, false)]);
}

#[test]
fn a_report_of_addresses_keeps_the_finalizer_until_the_grace_is_over() {
    let all = json!([{"startIP": "192.168.0.1", "endIP": "192.168.0.254"}]);
    let reported =
        object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool",
            "startIP": "192.168.0.1", "endIP": "192.168.0.254", "used": 254, "capacity": 254, "held": all}]}}));
    let blue = pool_object("blue", 10, 1, ONE_BLOCK_BUT_NOT_FOR_N1, &json!({}));
    let mut world = World::new(&["n1", "n2"], &[blue], vec![reported]);
    assert_eq!(left(&world.settle()), [("n1", 0, true)]);
    leaves(&mut world, "n1");
    world.settle();
    let served = |world: &World| world.status().allocations.len();
    let grace = Settings::default().released_block_grace.unwrap();
    assert!(nodes_written(&settled_after(&mut world, grace.saturating_sub(60 * SECOND))).is_empty());
    assert_eq!(served(&world), 0, "an agent may still run there");
    let calls = settled_after(&mut world, 120 * SECOND);
    assert_eq!(left(&calls)[0], ("n1", 0, false), "{calls:#?}");
    settled_after(&mut world, SECOND);
    assert_eq!(served(&world), 1, "n2 has a block");
}

#[test]
fn a_deleted_pool_waits_for_no_ipam_node_without_its_block() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n2", 0);
    let mut deleted = pool_object("blue", 900, 2, SPEC, &status_json(&world.status()));
    deleted.metadata.deletion_timestamp = leaving_since();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(deleted)));
    world.settle();
    for node in ["n1", "n2"] {
        report(&mut world, node, 0);
    }
    let calls = world.settle();
    let unsealed =
        |call: &Command| matches!(call, Command::PatchPool { patch: PoolPatch::Finalizers(all), .. } if all.is_empty());
    assert!(calls.iter().any(unsealed), "{calls:#?}");
    assert_eq!(world.reconciler.ipam_nodes.all().len(), 2, "their Nodes are there");
}

#[test]
fn what_a_node_that_is_gone_told_last_counts_no_more_once_no_record_is_left() {
    let all = json!([{"startIP": "192.168.0.1", "endIP": "192.168.0.254"}]);
    let told = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool",
            "startIP": "192.168.0.1", "endIP": "192.168.0.254", "used": 254, "capacity": 254, "held": all}]}}));
    let blue = pool_object("blue", 10, 1, ONE_BLOCK_BUT_NOT_FOR_N1, &json!({}));
    let mut world = World::new(&["n1", "n2"], &[blue], vec![told]);
    world.settle();
    world.tell(Observed::IpamNode(Event::Delete(object(&json!({"metadata": {"name": "n1", "uid": "uid-n1",
        "generation": 1, "resourceVersion": "51"}})))));
    leaves(&mut world, "n1");
    world.settle();
    let served = |calls: &[Command]| statuses(calls).iter().flat_map(|it| it.allocations.clone()).count();
    assert_eq!(
        served(&settled_after(&mut world, crate::reconcile::recovery::PAUSE.saturating_sub(30 * SECOND))),
        0,
        "an agent may live on there"
    );
    assert_eq!(served(&settled_after(&mut world, 60 * SECOND)), 1, "n2 has a block");
}

#[test]
fn a_new_leader_forgets_reports_of_missing_nodes() {
    let reported = |version: &str| {
        object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": version},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool",
            "startIP": "192.168.0.1", "endIP": "192.168.0.1", "used": 1, "capacity": 0}]}}))
    };
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![reported("50")]);
    world.reconciler.leads = Leads::No;
    // Its Node was deleted before. The watch of Nodes is behind.
    world.tell(Observed::IpamNode(Event::Delete(reported("51"))));
    assert!(world.reconciler.keeps_report("n1"), "its Node may be there");
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.reconciler.forget_reports_of_missing_nodes(world.now);
    assert!(!world.reconciler.keeps_report("n1"));
    assert!(!world.reconciler.occupancy.has_outside_blocks());
}
