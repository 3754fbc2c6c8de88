//! Whole histories, without a server: what is told, and exactly which calls follow.

use std::time::Duration;

use ipam_crds::{BlockState, BlockUse, NodeBlock};
use serde_json::{Value, json};

use super::model::Model;
use super::*;
use crate::allocation_state::AllocationState;
use crate::cluster_cache::Leaving;
use crate::decide::CreateBlocked;
use crate::ipam_node::IpamNodeRecord;
use crate::pool::{FENCED_BY, FINALIZER, FORCE_RELEASE, PoolRecord, StatusRecord};

mod absences;
mod bytes;
mod earlier_state;
mod edits;
mod failed_writes;
mod fence;
mod lifetime;
mod other_pools;
mod outside;
mod places;
mod races;
mod recovery;
mod steps;
mod world;

use world::*;

#[test]
fn a_new_pool_is_written_as_one_status_and_then_one_ipam_node_each() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    let write = only(world.calls());
    assert_eq!(status_of(&write).allocations.len(), 2);
    let Command::WriteStatus { pool, .. } = &write else { panic!() };
    assert_eq!(pool.resource_version, "10");
    assert!(world.calls().is_empty(), "no IPAMNode before the status is written");
    world.succeed(write);
    let calls = world.calls();
    let created = nodes_written(&calls);
    assert_eq!(created.iter().map(|(node, _)| *node).collect::<Vec<_>>(), ["n1", "n2"]);
    assert!(created.iter().all(|(_, action)| matches!(action, NodeAction::Update { blocks, finalizers, .. }
        if blocks.len() == 1 && finalizers[..] == [crate::ipam_node::FINALIZER])));
    for call in calls {
        world.succeed(call);
    }
    assert!(world.calls().is_empty());
    assert!(world.reconciler.is_idle());
}

#[test]
fn new_node_gets_a_block_in_one_status_write_and_touches_no_other_ipam_node() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.node_joins("n3");
    let calls = world.settle();
    let writes = calls.iter().filter(|call| matches!(call, Command::WriteStatus { .. })).map(status_of);
    assert_eq!(writes.map(|status| status.allocations.len()).collect::<Vec<_>>(), [3], "{calls:#?}");
    assert!(matches!(
        nodes_written(&calls)[..],
        [("n3", NodeAction::Create { .. }), ("n3", NodeAction::Update { .. })]
    ));
}

#[test]
fn heartbeats_cause_no_call() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    for _ in 0..200 {
        world.node_joins("n1");
        world.node_joins("n2");
    }
    assert_eq!(world.next_wake(), None, "nothing is even due");
    assert!(world.calls().is_empty());
}

#[test]
fn a_burst_of_joins_is_one_status_write() {
    let mut world = World::new(&[], &[blue()], vec![]);
    world.settle();
    for number in 0..100 {
        world.node_joins(&format!("n{number}"));
        let calls = world.calls_after(Duration::from_millis(2));
        assert!(calls.iter().all(is_creation), "{calls:#?}");
    }
    let calls = world.calls();
    let status = calls.iter().find(|call| matches!(call, Command::WriteStatus { .. })).unwrap();
    assert_eq!(status_of(status).allocations.len(), 100);
}

#[test]
fn conflict_means_observe_again() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let write = only(world.calls());
    world.fail(write, CallError::Conflict("changed".into()));
    assert!(world.calls_after(Duration::from_millis(1)).is_empty(), "not with the same version at once");
    // Another writer gave n1 another block meanwhile: it stays.
    let other = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.9", "endIP": "192.168.0.12"}]});
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(pool_object("blue", 20, 1, SPEC, &other))));
    let write = only(world.calls());
    let Command::WriteStatus { pool, status } = &write else { panic!("{write:?}") };
    assert_eq!(pool.resource_version, "20");
    assert_eq!(status.allocations[0].range.to_string(), "192.168.0.9-192.168.0.12");
}

#[test]
fn nothing_is_decided_before_every_cache_is_in_sync() {
    let mut world = World::empty();
    world.reconciler.lead(LeaseState::default(), world.now);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(blue())));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitDone));
    world.tell(Observed::Pool(PoolKind::CidrPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::CidrPool, Event::InitDone));
    world.tell(Observed::Node(Event::Init));
    world.tell(Observed::Node(Event::InitApply(("n1".into(), NodeMeta::default()))));
    world.tell(Observed::Node(Event::InitDone));
    world.tell(Observed::IpamNode(Event::Init));
    world.now += Duration::from_mins(1);
    assert!(!world.reconciler.is_synced() && world.poll().is_empty() && world.next_wake().is_none());
    let earlier = world.reconciler.lease_request();
    world.tell(Observed::IpamNode(Event::InitDone));
    assert!(world.reconciler.is_synced());
    assert!(world.poll().is_empty() && world.next_wake().is_none() && !world.reconciler.is_idle());
    world.reconciler.on_lease_state(earlier.granted(), world.now);
    assert!(world.poll().is_empty(), "a write that was asked for earlier says nothing of these lists");
    world.reconciler.on_lease_state(world.reconciler.lease_request().granted(), world.now);
    assert!(!world.poll().is_empty());
}

