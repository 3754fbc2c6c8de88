//! Addresses that pods use outside the block of their node.

use super::other_pools::{made, range, status};
use super::*;

/// An IPAMNode as told at `version`: its block, and what its agent says that it holds.
pub(super) fn told(node: &str, version: u64, block: Option<(&str, &str)>, held: &[(&str, &str)]) -> RawObject {
    let pools: Vec<Value> = block
        .iter()
        .map(|(start, end)| {
            json!({"name": "blue", "poolType": "IPPool", "state": "Active",
        "startIP": start, "endIP": end, "subnet": "192.168.0.0/16", "gateway": "192.168.0.1"})
        })
        .collect();
    let runs: Vec<Value> = held.iter().map(|(start, end)| json!({"startIP": start, "endIP": end})).collect();
    let used: u128 = held.iter().map(|(start, end)| range(start, end).size()).sum();
    let (start, end) = block.unwrap_or(("192.168.0.1", "192.168.0.4"));
    let is_kept = !pools.is_empty() || used > 0;
    let finalizers = if is_kept { vec![crate::ipam_node::FINALIZER] } else { Vec::new() };
    object(&json!({
        "metadata": {"name": node, "uid": format!("uid-{node}"), "generation": 2, "resourceVersion": version.to_string(),
            "finalizers": finalizers},
        "spec": {"pools": pools},
        "status": {"observedGeneration": 2, "pools": [{"name": "blue", "poolType": "IPPool", "startIP": start,
            "endIP": end, "used": u64::try_from(used).unwrap(), "capacity": 4, "held": runs}]},
    }))
}

#[test]
fn what_a_node_holds_outside_its_block_is_given_to_nobody_else() {
    // A backup knows nothing of the block that n2 has had since.
    let n2 = told("n2", 50, None, &[("192.168.0.3", "192.168.0.3")]);
    let mut world = World::new(&["n1"], &[blue()], vec![n2]);
    world.settle();
    let given = status(&world, "blue").allocations;
    assert_eq!(given[0].range, range("192.168.0.5", "192.168.0.8"));
}

#[test]
fn node_gets_the_free_block_that_its_pods_use() {
    let ipam_nodes = vec![
        // Most of its addresses are in the later of two free blocks.
        told("n2", 50, None, &[("192.168.0.6", "192.168.0.6"), ("192.168.0.10", "192.168.0.11")]),
        // Both use addresses of one block, so none has it.
        told("n3", 51, None, &[("192.168.0.17", "192.168.0.17")]),
        told("n4", 52, None, &[("192.168.0.18", "192.168.0.18")]),
    ];
    let mut world = World::new(&["n1", "n2", "n3", "n4"], &[blue()], ipam_nodes);
    world.settle();
    let given: Vec<_> = status(&world, "blue").allocations.into_iter().map(|claim| claim.range.first()).collect();
    let wanted =
        ["192.168.0.1", "192.168.0.9", "192.168.0.13", "192.168.0.21"].map(|first| range(first, first).first());
    assert_eq!(given, wanted);
}

#[test]
fn a_run_that_begins_with_the_gateway_counts() {
    let mut world = World::new(&["n1"], &[blue()], vec![told("n1", 50, None, &[("192.168.0.1", "192.168.0.6")])]);
    world.settle();
    assert_eq!(status(&world, "blue").allocations[0].range, range("192.168.0.1", "192.168.0.4"));
}

#[test]
fn addresses_of_a_run_count_in_their_own_blocks() {
    // Of the first run, one address is in the block before the one with most addresses.
    let held = [("192.168.0.4", "192.168.0.7"), ("192.168.0.9", "192.168.0.10")];
    let mut world = World::new(&["n1"], &[blue()], vec![told("n1", 50, None, &held)]);
    world.settle();
    assert_eq!(status(&world, "blue").allocations[0].range, range("192.168.0.5", "192.168.0.8"));
}

#[test]
fn a_block_in_which_another_node_holds_an_address_goes_on_without_that_address() {
    let status = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]});
    let ipam_nodes = vec![
        told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[]),
        told("n2", 51, None, &[("192.168.0.3", "192.168.0.3")]),
    ];
    let mut world = World::new(&["n1"], &[pool_object("blue", 10, 1, SPEC, &status)], ipam_nodes);
    let calls = world.settle();
    let written = nodes_written(&calls);
    let (_, action) = written.iter().find(|(node, _)| *node == "n1").expect("the IPAMNode of n1 is written");
    // No exclusion: of those a pod may have one by name.
    let [block] = action.blocks() else { panic!("{action:?}") };
    let unavailable: Vec<_> =
        block.held_elsewhere.iter().map(|run| (run.start_ip.as_str(), run.end_ip.as_str())).collect();
    assert_eq!((unavailable, block.exclusions.len()), (vec![("192.168.0.3", "192.168.0.3")], 0));
}

