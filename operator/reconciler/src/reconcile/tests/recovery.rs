//! Records of blocks that are lost, or from an earlier time: which reports are requested, and what waits for them.

use super::other_pools::status;
use super::races::about_to_release;
use super::*;

impl World {
    /// One who comes to lead by a Lease that says `given`, with nothing decided yet.
    pub(super) fn led_by(
        given: AllocationState,
        nodes: &[&str],
        pools: &[RawObject],
        ipam_nodes: Vec<RawObject>,
    ) -> Self {
        let mut world = Self::empty();
        world.reconciler.lead(LeaseState { allocation: given, ..LeaseState::default() }, world.now);
        world.lease = given;
        world.list(nodes, pools, ipam_nodes);
        world
    }

    /// All pools and IPAMNodes are gone.
    fn lose_all(&mut self, nodes: &[&str]) {
        for name in self.reconciler.pools.keys().map(|key| key.name.clone()).collect::<Vec<_>>() {
            let gone = pool_object(&name, 900, 1, SPEC, &Value::Null);
            self.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(gone)));
        }
        for node in nodes {
            self.lose(node);
        }
    }

    /// The node's IPAMNode is gone.
    fn lose(&mut self, node: &str) {
        self.tell(Observed::IpamNode(Event::Delete(silent(node))));
    }

    /// The agent of `node` answers the request in its IPAMNode by the same report as before.
    pub(super) fn answer(&mut self, node: &str) {
        let record = self.reconciler.ipam_nodes.get(node).unwrap().clone();
        self.version = self.version.max(record.resource_version.parse().unwrap_or(0)) + 1;
        let event = json!({
            "metadata": {"name": node, "uid": record.uid, "generation": record.generation,
                "resourceVersion": self.version.to_string(), "finalizers": record.finalizers},
            "spec": {"pools": record.blocks, "reportRequest": record.request},
            "status": {"observedGeneration": record.generation, "reportRequest": record.request, "pools": record.reports},
        });
        self.tell(Observed::IpamNode(Event::Apply(object(&event))));
    }

    /// The pool is applied again, as another object.
    fn apply_again(&mut self) {
        self.version += 1;
        let mut anew = pool_object("blue", self.version, 1, SPEC, &Value::Null);
        anew.metadata.uid = Some("another".to_owned());
        self.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(anew)));
    }

    /// The agent of `node` tells in an IPAMNode without blocks that it holds the addresses from `first` to `last`.
    pub(super) fn hear(&mut self, node: &str, held: Option<(&str, &str)>) {
        self.version += 1;
        let request = self.reconciler.recovery.request_to(node).cloned();
        let pools: Vec<Value> = held
            .into_iter()
            .map(|(first, last)| {
                json!({"name": "blue", "poolType": "IPPool",
            "startIP": first, "endIP": last, "used": 2, "capacity": 4, "held": [{"startIP": first, "endIP": last}]})
            })
            .collect();
        let object = object(&json!({
            "metadata": {"name": node, "uid": format!("uid-{node}"), "generation": 1, "resourceVersion": self.version.to_string(),
                "finalizers": held.iter().map(|_| crate::ipam_node::FINALIZER).collect::<Vec<_>>()},
            "spec": {"pools": [], "reportRequest": request},
            "status": {"observedGeneration": 1, "reportRequest": request, "pools": pools}}));
        self.tell(Observed::IpamNode(Event::Apply(object)));
    }

    pub(super) fn said(&self) -> String {
        let status = self.status();
        let of_type = |name| status.summary.conditions.iter().find(|condition| condition.type_ == name).unwrap();
        let (exhausted, paused) = (of_type("Exhausted"), of_type("AllocationPaused"));
        format!("{}: {} {}={}: {}", exhausted.reason, exhausted.message, paused.type_, paused.status, paused.message)
    }
}

