//! Addresses of pods that are gone.

use std::time::Duration;

use http::Method;
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use serde_json::Value;
use serde_json::json;

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

#[tokio::test]
async fn a_node_that_holds_nothing_asks_nothing() {
    let node = Node::start(&[blue()]).await;
    let (mut server, mut collector) = collector(&node, 1);
    collector.check().await.unwrap();
    server.assert_no_call();
}
