//! From `helm install` to pods that reach each other.

use std::net::IpAddr;

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, apply, install, ip_pool, pool, stage};
use crate::workload::{
    Pod, assert_unique, assert_within_block, attached, delete, deployment, exec, network, ready, stores_have,
};

const REPLICAS: usize = 20;

fn assert_within_blocks(cluster: &Kubernetes, pods: &[Pod]) {
    for (interface, plural, name) in [("net1", "ippools", "rdma"), ("net2", "cidrpools", "storage")] {
        let pool = cluster.get(&[plural, name, "-n", NAMESPACE]).unwrap();
        for pod in pods {
            assert_within_block(&pool, pod, interface);
        }
    }
}

/// Whether `from` reaches the address by the interface.
fn ping(cluster: &Kubernetes, from: &Pod, interface: &str, to: IpAddr) {
    let what = format!("{} reaches {to} by {interface}", from.name);
    let words = ["ping", "-c", "1", "-w", "5", "-I", interface, &to.to_string()];
    eventually_blocking(&what, SOON, || exec(cluster, from, &words)).unwrap();
}

#[test]
fn pods_on_two_nodes_get_addresses_and_reach_each_other() {
    let cluster = stage();
    install(&cluster, &[]);
    apply(
        &cluster,
        &[
            ip_pool("rdma", 100),
            pool(
                "CIDRPool",
                "storage",
                &json!({"cidr": "10.50.0.0/16", "perNodeNetworkPrefix": 24, "gatewayIndex": 1}),
            ),
            network("rdma-net", "rdma", "ippool"),
            network("storage-net", "storage", "cidrpool"),
            deployment("app", REPLICAS, &["rdma-net", "storage-net"]),
        ],
    );
    let pods = ready(&cluster, "app", REPLICAS);
    assert_eq!(attached(&pods).len(), 2 * REPLICAS, "each pod has two interfaces: {pods:?}");
    assert_unique(&pods);
    assert_within_blocks(&cluster, &pods);
    stores_have(&cluster, &attached(&pods));
    let (near, far): (Vec<&Pod>, Vec<&Pod>) = pods.iter().partition(|pod| pod.node == pods[0].node);
    assert!(!far.is_empty(), "all pods run on one node");
    for pod in &far {
        ping(&cluster, near[0], "net1", pod.addresses["net1"]);
    }
    // The blocks of a CIDRPool are networks of their own.
    ping(&cluster, near[0], "net2", near[1].addresses["net2"]);
    for interface in ["net1", "net2"] {
        let shown = exec(&cluster, near[0], &["ip", "-4", "address", "show", interface]).unwrap();
        assert!(shown.contains(&format!("inet {}/", near[0].addresses[interface])), "{shown}");
    }
    delete(&cluster, "app");
    stores_have(&cluster, &[]);
    let names = ["ippools/rdma", "cidrpools/storage"];
    cluster.kubectl().run(&[&["delete", "-n", NAMESPACE, "--timeout=2m"], &names[..]].concat()).unwrap();
}
