//! Parts of the cluster stop and start again: kubelet, containerd, a whole node, the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use serde_json::Value;

use crate::stage::{SOON, install, items, stage, with_identity};
use crate::workload::{PODS, assert_served, attached, delete_pods, end, ready, start};

const REPLICAS: usize = 8;

#[test]
fn pods_keep_their_addresses_when_kubelet_and_containerd_start_again() {
    let mut cluster = stage();
    install(&cluster, &[]);
    let before = start(&cluster, "kubelets", 12, REPLICAS);
    for node in cluster.nodes_mut() {
        node.restart_containerd().unwrap();
        node.restart_kubelet().unwrap();
    }
    delete_pods(&cluster, &before[..REPLICAS / 2]);
    let after = ready(&cluster, "kubelets", REPLICAS);
    let stay = &before[REPLICAS / 2..];
    assert!(attached(stay).iter().all(|it| attached(&after).contains(it)), "before: {stay:?}, after: {after:?}");
    assert_served(&cluster, &after);
    end(&cluster, "kubelets");
}

#[test]
fn pods_keep_their_addresses_when_the_api_server_is_away_for_a_minute() {
    let mut cluster = stage();
    install(&cluster, &[]);
    let before = start(&cluster, "outage", 12, REPLICAS);
    // The operator loses its Lease, and kubelets cannot tell that they are alive.
    cluster.restart_api_server(Duration::from_mins(1)).unwrap();
    assert_eq!(attached(&ready(&cluster, "outage", REPLICAS)), attached(&before));
    delete_pods(&cluster, &before[..REPLICAS / 2]);
    assert_served(&cluster, &ready(&cluster, "outage", REPLICAS));
    end(&cluster, "outage");
}

/// The containers of pods on a node, each with the pod's name.
fn containers(cluster: &Kubernetes, node: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = items(&cluster.get(&["pods", "-n", PODS, &field])?);
    let of =
        |pod: &Value| (text(&pod["metadata"]["name"]), text(&pod["status"]["containerStatuses"][0]["containerID"]));
    Ok(pods.iter().map(of).collect())
}

/// Reboots the first node three times. `meanwhile` runs on it before anything starts.
fn reboot_three_times(name: &str, meanwhile: &str) {
    let mut cluster = stage();
    install(&cluster, &[&with_identity()]);
    // Four of ten addresses are in use. If those of earlier boots stayed, the second reboot would find too few.
    start(&cluster, name, 10, REPLICAS);
    let node = cluster.nodes()[0].name().to_owned();
    for _ in 0..3 {
        let before = containers(&cluster, &node).unwrap();
        cluster.nodes_mut()[0].reboot(meanwhile).unwrap();
        let started_again = eventually_blocking("the node's pods have new containers", SOON, || {
            let after = containers(&cluster, &node)?;
            let is_new = |(pod, container): (&String, &String)| before.get(pod).is_some_and(|old| old != container);
            anyhow::ensure!(
                after.len() == before.len() && after.iter().all(is_new),
                "before: {before:?}, now: {after:?}"
            );
            Ok(())
        });
        started_again.unwrap();
        assert_served(&cluster, &ready(&cluster, name, REPLICAS));
    }
    end(&cluster, name);
}

#[test]
fn reboots_leave_no_address_in_use() {
    reboot_three_times("reboots", "");
}

#[test]
fn reboots_with_an_empty_disk_leave_no_address_unavailable() {
    reboot_three_times("empty-disks", "rm -rf /var/lib/cni/nv-ipam");
}
