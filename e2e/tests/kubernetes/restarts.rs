//! Parts of the cluster stop and start again: kubelet, containerd, a whole node, the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::{Kubernetes, SOCKET};
use ipam_e2e::netns::Entrance;
use serde_json::Value;

use crate::stage::{NAMESPACE, SOON, install, items, stage, with_identity};
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

/// A metric of the agent at this address, read on its node. kubelet need not run.
fn metric(node: &Entrance, agent: &str, name: &str) -> anyhow::Result<u64> {
    let get = format!("exec 3<>/dev/tcp/{agent}/8080; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    let answer = node.run(&["bash", "-c", &get])?;
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).with_context(|| format!("no {name} in {answer}"))
}

#[test]
fn a_running_sandbox_without_its_pod_keeps_its_address() {
    let mut cluster = stage();
    let endpoint = format!("agent.containerRuntimeEndpoint=unix://{SOCKET}");
    install(&cluster, &[&endpoint, "agent.staleIpCheck.interval=1s", "agent.staleIpCheck.countBeforeRelease=1"]);
    let before = start(&cluster, "sandboxes", 12, REPLICAS);
    let node = cluster.nodes()[0].name().to_owned();
    let field = format!("--field-selector=spec.nodeName={node}");
    let words = ["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent", &field];
    let agents = items(&cluster.get(&words).unwrap());
    let agent = agents[0]["status"]["podIP"].as_str().unwrap();
    cluster.nodes_mut()[0].kubelet().kill().unwrap();
    let mut words = vec!["delete", "pods", "-n", PODS, "--force", "--grace-period=0"];
    words.extend(before.iter().filter(|pod| pod.node == node).map(|pod| pod.name.as_str()));
    cluster.kubectl().run(&words).unwrap();
    let checked = |cluster: &Kubernetes| {
        let last = "ipam_node_stale_check_last_success_timestamp_seconds";
        metric(cluster.nodes()[0].entrance(), agent, last)
    };
    let deleted = checked(&cluster).unwrap();
    // One check may have begun before the pods were gone. Two that find them gone free an address.
    let checks = eventually_blocking("the agent checks four times", SOON, || {
        let now = checked(&cluster)?;
        anyhow::ensure!(now >= deleted + 5, "{now}, was {deleted}");
        Ok(())
    });
    checks.unwrap();
    let freed = metric(cluster.nodes()[0].entrance(), agent, "ipam_node_stale_released_total").unwrap();
    assert_eq!(freed, 0, "containers of these pods run");
    cluster.nodes_mut()[0].restart_kubelet().unwrap();
    assert_served(&cluster, &ready(&cluster, "sandboxes", REPLICAS));
    end(&cluster, "sandboxes");
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