#[test]
fn an_outdated_block_goes_on_without_what_its_node_has_of_another_pool() {
    // A restore brought back the block of red's earlier spec. It is in use.
    let status = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]});
    let red = pool_object("red", 10, 2, r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#, &status);
    let mut n1 = told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[("192.168.0.2", "192.168.0.2")]);
    let red_for_blue = |part: &Option<Box<serde_json::value::RawValue>>| {
        let mut part: Value = serde_json::from_str(part.as_ref().unwrap().get()).unwrap();
        part["pools"][0]["name"] = json!("red");
        part
    };
    let n1_of_red =
        object(&json!({"metadata": {}, "spec": red_for_blue(&n1.spec), "status": red_for_blue(&n1.status)}));
    (n1.spec, n1.status) = (n1_of_red.spec, n1_of_red.status);
    let mut world = World::new(&["n1"], &[blue(), red], vec![n1]);
    world.settle();
    let unavailable = |world: &World| {
        let blocks = &world.reconciler.ipam_nodes.get("n1").unwrap().blocks;
        let red = blocks.iter().find(|block| block.name == "red").expect("red's block is in use");
        assert_eq!(red.state, BlockState::Active);
        red.held_elsewhere.iter().map(|run| run.start_ip.clone()).collect::<Vec<_>>()
    };
    assert!(unavailable(&world).is_empty());
    // The agent names an address of it that blue assigned later. Then that pod ends.
    for held in [Some("192.168.0.3"), None] {
        let known = world.reconciler.ipam_nodes.get("n1").unwrap().clone();
        let mut reports = known.reports.clone();
        let of_blue = reports.iter_mut().find(|report| report.name == "blue").expect("blue assigned a block");
        let run = |addr: &str| ipam_crds::AddressRange { start_ip: addr.to_owned(), end_ip: addr.to_owned() };
        (of_blue.held, of_blue.used) = (held.map(run).into_iter().collect(), i64::from(held.is_some()));
        world.version += 1;
        let version = world.version.to_string();
        let body = json!({"metadata": {"name": "n1", "uid": known.uid, "generation": known.generation, "resourceVersion": version,
            "finalizers": known.finalizers}, "spec": {"pools": known.blocks},
            "status": {"observedGeneration": known.generation, "pools": reports}});
        world.tell(Observed::IpamNode(Event::Apply(object(&body))));
        world.settle();
        assert_eq!(unavailable(&world), Vec::from_iter(held));
    }
}

#[test]
fn what_is_no_longer_held_elsewhere_is_no_longer_barred() {
    let unavailable = |held: &[(&str, &str)]| {
        let mut n1 = told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[]);
        let mut spec: Value = serde_json::from_str(n1.spec.as_ref().unwrap().get()).unwrap();
        spec["pools"][0]["heldElsewhere"] = json!([{"startIP": "192.168.0.2", "endIP": "192.168.0.3"}]);
        n1.spec = object(&json!({"metadata": {}, "spec": spec})).spec;
        let n2 = told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), held);
        let mut world = World::new(&["n1", "n2"], &[blue()], vec![n1, n2]);
        world.settle();
        let [block] = &world.reconciler.ipam_nodes.get("n1").unwrap().blocks[..] else { panic!("one block") };
        block.held_elsewhere.iter().map(|run| run.start_ip.clone()).collect::<Vec<_>>()
    };
    assert_eq!(unavailable(&[("192.168.0.3", "192.168.0.3")]), ["192.168.0.3"]);
    assert!(unavailable(&[]).is_empty());
}

#[test]
fn the_gateway_may_be_held_on_every_node() {
    let gateway = ("192.168.0.1", "192.168.0.1");
    let ipam_nodes = vec![
        told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[gateway]),
        told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), &[gateway]),
    ];
    let mut world = World::new(&["n1", "n2"], &[blue()], ipam_nodes);
    world.settle();
    let status = status(&world, "blue");
    assert!(status.summary.conditions.iter().all(|condition| condition.reason != "DuplicateAddress"));
    for node in ["n1", "n2"] {
        let [block] = &world.reconciler.ipam_nodes.get(node).unwrap().blocks[..] else { panic!("{node}") };
        assert_eq!((block.state, block.held_elsewhere.len()), (BlockState::Active, 0), "{node}");
    }
}

