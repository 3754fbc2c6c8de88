//! Nodes that go, are relabelled, are cordoned, and come back.

use serde_json::json;

use crate::api::IPPOOLS;
use crate::stage::{GROUP, Stage, ip_spec};

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
    for node in [0, 1] {
        assert!(stage.pod(node, IPPOOLS, "p").add().is_err(), "nothing more is given from a block being taken back");
    }
    let said = stage.told(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
    assert!(said.contains(&format!("{deleted} (1 held, Node gone)")), "{said}");
    assert!(said.contains(&format!("{relabelled} (1 held)")), "{said}");

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
    assert!(said.contains(&format!("{node} (1 held, cordoned)")), "{said}");
    assert!(stage.pod(0, IPPOOLS, "p").add().is_err());
    first.check();
    stage.kubectl(&["annotate", "node", &node, "nv-ipam.nvidia.com/cordon-"], "");
    stage.await_told(&node, "Active");
    assert_eq!(stage.api.blocks(IPPOOLS, "p"), before);
    let mut second = stage.pod(0, IPPOOLS, "p");
    second.add().unwrap();
    assert_ne!(second.address(), first.address());
}
