//! Histories in which two things happen at once, or an answer is lost: no address may come to two nodes.

use super::*;

const RESIZED: &str = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":8,"gateway":"192.168.0.1"}"#;

/// `n1` and `n2` are served; then the pool selects `n1` no more, and its agent says that it gives no more and holds none.
/// When `n1` is selected again, it is about to be told to give again.
fn about_to_give_again() -> (World, Command) {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 0);
    world.node_joins("n1");
    let status = only(world.calls());
    world.succeed(status);
    let write = only(world.calls());
    let written = [write.clone()];
    let [("n1", NodeAction::Update { blocks, .. })] = &nodes_written(&written)[..] else { panic!("{write:#?}") };
    assert_eq!(blocks[0].state, BlockState::Active);
    (world, write)
}

#[test]
fn a_block_is_not_given_up_while_its_node_is_being_told_to_give_again() {
    let (mut world, write) = about_to_give_again();
    // The spec is edited before the answer comes: the block agrees with it no more.
    let status = status_json(&world.status());
    world.pool_reads(2, RESIZED, &status);
    for call in world.calls() {
        world.succeed(call);
    }
    assert!(world.blocks().contains(&"n1=192.168.0.1-192.168.0.4".to_owned()), "{:?}", world.blocks());
    // Nor if the answer is lost.
    world.fail(write, CallError::Failed("connection reset".into()));
    world.calls_after(Duration::from_millis(100)).into_iter().for_each(|call| world.succeed(call));
    assert!(world.blocks().contains(&"n1=192.168.0.1-192.168.0.4".to_owned()), "{:?}", world.blocks());
}

#[test]
fn a_lost_answer_is_cleared_up_by_writing_again_so_that_no_block_waits_for_ever() {
    let (mut world, write) = about_to_give_again();
    let status = status_json(&world.status());
    world.pool_reads(2, RESIZED, &status);
    world.calls().into_iter().for_each(|call| world.succeed(call));
    world.fail(write, CallError::Failed("connection reset".into()));
    // The write had no effect; what is there is what is wanted now, and is written all the same.
    let calls = world.settle();
    assert!(nodes_written(&calls).iter().any(|(node, _)| *node == "n1"), "{calls:#?}");
    report(&mut world, "n1", 0);
    world.settle();
    report(&mut world, "n1", 0);
    world.settle();
    assert!(!world.blocks().contains(&"n1=192.168.0.1-192.168.0.4".to_owned()), "{:?}", world.blocks());
}

/// Two nodes, of which `n1` is gone, and the status write that releases its block.
pub(super) fn about_to_release() -> (World, Command) {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 0);
    let status = only(world.calls());
    (world, status)
}

#[test]
fn a_node_that_comes_back_is_told_nothing_while_a_status_under_way_gives_its_block_up() {
    let (mut world, status) = about_to_release();
    assert_eq!((status_of(&status).allocations.len(), status_of(&status).releasing.len()), (1, 0));
    world.node_joins("n1");
    assert_eq!(world.calls(), vec![]);
    world.succeed(status);
    let calls = world.calls();
    assert_eq!(statuses(&calls)[0].allocations.len(), 2);
    assert!(nodes_written(&calls).is_empty(), "{calls:#?}");
}

#[test]
fn a_leader_frees_nothing_by_what_another_has_taken_out() {
    // The last leader took the entry out and ended before it wrote the status.
    let status = json!({"releasing": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
        "since": "2026-01-01T00:00:00Z"}]});
    let unselected = SPEC.replace(
        '}',
        r#","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]}}"#,
    );
    let n1 = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 3, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 3}}));
    let mut world = World::new(&["n1", "n2"], &[pool_object("blue", 10, 1, &unselected, &status)], vec![n1]);
    world.settle();
    assert_eq!(world.status().releasing.len(), 1);
    // It asks the agent once more.
    report(&mut world, "n1", 0);
    world.settle();
    assert_eq!(world.status().releasing.len(), 0);
}

