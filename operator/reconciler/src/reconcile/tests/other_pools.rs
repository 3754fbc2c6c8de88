//! Several pools over the same addresses, and records that were put back to an earlier state.

use ipam_core::AddrRange;

use super::outside::told;
use super::*;

/// A pool made at `second` of a minute, with annotations.
pub(super) fn made(name: &str, version: u64, second: u32, spec: &str, annotations: &Value) -> RawObject {
    let mut pool = pool_object(name, version, 1, spec, &json!({}));
    let text = json!({"creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"), "annotations": annotations});
    let metadata = object(&json!({"metadata": text})).metadata;
    (pool.metadata.creation_timestamp, pool.metadata.annotations) = (metadata.creation_timestamp, metadata.annotations);
    pool
}

pub(super) fn status(world: &World, pool: &str) -> StatusRecord {
    world.reconciler.pools[&PoolKey::new(PoolKind::IpPool, pool)].record.status.clone()
}

fn ready(world: &World, pool: &str) -> String {
    let status = status(world, pool);
    status.summary.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap().reason.clone()
}

pub(super) fn range(first: &str, last: &str) -> AddrRange {
    AddrRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
}

const WIDE: &str = r#"{"subnet":"192.168.0.0/15","perNodeBlockSize":4}"#;

#[test]
fn of_two_pools_over_the_same_addresses_the_older_serves_in_whatever_order_they_are_told() {
    let (older, younger) = (made("zz-older", 10, 1, WIDE, &json!({})), made("blue", 11, 2, SPEC, &json!({})));
    for pools in [[older.clone(), younger.clone()], [younger, older]] {
        let mut world = World::new(&["n1"], &pools, vec![]);
        world.settle();
        assert_eq!((ready(&world, "zz-older"), ready(&world, "blue")), ("Valid".into(), "Overlap".into()));
        assert_eq!((status(&world, "zz-older").allocations.len(), status(&world, "blue").allocations.len()), (1, 0));
    }
}

#[test]
fn an_overlap_heals_when_the_older_pool_is_gone() {
    let (older, younger) = (made("zz-older", 10, 1, WIDE, &json!({})), made("blue", 11, 2, SPEC, &json!({})));
    let mut world = World::new(&["n1"], &[older.clone(), younger], vec![]);
    world.settle();
    // Against its finalizer: what n1 has of it may still be held, so blue gives other addresses.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(older)));
    world.settle();
    assert_eq!(ready(&world, "blue"), "Valid");
    let given = status(&world, "blue").allocations;
    let has = world.reconciler.ipam_nodes.get("n1").unwrap().blocks.len();
    assert_eq!((given.len(), has), (1, 2));
    assert!(!given[0].range.overlaps(&range("192.168.0.1", "192.168.0.4")), "{given:?}");
}

#[test]
fn an_overlap_heals_when_an_older_pool_goes_of_which_no_node_has_anything() {
    let nobody = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["nobody"]}]}]);
    let wide =
        json!({"subnet": "192.168.0.0/15", "perNodeBlockSize": 4, "nodeSelector": {"nodeSelectorTerms": nobody}});
    let older = made("zz-older", 10, 1, &wide.to_string(), &json!({}));
    let mut world = World::new(&["n1"], &[older.clone(), made("blue", 11, 2, SPEC, &json!({}))], vec![]);
    world.settle();
    assert_eq!((ready(&world, "blue"), status(&world, "blue").allocations.len()), ("Overlap".into(), 0));
    assert!(world.reconciler.ipam_nodes.get("n1").unwrap().blocks.is_empty(), "no entry of it wakes anybody by going");
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(older)));
    world.settle();
    assert_eq!((ready(&world, "blue"), status(&world, "blue").allocations.len()), ("Valid".into(), 1));
}

#[test]
fn pools_that_both_allow_it_overlap_and_one_alone_does_not() {
    let yes = json!({"nv-ipam.nvidia.com/allow-overlap": "true"});
    for (annotations, both) in [(yes.clone(), true), (json!({}), false)] {
        let pools = [made("zz-older", 10, 1, WIDE, &yes), made("blue", 11, 2, SPEC, &annotations)];
        let mut world = World::new(&["n1"], &pools, vec![]);
        world.settle();
        assert_eq!(status(&world, "blue").allocations.len(), usize::from(both));
    }
}