pub(super) fn silent(node: &str) -> RawObject {
    object(&json!({"metadata": {"name": node, "uid": format!("uid-{node}"), "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}}))
}

/// The nodes that are asked by these calls, and no others get anything.
fn asked(calls: &[Command]) -> Vec<&str> {
    let written = nodes_written(calls);
    assert!(written.iter().all(|(_, action)| matches!(action, NodeAction::Create { .. })), "{calls:#?}");
    written.into_iter().map(|(node, _)| node).collect()
}

#[test]
fn a_leader_that_finds_nothing_recorded_though_blocks_were_given_asks_every_node_before_it_gives() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1", "n2", "n3"], &[blue()], vec![]);
    let calls = world.settle();
    assert_eq!(asked(&calls), ["n1", "n2", "n3"]);
    assert!(statuses(&calls).iter().all(|status| status.allocations.is_empty()));
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Recovering);
    assert!(world.said().contains("AwaitingAgentReports: 3 nodes (n1, n2, n3) have no block"), "{}", world.said());
    assert!(
        world.said().contains("3 nodes: n1, n2, n3") && world.said().contains("force-release=NODE"),
        "{}",
        world.said()
    );
    world.hear("n1", Some(("192.168.0.2", "192.168.0.3")));
    world.hear("n2", None);
    let mut calls = world.settle();
    world.now += pool_task::COUNTS_EVERY;
    calls.extend(world.settle());
    assert!(world.said().contains("the agent reports of node n3, or until"), "who is left: {}", world.said());
    assert!(
        nodes_written(&calls).is_empty() && statuses(&calls).iter().all(|it| it.allocations.is_empty()),
        "{calls:#?}"
    );
    world.hear("n3", None);
    world.settle();
    let blocks: Vec<_> = world.status().allocations.iter().map(|claim| claim.range.to_string()).collect();
    assert_eq!(blocks, ["192.168.0.1-192.168.0.4", "192.168.0.5-192.168.0.8", "192.168.0.9-192.168.0.12"]);
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
}

#[test]
fn a_leader_by_a_lease_that_says_nothing_or_that_finds_any_record_asks_nobody() {
    let (pool, ipam_nodes) = left_behind(&["n1"]);
    let mut heard = World::empty();
    heard.hear("n1", None);
    for (given, pools, ipam_nodes) in [
        (AllocationState::NoneAllocated, vec![blue()], vec![]),
        (AllocationState::Allocated, vec![pool], vec![]),
        (AllocationState::Allocated, vec![blue()], ipam_nodes),
    ] {
        let mut world = World::led_by(given, &["n1", "n2"], &pools, ipam_nodes);
        let calls = world.settle();
        assert_eq!(world.status().allocations.len(), 2);
        let updates =
            nodes_written(&calls).into_iter().filter(|(_, action)| !matches!(action, NodeAction::Create { .. }));
        assert!(updates.map(|(_, action)| action.blocks().len()).all(|blocks| blocks == 1), "{calls:#?}");
    }
}

#[test]
fn a_leader_continues_the_recovery_of_the_last_one_without_nodes_that_are_gone() {
    let (pool, mut ipam_nodes) = left_behind(&["n1"]);
    ipam_nodes.push(silent("n4"));
    let mut world = World::led_by(AllocationState::Recovering, &["n1", "n2"], &[pool], ipam_nodes);
    world.has_agents = false;
    world.settle();
    assert_eq!(awaited(&world), ["n1", "n2"]);
    assert!(world.said().contains("2 nodes: n1, n2, for at most 2 min."), "{}", world.said());
    // What is kept is kept.
    assert_eq!(world.status().allocations.len(), 1);
}

#[test]
fn no_agent_is_asked_and_no_node_is_told_before_the_lease_says_so() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1"], &[blue()], vec![]);
    world.lease_fails = true;
    assert!(nodes_written(&world.settle()).is_empty());
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Recovering);
    assert!(!world.reconciler.is_idle(), "a call waits");
    world.say(AllocationState::Recovering);
    assert_eq!(asked(&world.calls()), ["n1"]);

    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[blue()], vec![]);
    world.lease_fails = true;
    let calls = world.settle();
    assert!(asked(&calls) == ["n1"] && !statuses(&calls).is_empty(), "an empty IPAMNode and no block: {calls:#?}");
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
    world.say(AllocationState::Allocated);
    assert_eq!(nodes_written(&world.calls()).len(), 1);
}

