//! `--stale-ip-check-interval`: when the API server is asked for the pods.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::store::controlled;
use http::{Request, Response};
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Reservation};
use ipam_core::{PoolKey, PoolKind};
use ipam_node_agent::allocator::Allocator;
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_test::mock::pair;

/// A ledger in which pod "a" holds an address.
fn held() -> Ledger {
    let attachment = Attachment { pod_name: "a".into(), pod_namespace: "default".into(), ..Attachment::default() };
    let reservation = Reservation {
        pool: PoolKey::new(PoolKind::IpPool, "blue"),
        owner: Owner::new("c1", "net1"),
        addr: "10.0.0.2".parse().unwrap(),
        attachment,
        created: 0,
    };
    let mut ledger = Ledger::new(0);
    ledger.apply(&Change::Reserve { reservation, moves_cursor: true });
    ledger
}

/// The clock is paused and this collector's are the only timers: time passes only by its waiting.
#[tokio::test(start_paused = true)]
async fn pods_are_asked_for_once_in_each_interval() {
    let (metrics, _) = Metrics::registered();
    // Nothing is stale, so nobody waits for a commit: one that is asked for ends the allocator.
    let (nowhere, _) = controlled();
    let (allocator, _ended) =
        Allocator::start(held(), Box::new(nowhere), Arc::new(|| 0), Arc::clone(&metrics)).unwrap();
    let (service, mut server) = pair::<Request<Body>, Response<Body>>();
    let config = StaleConfig { interval: Duration::from_hours(1), checks_before: 3 };
    let collector = Collector::new(Client::new(service, "default"), "node1", config, allocator, metrics);
    let started = Instant::now();
    let running = tokio::spawn(collector.run(CancellationToken::new()));
    for hours in 1..=3 {
        let (request, answer) = server.next_request().await.unwrap();
        assert_eq!(request.uri().path(), "/api/v1/pods");
        // A timer fires up to a millisecond late.
        let late = started.elapsed().checked_sub(Duration::from_hours(hours)).expect("an hour for each check");
        assert!(late < Duration::from_secs(1), "{late:?}");
        let found = r#"{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
            {"metadata": {"name": "a", "namespace": "default", "uid": "u"}}]}"#;
        answer.send_response(Response::new(Body::from(found.as_bytes().to_vec())));
    }
    running.abort();
}
