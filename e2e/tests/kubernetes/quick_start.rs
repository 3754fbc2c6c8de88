//! The manifests of the README's quick start.

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::images::BUSYBOX;
use ipam_e2e::kubernetes::{SECONDARY, is_ready};

use crate::stage::{NAMESPACE, SOON, install, stage};
use crate::workload::{PODS, assert_within_block, attached, read, stores_have};

const README: &str = include_str!("../../../README.md");

/// The texts that the README gives to `kubectl apply`.
fn manifests() -> Vec<&'static str> {
    README.split("<<YAML\n").skip(1).map(|text| text.split_once("\nYAML\n").unwrap().0).collect()
}

/// A manifest with another word, as its reader would write it.
fn with(manifest: &str, word: &str, other: &str) -> String {
    assert_eq!(manifest.matches(word).count(), 1, "{word} in {manifest}");
    manifest.replace(word, other)
}

#[test]
fn quick_start_leads_to_a_pod_with_an_address() {
    let cluster = stage();
    install(&cluster, &[]);
    let [pool, pod] = manifests()[..] else { panic!("the README has not two manifests: {:#?}", manifests()) };
    let image = format!("image: {BUSYBOX}, command: [/busybox, sleep, '1000000']");
    let pod = with(&with(pod, "enp3s0f0np0", SECONDARY), "image: IMAGE", &image);
    cluster.kubectl().apply(pool).unwrap();
    cluster.kubectl().apply(&pod).unwrap();
    let pod = eventually_blocking("the pod is ready", SOON, || {
        let pod = cluster.get(&["pod", "app", "-n", PODS])?;
        anyhow::ensure!(is_ready(&pod), "its status is {}", pod["status"]);
        read(&pod)
    });
    let pod = pod.unwrap();
    assert_eq!(pod.addresses.keys().collect::<Vec<_>>(), ["net1"]);
    assert_within_block(&cluster.get(&["ippool", "rdma", "-n", NAMESPACE]).unwrap(), &pod, "net1");
    stores_have(&cluster, &attached(&[pod]));
    cluster.kubectl().run(&["delete", "pod", "app", "-n", PODS, "--grace-period=1", "--timeout=2m"]).unwrap();
    stores_have(&cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", "rdma", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
    cluster.kubectl().run(&["delete", "net-attach-def", "rdma-net", "-n", PODS]).unwrap();
}