#[test]
fn a_status_write_marks_the_lease_once_it_is_done() {
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[blue()], vec![]);
    world.lease_fails = true;
    let is_status = |call: &Command| matches!(call, Command::WriteStatus { .. });
    let (first, others): (Vec<_>, Vec<_>) = world.calls().into_iter().partition(is_status);
    for call in others {
        world.succeed(call);
    }
    assert_eq!(world.reconciler.wanted_state(), AllocationState::NoneAllocated);
    for call in first {
        world.fail(call, CallError::Failed("410".into()));
    }
    assert_eq!(world.reconciler.wanted_state(), AllocationState::NoneAllocated, "it may have failed");
    world.settle();
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
}

#[test]
fn the_lease_records_blocks_that_another_writer_took_away() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    let mut without = empty("n1");
    world.version += 1;
    without.metadata.resource_version = Some(world.version.to_string());
    world.tell(Observed::IpamNode(Event::Apply(without)));
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
    assert_eq!(nodes_written(&world.calls())[0].1.blocks().len(), 1, "it gets its block again");
}

#[test]
fn a_lease_that_says_the_same_wakes_no_node() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1", "n2"], &[blue()], vec![]);
    world.lease_fails = true;
    world.settle();
    assert!(!world.reconciler.is_idle(), "calls wait for the Lease");
    world.say(AllocationState::Allocated);
    assert_eq!(world.next_wake(), None);
    world.say(AllocationState::Recovering);
    assert_eq!(world.calls().iter().filter(|call| is_creation(call)).count(), 2);
}

#[test]
fn nothing_given_leaves_the_lease_as_it_is_and_what_was_given_stays_said() {
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[], vec![]);
    assert_eq!(asked(&world.settle()), ["n1"]);
    assert_eq!(world.reconciler.wanted_state(), AllocationState::NoneAllocated);
    let mut heard = World::led_by(AllocationState::Allocated, &[], &[], vec![]);
    heard.settle();
    assert_eq!(heard.reconciler.wanted_state(), AllocationState::Allocated);
}

#[test]
fn a_leader_that_sees_all_records_go_assigns_the_same_blocks_once_there_is_a_pool_again() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    let before = world.status();
    world.lose_all(&["n1", "n2"]);
    assert_eq!(asked(&world.settle()), ["n1", "n2"], "also without a pool");
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Recovering);
    world.apply_again();
    world.settle();
    assert_eq!(awaited(&world), ["n1", "n2"]);
    assert_eq!(world.status().allocations, before.allocations, "each gets its own block, without a wait");
    world.answer("n1");
    world.answer("n2");
    world.settle();
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
}

#[test]
fn whichever_of_the_two_records_goes_last_its_node_is_asked() {
    for wiped_last in [true, false] {
        let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
        world.settle();
        world.lease_fails = true;
        let wiped = pool_object("blue", 900, 1, SPEC, &Value::Null);
        if wiped_last {
            world.lose("n1");
            world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
        } else {
            world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
            world.lose("n1");
        }
        assert_eq!(awaited(&world), ["n1"], "wiped last: {wiped_last}");
    }
}

#[test]
fn of_what_we_have_given_up_ourselves_nobody_is_asked() {
    let (mut world, status) = about_to_release();
    let freed = status_json(status_of(&status));
    // Its IPAMNode is deleted by hand, and of the status the watch tells before anybody answers for it.
    world.fail(status, CallError::Failed("connection reset".into()));
    world.lose("n1");
    world.version += 1;
    let read = pool_object("blue", world.version, 1, SPEC, &freed);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(read)));
    assert!(awaited(&world).is_empty());
}

#[test]
fn an_admin_lets_go_of_those_who_are_silent_by_name_or_all_and_the_name_goes_though_no_agent_speaks() {
    for named in ["n1", "*"] {
        let mut world = World::led_by(AllocationState::Allocated, &["n1"], &[blue()], vec![]);
        world.settle();
        let calls = force(&mut world, named);
        let lifted = |call: &Command| {
            matches!(call, Command::PatchPool { patch: PoolPatch::Annotation(FORCE_RELEASE, None), .. })
        };
        assert!(calls.iter().any(lifted), "{calls:#?}");
        assert!(forced(&world).is_empty(), "{named}: {:?} would let go of the block that n1 has now", forced(&world));
        assert_eq!(world.status().allocations.len(), 1);
        assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
    }
}

