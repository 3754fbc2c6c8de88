//! Reports: what is written to the status of the node's object, and when.

use std::time::Duration;

use futures::FutureExt;
use http::Method;
use ipam_core::ledger::{Attachment, Owner, Pick, Request};
use ipam_core::{PoolKey, PoolKind};
use ipam_crds::BlockState;
use ipam_crds::NodeBlock;
use ipam_node_agent::allocator::{Allocator, Source, system_clock};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::standing::Standing;
use ipam_node_agent::status::Reporter;
use ipam_node_agent::watch::InForce;
use serde_json::Value;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::store::{Verdict, controlled};
use crate::common::{Node, assign, blue, confirmed_ledger, green, parameters};
use crate::server::{Call, NODE, Server, StoppedClock, blocks, object};

/// A reporter on `node` that was told `first`.
fn reporter(node: &Node, first: InForce) -> (Server, watch::Sender<Option<InForce>>) {
    reporter_of(node.allocator.clone(), first)
}

fn reporter_of(allocator: Allocator, first: InForce) -> (Server, watch::Sender<Option<InForce>>) {
    let (reporter, server, told) = new_reporter(allocator, first);
    // Ends with the runtime, and when `told` is dropped.
    tokio::spawn(reporter.run(CancellationToken::new()));
    (server, told)
}

/// One that does not run yet.
fn new_reporter(allocator: Allocator, first: InForce) -> (Reporter, Server, watch::Sender<Option<InForce>>) {
    let (client, server) = Server::new();
    let (told, in_force) = watch::channel(Some(first));
    let metrics = Metrics::registered().0;
    (Reporter::new(client, "kube-system", "node1", allocator, in_force, metrics), server, told)
}

#[tokio::test]
async fn a_reporter_that_stops_reports_an_unused_block_as_idle() {
    let node = Node::start(&[blue()]).await;
    let (reporter, mut server, _told) = new_reporter(node.allocator.clone(), in_force(blue(), &json!({})));
    let stop = CancellationToken::new();
    let ended = tokio::spawn(reporter.run(stop.clone()));
    let first = server.call().await;
    assert_eq!(reported(&first)["pools"][0]["idle"], Value::Null);
    first.answer(200, &object(3, &blocks()));
    stop.cancel();
    let last = server.call().await;
    assert_eq!((&reported(&last)["pools"][0]["idle"], &reported(&last)["pools"][0]["used"]), (&json!(true), &json!(0)));
    last.answer(200, &object(3, &blocks()));
    ended.await.unwrap();
    assert!(node.add(parameters(&["blue"], "c1")).await.is_err(), "another confirmation is needed");
}

#[tokio::test]
async fn a_report_to_an_object_that_is_another_begins_the_watch_with_a_list() {
    let node = Node::start(&[blue()]).await;
    for code in [404, 422] {
        let (reporter, mut server, _told) = new_reporter(node.allocator.clone(), in_force(blue(), &json!({})));
        let relist = reporter.relist();
        tokio::spawn(reporter.run(CancellationToken::new()));
        server.call().await.fail(500, "InternalError");
        let again = server.call().await;
        assert_eq!(relist.notified().now_or_never(), None, "an error is no sign of another object");
        again.fail(code, "NotFound");
        tokio::time::timeout(Duration::from_secs(10), relist.notified()).await.unwrap();
    }
}

/// Generation 3 with one block, of an object that shows this status.
fn in_force(block: NodeBlock, status: &Value) -> InForce {
    let spec =
        NodeSpec { uid: "u1".into(), created: 0, generation: Some(3), blocks: vec![block], ..NodeSpec::default() };
    let status = serde_json::from_value(status.clone()).unwrap();
    let standing = Standing { uid: "u1".into(), resource_version: "3".into(), status, ..Standing::default() };
    InForce { spec, saved: Some(3), standing: Some(standing), ..InForce::default() }
}

/// The status that a call writes.
fn reported(call: &Call) -> &Value {
    assert_eq!((&call.method, call.path.as_str()), (&Method::PATCH, format!("{NODE}/node1/status").as_str()));
    &call.body[2]["value"]
}

#[tokio::test]
async fn a_report_is_one_patch_of_the_status_and_without_news_there_is_silence() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let status = reported(&call);
    assert_eq!(status["observedGeneration"], 3);
    let expected = json!([{"name": "blue", "poolType": "IPPool", "grant": blue().grant, "startIP": "192.168.0.1",
        "endIP": "192.168.0.4", "used": 0, "capacity": 3}]);
    assert_eq!(status["pools"], expected);
    assert_eq!(status["ledger"], json!({"epoch": 1, "sequence": 2}), "the grant is seen and confirmed");
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("Ready"), &json!("True"))
    );
    let operations: Vec<_> = call.body.as_array().unwrap().iter().map(|op| (&op["op"], &op["path"])).collect();
    let expected = [("test", "/metadata/uid"), ("replace", "/metadata/resourceVersion"), ("add", "/status")];
    let expected = expected.map(|(op, path)| (json!(op), json!(path)));
    assert_eq!(operations, expected.iter().map(|(op, path)| (op, path)).collect::<Vec<_>>(), "nothing but the status");
    assert_eq!(call.body[0]["value"], "u1", "no other object of this name takes the report");
    assert_eq!(call.body[1]["value"], "3", "no other version of the object takes the report");
    assert!(call.accept.contains("as=PartialObjectMetadata;"), "the answer is as short as can be: {}", call.accept);
    let clock = StoppedClock::stop();
    call.answer(200, &object(3, &blocks()));
    clock.pass(&node.allocator, Duration::from_secs(20)).await;
    server.assert_no_call();
}

