//! Gateways that are moved onto addresses that pods may hold.

use super::*;

const MOVED: &str = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.6"}"#;

/// `n1` and `n2` are served with the first gateway, and their agents have reported; then the gateway is moved to the
/// second address of `n2`'s block.
fn moved() -> (Scene, PoolRecord) {
    let mut scene = Scene::of(&["n1", "n2"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    scene.report("n1", 0);
    scene.report("n2", 0);
    let status = written(&record, &decision).status;
    (scene, PoolRecord { status, ..pool(MOVED, 2, &json!({})) })
}

/// Decides, and tells the nodes, as the state machine does.
fn step(scene: &mut Scene, record: &PoolRecord) -> (PoolRecord, Decision) {
    let decision = scene.decide(record);
    let record = decision.status.as_ref().map_or_else(|| record.clone(), |_| written(record, &decision));
    let assignments = decision.assignments.as_ref().unwrap();
    scene.write_ipam_nodes(&record, assignments);
    for (node, held) in &decision.unavailable_addresses.held {
        let known = scene.ipam_nodes.get_mut(node).unwrap();
        let before = known.blocks.clone();
        crate::ipam_node::set_unavailable(&mut known.blocks[0], held);
        known.generation += i64::from(known.blocks != before);
    }
    (record, decision)
}

fn hold(scene: &mut Scene, node: &str, addr: &str) {
    scene.report(node, 1);
    let run = ipam_crds::AddressRange { start_ip: addr.to_owned(), end_ip: addr.to_owned() };
    scene.ipam_nodes.get_mut(node).unwrap().reports[0].held = vec![run];
}

fn gateways(scene: &Scene) -> [Option<&str>; 2] {
    ["n1", "n2"].map(|node| scene.block_of(node).gateway.as_deref())
}

#[test]
fn no_node_is_told_a_gateway_that_a_pod_holds_and_the_next_pod_does_not_get_it() {
    let (mut scene, record) = moved();
    hold(&mut scene, "n2", "192.168.0.6");
    let (record, decision) = step(&mut scene, &record);
    let ready = condition(&record.status, READY);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "EditDeferred"));
    assert!(ready.message.contains("n2 (may use 192.168.0.6)"), "{}", ready.message);
    let way_out = "To stop waiting for an agent (addresses in use may be assigned twice): kubectl annotate node NODE \
                   nv-ipam.nvidia.com/cordon=true; kubectl annotate -n  ippool blue nv-ipam.nvidia.com/force-release=NODE";
    assert!(ready.message.ends_with(way_out), "{}", ready.message);
    assert_eq!(decision.notes[0].reason, "EditDeferred");
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
    assert_eq!(scene.block_of("n2").held_elsewhere[0].start_ip, "192.168.0.6", "barred for the next");
    // A node that joins meanwhile is told what the others are told.
    scene.nodes.insert("n3".into(), BTreeMap::new());
    hold(&mut scene, "n2", "192.168.0.6");
    let (record, _) = step(&mut scene, &record);
    assert_eq!(scene.block_of("n3").gateway.as_deref(), Some("192.168.0.1"));
    // The pod goes.
    scene.report("n2", 0);
    let (record, _) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.6"); 2]);
    assert_eq!(scene.block_of("n3").gateway.as_deref(), Some("192.168.0.6"));
    assert_eq!(condition(&record.status, READY).status, "True");
}

#[test]
fn a_report_from_before_the_address_was_barred_does_not_count() {
    let (mut scene, record) = moved();
    let (record, decision) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2], "a pod may have got it since");
    assert!(decision.unavailable_addresses.awaited.contains("n2") && decision.unavailable_addresses.awaited.len() == 1);
    let (record, _) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
    scene.report("n2", 0);
    step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.6"); 2]);
}

#[test]
fn an_address_held_outside_its_block_is_no_gateway_either() {
    let (mut scene, record) = moved();
    // Nobody has the block of this one: a pod on n1 asked for the address by name.
    let spec = MOVED.replace("192.168.0.6", "192.168.9.9");
    let record = PoolRecord { status: record.status, ..pool(&spec, 2, &json!({})) };
    hold(&mut scene, "n1", "192.168.9.9");
    let (record, _) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
    scene.report("n1", 0);
    step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.9.9"); 2]);
}