#[test]
fn a_silent_node_that_is_gone_is_waited_for_until_the_grace_is_over() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1", "n2"], &[blue()], vec![]);
    let calls = world.calls();
    // Whether n1's was made nobody knows.
    for call in calls {
        let is_of_n1 = matches!(&call, Command::WriteIpamNode(NodeWrite { node, .. }) if node == "n1");
        if is_of_n1 { world.fail(call, CallError::Failed("connection reset".into())) } else { world.succeed(call) }
    }
    world.hear("n2", None);
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    let calls = world.settle();
    assert!(nodes_written(&calls).iter().all(|(_, action)| matches!(action, NodeAction::Create { .. })), "{calls:#?}");
    world.now += Duration::from_hours(23);
    world.settle();
    assert!(world.status().allocations.is_empty());
    world.now += Duration::from_hours(1);
    world.settle();
    assert!(awaited(&world).is_empty());
    world.settle();
    assert_eq!(world.status().allocations.len(), 1);
}

#[test]
fn a_node_that_joins_during_a_recovery_is_not_awaited() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1"], &[blue()], vec![]);
    world.settle();
    world.node_joins("n2");
    world.settle();
    assert_eq!(awaited(&world), ["n1"]);
    assert!(world.status().allocations.is_empty());
    world.hear("n1", None);
    world.settle();
    assert_eq!(world.status().allocations.len(), 2);
}

#[test]
fn a_block_without_records_is_reserved_and_nobody_waits() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    let of_n1 = world.status().allocations[0].range;
    world.lose("n1");
    world.version += 1;
    let wiped = pool_object("blue", world.version, 1, SPEC, &Value::Null);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
    world.node_joins("n0");
    let calls = world.calls();
    let given = |node: &str| {
        let all: Vec<_> = statuses(&calls).into_iter().flat_map(|status| status.allocations.clone()).collect();
        all.into_iter().find(|claim| claim.node == node).map(|claim| claim.range)
    };
    assert_eq!(given("n1"), Some(of_n1), "n1 gets its own block");
    assert!(given("n0").is_some_and(|range| !range.overlaps(&of_n1)), "n0 does not wait: {calls:#?}");
    assert_eq!(awaited(&world), ["n1"]);
    assert_eq!(world.lease, AllocationState::Recovering, "the next leader does not know of it");
}

#[test]
fn a_lost_block_is_reserved_where_an_agent_may_have_allocated() {
    for (has_reported, status_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut world = World::empty();
        world.has_agents = has_reported;
        world.reconciler.settings.agent_nodes = [("os".to_owned(), "linux".to_owned())].into();
        world.reconciler.lead(LeaseState::default(), world.now);
        // No label says that n1 runs an agent.
        world.list(&["n1"], &[blue()], vec![]);
        world.settle();
        assert_eq!(world.reconciler.ipam_nodes.get("n1").unwrap().has_reported(), has_reported);
        world.version += 1;
        let wiped = pool_object("blue", world.version, 1, SPEC, &Value::Null);
        if !status_first {
            world.lose("n1");
        }
        world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
        if status_first {
            world.lose("n1");
        }
        let wanted = usize::from(has_reported);
        assert_eq!(
            awaited(&world).len(),
            wanted,
            "a node without an agent never answers; status first: {status_first}"
        );
    }
}

#[test]
fn a_block_is_reserved_though_an_entry_has_another_block_of_its_node() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    let of_n1 = world.status().allocations[0].range;
    let known = world.reconciler.ipam_nodes.get("n1").unwrap();
    let mut blocks = json!(known.blocks);
    (blocks[0]["startIP"], blocks[0]["endIP"]) = (json!("192.168.0.9"), json!("192.168.0.12"));
    let edited = object(&json!({"metadata": {"name": "n1", "uid": known.uid, "generation": known.generation + 1,
        "resourceVersion": "800", "finalizers": known.finalizers}, "spec": {"pools": blocks}}));
    world.tell(Observed::IpamNode(Event::Apply(edited)));
    world.version = 900;
    let wiped = pool_object("blue", world.version, 1, SPEC, &Value::Null);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
    world.node_joins("n0");
    let calls = world.calls();
    let claims: Vec<_> = statuses(&calls).into_iter().flat_map(|status| status.allocations.clone()).collect();
    let of_n0 = claims.iter().find(|claim| claim.node == "n0").unwrap();
    assert!(!of_n0.range.overlaps(&of_n1), "pods of n1 may have its addresses: {claims:?}");
}

