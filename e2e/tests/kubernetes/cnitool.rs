//! STATUS and GC of CNI 1.1. The runtime of the cluster is older, so the reference client of CNI calls the plugins.

use std::net::IpAddr;

use ipam_e2e::assets::{self, Tool};
use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::{Kubernetes, SECONDARY};
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, SOON, apply, install, ip_pool, stage, uninstall};
use crate::workload::{shown, stores_have};

/// Where the client finds networks.
const NETWORKS: &str = "/run/cnitool";

/// Runs the client on the first node.
fn cnitool(cluster: &Kubernetes, command: &str, network: &str, pod: &str) -> anyhow::Result<String> {
    let tool = assets::path(Tool::Cnitool)?.display().to_string();
    let folders = format!("NETCONFPATH={NETWORKS}");
    let pod_of_kubernetes = format!("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}");
    let namespace = format!("/run/netns/{pod}");
    let variables = ["CNI_PATH=/opt/cni/bin", &folders, &pod_of_kubernetes];
    let words = [&["env"][..], &variables, &[&tool, command, network, &namespace]].concat();
    cluster.nodes()[0].entrance().run(&words)
}

/// The addresses that the agents have in use.
fn addresses(cluster: &Kubernetes) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = shown(cluster).unwrap().iter().map(address_of).collect();
    all.sort();
    all
}

/// The address of what a store shows.
fn address_of(shown: &Value) -> IpAddr {
    shown["address"].as_str().unwrap().parse().unwrap()
}

/// The address in the result of an ADD.
fn address(result: &str) -> IpAddr {
    let result: Value = serde_json::from_str(result).unwrap();
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
}

/// Has the plugin free what is not in a list, as a runtime of CNI 1.1 does. The client can send no list.
fn gc(cluster: &Kubernetes, plugin: &Value, valid: &[Value]) {
    let mut config = plugin.clone();
    config["cniVersion"] = "1.1.0".into();
    config["name"] = "direct".into();
    config["cni.dev/valid-attachments"] = valid.into();
    let script = format!("CNI_COMMAND=GC CNI_PATH=/opt/cni/bin /opt/cni/bin/nv-ipam <<'END'\n{config}\nEND");
    cluster.nodes()[0].entrance().script(&script).unwrap();
}

/// Makes a network known to the client.
fn write(cluster: &Kubernetes, name: &str, plugin: &Value) {
    let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [plugin]}).to_string();
    let script = format!("mkdir -p {NETWORKS}; cat > {NETWORKS}/{name}.conflist <<'END'\n{list}\nEND");
    cluster.nodes()[0].entrance().script(&script).unwrap();
}

#[test]
fn status_and_gc_reach_the_agent() {
    let cluster = stage();
    install(&cluster, &[]);
    apply(&cluster, &[ip_pool("probe", 12)]);
    let ipam = json!({"type": "nv-ipam", "poolName": "probe"});
    write(&cluster, "near", &json!({"type": "macvlan", "master": SECONDARY, "mode": "bridge", "ipam": ipam}));
    // macvlan does not pass GC on to its IPAM plugin, so this network has no other plugin.
    let plugin = json!({"type": "nv-ipam", "ipam": ipam});
    write(&cluster, "direct", &plugin);
    let inside = cluster.nodes()[0].entrance();
    inside.script("for pod in a b c; do ip netns add $pod; done").unwrap();
    let run = |command: &str, network: &str, pod: &str| cnitool(&cluster, command, network, pod);
    eventually_blocking("STATUS succeeds", SOON, || run("status", "near", "a")).unwrap();
    run("status", "direct", "a").unwrap();

    eventually_blocking("the node has a block", SOON, || {
        let node = cluster.get(&["ipamnode", "node-1", "-n", NAMESPACE])?;
        let pools = node["status"]["pools"].as_array().cloned().unwrap_or_default();
        anyhow::ensure!(pools.iter().any(|pool| pool["name"] == "probe"), "{pools:?}");
        Ok(())
    })
    .unwrap();
    let near = address(&run("add", "near", "a").unwrap());
    let direct = ["b", "c"].map(|pod| address(&run("add", "direct", pod).unwrap()));
    let mut wanted = vec![near, direct[0], direct[1]];
    wanted.sort();
    assert_eq!(addresses(&cluster), wanted);
    run("check", "near", "a").unwrap();
    // GC of a network concerns no other. The client says that none of the network's attachments is valid.
    run("gc", "near", "a").unwrap();
    assert_eq!(addresses(&cluster), direct);
    run("check", "direct", "b").unwrap();
    let kept = shown(&cluster).unwrap().into_iter().find(|shown| address_of(shown) == direct[1]).unwrap();
    gc(&cluster, &plugin, &[json!({"containerID": kept["containerID"], "ifname": kept["interface"]})]);
    assert_eq!(addresses(&cluster), [direct[1]]);
    // Without a list, GC frees nothing, but the client sends DEL for each attachment that it remembers.
    let said = run("gc", "direct", "c").unwrap_err().to_string();
    assert!(said.contains("cni.dev/valid-attachments: missing"), "{said}");
    stores_have(&cluster, &[]);

    uninstall(&cluster);
    for network in ["near", "direct"] {
        let said = run("status", network, "a").unwrap_err().to_string();
        assert!(said.contains("/var/lib/cni/nv-ipam/daemon.sock"), "{network}: {said}");
    }
    inside.script(&format!("for pod in a b c; do ip netns delete $pod; done; rm -rf {NETWORKS}")).unwrap();
    cluster.kubectl().run(&["delete", "ippool", "probe", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