#[test]
fn lists_from_before_a_restore_are_confirmed_by_no_write_that_was_asked_for_after_them() {
    let mut world = World::empty();
    world.reconciler.lead(LeaseState::default(), world.now);
    world.list(&["n1"], &[blue()], vec![empty("n1")]);
    world.now += Duration::from_mins(1);
    let asked = world.reconciler.lease_request();
    // A watch sees an earlier state, and all is listed once more.
    let earlier = pool_object("blue", 9, 1, SPEC, &json!({}));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(earlier.clone())));
    assert!(world.reconciler.take_wish_for_lists());
    world.list(&["n1"], &[earlier], vec![empty("n1")]);
    world.reconciler.on_lease_state(asked.granted(), world.now);
    assert!(world.poll().is_empty(), "the write was asked for before the new lists");
    world.confirmed = asked.confirm;
    assert!(!world.settle().is_empty());
}

#[test]
fn a_list_of_a_watch_that_broke_counts_after_a_write_of_the_lease() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Pool(PoolKind::CidrPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::CidrPool, Event::InitDone));
    world.node_joins("n2");
    world.now += Duration::from_mins(1);
    assert!(world.poll().is_empty(), "the list may be from a backup");
    assert!(!world.calls().is_empty());
}

#[test]
fn a_follower_forgets_nodes_that_are_gone() {
    let mut world = World::empty();
    world.list(&["n1"], &[blue()], vec![]);
    let (queue, silent) = (world.reconciler.queue.clone(), recovery::silent("n2"));
    world.node_joins("n2");
    world.tell(Observed::IpamNode(Event::Apply(silent.clone())));
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    assert_ne!(world.reconciler.queue, queue, "its IPAMNode is there");
    world.tell(Observed::IpamNode(Event::Delete(silent)));
    assert_eq!(world.reconciler.queue, queue);
}

#[test]
fn a_follower_keeps_warm_and_does_nothing_until_it_leads() {
    let mut world = World::empty();
    world.list(&["n1"], &[blue()], vec![]);
    world.node_joins("n2");
    assert!(world.reconciler.is_synced());
    assert!(world.calls().is_empty() && world.next_wake().is_none());
    world.reconciler.lead(LeaseState::default(), world.now);
    assert!(world.calls().is_empty(), "what was listed before may be what the last leader has changed since");
    world.list(&["n1", "n2"], &[blue()], vec![]);
    assert_eq!(status_of(&only(world.calls())).allocations.len(), 2);
}

/// The pool and IPAMNodes that a first run over `nodes` leaves behind, as a second run would read them.
fn left_behind(nodes: &[&str]) -> (RawObject, Vec<RawObject>) {
    let mut world = World::new(nodes, &[blue()], vec![]);
    let calls = world.settle();
    let status = serde_json::to_value(status_of(&calls[0]).body(PoolKind::IpPool)).unwrap();
    let ipam_nodes = nodes_written(&calls).into_iter().map(|(node, action)| {
        let NodeAction::Update { blocks, finalizers, .. } = action else { panic!("{action:?}") };
        object(&json!({
            "metadata": {"name": node, "uid": format!("uid-{node}"), "generation": 1, "resourceVersion": "50",
                "finalizers": finalizers},
            "spec": {"pools": blocks},
        }))
    });
    (pool_object("blue", 40, 1, SPEC, &status), ipam_nodes.collect())
}

#[test]
fn after_a_restart_nothing_is_written_and_the_version_is_confirmed_once() {
    let (pool, ipam_nodes) = left_behind(&["n1", "n2"]);
    let mut world = World::new(&["n1", "n2"], &[pool], ipam_nodes);
    let confirm = only(world.calls());
    assert!(matches!(confirm, Command::Confirm { .. }), "{confirm:?}");
    world.succeed(confirm);
    assert!(world.settle().is_empty());
    world.node_joins("n1");
    assert!(world.settle().is_empty());
}

