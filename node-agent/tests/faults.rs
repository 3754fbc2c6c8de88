//! What the caller of the socket sees when something goes wrong that is not in its request (behaviour.md §5).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::sync::Arc;

use common::store::{Control, Verdict, controlled};
use common::{assign, blue, confirmed_ledger, deadline, parameters};
use ipam_node_agent::allocator::{Allocator, Ended, system_clock};
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::rpc::Rpc;
use ipam_node_agent::socket::Listener;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use tokio_util::sync::CancellationToken;
use tonic::Code;

/// An agent whose store the test controls.
struct Rig {
    address: AgentAddress,
    allocator: Allocator,
    store: Control,
    _ended: Ended,
    _directory: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = AgentAddress::Unix(directory.path().join("daemon.sock"));
        let (controlled, store) = controlled();
        let (metrics, _) = Metrics::registered();
        let (allocator, ended) =
            Allocator::start(confirmed_ledger(&[blue()]), Box::new(controlled), system_clock(), Arc::clone(&metrics))
                .unwrap();
        assign(&allocator, &[blue()]).await;
        let readiness = Readiness::default();
        readiness.set_serving(true);
        readiness.blocks_are_known();
        let listener = Listener::bind(&address).unwrap();
        let rpc = Rpc::new(allocator.clone(), readiness, metrics);
        tokio::spawn(listener.serve(rpc, CancellationToken::new()));
        Self { address, allocator, store, _ended: ended, _directory: directory }
    }

    async fn client(&self) -> AgentClient {
        AgentClient::connect(&self.address, deadline()).await.unwrap()
    }
}

#[tokio::test]
async fn a_full_disk_is_internal_and_says_so() {
    let rig = Rig::start().await;
    rig.store.set_full(true);
    let refused = rig.client().await.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    assert!(refused.message().contains("no space left"), "{refused}");
    assert!(rig.allocator.reservations().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_caller_who_hangs_up_before_the_change_gets_nothing_reserved() {
    let rig = Rig::start().await;
    let (busy, hasty) = (rig.client().await, rig.client().await);
    // The allocator is busy with another's record, so that no decision is made meanwhile.
    let first = tokio::spawn(async move { busy.allocate(parameters(&["blue"], "first"), deadline()).await });
    rig.store.commit().await;
    let call = hasty.clone();
    let hung_up = tokio::spawn(async move { call.allocate(parameters(&["blue"], "gone"), deadline()).await });
    // Frames of one connection keep their order: once a later call is answered the one before has been taken up, and
    // once one after the hang-up is answered that is known too. The probe needs no allocator.
    hasty.probe(deadline()).await.unwrap();
    hung_up.abort();
    assert!(hung_up.await.unwrap_err().is_cancelled());
    hasty.probe(deadline()).await.unwrap();
    // Once for the first caller's record, and once for the record that there must not be.
    rig.store.answer(Verdict::Done);
    rig.store.answer(Verdict::Done);
    first.await.unwrap().unwrap();
    let held = rig.allocator.reservations().await.unwrap();
    let holders: Vec<_> = held.iter().map(|one| one.owner.container_id.as_str()).collect();
    assert_eq!(holders, ["first"]);
}
