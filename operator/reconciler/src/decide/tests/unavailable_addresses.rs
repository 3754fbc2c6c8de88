//! Addresses that are held outside the block of their node, and who is barred from them.

use super::*;

/// The agent of `node` says that it holds `addrs`, and nothing else.
fn holds(scene: &mut Scene, node: &str, addrs: &[&str]) {
    scene.report(node, i64::try_from(addrs.len()).unwrap());
    let record = scene.ipam_nodes.get_mut(node).unwrap();
    let run = |addr: &&str| ipam_crds::AddressRange { start_ip: (*addr).to_owned(), end_ip: (*addr).to_owned() };
    record.reports[0].held = addrs.iter().map(run).collect();
}

/// `n1` has the first block, and a pod on `n2` has an address of it.
fn astray() -> (Scene, PoolRecord) {
    let (mut scene, record) = served(&["n1", "n2"]);
    holds(&mut scene, "n1", &["192.168.0.2"]);
    holds(&mut scene, "n2", &["192.168.0.3"]);
    (scene, record)
}

#[test]
fn a_node_on_an_outdated_block_is_barred_from_what_others_hold_of_it() {
    let (scene, record) = astray();
    let barred = |record: &PoolRecord| scene.decide(record).unavailable_addresses.held.get("n1").map(Vec::len);
    assert_eq!(barred(&record), Some(1));
    let resized = IP_SPEC.replace("\"perNodeBlockSize\":4", "\"perNodeBlockSize\":8");
    let edited = PoolRecord { status: record.status, ..pool(&resized, 2, &json!({})) };
    let given = scene.decide(&edited).assignments.unwrap();
    assert_eq!(given.iter().find(|one| one.node == "n1").unwrap().phase, BlockPhase::Stale);
    assert_eq!(barred(&edited), Some(1), "it goes on giving from the block");
}

#[test]
fn what_a_served_node_holds_elsewhere_bars_others_whoever_is_let_go_of() {
    for (named, patch) in [("*", Some(MetadataPatch::Force(BTreeSet::new()))), ("n2", None)] {
        let (scene, mut record) = astray();
        record.life.force_release = BTreeSet::from([named.to_owned()]);
        let decision = scene.decide(&record);
        assert!(decision.unavailable_addresses.held.contains_key("n1"), "{named}");
        assert_eq!(decision.patch, patch, "{named}");
    }
}

#[test]
fn a_force_released_address_that_another_node_reports_is_a_duplicate() {
    let (mut scene, mut record) = astray();
    // n1 is cordoned. An admin has force-released the address of its pod, and the operator has assigned the block to n2.
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    record.life.force_release = BTreeSet::from(["n1".to_owned()]);
    record.status.allocations.retain(|claim| claim.node == "n1");
    record.status.allocations[0].node = "n2".to_owned();
    scene.ipam_nodes.get_mut("n2").unwrap().blocks =
        std::mem::take(&mut scene.ipam_nodes.get_mut("n1").unwrap().blocks);
    holds(&mut scene, "n2", &["192.168.0.2"]);
    let decision = scene.decide(&record);
    let degraded = condition(decision.status.as_ref().unwrap(), DEGRADED);
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "DuplicateAddress"));
    assert!(degraded.message.contains("192.168.0.2 on node n2 and on node n1"), "{}", degraded.message);
    assert_eq!(decision.unavailable_addresses.held.get("n2"), None, "n2 may allocate it");
    let waits_for = BTreeSet::from(["n2".to_owned()]);
    assert_eq!(decision.unavailable_addresses.awaited, waits_for, "a report of n2 may begin or end the duplicate");
}

#[test]
fn what_a_node_without_a_block_holds_is_said_with_what_to_do_for_as_long_as_it_is_barred() {
    let (mut scene, mut record) = departed();
    // n1 lives on. An admin has let go of its block while a pod had an address of it.
    scene.nodes.insert("n1".into(), BTreeMap::new());
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    holds(&mut scene, "n1", &["192.168.0.3"]);
    let known = scene.ipam_nodes.get_mut("n1").unwrap();
    known.blocks.clear();
    record.status.releasing.clear();
    let decision = scene.decide(&record);
    let said = condition(decision.status.as_ref().unwrap(), RELEASING);
    assert_eq!((said.status.as_str(), said.reason.as_str()), ("True", "InUseWithoutBlock"));
    for words in [
        "node n1 (1 in use, cordoned)",
        "No other node gets these addresses",
        "when the pods are deleted",
        "ippool blue nv-ipam.nvidia.com/force-release=NODE",
    ] {
        assert!(said.message.contains(words), "{}", said.message);
    }
    assert_eq!(decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["InUseWithoutBlock"]);
    let mut record = written(&record, &decision);
    assert_eq!(scene.decide(&record).status, None, "said once");
    // It is said beside a block that is being taken back, too.
    scene.nodes.remove("n2");
    let decision = scene.decide(&record);
    let said = condition(decision.status.as_ref().unwrap(), RELEASING);
    assert_eq!(said.reason, "BlocksInUse");
    assert!(
        said.message.contains("n2 (not reported, Node gone)") && said.message.contains("n1 (1 in use"),
        "{}",
        said.message
    );
    record = written(&record, &decision);
    scene.nodes.insert("n2".into(), BTreeMap::new());
    let known = scene.ipam_nodes.get_mut("n1").unwrap();
    known.reports[0].used = 0;
    let status = scene.decide(&record).status.unwrap();
    assert_eq!(condition(&status, RELEASING).reason, "NothingToRelease");
}
