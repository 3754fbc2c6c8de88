//! Blocks and pools that are taken back: when each is free, and who hears of it.

use super::*;

#[test]
fn a_node_that_leaves_gives_no_more_and_its_block_is_nobody_elses() {
    let (mut scene, record) = served(&["n1", "n2"]);
    scene.nodes.remove("n1");
    scene.nodes.insert("n3".into(), BTreeMap::new());
    scene.second = 30;
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    assert_eq!(blocks(status), ["n2=192.168.0.5-192.168.0.8", "n3=192.168.0.9-192.168.0.12"]);
    assert_eq!(releasing(status), ["n1=192.168.0.1-192.168.0.4"]);
    assert_eq!((status.releasing[0].since, status.releasing[0].node_gone_since), (Some(at(30)), Some(at(30))));
    assert_eq!(status.summary.nodes, Some(NodeCounts { served: 2, unserved: 0, releasing: 1 }));
    let message = &condition(status, RELEASING).message;
    assert!(message.contains("n1 (not reported, Node gone)") && message.contains(FORCE_RELEASE), "{message}");
    assert_eq!(decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["BlocksReleasing"]);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    assert_eq!(scene.block_of("n1").state, BlockState::Releasing);
    assert_eq!(scene.block_of("n2").state, BlockState::Active);

    let record = written(&record, &decision);
    scene.second = 60;
    assert_eq!(scene.decide(&record).status, None, "said once, and the time stands");
    scene.nodes.insert("n1".into(), BTreeMap::new());
    let status = scene.decide(&record).status.unwrap();
    let expected = ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8", "n3=192.168.0.9-192.168.0.12"];
    assert_eq!(blocks(&status), expected, "the same node gets the same block back");
    assert_eq!(releasing(&status), [""; 0]);
    assert_eq!(condition(&status, RELEASING).status, "False");
}

#[test]
fn a_block_is_free_once_its_grant_has_ended_without_an_address_in_use() {
    let (mut scene, record) = departed();
    scene.nodes.insert("n0".into(), BTreeMap::new());
    for ended in [false, true] {
        scene.report("n1", 2);
        scene.ipam_nodes.get_mut("n1").unwrap().reports[0].ended = ended;
        let decision = scene.decide(&record);
        assert_eq!(releasing(&decision.status.unwrap()), ["n1=192.168.0.1-192.168.0.4"], "{ended}");
    }
    scene.report("n1", 0);
    let decision = scene.decide(&record);
    let status = decision.status.unwrap();
    assert_eq!(blocks(&status), ["n0=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"]);
    assert_eq!(releasing(&status), [""; 0]);
    assert_eq!(decision.just_assigned, BTreeSet::from(["n0".to_owned()]));
    assert_eq!(decision.notes, vec![], "the normal course of things");
}

#[test]
fn a_report_about_another_grant_releases_nothing() {
    let spoil: [fn(&mut IpamNodeRecord); 5] = [
        |record| record.reports[0].grant = Some("6500000000000009".into()),
        |record| record.reports[0].grant = None,
        |record| record.reports[0].ended = false,
        |record| record.write_in_flight = true,
        |record| (record.blocks[0].grant, record.reports[0].grant) = (String::new(), Some(String::new())),
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        let (mut scene, record) = departed();
        scene.report("n1", 0);
        assert!(scene.ipam_nodes.get("n1").unwrap().has_released(&record.key));
        spoil(scene.ipam_nodes.get_mut("n1").unwrap());
        assert!(!scene.ipam_nodes.get("n1").unwrap().has_released(&record.key), "case {number}");
    }
}

#[test]
fn a_block_that_was_never_used_is_revoked_and_free_without_a_report() {
    let (mut scene, record) = departed();
    let known = scene.ipam_nodes.get_mut("n1").unwrap();
    known.blocks[0].never_used = true;
    let assignments = scene.decide(&record).assignments.unwrap();
    scene.write_ipam_nodes(&record, &assignments);
    assert_eq!(scene.block_of("n1").state, BlockState::Revoked);
    assert_eq!(releasing(&scene.decide(&record).status.unwrap()), [""; 0]);
    // With a report about the grant, addresses may be in use.
    let (mut scene, record) = departed();
    scene.ipam_nodes.get_mut("n1").unwrap().blocks[0].never_used = true;
    scene.report("n1", 1);
    let assignments = scene.decide(&record).assignments.unwrap();
    scene.write_ipam_nodes(&record, &assignments);
    assert_eq!(scene.block_of("n1").state, BlockState::Releasing);
}

