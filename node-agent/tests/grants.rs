//! Steps of grants: what is durable when, with crashes and a full disk between them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::sync::Arc;

use common::store::{Control, Verdict, controlled};
use common::{blue, confirmed_ledger, grants};
use ipam_core::ledger::{Attachment, Change, GrantStep, Ledger, Owner, Pick, Refusal, Request, SpecVersion};
use ipam_core::node_pool::Pause;
use ipam_core::{PoolKey, PoolKind};
use ipam_crds::{BlockState, NodeBlock};
use ipam_node_agent::allocator::{Allocator, Ended, Failure, Source};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_store::fake::FakeDisk;
use ipam_node_store::{Opened, Store};

fn start(ledger: Ledger, store: Box<dyn Store>) -> (Allocator, Ended) {
    Allocator::start(ledger, store, Arc::new(|| 1_700_000_000), Metrics::registered().0).unwrap()
}

/// An allocator with what the journal on `disk` has.
fn restart(disk: &FakeDisk) -> (Allocator, Ended) {
    let mut ledger = Ledger::new(0);
    let opened = Opened::read(disk.clone(), |change| ledger.apply(change)).unwrap();
    let journal = opened.begin(ledger.snapshot()).unwrap();
    start(ledger, Box::new(journal))
}

fn controlled_allocator(blocks: &[NodeBlock]) -> (Allocator, Ended, Control) {
    let (journal, store) = controlled();
    let (allocator, ended) = start(confirmed_ledger(blocks), Box::new(journal));
    (allocator, ended, store)
}

async fn configure(allocator: &Allocator, generation: i64, blocks: &[NodeBlock]) {
    let source = Source::ApiServer(Some(SpecVersion { created: 0, generation }));
    allocator.configure(node_pools(blocks).0, source, None).await.unwrap();
}

async fn add(allocator: &Allocator) -> Result<(), Failure> {
    let attachment = Attachment { pod_name: "p".into(), pod_namespace: "n".into(), ..Attachment::default() };
    let (pools, owner) = (vec![PoolKey::new(PoolKind::IpPool, "blue")], Owner::new("c1", "net1"));
    let request = Request { pools, owner, attachment, requested: Vec::new(), pick: Pick::Next };
    allocator.allocate(request).await.map(drop)
}

fn is_unconfirmed(answer: &Result<(), Failure>) -> bool {
    matches!(answer, Err(Failure::Refused(Refusal::Paused { pause: Pause::Unconfirmed, .. })))
}

/// The step that a report shows for the grant of [`blue`].
async fn step(allocator: &Allocator) -> Option<GrantStep> {
    allocator.holdings().await.unwrap().pools[0].grant.map(|grant| grant.step)
}

fn steps(changes: &[Change]) -> Vec<GrantStep> {
    let step = |change: &Change| if let Change::Grant { step, .. } = change { Some(*step) } else { None };
    changes.iter().filter_map(step).collect()
}

fn releasing() -> NodeBlock {
    NodeBlock { state: BlockState::Releasing, ..blue() }
}

