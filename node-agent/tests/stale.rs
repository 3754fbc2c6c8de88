//! `--stale-ip-check-interval`: when the API server is asked for the pods.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::time::Duration;

use common::{Node, blue, parameters};
use http::{Request, Response};
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_test::mock::pair;

#[tokio::test]
async fn pods_are_asked_for_once_in_each_interval() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (service, mut server) = pair::<Request<Body>, Response<Body>>();
    let (metrics, _) = Metrics::registered();
    let config = StaleConfig { interval: Duration::from_hours(1), checks_before: 3 };
    let client = Client::new(service, "default");
    let collector = Collector::new(client, "node1", config, node.allocator.clone(), metrics);
    // From here on time passes only while everything waits for it.
    tokio::time::pause();
    let started = Instant::now();
    let running = tokio::spawn(collector.run(CancellationToken::new()));
    for hours in 1..=3 {
        let (request, answer) = server.next_request().await.unwrap();
        assert_eq!(request.uri().path(), "/api/v1/pods");
        let passed = started.elapsed();
        assert!(passed >= Duration::from_hours(hours) && passed < Duration::from_hours(hours) + Duration::from_mins(1));
        let found = r#"{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
            {"metadata": {"name": "pod-c1", "namespace": "default", "uid": "u"}}]}"#;
        answer.send_response(Response::new(Body::from(found.as_bytes().to_vec())));
    }
    running.abort();
}
