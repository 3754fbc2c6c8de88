//! The API server is, or may be, in an earlier state: what a leader requests, and what waits.

use prometheus_client::registry::Registry;

use super::recovery::{awaited, force};
use super::*;

/// Two nodes with blocks, of which `nodes` have a Node, found by a new leader whose Lease says that records may be from an earlier time. The agent of `n2` has
/// ended its grant by the report that is found.
fn found_after_a_restore(nodes: &[&str]) -> World {
    let (pool, mut ipam_nodes) = left_behind(&["n1", "n2"]);
    let ended = |object: &RawObject| {
        let mut spec: Value = serde_json::from_str(object.spec.as_ref().unwrap().get()).unwrap();
        let entry = &mut spec["pools"][0];
        entry["grant"] = json!("6500000000000001");
        let report = json!({"name": "blue", "poolType": "IPPool", "startIP": entry["startIP"], "endIP": entry["endIP"],
            "grant": entry["grant"], "ended": true, "used": 0, "capacity": 4});
        self::object(&json!({"metadata": {"name": "n2", "uid": "uid-n2", "generation": 2, "resourceVersion": "60",
            "finalizers": [crate::ipam_node::FINALIZER]},
            "spec": spec, "status": {"observedGeneration": 2, "pools": [report]}}))
    };
    let n2 = ipam_nodes.iter().position(|object| object.name() == "n2").unwrap();
    ipam_nodes[n2] = ended(&ipam_nodes[n2]);
    World::led_by(AllocationState::Recovering, nodes, &[pool], ipam_nodes)
}

/// The grant of the node's entry, and the request in its IPAMNode.
fn grant_and_request(world: &World, node: &str) -> (String, Option<String>) {
    let known = world.reconciler.ipam_nodes.get(node).unwrap();
    (known.blocks[0].grant.clone(), known.request.clone())
}

#[test]
fn an_ended_grant_is_replaced_only_after_all_nodes_have_reported() {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.settle();
    let (grant, request) = grant_and_request(&world, "n2");
    assert_eq!(grant, "6500000000000001");
    assert!(request.is_some() && request != grant_and_request(&world, "n1").1, "each request has an ID of its own");
    world.answer("n2");
    world.settle();
    assert_eq!((awaited(&world), grant_and_request(&world, "n2").0), (vec![&"n1".to_owned()], grant.clone()));
    world.answer("n1");
    world.settle();
    assert!(awaited(&world).is_empty());
    assert_ne!(grant_and_request(&world, "n2").0, grant);
}

/// n1 answers. It uses an address of the block of n2, outside its own block.
fn answer_with_use(world: &mut World) {
    let [n1, n2] = ["n1", "n2"].map(|node| world.reconciler.ipam_nodes.get(node).unwrap());
    let used = &n2.blocks[0].start_ip;
    let report = json!({"name": "blue", "poolType": "IPPool", "startIP": used, "endIP": used, "used": 1, "capacity": 0,
        "held": [{"startIP": used, "endIP": used}]});
    let answer = object(&json!({
        "metadata": {"name": "n1", "uid": n1.uid, "generation": n1.generation, "resourceVersion": "500", "finalizers": n1.finalizers},
        "spec": {"pools": n1.blocks, "reportRequest": n1.request},
        "status": {"observedGeneration": n1.generation, "reportRequest": n1.request, "pools": [report]},
    }));
    world.tell(Observed::IpamNode(Event::Apply(answer)));
}

/// Nothing is under way, and the IPAMNode of n2 is looked at before the pool. No new grant of it may allocate the address.
fn ensure_left_out(world: &mut World) {
    let mut calls = world.poll();
    calls.iter().cloned().for_each(|call| world.succeed(call));
    calls.extend(world.settle());
    let writes = nodes_written(&calls).into_iter().filter(|(node, _)| *node == "n2");
    let written: Vec<&NodeBlock> = writes.flat_map(|(_, action)| action.blocks()).collect();
    let granted: Vec<&&NodeBlock> = written.iter().filter(|block| block.grant != "6500000000000001").collect();
    assert!(!granted.is_empty(), "{calls:#?}");
    assert!(granted.iter().all(|block| !block.held_elsewhere.is_empty()), "{granted:#?}");
}

#[test]
fn a_grant_that_waited_for_reports_leaves_out_what_they_have_in_use() {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.settle();
    world.answer("n2");
    world.settle();
    answer_with_use(&mut world);
    ensure_left_out(&mut world);
}

