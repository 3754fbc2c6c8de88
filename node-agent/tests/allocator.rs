//! When the allocator answers, what it makes durable together, and how it ends; on a store that the test controls.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::sync::Arc;
use std::task::Poll;

use common::store::{Control, Verdict, controlled};
use common::{assign, blue, confirmed_ledger, green};
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Pick, Request};
use ipam_core::{PoolKey, PoolKind};
use ipam_crds::NodeBlock;
use ipam_node_agent::allocator::{Allocator, Ended, Failure, Source, Worker};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_store::fake::FakeDisk;
use ipam_node_store::{Opened, Read, RealDirectory};

struct Rig {
    allocator: Allocator,
    ended: Ended,
    store: Control,
}

async fn rig() -> Rig {
    let (controlled, store) = controlled();
    let (metrics, _) = Metrics::registered();
    let clock = Arc::new(|| 1_700_000_000);
    let blocks = [NodeBlock { end_ip: "192.168.9.9".into(), ..blue() }, green()];
    let ledger = confirmed_ledger(&blocks);
    let (allocator, ended) = Allocator::start(ledger, Box::new(controlled), clock, metrics).unwrap();
    assign(&allocator, &blocks).await;
    Rig { allocator, ended, store }
}

fn request(container: &str) -> Request {
    let attachment = Attachment { pod_name: "p".into(), pod_namespace: "n".into(), ..Attachment::default() };
    let pools = vec![PoolKey::new(PoolKind::IpPool, "blue")];
    Request { pools, owner: Owner::new(container, "net1"), attachment, requested: Vec::new(), pick: Pick::Next }
}

fn add(allocator: &Allocator, container: &str) -> tokio::task::JoinHandle<Result<(), Failure>> {
    let (allocator, request) = (allocator.clone(), request(container));
    tokio::spawn(async move { allocator.allocate(request).await.map(drop) })
}

#[tokio::test]
async fn no_answer_leaves_before_its_record_is_durable_not_even_to_a_repeat() {
    let rig = rig().await;
    let first = add(&rig.allocator, "c1");
    rig.store.commit().await;
    let repeat = add(&rig.allocator, "c1");
    tokio::task::yield_now().await;
    assert!(!first.is_finished() && !repeat.is_finished());
    rig.store.answer(Verdict::Done);
    first.await.unwrap().unwrap();
    repeat.await.unwrap().unwrap();
    assert!(!rig.store.has_commit(), "the repeat needs no record of its own");
}

