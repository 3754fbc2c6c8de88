//! A machine goes for good, and another one takes its name.

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use serde_json::Value;

use crate::stage::{NAMESPACE, SOON, install, items, stage, with_identity};
use crate::workload::{PODS, Pod, assert_served, attached, delete_pods, end, ready, start};

const REPLICAS: usize = 8;
/// Enough for all pods on one node, and not for two generations of them.
const BLOCK: u32 = 10;

/// The nodes of a list in the status of a pool.
fn nodes_in(pool: &Value, list: &str) -> Vec<String> {
    let entries = pool["status"][list].as_array().into_iter().flatten();
    entries.map(|entry| entry["nodeName"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until a pool has its blocks on these nodes, and releases those of others.
fn await_blocks(cluster: &Kubernetes, pool: &str, allocated: &[&str], releasing: &[&str]) {
    eventually_blocking(&format!("{allocated:?} have blocks, {releasing:?} release theirs"), SOON, || {
        let pool = cluster.get(&["ippool", pool, "-n", NAMESPACE])?;
        let found = (nodes_in(&pool, "allocations"), nodes_in(&pool, "releasing"));
        anyhow::ensure!(found.0 == allocated && found.1 == releasing, "found {found:?}");
        Ok(())
    })
    .unwrap();
}

/// Replaces all pods once both nodes are ready. Fails if the first node does not serve half of them.
fn serve_half(cluster: &mut Kubernetes, name: &str, pods: &[Pod]) {
    cluster.await_ready().unwrap();
    delete_pods(cluster, pods);
    let pods = ready(cluster, name, REPLICAS);
    assert_served(cluster, &pods);
    assert_eq!(pods.iter().filter(|pod| pod.node == "node-1").count(), REPLICAS / 2, "{pods:?}");
}

#[test]
fn drained_machine_is_replaced_under_its_name() {
    let mut cluster = stage();
    install(&cluster, &[&with_identity()]);
    start(&cluster, "drained", BLOCK, REPLICAS);
    let words = ["drain", "node-1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=2m"];
    cluster.kubectl().run(&words).unwrap();
    let is_idle = eventually_blocking("the block of the drained node is idle", SOON, || {
        let node = cluster.get(&["ipamnode", "node-1", "-n", NAMESPACE])?;
        let pools = node["status"]["pools"].as_array().cloned().unwrap_or_default();
        anyhow::ensure!(pools.iter().all(|pool| pool["idle"] == true) && !pools.is_empty(), "{pools:#?}");
        Ok(())
    });
    is_idle.unwrap();
    cluster.nodes_mut()[0].switch_off().unwrap();
    cluster.kubectl().run(&["delete", "node", "node-1"]).unwrap();
    await_blocks(&cluster, "drained", &["node-2"], &[]);

    cluster.nodes_mut()[0].replace().unwrap();
    let pods = ready(&cluster, "drained", REPLICAS);
    serve_half(&mut cluster, "drained", &pods);
    end(&cluster, "drained");
}

#[test]
fn lost_machine_is_force_released_and_replaced() {
    let mut cluster = stage();
    install(&cluster, &[&with_identity()]);
    let before = start(&cluster, "lost", BLOCK, REPLICAS);
    cluster.nodes_mut()[0].switch_off().unwrap();
    cluster.kubectl().run(&["delete", "node", "node-1"]).unwrap();
    // The operator cannot know whether pods of that machine still run.
    await_blocks(&cluster, "lost", &["node-2"], &["node-1"]);
    let words = ["annotate", "ippool", "lost", "-n", NAMESPACE, "nv-ipam.nvidia.com/force-release=node-1"];
    cluster.kubectl().run(&words).unwrap();
    await_blocks(&cluster, "lost", &["node-2"], &[]);
    let is_forgotten = eventually_blocking("the IPAMNode of the lost machine is deleted", SOON, || {
        let nodes = items(&cluster.get(&["ipamnodes", "-n", NAMESPACE])?);
        let names: Vec<&Value> = nodes.iter().map(|node| &node["metadata"]["name"]).collect();
        anyhow::ensure!(names == ["node-2"], "{nodes:#?}");
        Ok(())
    });
    is_forgotten.unwrap();
    // Kubernetes deletes the pods of the lost machine, and the other node runs their replacements. Its own pods keep their addresses.
    let are_deleted = eventually_blocking("the pods of the lost machine are deleted", SOON, || {
        let pods = items(&cluster.get(&["pods", "-n", PODS, "--field-selector=spec.nodeName=node-1"])?);
        anyhow::ensure!(pods.is_empty(), "there are {}", pods.len());
        Ok(())
    });
    are_deleted.unwrap();
    let meanwhile = ready(&cluster, "lost", REPLICAS);
    assert_served(&cluster, &meanwhile);
    let stays: Vec<_> = before.into_iter().filter(|pod| pod.node == "node-2").collect();
    assert!(attached(&stays).iter().all(|it| attached(&meanwhile).contains(it)), "{stays:?}, {meanwhile:?}");

    cluster.nodes_mut()[0].replace().unwrap();
    serve_half(&mut cluster, "lost", &meanwhile);
    end(&cluster, "lost");
}