#[test]
fn runs_that_only_cover_what_is_held_bar_others_and_prove_no_contradiction() {
    // 192.168.0.6 may be held or not.
    let mut n1 = told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[("192.168.0.5", "192.168.0.7")]);
    let mut status: Value = serde_json::from_str(n1.status.as_ref().unwrap().get()).unwrap();
    status["pools"][0]["used"] = json!(2);
    n1.status = object(&json!({"metadata": {}, "status": status})).status;
    let n2 = told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), &[("192.168.0.6", "192.168.0.6")]);
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![n1, n2]);
    world.settle();
    let block = |node: &str| world.reconciler.ipam_nodes.get(node).unwrap().blocks[0].clone();
    assert_eq!((block("n1").state, block("n2").state), (BlockState::Active, BlockState::Active));
    assert_eq!(block("n2").held_elsewhere[0].end_ip, "192.168.0.7");
    let conditions = self::status(&world, "blue").summary.conditions;
    let degraded = conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
    assert!(degraded.message.contains("perhaps on node n2 and on node n1"), "{}", degraded.message);
}

#[test]
fn one_address_held_on_two_nodes_is_said_aloud_and_the_newer_gives_no_more() {
    let ipam_nodes = vec![
        told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[("192.168.0.2", "192.168.0.3")]),
        told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), &[("192.168.0.3", "192.168.0.3")]),
    ];
    let mut world = World::new(&["n1", "n2"], &[blue()], ipam_nodes);
    let calls = world.settle();
    let status = status(&world, "blue");
    let degraded = status.summary.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "DuplicateAddress"));
    for word in ["192.168.0.3", "n1", "n2"] {
        assert!(degraded.message.contains(word), "{}", degraded.message);
    }
    assert!(world.warnings().contains(&"DuplicateAddress"));
    let written = nodes_written(&calls);
    let (_, action) = written.iter().find(|(node, _)| *node == "n2").expect("the IPAMNode of n2 is written");
    assert_eq!(action.blocks()[0].state, BlockState::Releasing);
    let n1 = world.reconciler.ipam_nodes.get("n1").unwrap();
    assert_eq!(n1.blocks[0].state, BlockState::Active);
}

#[test]
fn a_contradiction_ends_with_a_report_that_counts_as_many_addresses_as_before() {
    let n1 = |version, held: &[(&str, &str)]| told("n1", version, Some(("192.168.0.1", "192.168.0.4")), held);
    let ipam_nodes = vec![
        n1(50, &[("192.168.0.2", "192.168.0.3")]),
        told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), &[("192.168.0.3", "192.168.0.3")]),
    ];
    let mut world = World::new(&["n1", "n2"], &[blue()], ipam_nodes);
    world.settle();
    assert_eq!(world.reconciler.ipam_nodes.get("n2").unwrap().blocks[0].state, BlockState::Releasing);
    let unavailable_addresses = n1(900, &[("192.168.0.2", "192.168.0.2"), ("192.168.0.4", "192.168.0.4")]);
    world.tell(Observed::IpamNode(Event::Apply(unavailable_addresses)));
    world.settle();
    assert_eq!(world.reconciler.ipam_nodes.get("n2").unwrap().blocks[0].state, BlockState::Active);
}

/// The pool serves `n1` alone; a pod on `n2`, which has no block, has an address of its block.
fn held_where_no_block_is() -> World {
    let spec = SPEC.replace(
        '}',
        r#","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}}"#,
    );
    let status = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]});
    let ipam_nodes = vec![
        told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[]),
        told("n2", 51, None, &[("192.168.0.3", "192.168.0.3")]),
    ];
    let mut world = World::new(&["n1", "n2"], &[pool_object("blue", 10, 1, &spec, &status)], ipam_nodes);
    world.settle();
    assert!(is_unavailable(&world));
    world
}

fn is_unavailable(world: &World) -> bool {
    !world.reconciler.ipam_nodes.get("n1").unwrap().blocks[0].held_elsewhere.is_empty()
}

