//! What the agent asks of the API server: the exact calls, and silence where there is nothing to say.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::time::Duration;

use common::{Node, blue, parameters};
use http::{Method, Request, Response};
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::spec::{NodeSpec, SpecFile};
use ipam_node_agent::status::Reporter;
use ipam_node_agent::watch::{Blocks, InForce, events};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower_test::mock::{Handle, SendResponse, pair};

/// The API server's side of the wire.
struct Server(Handle<Request<Body>, Response<Body>>);

/// One call that waits for its answer.
struct Call {
    method: Method,
    path: String,
    query: String,
    accept: String,
    body: Value,
    answer: SendResponse<Response<Body>>,
}

impl Call {
    fn answer(self, status: u16, body: &Value) {
        let body = Body::from(body.to_string().into_bytes());
        self.answer.send_response(Response::builder().status(status).body(body).unwrap());
    }

    fn not_found(self) {
        self.fail(404, "NotFound");
    }

    fn fail(self, code: u16, reason: &str) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason});
        self.answer(code, &status);
    }
}

impl Server {
    fn new() -> (Client, Self) {
        let (service, handle) = pair::<Request<Body>, Response<Body>>();
        (Client::new(service, "default"), Self(handle))
    }

    /// The next call; a call that does not come fails the test.
    async fn call(&mut self) -> Call {
        let next = tokio::time::timeout(Duration::from_secs(30), self.0.next_request());
        let (request, answer) = next.await.ok().flatten().unwrap();
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        Call {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            accept: parts.headers.get("accept").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            answer,
        }
    }

    async fn silence(&mut self, time: Duration) {
        if let Ok(Some((request, _))) = tokio::time::timeout(time, self.0.next_request()).await {
            panic!("{} {} came, silence was wanted", request.method(), request.uri());
        }
    }
}

const NODE: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/ipamnodes";

fn object(generation: i64, blocks: &Value) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": "node1", "namespace": "kube-system", "uid": "u1", "generation": generation,
            "resourceVersion": generation.to_string()},
        "spec": {"pools": blocks},
    })
}

fn blocks() -> Value {
    json!([{"name": "blue", "poolType": "IPPool", "state": "Active", "startIP": "192.168.0.1",
        "endIP": "192.168.0.4", "subnet": "192.168.0.0/16", "gateway": "192.168.0.1"}])
}

fn reporter(node: &Node) -> (Server, CancellationToken) {
    let (client, server) = Server::new();
    let spec = NodeSpec { uid: "u1".into(), generation: Some(3), blocks: vec![blue()] };
    let (told, in_force) = watch::channel(Some(InForce { spec, ..InForce::default() }));
    let (metrics, stop) = (Metrics::registered().0, CancellationToken::new());
    let reporter = Reporter::new(client, "kube-system", "node1", node.allocator.clone(), in_force, metrics);
    let stopped = stop.clone();
    tokio::spawn(async move {
        reporter.run(stopped).await;
        drop(told);
    });
    (server, stop)
}

#[tokio::test]
async fn a_report_is_one_patch_of_the_status_and_without_news_there_is_silence() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _stop) = reporter(&node);
    let call = server.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::GET, format!("{NODE}/node1").as_str()));
    call.answer(200, &object(3, &blocks()));
    let call = server.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::PATCH, format!("{NODE}/node1/status").as_str()));
    let status = &call.body["status"];
    assert_eq!(status["observedGeneration"], 3);
    let expected = json!([{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
        "used": 0, "capacity": 3}]);
    assert_eq!(status["pools"], expected);
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("Ready"), &json!("True"))
    );
    assert_eq!(call.body.as_object().unwrap().len(), 1, "nothing but the status is written");
    call.answer(200, &object(3, &blocks()));
    server.silence(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn the_first_address_is_reported_soon_and_further_ones_can_wait() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _stop) = reporter(&node);
    server.call().await.answer(200, &object(3, &blocks()));
    server.call().await.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let call = server.call().await;
    assert_eq!(call.body["status"]["pools"][0]["used"], 1);
    call.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c2")).await.unwrap();
    server.silence(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn a_report_that_fails_is_tried_again() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _stop) = reporter(&node);
    server.call().await.not_found();
    let call = server.call().await;
    assert_eq!(call.method, Method::PATCH);
    call.fail(403, "Forbidden");
    server.call().await.not_found();
    let call = server.call().await;
    assert_eq!((call.method, call.path.as_str()), (Method::PATCH, format!("{NODE}/node1/status").as_str()));
}

