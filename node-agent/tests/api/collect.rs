//! Addresses of pods that are gone.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Method;
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::runtime::Runtime;
use ipam_node_api::AgentAddress;
use serde_json::Value;
use serde_json::json;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::common::{Node, blue, parameters};
use crate::server::Server;

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
                let query = &call.query;
                assert!(query.contains("fieldSelector=spec.nodeName%3Dnode1"), "{query}");
                assert!(query.contains("resourceVersion=0") && !query.contains("limit="), "from the cache: {query}");
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
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[("another", "u2")]))]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[("another", "u2")])), (POD, 404, not_found())])
        .await
        .unwrap();
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
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[("another", "u2")]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[("another", "u2")])), (POD, 200, found)]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn while_the_api_server_is_away_nothing_is_given_back() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    let forbidden =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden"});
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[("another", "u2")]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 403, forbidden.clone())]).await.unwrap_err();
    let script = [(PODS, 200, pods(&[("another", "u2")])), (POD, 403, forbidden)];
    check(&mut server, &mut collector, &script).await.unwrap_err();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn a_list_without_the_agents_own_pod_is_not_believed() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, collector) = collector(&node, 0);
    let mut collector = collector.of_pod(Some(("default".to_owned(), "agent".to_owned())));
    for names in [&[][..], &[("another", "u2")]] {
        check(&mut server, &mut collector, &[(PODS, 200, pods(names))]).await.unwrap_err();
    }
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    let script = [(PODS, 200, pods(&[("agent", "u3")])), (POD, 404, not_found())];
    check(&mut server, &mut collector, &script).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap_err();
}

/// A runtime that lists the sandbox of the agent's pod, and these.
#[derive(Clone, Default)]
struct ContainerRuntime {
    sandboxes: Arc<Mutex<Vec<&'static str>>>,
    asked: Arc<AtomicU32>,
}

/// What the test encodes of CRI's `ListPodSandboxResponse`, by the numbers of its `api.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Listed {
    #[prost(message, repeated, tag = "1")]
    items: Vec<Item>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Item {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<Metadata>,
    #[prost(int32, tag = "3")]
    state: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

impl ContainerRuntime {
    /// Serves CRI on a socket in `folder`.
    fn serve(&self, folder: &std::path::Path) -> Runtime {
        let path = folder.join("cri.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = tonic::transport::Server::builder().add_service(self.clone());
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Runtime::new(AgentAddress::Unix(path))
    }
}

impl tonic::server::NamedService for ContainerRuntime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl tonic::server::UnaryService<Listed> for ContainerRuntime {
    type Response = Listed;
    type Future = std::future::Ready<Result<tonic::Response<Listed>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Listed>) -> Self::Future {
        assert_eq!(request.into_inner(), Listed::default(), "no filter");
        self.asked.fetch_add(1, Ordering::SeqCst);
        let ids = self.sandboxes.lock().unwrap().clone();
        let item = |id: &str, name: &str| {
            let metadata = Metadata { name: name.to_owned(), uid: "u".to_owned(), namespace: "default".to_owned() };
            Item { id: id.to_owned(), metadata: Some(metadata), state: 1 }
        };
        let items = ids.iter().map(|id| item(id, if *id == "own" { "agent" } else { "pod" })).collect();
        std::future::ready(Ok(tonic::Response::new(Listed { items })))
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for ContainerRuntime {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        assert_eq!(request.uri().path(), "/runtime.v1.RuntimeService/ListPodSandbox");
        let service = self.clone();
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(tonic_prost::ProstCodec::default()).unary(service, request).await)
        })
    }
}

/// An agent in the pod `agent`, with a runtime that lists its sandbox and `sandboxes`. The pod of container `c1` is gone.
async fn with_runtime(
    folder: &tempfile::TempDir,
    sandboxes: &[&'static str],
) -> (Node, Server, Collector, ContainerRuntime) {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (server, collector) = collector(&node, 1);
    let runtime = ContainerRuntime::default();
    runtime.sandboxes.lock().unwrap().extend(sandboxes);
    let collector = collector.of_pod(Some(("default".to_owned(), "agent".to_owned())));
    let collector = collector.with_runtime(Some(runtime.serve(folder.path())));
    (node, server, collector, runtime)
}

#[tokio::test]
async fn the_runtime_is_asked_and_again_before_an_address_is_freed() {
    let folder = tempfile::tempdir().unwrap();
    let (node, mut server, mut collector, runtime) = with_runtime(&folder, &["own", "c1"]).await;
    let list = || (PODS, 200, pods(&[("agent", "u3")]));
    for _ in 0..3 {
        check(&mut server, &mut collector, &[list()]).await.unwrap();
    }
    assert_eq!(runtime.asked.load(Ordering::SeqCst), 3);
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    *runtime.sandboxes.lock().unwrap() = vec!["own"];
    check(&mut server, &mut collector, &[list()]).await.unwrap();
    check(&mut server, &mut collector, &[list(), (POD, 404, not_found())]).await.unwrap();
    assert_eq!(runtime.asked.load(Ordering::SeqCst), 6, "the last look asks again");
    node.check(parameters(&["blue"], "c1")).await.unwrap_err();
}

#[tokio::test]
async fn a_runtime_without_the_agents_own_sandbox_frees_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (node, mut server, mut collector, runtime) = with_runtime(&folder, &["other"]).await;
    for _ in 0..3 {
        let refused = check(&mut server, &mut collector, &[]).await.unwrap_err();
        assert!(refused.contains("--container-runtime-endpoint"), "{refused}");
    }
    assert_eq!(runtime.asked.load(Ordering::SeqCst), 3);
    drop(folder);
    let refused = check(&mut server, &mut collector, &[]).await.unwrap_err();
    assert!(refused.contains("cri.sock"), "{refused}");
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn a_node_that_holds_nothing_asks_nothing() {
    let node = Node::start(&[blue()]).await;
    let (mut server, mut collector) = collector(&node, 1);
    collector.check().await.unwrap();
    server.assert_no_call();
}
