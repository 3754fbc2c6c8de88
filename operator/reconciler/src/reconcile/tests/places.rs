//! Namespaces and definitions that end while pools wait for agents that have nothing to report in any more.

use super::*;

fn ready(world: &World) -> String {
    let conditions = world.status().summary.conditions;
    conditions.iter().find(|condition| condition.type_ == "Ready").unwrap().message.clone()
}

#[test]
fn a_deleted_pool_says_the_way_out_while_ipam_nodes_cannot_be_made() {
    let (pool, _) = left_behind(&["n1"]);
    let mut deleted = pool;
    deleted.metadata.deletion_timestamp =
        object(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).metadata.deletion_timestamp;
    // Its IPAMNode went with the namespace.
    let mut world = World::led_by(AllocationState::NoneAllocated, &["n1"], &[deleted], vec![]);
    let (mut refused, mut said) = (0, 0);
    while refused < 4 {
        for call in world.calls() {
            let makes = matches!(&call, Command::WriteIpamNode(NodeWrite { action: NodeAction::Create { .. }, .. }));
            refused += usize::from(makes);
            if makes {
                world.fail(call, CallError::CreateBlocked(CreateBlocked::NamespaceEnds));
            } else {
                said += usize::from(matches!(&call, Command::WriteStatus { .. }) && refused > 0);
                world.succeed(call);
            }
        }
    }
    assert_eq!(said, 2, "the way out, and the error once it lasts, however often it is tried");
    let said = ready(&world);
    assert!(said.contains("node n1") && said.contains("ipam-controller release-pools"), "{said}");
    // Somebody has made the namespace anew.
    world.calls_after(Duration::from_secs(30)).into_iter().for_each(|call| world.succeed(call));
    world.settle();
    world.calls_after(Duration::from_secs(20)).into_iter().for_each(|call| world.succeed(call));
    assert!(!ready(&world).contains("release-pools"), "{}", ready(&world));
}

#[test]
fn a_pool_that_serves_shows_that_no_ipam_node_can_be_created() {
    let degraded = |world: &World| {
        let conditions = world.status().summary.conditions;
        let degraded = conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        (degraded.reason.clone(), degraded.message.clone())
    };
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.node_joins("n2");
    let mut refused = 0;
    while refused < 4 {
        for call in world.calls() {
            if is_creation(&call) {
                refused += 1;
                world.fail(call, CallError::CreateBlocked(CreateBlocked::DefinitionEnds));
            } else {
                world.succeed(call);
            }
        }
    }
    let (reason, message) = degraded(&world);
    assert!(reason == "IPAMNodesRefused" && message.contains("agents of node n2"), "{reason}: {message}");
    assert_eq!(world.warnings(), ["IPAMNodesRefused"], "one event for all tries");
    world.calls_after(Duration::from_secs(40)).into_iter().for_each(|call| world.succeed(call));
    world.settle();
    assert_eq!(degraded(&world).0, "AsSpecified");
}