#[test]
fn a_pool_edited_onto_the_addresses_that_another_is_moved_away_from_gives_none_of_its_blocks() {
    let spec = |subnet: &str| format!(r#"{{"subnet":"{subnet}","perNodeBlockSize":4}}"#);
    let pools = [("aa", "10.0.0.0/24"), ("blue", "10.0.1.0/24")].map(|(name, subnet)| (name, spec(subnet)));
    let [aa, blue] = pools.map(|(name, spec)| made(name, 10, 1, &spec, &json!({})));
    let mut world = World::new(&["n1"], &[aa, blue], vec![]);
    world.settle();
    // Both manifests are applied at once, and told before anything is decided.
    for (name, subnet) in [("aa", "10.0.2.0/24"), ("blue", "10.0.0.0/24")] {
        let now = serde_json::to_value(status(&world, name).body(PoolKind::IpPool)).unwrap();
        let mut edited = pool_object(name, 900, 2, &spec(subnet), &now);
        edited.metadata.creation_timestamp = made(name, 1, 1, SPEC, &json!({})).metadata.creation_timestamp;
        world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(edited)));
    }
    world.node_joins("n2");
    world.settle();
    let given: Vec<AddrRange> = status(&world, "blue").allocations.iter().map(|claim| claim.range).collect();
    let held = range("10.0.0.1", "10.0.0.4");
    assert!(!given.is_empty() && !given.iter().any(|range| range.overlaps(&held)), "{given:?}");
}

#[test]
fn what_nodes_have_of_a_pool_made_anew_with_another_network_is_given_by_no_other_pool() {
    let older = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":8}"#;
    let unavailable_addresses = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#;
    let mut world = World::new(&["n1"], &[made("blue", 10, 2, SPEC, &json!({}))], vec![]);
    world.settle();
    report(&mut world, "n1", 2);
    // Its finalizer was taken off by hand, and the manifest of another pool over its addresses was there before, in vain.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    let mut anew = made("blue", 900, 4, unavailable_addresses, &json!({}));
    anew.metadata.uid = Some("another".to_owned());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(anew)));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(made("aa-older", 901, 1, older, &json!({})))));
    world.settle();
    let given: Vec<AddrRange> = status(&world, "aa-older").allocations.iter().map(|claim| claim.range).collect();
    let held = range("192.168.0.1", "192.168.0.4");
    assert!(!given.is_empty() && !given.iter().any(|range| range.overlaps(&held)), "{given:?}");
}

#[test]
fn who_waits_for_a_block_of_before_is_served_when_its_node_has_given_it_back() {
    let mut world = World::new(&["n1"], &[made("blue", 10, 2, SPEC, &json!({}))], vec![]);
    world.settle();
    report(&mut world, "n1", 2);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Delete(blue())));
    let mut anew = made("blue", 900, 4, r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#, &json!({}));
    anew.metadata.uid = Some("another".to_owned());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(anew)));
    let one_block = made("aa-older", 901, 1, r#"{"subnet":"192.168.0.0/29","perNodeBlockSize":6}"#, &json!({}));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(one_block)));
    world.settle();
    assert_eq!(status(&world, "aa-older").allocations.len(), 0);
    // It is told Releasing once it holds nothing, and answers for that.
    for _ in 0..2 {
        report(&mut world, "n1", 0);
        world.settle();
    }
    assert_eq!(status(&world, "aa-older").allocations.len(), 1);
}

#[test]
fn a_block_of_an_invalid_deleted_pool_serves_others() {
    let mut world = World::new(&["n1"], &[made("blue", 10, 2, SPEC, &json!({}))], vec![]);
    world.settle();
    report(&mut world, "n1", 2);
    let invalid = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"10.9.9.9"}"#;
    let mut leaving = pool_object("blue", 900, 2, invalid, &status_json(&status(&world, "blue")));
    leaving.metadata.deletion_timestamp = leaving_since();
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(leaving)));
    let one_block = made("other", 901, 3, r#"{"subnet":"192.168.0.0/29","perNodeBlockSize":6}"#, &json!({}));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(one_block)));
    world.settle();
    assert_eq!(status(&world, "other").allocations.len(), 0);
    report(&mut world, "n1", 0);
    world.settle();
    assert_eq!(status(&world, "other").allocations.len(), 1);
}