#[test]
fn a_pool_whose_answer_is_awaited_holds_up_no_node_that_it_does_not_concern() {
    let green = pool_object("green", 11, 1, r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#, &json!({}));
    let mut world = World::new(&["n1"], &[green, blue()], vec![]);
    let calls = world.calls();
    assert_eq!(statuses(&calls).len(), 2);
    for call in calls {
        world.succeed(call);
    }
    world.settle();
    report(&mut world, "n1", 1);
    let counts = world.calls_after(pool_task::COUNTS_EVERY);
    assert!(counts.iter().all(|call| matches!(call, Command::WriteStatus { .. })), "{counts:#?}");
    // While this answer is awaited, an IPAMNode that was spoilt is put right.
    let spoilt = json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 9, "resourceVersion": "900"}});
    world.tell(Observed::IpamNode(Event::Apply(object(&spoilt))));
    let calls = world.calls_after(Duration::ZERO);
    assert_eq!(nodes_written(&calls).len(), 1, "{calls:#?}");
}

#[test]
fn a_status_edited_by_hand_moves_no_block_from_which_a_node_gives() {
    let entry = |node: &str, start: &str, end: &str| json!({"nodeName": node, "startIP": start, "endIP": end});
    for edited in [
        // Two nodes' blocks exchanged; one moved to a free block; one given to a node of another name.
        [entry("n1", "192.168.0.5", "192.168.0.8"), entry("n2", "192.168.0.1", "192.168.0.4")],
        [entry("n1", "192.168.0.21", "192.168.0.24"), entry("n2", "192.168.0.5", "192.168.0.8")],
        [entry("a0", "192.168.0.1", "192.168.0.4"), entry("n2", "192.168.0.1", "192.168.0.4")],
    ] {
        let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
        world.settle();
        let right = world.blocks();
        world.pool_reads(1, SPEC, &json!({"allocations": edited}));
        let calls = world.settle();
        assert_eq!(world.blocks(), right, "{edited:?}");
        assert!(nodes_written(&calls).is_empty(), "{calls:#?}");
    }
}

#[test]
fn a_status_wiped_while_nodes_are_being_told_moves_no_block() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    let status = only(world.calls());
    world.succeed(status);
    let under_way = world.calls();
    assert_eq!(nodes_written(&under_way).len(), 2);
    // Without its name before the other's, the first block would be n2's.
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.pool_reads(1, SPEC, &json!({}));
    let mut calls = world.calls();
    calls.extend(under_way);
    for call in calls {
        world.succeed(call);
    }
    world.settle();
    assert_eq!(world.blocks(), ["n2=192.168.0.5-192.168.0.8"]);
    let told = world.reconciler.ipam_nodes.get("n2").unwrap();
    assert_eq!(told.blocks[0].start_ip, "192.168.0.5");
}

#[test]
fn an_ipam_node_gets_no_block_that_the_status_no_longer_has() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    for _ in 0..10 {
        let calls = world.calls();
        let is_recorded = statuses(&calls).iter().any(|status| !status.allocations.is_empty());
        for call in calls {
            world.succeed(call);
        }
        if is_recorded {
            break;
        }
    }
    assert_eq!(world.status().allocations.len(), 1);
    // Another client wipes the status before the IPAMNode is written.
    world.pool_reads(1, SPEC, &Value::Null);
    let calls = world.calls();
    assert!(!calls.iter().any(Command::assigns), "{calls:#?}");
    for call in calls {
        world.succeed(call);
    }
    world.settle();
    assert_eq!(world.status().allocations.len(), 1);
}

#[test]
fn a_status_write_whose_answer_is_lost_stands_when_the_watch_tells_of_it() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let write = only(world.calls());
    let taken = status_json(status_of(&write));
    world.fail(write, CallError::Failed("connection reset".into()));
    world.pool_reads(1, SPEC, &taken);
    let calls = world.settle();
    assert!(matches!(calls[0], Command::Confirm { .. }), "{calls:#?}");
    assert!(matches!(nodes_written(&calls)[..], [("n1", NodeAction::Update { .. })]), "{calls:#?}");
}