#[test]
fn a_status_that_is_not_current_derives_no_ipam_node() {
    let (pool, _) = left_behind(&["n1", "n2"]);
    let mut world = World::new(&["n1", "n2"], &[pool], vec![]);
    let Command::Confirm { pool } = only(world.calls()) else { panic!("not asked") };
    world.outcome(Outcome::Pool(pool, Ok("41".into())));
    assert!(world.calls_after(Duration::from_millis(100)).is_empty(), "the watch is about to tell");
}

#[test]
fn the_echo_of_our_own_write_wakes_nothing_whenever_it_comes() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let write = only(world.calls());
    let status = serde_json::to_value(status_of(&write).body(PoolKind::IpPool)).unwrap();
    let echo = pool_object("blue", 101, 1, SPEC, &status);
    // Before the answer to the write, and again after it.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(echo.clone())));
    world.succeed(write);
    world.settle();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(echo)));
    // An event from before the write, which comes late.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(blue())));
    assert_eq!(world.next_wake(), None);
}

#[test]
fn an_ipam_node_edited_or_deleted_by_hand_is_put_right() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    let edited = json!({
        "metadata": {"name": "n1", "uid": "uid-n1", "generation": 2, "resourceVersion": "200"},
        "spec": {"pools": []},
    });
    world.tell(Observed::IpamNode(Event::Apply(object(&edited))));
    let calls = world.settle();
    assert!(
        matches!(nodes_written(&calls)[..], [("n1", NodeAction::Update { version, .. })] if version == "200"),
        "{calls:?}"
    );
    world.tell(Observed::IpamNode(Event::Delete(object(&edited))));
    let calls = world.settle();
    assert!(
        matches!(nodes_written(&calls)[..], [("n1", NodeAction::Create { .. }), ("n1", NodeAction::Update { .. })]),
        "{calls:?}"
    );
}

#[test]
fn the_ipam_node_of_a_node_that_is_gone_stays_while_its_block_is_being_taken_back() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    let calls = world.settle();
    assert_eq!((status_of(&calls[0]).allocations.len(), status_of(&calls[0]).releasing.len()), (1, 1));
    let [("n1", NodeAction::Update { blocks, .. })] = &nodes_written(&calls)[..] else { panic!("{calls:#?}") };
    assert_eq!(blocks[0].state, BlockState::Releasing);
    report(&mut world, "n1", 2);
    assert!(nodes_written(&world.settle()).is_empty());
    report(&mut world, "n1", 0);
    let calls = world.settle();
    assert_eq!(status_of(&calls[0]).releasing.len(), 0, "free with the next write");
    assert!(
        matches!(nodes_written(&calls[1..2])[..], [("n1", NodeAction::Update { blocks, .. })] if blocks.is_empty())
    );
}

#[test]
fn what_a_pool_that_vanished_had_given_is_taken_back_before_it_is_forgotten() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    // Somebody took the finalizer off by hand.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    let calls = world.settle();
    let written = nodes_written(&calls);
    let [("n2", NodeAction::Update { blocks, .. })] = &written[..] else { panic!("{written:?}") };
    assert_eq!(blocks[0].state, BlockState::Releasing);
    report(&mut world, "n2", 0);
    let calls = world.settle();
    assert!(
        matches!(nodes_written(&calls)[..], [("n2", NodeAction::Update { blocks, .. })] if blocks.is_empty()),
        "{calls:?}"
    );
    // Nobody can speak for n1 any more.
    world.now += Duration::from_hours(24);
    let calls = world.settle();
    let [("n1", NodeAction::Update { blocks, .. }), ("n1", NodeAction::Delete(..))] = &nodes_written(&calls)[..] else {
        panic!("{calls:?}")
    };
    assert!(blocks.is_empty());
}

