//! From the chart to the state that NVIDIA nv-ipam leaves, and back, while pods run.
//!
//! NVIDIA's programs do not run here. The test makes what they leave: their CRDs, pools with their statuses, store files, and the
//! objects of their installation, whose pods cannot start.

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use ipam_e2e::kubernetes::images::{BUSYBOX, REPOSITORY};
use serde_json::Value;

use crate::stage::{NAMESPACE, SOON, apply, install, items, stage, uninstall};
use crate::workload::{Attached, assert_unique, attached, delete, deployment, end, network, ready, start, stores_have};

const THEIRS: &str = include_str!("network-operator.yaml");
const STEPS: &str = include_str!("../../../docs/operations/migrate.md");
const OF: &str = "migrated";

/// The manifest `export.yaml` of the documentation, with our images.
fn export() -> String {
    let (_, rest) = STEPS.split_once("   ```yaml\n   apiVersion: apps/v1\n").unwrap();
    let (text, _) = rest.split_once("   ```\n").unwrap();
    let lines: Vec<&str> = std::iter::once("apiVersion: apps/v1")
        .chain(text.lines().map(|line| line.strip_prefix("   ").unwrap_or(line)))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let pause = format!("image: {BUSYBOX}, command: [/busybox, sleep, '1000000']");
    lines
        .join("\n")
        .replace("REGISTRY/nv-ipam:TAG", &format!("{REPOSITORY}:{version}"))
        .replace("image: registry.k8s.io/pause:3.10", &pause)
}

/// Runs a command of kubectl as the documentation writes it.
fn run(cluster: &Kubernetes, line: &str) -> String {
    assert!(STEPS.contains(line), "the documentation has no {line:?}");
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    cluster.kubectl().run(&words).unwrap()
}

/// The addresses in the store files of all nodes, with their containers' interfaces, as NVIDIA's agent reads them.
fn in_files(cluster: &Kubernetes) -> Vec<Attached> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let text = node.entrance().run(&["cat", "/var/lib/cni/nv-ipam/store"]).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let pools = file["pools"].as_object().unwrap();
        let entries = pools.values().flat_map(|pool| pool["entries"].as_object().unwrap().values());
        all.extend(entries.map(|entry| Attached {
            pod: entry["metadata"]["pod_name"].as_str().unwrap().to_owned(),
            interface: entry["interface_name"].as_str().unwrap().to_owned(),
            address: entry["ip_address"].as_str().unwrap().parse().unwrap(),
        }));
    }
    all.sort();
    all
}

/// The blocks of the pool, as both write them.
fn allocations(cluster: &Kubernetes) -> Value {
    let pool = cluster.get(&["ippool", OF, "-n", NAMESPACE]).unwrap();
    pool["status"]["allocations"].clone()
}

/// Leaves the cluster as NVIDIA nv-ipam has it, with pods that run, by our documentation's way back.
fn go_back(cluster: &Kubernetes, pods: &[Attached]) {
    uninstall(cluster);
    cluster.kubectl().apply(&export()).unwrap();
    run(cluster, "kubectl rollout status daemonset/nv-ipam-export -n kube-system");
    cluster.kubectl().run(&["delete", "daemonset", "nv-ipam-export", "-n", NAMESPACE, "--cascade=foreground"]).unwrap();
    assert_eq!(in_files(cluster), pods);
    // Their CRDs in the place of ours. Theirs have no IPAMNode.
    let theirs = THEIRS.replace("nvidia-network-operator", NAMESPACE).replace("IMAGE", BUSYBOX);
    let crds: Vec<&str> =
        theirs.split("---\n").filter(|text| text.contains("kind: CustomResourceDefinition")).collect();
    cluster.kubectl().run_with(&["replace", "-f", "-"], &crds.join("---\n")).unwrap();
    cluster.kubectl().run(&["delete", "crd", "ipamnodes.nv-ipam.nvidia.com", "--timeout=1m"]).unwrap();
    cluster.kubectl().apply(&theirs).unwrap();
}

#[test]
fn pods_keep_addresses_through_a_migration_and_back() {
    let cluster = stage();
    install(&cluster, &[]);
    let before = start(&cluster, OF, 20, 8);
    let blocks = allocations(&cluster);

    go_back(&cluster, &attached(&before));
    assert_eq!(allocations(&cluster), blocks);
    let status = cluster.get(&["ippool", OF, "-n", NAMESPACE]).unwrap()["status"].clone();
    assert_eq!(status.as_object().unwrap().keys().collect::<Vec<_>>(), ["allocations"], "{status}");

    // The steps of the documentation.
    run(&cluster, "kubectl delete deployment nv-ipam-controller -n kube-system --cascade=foreground");
    run(&cluster, "kubectl delete daemonset nv-ipam-node -n kube-system --cascade=foreground");
    let line = "helm install nv-ipam charts/nv-ipam --namespace kube-system --take-ownership --force-conflicts --set image.repository=REGISTRY/nv-ipam";
    assert!(STEPS.contains(line));
    let chart = ipam_e2e::chart::folder().display().to_string();
    let line = line.replace("charts/nv-ipam", &chart).replace("REGISTRY/nv-ipam", REPOSITORY);
    let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--wait", "--timeout=3m"]).collect();
    cluster.helm(&words).unwrap();
    run(&cluster, "kubectl rollout status deployment/nv-ipam-controller daemonset/nv-ipam-node -n kube-system");
    assert_eq!(allocations(&cluster), blocks);
    stores_have(&cluster, &attached(&before));
    eventually_blocking("all nodes serve", SOON, || {
        let nodes = items(&cluster.get(&["ipamnodes", "-n", NAMESPACE])?);
        let serves = |node: &Value| {
            node["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|it| it["reason"] == "Serving"))
        };
        anyhow::ensure!(nodes.len() == 2 && nodes.iter().all(serves), "{nodes:#?}");
        Ok(())
    })
    .unwrap();

    apply(&cluster, &[network("migrated-net", OF, "ippool"), deployment("later", 6, &["migrated-net"])]);
    let later = ready(&cluster, "later", 6);
    let again = ready(&cluster, OF, 8);
    assert_eq!(attached(&again), attached(&before));
    let all = [before, later].concat();
    assert_unique(&all);
    stores_have(&cluster, &attached(&all));
    delete(&cluster, "later");
    end(&cluster, OF);
}