#[test]
fn a_block_of_an_idle_grant_is_revoked_and_free_while_no_agent_runs() {
    let spoil: [fn(&mut IpamNodeRecord); 4] = [
        |_| {},
        |record| record.reports[0].idle = false,
        |record| record.reports[0].grant = Some("6500000000000009".into()),
        |record| record.is_doubted = true,
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        let (mut scene, record) = departed();
        scene.report("n1", 0);
        let known = scene.ipam_nodes.get_mut("n1").unwrap();
        (known.reports[0].ended, known.reports[0].idle) = (false, true);
        spoil(known);
        let assignments = scene.decide(&record).assignments.unwrap();
        scene.write_ipam_nodes(&record, &assignments);
        let state = if number == 0 { BlockState::Revoked } else { BlockState::Releasing };
        assert_eq!(scene.block_of("n1").state, state, "case {number}");
    }
}

#[test]
fn an_entry_that_is_merely_not_there_releases_nothing() {
    let (mut scene, record) = departed();
    scene.ipam_nodes.get_mut("n1").unwrap().blocks.clear();
    assert_eq!(scene.decide(&record).status, None);
    scene.ipam_nodes.delete("n1");
    assert_eq!(
        releasing(scene.decide(&record).status.as_ref().unwrap_or(&record.status)),
        ["n1=192.168.0.1-192.168.0.4"]
    );
}

#[test]
fn the_block_of_a_node_that_is_gone_is_let_go_of_after_the_grace() {
    let (mut scene, record) = departed();
    scene.report("n1", 3);
    scene.grace = Some(Duration::from_hours(1));
    let waiting = scene.decide(&record);
    assert_eq!((waiting.expires, waiting.revoked.len()), (Some(at(3600)), 0));
    scene.second = 3600;
    let decision = scene.decide(&record);
    assert!(decision.revoked.contains("n1") && decision.assignments.unwrap().len() == 2, "its grant is revoked first");
    scene.ipam_nodes.get_mut("n1").unwrap().blocks[0].state = BlockState::Revoked;
    let decision = scene.decide(&record);
    assert_eq!(releasing(decision.status.as_ref().unwrap()), [""; 0]);
    let [note] = &decision.notes[..] else { panic!("{:?}", decision.notes) };
    assert_eq!(note.reason, "GraceExpired");
    assert!(
        note.text.contains("192.168.0.1-192.168.0.4 of node n1 is released") && note.text.contains("3 in use"),
        "{note:?}"
    );
}

#[test]
fn a_leader_lets_go_of_no_block_by_time_before_it_has_itself_seen_the_node_missing_for_a_while() {
    let (mut scene, record) = departed();
    scene.report("n1", 3);
    scene.grace = Some(Duration::from_hours(1));
    // It began to lead when the grace had long passed; nobody knows whether the Node was back meanwhile.
    scene.second = 7200;
    scene.absences = NodeAbsences::default();
    let revokes = |scene: &Scene| scene.decide(&record).revoked.contains("n1");
    assert!(!revokes(&scene), "not even in sync");
    scene.absences.resume(instant(7200));
    let decision = scene.decide(&record);
    assert_eq!((decision.revoked.len(), decision.expires), (0, Some(at(7500))));
    // It comes back for a moment in which the pool is not looked at.
    scene.absences.comes("n1");
    scene.absences.goes("n1", instant(7499), scene.grace);
    scene.second = 7500;
    let decision = scene.decide(&record);
    assert_eq!(decision.revoked.len(), 0);
    let since = decision.status.expect("the record is of another absence").releasing[0].node_gone_since;
    assert_eq!((since, decision.expires), (Some(at(7500)), Some(at(7500 + 3600))));
    // One that was only ever missing is let go of.
    scene.absences = NodeAbsences::default();
    scene.absences.resume(instant(7200));
    assert!(revokes(&scene));
}