#[test]
fn an_invalid_spec_leaves_ipam_nodes_as_they_are_also_after_a_restart() {
    let (pool, ipam_nodes) = left_behind(&["n1"]);
    let status: Value = serde_json::from_str(pool.status.as_ref().unwrap().get()).unwrap();
    let invalid = pool_object("blue", 60, 2, r#"{"subnet":"x","perNodeBlockSize":4}"#, &status);
    let mut world = World::new(&["n1", "n2"], &[invalid], ipam_nodes);
    let calls = world.settle();
    assert_eq!(status_of(&only(calls)).allocations.len(), 1);
    assert_eq!(world.warnings(), ["InvalidSpec"]);
    world.node_joins("n3");
    assert!(world.settle().iter().all(is_creation), "not said every second");
}

#[test]
fn two_pools_make_one_write_of_an_ipam_node_sorted_by_type_and_name() {
    let green = pool_object("green", 11, 1, r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#, &json!({}));
    let mut world = World::new(&["n1"], &[green, blue()], vec![]);
    let calls = world.settle();
    let written = nodes_written(&calls);
    let [("n1", NodeAction::Update { blocks, .. })] = &written[..] else { panic!("{written:?}") };
    assert_eq!(blocks.iter().map(|block| block.name.as_str()).collect::<Vec<_>>(), ["blue", "green"]);
}

#[test]
fn a_changed_route_reaches_every_ipam_node() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    let calls = world.settle();
    let status = serde_json::to_value(status_of(&calls[0]).body(PoolKind::IpPool)).unwrap();
    let spec = SPEC.replace('}', r#","routes":[{"dst":"5.5.0.0/16"}]}"#);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(pool_object("blue", 150, 2, &spec, &status))));
    let calls = world.settle();
    let written = nodes_written(&calls);
    assert_eq!(written.len(), 2, "{calls:#?}");
    assert!(
        written
            .iter()
            .all(|(_, action)| matches!(action, NodeAction::Update { blocks: b, .. } if b[0].routes.len() == 1))
    );
}

/// The agent of `node` reports about the block that its IPAMNode has.
fn report(world: &mut World, node: &str, used: i64) {
    let record = world.reconciler.ipam_nodes.get(node).unwrap();
    world.version = world.version.max(record.resource_version.parse().unwrap_or(0)) + 1;
    let pools = record.blocks.iter().map(|block| {
        json!({"name": block.name, "poolType": "IPPool", "grant": block.grant,
            "ended": used == 0 && block.state == BlockState::Releasing, "startIP": block.start_ip,
            "endIP": block.end_ip, "used": used, "capacity": 3})
    });
    let event = json!({
        "metadata": {"name": node, "uid": record.uid, "generation": record.generation,
            "resourceVersion": world.version.to_string(), "finalizers": record.finalizers},
        "spec": {"pools": record.blocks, "reportRequest": record.request},
        "status": {"observedGeneration": record.generation, "reportRequest": record.request, "pools": pools.collect::<Vec<_>>()},
    });
    world.tell(Observed::IpamNode(Event::Apply(object(&event))));
}

#[test]
fn reports_of_agents_are_written_together_and_not_more_often_than_allowed() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.calls_after(pool_task::LIVELY);
    report(&mut world, "n1", 2);
    let write = only(world.calls());
    world.succeed(write);
    report(&mut world, "n1", 1);
    report(&mut world, "n2", 2);
    assert!(world.calls().is_empty(), "the status was written a moment ago");
    let write = only(world.calls_after(pool_task::COUNTS_EVERY));
    assert_eq!(status_of(&write).summary.addresses.unwrap().used, 3);
    world.succeed(write);
    report(&mut world, "n1", 1);
    assert!(world.calls().is_empty() && world.next_wake().is_none(), "no change, no call");
}

#[test]
fn what_agents_report_soon_after_a_new_leader_began_does_not_wait_as_long_as_later_counts() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 1);
    let write = only(world.calls_after(Duration::from_secs(1)));
    world.succeed(write);
    world.calls_after(pool_task::LIVELY);
    report(&mut world, "n1", 2);
    let write = only(world.calls());
    world.succeed(write);
    report(&mut world, "n1", 3);
    assert!(world.calls_after(Duration::from_secs(2)).is_empty(), "in the long run every ten seconds");
    only(world.calls_after(pool_task::COUNTS_EVERY));
}

#[test]
fn a_failed_write_is_tried_again_and_an_unreachable_server_is_not_flooded() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let mut tries = 0;
    let start = world.now;
    while world.now < start + Duration::from_mins(1) {
        for call in world.calls() {
            tries += 1;
            world.fail(call, CallError::Failed("connection refused".into()));
        }
    }
    assert!((3..=10).contains(&tries), "{tries} tries in a minute");
    world.calls_after(Duration::from_secs(30)).into_iter().for_each(|call| world.succeed(call));
    assert_eq!(nodes_written(&world.settle()).len(), 1);
}