#[test]
fn what_a_node_without_blocks_holds_is_not_forgotten_with_its_node_before_the_grace() {
    let mut world = held_where_no_block_is();
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    let calls = world.settle();
    assert!(nodes_written(&calls).is_empty() && is_unavailable(&world), "{calls:#?}");
    world.now += Settings::default().released_block_grace.unwrap();
    let calls = world.settle();
    assert!(nodes_written(&calls).iter().any(|write| matches!(write, ("n2", NodeAction::Delete(..)))), "{calls:#?}");
    world.calls_after(Duration::from_secs(20)).into_iter().for_each(|call| world.succeed(call));
    world.settle();
    assert!(!is_unavailable(&world));
}

#[test]
fn a_force_release_on_one_pool_keeps_addresses_of_another() {
    let mut world = held_where_no_block_is();
    let spec = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#;
    let red = made("red", 20, 1, spec, &json!({(FORCE_RELEASE): "n2"}));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(red)));
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    let calls = world.settle();
    assert!(nodes_written(&calls).iter().all(|(node, _)| *node != "n2") && is_unavailable(&world), "{calls:#?}");
}

#[test]
fn what_a_node_without_blocks_holds_goes_with_its_node_once_its_agent_holds_nothing() {
    let mut world = held_where_no_block_is();
    world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
    world.settle();
    world.tell(Observed::IpamNode(Event::Apply(told("n2", 900, None, &[]))));
    world.settle();
    assert!(!is_unavailable(&world));
    assert!(world.reconciler.ipam_nodes.get("n2").is_none());
}

#[test]
fn what_a_node_holds_outside_its_block_stays_barred_when_its_ipam_node_is_deleted_until_it_is_told_again() {
    let mut world = held_where_no_block_is();
    world.tell(Observed::IpamNode(Event::Delete(told("n2", 60, None, &[]))));
    let calls = world.settle();
    world.calls_after(Duration::from_secs(20)).into_iter().for_each(|call| world.succeed(call));
    assert!(
        matches!(nodes_written(&calls)[..], [("n2", NodeAction::Create { .. })]),
        "the agent is to tell it again: {calls:#?}"
    );
    assert!(is_unavailable(&world), "it has not yet");
    world.tell(Observed::IpamNode(Event::Apply(told("n2", 900, None, &[("192.168.0.3", "192.168.0.3")]))));
    world.settle();
    assert!(is_unavailable(&world));
    world.tell(Observed::IpamNode(Event::Apply(told("n2", 901, None, &[]))));
    world.settle();
    assert!(!is_unavailable(&world));
}

#[test]
fn a_report_of_a_missing_node_is_kept_when_its_records_are_lost() {
    for pool_first in [true, false] {
        let block = |node: &str, first: &str, last: &str| json!({"nodeName": node, "startIP": first, "endIP": last});
        let blocks = [block("n1", "192.168.0.1", "192.168.0.4"), block("n2", "192.168.0.5", "192.168.0.8")];
        let n2 = told("n2", 51, Some(("192.168.0.5", "192.168.0.8")), &[("192.168.0.3", "192.168.0.3")]);
        let ipam_nodes = vec![told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[]), n2.clone()];
        let pool = pool_object("blue", 10, 1, SPEC, &json!({"allocations": blocks}));
        let mut world = World::new(&["n1", "n2"], std::slice::from_ref(&pool), ipam_nodes);
        world.settle();
        world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
        world.settle();
        // The definitions are deleted, and the Node is registered again. The watch of Nodes is the last to say so.
        let pool_goes = Observed::Pool(PoolKind::IpPool, Event::Delete(pool));
        let ipam_node_goes = Observed::IpamNode(Event::Delete(n2));
        let events = if pool_first { [pool_goes, ipam_node_goes] } else { [ipam_node_goes, pool_goes] };
        for event in events {
            world.tell(event);
        }
        world.node_joins("n2");
        assert!(world.reconciler.keeps_report("n2"), "pool first: {pool_first}");
    }
}

#[test]
fn a_report_of_use_is_kept_though_its_node_is_gone_and_it_has_no_block() {
    for (held, is_kept) in [(&[("192.168.0.3", "192.168.0.3")][..], true), (&[], false)] {
        let (pool, n2) = (blue(), told("n2", 51, None, held));
        let mut world = World::new(&["n1", "n2"], &[pool], vec![n2.clone()]);
        world.tell(Observed::Node(Event::Delete(("n2".into(), NodeMeta::default()))));
        // The finalizer would keep it: somebody has deleted the definitions.
        world.tell(Observed::IpamNode(Event::Delete(n2)));
        assert_eq!(world.reconciler.keeps_report("n2"), is_kept, "{held:?}");
    }
}