#[test]
fn a_status_write_from_the_wait_for_reports_makes_no_grant() {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.settle();
    world.answer("n2");
    world.settle();
    // Another condition is being written when the last report arrives.
    world.node_joins("n3");
    let mut calls = world.calls();
    calls.extend(world.calls());
    let status = calls.iter().position(|call| matches!(call, Command::WriteStatus { .. })).map(|at| calls.remove(at));
    for call in calls {
        world.succeed(call);
    }
    answer_with_use(&mut world);
    world.succeed(status.unwrap());
    ensure_left_out(&mut world);
}

#[test]
fn the_next_leader_waits_no_longer_although_the_last_block_was_released() {
    let mut world = found_after_a_restore(&["n1", "n2", "n3"]);
    world.settle();
    assert_eq!(world.lease, AllocationState::Recovering);
    for node in ["n1", "n2"] {
        let meta = NodeMeta { leaving: Some(Leaving::Cordoned), ..NodeMeta::default() };
        world.tell(Observed::Node(Event::Apply((node.into(), meta))));
    }
    world.answer("n2");
    world.settle();
    force(&mut world, "n1");
    world.settle();
    assert_eq!((world.status().claims().count(), world.reconciler.recovery.pausing()), (0, vec!["n3".to_owned()]));
    assert!(world.said().contains("n3, for at most 2 min"), "{}", world.said());
    assert_eq!(world.lease, AllocationState::Doubtful);
}

#[test]
fn new_blocks_wait_two_minutes_at_most_where_records_are_there() {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.settle();
    world.node_joins("n3");
    world.now += Duration::from_secs(100);
    world.settle();
    assert_eq!(world.status().allocations.len(), 2);
    assert!(
        world.said().contains("AllocationPaused=True") && world.said().contains("n1, n2, for at most 2 min"),
        "{}",
        world.said()
    );
    world.now += Duration::from_secs(20);
    for _ in 0..2 {
        world.settle();
    }
    assert_eq!(world.status().allocations.len(), 3);
    assert!(world.said().contains("AllocationPaused=False"), "{}", world.said());
    assert_eq!(awaited(&world), ["n1", "n2"], "their earlier reports prove nothing");
}

#[test]
fn the_report_that_an_earlier_leader_requested_is_still_awaited() {
    let (pool, mut ipam_nodes) = left_behind(&["n1", "n2"]);
    let spec: Value = serde_json::from_str(ipam_nodes[1].spec.as_ref().unwrap().get()).unwrap();
    let (block, request) = (&spec["pools"][0], "0000000000000001");
    let report = json!({"name": "blue", "poolType": "IPPool", "startIP": block["startIP"], "endIP": block["endIP"],
        "grant": block["grant"], "ended": true, "used": 0, "capacity": 4});
    ipam_nodes[1] = object(
        &json!({"metadata": {"name": "n2", "uid": "uid-n2", "generation": 2, "resourceVersion": "60",
        "finalizers": [crate::ipam_node::FINALIZER]},
        "spec": {"pools": spec["pools"], "reportRequest": request}, "status": {"observedGeneration": 2, "pools": [report]}}),
    );
    let mut world = World::led_by(AllocationState::Allocated, &["n1"], &[pool], ipam_nodes);
    world.settle();
    assert_eq!(world.status().releasing.len(), 1, "the report is from before the request");
    world.answer("n2");
    world.settle();
    assert!(world.status().releasing.is_empty());
}

#[test]
fn an_earlier_report_releases_no_block() {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    world.settle();
    assert_eq!(world.status().releasing.len(), 1, "the report that was found says that the grant has ended");
    world.answer("n2");
    world.settle();
    assert!(world.status().releasing.is_empty());
}

#[test]
fn an_object_that_we_wrote_during_a_list_is_no_sign_of_a_restore() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let first = only(world.calls());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    world.succeed(first);
    world.tell(Observed::IpamNode(Event::Init));
    let before = empty("n1");
    for call in world.calls() {
        world.succeed(call);
    }
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(blue())));
    world.tell(Observed::IpamNode(Event::InitApply(before.clone())));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitDone));
    world.tell(Observed::IpamNode(Event::InitDone));
    assert!(!world.reconciler.take_wish_for_lists());
    assert_eq!((world.status().allocations.len(), awaited(&world).len()), (1, 0));
    world.tell(Observed::IpamNode(Event::Init));
    world.tell(Observed::IpamNode(Event::InitApply(before)));
    assert!(world.reconciler.take_wish_for_lists(), "of a later list it is one");
}

