//! The simulator's model of the API server answers as the real one does: the same generated calls are made to both, and codes, objects
//! and watch events are compared. What the model promises is listed in `e2e/simulator/src/lib.rs`.
//!
//! The last sequence of each kind is another one with each commit; `NV_IPAM_SEED` sets its seed.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use ipam_e2e::{ControlPlane, cluster};
use ipam_simulator::model::Model;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

const SEQUENCES: u64 = 6;
const CALLS: usize = 60;
const NAMES: [&str; 2] = ["one", "two"];
/// An event that does not come for this long fails the test.
const PATIENCE: Duration = Duration::from_mins(2);
const FINALIZER: &str = "example.com/kept";

/// Which version or uid a call names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    Nothing,
    Current,
    Other,
}

#[derive(Clone, Debug)]
enum Call {
    Get,
    Create { spec: u8 },
    Replace { spec: u8, finalizer: bool, version: Named },
    ReplaceStatus { status: u8, version: Named },
    Merge { spec: u8, version: Named, uid: Named },
    MergeMetadata { finalizer: bool, annotation: Option<u8>, version: Named },
    MergeStatus { status: Option<u8> },
    PatchStatus { status: u8, version: Named, uid: Named },
    Delete { version: Named, uid: Named },
}

/// A server, real or model, with what it last said of each object.
struct Side {
    server: Server,
    namespace: String,
}

enum Server {
    Model(Box<Model>),
    Real(Client),
}

impl Side {
    async fn ask(&mut self, method: &Method, path: &str, content: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content).body(bytes).unwrap();
        let (code, bytes) = match &mut self.server {
            Server::Model(model) => {
                let response = model.answer(&request);
                (response.status().as_u16(), response.into_body())
            }
            Server::Real(client) => {
                let response = client.send(request.map(Body::from)).await.unwrap();
                let code = response.status().as_u16();
                (code, response.into_body().collect().await.unwrap().to_bytes().to_vec())
            }
        };
        // The real server tells a creation from other successes.
        (if code == 201 { 200 } else { code }, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    fn path(&self, plural: &str) -> String {
        if plural == "nodes" {
            return "/api/v1/nodes".to_owned();
        }
        format!("/apis/{}/namespaces/{}/{plural}", api_version(plural), self.namespace)
    }

    async fn get(&mut self, plural: &str, name: &str) -> Option<Value> {
        let path = format!("{}/{name}", self.path(plural));
        let (code, object) = self.ask(&Method::GET, &path, "application/json", &Value::Null).await;
        (code == 200).then_some(object)
    }

    /// Makes the call; its code.
    async fn make(&mut self, plural: &str, name: &str, call: &Call) -> u16 {
        let now = self.get(plural, name).await.unwrap_or_default();
        let (method, suffix, content, body) = request(plural, name, &self.namespace, call, &now);
        let path = format!("{}{suffix}", self.path(plural));
        self.ask(&method, &path, content, &body).await.0
    }
}

const fn api_version(plural: &str) -> &'static str {
    match plural.as_bytes() {
        b"leases" => "coordination.k8s.io/v1",
        b"nodes" => "v1",
        _ => "nv-ipam.nvidia.com/v1alpha1",
    }
}

/// What a field of the metadata is to be named as.
fn named(object: &Value, field: &str, named: Named) -> Value {
    match named {
        Named::Nothing => Value::Null,
        Named::Current => object["metadata"][field].clone(),
        Named::Other if field == "uid" => json!("00000000-0000-0000-0000-000000000000"),
        Named::Other => json!("999999999"),
    }
}

