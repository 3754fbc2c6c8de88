//! Nodes that go, are replaced, are relabelled, are cordoned, and come back.

use ipam_e2e::eventually_blocking;
use ipam_e2e::netns::CniError;
use serde_json::json;

use crate::api::{CIDRPOOLS, IPPOOLS, SOON};
use crate::stage::{GROUP, Resident, Stage, ip_spec};

/// ADD is refused because the block is being released; the runtime is to try again.
fn assert_gives_nothing(stage: &Stage, node: usize, block: &str) {
    let refusal = format!(
        "no address to give: IPPool \"p\" gives no new addresses on this node: the operator takes its block {block} back, or has \
         suspended it because an address is held on two nodes; the pool's conditions say which (ResourceExhausted)"
    );
    match stage.pod(node, IPPOOLS, "p").add() {
        Err(CniError::Refused { code, message, .. }) => assert_eq!((code, message), (11, refusal)),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_blocks_of_a_deleted_and_of_a_relabelled_node_are_nobody_elses_while_pods_hold_addresses() {
    let stage = Stage::set("leaves", 3);
    let [deleted, relabelled, stays] = [0, 1, 2].map(|index| stage.name(index).to_owned());
    stage.pool(IPPOOLS, "p", ip_spec("10.90.0.0/27", 4));
    let pods = [stage.resident(0, IPPOOLS, "p"), stage.resident(1, IPPOOLS, "p")];
    let before = stage.api.blocks(IPPOOLS, "p");

    stage.api.delete_node(&deleted);
    stage.api.label_node(&relabelled, &json!({GROUP: null}));
    stage.await_releasing(IPPOOLS, "p", &[&deleted, &relabelled]);
    stage.await_told(&deleted, "Releasing");
    stage.await_told(&relabelled, "Releasing");
    // Given up at once, these two would get the two blocks, and the next pods there the addresses that are held.
    let newcomers = ["x", "y"].map(|short| stage.join(short));
    let after = stage.api.await_count(IPPOOLS, "p", 3);
    for newcomer in &newcomers {
        assert!(!before.values().any(|block| *block == after[newcomer]), "{newcomer} has {}", after[newcomer]);
    }
    assert_eq!(after[&stays], before[&stays]);
    for (node, name) in [(0, &deleted), (1, &relabelled)] {
        assert_gives_nothing(&stage, node, &before[name]);
    }
    let said = stage.told(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
    assert!(said.contains(&format!("{deleted} (1 in use, Node gone)")), "{said}");
    assert!(said.contains(&format!("{relabelled} (1 in use)")), "{said}");

    for pod in &pods {
        pod.check();
        pod.del();
    }
    stage.await_releasing(IPPOOLS, "p", &[]);
    let heirs = ["z", "zz"].map(|short| stage.join(short));
    let after = stage.api.await_count(IPPOOLS, "p", 5);
    let mut inherited = heirs.map(|heir| after[&heir].clone());
    inherited.sort();
    let mut freed = [before[&deleted].clone(), before[&relabelled].clone()];
    freed.sort();
    assert_eq!(inherited, freed);
}

#[test]
fn a_node_that_comes_back_gets_its_block_back_and_pods_never_notice() {
    let stage = Stage::set("returns", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.95.0.0/27", 4));
    let first = stage.resident(0, IPPOOLS, "p");
    let before = stage.api.blocks(IPPOOLS, "p");
    stage.api.delete_node(&node);
    stage.await_told(&node, "Releasing");
    stage.api.create_node(&node, &json!({GROUP: stage.namespace()}));
    stage.await_releasing(IPPOOLS, "p", &[]);
    assert_eq!(stage.api.blocks(IPPOOLS, "p"), before);
    stage.await_told(&node, "Active");
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    assert_ne!(second.address(), first.address());
    first.check();
}

#[test]
fn a_cordoned_node_gives_no_more_until_the_cordon_goes() {
    let stage = Stage::set("cordoned", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.89.0.0/27", 4));
    let first = stage.resident(0, IPPOOLS, "p");
    let before = stage.api.blocks(IPPOOLS, "p");
    stage.kubectl(&["annotate", "node", &node, "nv-ipam.nvidia.com/cordon=true"], "");
    stage.await_told(&node, "Releasing");
    let said = stage.told(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
    assert!(said.contains(&format!("{node} (1 in use, cordoned)")), "{said}");
    assert_gives_nothing(&stage, 0, &before[&node]);
    first.check();
    stage.kubectl(&["annotate", "node", &node, "nv-ipam.nvidia.com/cordon-"], "");
    stage.await_told(&node, "Active");
    assert_eq!(stage.api.blocks(IPPOOLS, "p"), before);
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    assert_ne!(second.address(), first.address());
}

#[test]
fn a_force_release_of_a_served_node_acts_when_it_leaves() {
    let stage = Stage::set("forced", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.82.0.0/27", 4));
    let pod = stage.resident(0, IPPOOLS, "p");
    let before = stage.api.blocks(IPPOOLS, "p");
    let force = || stage.kubectl(&["annotate", "ippool", "p", &format!("nv-ipam.nvidia.com/force-release={node}")], "");
    force();
    let said = stage.told(IPPOOLS, "p", ("Releasing", "True", "ForcedReleasePending"));
    assert!(said.contains(&format!("{node} (1 in use)")), "{said}");
    let (_, take_back) = said.rsplit_once("kubectl ").expect("a command to paste");
    stage.kubectl(&take_back.split_whitespace().collect::<Vec<_>>(), "");
    stage.told(IPPOOLS, "p", ("Releasing", "False", "NothingToRelease"));
    force();
    stage.told(IPPOOLS, "p", ("Releasing", "True", "ForcedReleasePending"));
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    pod.check();
    assert_eq!(stage.api.blocks(IPPOOLS, "p"), before);

    stage.api.delete_node(&node);
    stage.api.await_count(IPPOOLS, "p", 0);
    let lost = stage.api.await_event("p", "ForcedRelease");
    assert!(lost.contains(&node) && lost.contains("in use"), "{lost}");
    stage.await_releasing(IPPOOLS, "p", &[]);
    eventually_blocking("the name is gone", SOON, || {
        let annotations = stage.api.get(IPPOOLS, "p")["metadata"]["annotations"].clone();
        if annotations["nv-ipam.nvidia.com/force-release"].is_null() { Ok(()) } else { Err(annotations.to_string()) }
    })
    .unwrap();
}

#[test]
fn a_machine_that_is_gone_without_pods_returns_its_block_though_its_agent_never_answers() {
    let mut stage = Stage::set("lost", 2);
    stage.pool(IPPOOLS, "p", ip_spec("10.83.0.0/29", 3));
    let mut blocks = stage.api.await_count(IPPOOLS, "p", 2);
    for (node, stops) in [(0, true), (1, false)] {
        let name = stage.name(node).to_owned();
        stage.resident(node, IPPOOLS, "p").del();
        if stops {
            stage.stop_agent(node);
            stage.await_idle(node);
        } else {
            stage.await_idle(node);
            // A pod that comes now waits for a report, and then has an address at once.
            let pod = stage.resident(node, IPPOOLS, "p");
            pod.check();
            pod.del();
            stage.await_idle(node);
            stage.kill_agent(node);
        }
        stage.api.delete_node(&name);
        let newcomer = stage.join(if stops { "x" } else { "y" });
        let block = blocks.remove(&name).unwrap();
        blocks.insert(newcomer, block);
        let wanted: Vec<_> = blocks.iter().map(|(node, block)| (node.as_str(), block.as_str())).collect();
        stage.api.await_blocks(IPPOOLS, "p", &wanted);
        stage.await_releasing(IPPOOLS, "p", &[]);
    }
}

#[test]
fn one_address_a_whole_subnet_and_a_static_prefix_wait_like_any_other_block() {
    let stage = Stage::set("shapes", 1);
    let node = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "one", ip_spec("10.86.0.0/30", 1));
    stage.pool(IPPOOLS, "whole", ip_spec("10.85.0.0/29", 6));
    let fixed = json!([{"nodeName": node, "prefix": "fd86::100/120"}]);
    stage.pool(
        CIDRPOOLS,
        "fixed",
        json!({"cidr": "fd86::/64", "perNodeNetworkPrefix": 120, "staticAllocations": fixed}),
    );
    let pools = [(IPPOOLS, "one"), (IPPOOLS, "whole"), (CIDRPOOLS, "fixed")];
    let pods = pools.map(|(kind, pool)| stage.resident(0, kind, pool));
    assert_eq!(pods.each_ref().map(Resident::address), ["10.86.0.1/30", "10.85.0.1/29", "fd86::101/120"]);
    stage.api.delete_node(&node);
    for (kind, pool) in pools {
        stage.await_releasing(kind, pool, &[&node]);
    }
    let newcomer = stage.join("x");
    stage.api.await_blocks(IPPOOLS, "one", &[(&newcomer, "10.86.0.2-10.86.0.2")]);
    stage.api.await_blocks(CIDRPOOLS, "fixed", &[(&newcomer, "fd86::/120")]);
    assert!(stage.told(IPPOOLS, "whole", ("Exhausted", "True", "NoFreeRanges")).contains(&newcomer));
    for pod in &pods {
        pod.check();
        pod.del();
    }
    for (kind, pool) in pools {
        stage.await_releasing(kind, pool, &[]);
    }
    stage.api.await_blocks(IPPOOLS, "whole", &[(&newcomer, "10.85.0.1-10.85.0.6")]);
    let second = stage.join("y");
    stage.api.await_blocks(IPPOOLS, "one", &[(&newcomer, "10.86.0.2-10.86.0.2"), (&second, "10.86.0.1-10.86.0.1")]);
    // The static prefix is kept for its node, also while there is none of that name.
    stage.api.await_blocks(CIDRPOOLS, "fixed", &[(&newcomer, "fd86::/120"), (&second, "fd86::200/120")]);
}
