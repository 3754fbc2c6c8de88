//! Pods come and go while an agent is killed.

use ipam_e2e::eventually_blocking;

use crate::stage::{NAMESPACE, SOON, apply, install, ip_pool, stage};
use crate::workload::{assert_unique, attached, delete, delete_pods, deployment, network, ready, stores_have};

const REPLICAS: usize = 10;
/// In each, the agents of both nodes are killed.
const ROUNDS: usize = 10;

/// Kills the agent of a node, and says so.
const KILL: &str = "for folder in /proc/[0-9]*; do
    if [ \"$(cat $folder/comm 2>/dev/null)\" = ipam-node ]; then kill -9 ${folder#/proc/} && echo killed; fi
done";

#[test]
fn pods_have_unique_addresses_while_agents_are_killed() {
    let cluster = stage();
    install(&cluster, &[]);
    apply(
        &cluster,
        &[
            // A small pool: an address that leaks is soon missing.
            ip_pool("churn", 12),
            network("churn-net", "churn", "ippool"),
            deployment("churn", REPLICAS, &["churn-net"]),
        ],
    );
    let mut pods = ready(&cluster, "churn", REPLICAS);
    for round in 0..ROUNDS {
        delete_pods(&cluster, &pods[..REPLICAS / 2]);
        for node in cluster.nodes() {
            let said = eventually_blocking("the agent is killed", SOON, || match node.entrance().script(KILL)? {
                said if said.contains("killed") => Ok(said),
                _ => Err(anyhow::anyhow!("no agent runs on {}", node.name())),
            });
            said.unwrap();
        }
        pods = ready(&cluster, "churn", REPLICAS);
        assert_unique(&pods);
        assert_eq!(attached(&pods).len(), REPLICAS, "round {round}: {pods:?}");
    }
    stores_have(&cluster, &attached(&pods));
    delete(&cluster, "churn");
    stores_have(&cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", "churn", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