#[test]
fn a_pool_that_comes_in_the_way_takes_nothing_that_the_younger_has_not_given_back() {
    // The younger served before the older came to have its addresses by an edit.
    let unavailable_addresses = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#;
    let (older, younger) =
        (made("zz-older", 10, 1, unavailable_addresses, &json!({})), made("blue", 11, 2, SPEC, &json!({})));
    let mut world = World::new(&["n1", "n2"], &[older, younger], vec![]);
    world.settle();
    let mut edited = made("zz-older", 500, 1, WIDE, &json!({}));
    edited.metadata.generation = Some(2);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(edited)));
    world.settle();
    assert_eq!(ready(&world, "blue"), "Overlap");
    assert_eq!(status(&world, "blue").releasing.len(), 2);
    world.node_joins("n3");
    world.settle();
    let of_older = status(&world, "zz-older").allocations;
    let new = of_older.iter().find(|claim| claim.node == "n3").expect("n3 is served");
    for release in status(&world, "blue").releasing {
        assert!(!release.claim.range.overlaps(&new.range), "{new:?}");
    }
}

#[test]
fn what_a_node_was_told_of_another_pool_is_not_given_though_the_status_of_that_pool_is_wiped() {
    // blue serves by its last good spec, and its status, wiped by hand, is not put right while its spec is invalid.
    let invalid = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"10.0.0.1"}"#;
    let (blue, red) = (made("blue", 10, 1, invalid, &json!({})), made("red", 11, 2, WIDE, &json!({})));
    let n1 = told("n1", 50, Some(("192.168.0.1", "192.168.0.4")), &[]);
    let mut world = World::new(&["n2"], &[blue, red], vec![n1]);
    world.settle();
    let given = status(&world, "red").allocations;
    assert_eq!(given.len(), 1);
    assert!(!given[0].range.overlaps(&range("192.168.0.1", "192.168.0.4")), "{given:?}");
}

#[test]
fn an_object_that_a_list_names_at_an_earlier_version_means_that_all_is_listed_anew() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    assert!(!world.reconciler.take_wish_for_lists());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    // The API server was restored: this is what the pool was before anything was given.
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(blue())));
    assert!(world.reconciler.take_wish_for_lists());
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitDone));
    assert!(!world.reconciler.is_synced(), "the rest of this list counts for nothing");
    assert_eq!(world.calls(), vec![]);
    let n1 = told("n1", 5, Some(("192.168.0.9", "192.168.0.12")), &[]);
    world.list(&["n1"], &[blue()], vec![n1]);
    world.settle();
    let given = status(&world, "blue").allocations;
    assert_eq!(given[0].range, range("192.168.0.9", "192.168.0.12"), "what is there now counts, at whatever version");
}

#[test]
fn a_list_that_names_a_pool_created_before_the_known_one_means_that_all_is_listed_again() {
    let pool = |uid: &str, created: &str| {
        let mut pool = blue();
        pool.metadata.uid = Some(uid.into());
        pool.metadata.creation_timestamp = Some(serde_json::from_value(json!(created)).unwrap());
        pool
    };
    for (created, is_rolled_back) in [("2026-01-01T00:00:01Z", true), ("2026-01-01T00:00:03Z", false)] {
        let mut world = World::new(&["n1"], &[pool("uid-blue", "2026-01-01T00:00:02Z")], vec![]);
        world.settle();
        world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
        world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(pool("uid-other", created))));
        assert_eq!(world.reconciler.take_wish_for_lists(), is_rolled_back, "{created}");
        world.list(&["n1"], &[pool("uid-other", created)], vec![]);
        assert!(!world.reconciler.take_wish_for_lists(), "{created}: once is enough");
        world.settle();
        assert_eq!(status(&world, "blue").allocations.len(), 1, "{created}");
    }
}

