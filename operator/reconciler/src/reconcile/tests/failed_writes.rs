//! Status writes that fail or whose answer is lost: whether the operator relies on them.

use super::*;

/// The block of `n1` has been released, and the status that assigns it again is being written.
fn world_that_assigns_again() -> (World, Command) {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(n1_cordoned(true));
    world.settle();
    report(&mut world, "n1", 0);
    world.settle();
    world.tell(n1_cordoned(false));
    let assign = only(world.calls());
    (world, assign)
}

/// The same, and before its IPAMNode has the block, `n1` is cordoned. The status that releases the block is being written.
fn world_that_releases_before_the_entry() -> (World, Command) {
    let (mut world, assign) = world_that_assigns_again();
    world.succeed(assign);
    world.tell(n1_cordoned(true));
    let release = only(world.calls());
    (world, release)
}

const GREEN: &str = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#;

/// A world in which `n1` has a block of blue and one of green.
fn world_of_two_pools() -> World {
    let mut world = World::new(&["n1"], &[blue(), pool_object("green", 11, 1, GREEN, &json!({}))], vec![]);
    world.settle();
    world
}

/// Fails the status writes of green among these calls, and lets the others succeed.
fn fail_green(world: &mut World, calls: Vec<Command>) {
    for call in calls {
        match &call {
            Command::WriteStatus { pool, .. } if pool.key.name == "green" => {
                world.fail(call, CallError::Failed("403".into()));
            }
            _ => world.succeed(call),
        }
    }
}

/// The pool and the state of each entry that these calls write.
fn entries(calls: &[Command]) -> Vec<(&str, BlockState)> {
    let blocks = nodes_written(calls).into_iter().flat_map(|(_, action)| action.blocks());
    blocks.map(|block| (block.name.as_str(), block.state)).collect()
}

#[test]
fn a_failed_status_delays_no_entry_of_other_pools() {
    let mut world = world_of_two_pools();
    world.node_joins("n2");
    world.tell(n1_cordoned(true));
    for _ in 0..4 {
        let calls = world.calls();
        fail_green(&mut world, calls);
    }
    let blocks = |node: &str| {
        let known = world.reconciler.ipam_nodes.get(node).unwrap();
        known.blocks.iter().map(|block| (block.name.as_str(), block.state)).collect::<Vec<_>>()
    };
    assert_eq!(blocks("n2"), [("blue", BlockState::Active)]);
    assert_eq!(blocks("n1"), [("blue", BlockState::Releasing), ("green", BlockState::Active)]);
}

#[test]
fn a_pool_that_cannot_be_written_has_an_event_from_the_third_failure_on() {
    let mut world = world_of_two_pools();
    world.warnings();
    world.node_joins("n2");
    let mut warnings = Vec::new();
    while warnings.len() < 4 {
        let calls = world.calls_after(Duration::from_mins(1));
        let is_of_green =
            |call: &Command| matches!(call, Command::WriteStatus { pool, .. } if pool.key.name == "green");
        let has_failed = calls.iter().any(is_of_green);
        fail_green(&mut world, calls);
        let events = world.warnings();
        if has_failed {
            warnings.push(events);
        } else {
            assert!(events.is_empty(), "the calls between make a new version");
        }
    }
    assert_eq!(warnings, [vec![], vec![], vec!["PoolNotUpdated"], vec!["PoolNotUpdated"]]);
}

#[test]
fn conflicts_are_no_errors_of_a_pool() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.warnings();
    world.node_joins("n2");
    let (mut conflicts, mut looks) = (0, 0);
    while conflicts < 4 {
        for call in world.calls_after(Duration::from_mins(1)) {
            if matches!(call, Command::WriteStatus { .. }) {
                conflicts += 1;
                world.fail(call, CallError::Conflict("409".into()));
            } else {
                world.succeed(call);
            }
        }
        looks += 1;
        assert!(looks < 20, "{conflicts} statuses were written");
    }
    assert_eq!(world.warnings(), [""; 0]);
}

