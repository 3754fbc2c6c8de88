//! etcd restored from a backup, without any other step than those of docs/operations/restore-etcd.md, and CRDs that are deleted and
//! installed again: addresses in use are assigned to no other node. A pool says for which nodes new blocks wait.

use ipam_e2e::cluster::install_crds;
use serde_json::json;

use crate::api::IPPOOLS;
use crate::site::{Site, address, ensure_apart};
use crate::stage::{GROUP, await_paused, await_resumed, ip_spec};
use crate::witness::Witness;

#[test]
fn after_a_restore_no_address_is_given_that_was_given_since_the_backup() {
    let site = Site::set("restored", 3);
    let mut operator = site.elected(&[]);
    site.register("node-2");
    let expression = json!({"key": GROUP, "operator": "In", "values": [site.namespace]});
    let mut spec = ip_spec("10.87.0.0/24", 4);
    spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    site.api().create(IPPOOLS, "p", &spec);
    let mut agents = vec![site.agent(1)];
    let before = site.pod(1, "before");
    site.plane.backup().unwrap();
    site.start_again(&mut operator);

    // Given since, and unknown to the backup: a block of a node that joined, and an address of the other's.
    site.register("node-3");
    agents.push(site.agent(2));
    let since = [site.pod(2, "since"), site.pod(1, "since-too")];
    assert_eq!(address(&since[0].1), "10.87.0.5/24");
    // A watch that resumes after the restore would show nothing before the API server has made as many versions again.
    site.move_on(500);
    drop(operator);
    site.plane.restore().unwrap();
    assert_eq!(site.api().await_count(IPPOOLS, "p", 1).len(), 1, "the block of node-3 is forgotten");
    // Kubelets register their nodes again; and a node joins that would get the forgotten block.
    site.register("node-3");
    site.register("node-1");
    site.age_the_lease();

    let _operator = site.elected(&[]);
    let said = await_paused(&site.api(), "p", "node-1");
    assert!(said.contains("for at most 2 min"), "{said}");
    assert_eq!(site.api().blocks(IPPOOLS, "p").len(), 1, "new blocks wait for the agent of node-1");
    for node in ["node-2", "node-3"] {
        site.await_answer(node);
    }
    agents.push(site.agent(0));
    let blocks = site.api().await_count(IPPOOLS, "p", 3);
    await_resumed(&site.api(), "p");
    assert_eq!(blocks["node-2"], "10.87.0.1-10.87.0.4");
    assert!(blocks["node-1"] != "10.87.0.5-10.87.0.8", "{blocks:?}");
    let after = [0, 1, 2].map(|node| site.pod(node, &format!("after-{node}")));
    ensure_apart(&after.iter().chain(&since).chain([&before]).collect::<Vec<_>>(), &[]);
    site.await_answer("node-1");
}

/// Pods hold addresses; then the definitions go and come back, with another leader or the same. A machine is lost before, and its Node
/// is deleted.
fn definitions_come_back(leader_changes: bool) {
    let site = Site::set("redefined", 4);
    let mut operator = site.elected(&[]);
    for node in ["node-2", "node-3", "node-4"] {
        site.register(node);
    }
    let pools = [("p", ip_spec("10.88.0.0/24", 4)), ("q", ip_spec("10.88.1.0/24", 4))];
    let create = || pools.iter().map(|(name, spec)| site.api().create(IPPOOLS, name, spec)).for_each(drop);
    create();
    let mut agents = vec![site.agent(1), site.agent(2)];
    let lost = site.agent(3);
    let before = [site.pod(1, "one"), site.pod(2, "two"), site.pod(2, "three")];
    let of_lost = site.pod(3, "lost");
    site.await_recorded();
    drop(lost);
    site.api().delete_node("node-4");
    site.api().await_condition(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));

    if leader_changes {
        operator.process().kill().unwrap();
    }
    site.delete_definitions();
    // By its name it would be given the first block, of which pods hold addresses.
    site.register("node-1");
    install_crds(&site.plane).unwrap();
    create();
    let witness = Witness::of(&site.plane, &site.api(), "q");
    let heir = leader_changes.then(|| site.elected(&[]));
    if heir.is_some() {
        for (pool, _) in &pools {
            let said = await_paused(&site.api(), pool, "node-1");
            assert!(!said.contains("node-4"), "it has no Node: {said}");
            assert!(site.api().blocks(IPPOOLS, pool).is_empty(), "new blocks wait for the agent of node-1");
        }
    }
    agents.push(site.agent(0));
    for (pool, _) in &pools {
        site.api().await_count(IPPOOLS, pool, 3);
        await_resumed(&site.api(), pool);
    }
    let after = [0, 1, 2].map(|node| site.pod(node, &format!("after-{node}")));
    let pods: Vec<_> = after.iter().chain(&before).collect();
    if heir.is_some() {
        ensure_apart(&pods, &[]);
        site.await_recorded();
    } else {
        // This leader knows the block of the lost machine.
        ensure_apart(&pods, &[&of_lost]);
        witness.finish(&site.api(), "AllocationPaused");
    }
}

#[test]
fn where_the_definitions_go_while_pods_run_the_leader_asks_the_agents_before_it_gives_anything() {
    definitions_come_back(false);
}

#[test]
fn who_comes_to_lead_after_the_definitions_went_asks_the_agents_before_it_gives_anything() {
    definitions_come_back(true);
}