#[test]
fn a_name_in_a_status_that_no_node_bears_gets_no_ipam_node() {
    let status =
        json!({"allocations": [{"nodeName": "../no name", "startIP": "192.168.0.9", "endIP": "192.168.0.12"}]});
    let mut world = World::new(&["n1"], &[pool_object("blue", 10, 1, SPEC, &status)], vec![]);
    let calls = world.settle();
    assert!(matches!(nodes_written(&calls)[..], [("n1", NodeAction::Update { .. })]), "{calls:#?}");
    assert_eq!((world.blocks().len(), world.status().releasing.len()), (1, 1), "the block is nobody else's");
}

#[test]
fn a_departed_node_that_comes_back_unselected_is_told_what_it_still_has() {
    let spec = SPEC.replace(
        '}',
        r#","nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"x","operator":"Exists"}]}]}}"#,
    );
    let status = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]});
    let mut world = World::new(&[], &[pool_object("blue", 10, 1, &spec, &status)], vec![]);
    assert!(nodes_written(&world.settle()).is_empty());
    world.node_joins("n1");
    let calls = world.settle();
    let written = nodes_written(&calls);
    let [("n1", NodeAction::Create { .. }), ("n1", NodeAction::Update { blocks, .. })] = &written[..] else {
        panic!("{calls:#?}")
    };
    assert_eq!(blocks[0].state, BlockState::Releasing);
}

#[test]
fn an_ipam_node_deleted_before_the_answer_to_its_last_write_arrived_is_made_anew() {
    for relisted in [false, true] {
        let mut world = World::new(&["n1"], &[blue()], vec![told_nothing()]);
        let status = only(world.calls());
        world.succeed(status);
        let update = only(world.calls());
        assert!(matches!(nodes_written(std::slice::from_ref(&update))[..], [("n1", NodeAction::Update { .. })]));
        // The object was deleted by hand; the watch has told so, or lists what there is, before the answer comes.
        if relisted {
            world.tell(Observed::IpamNode(Event::Init));
            world.tell(Observed::IpamNode(Event::InitDone));
        } else {
            world.tell(Observed::IpamNode(Event::Delete(empty("n1"))));
        }
        world.succeed(update);
        let calls = world.settle();
        let created = |action: &NodeAction| matches!(action, NodeAction::Create { .. });
        assert!(nodes_written(&calls).iter().any(|(_, action)| created(action)), "{relisted}: {calls:#?}");
        assert_eq!(world.reconciler.ipam_nodes.get("n1").unwrap().blocks.len(), 1);
    }
}

/// An IPAMNode whose agent has reported that it has nothing in use.
fn told_nothing() -> RawObject {
    object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": []}}))
}

#[test]
fn a_creation_whose_answer_is_lost_keeps_no_block_from_being_let_go_of() {
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[blue()], vec![]);
    for call in world.calls() {
        match call {
            Command::WriteIpamNode(_) => world.fail(call, CallError::Failed("connection reset".into())),
            call => world.succeed(call),
        }
    }
    // Its Node goes, and an admin lets go of its block. An IPAMNode that is created without blocks keeps it from nobody.
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    let status = only(world.calls_after(Duration::from_millis(100)));
    world.succeed(status);
    let mut forced = pool_object("blue", 900, 1, SPEC, &status_json(&world.status()));
    forced.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(forced)));
    let calls = world.settle();
    assert!(nodes_written(&calls).is_empty(), "{calls:#?}");
    assert!(world.status().releasing.is_empty(), "{:?}", world.status());
}

#[test]
fn a_deleted_pool_says_who_lost_its_last_block_and_then_goes() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 3);
    let mut leaving = pool_object("blue", 900, 2, SPEC, &status_json(&world.status()));
    leaving.metadata.deletion_timestamp = leaving_since();
    leaving.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "*".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(leaving)));
    let calls = world.settle();
    let unsealed = |call: &Command| matches!(call, Command::PatchPool { patch: PoolPatch::Finalizers(_), .. });
    let gone = calls.iter().position(unsealed);
    assert!(gone.is_some() && world.warnings().contains(&"ForcedRelease"), "{calls:#?}");
    let written = calls.iter().rposition(|call| matches!(call, Command::WriteStatus { .. }));
    assert!(written < gone, "{calls:#?}");
}