#[test]
fn a_wall_clock_that_is_set_a_little_moves_no_record_of_an_absence() {
    let (mut scene, record) = departed();
    scene.grace = Some(Duration::from_hours(1));
    let since = record.status.releasing[0].node_gone_since;
    scene.absences.goes("n1", instant(0), scene.grace);
    for set in [0, 4] {
        scene.second = 60;
        let decision = scene.decide_at(&record, at(60 + set));
        let recorded = decision.status.map_or(since, |status| status.releasing[0].node_gone_since);
        assert_eq!(recorded, since, "set by {set} s");
    }
}

#[test]
fn a_grace_begins_again_when_the_wall_clock_is_set_back() {
    let (mut scene, mut record) = departed();
    scene.report("n1", 3);
    scene.grace = Some(Duration::from_hours(1));
    record.status.releasing[0].node_gone_since = Some(at(36_000));
    assert_eq!(scene.decide(&record).expires, Some(at(3600)));
}

#[test]
fn neither_a_node_that_is_there_nor_a_grace_of_zero_lets_go_by_time() {
    let (mut scene, record) = departed();
    scene.second = 1_000_000_000;
    assert_eq!(scene.decide(&record).revoked.len(), 0, "no grace");
    scene.grace = Some(Duration::from_hours(1));
    scene.nodes.insert("n1".into(), BTreeMap::new());
    let unselected = IP_SPEC.replace(
        '}',
        r#","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]}}"#,
    );
    let record = PoolRecord { status: record.status, ..pool(&unselected, 2, &json!({})) };
    let decision = scene.decide(&record);
    assert_eq!(decision.revoked.len(), 0);
    assert_eq!(decision.status.unwrap().releasing[0].node_gone_since, None);
}

#[test]
fn an_admin_lets_go_of_a_block_and_the_annotation_goes_when_it_has_done_its_work() {
    let (mut scene, mut record) = departed();
    scene.report("n1", 2);
    record.life.force_release = BTreeSet::from(["n1".to_owned(), "typo".to_owned()]);
    let decision = scene.decide(&record);
    assert_eq!(decision.revoked, BTreeSet::from(["n1".to_owned()]));
    let left = BTreeSet::from(["n1".to_owned()]);
    assert_eq!(decision.patch, Some(MetadataPatch::Force(left.clone())), "there is no work for the other name");
    record.life.force_release = left;
    assert_eq!(scene.decide(&record).patch, None, "there is work for it");
    scene.ipam_nodes.begin_write("n1", &[]);
    let decision = scene.decide(&record);
    assert_eq!(decision.assignments.unwrap().len(), 2, "not while the write is under way");
    scene.ipam_nodes.end_write("n1", true);
    let known = scene.ipam_nodes.get_mut("n1").unwrap();
    (known.blocks[0].state, known.write_in_flight) = (BlockState::Revoked, false);
    let decision = scene.decide(&record);
    assert_eq!(decision.notes[0].reason, "ForcedRelease");
    assert!(decision.notes[0].text.contains("2 in use"), "{:?}", decision.notes);
    let record = PoolRecord { life: record.life.clone(), ..written(&record, &decision) };
    assert_eq!(scene.decide(&record).patch, None, "the agent still reports the addresses in use");
    scene.report("n1", 0);
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Force(BTreeSet::new())));
}

/// An admin names `n1` while it is served. The pool after the decision.
fn forced_while_served() -> (Scene, PoolRecord) {
    let (mut scene, mut record) = served(&["n1", "n2"]);
    scene.report("n1", 2);
    record.life.force_release = BTreeSet::from(["n1".to_owned()]);
    let decision = scene.decide(&record);
    assert_eq!((&decision.patch, &decision.revoked, &decision.notes), (&None, &BTreeSet::new(), &vec![]));
    let given = decision.assignments.as_ref().unwrap();
    assert!(given.iter().all(|given| given.phase == BlockPhase::Active), "{given:?}");
    (scene, written(&record, &decision))
}