#[tokio::test]
async fn the_agent_watches_its_one_object_and_nothing_else() {
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let directory = tempfile::tempdir().unwrap();
    let file = SpecFile::new(directory.path(), "node1", "kube-system");
    let (told, mut in_force) = watch::channel(None);
    let blocks_task = Blocks::new(node.allocator.clone(), file.clone(), node.readiness.clone(), told);
    let (client, mut server) = Server::new();
    let (stop, metrics) = (CancellationToken::new(), Metrics::registered().0);
    let stream = events(client, "kube-system", "node1");
    tokio::spawn(async move { blocks_task.follow(stream, metrics, stop).await });
    let call = server.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::GET, NODE));
    assert!(call.query.contains("fieldSelector=metadata.name%3Dnode1"), "{}", call.query);
    let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
        "metadata": {"resourceVersion": "7"}, "items": [object(4, &blocks())]});
    call.answer(200, &list);
    in_force.wait_for(Option::is_some).await.unwrap();
    assert_eq!(node.address(parameters(&["blue"], "c1")).await, "192.168.0.2/16");
    assert_eq!(file.load().unwrap().unwrap().generation, Some(4), "the spec is on disk for a start without API server");
    let call = server.call().await;
    assert!(call.query.contains("watch=true") && call.query.contains("metadata.name%3Dnode1"), "{}", call.query);
    let poisoned = object(5, &json!("nonsense"));
    let deleted = json!({"type": "DELETED", "object": object(6, &json!([]))});
    let events = [json!({"type": "MODIFIED", "object": poisoned}), deleted];
    let lines = format!("{}\n{}\n", events[0], events[1]);
    call.answer.send_response(Response::new(Body::from(lines.into_bytes())));
    let gone = in_force.wait_for(|told| told.as_ref().is_some_and(|told| told.spec == NodeSpec::default())).await;
    drop(gone.unwrap());
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    let refused = node.add(parameters(&["blue"], "c2")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_cannot_be_saved_are_in_force_all_the_same_and_saved_once_they_can_be() {
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let directory = tempfile::tempdir().unwrap();
    // A directory stands where the temporary file of a replacement would go.
    let obstacle = directory.path().join(".spec.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    let file = SpecFile::new(directory.path(), "node1", "kube-system");
    let (told, mut in_force) = watch::channel(None);
    let blocks_task = Blocks::new(node.allocator.clone(), file.clone(), node.readiness.clone(), told);
    let (client, mut server) = Server::new();
    let (stop, metrics) = (CancellationToken::new(), Metrics::registered().0);
    let stream = events(client, "kube-system", "node1");
    tokio::spawn(async move { blocks_task.follow(stream, metrics, stop).await });
    let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
        "metadata": {"resourceVersion": "7"}, "items": [object(4, &blocks())]});
    server.call().await.answer(200, &list);
    in_force.wait_for(Option::is_some).await.unwrap();
    assert_eq!(file.load(), Ok(None));
    std::fs::remove_dir(&obstacle).unwrap();
    // Time stands still but for what the agent itself waits for.
    let mut tries = 0;
    while file.load() == Ok(None) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tries += 1;
        assert!(tries < 60, "it is never saved");
    }
    assert_eq!(file.load().unwrap().unwrap().generation, Some(4));
}

fn collector(node: &Node, checks_before: u32) -> (Server, Collector) {
    let (client, server) = Server::new();
    let config = StaleConfig { interval: Duration::from_mins(1), checks_before };
    (server, Collector::new(client, "node1", config, node.allocator.clone(), Metrics::registered().0))
}

/// Runs one check against scripted answers; each is (path, status, body).
async fn check(server: &mut Server, collector: &mut Collector, script: &[(&str, u16, Value)]) -> Result<(), String> {
    let answers = async {
        for (path, status, body) in script {
            let call = server.call().await;
            assert_eq!((&call.method, call.path.as_str()), (&Method::GET, *path));
            assert!(call.accept.contains("PartialObjectMetadata"), "metadata only: {}", call.accept);
            if *path == "/api/v1/pods" {
                assert!(call.query.contains("fieldSelector=spec.nodeName%3Dnode1"), "{}", call.query);
            }
            call.answer(*status, body);
        }
    };
    let (result, ()) = tokio::join!(collector.check(), answers);
    result
}

fn pods(names: &[(&str, &str)]) -> Value {
    let items: Vec<_> = names
        .iter()
        .map(|(name, uid)| json!({"metadata": {"name": name, "namespace": "default", "uid": uid}}))
        .collect();
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items})
}

const PODS: &str = "/api/v1/pods";
const POD: &str = "/api/v1/namespaces/default/pods/pod-c1";

fn not_found() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"})
}

#[tokio::test]
async fn an_address_is_given_back_after_the_checks_and_a_last_look_at_its_pod() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[])), (POD, 404, not_found())]).await.unwrap();
    let gone = node.check(parameters(&["blue"], "c1")).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_pod_that_the_last_look_finds_keeps_its_address() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    let found = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "pod-c1", "namespace": "default", "uid": "u"}});
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[])), (POD, 200, found)]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn while_the_api_server_is_away_nothing_is_given_back() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    let forbidden =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden"});
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 403, forbidden.clone())]).await.unwrap_err();
    let script = [(PODS, 200, pods(&[])), (POD, 403, forbidden)];
    check(&mut server, &mut collector, &script).await.unwrap_err();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn a_node_that_holds_nothing_asks_nothing() {
    let node = Node::start(&[blue()]).await;
    let (mut server, mut collector) = collector(&node, 1);
    collector.check().await.unwrap();
    server.silence(Duration::from_millis(20)).await;
}
