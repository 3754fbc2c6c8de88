//! When the allocator answers, what it makes durable together, and how it ends; on a store that the test controls.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{blue, green};
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Pick, Request};
use ipam_core::{PoolKey, PoolKind};
use ipam_crds::NodeBlock;
use ipam_node_agent::allocator::{Allocator, Ended, Failure};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::store::{Position, Store, StoreError};

/// What the test tells a commit to do.
enum Verdict {
    Done,
    Broken,
}

/// A store whose every commit is told to the test and waits for its verdict.
struct Controlled {
    commits: Sender<Vec<Change>>,
    verdicts: Receiver<Verdict>,
    full: Arc<Mutex<bool>>,
}

impl Store for Controlled {
    fn make_room(&mut self, _bytes: usize) -> Result<(), StoreError> {
        if *self.full.lock().unwrap() { Err(StoreError::Full { place: "test".into() }) } else { Ok(()) }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.commits.send(changes.to_vec()).unwrap();
        match self.verdicts.recv().unwrap() {
            Verdict::Done => Ok(()),
            Verdict::Broken => Err(StoreError::Io {
                doing: "write",
                place: "test".into(),
                source: std::io::Error::other("bad sector"),
            }),
        }
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn wants_compaction(&self) -> bool {
        false
    }

    fn compact(&mut self, _snapshot: &[Change]) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Rig {
    allocator: Allocator,
    ended: Ended,
    commits: Receiver<Vec<Change>>,
    verdicts: Sender<Verdict>,
    full: Arc<Mutex<bool>>,
}

async fn rig() -> Rig {
    let ((told, commits), (verdicts, heard)) = (channel(), channel());
    let full = Arc::new(Mutex::new(false));
    let store = Controlled { commits: told, verdicts: heard, full: Arc::clone(&full) };
    let (metrics, _) = Metrics::registered();
    let clock = Arc::new(|| 1_700_000_000);
    let (allocator, ended) = Allocator::start(Ledger::new(0), Box::new(store), clock, metrics).unwrap();
    let wide = NodeBlock { end_ip: "192.168.9.9".into(), ..blue() };
    allocator.configure(node_pools(&[wide, green()]).0).await.unwrap();
    Rig { allocator, ended, commits, verdicts, full }
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

/// Waits on the test's thread pool for the store to be asked.
async fn commit(commits: Receiver<Vec<Change>>) -> (Receiver<Vec<Change>>, Vec<Change>) {
    let waiting = move || {
        let changes = commits.recv_timeout(Duration::from_secs(20)).unwrap();
        (commits, changes)
    };
    tokio::task::spawn_blocking(waiting).await.unwrap()
}

#[tokio::test]
async fn no_answer_leaves_before_its_record_is_durable_not_even_to_a_repeat() {
    let rig = rig().await;
    let first = add(&rig.allocator, "c1");
    let (commits, _) = commit(rig.commits).await;
    let repeat = add(&rig.allocator, "c1");
    tokio::task::yield_now().await;
    assert!(!first.is_finished() && !repeat.is_finished());
    rig.verdicts.send(Verdict::Done).unwrap();
    first.await.unwrap().unwrap();
    repeat.await.unwrap().unwrap();
    assert!(commits.try_recv().is_err(), "the repeat needs no record of its own");
}

#[tokio::test]
async fn requests_that_come_during_a_commit_are_made_durable_together() {
    let rig = rig().await;
    let first = add(&rig.allocator, "first");
    let (commits, _) = commit(rig.commits).await;
    let waiting: Vec<_> = (0..20).map(|n| add(&rig.allocator, &format!("c{n}"))).collect();
    // Every request is in the queue once its task has run.
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
    rig.verdicts.send(Verdict::Done).unwrap();
    let (_commits, together) = commit(commits).await;
    assert_eq!(together.len(), 20);
    rig.verdicts.send(Verdict::Done).unwrap();
    first.await.unwrap().unwrap();
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_caller_who_is_gone_before_the_decision_changes_nothing() {
    let rig = rig().await;
    let first = add(&rig.allocator, "first");
    let (commits, _) = commit(rig.commits).await;
    let gone = add(&rig.allocator, "gone");
    tokio::task::yield_now().await;
    gone.abort();
    drop(gone.await);
    let last = add(&rig.allocator, "last");
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    rig.verdicts.send(Verdict::Done).unwrap();
    let (_commits, changes) = commit(commits).await;
    rig.verdicts.send(Verdict::Done).unwrap();
    let [Change::Reserve { reservation, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(reservation.owner.container_id, "last");
    first.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test]
async fn after_a_failed_write_nothing_is_acknowledged_and_the_allocator_ends_with_the_error() {
    let rig = rig().await;
    let first = add(&rig.allocator, "c1");
    let (_commits, _) = commit(rig.commits).await;
    let second = add(&rig.allocator, "c2");
    tokio::task::yield_now().await;
    rig.verdicts.send(Verdict::Broken).unwrap();
    assert!(matches!(first.await.unwrap(), Err(Failure::Stopped)));
    assert!(matches!(second.await.unwrap(), Err(Failure::Stopped)));
    let error = rig.ended.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("bad sector"), "{error}");
    assert!(matches!(rig.allocator.allocate(request("c3")).await, Err(Failure::Stopped)));
}

#[tokio::test]
async fn a_full_disk_refuses_before_the_decision_and_the_agent_goes_on() {
    let rig = rig().await;
    *rig.full.lock().unwrap() = true;
    let refused = rig.allocator.allocate(request("c1")).await;
    assert!(matches!(&refused, Err(Failure::Full(why)) if why.contains("no space left")), "{refused:?}");
    assert!(rig.allocator.reservations().await.unwrap().is_empty());
    *rig.full.lock().unwrap() = false;
    rig.verdicts.send(Verdict::Done).unwrap();
    rig.allocator.allocate(request("c1")).await.unwrap();
}