#[test]
fn a_forced_name_of_a_served_node_stays_and_shows() {
    let (mut scene, mut record) = forced_while_served();
    assert_eq!(scene.decide(&record).status, None, "it is stable");
    let shown = condition(&record.status, RELEASING);
    assert_eq!((shown.status.as_str(), shown.reason.as_str()), ("True", "ForcedReleasePending"));
    for words in [
        "node n1 (2 in use)",
        "may be assigned twice",
        "kubectl annotate node NODE nv-ipam.nvidia.com/cordon=true",
        "ippool blue nv-ipam.nvidia.com/force-release-",
    ] {
        assert!(shown.message.contains(words), "{words}: {}", shown.message);
    }
    // The condition also shows a block that is being released.
    scene.nodes.remove("n2");
    let decision = scene.decide(&record);
    let shown = condition(decision.status.as_ref().unwrap(), RELEASING);
    assert_eq!(shown.reason, "BlocksInUse");
    let pending = "force-release is pending for node n1 (2 in use)";
    assert!(shown.message.contains("by node n2 (") && shown.message.contains(pending), "{}", shown.message);
    record = written(&record, &decision);
    record.life.force_release.clear();
    scene.nodes.insert("n2".into(), BTreeMap::new());
    let status = scene.decide(&record).status.unwrap();
    assert_eq!(condition(&status, RELEASING).reason, "NothingToRelease", "the admin took the name back");
}

type Change = fn(&mut Scene, &mut PoolRecord);

#[test]
fn a_forced_name_acts_when_its_node_leaves() {
    let leave: [(&str, Change); 5] = [
        ("gone", |scene, _| scene.nodes.retain(|node, _| node != "n1")),
        ("cordoned", |scene, _| scene.leaving = BTreeMap::from([("n1".to_owned(), Leaving::Cordoned)])),
        ("terminating", |scene, _| scene.leaving = BTreeMap::from([("n1".to_owned(), Leaving::Terminating)])),
        ("deselected", |_, record| {
            let only = r#","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]}]}}"#;
            record.spec = pool(&IP_SPEC.replace('}', only), 2, &json!({})).spec;
        }),
        ("pool deleted", |_, record| record.life.deleting = true),
    ];
    for (how, leave) in leave {
        let (mut scene, mut record) = forced_while_served();
        leave(&mut scene, &mut record);
        let decision = scene.decide(&record);
        assert_eq!((&decision.patch, &decision.revoked), (&None, &BTreeSet::from(["n1".to_owned()])), "{how}");
        scene.ipam_nodes.get_mut("n1").unwrap().blocks[0].state = BlockState::Revoked;
        let record = written(&record, &decision);
        let decision = scene.decide(&record);
        assert!(decision.assignments.iter().flatten().all(|given| given.node != "n1"), "{how}");
        assert!(decision.notes.iter().any(|note| note.reason == "ForcedRelease"), "{how}: {:?}", decision.notes);
    }
}

#[test]
fn an_admin_who_lets_go_of_all_blocks_lets_go_of_none_that_is_taken_back_later() {
    let (mut scene, mut record) = departed();
    scene.report("n1", 2);
    record.life.force_release = BTreeSet::from(["*".to_owned()]);
    let decision = scene.decide(&record);
    let now = BTreeSet::from(["n1".to_owned()]);
    assert_eq!((decision.patch, decision.revoked.len()), (Some(MetadataPatch::Force(now.clone())), 0));
    // While the agent of n1 lives on and keeps the annotation there, n2 leaves.
    record.life.force_release = now.clone();
    scene.nodes.remove("n2");
    let decision = scene.decide(&record);
    assert_eq!((decision.revoked, decision.assignments.unwrap().len()), (now, 2));
    // While a spec is invalid, nothing is taken back; who leaves then is not meant either.
    let broken = PoolRecord { status: record.status, ..pool("{}", 2, &json!({})) };
    let mut broken = written(&broken, &scene.decide(&broken));
    broken.life.force_release = BTreeSet::from(["*".to_owned()]);
    assert_eq!(scene.decide(&broken).patch, Some(MetadataPatch::Force(BTreeSet::from(["n1".to_owned()]))));
}