#[test]
fn a_gateway_waits_for_no_node_whose_block_was_force_released() {
    let (mut scene, record) = moved();
    let spec = MOVED.replace("192.168.0.6", "192.168.9.9");
    let mut record = PoolRecord { status: record.status, ..pool(&spec, 2, &json!({})) };
    hold(&mut scene, "n1", "192.168.9.9");
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    scene.ipam_nodes.get_mut("n1").unwrap().blocks.clear();
    record.status.allocations.retain(|claim| claim.node == "n2");
    let gateway = |record: &PoolRecord| {
        let assignments = scene.decide(record).assignments.unwrap();
        assignments.iter().find(|given| given.node == "n2").unwrap().block.gateway.unwrap().to_string()
    };
    assert_eq!(gateway(&record), "192.168.0.1");
    record.life.force_release = BTreeSet::from(["n1".to_owned()]);
    assert_eq!(gateway(&record), "192.168.9.9");
}

#[test]
fn a_gateway_that_no_node_can_give_changes_at_once() {
    let (mut scene, record) = moved();
    let spec = MOVED.replace("192.168.0.6", "192.168.9.9");
    let record = PoolRecord { status: record.status, ..pool(&spec, 2, &json!({})) };
    step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.9.9"); 2]);
}

#[test]
fn of_a_cidr_pool_only_the_node_that_holds_the_address_waits() {
    let spec = |index: u32| format!(r#"{{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":24,"gatewayIndex":{index}}}"#);
    let mut scene = Scene::of(&["n1", "n2"]);
    let one = pool_of(PoolKind::CidrPool, &spec(1), 1, &json!({}));
    let decision = scene.decide(&one);
    scene.write_ipam_nodes(&one, decision.assignments.as_ref().unwrap());
    scene.report("n1", 0);
    scene.report("n2", 0);
    let status = written(&one, &decision).status;
    let two = PoolRecord { status, ..pool_of(PoolKind::CidrPool, &spec(7), 2, &json!({})) };
    let (two, _) = step(&mut scene, &two);
    assert_eq!(gateways(&scene), [Some("10.0.0.1"), Some("10.0.1.1")], "nobody has answered yet");
    scene.report("n1", 0);
    hold(&mut scene, "n2", "10.0.1.7");
    let (two, _) = step(&mut scene, &two);
    assert_eq!(gateways(&scene), [Some("10.0.0.7"), Some("10.0.1.1")]);
    let recorded: Vec<_> = two.status.allocations.iter().map(|claim| claim.gateway.unwrap().to_string()).collect();
    assert_eq!(recorded, ["10.0.0.7", "10.0.1.1"], "the status tells what is served");
    assert!(condition(&two.status, READY).message.contains("node n2 (may use 10.0.1.7)"));
    scene.report("n2", 0);
    step(&mut scene, &two);
    assert_eq!(gateways(&scene), [Some("10.0.0.7"), Some("10.0.1.7")]);
}

#[test]
fn a_gateway_that_goes_back_waits_for_a_node_whose_last_write_is_not_settled() {
    // n1's block has the gateway. It is moved to where nobody has a block; n1 may have been told so, and have given the
    // address of before to a pod, when the edit is taken back.
    let away = IP_SPEC.replace("192.168.0.1\"", "192.168.9.9\"");
    let (mut scene, record) = moved();
    let away = PoolRecord { status: record.status, ..pool(&away, 2, &json!({})) };
    let decision = scene.decide(&away);
    scene.told = decision.assignments.clone().unwrap();
    scene.ipam_nodes.get_mut("n1").unwrap().write_in_flight = true;
    let status = decision.status.unwrap_or_else(|| away.status.clone());
    let back = PoolRecord { status, ..pool(IP_SPEC, 3, &json!({})) };
    let decision = scene.decide(&back);
    assert_eq!(decision.assignments.unwrap()[0].block.gateway, Some("192.168.9.9".parse().unwrap()));
    assert!(decision.unavailable_addresses.held.contains_key("n1"), "a pod on n1 may hold 192.168.0.1");
}

#[test]
fn a_gateway_that_waits_is_not_forgotten_with_the_ipam_node() {
    let spec = |index: u32| format!(r#"{{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":24,"gatewayIndex":{index}}}"#);
    let mut scene = Scene::of(&["n1", "n2"]);
    let six = pool_of(PoolKind::CidrPool, &spec(6), 1, &json!({}));
    let decision = scene.decide(&six);
    scene.write_ipam_nodes(&six, decision.assignments.as_ref().unwrap());
    hold(&mut scene, "n1", "10.0.0.1");
    scene.report("n2", 0);
    let status = written(&six, &decision).status;
    let one = PoolRecord { status, ..pool_of(PoolKind::CidrPool, &spec(1), 2, &json!({})) };
    let (one, _) = step(&mut scene, &one);
    scene.ipam_nodes.delete("n1");
    let decision = scene.decide(&one);
    assert_eq!(decision.assignments.unwrap()[0].block.gateway, Some("10.0.0.6".parse().unwrap()), "a pod holds .1");
    // Of an IPPool the status names no gateway; what was told is known to the leader.
    let (mut scene, record) = moved();
    hold(&mut scene, "n2", "192.168.0.6");
    let (record, decision) = step(&mut scene, &record);
    scene.told = decision.assignments.unwrap();
    for node in ["n1", "n2"] {
        scene.ipam_nodes.delete(node);
    }
    for given in scene.decide(&record).assignments.unwrap() {
        assert_eq!(given.block.gateway, Some("192.168.0.1".parse().unwrap()), "{}", given.node);
    }
}

/// Whether the entry of `n1` bars it from giving the gateway of before.
fn is_barred(scene: &Scene) -> bool {
    scene.block_of("n1").held_elsewhere.iter().any(|run| run.start_ip == "192.168.0.1")
}

#[test]
fn a_gateway_of_before_is_given_to_nobody_until_all_agents_have_reported_about_the_new_one() {
    for leader_changes in [false, true] {
        let (mut scene, record) = moved();
        let away = IP_SPEC.replace("192.168.0.1\"", "192.168.9.9\"");
        let record = PoolRecord { status: record.status, ..pool(&away, 2, &json!({})) };
        // A pod on n2 has the gateway by that name, which was no stray.
        hold(&mut scene, "n2", "192.168.0.1");
        let (record, decision) = step(&mut scene, &record);
        assert_eq!(gateways(&scene), [Some("192.168.9.9"); 2], "the new one is told at once");
        assert!(is_barred(&scene), "in the same write");
        assert!(decision.unavailable_addresses.awaited.contains("n2"));
        scene.previous_gateways = (!leader_changes).then_some(decision.unavailable_addresses.previous_gateways);
        scene.report("n1", 0);
        // What n2 says is about the entry of before.
        let (record, decision) = step(&mut scene, &record);
        assert!(is_barred(&scene) && decision.unavailable_addresses.awaited.contains("n2"), "n2 has not answered");
        scene.previous_gateways = (!leader_changes).then_some(decision.unavailable_addresses.previous_gateways);
        hold(&mut scene, "n2", "192.168.0.1");
        let (record, decision) = step(&mut scene, &record);
        assert!(is_barred(&scene), "now it is known to be held");
        scene.previous_gateways = (!leader_changes).then_some(decision.unavailable_addresses.previous_gateways);
        scene.report("n2", 0);
        scene.report("n1", 0);
        let decision = scene.decide(&record);
        assert_eq!(
            (decision.unavailable_addresses.held.len(), decision.unavailable_addresses.awaited.len()),
            (0, 0),
            "free at last"
        );
    }
}

#[test]
fn a_gateway_of_before_is_barred_although_no_entry_names_it_any_more() {
    // It was told by a write of which nothing was heard.
    let (mut scene, record) = moved();
    let away = IP_SPEC.replace("192.168.0.1\"", "192.168.9.9\"");
    let far = IP_SPEC.replace("192.168.0.1\"", "192.168.8.8\"");
    let decision = scene.decide(&PoolRecord { status: record.status.clone(), ..pool(&far, 2, &json!({})) });
    (scene.told, scene.previous_gateways) =
        (decision.assignments.unwrap(), Some(decision.unavailable_addresses.previous_gateways));
    scene.ipam_nodes.get_mut("n2").unwrap().write_in_flight = true;
    let former = scene
        .decide(&PoolRecord { status: record.status, ..pool(&away, 3, &json!({})) })
        .unavailable_addresses
        .previous_gateways;
    let said: Vec<String> = former.iter().map(|range| range.first().to_string()).collect();
    assert_eq!(said, ["192.168.0.1", "192.168.8.8"]);
}

#[test]
fn the_gateway_of_a_stale_block_is_unavailable_to_a_node_that_has_no_entry_yet() {
    let spec = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.2"}"#;
    let mut scene = Scene::of(&["n1", "n2"]);
    let record = pool(spec, 1, &json!({}));
    let decision = scene.decide(&record);
    // The leader ends before it writes the entry of n1, which is to have the block with the gateway.
    scene.write_ipam_nodes(&record, &decision.assignments.as_ref().unwrap()[1..]);
    hold(&mut scene, "n2", "192.168.0.6");
    let edited = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":16}"#;
    let record = PoolRecord { status: written(&record, &decision).status, ..pool(edited, 2, &json!({})) };
    let decision = scene.decide(&record);
    let given = decision.assignments.unwrap();
    assert!(given.iter().all(|given| given.phase == BlockPhase::Stale), "both keep their blocks: {given:?}");
    assert_eq!(given[0].block.gateway, None, "the entry of n1 is written by the spec");
    let unavailable = &decision.unavailable_addresses.held["n1"];
    assert!(unavailable.iter().any(|range| range.contains("192.168.0.2".parse().unwrap())), "{unavailable:?}");
}

#[test]
fn a_node_that_comes_back_while_its_block_is_released_waits_for_the_gateway_too() {
    for has_entry in [false, true] {
        let (mut scene, record) = moved();
        hold(&mut scene, "n2", "192.168.0.6");
        let (record, decision) = step(&mut scene, &record);
        scene.told = decision.assignments.unwrap();
        // n1 has a pod, so its block is released only once the pod is gone.
        hold(&mut scene, "n1", "192.168.0.3");
        hold(&mut scene, "n2", "192.168.0.6");
        let labels = scene.nodes.remove("n1").unwrap();
        let decision = scene.decide(&record);
        let record = written(&record, &decision);
        scene.told = decision.assignments.unwrap();
        if has_entry {
            scene.write_ipam_nodes(&record, &scene.told.clone());
            assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
        }
        scene.nodes.insert("n1".to_owned(), labels);
        let decision = scene.decide(&record);
        let told: Vec<_> = decision.assignments.unwrap().iter().map(|given| given.block.gateway).collect();
        assert_eq!(told, [Some("192.168.0.1".parse().unwrap()); 2], "n2 may use the new one, entry {has_entry}");
    }
}

/// `n2` has a block of an earlier spec without gateway, and a pod there has an address. `n1` joins after the edit, which makes the second
/// address of that block the gateway.
fn resized(in_use: &str) -> (Scene, PoolRecord) {
    let mut scene = Scene::of(&["n2"]);
    let record = pool(r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":2}"#, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    hold(&mut scene, "n2", in_use);
    let status = written(&record, &decision).status;
    let edited = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.2"}"#;
    scene.nodes.insert("n1".into(), BTreeMap::new());
    (scene, PoolRecord { status, ..pool(edited, 2, &json!({})) })
}

#[test]
fn the_gateway_is_unavailable_in_a_stale_block() {
    let (mut scene, record) = resized("192.168.0.1");
    for _ in 0..2 {
        let (_, decision) = step(&mut scene, &record);
        let stale = scene.block_of("n2");
        assert_eq!((stale.end_ip.as_str(), stale.gateway.as_deref()), ("192.168.0.2", None), "stale");
        let held = &decision.unavailable_addresses.held["n2"];
        assert!(held.iter().any(|range| range.to_string() == "192.168.0.2-192.168.0.2"), "{held:?}");
        hold(&mut scene, "n2", "192.168.0.1");
        scene.report("n1", 0);
    }
    assert_eq!(gateways(&scene), [Some("192.168.0.2"), None], "no pod of n2 has the gateway");
    // While the next gateway waits for a pod, n1 keeps this one.
    let next = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.6"}"#;
    hold(&mut scene, "n1", "192.168.0.6");
    let record = PoolRecord { status: written(&record, &scene.decide(&record)).status, ..pool(next, 3, &json!({})) };
    let (_, decision) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.2"), None]);
    let held = &decision.unavailable_addresses.held["n2"];
    assert!(held.iter().any(|range| range.to_string() == "192.168.0.2-192.168.0.2"), "{held:?}");
}

#[test]
fn the_entry_of_a_stale_block_gets_its_gateway_again_after_the_ipam_node_is_deleted() {
    let (mut scene, record) = resized("192.168.0.2");
    let (record, decision) = step(&mut scene, &record);
    let told = decision.assignments.unwrap();
    // Where the IPAMNode of n2 is deleted, the Node's controller writes the entry by this plan, before the next one.
    assert_eq!((told[1].node.as_str(), told[1].phase, told[1].block.gateway), ("n2", BlockPhase::Stale, None));
    scene.told = told;
    scene.ipam_nodes.delete("n2");
    let planned = scene.decide(&record).assignments.unwrap();
    assert_eq!(planned[1].block.gateway, None, "a pod of n2 may have 192.168.0.2");
}

#[test]
fn a_new_node_gets_the_gateway_of_another_network_at_once() {
    for (in_use, gateway) in [("10.0.0.2", Some("192.168.0.1")), ("192.168.0.1", None)] {
        let mut scene = Scene::of(&["n2"]);
        let before = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4,"gateway":"10.0.0.1"}"#;
        let record = pool(before, 1, &json!({}));
        let decision = scene.decide(&record);
        scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
        // n2 keeps its block, or has an address outside it from before a restore.
        hold(&mut scene, "n2", in_use);
        let status = written(&record, &decision).status;
        scene.nodes.insert("n1".into(), BTreeMap::new());
        let (_, decision) = step(&mut scene, &PoolRecord { status, ..pool(IP_SPEC, 2, &json!({})) });
        let planned = decision.assignments.unwrap();
        let of_n1 = planned.iter().find(|given| given.node == "n1").unwrap();
        assert_eq!(of_n1.block.gateway, gateway.map(|text| text.parse().unwrap()), "n2 uses {in_use}");
    }
}

#[test]
fn a_node_that_left_with_an_earlier_gateway_delays_no_new_node() {
    let (mut scene, record) = moved();
    let away = IP_SPEC.replace("192.168.0.1\"", "192.168.0.2\"");
    let (mut record, _) = step(&mut scene, &PoolRecord { status: record.status, ..pool(&away, 2, &json!({})) });
    scene.report("n1", 0);
    scene.report("n2", 0);
    for _ in 0..2 {
        record = step(&mut scene, &record).0;
    }
    assert_eq!(gateways(&scene), [Some("192.168.0.2"); 2]);
    scene.ipam_nodes.get_mut("n2").unwrap().blocks[0].gateway = Some("192.168.0.1".to_owned());
    scene.nodes.remove("n2");
    // The agent of n1, whose block has the gateway, has not yet reported.
    scene.ipam_nodes.get_mut("n1").unwrap().reports.clear();
    scene.nodes.insert("n3".into(), BTreeMap::new());
    let (record, _) = step(&mut scene, &record);
    assert_eq!(scene.block_of("n3").gateway.as_deref(), Some("192.168.0.2"));
    assert_eq!(condition(&record.status, READY).reason, "Valid");
}

#[test]
fn a_new_node_does_not_get_a_gateway_that_a_pod_on_a_stale_block_has() {
    let (mut scene, record) = resized("192.168.0.2");
    for _ in 0..2 {
        let (record, _) = step(&mut scene, &record);
        assert_eq!(gateways(&scene), [None; 2]);
        let ready = condition(&record.status, READY);
        assert_eq!(ready.reason, "EditDeferred");
        for words in ["To free a block", "cordon-; to stop waiting for an agent", "in use on node n2", "n2 (may use"] {
            assert!(ready.message.contains(words), "{words}: {}", ready.message);
        }
        hold(&mut scene, "n2", "192.168.0.2");
        scene.report("n1", 0);
    }
    hold(&mut scene, "n2", "192.168.0.1");
    step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.2"), None]);
}

/// The nodes have no entries. The agent of `n1` reports a pod with the address that is the gateway of the spec.
fn with_the_gateway_in_use() -> (Scene, PoolRecord) {
    let (mut scene, record) = served(&["n1", "n2"]);
    hold(&mut scene, "n1", "192.168.0.1");
    for node in ["n1", "n2"] {
        scene.ipam_nodes.get_mut(node).unwrap().blocks.clear();
    }
    (scene, record)
}

#[test]
fn a_gateway_that_a_pod_has_from_a_lost_entry_is_deferred() {
    // The CRDs were deleted. An earlier leader has recorded the blocks again, and has written no entry.
    let (mut scene, record) = with_the_gateway_in_use();
    let (record, _) = step(&mut scene, &record);
    assert_eq!((gateways(&scene), condition(&record.status, READY).reason.as_str()), ([None; 2], "EditDeferred"));
    for node in ["n1", "n2"] {
        scene.report(node, 0);
    }
    let (record, _) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
    assert_eq!(condition(&record.status, READY).reason, "Valid");
}

#[test]
fn a_gateway_that_a_pod_has_by_request_delays_no_node() {
    // After a migration no block is assigned yet, and each address in use is outside a block.
    let (mut scene, record) = with_the_gateway_in_use();
    let record = PoolRecord { status: pool(IP_SPEC, 1, &json!({})).status, ..record };
    let (mut record, _) = step(&mut scene, &record);
    assert_eq!(gateways(&scene), [Some("192.168.0.1"); 2]);
    assert_eq!(condition(&record.status, READY).reason, "Valid");
    // A node joins whose predecessor has left with such a pod. The entry of n2 has the gateway.
    hold(&mut scene, "n1", "192.168.0.1");
    scene.ipam_nodes.get_mut("n1").unwrap().blocks.clear();
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    record.status.allocations.retain(|claim| claim.node != "n1");
    scene.nodes.insert("n3".into(), BTreeMap::new());
    step(&mut scene, &record);
    assert_eq!(scene.block_of("n3").gateway.as_deref(), Some("192.168.0.1"));
}