#[test]
fn a_leader_gives_nobody_else_what_it_saw_given_before_the_api_server_was_restored() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    assert_eq!(status(&world, "blue").allocations[0].range, range("192.168.0.1", "192.168.0.4"));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(blue())));
    // Of the earlier state nobody has a block, and a node that would be the first by name has joined.
    world.list(&["n0", "n1"], &[blue()], vec![]);
    assert_eq!(world.reconciler.wanted_state(), AllocationState::Recovering, "while it is not known what is left");
    let mut calls = world.settle();
    assert_eq!(status(&world, "blue").allocations.len(), 1, "n1 may hold what nobody knows");
    world.answer("n0");
    world.answer("n1");
    calls.extend(world.settle());
    let given: Vec<_> =
        status(&world, "blue").allocations.iter().map(|claim| (claim.node.clone(), claim.range)).collect();
    let wanted = [("n0", range("192.168.0.5", "192.168.0.8")), ("n1", range("192.168.0.1", "192.168.0.4"))];
    assert_eq!(given, wanted.map(|(node, range)| (node.to_owned(), range)));
    let told_of = nodes_written(&calls).into_iter().filter(|(_, action)| !action.blocks().is_empty());
    assert_eq!(told_of.count(), 2, "n1 is told again: {calls:#?}");
}

#[test]
fn what_the_restored_state_has_given_to_another_stands_and_is_given_to_no_third() {
    let mut world = World::new(&["n1", "n2"], &[blue()], vec![]);
    world.settle();
    let earlier = json!({"allocations": [{"nodeName": "n2", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]});
    let restored = pool_object("blue", 9, 1, SPEC, &earlier);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Init));
    world.tell(Observed::Pool(PoolKind::IpPool, Event::InitApply(restored.clone())));
    let n2 = told("n2", 5, Some(("192.168.0.1", "192.168.0.4")), &[]);
    world.list(&["n1", "n2"], &[restored], vec![n2]);
    world.settle();
    world.answer("n1");
    world.node_joins("n3");
    world.settle();
    let reserved: Vec<_> = world.reconciler.recovery.reserved().map(|(_, node, _)| node.as_str()).collect();
    assert_eq!(reserved, ["n2"], "n1 has reported");
    world.answer("n2");
    world.settle();
    let given = status(&world, "blue").allocations;
    let of = |node: &str| given.iter().find(|claim| claim.node == node).unwrap().range;
    assert_eq!(of("n2"), range("192.168.0.1", "192.168.0.4"));
    for other in ["n1", "n3"] {
        assert!(!of(other).overlaps(&range("192.168.0.1", "192.168.0.4")), "{other} has {}", of(other));
    }
}

#[test]
fn one_address_held_of_two_pools_is_said_aloud_by_both_and_the_node_of_the_younger_gives_no_more() {
    let holder = |node: &str, version: u64, pool: &str| {
        let mut object = told(node, version, None, &[]);
        let entry = json!({"name": pool, "poolType": "IPPool", "state": "Active", "startIP": "192.168.0.1",
            "grant": "6500000000000001", "endIP": "192.168.0.4", "subnet": "192.168.0.0/16"});
        let held = json!([{"startIP": "192.168.0.3", "endIP": "192.168.0.3"}]);
        let report = json!({"name": pool, "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
            "grant": "6500000000000001", "used": 1, "capacity": 4, "held": held});
        let both = json!({"spec": {"pools": [entry]}, "status": {"observedGeneration": 2, "pools": [report]}});
        let filled: RawObject = self::object(&json!({"metadata": {}, "spec": both["spec"], "status": both["status"]}));
        (object.spec, object.status) = (filled.spec, filled.status);
        object
    };
    let pools = [made("zz-older", 10, 1, WIDE, &json!({})), made("blue", 11, 2, SPEC, &json!({}))];
    let mut world = World::new(&["n1", "n2"], &pools, vec![holder("n1", 50, "zz-older"), holder("n2", 51, "blue")]);
    world.settle();
    for pool in ["zz-older", "blue"] {
        let status = status(&world, pool);
        let degraded = status.summary.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        assert_eq!(degraded.reason, "DuplicateAddress", "{pool}: {degraded:?}");
        for word in ["192.168.0.3", "n1", "node n2 allocates no more addresses"] {
            assert!(degraded.message.contains(word), "{pool}: {}", degraded.message);
        }
    }
    let state = |node: &str| world.reconciler.ipam_nodes.get(node).unwrap().blocks[0].state;
    assert_eq!((state("n1"), state("n2")), (BlockState::Active, BlockState::Releasing));
}