#[test]
fn a_node_that_is_served_again_ends_the_annotation_that_let_go_of_its_former_block() {
    let (mut scene, mut record) = departed();
    record.life.force_release = BTreeSet::from(["n1".to_owned()]);
    // The node has lost its block, and its agent still reports an address of it.
    scene.report("n1", 1);
    let known = scene.ipam_nodes.get_mut("n1").unwrap();
    known.blocks.clear();
    record.status.releasing.clear();
    record.status.allocations.retain(|claim| claim.node != "n1");
    let decision = scene.decide(&record);
    let record = PoolRecord { life: record.life.clone(), ..written(&record, &decision) };
    assert_eq!(scene.decide(&record).patch, None, "its word would bar the block");
    scene.nodes.insert("n1".into(), BTreeMap::new());
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Force(BTreeSet::new())));
    let mut record = PoolRecord { life: record.life.clone(), ..record };
    record.life.force_release.clear();
    assert!(scene.decide(&record).assignments.unwrap().iter().any(|given| given.node == "n1"));
}

#[test]
fn a_pool_is_sealed_before_its_first_block_is_given() {
    let mut record = pool(IP_SPEC, 1, &json!({}));
    record.life.finalizers.clear();
    assert_eq!(Scene::of(&["n1"]).decide(&record).patch, Some(MetadataPatch::Seal));
    assert_eq!(Scene::default().decide(&record).patch, None, "a pool that gives nothing needs no seal");
}

#[test]
fn an_invalid_pool_with_blocks_gets_its_finalizer_back() {
    let mut scene = Scene::of(&["n1"]);
    let valid = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&valid);
    scene.write_ipam_nodes(&valid, decision.assignments.as_ref().unwrap());
    let mut record = PoolRecord { status: decision.status.unwrap(), ..pool("{}", 2, &json!({})) };
    record.life.finalizers.clear();
    let refused = scene.decide(&record);
    assert_eq!((refused.patch.as_ref(), refused.notes[0].reason), (None, "InvalidSpec"), "the condition comes first");
    let mut record = PoolRecord { life: record.life.clone(), ..written(&record, &refused) };
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Seal));
    (record.status.allocations, record.status.releasing) = (Vec::new(), Vec::new());
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Seal), "only the IPAMNode has the block");
    scene.ipam_nodes = crate::cluster_cache::IpamNodes::default();
    assert_eq!(scene.decide(&record).patch, None);
}

#[test]
fn a_pool_that_is_being_deleted_waits_for_all_its_blocks_and_says_for_which() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = Scene::of(&["n1", "n2"]).decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    scene.report("n1", 2);
    for spec in [IP_SPEC, "{}"] {
        let mut record = PoolRecord { status: decision.status.clone().unwrap(), ..pool(spec, 2, &json!({})) };
        record.life.deleting = true;
        let decision = scene.decide(&record);
        assert_eq!(decision.patch, None);
        let status = decision.status.as_ref().unwrap();
        assert_eq!(releasing(status), ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"], "n3 gets none");
        let ready = condition(status, READY);
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "Deleting"));
        assert!(ready.message.contains("2 nodes: n1 (2 in use), n2 (not reported)"), "{}", ready.message);
        assert_eq!((decision.notes[0].reason, decision.notes[0].is_warning), ("PoolInUse", false));
    }
}

#[test]
fn a_deleted_pool_shows_the_command_of_a_force_release() {
    let (scene, mut record) = departed();
    (record.life.deleting, record.namespace) = (true, "net".to_owned());
    let status = scene.decide(&record).status.unwrap();
    let message = &condition(&status, READY).message;
    let command = "To release a block at once (addresses in use may be assigned twice): kubectl annotate -n net ippool blue \
                   nv-ipam.nvidia.com/force-release=NODE";
    assert!(message.ends_with(command), "{message}");
}

#[test]
fn a_deleted_pool_whose_agents_have_nothing_to_report_in_says_the_one_command_that_ends_the_waiting() {
    let (mut scene, mut record) = departed();
    (record.life.deleting, record.namespace) = (true, "net".to_owned());
    let decision = scene.decide(&record);
    assert!(!condition(decision.status.as_ref().unwrap(), READY).message.contains("release-pools"));
    let record = written(&record, &decision);
    scene.no_place = Some(CreateBlocked::NamespaceEnds);
    assert_eq!(scene.decide(&record).status, None, "each node has an IPAMNode to report in");
    drop(scene.ipam_nodes.delete("n2"));
    let decision = scene.decide(&record);
    let said = &condition(decision.status.as_ref().unwrap(), READY).message;
    for words in ["2 nodes: n1", "namespace is being deleted", "ipam-controller release-pools --ippools-namespace=net"]
    {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["IPAMNodesRefused"]);
    let record = written(&record, &decision);
    let decision = scene.decide(&record);
    assert_eq!((decision.status, decision.notes), (None, vec![]), "said once");
    scene.no_place = None;
    assert!(!condition(&scene.decide(&record).status.unwrap(), READY).message.contains("release-pools"));
}

