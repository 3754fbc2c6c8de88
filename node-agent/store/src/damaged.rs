//! A journal that is damaged: what is before the damage is served, and nothing is written.
//!
//! Records behind the damage may have addresses in use, so nothing is allocated. A release is not durable: after a restart the address is in
//! use again, until its pod is found gone. That is safe, and lets pods be removed.

use ipam_core::ledger::Change;

use super::{Position, Room, Store, StoreError};

/// What could be read of a damaged journal. It keeps the lock of the folder.
#[derive(Debug)]
pub struct Damaged<D> {
    #[expect(dead_code, reason = "it has the lock of the folder")]
    directory: D,
    file: String,
    what: String,
    position: Position,
}

impl<D> Damaged<D> {
    pub(super) const fn new(directory: D, file: String, what: String, position: Position) -> Self {
        Self { directory, file, what, position }
    }

    /// How far the history before the damage has come.
    pub const fn position(&self) -> Position {
        self.position
    }

    /// What is damaged, and what to do.
    pub fn error(&self) -> StoreError {
        StoreError::Damaged { file: self.file.clone(), what: self.what.clone() }
    }

    /// The store of an agent that serves what was read.
    pub fn into_store(self) -> ReadOnly<D> {
        ReadOnly(self)
    }
}

/// A store that takes releases, and forgets them.
#[derive(Debug)]
pub struct ReadOnly<D>(Damaged<D>);

impl<D: Send> Store for ReadOnly<D> {
    fn make_room(&mut self, _bytes: usize, room: Room) -> Result<(), StoreError> {
        if room == Room::Release { Ok(()) } else { Err(self.0.error()) }
    }

    fn commit(&mut self, _changes: &[Change]) -> Result<(), StoreError> {
        Ok(())
    }

    fn position(&self) -> Position {
        self.0.position
    }

    fn wants_compaction(&self) -> bool {
        false
    }

    fn compact(&mut self, _snapshot: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        Err(self.0.error())
    }
}