/// `n1` serves the older pool and `n2` the younger, of the same addresses, as both allow it.
fn both_serve() -> World {
    let yes = json!({"nv-ipam.nvidia.com/allow-overlap": "true"});
    let only = |node: &str| {
        let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
        json!({"subnet": "192.168.0.0/16", "perNodeBlockSize": 4, "nodeSelector": {"nodeSelectorTerms": terms}})
            .to_string()
    };
    let pools = [made("zz-older", 10, 1, &only("n1"), &yes), made("blue", 11, 2, &only("n2"), &yes)];
    let mut world = World::new(&["n1", "n2"], &pools, vec![]);
    world.settle();
    world
}

#[test]
fn what_a_younger_pool_gave_while_both_could_is_given_by_the_older_only_when_it_is_free() {
    let mut world = both_serve();
    let barred = |world: &World| {
        let runs = &world.reconciler.ipam_nodes.get("n1").unwrap().blocks[0].held_elsewhere;
        runs.iter().map(|run| format!("{}-{}", run.start_ip, run.end_ip)).collect::<Vec<_>>()
    };
    assert!(barred(&world).is_empty());
    // The annotation is taken off. What n2 gives before it hears of that is not known.
    let mut edited = made("zz-older", 500, 1, "{}", &json!({}));
    world.version = 500;
    let known = &world.reconciler.pools[&PoolKey::new(PoolKind::IpPool, "zz-older")].record.status;
    let spec = json!({"subnet": "192.168.0.0/16", "perNodeBlockSize": 4, "nodeSelector": {"nodeSelectorTerms":
        [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}});
    let both = json!({"metadata": {}, "spec": spec, "status": known.body(PoolKind::IpPool)});
    let object = object(&both);
    (edited.spec, edited.status) = (object.spec, object.status);
    world.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(edited)));
    world.settle();
    assert_eq!(ready(&world, "blue"), "Overlap");
    assert_eq!(barred(&world), ["192.168.0.1-192.168.0.4"]);
    // Its agent answers that it gives no more, and what it holds.
    let held = |world: &mut World, addr: Option<&str>| {
        let record = world.reconciler.ipam_nodes.get("n2").unwrap();
        world.version += 1;
        let runs: Vec<Value> = addr.iter().map(|addr| json!({"startIP": addr, "endIP": addr})).collect();
        let event = json!({
            "metadata": {"name": "n2", "uid": record.uid, "generation": record.generation,
                "resourceVersion": world.version.to_string()},
            "spec": {"pools": record.blocks},
            "status": {"observedGeneration": record.generation, "pools": [{"name": "blue", "poolType": "IPPool",
                "startIP": "192.168.0.1", "endIP": "192.168.0.4", "used": runs.len(), "capacity": 4, "held": runs}]},
        });
        world.tell(Observed::IpamNode(Event::Apply(super::object(&event))));
        world.settle();
    };
    held(&mut world, Some("192.168.0.3"));
    assert_eq!(barred(&world), ["192.168.0.3-192.168.0.3"]);
    held(&mut world, None);
    world.calls_after(Duration::from_secs(20)).into_iter().for_each(|call| world.succeed(call));
    world.settle();
    assert!(barred(&world).is_empty(), "{:?}", barred(&world));
}

#[test]
fn a_status_write_under_way_occupies_its_blocks() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    let write = only(world.calls());
    let occupied = |world: &World| world.reconciler.occupancy.overlapping(&range("192.168.0.1", "192.168.0.4")).count();
    assert_eq!(occupied(&world), 1, "{write:#?}");
    world.fail(write, CallError::Failed("no answer".into()));
    assert_eq!(occupied(&world), 1, "it may take effect later");
}