#[test]
fn the_seal_of_a_deleted_pool_goes_with_the_last_block() {
    let (mut scene, record) = departed();
    scene.nodes.clear();
    let mut record = PoolRecord { generation: 2, ..record };
    record.life.deleting = true;
    for node in ["n1", "n2"] {
        let decision = scene.decide(&record);
        assert_eq!(decision.patch, None, "{node} is still there");
        scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
        scene.report(node, 0);
        let decision = scene.decide(&record);
        scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    }
    let decision = scene.decide(&record);
    assert_eq!(decision.patch, None, "that nobody has a block is written first");
    assert_eq!(scene.decide(&written(&record, &decision)).patch, Some(MetadataPatch::Unseal));
}

#[test]
fn who_lost_the_last_block_of_a_deleted_pool_is_said_before_the_pool_is_gone() {
    let (mut scene, record) = departed();
    scene.nodes.clear();
    scene.report("n1", 3);
    let mut record = PoolRecord { generation: 2, ..record };
    record.life.deleting = true;
    record.life.force_release = BTreeSet::from(["*".to_owned()]);
    let both = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
    let decision = scene.decide(&record);
    assert_eq!(decision.patch, None, "the status says first which blocks are released");
    let mut record = written(&record, &decision);
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Force(both.clone())));
    record.life.force_release = both;
    for node in ["n1", "n2"] {
        scene.ipam_nodes.get_mut(node).unwrap().blocks[0].state = BlockState::Revoked;
    }
    let decision = scene.decide(&record);
    assert_eq!(decision.patch, None);
    let said: Vec<_> = decision.notes.iter().filter(|note| note.reason == "ForcedRelease").collect();
    assert!(
        said.len() == 2 && said[0].text.contains("node n1 is released") && said[0].text.contains("3 in use"),
        "{said:?}"
    );
    let record = written(&record, &decision);
    assert_eq!(scene.decide(&record).patch, Some(MetadataPatch::Unseal));
}

#[test]
fn a_pool_in_the_way_of_which_an_older_one_stands_serves_nobody_and_heals() {
    let mut scene = Scene::of(&["n1"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let first = scene.decide(&record);
    scene.write_ipam_nodes(&record, first.assignments.as_ref().unwrap());
    let record = written(&record, &first);
    let older = PoolKey::new(PoolKind::CidrPool, "older");
    scene.other_pools.older_overlap = Some(older);
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    let ready = condition(status, READY);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "Overlap"));
    assert!(ready.message.contains("CIDRPool \"older\""), "{}", ready.message);
    assert_eq!((blocks(status).len(), releasing(status).len()), (0, 1), "what was given is taken back");
    assert_eq!(decision.notes[0].reason, "Overlap");
    let record = written(&record, &decision);
    assert_eq!(scene.decide(&record).status, None, "said once");
    scene.other_pools = OtherPools::default();
    let status = scene.decide(&record).status.unwrap();
    assert_eq!(blocks(&status), blocks(first.status.as_ref().unwrap()));
    assert_eq!(condition(&status, READY).status, "True");
}

