//! The disk of an agent in this process: it can be full, and it tells what the journal has noted last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ipam_core::ledger::Change;
use ipam_node_agent::note::Noted;
use ipam_node_store::{Position, Room, Store, StoreError};

use super::subject;

/// The test's end of it.
#[derive(Clone)]
pub(crate) struct Disk {
    is_full: Arc<AtomicBool>,
    note: Arc<Mutex<Noted>>,
}

impl Disk {
    /// With space, and a journal that has noted this.
    pub(super) fn new(noted: &Noted) -> Self {
        Self { is_full: Arc::default(), note: Arc::new(Mutex::new(noted.clone())) }
    }

    /// The store `inner` on this disk.
    pub(super) fn with(&self, inner: Box<dyn Store>) -> Box<dyn Store> {
        Box::new(OnDisk { disk: self.clone(), inner })
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    /// What the journal has noted last.
    pub(crate) fn noted(&self) -> Noted {
        self.note.lock().unwrap().clone()
    }
}

struct OnDisk {
    disk: Disk,
    inner: Box<dyn Store>,
}

impl OnDisk {
    fn has_noted(&self, changes: &[Change]) {
        let text = changes.iter().rev().find_map(|change| match change {
            Change::Note { text } => Some(text),
            _ => None,
        });
        if let Some(text) = text {
            *self.disk.note.lock().unwrap() = subject().read(text).unwrap();
        }
    }
}

impl Store for OnDisk {
    fn make_room(&mut self, bytes: usize, room: Room) -> Result<(), StoreError> {
        if self.disk.is_full.load(Ordering::SeqCst) {
            return Err(StoreError::Full { place: "test".into() });
        }
        self.inner.make_room(bytes, room)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.inner.commit(changes)?;
        self.has_noted(changes);
        Ok(())
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn wants_compaction(&self) -> bool {
        self.inner.wants_compaction()
    }

    fn compact(&mut self, snapshot: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        let snapshot: Vec<_> = snapshot.collect();
        self.inner.compact(&mut snapshot.iter().cloned())?;
        self.has_noted(&snapshot);
        Ok(())
    }
}
