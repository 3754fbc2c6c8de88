//! The API server as a test speaks to it: raw JSON, so that a test can say what no typed client would.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam_e2e::{ControlPlane, eventually_blocking};
use kube::core::Status;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// How long anything in the cluster may take to come about on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) const IPPOOLS: &str = "ippools";
pub(crate) const CIDRPOOLS: &str = "cidrpools";
pub(crate) const IPAMNODES: &str = "ipamnodes";

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// Who has which block, in words: node name to `START-END` or `PREFIX via GATEWAY`.
pub(crate) type Blocks = BTreeMap<String, String>;

/// A client for one namespace. Its methods block.
pub(crate) struct Api {
    runtime: Runtime,
    client: kube::Client,
    namespace: String,
}

impl Api {
    pub(crate) fn new(plane: &ControlPlane, namespace: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        Self { runtime, client, namespace: namespace.to_owned() }
    }

    /// Any request; an answer that is an error comes as the Status in it.
    pub(crate) fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> Result<Value, Box<Status>> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", content).body(body);
        match self.runtime.block_on(self.client.request::<Value>(request.unwrap())) {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(status),
            Err(error) => panic!("{method} {path}: {error:?}"),
        }
    }

    /// The path of a collection of our kinds.
    pub(crate) fn path(&self, kind: &str) -> String {
        format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{}/{kind}", self.namespace)
    }

    pub(crate) fn find(&self, kind: &str, name: &str) -> Option<Value> {
        match self.send("GET", &format!("{}/{name}", self.path(kind)), JSON, &Value::Null) {
            Ok(object) => Some(object),
            Err(status) if status.code == 404 => None,
            Err(status) => panic!("{kind}/{name}: {status:?}"),
        }
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.find(kind, name).unwrap_or_else(|| panic!("there is no {kind}/{name}"))
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.send("GET", &self.path(kind), JSON, &Value::Null).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Creates a pool from its spec.
    pub(crate) fn create(&self, kind: &str, name: &str, spec: &Value) -> Value {
        self.try_create(kind, name, spec).unwrap_or_else(|status| panic!("{kind}/{name} {spec}: {}", status.message))
    }

    pub(crate) fn try_create(&self, kind: &str, name: &str, spec: &Value) -> Result<Value, Box<Status>> {
        let object = json!({
            "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind_of(kind),
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec,
        });
        self.send("POST", &self.path(kind), JSON, &object)
    }

    pub(crate) fn merge(&self, kind: &str, name: &str, change: &Value) -> Value {
        let path = format!("{}/{name}", self.path(kind));
        self.send("PATCH", &path, MERGE, change).unwrap_or_else(|status| panic!("{kind}/{name} {change}: {status:?}"))
    }

    /// Edits a status by hand, as `kubectl patch --subresource=status` does.
    pub(crate) fn merge_status(&self, kind: &str, name: &str, status: &Value) -> Result<Value, Box<Status>> {
        let path = format!("{}/{name}/status", self.path(kind));
        self.send("PATCH", &path, MERGE, &json!({ "status": status }))
    }

    pub(crate) fn json_patch(&self, path: &str, steps: &Value) -> Value {
        self.send("PATCH", path, JSON_PATCH, steps).unwrap()
    }

    pub(crate) fn delete(&self, kind: &str, name: &str) {
        self.send("DELETE", &format!("{}/{name}", self.path(kind)), JSON, &Value::Null).unwrap();
    }

    pub(crate) fn create_node(&self, name: &str, labels: &Value) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        self.send("POST", "/api/v1/nodes", JSON, &node).unwrap();
    }

    pub(crate) fn label_node(&self, name: &str, labels: &Value) {
        let patch = json!({"metadata": {"labels": labels}});
        self.send("PATCH", &format!("/api/v1/nodes/{name}"), MERGE, &patch).unwrap();
    }

    /// What a kubelet writes every ten seconds.
    pub(crate) fn beat(&self, node: &str, count: u32) {
        let conditions =
            json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": format!("2026-01-01T00:00:{count:02}Z")}]);
        let patch = json!({"status": {"conditions": conditions}});
        self.send("PATCH", &format!("/api/v1/nodes/{node}/status"), MERGE, &patch).unwrap();
    }

    pub(crate) fn delete_node(&self, name: &str) {
        self.send("DELETE", &format!("/api/v1/nodes/{name}"), JSON, &Value::Null).unwrap();
    }

    /// The blocks in a pool's status, those that are being taken back included.
    pub(crate) fn blocks(&self, kind: &str, name: &str) -> Blocks {
        let pool = self.get(kind, name);
        let mut blocks = blocks_of(&pool);
        for entry in pool["status"]["releasing"].as_array().into_iter().flatten() {
            let (node, block) = (text(&entry["nodeName"]), block_of(entry));
            assert_eq!(
                blocks.insert(node.clone(), block),
                None,
                "{node} gives from a block that is taken back: {pool}"
            );
        }
        blocks
    }

    /// Waits until a node's object has so many blocks.
    pub(crate) fn await_ipam_node(&self, name: &str, blocks: usize) -> Value {
        eventually_blocking(&format!("ipamnodes/{name} has {blocks} blocks"), SOON, || {
            let object = self.find(IPAMNODES, name).ok_or("there is none")?;
            let count = object["spec"]["pools"].as_array().map_or(0, Vec::len);
            if count == blocks { Ok(object) } else { Err("it has others") }
        })
        .unwrap()
    }

    /// Waits until a node has so many blocks, and reports that the first address of each is in use, as its agent would.
    pub(crate) fn use_blocks(&self, node: &str, blocks: usize) {
        let object = self.await_ipam_node(node, blocks);
        let report = |block: &Value| {
            let held = json!([{"startIP": block["startIP"], "endIP": block["startIP"]}]);
            json!({"name": block["name"], "poolType": block["poolType"], "startIP": block["startIP"],
                "endIP": block["endIP"], "grant": block["grant"], "used": 1, "capacity": 4, "held": held})
        };
        let reports: Vec<_> = object["spec"]["pools"].as_array().unwrap().iter().map(report).collect();
        let status = json!({"observedGeneration": object["metadata"]["generation"], "pools": reports});
        self.merge_status(IPAMNODES, node, &status).unwrap();
    }

    /// Waits until a pool's status has exactly these blocks.
    pub(crate) fn await_blocks(&self, kind: &str, name: &str, wanted: &[(&str, &str)]) {
        let wanted: Blocks = wanted.iter().map(|&(node, block)| (node.to_owned(), block.to_owned())).collect();
        let what = format!("{kind}/{name} has the blocks {wanted:?}");
        eventually_blocking(&what, SOON, || {
            let pool = self.get(kind, name);
            if blocks_of(&pool) == wanted { Ok(()) } else { Err(pool["status"].to_string()) }
        })
        .unwrap();
    }

    /// Waits until a pool has as many blocks, and answers them.
    pub(crate) fn await_count(&self, kind: &str, name: &str, count: usize) -> Blocks {
        let what = format!("{kind}/{name} has {count} blocks");
        eventually_blocking(&what, SOON, || {
            let pool = self.get(kind, name);
            let blocks = blocks_of(&pool);
            if blocks.len() == count { Ok(blocks) } else { Err(pool["status"].to_string()) }
        })
        .unwrap()
    }

    /// Waits until a condition of a pool is as wanted, and answers it.
    pub(crate) fn await_condition(&self, kind: &str, name: &str, condition: (&str, &str, &str)) -> Value {
        let (wanted, status, reason) = condition;
        let what = format!("{kind}/{name} is {wanted}={status} for {reason}");
        eventually_blocking(&what, SOON, || {
            let pool = self.get(kind, name);
            let all = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let current = |found: &&Value| {
                let judged = found["observedGeneration"] == pool["metadata"]["generation"];
                judged && found["type"] == wanted && found["status"] == status && found["reason"] == reason
            };
            all.iter().find(current).cloned().ok_or_else(|| pool["status"].to_string())
        })
        .unwrap()
    }

    /// The notes of the events about a pool that have a reason.
    pub(crate) fn events(&self, pool: &str, reason: &str) -> Vec<String> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        let list = self.send("GET", &path, JSON, &Value::Null).unwrap();
        let about = |event: &&Value| event["regarding"]["name"] == pool && event["reason"] == reason;
        list["items"].as_array().unwrap().iter().filter(about).map(|event| text(&event["note"])).collect()
    }

    /// Waits for an event about a pool, and answers its note.
    pub(crate) fn await_event(&self, pool: &str, reason: &str) -> String {
        eventually_blocking(&format!("an event {reason} about {pool}"), SOON, || {
            self.events(pool, reason).pop().ok_or("there is none")
        })
        .unwrap()
    }

    /// Removes a pool of which no pod uses an address, and waits until it is gone and no node has a block of it.
    pub(crate) fn remove_pool(&self, kind: &str, name: &str) {
        self.delete(kind, name);
        // Its finalizer may go later than its last block. A pool of the same name that is applied meanwhile would change this one.
        eventually_blocking(&format!("{kind}/{name} is gone"), SOON, || {
            self.find(kind, name).map_or(Ok(()), |pool| Err(pool.to_string()))
        })
        .unwrap();
        let of_it = |block: &Value| block["name"] == name && block["poolType"] == kind_of(kind);
        eventually_blocking(&format!("no node has a block of {kind}/{name}"), SOON, || {
            let holds = |node: &&Value| node["spec"]["pools"].as_array().is_some_and(|pools| pools.iter().any(of_it));
            match self.list(IPAMNODES).iter().find(holds) {
                None => Ok(()),
                Some(node) => Err(node["spec"].to_string()),
            }
        })
        .unwrap();
    }

    /// Waits until a node's agent reports so many addresses of a pool as used.
    pub(crate) fn await_used(&self, node: &str, pool: &str, wanted: i64) {
        eventually_blocking(&format!("{node} reports {wanted} used addresses of {pool}"), SOON, || {
            let object = self.find(IPAMNODES, node).ok_or("no IPAMNode")?;
            let reports = object["status"]["pools"].as_array().cloned().unwrap_or_default();
            let used = reports.iter().find(|report| report["name"] == pool).and_then(|report| report["used"].as_i64());
            if used == Some(wanted) { Ok(()) } else { Err(object["status"].to_string()) }
        })
        .unwrap();
    }
}

pub(crate) fn kind_of(plural: &str) -> &'static str {
    match plural {
        IPPOOLS => "IPPool",
        CIDRPOOLS => "CIDRPool",
        IPAMNODES => "IPAMNode",
        _ => panic!("{plural} is no kind of ours"),
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The blocks in a pool's status. The server keeps a node from standing there twice.
pub(crate) fn blocks_of(pool: &Value) -> Blocks {
    let entries = pool["status"]["allocations"].as_array().cloned().unwrap_or_default();
    entries.iter().map(|entry| (text(&entry["nodeName"]), block_of(entry))).collect()
}

fn block_of(entry: &Value) -> String {
    match (&entry["prefix"], &entry["gateway"]) {
        (Value::String(prefix), Value::String(gateway)) => format!("{prefix} via {gateway}"),
        (Value::String(prefix), _) => prefix.clone(),
        _ => format!("{}-{}", text(&entry["startIP"]), text(&entry["endIP"])),
    }
}