#[test]
fn the_grace_is_said_as_it_was_set() {
    for (seconds, said) in
        [(24 * 3600, "earliest 24 h after"), (90 * 60, "earliest 90 min after"), (45, "earliest 45 s after")]
    {
        let (mut scene, record) = departed();
        (scene.grace, scene.second) = (Some(Duration::from_secs(seconds)), 1);
        let status = scene.decide(&record).status.unwrap();
        let message = &condition(&status, RELEASING).message;
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_force_released_node_gets_another_block_once_its_name_is_gone() {
    let (mut scene, record) = departed();
    // The node is back, and the spec does not have its block any more.
    let larger = IP_SPEC.replace("\"perNodeBlockSize\":4", "\"perNodeBlockSize\":8");
    let mut record = PoolRecord { status: record.status, ..pool(&larger, 2, &json!({})) };
    record.life.force_release = BTreeSet::from(["n1".to_owned()]);
    scene.report("n1", 3);
    scene.ipam_nodes.get_mut("n1").unwrap().blocks[0].state = BlockState::Revoked;
    scene.nodes.insert("n1".into(), BTreeMap::new());
    let has_block = |decision: &Decision| decision.assignments.iter().flatten().any(|given| given.node == "n1");
    let decision = scene.decide(&record);
    assert!(!has_block(&decision) && decision.patch.is_none(), "the status says first that the block is released");
    let mut record = PoolRecord { life: record.life.clone(), ..written(&record, &decision) };
    let decision = scene.decide(&record);
    assert!(!has_block(&decision), "the admin did not speak of that block");
    assert_eq!(decision.patch, Some(MetadataPatch::Force(BTreeSet::new())));
    record.life.force_release.clear();
    assert!(has_block(&scene.decide(&record)));
}

#[test]
fn a_forced_name_that_releases_nothing_is_answered() {
    let (scene, mut record) = served(&["n1", "n2"]);
    for (named, said) in [(&["n22", "n3"][..], "for 2 nodes: n22, n3."), (&["*"], "for all nodes.")] {
        record.life.force_release = named.iter().map(|&name| name.to_owned()).collect();
        let decision = scene.decide(&record);
        assert_eq!(decision.patch, Some(MetadataPatch::Force(BTreeSet::new())));
        let [answer] = &decision.patch_notes[..] else { panic!("{:?}", decision.patch_notes) };
        assert!(answer.reason == "ForcedReleaseEnded" && answer.text.contains(said), "{answer:?}");
    }
}

#[test]
fn force_release_of_all_means_stale_blocks_too() {
    let (mut scene, record) = departed();
    // n1 has left, and the spec does not have the block of n2 any more, of which an address is in use.
    let larger = IP_SPEC.replace("\"perNodeBlockSize\":4", "\"perNodeBlockSize\":8");
    let mut record = PoolRecord { status: record.status, ..pool(&larger, 2, &json!({})) };
    scene.report("n1", 1);
    scene.report("n2", 1);
    record.life.force_release = BTreeSet::from(["*".to_owned()]);
    let decision = scene.decide(&record);
    assert_eq!(decision.patch, Some(MetadataPatch::Force(BTreeSet::from(["n1".to_owned(), "n2".to_owned()]))));
}

#[test]
fn the_names_that_replace_all_fit_into_an_annotation() {
    const MOST: usize = 128 * 1024;
    let all = || BTreeSet::from(["*".to_owned()]);
    let names: Vec<String> = (0..600).map(|number| format!("{number:03}{}", "n".repeat(250))).collect();
    let (mut scene, record) = served(&names.iter().map(String::as_str).collect::<Vec<_>>());
    scene.nodes.clear();
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    let mut record = written(&record, &decision);
    record.life.force_release = all();
    let decision = scene.decide(&record);
    let Some(MetadataPatch::Force(first)) = decision.patch else { panic!("no names") };
    let answer = decision.patch_notes.first().expect("an event says that names are missing");
    assert_eq!(answer.reason, "ForcedReleaseIncomplete");
    assert!(answer.text.contains(&format!("{} more nodes", names.len() - first.len())), "{}", answer.text);
    let bytes: usize = first.iter().map(|name| name.len() + 1).sum();
    assert!(bytes <= MOST && bytes + names[0].len() >= MOST, "{bytes} bytes");
    assert!(first.iter().eq(&names[..first.len()]), "they are the first by name");
    // The condition names the others, and an admin annotates the pool again.
    record.life.force_release.clone_from(&first);
    for node in &first {
        scene.ipam_nodes.get_mut(node).unwrap().blocks[0].state = BlockState::Revoked;
    }
    let decision = scene.decide(&record);
    let message = &condition(decision.status.as_ref().unwrap(), RELEASING).message;
    assert!(message.contains(&format!("{} nodes", names.len() - first.len())), "{message}");
    let mut record = written(&record, &decision);
    record.life.force_release = all();
    let decision = scene.decide(&record);
    assert_eq!(decision.patch, Some(MetadataPatch::Force(names[first.len()..].iter().cloned().collect())));
    assert!(decision.patch_notes.is_empty(), "all names are in the annotation: {:?}", decision.patch_notes);
}
