//! A control plane of its own, with machines on which agents run, for what no other test can share: etcd that is restored, an API
//! server that is away, CRDs that are deleted.

use std::collections::BTreeSet;

use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::netns::{BRIDGE, CniError, Node, Pod, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, CIDRPOOLS, IPAMNODES, IPPOOLS, SOON, text};
use crate::stage::{AGED_LEASE, GROUP};

/// CNI's code of a call that can succeed later.
const TRY_AGAIN_LATER: i64 = 11;
/// How the agent refuses an ADD whose grant the API server has not confirmed.
const UNCONFIRMED: &str = "the API server has not confirmed the block yet";

/// A cluster, and its machines `node-1`, `node-2` and so on. A machine has no Node and no agent at first.
pub(crate) struct Site {
    pub(crate) namespace: String,
    pub(crate) nodes: Vec<Node>,
    _sandbox: Sandbox,
    // Last: whatever runs on it ends before.
    pub(crate) plane: ControlPlane,
}

/// A pod, and the answer to its ADD.
pub(crate) type Added = (Pod, Value);

impl Site {
    /// One with so many machines.
    pub(crate) fn set(prefix: &str, machines: u8) -> Self {
        let plane = ControlPlane::start().unwrap();
        install_crds(&plane).unwrap();
        let namespace = plane.namespace(prefix).unwrap();
        let sandbox = Sandbox::start(&plane).unwrap();
        let node = |index| Node::start(&sandbox, &format!("node-{index}"), index).unwrap();
        let nodes = (1..=machines).map(node).collect();
        Self { namespace, nodes, _sandbox: sandbox, plane }
    }

    /// A client. Each restart of the API server needs another one.
    pub(crate) fn api(&self) -> Api {
        Api::new(&self.plane, &self.namespace)
    }

    /// Creates a Node.
    pub(crate) fn register(&self, node: &str) {
        self.api().create_node(node, &json!({GROUP: self.namespace}));
    }

    /// Starts an agent on a machine.
    pub(crate) fn agent(&self, node: usize) -> Agent {
        Agent::launch(&self.plane, &self.nodes[node], &self.namespace, &[]).unwrap()
    }

    /// An operator that records in a Lease what it has assigned.
    pub(crate) fn elected(&self, flags: &[&str]) -> Operator {
        let lease = format!("--leader-elect-namespace={}", self.namespace);
        Operator::start(&self.plane, &self.namespace, &[&["--leader-elect", &lease], flags].concat()).unwrap()
    }

    /// Starts the operator again if it has ended, as a kubelet does. A leader ends when it cannot renew its Lease for ten seconds.
    pub(crate) fn start_again(&self, operator: &mut Operator) {
        if operator.process().ended().unwrap().is_some() {
            *operator = self.elected(&[]);
        }
    }

