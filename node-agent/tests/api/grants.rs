//! Grants: what confirms one, and what becomes of a report that the API server does not take.

use std::sync::Arc;

use ipam_core::ledger::{GrantStep, Ledger, SpecVersion};
use ipam_crds::NodeBlock;
use ipam_node_agent::allocator::{Allocator, Source, system_clock};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::standing::Standing;
use ipam_node_agent::status::Reporter;
use ipam_node_agent::watch::InForce;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::store::{Verdict, controlled};
use crate::common::{Node, blue, parameters};
use crate::following::Following;
use crate::server::{Call, Server, blocks, line, object, stream};

/// A reporter, with the API server's side of it.
struct Reporting {
    server: Server,
    told: watch::Sender<Option<InForce>>,
    metrics: Arc<Metrics>,
}

/// What is in force when the API server shows the object in this version, without a report.
fn in_force(resource_version: &str) -> InForce {
    let spec =
        NodeSpec { uid: "u1".into(), created: 0, generation: Some(3), blocks: vec![blue()], ..NodeSpec::default() };
    let standing = Standing { uid: "u1".into(), resource_version: resource_version.into(), ..Standing::default() };
    InForce { spec, saved: Some(3), standing: Some(standing), ..InForce::default() }
}

impl Reporting {
    fn start(allocator: Allocator) -> Self {
        let (client, server) = Server::new();
        let (told, in_force) = watch::channel(Some(in_force("3")));
        let metrics = Metrics::registered().0;
        let reporter = Reporter::new(client, "kube-system", "node1", allocator, in_force, Arc::clone(&metrics));
        // Ends with the runtime, and when `told` is dropped.
        tokio::spawn(reporter.run(CancellationToken::new()));
        Self { server, told, metrics }
    }
}

/// The API server assigns the block [`blue`]; nothing confirms its grant.
async fn assign(allocator: &Allocator) {
    let version = SpecVersion { created: 0, generation: 3 };
    allocator.configure(node_pools(&[blue()]).0, Source::ApiServer(Some(version)), None).await.unwrap();
}

/// An agent whose block is not confirmed.
async fn unconfirmed() -> Node {
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    assign(&node.allocator).await;
    node.readiness.blocks_are_known();
    node
}

async fn step(allocator: &Allocator) -> Option<GrantStep> {
    allocator.holdings().await.unwrap().pools[0].grant.map(|grant| grant.step)
}

/// The version that the report replaces, and what it says of its one block.
fn reported(call: &Call) -> (&Value, &Value) {
    (&call.body[1]["value"], &call.body[2]["value"]["pools"][0])
}

#[tokio::test]
async fn the_answer_to_a_report_confirms_its_grant() {
    let node = unconfirmed().await;
    let mut reporting = Reporting::start(node.allocator.clone());
    let call = reporting.server.call().await;
    assert_eq!(reported(&call).1["grant"], blue().grant);
    assert!(!call.accept.contains("PartialObjectMetadata"), "the answer must have the spec: {}", call.accept);
    assert_eq!(step(&node.allocator).await, Some(GrantStep::Seen), "the report itself confirms nothing");
    // ADD waits for the confirmation.
    let (address, ()) = tokio::join!(node.address(parameters(&["blue"], "c1")), async {
        call.answer(200, &object(9, &blocks()));
    });
    assert_eq!(address, "192.168.0.2/16");
    let call = reporting.server.call().await;
    assert_eq!(reported(&call).0, "9", "the answer has told the version");
    assert!(call.accept.contains("as=PartialObjectMetadata;"), "nothing is left to confirm: {}", call.accept);
}

#[tokio::test]
async fn an_answer_without_the_grant_confirms_nothing() {
    let node = unconfirmed().await;
    let mut reporting = Reporting::start(node.allocator.clone());
    let other = NodeBlock { grant: "6500000000000009".into(), ..blue() };
    for spec in [json!([]), json!([other])] {
        reporting.server.call().await.answer(200, &object(4, &spec));
    }
    // The reporter makes the next call when it has taken in the answers.
    let _call = reporting.server.call().await;
    assert_eq!(step(&node.allocator).await, Some(GrantStep::Seen));
    let refused = node.add(parameters(&["blue"], "c1")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("has not confirmed the block"), "{refused}");
}

#[tokio::test]
async fn the_watch_alone_confirms_nothing() {
    let mut agent = Following::start(None).await;
    let lines = stream(agent.list(4).await);
    lines.send(line("MODIFIED", &object(5, &blocks()))).unwrap();
    agent.until(|told| told.spec.generation == Some(5)).await;
    let refused = agent.node.add(parameters(&["blue"], "c1")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("has not confirmed the block"), "{refused}");
    assert_eq!(step(&agent.node.allocator).await, Some(GrantStep::Seen));
}

#[tokio::test]
async fn a_conflict_is_no_failure_and_the_next_report_names_the_version_of_the_watch() {
    let node = unconfirmed().await;
    let mut reporting = Reporting::start(node.allocator.clone());
    let call = reporting.server.call().await;
    assert_eq!(reported(&call).0, "3");
    call.fail(409, "Conflict");
    reporting.told.send_replace(Some(in_force("7")));
    let call = reporting.server.call().await;
    assert_eq!(reported(&call).0, "7");
    assert_eq!(reporting.metrics.report_failures.get(), 0);
    // The object has another uid: that counts.
    call.fail(422, "Invalid");
    let call = reporting.server.call().await;
    assert_eq!((reported(&call).0, reporting.metrics.report_failures.get()), (&json!("7"), 1));
    call.answer(200, &object(3, &blocks()));
    assert_eq!(node.address(parameters(&["blue"], "c1")).await, "192.168.0.2/16");
}

#[tokio::test]
async fn a_full_disk_confirms_nothing_and_the_report_is_written_again() {
    let (journal, store) = controlled();
    let metrics = Metrics::registered().0;
    let (allocator, _ended) = Allocator::start(Ledger::new(0), Box::new(journal), system_clock(), metrics).unwrap();
    store.answer(Verdict::Done);
    assign(&allocator).await;
    store.commit().await;
    store.set_full(true);
    let mut reporting = Reporting::start(allocator.clone());
    reporting.server.call().await.answer(200, &object(3, &blocks()));
    let again = reporting.server.call().await;
    assert_eq!((step(&allocator).await, reporting.metrics.report_failures.get()), (Some(GrantStep::Seen), 1));
    store.set_full(false);
    store.answer(Verdict::Done);
    again.answer(200, &object(3, &blocks()));
    store.commit().await;
    assert_eq!(step(&allocator).await, Some(GrantStep::Confirmed));
}