#[tokio::test]
async fn the_first_address_is_reported_soon_with_its_place_and_further_ones_can_wait() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    server.call().await.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let call = server.call().await;
    assert_eq!(reported(&call)["pools"][0]["used"], 1);
    assert_eq!(reported(&call)["pools"][0]["held"], json!([{"startIP": "192.168.0.2", "endIP": "192.168.0.2"}]));
    let clock = StoppedClock::stop();
    call.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c2")).await.unwrap();
    clock.pass(&node.allocator, Duration::from_millis(9900)).await;
    server.assert_no_call();
    clock.pass(&node.allocator, Duration::from_millis(200)).await;
    assert_eq!(reported(&server.call_now().await)["pools"][0]["used"], 2);
}

#[tokio::test]
async fn a_block_that_is_given_back_is_reported_empty_with_the_generation_it_was_told_in_one_write() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    assert_eq!((&reported(&call)["observedGeneration"], &reported(&call)["pools"][0]["used"]), (&json!(3), &json!(1)));
    call.answer(200, &object(3, &blocks()));
    let releasing = NodeBlock { state: BlockState::Releasing, ..blue() };
    node.configure(std::slice::from_ref(&releasing)).await;
    let mut later = in_force(releasing, &json!({}));
    (later.spec.generation, later.saved) = (Some(4), Some(4));
    later.standing = told.borrow().as_ref().unwrap().standing.clone();
    told.send_replace(Some(later));
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    let call = server.call().await;
    assert_eq!((&reported(&call)["observedGeneration"], &reported(&call)["pools"][0]["used"]), (&json!(4), &json!(0)));
    assert_eq!(reported(&call)["pools"][0].get("held"), None);
}

fn request(kind: PoolKind, pool: &str, container: &str) -> Request {
    let attachment = Attachment { pod_name: "p".into(), pod_namespace: "n".into(), ..Attachment::default() };
    let (pools, owner) = (vec![PoolKey::new(kind, pool)], Owner::new(container, "net1"));
    Request { pools, owner, attachment, requested: Vec::new(), pick: Pick::Next }
}

#[tokio::test]
async fn a_report_counts_no_earlier_than_its_spec() {
    let (journal, store) = controlled();
    let metrics = Metrics::registered().0;
    let ledger = confirmed_ledger(&[blue(), green()]);
    let (allocator, _ended) = Allocator::start(ledger, Box::new(journal), system_clock(), metrics).unwrap();
    assign(&allocator, &[blue(), green()]).await;
    // While a record is on its way to the disk, the reporter asks for what is held.
    let busy = allocator.clone();
    tokio::spawn(async move { busy.allocate(request(PoolKind::CidrPool, "green", "c1")).await });
    store.commit().await;
    let (mut server, told) = reporter_of(allocator.clone(), in_force(blue(), &json!({})));
    tokio::task::yield_now().await;
    // Behind its question a pod gets an address, and the block becomes Releasing.
    let releasing = NodeBlock { state: BlockState::Releasing, ..blue() };
    let pools = node_pools(&[releasing.clone(), green()]).0;
    let others = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            allocator.allocate(request(PoolKind::IpPool, "blue", "c2")).await.unwrap();
            allocator.configure(pools, Source::ApiServer(None), None).await.unwrap();
        });
    });
    store.answer(Verdict::Done);
    store.answer(Verdict::Done);
    // This blocks the runtime, so that the reporter goes on only after all of it.
    others.join().unwrap();
    let mut later = in_force(releasing, &json!({}));
    (later.spec.generation, later.saved) = (Some(4), Some(4));
    told.send_replace(Some(later));
    loop {
        let call = server.call().await;
        let status = reported(&call);
        if status["observedGeneration"] == 4 {
            let blue = status["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "blue");
            assert_eq!(blue.unwrap()["used"], 1, "{status}");
            return;
        }
        call.answer(200, &object(3, &blocks()));
    }
}

#[tokio::test]
async fn what_is_held_of_a_pool_that_the_node_no_longer_has_is_reported() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let expected = json!([{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.2", "endIP": "192.168.0.2",
        "used": 1, "capacity": 0, "held": [{"startIP": "192.168.0.2", "endIP": "192.168.0.2"}]}]);
    assert_eq!(reported(&server.call().await)["pools"], expected);
}

#[tokio::test]
async fn a_restart_without_news_writes_nothing_and_a_status_of_another_hand_is_written_over() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let status = reported(&call).clone();
    call.answer(200, &object(3, &blocks()));
    let clock = StoppedClock::stop();
    let (mut server, told) = reporter(&node, in_force(blue(), &status));
    clock.pass(&node.allocator, Duration::from_secs(20)).await;
    server.assert_no_call();
    told.send_replace(Some(in_force(blue(), &json!({}))));
    clock.pass(&node.allocator, Duration::ZERO).await;
    let call = server.call_now().await;
    assert_eq!(*reported(&call), status, "the transition time too");
}

#[tokio::test]
async fn a_report_that_fails_is_tried_again() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let first = reported(&call).clone();
    call.fail(403, "Forbidden");
    assert_eq!(reported(&server.call().await)["pools"], first["pools"]);
}

#[tokio::test]
async fn nothing_is_reported_before_the_api_server_has_shown_the_object() {
    let node = Node::start(&[blue()]).await;
    let unseen = InForce { standing: None, ..in_force(blue(), &json!({})) };
    let clock = StoppedClock::stop();
    let (mut server, told) = reporter(&node, unseen);
    clock.pass(&node.allocator, Duration::from_secs(20)).await;
    server.assert_no_call();
    told.send_replace(Some(in_force(blue(), &json!({}))));
    clock.pass(&node.allocator, Duration::ZERO).await;
    reported(&server.call_now().await);
}
