//! etcd put back to a backup, in the order that docs/what-happens-when.md gives: what was given since is given to nobody else.

use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::netns::{BRIDGE, Node, Pod, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, IPAMNODES, IPPOOLS, SOON, text};
use crate::stage::{GROUP, ip_spec};

/// A cluster that is put back.
struct Site<'a> {
    plane: &'a ControlPlane,
    namespace: String,
    nodes: Vec<Node>,
    _sandbox: Sandbox,
}

impl Site<'_> {
    fn api(&self) -> Api {
        // A client of its own after each restart of the API server.
        Api::new(self.plane, &self.namespace)
    }

    fn register(&self, node: &str) {
        self.api().create_node(node, &json!({GROUP: self.namespace}));
    }

    fn agent(&self, node: usize) -> Agent {
        Agent::launch(self.plane, &self.nodes[node], &self.namespace, &[]).unwrap()
    }

    fn operator(&self) -> Operator {
        Operator::start(self.plane, &self.namespace, &[]).unwrap()
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let namespaced: Vec<&str> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.plane.kubectl().run_with(&namespaced, input).unwrap()
    }

    /// A pod with an address; ADD waits until the agent knows a block.
    fn pod(&self, node: usize, name: &str) -> (Pod, Value) {
        let pod = self.nodes[node].pod("default", name, &format!("uid-{name}")).unwrap();
        let what = format!("{name} gets an address");
        let result = eventually_blocking(&what, SOON, || {
            // A runtime tidies up after a failed ADD.
            pod.add("net1", &network()).inspect_err(|_| drop(pod.del("net1", &network())))
        });
        let result = result.unwrap();
        (pod, result)
    }

    /// Every agent tells anew what it holds, before anything is decided: the commands of the document.
    fn ask_every_agent(&self) {
        self.kubectl(&["delete", "ipamnodes", "--all"], "");
        let nodes = self.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"], "");
        let empty = |name: &str| {
            json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
                "metadata": {"name": name, "namespace": self.namespace}, "spec": {"pools": []}})
        };
        for name in nodes.split_whitespace() {
            self.kubectl(&["create", "-f", "-"], &empty(name).to_string());
        }
        self.kubectl(&["wait", "--for=condition=Ready", "ipamnodes", "--all", "--timeout=60s"], "");
    }
}

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": "p"}})
}

fn address(result: &Value) -> String {
    text(&result["ips"][0]["address"])
}

#[test]
fn after_a_restore_no_address_is_given_that_was_given_since_the_backup() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("restored").unwrap();
    let sandbox = Sandbox::start(&plane).unwrap();
    let nodes = (1..=3).map(|index| Node::start(&sandbox, &format!("node-{index}"), index).unwrap()).collect();
    let site = Site { plane: &plane, namespace, nodes, _sandbox: sandbox };
    let operator = site.operator();
    site.register("node-2");
    let expression = json!({"key": GROUP, "operator": "In", "values": [site.namespace]});
    let mut spec = ip_spec("10.87.0.0/24", 4);
    spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    site.api().create(IPPOOLS, "p", &spec);
    let mut agents = vec![site.agent(1)];
    let before = site.pod(1, "before");
    plane.backup().unwrap();

    // Given since, and unknown to the backup: a block of a node that joined, and an address of the other's.
    site.register("node-3");
    agents.push(site.agent(2));
    let since = [site.pod(2, "since"), site.pod(1, "since-too")];
    assert_eq!(address(&since[0].1), "10.87.0.5/24");
    drop(operator);
    plane.restore().unwrap();
    assert_eq!(site.api().await_count(IPPOOLS, "p", 1).len(), 1, "the block of node-3 is forgotten");
    // Kubelets register anew; and a node joins that would be given the forgotten block.
    site.register("node-3");
    site.register("node-1");
    agents.clear();
    agents.extend([0, 1, 2].map(|node| site.agent(node)));
    site.ask_every_agent();

    let _operator = site.operator();
    let blocks = site.api().await_count(IPPOOLS, "p", 3);
    assert_eq!(blocks["node-2"], "10.87.0.1-10.87.0.4");
    assert!(blocks["node-1"] != "10.87.0.5-10.87.0.8", "{blocks:?}");
    let after = [0, 1, 2].map(|node| site.pod(node, &format!("after-{node}")));
    let pods: Vec<_> = after.iter().chain(&since).chain([&before]).collect();
    let mut addresses: Vec<_> = pods.iter().map(|(_, result)| address(result)).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    for (pod, result) in pods {
        pod.check("net1", &network(), result).unwrap();
    }
    assert_eq!(site.api().list(IPAMNODES).len(), 3);
}
