//! Nodes that leave: cordoned by an admin, or terminating.

use super::*;

/// `n1` has a block and two addresses of it in use when it begins to leave. Its block is being released then, for `reason`.
fn leaves(why: Leaving, reason: &str) -> (Scene, PoolRecord, Decision) {
    let mut scene = Scene::of(&["n1", "n2"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    scene.report("n1", 2);
    let record = written(&record, &decision);
    scene.leaving.insert("n1".to_owned(), why);
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    assert_eq!(releasing(status), ["n1=192.168.0.1-192.168.0.4"]);
    assert_eq!(status.releasing[0].node_gone_since, None, "its Node is there: no grace runs");
    assert!(condition(status, RELEASING).message.contains(&format!("n1 (2 in use, {reason})")), "{status:?}");
    (scene, record, decision)
}

#[test]
fn a_cordoned_node_gives_no_more_and_has_its_block_again_when_the_cordon_goes() {
    let (mut scene, record, decision) = leaves(Leaving::Cordoned, "cordoned");
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    assert_eq!(scene.block_of("n1").state, BlockState::Releasing);

    let record = written(&record, &decision);
    scene.leaving.clear();
    let decision = scene.decide(&record);
    assert_eq!(blocks(decision.status.as_ref().unwrap()), ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"]);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    assert_eq!(scene.block_of("n1").state, BlockState::Active);
}

#[test]
fn a_cordoned_node_without_a_block_gets_none() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    let status = scene.decide(&pool(IP_SPEC, 1, &json!({}))).status.unwrap();
    assert_eq!(blocks(&status), ["n2=192.168.0.1-192.168.0.4"]);
    assert_eq!(condition(&status, EXHAUSTED).status, "False", "it is not left out for want of blocks");
    let left_out = "No block is assigned to node n1 (cordoned). \
                    To end a cordon: kubectl annotate node NODE nv-ipam.nvidia.com/cordon-";
    assert_eq!(condition(&status, READY).message, left_out);
    // Also where it is the only selected node.
    let mut scene = Scene::of(&["n1"]);
    scene.leaving.insert("n1".to_owned(), Leaving::Cordoned);
    let status = scene.decide(&pool(IP_SPEC, 1, &json!({}))).status.unwrap();
    assert_eq!(condition(&status, READY).message, left_out);
}

#[test]
fn a_terminating_node_releases_its_block_while_its_agent_runs() {
    leaves(Leaving::Terminating, "Node terminating");
}
