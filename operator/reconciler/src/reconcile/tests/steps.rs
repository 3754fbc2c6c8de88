//! Which keys are stepped, and when.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The agent of n1 reported all of the only block of the pool in use outside its blocks. Then its IPAMNode and its Node went, so that
/// nothing has a Controller that waits for the end of the grace.
fn node_without_objects() -> (World, Duration) {
    let n1 = object(&json!({
        "metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []},
        "status": {"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.9",
            "endIP": "192.168.0.9", "used": 1, "capacity": 0, "held": [{"startIP": "192.168.0.9", "endIP": "192.168.0.9"}]}]},
    }));
    let blue = pool_object("blue", 10, 1, ONE_BLOCK_BUT_NOT_FOR_N1, &json!({}));
    let mut world = World::new(&["n1", "n2"], &[blue], vec![n1]);
    world.settle();
    let gone = json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "51"}});
    world.tell(Observed::IpamNode(Event::Delete(object(&gone))));
    world.tell(Observed::Node(Event::Delete(("n1".to_owned(), NodeMeta::default()))));
    world.settle();
    assert!(world.reconciler.keeps_report("n1"));
    let grace = world.reconciler.settings.released_block_grace.unwrap();
    (world, grace)
}

/// Nothing happens but what is due, when it is due. The nodes that status writes gave a block. Wakes are taken once after each change.
fn left_alone(world: &mut World) -> Vec<String> {
    let mut served = Vec::new();
    for _ in 0..100 {
        let Some(due) = world.controllers.next_due(&world.reconciler) else { return served };
        world.now = world.now.max(due);
        for call in world.poll() {
            if let Command::WriteStatus { status, .. } = &call {
                served.extend(status.allocations.iter().map(|claim| claim.node.clone()));
            }
            world.succeed(call);
            let now = world.clocks();
            world.controllers.take_wakes(&mut world.reconciler, now);
        }
    }
    panic!("it never comes to rest");
}

#[test]
fn the_end_of_the_grace_of_a_node_without_objects_serves_others() {
    let (mut world, _) = node_without_objects();
    assert_eq!(left_alone(&mut world), ["n2"]);
}

#[test]
fn a_grace_that_begins_again_ends_in_its_time() {
    let (mut world, grace) = node_without_objects();
    world.now += grace.saturating_sub(180 * SECOND);
    world.reconciler.nodes_out_of_sight(world.now);
    assert_eq!(left_alone(&mut world), ["n2"]);
}

#[test]
fn the_retries_of_a_node_step_no_pool() {
    let pools: Vec<RawObject> = (0..20)
        .map(|pool| {
            let spec = format!(r#"{{"subnet":"10.{pool}.0.0/16","perNodeBlockSize":4}}"#);
            pool_object(&format!("pool-{pool}"), 10 + pool, 1, &spec, &json!({}))
        })
        .collect();
    let mut world = World::new(&["n1"], &pools, vec![]);
    let (mut steps, mut retries, mut is_joined) = (0, 0, false);
    world.settle();
    world.node_joins("n2");
    let (middle, end) = (world.now + 20 * SECOND, world.now + 60 * SECOND);
    while let Some(due) = world.next_wake().filter(|due| *due < end) {
        world.now = world.now.max(due);
        // Pools are stepped for another node while retries wait.
        if retries > 2 && !std::mem::replace(&mut is_joined, true) {
            world.node_joins("n3");
        }
        let now = world.clocks();
        world.reconciler.tick(world.now);
        world.controllers.take_wakes(&mut world.reconciler, now);
        while let Some(key) = world.controllers.next(world.now) {
            steps += u32::from(matches!(key, Key::Pool(_)) && world.now > middle);
            match world.reconciler.step(&key, now) {
                Step::Call(call) if matches!(*call, Command::WriteIpamNode(_)) => {
                    retries += 1;
                    world.controllers.begin(key);
                    world.fail(*call, CallError::Failed("forbidden".into()));
                }
                Step::Call(call) => {
                    world.controllers.begin(key);
                    world.succeed(*call);
                }
                Step::Wait(at) => world.controllers.wake(key, at),
                Step::Done => {}
            }
            world.controllers.take_wakes(&mut world.reconciler, now);
        }
    }
    assert!(retries > 5 && is_joined, "{retries}");
    assert_eq!(steps, 0, "pools have nothing to do");
}

/// `n1` is not written in spite of three tries, and the pool shows it. Returns the world and the entry that it is to have.
fn world_with_a_lasting_error() -> (World, NodeAction) {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    // A report of the agent would wake the pool, too.
    world.has_agents = false;
    let status = only(world.calls());
    world.succeed(status);
    for _ in 0..2 {
        let write = only(world.calls_after(10 * SECOND));
        world.fail(write, CallError::Failed("forbidden".into()));
        assert!(world.calls_after(Duration::from_millis(100)).is_empty(), "the error may not last");
    }
    let write = only(world.calls_after(10 * SECOND));
    let wanted = nodes_written(std::slice::from_ref(&write))[0].1.clone();
    world.fail(write, CallError::Failed("forbidden".into()));
    let status = only(world.calls());
    assert_eq!(degraded(&status), "NodesNotUpdated");
    world.succeed(status);
    assert_eq!(world.warnings(), ["NodesNotUpdated"]);
    (world, wanted)
}

fn degraded(call: &Command) -> String {
    let conditions = &status_of(call).summary.conditions;
    conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap().reason.clone()
}

#[test]
fn a_pool_shows_a_lasting_error_until_a_write_succeeds() {
    let (mut world, _) = world_with_a_lasting_error();
    let write = only(world.calls_after(10 * SECOND));
    world.succeed(write);
    assert_eq!(degraded(&only(world.calls())), "AsSpecified");
}

#[test]
fn a_pool_shows_no_error_once_its_node_needs_no_write() {
    let (mut world, wanted) = world_with_a_lasting_error();
    // An admin restores the IPAMNode from a backup that has the entry.
    let restored = json!({"metadata": {"name": "n1", "uid": "uid-restored", "generation": 1, "resourceVersion": "900",
        "finalizers": ["nv-ipam.nvidia.com/node-in-use"]}, "spec": {"pools": wanted.blocks()}});
    world.tell(Observed::IpamNode(Event::Apply(object(&restored))));
    assert_eq!(world.calls_after(10 * SECOND), [], "the IPAMNode is right");
    assert_eq!(degraded(&only(world.calls())), "AsSpecified");
}