fn request(
    plural: &str,
    name: &str,
    namespace: &str,
    call: &Call,
    now: &Value,
) -> (Method, String, &'static str, Value) {
    const JSON: &str = "application/json";
    const MERGE: &str = "application/merge-patch+json";
    let of = format!("/{name}");
    let status_of = format!("/{name}/status");
    let finalizers = |put: bool| if put { json!([FINALIZER]) } else { json!([]) };
    let object = |metadata: Value| {
        let kind = match plural {
            "ippools" => "IPPool",
            "cidrpools" => "CIDRPool",
            "leases" => "Lease",
            "nodes" => "Node",
            _ => "IPAMNode",
        };
        let mut metadata = metadata;
        metadata["name"] = json!(name);
        if plural != "nodes" {
            metadata["namespace"] = json!(namespace);
        }
        json!({"apiVersion": api_version(plural), "kind": kind, "metadata": metadata})
    };
    match call {
        Call::Get => (Method::GET, of, JSON, Value::Null),
        Call::Create { spec: number } => {
            let mut new = object(json!({"finalizers": finalizers(number % 2 == 0)}));
            new["spec"] = spec(plural, *number);
            (Method::POST, String::new(), JSON, new)
        }
        Call::Replace { spec: number, finalizer, version } => {
            let version = named(now, "resourceVersion", *version);
            let mut new = object(json!({"resourceVersion": version, "finalizers": finalizers(*finalizer)}));
            new["spec"] = spec(plural, *number);
            (Method::PUT, of, JSON, new)
        }
        Call::ReplaceStatus { status: number, version } => {
            let mut new = object(json!({"resourceVersion": named(now, "resourceVersion", *version)}));
            (new["spec"], new["status"]) = (spec(plural, 0), status(plural, *number));
            (Method::PUT, status_of, JSON, new)
        }
        Call::Merge { spec: number, version, uid } => {
            let mut metadata = json!({});
            for (field, which) in [("resourceVersion", *version), ("uid", *uid)] {
                if which != Named::Nothing {
                    metadata[field] = named(now, field, which);
                }
            }
            (Method::PATCH, of, MERGE, json!({"metadata": metadata, "spec": spec(plural, *number)}))
        }
        Call::MergeMetadata { finalizer, annotation, version } => {
            let mut metadata = json!({"finalizers": finalizers(*finalizer)});
            metadata["annotations"] = json!({"example.com/a": annotation.map(|number| number.to_string())});
            metadata["labels"] = json!({"group": annotation.map(|number| format!("group-{}", number % 2))});
            if *version != Named::Nothing {
                metadata["resourceVersion"] = named(now, "resourceVersion", *version);
            }
            (Method::PATCH, of, MERGE, json!({ "metadata": metadata }))
        }
        Call::MergeStatus { status: number } => {
            let status = number.map_or(Value::Null, |number| status(plural, number));
            (Method::PATCH, status_of, MERGE, json!({ "status": status }))
        }
        Call::PatchStatus { status: number, version, uid } => {
            let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": named(now, "uid", *uid)})];
            if *version != Named::Nothing {
                let value = named(now, "resourceVersion", *version);
                patch.push(json!({"op": "replace", "path": "/metadata/resourceVersion", "value": value}));
            }
            patch.push(json!({"op": "add", "path": "/status", "value": status(plural, *number)}));
            (Method::PATCH, status_of, "application/json-patch+json", json!(patch))
        }
        Call::Delete { version, uid } => {
            let mut preconditions = json!({});
            for (field, which) in [("resourceVersion", *version), ("uid", *uid)] {
                if which != Named::Nothing {
                    preconditions[field] = named(now, field, which);
                }
            }
            (Method::DELETE, of, JSON, json!({ "preconditions": preconditions }))
        }
    }
}

fn spec(plural: &str, number: u8) -> Value {
    if plural == "leases" {
        return json!({"holderIdentity": format!("replica-{}", number % 3), "leaseDurationSeconds": 15});
    }
    if plural == "ippools" {
        return json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4 + number % 3});
    }
    if plural == "cidrpools" {
        return json!({"cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 26 + number % 3});
    }
    if plural == "nodes" {
        return json!({});
    }
    let end = format!("10.0.0.{}", 1 + number % 3);
    let block = json!({"name": "blue", "poolType": "IPPool", "state": "Active", "subnet": "10.0.0.0/24",
        "startIP": "10.0.0.1", "endIP": end});
    json!({"pools": [block]})
}

fn status(plural: &str, number: u8) -> Value {
    if plural == "ippools" {
        let end = format!("10.0.0.{}", 1 + number % 3);
        return json!({"allocations": [{"nodeName": "node", "startIP": "10.0.0.1", "endIP": end}]});
    }
    if plural == "cidrpools" {
        return json!({"allocations": [{"nodeName": "node", "prefix": format!("10.0.{}.0/26", number % 3)}]});
    }
    json!({"observedGeneration": number % 3})
}

fn dice(rng: &mut fastrand::Rng, plural: &str) -> (usize, Call) {
    let which =
        |rng: &mut fastrand::Rng| [Named::Nothing, Named::Current, Named::Current, Named::Other][rng.usize(0..4)];
    let version = which(rng);
    let uid = which(rng);
    let number = rng.u8(0..6);
    let call = match rng.u8(0..12) {
        // Of a Lease only what the operator does to it, and an admin who deletes it.
        3..=10 if plural == "leases" => Call::Replace { spec: number, finalizer: false, version },
        // Of a Node only what admins and kubelets do to it, by its metadata.
        3..=6 | 9 | 10 if plural == "nodes" => {
            let annotation = rng.bool().then_some(number);
            Call::MergeMetadata { finalizer: rng.bool(), annotation, version }
        }
        0 => Call::Get,
        1 | 2 => Call::Create { spec: number },
        3 | 4 => Call::Replace { spec: number, finalizer: rng.bool(), version },
        5 => Call::ReplaceStatus { status: number, version },
        6 => Call::Merge { spec: number, version, uid },
        7 | 8 => {
            let annotation = rng.bool().then_some(number);
            Call::MergeMetadata { finalizer: rng.bool(), annotation, version }
        }
        9 => Call::MergeStatus { status: rng.bool().then_some(number) },
        10 => Call::PatchStatus { status: number, version, uid },
        _ => Call::Delete { version, uid },
    };
    (rng.usize(0..NAMES.len()), call)
}

/// What both servers must say alike of an object. Leases and Nodes have no generation. A real Node has defaults in spec and status, of
/// which the simulator reads nothing.
fn seen(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let is_node = object["kind"] == "Node";
    let empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    json!({
        "name": metadata["name"],
        "generation": if is_node || object["kind"] == "Lease" { Value::Null } else { metadata["generation"].clone() },
        "finalizers": if empty(&metadata["finalizers"]) { Value::Null } else { metadata["finalizers"].clone() },
        "annotation": metadata["annotations"]["example.com/a"],
        "group": metadata["labels"]["group"],
        "terminating": !metadata["deletionTimestamp"].is_null(),
        "spec": if is_node { Value::Null } else { object["spec"].clone() },
        "status": if is_node { Value::Null } else { object["status"].clone() },
    })
}

/// Plays one sequence against both, and returns what the calls were answered.
async fn play(sides: &mut [Side; 2], plural: &str, seed: u64) -> Vec<(Call, u16)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut played = Vec::new();
    for number in 0..CALLS {
        let (at, call) = dice(&mut rng, plural);
        let name = format!("{}-{seed}", NAMES[at]);
        let mut said = Vec::new();
        for side in &mut *sides {
            let before = side.get(plural, &name).await;
            let code = side.make(plural, &name, &call).await;
            let after = side.get(plural, &name).await;
            let version = |object: &Option<Value>| Some(object.as_ref()?["metadata"]["resourceVersion"].clone());
            let uid = |object: &Option<Value>| Some(object.as_ref()?["metadata"]["uid"].clone());
            let moved = (version(&before) != version(&after), uid(&before) != uid(&after));
            said.push((code, moved, after.as_ref().map(seen)));
        }
        assert_eq!(said[0], said[1], "seed {seed}, call {number} of {name}: {call:?}; the model left, the real right");
        played.push((call, said[0].0));
    }
    played
}

