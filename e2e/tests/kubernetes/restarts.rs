//! Parts of the cluster stop and start again: kubelet, containerd, a whole node, the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::{IDENTITY, Kubernetes};
use serde_json::Value;

use crate::stage::{NAMESPACE, SOON, apply, install, ip_pool, items, stage};
use crate::workload::{
    PODS, Pod, assert_unique, attached, delete, delete_pods, deployment, network, ready, stores_have,
};

const REPLICAS: usize = 8;

/// A pool, a network and a Deployment of this name. Each node has `block` addresses.
fn start(cluster: &Kubernetes, name: &str, block: u32) -> Vec<Pod> {
    let net = format!("{name}-net");
    apply(cluster, &[ip_pool(name, block), network(&net, name, "ippool"), deployment(name, REPLICAS, &[&net])]);
    ready(cluster, name, REPLICAS)
}

/// Fails if the pods do not have all their addresses, each its own, or the stores disagree.
fn assert_served(cluster: &Kubernetes, pods: &[Pod]) {
    assert_unique(pods);
    assert_eq!(attached(pods).len(), REPLICAS, "{pods:?}");
    stores_have(cluster, &attached(pods));
}

fn end(cluster: &Kubernetes, name: &str) {
    delete(cluster, name);
    stores_have(cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", name, "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}

#[test]
fn pods_keep_their_addresses_when_kubelet_and_containerd_start_again() {
    let mut cluster = stage();
    install(&cluster, &[]);
    let before = start(&cluster, "kubelets", 12);
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
    let before = start(&cluster, "outage", 12);
    // The operator loses its Lease, and kubelets cannot tell that they are alive.
    cluster.restart_api_server(Duration::from_mins(1)).unwrap();
    assert_eq!(attached(&ready(&cluster, "outage", REPLICAS)), attached(&before));
    delete_pods(&cluster, &before[..REPLICAS / 2]);
    assert_served(&cluster, &ready(&cluster, "outage", REPLICAS));
    end(&cluster, "outage");
}

/// The agents read the ID of the boot and the UUID of the machine where the nodes of this cluster have theirs.
fn with_identity() -> Vec<String> {
    vec![
        format!("agent.extraVolumes[0].name=identity,agent.extraVolumes[0].hostPath.path={IDENTITY}"),
        "agent.extraVolumeMounts[0].name=identity,agent.extraVolumeMounts[0].mountPath=/identity".to_owned(),
        "agent.bootIdFile=/identity/boot-id,agent.systemUuidFile=/identity/system-uuid".to_owned(),
    ]
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
    let values = with_identity();
    install(&cluster, &values.iter().map(String::as_str).collect::<Vec<_>>());
    // Four of ten addresses are in use. If those of earlier boots stayed, the second reboot would find too few.
    start(&cluster, name, 10);
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