#[tokio::test]
async fn requests_that_come_during_a_commit_are_made_durable_together() {
    let rig = rig().await;
    let first = add(&rig.allocator, "first");
    rig.store.commit().await;
    let waiting: Vec<_> = (0..20).map(|n| add(&rig.allocator, &format!("c{n}"))).collect();
    // Every request is in the queue once its task has run.
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
    rig.store.answer(Verdict::Done);
    let together = rig.store.commit().await;
    assert_eq!(together.len(), 20);
    rig.store.answer(Verdict::Done);
    first.await.unwrap().unwrap();
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_caller_who_is_gone_before_the_decision_changes_nothing() {
    let rig = rig().await;
    let first = add(&rig.allocator, "first");
    rig.store.commit().await;
    let gone = add(&rig.allocator, "gone");
    tokio::task::yield_now().await;
    gone.abort();
    drop(gone.await);
    let last = add(&rig.allocator, "last");
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    rig.store.answer(Verdict::Done);
    let changes = rig.store.commit().await;
    rig.store.answer(Verdict::Done);
    let [Change::Reserve { reservation, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(reservation.owner.container_id, "last");
    first.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test]
async fn after_a_failed_write_nothing_is_acknowledged_and_the_allocator_ends_with_the_error() {
    let rig = rig().await;
    let first = add(&rig.allocator, "c1");
    rig.store.commit().await;
    let second = add(&rig.allocator, "c2");
    tokio::task::yield_now().await;
    rig.store.answer(Verdict::Broken);
    assert!(matches!(first.await.unwrap(), Err(Failure::Stopped)));
    assert!(matches!(second.await.unwrap(), Err(Failure::Stopped)));
    let error = rig.ended.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("bad sector"), "{error}");
    assert!(matches!(rig.allocator.allocate(request("c3")).await, Err(Failure::Stopped)));
}

#[tokio::test]
async fn a_full_disk_refuses_before_the_decision_and_the_agent_goes_on() {
    let rig = rig().await;
    rig.store.set_full(true);
    let refused = rig.allocator.allocate(request("c1")).await;
    assert!(
        matches!(&refused, Err(Failure::Store { reason: "DiskFull", text }) if text.contains("no space left")),
        "{refused:?}"
    );
    assert!(rig.allocator.reservations().await.unwrap().is_empty());
    rig.store.set_full(false);
    rig.store.answer(Verdict::Done);
    rig.allocator.allocate(request("c1")).await.unwrap();
}

/// What a question of one command, or of two in a row, is answered with once the worker has played it.
async fn played<T>(worker: &mut Worker, question: impl Future<Output = T>) -> T {
    // A test asks more often than tokio lets a task go on without a pause.
    let mut question = std::pin::pin!(tokio::task::unconstrained(question));
    assert!(futures::poll!(question.as_mut()).is_pending(), "nothing is decided before the worker plays");
    for _ in 0..2 {
        worker.play().unwrap();
        if let Poll::Ready(answer) = futures::poll!(question.as_mut()) {
            return answer;
        }
    }
    panic!("the worker has played twice and the question has no answer");
}

#[tokio::test]
async fn an_inline_worker_answers_when_it_is_played() {
    let disk = FakeDisk::default();
    let journal = Opened::read(disk.clone(), |_| {}).unwrap().begin([]).unwrap();
    let (metrics, _) = Metrics::registered();
    let (allocator, mut worker) = Allocator::inline(Ledger::new(0), Box::new(journal), Arc::new(|| 0), metrics);
    played(&mut worker, assign(&allocator, &[blue()])).await;
    played(&mut worker, allocator.allocate(request("c1"))).await.unwrap();
    let mut recorded = Vec::new();
    Opened::read(disk.after_cut(&mut || false), |change| recorded.push(change.clone())).unwrap();
    assert!(matches!(recorded[..], [.., Change::Reserve { .. }]), "the answer came after its record: {recorded:?}");
    drop(worker);
    assert!(matches!(allocator.allocate(request("c2")).await, Err(Failure::Stopped)));
}

/// An agent on a small disk of its own, with a wide block.
struct Small {
    disk: FakeDisk,
    allocator: Allocator,
    worker: Worker,
    metrics: Arc<Metrics>,
}

impl Small {
    async fn new() -> Self {
        let disk = FakeDisk::default();
        let journal = Opened::read(disk.clone(), |_| {}).unwrap().with_chunk(512).begin([]).unwrap();
        let (metrics, _) = Metrics::registered();
        let clock = Arc::new(|| 0);
        let (allocator, mut worker) = Allocator::inline(Ledger::new(0), Box::new(journal), clock, Arc::clone(&metrics));
        let wide = NodeBlock { end_ip: "192.168.9.9".into(), ..blue() };
        played(&mut worker, assign(&allocator, &[wide])).await;
        Self { disk, allocator, worker, metrics }
    }

    async fn add(&mut self, number: u32) -> Result<(), Failure> {
        let (allocator, request) = (self.allocator.clone(), request(&format!("c{number}")));
        played(&mut self.worker, allocator.allocate(request)).await.map(drop)
    }

    async fn free(&mut self, container: impl Into<String>) -> usize {
        let (allocator, owner) = (self.allocator.clone(), Owner::new(container.into(), "net1"));
        let blue = vec![PoolKey::new(PoolKind::IpPool, "blue")];
        played(&mut self.worker, allocator.release(blue, owner)).await.unwrap()
    }
}

#[tokio::test]
async fn a_full_disk_refuses_only_what_needs_a_record() {
    let mut small = Small::new().await;
    small.disk.fill();
    let mut served = 0;
    let full = loop {
        match small.add(served).await {
            Ok(()) => served += 1,
            Err(failure) => break failure,
        }
    };
    assert!(matches!(full, Failure::Store { reason: "DiskFull", .. }) && served > 0, "{served}: {full}");
    small.add(0).await.unwrap();
    assert_eq!(small.free("never-was").await, 0);
}

#[tokio::test]
async fn every_address_in_use_can_be_freed_on_a_full_disk_and_nothing_else_takes_that_room() {
    let mut small = Small::new().await;
    let mut held = 0;
    while held < 300 {
        small.add(held).await.unwrap();
        held += 1;
    }
    small.disk.fill();
    while small.add(held).await.is_ok() {
        held += 1;
    }
    assert!(small.allocator.full().borrow().is_some(), "the agent knows that the disk is full");
    small.add(0).await.unwrap();
    for number in 0..held {
        assert_eq!(small.free(format!("c{number}")).await, 1, "release {number} of {held}");
        assert_eq!(small.free(format!("c{number}")).await, 0);
        assert_eq!(small.free("never-was").await, 0);
    }
    // Without a request, the agent finds the space.
    small.disk.set_room(None);
    let allocator = small.allocator.clone();
    played(&mut small.worker, allocator.look_for_room()).await.unwrap();
    assert_eq!(*small.allocator.full().borrow(), None);
    small.add(0).await.unwrap();
}

#[tokio::test]
async fn a_journal_that_takes_records_again_has_the_last_note() {
    let disk = FakeDisk::default();
    disk.set_read_only(true);
    let journal = Opened::read(disk.clone(), |_| {}).unwrap().begin([]).unwrap();
    let mut ledger = Ledger::new(0);
    ledger.apply(&Change::Note { text: "earlier".to_owned() });
    let (metrics, _) = Metrics::registered();
    let (allocator, mut worker) = Allocator::inline(ledger, Box::new(journal), Arc::new(|| 0), metrics);
    let configured = allocator.configure(Vec::new(), Source::ApiServer(None), Some("last".to_owned()));
    assert!(!played(&mut worker, configured).await.unwrap(), "the disk takes nothing");
    disk.set_read_only(false);
    played(&mut worker, allocator.look_for_room()).await.unwrap();
    // The note is there before the watch records it again: the agent may end in between.
    let mut found = Ledger::new(0);
    Opened::read(disk, |change| found.apply(change)).unwrap();
    assert_eq!(found.note(), Some("last"));
}

#[tokio::test]
async fn a_damaged_journal_records_nothing_and_serves_releases_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.d");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("journal"), "no journal").unwrap();
    let read = Opened::read_or_damaged(RealDirectory::lock(&path).unwrap(), |_| {}).unwrap();
    let Read::Damaged(damaged) = read else { panic!("it is read") };
    let (metrics, _) = Metrics::registered();
    let blocks = [blue()];
    let store = Box::new(damaged.into_store());
    let (ledger, clock) = (confirmed_ledger(&blocks), Arc::new(|| 0));
    let (allocator, _ended) = Allocator::start(ledger, store, clock, Arc::clone(&metrics)).unwrap();
    let (pools, _) = node_pools(&blocks);
    let note = Some("note".to_owned());
    assert!(!allocator.configure(pools, Source::ApiServer(None), note).await.unwrap(), "the note is not recorded");
    let refused = allocator.allocate(request("c1")).await.unwrap_err();
    assert!(matches!(refused, Failure::Store { reason: "JournalDamaged", .. }), "{refused}");
    let pool = PoolKey::new(PoolKind::IpPool, "blue");
    assert_eq!(allocator.release(vec![pool], Owner::new("c1", "net1")).await.unwrap(), 0);
    assert_eq!(metrics.store_full.get(), 0, "the disk has room");
}

#[tokio::test]
async fn a_compaction_leaves_the_room_to_free_every_address() {
    let mut small = Small::new().await;
    for number in 0..300 {
        small.add(number).await.unwrap();
    }
    // Until a release leads to a compaction, after which nothing else has made room.
    let mut compactions = small.metrics.compactions.get();
    while small.free("c0").await == 1 && small.metrics.compactions.get() == compactions {
        small.add(0).await.unwrap();
        compactions = small.metrics.compactions.get();
    }
    small.disk.fill();
    for number in 1..300 {
        assert_eq!(small.free(format!("c{number}")).await, 1, "release {number}");
    }
}
