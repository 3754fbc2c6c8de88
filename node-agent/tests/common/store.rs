//! A store whose every commit is told to the test and waits for its verdict.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_core::ledger::Change;
use ipam_node_store::{Position, Room, Store, StoreError};

/// What the test tells a commit to do.
pub(crate) enum Verdict {
    Done,
    Broken,
}

/// The store, for the allocator.
pub(crate) struct Controlled {
    commits: Sender<Vec<Change>>,
    verdicts: Receiver<Verdict>,
    full: Arc<AtomicBool>,
}

/// The test's end of it.
pub(crate) struct Control {
    commits: Arc<Mutex<Receiver<Vec<Change>>>>,
    verdicts: Sender<Verdict>,
    full: Arc<AtomicBool>,
}

pub(crate) fn controlled() -> (Controlled, Control) {
    let ((told, commits), (verdicts, heard)) = (channel(), channel());
    let full = Arc::new(AtomicBool::new(false));
    let store = Controlled { commits: told, verdicts: heard, full: Arc::clone(&full) };
    (store, Control { commits: Arc::new(Mutex::new(commits)), verdicts, full })
}

impl Control {
    /// Waits until the store is asked to commit, and says what. The wait is not on the test's own thread.
    pub(crate) async fn commit(&self) -> Vec<Change> {
        let commits = Arc::clone(&self.commits);
        let wait = move || commits.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
        tokio::task::spawn_blocking(wait).await.unwrap()
    }

    /// Whether a commit was asked for that the test has not taken yet.
    pub(crate) fn has_commit(&self) -> bool {
        self.commits.lock().unwrap().try_recv().is_ok()
    }

    /// Answers the commit that waits, or the next one.
    pub(crate) fn answer(&self, verdict: Verdict) {
        self.verdicts.send(verdict).unwrap();
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }
}

impl Store for Controlled {
    fn make_room(&mut self, _bytes: usize, _room: Room) -> Result<(), StoreError> {
        if self.full.load(Ordering::SeqCst) { Err(StoreError::Full { place: "test".into() }) } else { Ok(()) }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.commits.send(changes.to_vec()).unwrap();
        match self.verdicts.recv_timeout(Duration::from_mins(1)).unwrap() {
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

    fn compact(&mut self, _snapshot: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        Ok(())
    }
}