    /// kubectl in the namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let namespaced: Vec<&str> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.plane.kubectl().run_with(&namespaced, input).unwrap()
    }

    /// A pod with an address. ADD is repeated only while the agent waits for the confirmation of its grant.
    pub(crate) fn pod(&self, node: usize, name: &str) -> Added {
        self.await_block(self.nodes[node].name());
        let pod = self.nodes[node].pod("default", name, &format!("uid-{name}")).unwrap();
        let result =
            eventually_blocking(&format!("{name} gets an address"), SOON, || match pod.add("net1", &network()) {
                Err(CniError::Refused { code: TRY_AGAIN_LATER, message, .. }) if message.contains(UNCONFIRMED) => {
                    // A runtime tidies up after a failed ADD.
                    pod.del("net1", &network()).unwrap();
                    Err(message)
                }
                answer => Ok(answer),
            });
        let result = result.unwrap().unwrap_or_else(|error| panic!("{name} gets no address: {error}"));
        (pod, result)
    }

    /// Waits until the agent of a node reports the Active block that it has of the pool.
    fn await_block(&self, node: &str) {
        eventually_blocking(&format!("the agent of {node} has a block"), SOON, || {
            let object = self.api().find(IPAMNODES, node).ok_or("there is no IPAMNode")?;
            let of_pool =
                |part: &str| object[part]["pools"].as_array()?.iter().find(|entry| entry["name"] == "p").cloned();
            let is_seen = object["metadata"]["generation"] == object["status"]["observedGeneration"];
            let has_block = of_pool("spec").zip(of_pool("status")).is_some_and(|(assigned, reported)| {
                assigned["state"] == "Active" && assigned["grant"] == reported["grant"]
            });
            if is_seen && has_block { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
    }

    /// The Lease of a backup is an hour old, and so is that of an outage of an hour.
    pub(crate) fn age_the_lease(&self) {
        self.kubectl(&AGED_LEASE, "");
    }

    /// Makes so many versions in the API server.
    pub(crate) fn move_on(&self, versions: usize) {
        let object = |number| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("version-{number}")}});
        let objects: Vec<_> = (0..versions).map(object).collect();
        self.kubectl(
            &["create", "-f", "-"],
            &json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string(),
        );
    }

    /// What the Lease says of blocks assigned.
    fn given(&self) -> String {
        let jsonpath = r"jsonpath={.metadata.annotations.nv-ipam\.nvidia\.com/allocation-state}";
        self.kubectl(&["get", "lease", "dd1643cf.nvidia.com", "-o", jsonpath], "")
    }

    /// Waits until the Lease says that all assigned blocks are recorded.
    pub(crate) fn await_recorded(&self) {
        eventually_blocking("all is recorded", SOON, || match self.given().as_str() {
            "Allocated" => Ok(()),
            other => Err(other.to_owned()),
        })
        .unwrap();
    }

    /// Waits until the agent of a node has answered a request for a report.
    pub(crate) fn await_answer(&self, node: &str) {
        eventually_blocking(&format!("the agent of {node} has answered a request"), SOON, || {
            let object = self.api().find(IPAMNODES, node).unwrap_or_default();
            let (request, answer) = (&object["spec"]["reportRequest"], &object["status"]["reportRequest"]);
            if request.is_string() && request == answer { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
    }

    /// Deletes the definitions with all that there is of them, as `crds.keep=false` does with an uninstall: no finalizer holds the
    /// pools.
    pub(crate) fn delete_definitions(&self) {
        let crds = [IPPOOLS, CIDRPOOLS, IPAMNODES].map(|plural| format!("{plural}.nv-ipam.nvidia.com"));
        let [ips, cidrs, nodes] = crds.each_ref().map(String::as_str);
        self.kubectl(&["delete", "crd", "--wait=false", ips, cidrs, nodes], "");
        eventually_blocking("the definitions are gone", SOON, || {
            let api = self.api();
            for path in [IPPOOLS, IPAMNODES].map(|kind| api.path(kind)) {
                // A definition that is gone has no objects.
                let listed = api.send("GET", &path, "application/json", &Value::Null).unwrap_or_default();
                for object in listed["items"].as_array().into_iter().flatten() {
                    let object_path = format!("{path}/{}", text(&object["metadata"]["name"]));
                    let bare = json!({"metadata": {"finalizers": null}});
                    drop(api.send("PATCH", &object_path, "application/merge-patch+json", &bare));
                }
            }
            let left = self.kubectl(&["get", "crd", "-o", "name", "--ignore-not-found"], "");
            if left.contains("nv-ipam") { Err(left) } else { Ok(()) }
        })
        .unwrap();
    }
}

/// Running pods have the addresses that they got. No two have the same, those on lost machines included.
pub(crate) fn ensure_apart(running: &[&Added], lost: &[&Added]) {
    let all = running.iter().chain(lost);
    let addresses: BTreeSet<String> = all.map(|(_, result)| address(result)).collect();
    assert_eq!(addresses.len(), running.len() + lost.len(), "{addresses:?}");
    for (pod, result) in running {
        pod.check("net1", &network(), result).unwrap();
    }
}

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": "p"}})
}

/// The address in the answer to an ADD, with its length.
pub(crate) fn address(result: &Value) -> String {
    text(&result["ips"][0]["address"])
}
