//! A block is free only when no write that was sent earlier can assign it again.

use super::*;
use crate::cluster_cache::Leaving;

/// An IPAMNode with one entry, and the report about its grant.
fn n1(state: &str, ended: bool) -> RawObject {
    let entry = json!({"name": "blue", "poolType": "IPPool", "grant": "0000000100000001", "state": state, "startIP": "192.168.0.1",
        "endIP": "192.168.0.4", "subnet": "192.168.0.0/16"});
    let report = json!({"name": "blue", "poolType": "IPPool", "grant": "0000000100000001", "ended": ended, "startIP": "192.168.0.1",
        "endIP": "192.168.0.4", "used": 0, "capacity": 4});
    object(&json!({
        "metadata": {"name": "n1", "uid": "uid-n1", "generation": 3, "resourceVersion": "50",
            "finalizers": ["nv-ipam.nvidia.com/node-in-use"]},
        "spec": {"pools": [entry]},
        "status": {"observedGeneration": 3, "pools": [report]},
    }))
}

/// A leader that finds this IPAMNode, and a pool of which the node is to lose the block.
fn leader_that_finds(found: RawObject) -> World {
    let status = json!({"releasing": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
        "since": "2026-01-01T00:00:00Z"}]});
    let unselected = SPEC.replace(
        '}',
        r#","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]}}"#,
    );
    World::new(&["n1"], &[pool_object("blue", 10, 1, &unselected, &status)], vec![found])
}

fn states(calls: &[Command]) -> Vec<(BlockState, String)> {
    let writes = nodes_written(calls).into_iter().flat_map(|(_, action)| action.blocks());
    writes.map(|block| (block.state, block.grant.clone())).collect()
}

#[test]
fn a_leader_frees_what_another_released_only_after_a_write_of_its_own() {
    for (state, ended) in [("Releasing", true), ("Revoked", false)] {
        let mut world = leader_that_finds(n1(state, ended));
        // A write of the leader before may be on its way, and would succeed upon the version that was listed.
        let calls = world.settle();
        let written = calls.iter().position(|call| matches!(call, Command::WriteIpamNode(_))).unwrap();
        let is_free =
            |call: &Command| matches!(call, Command::WriteStatus { status, .. } if status.releasing.is_empty());
        let freed = calls.iter().position(is_free).unwrap();
        assert!(written < freed, "{state}: {calls:#?}");
        let [(BlockState::Revoked, grant)] = &states(&calls)[..] else { panic!("{state}: {calls:#?}") };
        assert_eq!(grant == "0000000100000001", ended, "{state}: the write must change the object");
    }
}

#[test]
fn the_first_status_of_a_leader_holds_up_the_nodes_whose_blocks_it_releases() {
    let mut world = leader_that_finds(n1("Active", false));
    // A write of the leader before arrives, and the agent reports at once.
    let mut pending_event = n1("Releasing", true);
    pending_event.metadata.resource_version = Some("51".into());
    world.tell(Observed::IpamNode(Event::Apply(pending_event)));
    let calls = world.calls();
    let [Command::WriteStatus { status, .. }] = &calls[..] else { panic!("{calls:#?}") };
    assert!(status.releasing.is_empty(), "{calls:#?}");
    for call in calls {
        world.succeed(call);
    }
    let calls = world.settle();
    let writes = nodes_written(&calls);
    assert!(!writes.is_empty() && writes.iter().all(|(_, action)| action.blocks().is_empty()), "{calls:#?}");
}

#[test]
fn a_change_by_anybody_else_stops_earlier_writes_as_well() {
    let mut world = leader_that_finds(n1("Active", false));
    world.settle();
    report(&mut world, "n1", 0);
    let calls = world.settle();
    assert_eq!(states(&calls), [], "{calls:#?}");
    assert!(statuses(&calls).last().unwrap().releasing.is_empty(), "{calls:#?}");
}

/// The node is cordoned, or is no more.
fn cordon(world: &mut World, leaving: Option<Leaving>) {
    let meta = NodeMeta { leaving, ..NodeMeta::default() };
    world.tell(Observed::Node(Event::Apply(("n1".into(), meta))));
}

#[test]
fn of_two_writes_without_an_answer_either_may_be_in_force() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    cordon(&mut world, Some(Leaving::Cordoned));
    world.settle();
    // The node gets the block again just before the agent reports that the grant has ended.
    cordon(&mut world, None);
    report(&mut world, "n1", 0);
    let mut first = None;
    for _ in 0..10 {
        for call in world.calls() {
            match call {
                Command::WriteIpamNode(write) => first = Some(write),
                call => world.succeed(call),
            }
        }
    }
    let first = first.expect("the operator makes a grant in place of the one that has ended");
    let blocks = first.action.blocks().to_vec();
    assert_eq!(blocks[0].state, BlockState::Active);
    world.fail(Command::WriteIpamNode(first), CallError::Failed("no answer".into()));
    // The node is cordoned, and the next write says so. The first one has succeeded, as the watch tells.
    cordon(&mut world, Some(Leaving::Cordoned));
    for call in world.calls_after(Duration::from_secs(5)) {
        match call {
            Command::WriteIpamNode(_) => world.fail(call, CallError::Conflict("another version".into())),
            call => world.succeed(call),
        }
    }
    let made = world.reconciler.ipam_nodes.get("n1").unwrap().clone();
    let report = made.reports.clone();
    let object = object(&json!({
        "metadata": {"name": "n1", "uid": made.uid, "generation": 90, "resourceVersion": "900", "finalizers": made.finalizers},
        "spec": {"pools": blocks}, "status": {"observedGeneration": made.observed_generation, "pools": report},
    }));
    world.tell(Observed::IpamNode(Event::Apply(object)));
    let known = world.reconciler.ipam_nodes.get("n1").unwrap();
    let key = PoolKey::new(PoolKind::IpPool, "blue");
    assert!(!known.has_released(&key), "the API server has a grant that has not ended: {known:#?}");
}

#[test]
fn a_block_whose_first_entry_got_no_answer_is_released_though_no_agent_runs() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.has_agents = false;
    let status = only(world.calls());
    world.succeed(status);
    let write = only(world.calls());
    cordon(&mut world, Some(Leaving::Cordoned));
    for call in world.calls() {
        world.succeed(call);
    }
    world.fail(write, CallError::Failed("no answer".into()));
    world.settle();
    world.now += Duration::from_secs(1);
    world.settle();
    assert!(world.status().allocations.is_empty() && world.status().releasing.is_empty(), "{:#?}", world.status());
}

#[test]
fn a_stale_block_whose_first_entry_got_no_answer_is_replaced_though_no_agent_runs() {
    // Without a gateway, no other news wakes the pool.
    let spec = |size: u32| format!(r#"{{"subnet":"192.168.0.0/16","perNodeBlockSize":{size}}}"#);
    let mut world = World::new(&["n1"], &[pool_object("blue", 10, 1, &spec(4), &json!({}))], vec![]);
    world.has_agents = false;
    let status = only(world.calls());
    world.succeed(status);
    let write = only(world.calls());
    world.pool_reads(2, &spec(2), &status_json(&world.status()));
    for call in world.calls() {
        world.succeed(call);
    }
    world.fail(write, CallError::Failed("no answer".into()));
    world.settle();
    world.now += Duration::from_secs(1);
    world.settle();
    assert_eq!(world.blocks(), ["n1=192.168.0.1-192.168.0.2"], "{:#?}", world.status());
}