#[test]
fn events_do_not_make_failing_writes_more_frequent() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    // The status of the pool, and then the IPAMNode, is refused from now on, while an agent reports twenty times a second.
    for fails_for_status in [true, false] {
        world.node_joins(if fails_for_status { "n2" } else { "n3" });
        let (start, mut tries, mut used) = (world.now, 0, 0);
        while world.now < start + Duration::from_mins(1) {
            used += 1;
            report(&mut world, "n1", used % 3);
            for call in world.calls_after(Duration::from_millis(50)) {
                let is_status = matches!(call, Command::WriteStatus { .. } | Command::Confirm { .. });
                let is_node = matches!(&call, Command::WriteIpamNode(write) if write.node != "n1");
                if (is_status && fails_for_status) || (is_node && !fails_for_status) {
                    tries += 1;
                    world.fail(call, CallError::Failed("etcdserver: request is too large".into()));
                } else {
                    world.succeed(call);
                }
            }
            if !fails_for_status {
                world.reconciler.queue.push("n3");
            }
        }
        assert!((3..=12).contains(&tries), "status: {fails_for_status}, {tries} tries in a minute");
        world.now += Duration::from_secs(30);
        world.settle();
    }
}

#[test]
fn labels_that_change_no_selection_make_no_plan() {
    let selects = r#"{"nodeSelectorTerms":[{"matchExpressions":[{"key":"gpu","operator":"Exists"}]}]}"#;
    let spec = SPEC.replace('}', &format!(r#","nodeSelector":{selects}}}"#));
    let mut world = World::new(&["n1"], &[pool_object("blue", 10, 1, &spec, &json!({}))], vec![]);
    world.settle();
    let labelled = |world: &mut World, labels: &[&str]| {
        let labels = labels.iter().map(|label| ((*label).to_owned(), "yes".to_owned()));
        let labels: crate::cluster_cache::Labels = labels.collect();
        world.tell(Observed::Node(Event::Apply(("n1".to_owned(), labels.into()))));
    };
    let due = |world: &World| world.reconciler.pools.values().filter(|task| task.due.at().is_some()).count();
    labelled(&mut world, &["rack"]);
    assert_eq!(due(&world), 0, "blue does not ask for a rack");
    labelled(&mut world, &["rack", "gpu"]);
    assert_eq!(due(&world), 1);
    world.settle();
    assert_eq!(world.status().allocations.len(), 1);
    labelled(&mut world, &["gpu"]);
    assert_eq!(due(&world), 0);
    labelled(&mut world, &["rack"]);
    world.settle();
    assert_eq!(world.status().releasing.len(), 1);
}

#[test]
fn counts_are_written_every_ten_seconds_while_a_block_is_released() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    report(&mut world, "n1", 2);
    report(&mut world, "n2", 1);
    world.calls_after(pool_task::LIVELY).into_iter().for_each(|call| world.succeed(call));
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    world.settle();
    let (start, mut writes, mut used) = (world.now, 0, 0);
    while world.now < start + Duration::from_mins(1) {
        used += 1;
        report(&mut world, "n1", used % 3);
        for call in world.calls_after(Duration::from_millis(100)) {
            writes += usize::from(matches!(call, Command::WriteStatus { .. }));
            world.succeed(call);
        }
    }
    assert!((4..=7).contains(&writes), "{writes} statuses in a minute");
    report(&mut world, "n2", 0);
    let released = world.now;
    world.settle();
    assert!(world.status().releasing.is_empty() && world.now < released + Duration::from_secs(5), "at once");
}

#[test]
fn a_pool_made_anew_under_its_old_name_gets_the_same_blocks() {
    let mut world = World::new(&["n2"], &[blue()], vec![]);
    world.settle();
    world.node_joins("n1");
    world.settle();
    let mut anew = pool_object("blue", 900, 1, SPEC, &json!({}));
    anew.metadata.uid = Some("another".into());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(anew)));
    let calls = world.settle();
    let ranges: Vec<_> = status_of(&calls[0]).allocations.iter().map(|claim| claim.range.to_string()).collect();
    assert_eq!(ranges, ["192.168.0.5-192.168.0.8", "192.168.0.1-192.168.0.4"]);
}

#[test]
fn a_pool_deleted_while_ipam_nodes_are_being_written_leaves_no_entry_behind() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    let status = only(world.calls());
    world.succeed(status);
    let creations = world.calls();
    assert_eq!(creations.len(), 2);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    for creation in creations {
        world.succeed(creation);
    }
    world.settle();
    let entries = |world: &World, node: &str| world.reconciler.ipam_nodes.get(node).unwrap().blocks.len();
    for node in ["n1", "n2"] {
        assert_eq!(entries(&world, node), 1, "{node}: the agent may have read the entry before the pool was deleted");
        world.answer(node);
    }
    world.settle();
    assert_eq!((entries(&world, "n1"), entries(&world, "n2")), (0, 0));
    assert!(world.reconciler.is_idle());
}