/// A pool that selects n1 alone: the agent of "cp" is not there, and nobody minds.
const OF_N1: &str = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"nodeSelector":{"nodeSelectorTerms":[
    {"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}}"#;

fn of_n1(version: u64, status: &Value) -> RawObject {
    pool_object("blue", version, 1, OF_N1, status)
}

/// The node's IPAMNode as it is known, at a version.
fn at_version(world: &World, node: &str, version: &str) -> RawObject {
    let known = world.reconciler.ipam_nodes.get(node).unwrap();
    object(
        &json!({"metadata": {"name": node, "uid": known.uid, "generation": known.generation, "resourceVersion": version,
            "finalizers": known.finalizers},
        "spec": {"pools": known.blocks}, "status": {"observedGeneration": known.generation, "pools": []}}),
    )
}

pub(super) fn awaited(world: &World) -> Vec<&String> {
    world.reconciler.recovery.awaited_nodes()
}

/// An admin names nodes on the pool; what follows.
pub(super) fn force(world: &mut World, named: &str) -> Vec<Command> {
    world.version += 1;
    let mut forced = pool_object("blue", world.version, 1, SPEC, &status_json(&world.status()));
    forced.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), named.to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(forced)));
    // Who is let go of is waited for no more, and the pool is looked at once more.
    [world.settle(), world.settle()].concat()
}

fn forced(world: &World) -> &std::collections::BTreeSet<String> {
    &world.reconciler.pools[&PoolKey::new(PoolKind::IpPool, "blue")].record.life.force_release
}

#[test]
fn where_all_was_given_back_in_good_order_the_next_leader_asks_nobody() {
    let mut world = World::new(&["cp", "n1"], &[of_n1(10, &json!({}))], vec![]);
    world.settle();
    assert_eq!(world.lease, AllocationState::Allocated);
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 0);
    world.settle();
    assert_eq!(world.reconciler.ipam_nodes.all().keys().collect::<Vec<_>>(), ["cp"]);
    assert_eq!(world.reconciler.wanted_state(), AllocationState::NoneAllocated);
}

#[test]
fn while_reports_alone_have_addresses_the_next_leader_waits_for_others_but_not_for_ever() {
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[], vec![in_use_without_a_block()]);
    world.settle();
    assert!(awaited(&world).is_empty());
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Doubtful);

    // The next leader finds an old Lease.
    let given = AllocationState::Doubtful.doubted();
    let mut world = World::led_by(given, &["n1", "n2"], &[blue()], vec![in_use_without_a_block()]);
    world.has_agents = false;
    world.settle();
    assert!(world.said().contains("2 nodes: n1, n2, for at most 2 min."), "{}", world.said());
}

#[test]
fn a_node_gets_its_first_block_after_the_lease_says_allocated_instead_of_doubtful() {
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[], vec![in_use_without_a_block()]);
    world.settle();
    assert_eq!(world.lease, AllocationState::Doubtful);
    world.lease_fails = true;
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(blue())));
    let calls = world.settle();
    assert!(!statuses(&calls).is_empty());
    assert!(nodes_written(&calls).iter().all(|(_, action)| action.blocks().is_empty()), "{calls:#?}");
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Allocated);
    world.say(AllocationState::Allocated);
    assert_eq!(nodes_written(&world.calls())[0].1.blocks().len(), 1);
}

/// It reports an address in use, and has no block.
fn in_use_without_a_block() -> RawObject {
    let held = json!([{"startIP": "192.168.0.1", "endIP": "192.168.0.2"}]);
    let report = json!({"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.2", "used": 2,
        "capacity": 2, "held": held});
    object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50",
            "finalizers": [crate::ipam_node::FINALIZER]},
        "spec": {"pools": []}, "status": {"observedGeneration": 1, "pools": [report]}}))
}