#[test]
fn a_slow_answer_delays_other_pools_by_seconds() {
    let mut world = world_of_two_pools();
    world.node_joins("n2");
    // The API server does not answer the status of green.
    let mut pending = Vec::new();
    for time in [Duration::from_millis(500), pool_task::HELD.saturating_sub(Duration::from_millis(1))] {
        for call in world.calls_after(time) {
            match &call {
                Command::WriteStatus { pool, .. } if pool.key.name == "green" => pending.push(call),
                _ => world.succeed(call),
            }
        }
    }
    assert!(world.reconciler.ipam_nodes.get("n2").is_none(), "both pools in one write");
    let create = only(world.calls_after(Duration::from_millis(1)));
    world.succeed(create);
    let update = only(world.poll());
    assert_eq!(entries(std::slice::from_ref(&update)), [("blue", BlockState::Active)]);
    world.succeed(update);
    world.succeed(only(pending));
    assert_eq!(entries(&world.poll()), [("blue", BlockState::Active), ("green", BlockState::Active)]);
}

#[test]
fn an_entry_gets_no_grant_while_a_failed_status_may_free_its_block() {
    let mut world = world_of_two_pools();
    world.tell(n1_cordoned(true));
    for time in [Duration::from_millis(500), Duration::ZERO] {
        let calls = world.calls_after(time);
        fail_green(&mut world, calls);
    }
    // The agent reports that the grant of green has ended, while the entry is Active. It also needs another entry of blue.
    let known = world.reconciler.ipam_nodes.get("n1").unwrap();
    let reports = known.blocks.iter().map(|block| {
        json!({"name": block.name, "poolType": "IPPool", "grant": block.grant, "ended": true, "startIP": block.start_ip,
            "endIP": block.end_ip, "used": 0, "capacity": 4})
    });
    let event = object(&json!({
        "metadata": {"name": "n1", "uid": known.uid, "generation": known.generation, "resourceVersion": "900",
            "finalizers": known.finalizers},
        "spec": {"pools": known.blocks},
        "status": {"observedGeneration": known.generation, "pools": reports.collect::<Vec<_>>()},
    }));
    world.tell(Observed::IpamNode(Event::Apply(event)));
    let calls = world.calls_after(Duration::ZERO);
    assert_eq!(entries(&calls), [], "the status that was sent may be in force, and it frees the block of green");
}

