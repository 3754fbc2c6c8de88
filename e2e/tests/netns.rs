//! Nodes and pods of the harness: real plugins, real packets, nothing left behind. The IPAM here is the standard host-local, so
//! that a failure is the harness's.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::net::IpAddr;
use std::time::Duration;

use ipam_e2e::netns::{BRIDGE, Node, PARENT, Sandbox};
use ipam_e2e::{ControlPlane, child};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

fn network(plugin: &str, ranges: &Value) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": format!("{plugin}-net"), "type": plugin, "bridge": BRIDGE, "master": PARENT, "mode": "bridge",
        "ipam": {"type": "host-local", "ranges": ranges, "dataDir": "/var/lib/cni/networks"},
    })
}

/// The part of 10.1.0.0/16 (or fd00:1::/64) that belongs to a node, which host-local would otherwise not share out.
fn ranges(node: u8) -> Value {
    json!([[{"subnet": "10.1.0.0/16", "rangeStart": format!("10.1.{node}.10"), "rangeEnd": format!("10.1.{node}.20")}],
           [{"subnet": "fd00:1::/64", "rangeStart": format!("fd00:1::{node}:10"), "rangeEnd": format!("fd00:1::{node}:20")}]])
}

fn plain(address: &str) -> IpAddr {
    address.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn pods_of_two_nodes_reach_each_other_by_bridge_and_by_macvlan() {
    let plane = ControlPlane::shared().unwrap();
    let sandbox = Sandbox::start(plane).unwrap();
    let nodes = [Node::start(&sandbox, "west", 1).unwrap(), Node::start(&sandbox, "east", 2).unwrap()];
    for plugin in ["bridge", "macvlan"] {
        let mut seen = Vec::new();
        for (index, node) in (1..).zip(&nodes) {
            let pod = node.pod("default", &format!("{plugin}-{index}"), &format!("uid-{plugin}-{index}")).unwrap();
            let network = network(plugin, &ranges(index));
            let result = pod.add("net1", &network).unwrap();
            let given: Vec<&str> =
                result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
            assert_eq!(pod.addresses("net1").unwrap(), given, "what `ip address` shows is what the plugin answered");
            seen.push((pod, network, result));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            for address in seen[to].0.addresses("net1").unwrap() {
                seen[from].0.ping(plain(&address), SOON).unwrap();
            }
        }
        for (pod, network, result) in seen {
            pod.check("net1", &network, &result).unwrap();
            pod.del("net1", &network).unwrap();
            assert!(pod.addresses("net1").is_err(), "the interface is gone");
            pod.delete().unwrap();
        }
    }
    assert!(
        nodes[0].pod("default", "lonely", "u").unwrap().ping(plain("10.1.1.10"), Duration::from_millis(300)).is_err()
    );
}

#[test]
fn a_node_has_its_own_cni_folders_and_the_hosts_everything_else() {
    let plane = ControlPlane::shared().unwrap();
    let sandbox = Sandbox::start(plane).unwrap();
    let node = Node::start(&sandbox, "north", 3).unwrap();
    node.entrance()
        .script(
            "touch /var/lib/cni/mark /etc/cni/mark /opt/cni/mark /run/netns/mark /var/log/mark
             test -e /etc/passwd",
        )
        .unwrap();
    for folder in ["/var/lib/cni", "/etc/cni", "/opt/cni", "/run/netns", "/var/log"] {
        assert!(!std::path::Path::new(folder).join("mark").exists(), "{folder} of the host was written");
    }
    let host = std::fs::read_to_string("/proc/net/dev").unwrap();
    assert!(!host.contains("fabric") && !host.contains(BRIDGE), "an interface leaked into the host:\n{host}");
}

#[test]
fn a_node_reaches_the_api_server_until_it_is_cut_off() {
    let plane = ControlPlane::shared().unwrap();
    let sandbox = Sandbox::start(plane).unwrap();
    let mut node = Node::start(&sandbox, "south", 4).unwrap();
    let ask = |node: &Node| {
        let mut command = node.entrance().command(plane.kubectl().program());
        command.args(["get", "--raw", "/readyz", "--request-timeout=5s"]).env("KUBECONFIG", plane.kubeconfig());
        child::output(&mut command).unwrap()
    };
    assert_eq!(ask(&node).stdout, b"ok");
    node.disconnect();
    assert!(!ask(&node).status.success(), "it still answers");
    node.connect().unwrap();
    assert_eq!(ask(&node).stdout, b"ok");
}
