//! A new revision of the chart, and the way back, while pods come and go.

use std::collections::BTreeSet;

use ipam_e2e::kubernetes::Kubernetes;
use serde_json::Value;

use crate::stage::{NAMESPACE, apply, install, ip_pool, items, stage};
use crate::workload::{assert_unique, attached, delete, delete_pods, deployment, network, ready, stores_have};

const REPLICAS: usize = 8;

/// UIDs of all pods of the chart.
fn programs(cluster: &Kubernetes) -> BTreeSet<String> {
    let pods = items(&cluster.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=nv-ipam"]).unwrap());
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
    pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).map(uid).collect()
}

#[test]
fn pods_start_and_end_during_an_upgrade_and_a_rollback() {
    let cluster = stage();
    let cluster = &*cluster;
    install(cluster, &[]);
    apply(
        cluster,
        &[
            // A small pool: an address that leaks is soon missing.
            ip_pool("rolled", 10),
            network("rolled-net", "rolled", "ippool"),
            deployment("rolled", REPLICAS, &["rolled-net"]),
        ],
    );
    let mut pods = ready(cluster, "rolled", REPLICAS);
    let upgrade = || install(cluster, &["operator.podAnnotations.revision=next", "agent.podAnnotations.revision=next"]);
    let rollback = || {
        let words = ["rollback", "nv-ipam", "--namespace", NAMESPACE, "--wait", "--timeout=3m"];
        cluster.helm(&words).unwrap();
    };
    let changes: [&(dyn Fn() + Sync); 2] = [&upgrade, &rollback];
    for change in changes {
        let before = programs(cluster);
        std::thread::scope(|scope| {
            let change = scope.spawn(change);
            let mut is_over = false;
            while !is_over {
                // The last round starts after the change.
                is_over = change.is_finished();
                delete_pods(cluster, &pods[..REPLICAS / 2]);
                pods = ready(cluster, "rolled", REPLICAS);
                assert_unique(&pods);
                assert_eq!(attached(&pods).len(), REPLICAS, "{pods:?}");
            }
        });
        assert_eq!(before.intersection(&programs(cluster)).count(), 0, "a pod of the chart was not replaced");
    }
    stores_have(cluster, &attached(&pods));
    delete(cluster, "rolled");
    stores_have(cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", "rolled", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