#[test]
fn an_entry_waits_while_a_failed_status_write_may_have_been_done() {
    for error in [CallError::Failed("504".into()), CallError::Conflict("404".into())] {
        let mut world = World::new(&["n1"], &[blue()], vec![]);
        world.settle();
        // The node is cordoned, and the status that takes its block back is written without an answer.
        world.tell(n1_cordoned(true));
        let write = only(world.calls());
        assert_eq!(status_of(&write).allocations.len(), 0);
        world.fail(write, error);
        // The node is to be served again, and its IPAMNode is gone.
        world.tell(n1_cordoned(false));
        let gone = json!({"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "0"}});
        world.tell(Observed::IpamNode(Event::Delete(object(&gone))));
        // The status is right, if the write was not done. A new version makes sure that it cannot be done any more.
        let calls = world.calls_after(Duration::from_secs(1));
        let [fence, create] = &calls[..] else { panic!("{calls:#?}") };
        assert!(is_creation(create) && is_fence(fence), "{calls:#?}");
        for call in calls {
            world.succeed(call);
        }
        let calls = world.settle();
        let written = nodes_written(&calls);
        assert!(matches!(written[..], [("n1", NodeAction::Update { .. })]), "{calls:#?}");
    }
}

#[test]
fn a_failed_status_write_is_fenced_before_the_next() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    let mut write = only(world.calls());
    for pause in [500, 1000, 2000, 4000] {
        assert_eq!(statuses(std::slice::from_ref(&write)).len(), 1, "{write:?}");
        world.fail(write, CallError::Failed("504".into()));
        assert!(world.calls_after(Duration::from_millis(pause - 1)).is_empty(), "before {pause} ms are over");
        let fence = only(world.calls_after(Duration::from_millis(1)));
        assert!(is_fence(&fence), "{fence:?}");
        world.succeed(fence);
        write = only(world.calls_after(Duration::ZERO));
    }
}

#[test]
fn a_node_waits_until_a_failed_status_write_cannot_arrive() {
    // The status that releases the block is on its way for longer than the operator waits.
    let (mut world, release) = world_that_releases_before_the_entry();
    let released = status_of(&release).clone();
    world.fail(release, CallError::Failed("no answer".into()));
    for error in ["no answer", "503"] {
        let calls = world.calls_after(Duration::from_secs(4));
        assert!(calls.iter().all(is_fence) && calls.len() == 1, "the block may be released: {calls:#?}");
        for call in calls {
            world.fail(call, CallError::Failed(error.into()));
        }
    }
    // Now it arrives.
    world.pool_reads(1, SPEC, &status_json(&released));
    let calls = world.settle();
    assert!(!calls.iter().any(Command::assigns), "the block is released: {calls:#?}");
}

#[test]
fn a_node_gets_its_block_once_a_failed_release_cannot_arrive() {
    let (mut world, release) = world_that_releases_before_the_entry();
    world.tell(n1_cordoned(false));
    world.fail(release, CallError::Failed("no answer".into()));
    let fence = only(world.calls_after(Duration::from_secs(1)));
    assert!(is_fence(&fence), "{fence:?}");
    world.succeed(fence);
    // The status is right as it is, so no other write wakes the node.
    let calls = world.settle();
    assert!(statuses(&calls).is_empty() && calls.iter().any(Command::assigns), "{calls:#?}");
}

#[test]
fn a_revoked_entry_is_not_active_again_after_a_failed_status() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    // The status assigns the block, and the IPAMNode has it. Its grant is never used.
    for _ in 0..2 {
        let call = only(world.calls());
        world.succeed(call);
    }
    // The status releases the block, the entry is revoked, and the status frees the block.
    world.tell(n1_cordoned(true));
    for _ in 0..3 {
        let call = only(world.calls());
        world.succeed(call);
    }
    assert!(world.status().releasing.is_empty());
    // The node gets its block again and loses it again before its entry is written.
    let removal = only(world.calls_after(Duration::ZERO));
    assert_eq!(
        (nodes_written(std::slice::from_ref(&removal)).len(), entries(std::slice::from_ref(&removal))),
        (1, vec![])
    );
    world.tell(n1_cordoned(false));
    let assign = only(world.calls());
    world.succeed(assign);
    world.tell(n1_cordoned(true));
    let release = only(world.calls());
    assert_eq!(status_of(&release).releasing.len(), 1);
    world.fail(removal, CallError::Failed("503".into()));
    world.fail(release, CallError::Failed("504".into()));
    let calls = world.calls_after(Duration::from_millis(500));
    assert!(entries(&calls).iter().all(|(_, state)| *state == BlockState::Revoked), "{calls:#?}");
}

#[test]
fn a_failed_status_write_that_the_watch_confirms_is_the_plan_from_then_on() {
    // The status that releases the block is written without an answer.
    let (mut world, release) = world_that_releases_before_the_entry();
    let released = status_of(&release).clone();
    assert_eq!((released.allocations.len(), released.releasing.len()), (0, 0));
    world.fail(release, CallError::Failed("504".into()));
    world.pool_reads(1, SPEC, &status_json(&released));
    // Reading the version back fails, too.
    let confirm = only(world.calls());
    assert!(matches!(confirm, Command::Confirm { .. }), "{confirm:?}");
    world.fail(confirm, CallError::Failed("401".into()));
    let calls = world.calls_after(Duration::from_millis(499));
    assert!(nodes_written(&calls).is_empty(), "the block is released: {calls:#?}");
}

#[test]
fn a_failed_status_write_that_the_watch_shows_assigns_its_blocks() {
    let (mut world, assign) = world_that_assigns_again();
    let sent = status_of(&assign).clone();
    assert_eq!(sent.allocations.len(), 1);
    world.fail(assign, CallError::Failed("504".into()));
    world.pool_reads(1, SPEC, &status_json(&sent));
    let calls = world.calls();
    assert!(calls.iter().any(Command::assigns), "no other call comes first: {calls:#?}");
}

