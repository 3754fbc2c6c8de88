//! etcd restored from a backup, without any other step than those of docs/operations/restore-etcd.md, and CRDs that are deleted and
//! installed again: addresses in use are assigned to no other node.

use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::netns::{BRIDGE, CniError, Node, Pod, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, CIDRPOOLS, IPAMNODES, IPPOOLS, SOON, text};
use crate::stage::{GROUP, ip_spec};

/// CNI's code of a call that can succeed later.
const TRY_AGAIN_LATER: i64 = 11;
/// How the agent refuses an ADD whose grant the API server has not confirmed.
const UNCONFIRMED: &str = "the API server has not confirmed the block yet";

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

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let namespaced: Vec<&str> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.plane.kubectl().run_with(&namespaced, input).unwrap()
    }

    /// A pod with an address. ADD is repeated only while the agent waits for the confirmation of its grant.
    fn pod(&self, node: usize, name: &str) -> (Pod, Value) {
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

    /// The Lease of the backup is an hour old.
    fn age_the_lease(&self) {
        let spec = r#"{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z","leaseDurationSeconds":1}}"#;
        self.kubectl(&["patch", "lease", "dd1643cf.nvidia.com", "--type=merge", "-p", spec], "");
    }

    /// The request of each IPAMNode, and the one that its agent has answered.
    fn requests(&self) -> Vec<(Value, Value)> {
        let all = self.api().list(IPAMNODES);
        all.iter().map(|it| (it["spec"]["reportRequest"].clone(), it["status"]["reportRequest"].clone())).collect()
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
    let operator = site.elected();
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
    // Kubelets register their nodes again; and a node joins that would get the forgotten block.
    site.register("node-3");
    site.register("node-1");
    agents.push(site.agent(0));
    site.age_the_lease();

    let _operator = site.elected();
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
    let requests = site.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|(request, answer)| request.is_string() && request == answer), "{requests:?}");
}

impl Site<'_> {
    /// An operator that says in a Lease what it has given.
    fn elected(&self) -> Operator {
        let lease = format!("--leader-elect-namespace={}", self.namespace);
        Operator::start(self.plane, &self.namespace, &["--leader-elect", &lease]).unwrap()
    }

    /// Deletes the definitions with all that there is of them, as `crds.keep=false` does with an uninstall: no finalizer holds the
    /// pools.
    fn delete_definitions(&self) {
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

    /// What the Lease says of blocks given.
    fn given(&self) -> String {
        let jsonpath = r"jsonpath={.metadata.annotations.nv-ipam\.nvidia\.com/allocation-state}";
        self.kubectl(&["get", "lease", "dd1643cf.nvidia.com", "-o", jsonpath], "")
    }
}

/// Pods hold addresses; then the definitions go and come back, with another leader or the same.
fn definitions_come_back(leader_changes: bool) {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("redefined").unwrap();
    let sandbox = Sandbox::start(&plane).unwrap();
    let nodes = (1..=3).map(|index| Node::start(&sandbox, &format!("node-{index}"), index).unwrap()).collect();
    let site = Site { plane: &plane, namespace, nodes, _sandbox: sandbox };
    let mut operator = site.elected();
    for node in ["node-2", "node-3"] {
        site.register(node);
    }
    site.api().create(IPPOOLS, "p", &ip_spec("10.88.0.0/24", 4));
    let _agents = [0, 1, 2].map(|node| site.agent(node));
    let before = [site.pod(1, "one"), site.pod(2, "two"), site.pod(2, "three")];
    assert_eq!(site.given(), "Allocated");

    if leader_changes {
        operator.process().kill().unwrap();
    }
    site.delete_definitions();
    // By its name it would be given the first block, of which pods hold addresses.
    site.register("node-1");
    install_crds(&plane).unwrap();
    site.api().create(IPPOOLS, "p", &ip_spec("10.88.0.0/24", 4));
    let _heir = leader_changes.then(|| site.elected());
    site.api().await_count(IPPOOLS, "p", 3);
    let after = [0, 1, 2].map(|node| site.pod(node, &format!("after-{node}")));
    let pods: Vec<_> = after.iter().chain(&before).collect();
    let mut addresses: Vec<_> = pods.iter().map(|(_, result)| address(result)).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    for (pod, result) in pods {
        pod.check("net1", &network(), result).unwrap();
    }
    eventually_blocking("all is recorded again", SOON, || match site.given().as_str() {
        "Allocated" => Ok(()),
        other => Err(other.to_owned()),
    })
    .unwrap();
}

#[test]
fn where_the_definitions_go_while_pods_run_the_leader_asks_the_agents_before_it_gives_anything() {
    definitions_come_back(false);
}

#[test]
fn who_comes_to_lead_after_the_definitions_went_asks_the_agents_before_it_gives_anything() {
    definitions_come_back(true);
}
