//! IPAMNodes that another hand changes while we lead: entries that no spec can make anew, too.

use ipam_core::plan::{Assignment, BlockPhase};
use ipam_crds::{NodeBlock, RouteDestination};

use super::*;

/// Another hand changes the entries of `node`.
fn edit(world: &mut World, node: &str, change: &dyn Fn(&mut Vec<NodeBlock>)) {
    world.version += 1;
    let record = world.reconciler.ipam_nodes.get(node).unwrap();
    let mut blocks = record.blocks.clone();
    change(&mut blocks);
    let event = json!({
        "metadata": {"name": node, "uid": record.uid, "generation": record.generation + 1,
            "resourceVersion": world.version.to_string(), "finalizers": record.finalizers},
        "spec": {"pools": blocks},
        "status": {"observedGeneration": record.generation, "pools": record.reports},
    });
    world.tell(Observed::IpamNode(Event::Apply(object(&event))));
}

/// The user of "blue", whose status is what `written` wrote, gives it another spec.
fn edit_pool(world: &mut World, written: &Command, spec: &str) {
    let status = serde_json::to_value(status_of(written).body(PoolKind::IpPool)).unwrap();
    world.version += 1;
    let edited = pool_object("blue", world.version, 2, spec, &status);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(edited)));
}

/// The spec of "blue" with a route more.
fn routed() -> String {
    SPEC.replace('}', r#","routes":[{"dst":"5.5.0.0/16"}]}"#)
}

fn told(world: &World, node: &str) -> NodeBlock {
    world.reconciler.ipam_nodes.get(node).unwrap().blocks[0].clone()
}

#[test]
fn a_new_gateway_waits_for_the_node_whose_first_entry_is_under_way() {
    let pool = |version, generation, spec, status: &Value| pool_object("blue", version, generation, spec, status);
    let before = r#"{"subnet":"192.168.0.0/28","perNodeBlockSize":1}"#;
    let mut world = World::new(&["n1", "n2"], &[pool(10, 1, before, &Value::Null)], vec![]);
    let status = only(world.calls());
    world.succeed(status);
    let entries = world.calls();
    assert_eq!(nodes_written(&entries).len(), 2, "the second has 192.168.0.2");
    world.version += 1;
    let after = r#"{"subnet":"192.168.0.0/28","perNodeBlockSize":3,"gateway":"192.168.0.2"}"#;
    let edited = pool(world.version, 2, after, &status_json(&world.status()));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(edited)));
    world.node_joins("n3");
    world.settle();
    let gateway = |world: &World| told(world, "n3").gateway;
    assert_eq!(gateway(&world), None, "the agent of n2 may have heard of its block");
    for entry in entries {
        world.succeed(entry);
    }
    world.settle();
    assert_eq!(gateway(&world).as_deref(), Some("192.168.0.2"), "no agent has reported a grant, so none was used");
}

