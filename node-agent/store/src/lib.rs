//! What makes the ledger durable.
//!
//! Decides when a change is safe and what is read back after a crash. Of a change it knows only whether an address is in use by it: the
//! file always has room to free all of them. It never
//! retries a failed write or sync: after one, nobody can say what the disk holds, so the store refuses all further work
//! and the process is to end.

mod codec;
mod damaged;
mod disk;
pub mod fake;
mod journal;
mod record;

use std::io;

use ipam_core::ledger::Change;
use serde::{Deserialize, Serialize};

pub use damaged::{Damaged, ReadOnly};
pub use disk::{Directory, DiskFile, RealDirectory};
pub use journal::{Contents, Journal, Opened, Read, contents};

/// Why the store does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No room on the disk. Nothing was written and nothing is lost; the same call may succeed later.
    #[error("no space left for the journal in {place}: free some space, nothing was changed")]
    Full {
        /// The store's directory.
        place: String,
    },
    /// The disk can only be read. Nothing was written and nothing is lost; the same call may succeed later.
    #[error("the disk of the journal {place} is read-only: mount it writable, nothing was changed")]
    ReadOnly {
        /// The store's directory.
        place: String,
    },
    /// Another process has the store open.
    #[error(
        "the store {place} is in use by another process; two agents on one store would give addresses twice, stop the other one"
    )]
    Locked {
        /// The store's directory.
        place: String,
    },
    /// The journal is damaged in a place that was durable once.
    #[error(
        "the journal {file} is damaged: {what}. Addresses in use may be recorded behind the damage, so the agent refuses ADD; DEL and \
         CHECK work for what is before it. Do not put an older copy in its place: it lacks later addresses, which would be assigned twice. \
         Drain this node. Once no pod on it uses these pools, move the file away and restart the agent. \
         The condition StoreWentBack of this node's IPAMNode then has the command that frees what was reported"
    )]
    Damaged {
        /// The journal's path.
        file: String,
        /// What was found, and where.
        what: String,
    },
    /// A write or sync failed, or one failed before. What the disk holds is unknown; the process must end.
    #[error("cannot {doing} {place}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The directory or file.
        place: String,
        /// What the system said.
        source: io::Error,
    },
}

impl StoreError {
    /// Whether the process may go on with this store.
    pub const fn is_harmless(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::ReadOnly { .. })
    }
}

/// How far a history has come: it only rises, by epoch, then by sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct Position {
    /// How many times the journal was replaced by a new file, by an opening or a compaction.
    pub epoch: u64,
    /// Commits since.
    pub sequence: u64,
}

/// What a record is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// It only frees addresses.
    Release,
    /// Anything else. So many bytes stay for later releases.
    Other {
        /// The bytes.
        spare: usize,
    },
}

/// A durable history of changes. One owner; no call returns before what it says is durable.
pub trait Store: Send {
    /// Makes sure that a record with `bytes` of payload fits.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Damaged`] change nothing.
    fn make_room(&mut self, bytes: usize, room: Room) -> Result<(), StoreError>;

    /// Makes all of `changes` durable, or none of them. On an error the store must not be used any more.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Where the last durable record stands.
    fn position(&self) -> Position;

    /// Whether nothing can be written before [`Store::compact`] succeeds. Releases are taken meanwhile, and are not durable.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Bytes of the records, as far as the store knows.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether the history has outgrown the state, so that [`Store::compact`] is worth its cost.
    fn wants_compaction(&self) -> bool;

    /// Replaces the history by `snapshot`, which must be equal to it, with room to free all addresses in use. [`StoreError::Full`] changes
    /// nothing.
    fn compact(&mut self, snapshot: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError>;
}

/// Room for the release of one address: more than its record takes when each has a record of its own and names are of usual length.
const RELEASE_BYTES: usize = 256;
/// Releases that have room on a full disk, at most.
const MOST_RELEASES: usize = 4096;

/// Bytes for the releases of so many addresses.
pub fn room_for_releases(addresses: usize) -> usize {
    addresses.min(MOST_RELEASES) * RELEASE_BYTES
}

/// Bytes that `changes` take in the payload of a record.
pub fn payload_bytes(changes: &[Change]) -> usize {
    codec::bytes(changes)
}