#[test]
fn where_reports_alone_are_left_new_blocks_wait_for_others_but_not_for_ever() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1", "n2"], &[blue()], vec![in_use_without_a_block()]);
    world.has_agents = false;
    world.settle();
    assert_eq!(awaited(&world), ["n1", "n2"]);
    assert!(world.said().contains("2 nodes: n1, n2, for at most 2 min."), "{}", world.said());
    assert!(world.status().allocations.is_empty());
    world.now += crate::reconcile::recovery::PAUSE;
    world.settle();
    assert_eq!(world.status().allocations.len(), 2);
}

#[test]
fn a_recovery_ends_with_the_last_report() {
    let mut before = World::new(&["n1"], &[blue()], vec![]);
    before.settle();
    let (n1, status) = (at_version(&before, "n1", "50"), status_json(&before.status()));
    let pool = pool_object("blue", 40, 1, SPEC, &status);
    let mut world = World::led_by(AllocationState::Recovering, &["n1"], &[pool], vec![n1]);
    world.settle();
    world.answer("n1");
    world.settle();
    assert_eq!((awaited(&world).len(), world.lease), (0, AllocationState::Allocated));
    world.node_joins("cp");
    assert!(awaited(&world).is_empty(), "{:?}", awaited(&world));
}

#[test]
fn a_label_of_a_node_does_not_undo_what_an_admin_has_said() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1", "n2"], &[blue()], vec![]);
    world.settle();
    force(&mut world, "n1");
    assert_eq!(world.reconciler.recovery.pausing(), ["n2"]);
    let labels = crate::cluster_cache::Labels::from([("rack".to_owned(), "2".to_owned())]);
    world.tell(Observed::Node(Event::Apply(("n1".into(), labels.into()))));
    assert_eq!(world.reconciler.recovery.pausing(), ["n2"]);
    assert_eq!(awaited(&world), ["n1", "n2"], "its earlier report still releases nothing");
}

#[test]
fn the_name_that_let_go_of_a_block_goes_with_it_though_the_agent_never_spoke() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    force(&mut world, "n1");
    assert!(world.status().releasing.is_empty());
    assert!(forced(&world).is_empty(), "{:?}", forced(&world));
}

#[test]
fn a_block_given_after_its_node_was_let_go_of_is_nobody_elses() {
    let mut world = World::led_by(AllocationState::Allocated, &["n1"], &[blue()], vec![]);
    world.settle();
    force(&mut world, "n1");
    let of_n1 = world.status().allocations[0].range;
    // n1's agent was cut off before its first report, and gives.
    world.tell(Observed::Node(Event::Apply((
        "n1".into(),
        NodeMeta { leaving: Some(Leaving::Cordoned), ..NodeMeta::default() },
    ))));
    world.settle();
    world.node_joins("n2");
    world.settle();
    let of_n2 = world.status().allocations.iter().find(|claim| claim.node == "n2").unwrap().range;
    assert!(!of_n1.overlaps(&of_n2), "n2 has {of_n2}, which n1 may be giving from");
}

#[test]
fn who_was_let_go_of_is_not_asked_where_a_status_of_ours_turns_out_to_be_written() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    world.version += 1;
    let mut pool = pool_object("blue", world.version, 1, SPEC, &status_json(&world.status()));
    pool.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(pool)));
    // The answer of the status without its block is lost, and the status has taken effect: a patch at the earlier version conflicts.
    let mut freed = Vec::new();
    for _ in 0..20 {
        for call in world.calls() {
            match &call {
                Command::WriteStatus { status, .. } if status.releasing.is_empty() => {
                    freed.push(status_json(status));
                    world.fail(call, CallError::Failed("reset".into()));
                }
                _ if is_fence(&call) && !freed.is_empty() => world.fail(call, CallError::Conflict("409".into())),
                _ => world.succeed(call),
            }
        }
    }
    assert_eq!(freed.len(), 1, "no status follows before the first has an outcome: {freed:#?}");
    world.version += 1;
    let read = pool_object("blue", world.version, 1, SPEC, &freed[0]);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(read)));
    assert!(awaited(&world).is_empty(), "{:?}", awaited(&world));
}