#[test]
fn a_node_that_runs_no_agent_is_not_awaited() {
    let mut world = World::empty();
    world.reconciler.settings.agent_nodes = [("os".to_owned(), "linux".to_owned())].into();
    world.lease = AllocationState::Allocated;
    world.reconciler.lead(LeaseState { allocation: AllocationState::Allocated, ..LeaseState::default() }, world.now);
    world.list(&["n1", "n2"], &[blue()], vec![]);
    let labels = crate::cluster_cache::Labels::from([("os".to_owned(), "linux".to_owned())]);
    world.tell(Observed::Node(Event::Apply(("n1".into(), labels.into()))));
    world.settle();
    assert_eq!(awaited(&world), ["n1"]);
    world.hear("n1", None);
    world.settle();
    assert_eq!(world.status().allocations.len(), 2);
}

#[test]
fn a_deleted_pool_awaits_no_node_without_an_agent() {
    let (pool, ipam_nodes) = left_behind(&["n1", "n2"]);
    let mut world = World::empty();
    world.has_agents = false;
    world.reconciler.settings.agent_nodes = [("os".to_owned(), "linux".to_owned())].into();
    world.lease = AllocationState::Recovering;
    let state = LeaseState { allocation: AllocationState::Recovering, ..LeaseState::default() };
    world.reconciler.lead(state, world.now);
    world.list(&["n1", "n2"], &[pool], ipam_nodes);
    world.settle();
    assert_eq!(awaited(&world), [""; 0], "neither node runs an agent");
    let mut deleted = pool_object("blue", 900, 1, SPEC, &status_json(&world.status()));
    deleted.metadata.deletion_timestamp = leaving_since();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(deleted)));
    world.settle();
    assert!(world.status().releasing.is_empty(), "{:?}", world.status().releasing);
}

#[test]
fn a_deleted_pool_awaits_no_node_without_an_agent_or_entry() {
    for runs_agent in [false, true] {
        let (mut pool, _) = left_behind(&["n1"]);
        pool.metadata.deletion_timestamp = leaving_since();
        pool.metadata.finalizers = Some(vec![crate::pool::FINALIZER.to_owned()]);
        let mut world = World::empty();
        world.has_agents = false;
        if !runs_agent {
            world.reconciler.settings.agent_nodes = [("os".to_owned(), "linux".to_owned())].into();
        }
        world.reconciler.lead(LeaseState::default(), world.now);
        // The last leader ended before it wrote the entry.
        world.list(&["n1"], &[pool], vec![empty("n1")]);
        world.settle();
        assert_eq!(world.status().releasing.len(), usize::from(runs_agent));
    }
}

#[test]
fn the_earlier_report_of_a_missing_node_releases_nothing() {
    let mut world = found_after_a_restore(&["n1"]);
    world.settle();
    assert_eq!(awaited(&world), ["n1", "n2"]);
    assert_eq!(world.status().releasing.len(), 1, "the agent may use the block since its report");
    world.answer("n2");
    world.settle();
    assert!(world.status().releasing.is_empty());
}

#[test]
fn an_unanswered_request_keeps_no_ipam_node_after_the_grace() {
    for in_use in [0, 1] {
        let mut world = found_after_a_restore(&["n1"]);
        world.has_agents = false;
        world.settle();
        let known = world.reconciler.ipam_nodes.get("n2").unwrap().clone();
        let mut reports = json!(known.reports);
        reports[0]["used"] = json!(in_use);
        let event = json!({
            "metadata": {"name": "n2", "uid": known.uid, "generation": known.generation, "resourceVersion": "900",
                "finalizers": known.finalizers},
            "spec": {"pools": known.blocks, "reportRequest": known.request},
            "status": {"observedGeneration": known.generation, "pools": reports},
        });
        world.version = 900;
        world.tell(Observed::IpamNode(Event::Apply(object(&event))));
        world.settle();
        assert_eq!(world.status().releasing.len(), 1);
        for _ in 0..25 {
            world.now += Duration::from_hours(1);
            world.settle();
        }
        assert!(world.status().releasing.is_empty(), "{:?}", world.status());
        assert_eq!(world.reconciler.ipam_nodes.all().keys().collect::<Vec<_>>(), ["n1"], "{in_use} in use");
    }
}