#[test]
fn no_node_is_told_of_a_pool_whose_finalizer_is_on_its_way_off() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    let mut leaving = pool_object("blue", 900, 2, SPEC, &status_json(&world.status()));
    leaving.metadata.deletion_timestamp = leaving_since();
    leaving.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(leaving)));
    // Its IPAMNode is deleted by hand at the same time, so that nothing stands in the way of letting go of its block.
    let gone = json!({"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "901"}});
    world.tell(Observed::IpamNode(Event::Delete(object(&gone))));
    let calls = world.settle();
    assert!(calls.iter().any(is_unseal), "{calls:#?}");
    assert!(nodes_written(&calls).iter().all(|(_, action)| action.blocks().is_empty()), "{calls:#?}");
}

#[test]
fn a_pool_whose_finalizer_is_off_is_told_to_nobody_again_before_it_is_gone() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    let mut leaving = pool_object("blue", 900, 2, SPEC, &status_json(&world.status()));
    leaving.metadata.deletion_timestamp = leaving_since();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(leaving)));
    world.settle();
    report(&mut world, "n1", 0);
    let calls = world.settle();
    let last = calls.iter().position(is_unseal).expect("the finalizer goes");
    // The watch has yet to tell that the pool is gone.
    assert!(
        matches!(nodes_written(&calls[last + 1..])[..], [("n1", action)] if action.blocks().is_empty()),
        "{calls:#?}"
    );
    assert_eq!(calls[last + 1..].len(), 1, "{calls:#?}");
}

fn is_unseal(call: &Command) -> bool {
    matches!(call, Command::PatchPool { patch: PoolPatch::Finalizers(all), .. } if all.is_empty())
}

#[test]
fn a_plan_from_before_a_restore_is_not_followed() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let calls = world.settle();
    let [("n1", NodeAction::Update { blocks, finalizers, .. })] = &nodes_written(&calls)[..] else {
        panic!("{calls:#?}")
    };
    world.node_joins("n2");
    let create = only(world.calls_after(Duration::ZERO));
    world.succeed(create);
    let write = only(world.calls());
    let sent = status_json(status_of(&write));
    world.fail(write, CallError::Failed("504".into()));
    // The write was done, and is in the backup that is restored. The list of IPAMNodes shows the restore first.
    let n1 = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "5",
        "finalizers": finalizers}, "spec": {"pools": blocks}}));
    world.tell(Observed::IpamNode(Event::Init));
    world.tell(Observed::IpamNode(Event::InitApply(n1.clone())));
    assert!(world.reconciler.take_wish_for_lists());
    world.list(&["n1", "n2"], &[pool_object("blue", 900, 1, SPEC, &sent)], vec![n1]);
    let first = world.calls();
    assert!(first.iter().all(|call| !call.assigns()), "{first:?}");
    for call in first {
        world.succeed(call);
    }
    world.settle();
    world.answer("n1");
    world.answer("n2");
    let calls = world.settle();
    let assigned: Vec<&str> = calls
        .iter()
        .filter(|call| call.assigns())
        .filter_map(|call| match call {
            Command::WriteIpamNode(write) => Some(write.node.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(assigned, ["n2"], "{calls:#?}");
}

#[test]
fn the_answer_to_a_call_of_a_pool_that_went_and_came_back_is_no_answer_to_the_next_call() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let before = only(world.calls());
    // A restore under the leader: the pool goes, and comes back with its uid.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(blue())));
    world.node_joins("n2");
    let calls = world.calls();
    assert!(calls.iter().all(is_creation), "one call of a pool at a time: {calls:#?}");
    let sent = status_of(&before).clone();
    world.succeed(before);
    assert!(world.status().allocations.is_empty(), "{:#?}", world.status());
    assert_ne!(*status_of(&only(world.calls())), sent);
}