/// The version of the real server's list.
async fn version(side: &mut Side, plural: &str) -> String {
    let path = side.path(plural);
    let (_, list) = side.ask(&Method::GET, &path, "application/json", &Value::Null).await;
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The events of a real watch of the objects since `version`. The test creates a marker object and reads the watch up to its event, so that
/// all earlier events have come.
async fn real_events(side: &mut Side, plural: &str, version: &str, seed: u64) -> Vec<(bool, Value)> {
    let marker = format!("marker-{seed}-end");
    assert_eq!(side.make(plural, &marker, &Call::Create { spec: 1 }).await, 200);
    let path = format!("{}?watch=true&resourceVersion={version}", side.path(plural));
    let Server::Real(client) = &side.server else { return Vec::new() };
    let response = client.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let watch = async {
        let (mut body, mut unread, mut events) = (response.into_body(), Vec::new(), Vec::new());
        loop {
            // A watch that ends before the marker fails the test.
            let frame = body.frame().await.unwrap().unwrap();
            unread.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                if event["object"]["metadata"]["name"] == marker.as_str() {
                    return events;
                }
                let is_deleted = event["type"] == "DELETED";
                events.push((is_deleted, event["object"].take()));
            }
        }
    };
    let mut events = tokio::time::timeout(PATIENCE, watch).await.unwrap();
    events.retain(|(_, object)| is_of(object, seed));
    events
}

/// The seed of this commit.
fn fresh_seed() -> u64 {
    ipam_simulator::fresh::seed(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn is_of(object: &Value, seed: u64) -> bool {
    object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(&format!("-{seed}")))
}

#[tokio::test]
async fn the_model_answers_as_the_real_api_server() {
    let plane = ControlPlane::shared().unwrap();
    cluster::install_crds(plane).unwrap();
    let namespace = plane.namespace("model").unwrap();
    let client = plane.client().await.unwrap();
    let mut codes = std::collections::BTreeMap::<u16, usize>::new();
    let fresh = fresh_seed();
    std::io::stderr().write_all(format!("fresh seed {fresh}\n").as_bytes()).unwrap();
    for plural in ["ippools", "cidrpools", "ipamnodes", "nodes", "leases"] {
        let model = Side { server: Server::Model(Box::default()), namespace: namespace.clone() };
        let mut sides = [model, Side { server: Server::Real(client.clone()), namespace: namespace.clone() }];
        for seed in (0..SEQUENCES).chain([fresh]) {
            let since = version(&mut sides[1], plural).await;
            for (_, code) in play(&mut sides, plural, seed).await {
                *codes.entry(code).or_default() += 1;
            }
            let [Side { server: Server::Model(model), .. }, real] = &mut sides else { unreachable!("as made above") };
            let told = model.events(plural).into_iter().filter(|(_, object)| is_of(object, seed));
            let told: Vec<_> = told.map(|(deleted, object)| (deleted, seen(&object))).collect();
            let real = real_events(real, plural, &since, seed).await;
            let real: Vec<_> = real.into_iter().map(|(deleted, object)| (deleted, seen(&object))).collect();
            assert_eq!(told, real, "events of {plural}, seed {seed}");
        }
    }
    // Each answer that the model knows has been compared.
    for code in [200, 404, 409, 422] {
        assert!(codes.get(&code).copied().unwrap_or_default() >= 10, "{codes:?}");
    }
}