type Edit = (&'static str, fn(&mut Vec<NodeBlock>));

const EDITS: [Edit; 8] = [
    ("range", |blocks| {
        (blocks[0].start_ip, blocks[0].end_ip) = ("192.168.0.9".to_owned(), "192.168.0.12".to_owned());
    }),
    ("range made wider", |blocks| "192.168.0.8".clone_into(&mut blocks[0].end_ip)),
    ("subnet", |blocks| "192.168.0.0/24".clone_into(&mut blocks[0].subnet)),
    ("gateway", |blocks| blocks[0].gateway = None),
    ("routes", |blocks| blocks[0].routes.push(RouteDestination { dst: "10.0.0.0/8".to_owned() })),
    ("state", |blocks| blocks[0].state = BlockState::Active),
    ("no entry", Vec::clear),
    ("another entry", |blocks| {
        let more = NodeBlock { name: "green".to_owned(), ..blocks[0].clone() };
        (blocks[0].gateway, blocks[0].default_gateway) = (None, Some(true));
        blocks.push(more);
    }),
];

/// `n1` is gone, and its block is being taken back.
fn releasing() -> World {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    report(&mut world, "n1", 2);
    world.settle();
    world
}

#[test]
fn an_entry_that_is_being_taken_back_is_put_right_at_the_version_of_the_edit() {
    for (what, change) in EDITS {
        let mut world = releasing();
        let before = told(&world, "n1");
        assert_eq!(before.state, BlockState::Releasing);
        edit(&mut world, "n1", &change);
        let edited = world.version.to_string();
        let calls = world.calls();
        let writes = nodes_written(&calls);
        let [("n1", NodeAction::Update { version, blocks, .. })] = &writes[..] else { panic!("{what}: {calls:#?}") };
        assert_eq!((version, &blocks[0]), (&edited, &before), "{what}");
        for call in calls {
            world.succeed(call);
        }
        world.settle();
        let kept = world.reconciler.pools[&PoolKey::new(PoolKind::IpPool, "blue")].record.status.releasing.len();
        assert_eq!((told(&world, "n1"), kept), (before, 1), "{what}");
    }
}

#[test]
fn a_report_about_a_grant_of_another_hand_releases_nothing() {
    let mut world = releasing();
    let ours = world.reconciler.ipam_nodes.get("n1").unwrap().blocks[0].grant.clone();
    edit(&mut world, "n1", &|blocks| blocks[0].grant = "6500000000000009".into());
    // The agent reports before the grant is put right: the other grant has ended.
    report(&mut world, "n1", 0);
    let calls = world.settle();
    let writes = nodes_written(&calls);
    let [("n1", NodeAction::Update { blocks, .. })] = &writes[..] else { panic!("{calls:#?}") };
    assert_eq!((blocks[0].grant.clone(), blocks[0].state), (ours, BlockState::Releasing));
    report(&mut world, "n1", 0);
    let calls = world.settle();
    assert!(
        nodes_written(&calls).iter().any(|(node, action)| *node == "n1" && action.blocks().is_empty()),
        "{calls:#?}"
    );
}

#[test]
fn a_block_that_the_spec_no_longer_has_is_given_from_as_it_was_told_whatever_another_hand_makes_of_it() {
    for (what, change) in EDITS {
        let mut world = World::new(&["n1"], &[blue()], vec![]);
        let calls = world.settle();
        report(&mut world, "n1", 2);
        let before = told(&world, "n1");
        edit_pool(&mut world, &calls[0], &SPEC.replace(":4", ":8"));
        world.settle();
        edit(&mut world, "n1", &change);
        world.settle();
        // The gateway of an entry that was not there is barred until the agent has answered.
        report(&mut world, "n1", 2);
        world.settle();
        let mut after = told(&world, "n1");
        // The agent reports addresses of "green" in use, which has the same block.
        assert_eq!(after.held_elsewhere.is_empty(), what != "another entry", "{what}");
        after.held_elsewhere.clear();
        assert_eq!(after, before, "{what}");
    }
}

#[test]
fn an_entry_of_a_pool_that_vanished_is_put_right_too() {
    for (what, change) in EDITS {
        let mut world = World::new(&["n1"], &[blue()], vec![]);
        world.settle();
        world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
        world.settle();
        let before = told(&world, "n1");
        assert_eq!(before.state, BlockState::Releasing);
        edit(&mut world, "n1", &change);
        world.settle();
        assert_eq!(told(&world, "n1"), before, "{what}");
    }
}

#[test]
fn our_own_write_is_no_edit_whether_its_answer_or_its_echo_comes_first_or_is_lost() {
    for answered in [true, false] {
        let mut world = World::new(&["n1"], &[blue()], vec![]);
        let calls = world.settle();
        edit_pool(&mut world, &calls[0], &routed());
        let status = only(world.calls());
        world.succeed(status);
        let write = only(world.calls());
        let Command::WriteIpamNode(NodeWrite { action, .. }) = &write else { panic!("{write:#?}") };
        let sent = action.blocks().to_vec();
        edit(&mut world, "n1", &|blocks| blocks.clone_from(&sent));
        if answered {
            world.succeed(write);
        } else {
            world.fail(write, CallError::Failed("connection reset".into()));
        }
        assert!(world.reconciler.ipam_nodes.get("n1").unwrap().intended_blocks.is_none());
        world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
        world.settle();
        assert_eq!((told(&world, "n1").routes.len(), told(&world, "n1").state), (1, BlockState::Releasing));
    }
}

#[test]
fn what_another_hand_wrote_and_we_would_have_told_is_what_is_told_from_then_on() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let calls = world.settle();
    edit_pool(&mut world, &calls[0], &routed());
    let status = only(world.calls());
    // A former leader's write, say, that took its time.
    edit(&mut world, "n1", &|blocks| blocks[0].routes.push(RouteDestination { dst: "5.5.0.0/16".to_owned() }));
    world.succeed(status);
    assert!(nodes_written(&world.settle()).is_empty(), "nothing is to be put right");
    world.tell(Observed::Node(Event::Delete(("n1".into(), NodeMeta::default()))));
    world.settle();
    assert_eq!((told(&world, "n1").routes.len(), told(&world, "n1").state), (1, BlockState::Releasing));
}

#[test]
fn a_prefix_whose_ends_another_hand_moved_while_nobody_led_is_told_anew() {
    let key = PoolKey::new(PoolKind::CidrPool, "lake");
    let spec: Value = json!({"cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 24});
    let pool = object(&json!({"metadata": {"name": "lake"}, "spec": spec}));
    let pool = PoolRecord::read(PoolKind::CidrPool, &pool, None).spec.unwrap();
    let range = ipam_core::AddrRange::new("10.0.1.0".parse().unwrap(), "10.0.1.255".parse().unwrap()).unwrap();
    let block = ipam_core::Block { range, gateway: None };
    let given = Assignment { node: "n1".to_owned(), block, phase: BlockPhase::Releasing };
    let right = crate::ipam_node::entry(&key, Some(&pool), &given, None);
    let ends = |start: &str, end: &str| {
        let block = NodeBlock { start_ip: start.to_owned(), end_ip: end.to_owned(), ..right.clone() };
        let known = crate::ipam_node::IpamNodeRecord { blocks: vec![block], ..Default::default() };
        let told = crate::ipam_node::entry(&key, Some(&pool), &given, Some(&known));
        (told.start_ip, told.end_ip)
    };
    let wanted = ("10.0.1.1".to_owned(), "10.0.1.254".to_owned());
    assert_eq!((right.start_ip.clone(), right.end_ip.clone()), wanted);
    assert_eq!(ends("10.0.1.1", "10.0.2.254"), wanted);
    assert_eq!(ends("10.0.7.1", "10.0.7.254"), wanted);
}