#[test]
fn events_of_an_unanswered_status_write_come_once_it_is_read() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.events();
    for (is_cordoned, reason) in [(true, "BlocksReleasing"), (false, "BlocksAssigned")] {
        world.tell(n1_cordoned(is_cordoned));
        let write = only(world.calls());
        let sent = status_of(&write).clone();
        world.fail(write, CallError::Failed("504".into()));
        assert_eq!(world.events(), [""; 0], "it may not have been done");
        world.pool_reads(1, SPEC, &status_json(&sent));
        assert_eq!(world.events(), [reason]);
        world.settle();
        report(&mut world, "n1", 0);
        world.settle();
        world.events();
    }
}

#[test]
fn a_refused_status_is_not_the_plan_though_the_other_write_has_its_blocks() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(n1_cordoned(true));
    world.settle();
    let releasing = world.status();
    // The status that makes the block Active again meets the edit of another, which leaves the status as it is.
    world.tell(n1_cordoned(false));
    let activate = only(world.calls());
    assert_eq!(status_of(&activate).allocations.len(), 1);
    world.fail(activate, CallError::Conflict("409".into()));
    world.pool_reads(1, SPEC, &status_json(&releasing));
    let calls = world.poll();
    assert!(nodes_written(&calls).is_empty(), "no status says Active: {calls:#?}");
    let written = world.settle();
    assert!(statuses(&written).iter().any(|status| status.allocations.len() == 1), "{written:#?}");
}

#[test]
fn a_release_goes_on_after_a_status_whose_answer_was_lost() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(n1_cordoned(true));
    world.settle();
    // The agent of n1 reports while a status is written in which only a count of n2 is new.
    report(&mut world, "n2", 1);
    let status = only(world.calls_after(Duration::from_secs(1)));
    report(&mut world, "n1", 0);
    let sent = status_json(status_of(&status));
    world.fail(status, CallError::Failed("connection reset".into()));
    world.pool_reads(1, SPEC, &sent);
    for _ in 0..3 {
        world.settle();
        if world.reconciler.ipam_nodes.get("n1").is_some_and(|known| !known.blocks.is_empty()) {
            report(&mut world, "n1", 0);
        }
    }
    assert!(world.status().releasing.is_empty(), "{:?}", world.status().releasing);
}

#[test]
fn a_block_whose_release_is_reported_before_its_status_is_answered_becomes_free() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(n1_cordoned(true));
    world.settle();
    // n1 is to have its block again, and then is not, before its IPAMNode is written.
    world.tell(n1_cordoned(false));
    let assigns = only(world.calls_after(Duration::from_secs(1)));
    world.succeed(assigns);
    world.tell(n1_cordoned(true));
    let releases = only(world.calls_after(Duration::from_secs(1)));
    report(&mut world, "n1", 0);
    world.succeed(releases);
    world.settle();
    assert!(world.status().releasing.is_empty(), "{:?}", world.status().releasing);
}

#[test]
fn a_wiped_status_makes_no_entry_in_place_of_a_grant_that_is_over() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(n1_cordoned(true));
    world.settle();
    // The grant has ended when the block is assigned again, and it is released before a new grant is written.
    report(&mut world, "n1", 0);
    world.tell(n1_cordoned(false));
    let assigns = only(world.calls_after(Duration::from_secs(1)));
    world.succeed(assigns);
    world.tell(n1_cordoned(true));
    let releases = only(world.calls_after(Duration::from_secs(1)));
    world.fail(releases, CallError::Failed("504".into()));
    // The release was done. Then an admin wiped the status.
    world.pool_reads(1, SPEC, &serde_json::Value::Null);
    // The node does not wait for the pool's next decision.
    let calls = world.calls_after(Duration::ZERO);
    assert!(!calls.iter().any(Command::assigns), "the status does not record the block: {calls:#?}");
}