#[test]
fn a_force_release_keeps_reservations_of_other_pools() {
    let red = r#"{"subnet":"10.0.0.0/16","perNodeBlockSize":4}"#;
    let mut world = World::new(&["n1"], &[blue(), pool_object("red", 11, 1, red, &json!({}))], vec![]);
    world.settle();
    let of_n1 = status(&world, "red").allocations[0].range;
    // All records of both blocks are lost, and an admin force-releases n1 on one pool.
    world.lose("n1");
    world.version = 900;
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(pool_object("red", 900, 1, red, &Value::Null))));
    let mut forced = pool_object("blue", 900, 1, SPEC, &Value::Null);
    forced.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(forced)));
    let reserved: Vec<_> = world.reconciler.recovery.reserved().map(|(pool, node, _)| (&*pool.name, &**node)).collect();
    assert_eq!(reserved, [("red", "n1")]);
    world.node_joins("n0");
    world.settle();
    let claims = status(&world, "red").allocations;
    assert_eq!(claims.iter().find(|claim| claim.node == "n1").map(|claim| claim.range), Some(of_n1), "{claims:?}");
}

/// `n1` and `n2` are served, and an admin has named `n1` since.
fn named_while_served() -> World {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    force(&mut world, "n1");
    assert_eq!(forced(&world).len(), 1, "the name waits until the node leaves");
    world
}

#[test]
fn a_kept_name_ends_no_wait() {
    let mut world = named_while_served();
    let pool = |world: &World| {
        let mut pool = pool_object("blue", world.version, 1, SPEC, &status_json(&world.status()));
        pool.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
        pool
    };
    let nodes = ["n1", "n2"];
    let ipam_nodes = nodes.map(|node| at_version(&world, node, "90")).to_vec();
    // The API server is back in an earlier state, and the pool lists with the same blocks.
    world.reconciler.rolled_back(world.now);
    let listed = pool(&world);
    world.list(&nodes, &[listed], ipam_nodes.clone());
    world.settle();
    assert_eq!(world.reconciler.recovery.pausing(), nodes, "of this leader");
    // The next leader finds the name.
    let mut next = World::led_by(AllocationState::Recovering, &nodes, &[pool(&world)], ipam_nodes);
    next.settle();
    assert_eq!(next.reconciler.recovery.pausing(), nodes, "of the next leader");
    // A name that comes while the report is awaited ends the wait.
    next.version = 500;
    force(&mut next, "n1,n2");
    assert_eq!(next.reconciler.recovery.pausing(), ["n1"]);
    force(&mut next, "n2");
    force(&mut next, "n1");
    assert_eq!(next.reconciler.recovery.pausing(), [""; 0], "the name was taken back and set again");
}

#[test]
fn a_kept_name_keeps_the_reserved_block() {
    let mut world = named_while_served();
    let of_n1 = world.status().allocations[0].range;
    // Both records of the block are lost.
    world.lose("n1");
    world.version = 900;
    let mut wiped = pool_object("blue", 900, 1, SPEC, &Value::Null);
    wiped.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
    let reserved: Vec<_> = world.reconciler.recovery.reserved().map(|(_, node, _)| &**node).collect();
    assert_eq!(reserved, ["n1"]);
    world.node_joins("n0");
    world.settle();
    let claims = world.status().allocations;
    assert_eq!(claims.iter().find(|claim| claim.node == "n1").map(|claim| claim.range), Some(of_n1), "{claims:?}");
}

#[test]
fn a_kept_name_acts_on_a_wait_once_its_node_leaves() {
    let mut world = named_while_served();
    world.lose("n1");
    world.version = 900;
    let mut wiped = pool_object("blue", 900, 1, SPEC, &Value::Null);
    wiped.metadata.annotations = Some([(FORCE_RELEASE.to_owned(), "n1".to_owned())].into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(wiped)));
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    assert_eq!(world.reconciler.recovery.reserved().count(), 0);
    assert!(world.status().claims().all(|claim| claim.node != "n1"), "{:?}", world.status());
    assert!(forced(&world).is_empty(), "{:?}", forced(&world));
}