#[test]
fn an_ipam_node_with_a_request_of_a_former_leader_goes_after_the_grace() {
    let n2 = object(&json!({
        "metadata": {"name": "n2", "uid": "uid-n2", "generation": 2, "resourceVersion": "60",
            "finalizers": [crate::ipam_node::FINALIZER]},
        "spec": {"pools": [], "reportRequest": "of-a-former-leader"},
    }));
    let mut world = World::new(&["n1"], &[blue()], vec![n2]);
    world.settle();
    world.now += Duration::from_hours(23);
    world.settle();
    assert!(world.reconciler.ipam_nodes.get("n2").is_some());
    world.now += Duration::from_hours(2);
    world.settle();
    assert!(world.reconciler.ipam_nodes.get("n2").is_none());
}

#[test]
fn an_old_request_to_a_node_without_an_agent_is_not_awaited() {
    for has_reported in [false, true] {
        let (mut pool, ipam_nodes) = left_behind(&["n1"]);
        pool.metadata.deletion_timestamp = leaving_since();
        pool.metadata.finalizers = Some(vec![crate::pool::FINALIZER.to_owned()]);
        let mut spec: Value = serde_json::from_str(ipam_nodes[0].spec.as_ref().unwrap().get()).unwrap();
        spec["reportRequest"] = json!("of-a-former-leader");
        let status = if has_reported { json!({"observedGeneration": 1, "pools": []}) } else { json!({}) };
        let n1 = object(&json!({"metadata": {"name": "n1", "uid": "uid-n1", "generation": 1, "resourceVersion": "50",
            "finalizers": ipam_nodes[0].metadata.finalizers}, "spec": spec, "status": status}));
        let mut world = World::empty();
        world.has_agents = false;
        world.reconciler.settings.agent_nodes = [("os".to_owned(), "linux".to_owned())].into();
        world.reconciler.lead(LeaseState::default(), world.now);
        world.list(&["n1"], &[pool], vec![n1]);
        world.settle();
        assert_eq!(world.status().releasing.len(), usize::from(has_reported));
        let is_kept = world.reconciler.ipam_nodes.get("n1").unwrap().has_finalizer();
        assert_eq!(is_kept, has_reported, "a pool or a namespace that is deleted would wait");
    }
}

/// Three minutes after a restore: n2 has reported, and n1 has not.
fn after_a_wait_in_vain() -> World {
    let mut world = found_after_a_restore(&["n1", "n2"]);
    world.has_agents = false;
    world.settle();
    world.answer("n2");
    world.settle();
    world.now += Duration::from_mins(3);
    world.settle();
    world
}

/// Status, reason and message of the condition AllocationPaused.
fn paused(world: &World) -> (String, String, String) {
    let found = world.status().summary.conditions.into_iter().find(|it| it.type_ == "AllocationPaused").unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn late_reports_are_missed_until_they_arrive() {
    let mut world = after_a_wait_in_vain();
    let (status, reason, message) = paused(&world);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ReportsMissing"));
    assert!(message.contains("node n1") && !message.contains("n2"), "{message}");
    assert!(world.warnings().contains(&"ReportsMissing"));
    world.answer("n1");
    world.settle();
    assert_eq!(paused(&world).1, "RecordsComplete");
}

#[test]
fn the_report_of_a_force_released_node_is_missed_no_more() {
    let mut world = after_a_wait_in_vain();
    let counted = |world: &World| {
        let mut registry = Registry::default();
        world.reconciler.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().find_map(|line| line.strip_prefix("nodes_awaiting_report ")).unwrap().to_owned()
    };
    assert_eq!((paused(&world).1.as_str(), counted(&world).as_str()), ("ReportsMissing", "1"));
    force(&mut world, "n1");
    assert_eq!((paused(&world).1.as_str(), counted(&world).as_str()), ("RecordsComplete", "0"));
    assert_eq!(awaited(&world), ["n1"], "its earlier report still releases nothing");
}

#[test]
fn a_force_released_node_leaves_no_ipam_node_behind() {
    let mut world = found_after_a_restore(&["n1"]);
    world.has_agents = false;
    world.settle();
    force(&mut world, "n2");
    assert!(world.status().releasing.is_empty());
    assert_eq!(world.reconciler.ipam_nodes.all().keys().collect::<Vec<_>>(), ["n1"]);
    assert_eq!(awaited(&world), ["n1"]);
}