#[tokio::test]
async fn no_address_leaves_before_the_confirmation_is_durable() {
    let (allocator, _ended, store) = controlled_allocator(&[]);
    store.answer(Verdict::Done);
    configure(&allocator, 1, &[blue()]).await;
    assert_eq!(steps(&store.commit().await), [GrantStep::Seen]);
    assert!(is_unconfirmed(&add(&allocator).await));
    let (asked, first) = (allocator.clone(), grants(&[blue()]));
    let confirmed = tokio::spawn(async move { asked.confirm(first).await });
    assert_eq!(steps(&store.commit().await), [GrantStep::Confirmed]);
    let asked = allocator.clone();
    let added = tokio::spawn(async move { add(&asked).await });
    tokio::task::yield_now().await;
    assert!(!confirmed.is_finished() && !added.is_finished());
    store.answer(Verdict::Done);
    assert_eq!(confirmed.await.unwrap().unwrap(), 1);
    assert!(matches!(store.commit().await[..], [Change::Reserve { .. }]));
    store.answer(Verdict::Done);
    added.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_report_says_idle_only_once_that_is_durable_and_a_request_asks_for_a_confirmation() {
    let (allocator, _ended, store) = controlled_allocator(&[blue()]);
    store.answer(Verdict::Done);
    configure(&allocator, 1, &[blue()]).await;
    assert_eq!(steps(&store.commit().await), []);
    let (asked, idle) = (allocator.clone(), grants(&[blue()]));
    let rested = tokio::spawn(async move { asked.rest(idle).await });
    assert_eq!(steps(&store.commit().await), [GrantStep::Idle]);
    let asked = allocator.clone();
    let reported = tokio::spawn(async move { step(&asked).await });
    tokio::task::yield_now().await;
    assert!(!rested.is_finished() && !reported.is_finished());
    store.answer(Verdict::Done);
    assert_eq!((rested.await.unwrap().unwrap(), reported.await.unwrap()), (1, Some(GrantStep::Idle)));
    let asked = allocator.clone();
    let added = tokio::spawn(async move { add(&asked).await });
    assert_eq!(steps(&store.commit().await), [GrantStep::Seen]);
    store.answer(Verdict::Done);
    assert!(is_unconfirmed(&added.await.unwrap()));
    assert_eq!(step(&allocator).await, Some(GrantStep::Seen));
}

#[tokio::test]
async fn a_report_says_ended_only_once_the_end_is_durable() {
    let (allocator, _ended, store) = controlled_allocator(&[blue()]);
    let asked = allocator.clone();
    let configured = tokio::spawn(async move { configure(&asked, 1, &[releasing()]).await });
    assert_eq!(steps(&store.commit().await), [GrantStep::Ended]);
    let asked = allocator.clone();
    let reported = tokio::spawn(async move { step(&asked).await });
    tokio::task::yield_now().await;
    assert!(!configured.is_finished() && !reported.is_finished());
    store.answer(Verdict::Done);
    configured.await.unwrap();
    assert_eq!(reported.await.unwrap(), Some(GrantStep::Ended));
}

#[tokio::test]
async fn a_crash_between_the_end_and_its_report_keeps_the_end() {
    let disk = FakeDisk::default();
    let (allocator, _ended) = restart(&disk);
    configure(&allocator, 1, &[blue()]).await;
    allocator.confirm(grants(&[blue()])).await.unwrap();
    configure(&allocator, 2, &[releasing()]).await;
    // Nothing was reported. Of what was not synced the power cut keeps nothing.
    let (allocator, _ended) = restart(&disk.after_cut(&mut || false));
    allocator.configure(node_pools(&[blue()]).0, Source::Copy, None).await.unwrap();
    assert!(is_unconfirmed(&add(&allocator).await), "the copy on disk has the grant as Active");
    configure(&allocator, 3, &[blue()]).await;
    allocator.confirm(grants(&[blue()])).await.unwrap();
    assert!(is_unconfirmed(&add(&allocator).await), "so has the API server");
    assert_eq!(step(&allocator).await, Some(GrantStep::Ended));
}

#[tokio::test]
async fn a_crash_after_the_confirmation_keeps_it_for_a_start_without_the_api_server() {
    let disk = FakeDisk::default();
    let (allocator, _ended) = restart(&disk);
    configure(&allocator, 1, &[blue()]).await;
    allocator.confirm(grants(&[blue()])).await.unwrap();
    let (allocator, _ended) = restart(&disk.after_cut(&mut || false));
    allocator.configure(node_pools(&[blue()]).0, Source::Copy, None).await.unwrap();
    add(&allocator).await.unwrap();
}

#[tokio::test]
async fn a_grant_that_a_full_disk_keeps_from_the_journal_is_seen_with_the_next_request() {
    let (allocator, _ended, store) = controlled_allocator(&[]);
    store.set_full(true);
    configure(&allocator, 1, &[blue()]).await;
    assert_eq!(step(&allocator).await, None, "the report does not have the grant");
    assert!(matches!(add(&allocator).await, Err(Failure::Store { reason: "DiskFull", .. })));
    store.set_full(false);
    store.answer(Verdict::Done);
    // A request that changes nothing by itself.
    assert!(is_unconfirmed(&add(&allocator).await));
    assert_eq!(steps(&store.commit().await), [GrantStep::Seen]);
    assert_eq!(step(&allocator).await, Some(GrantStep::Seen));
}

#[tokio::test]
async fn a_full_disk_keeps_an_end_from_the_journal_and_from_the_report() {
    let (allocator, _ended, store) = controlled_allocator(&[blue()]);
    store.set_full(true);
    configure(&allocator, 1, &[releasing()]).await;
    assert_eq!(step(&allocator).await, Some(GrantStep::Confirmed));
    store.set_full(false);
    store.answer(Verdict::Done);
    assert_eq!(step(&allocator).await, Some(GrantStep::Ended));
    assert_eq!(steps(&store.commit().await), [GrantStep::Ended]);
}
