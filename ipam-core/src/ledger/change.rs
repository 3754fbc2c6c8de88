//! Reservations, and the changes that a journal records.

use std::net::IpAddr;

use super::owner::{Attachment, Owner};
use crate::{GrantId, PoolKey};

/// One address and its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The pool that the address was allocated from.
    pub pool: PoolKey,
    /// The owner of the address.
    pub owner: Owner,
    /// The address.
    pub addr: IpAddr,
    /// What the address is used for.
    pub attachment: Attachment,
    /// When it was made, in Unix seconds.
    pub created: i64,
}

/// One step of a ledger's history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// An address is in use from now on.
    Reserve {
        /// The owner, the pool and the address.
        reservation: Reservation,
        /// Whether round robin found the address, and continues after it.
        moves_cursor: bool,
    },
    /// The address of the owner in the pool is freed.
    Release {
        /// The pool.
        pool: PoolKey,
        /// The owner.
        owner: Owner,
        /// When, in Unix seconds: the start of the cooldown.
        at: i64,
    },
    /// The last address found by round robin. For snapshots and for records of an older store.
    Cursor {
        /// The pool.
        pool: PoolKey,
        /// The address; it need not be in use.
        addr: IpAddr,
    },
    /// An address that was freed and may still be in its cooldown. For snapshots.
    Cooling {
        /// The pool.
        pool: PoolKey,
        /// The address.
        addr: IpAddr,
        /// When it was freed, in Unix seconds.
        since: i64,
    },
    /// An older store records the address for another owner than this ledger, or another address of the owner. Both may be in use.
    Contested {
        /// The owner and the address of the older store.
        reservation: Reservation,
    },
    /// The reservations of an older store are recorded.
    Imported {
        /// The path of the store.
        source: String,
        /// SHA-256 of its content.
        digest: [u8; 32],
    },
    /// A grant takes a step.
    Grant {
        /// The pool of its block.
        pool: PoolKey,
        /// The grant.
        id: GrantId,
        /// The step.
        step: GrantStep,
    },
    /// The grants up to this ID have ended, and are not recorded one by one any more.
    GrantsEndedTo {
        /// The greatest of their IDs.
        id: GrantId,
    },
    /// The grants of this spec are recorded.
    Spec {
        /// Its version.
        version: SpecVersion,
    },
    /// What the owner of the ledger records with it. The ledger does not read it. It replaces the note before.
    Note {
        /// The text.
        text: String,
    },
}

/// A step of a grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GrantStep {
    /// A spec of the API server has it. It waits for its confirmation.
    Seen,
    /// The API server's answer to a report about it still had it.
    Confirmed,
    /// It was confirmed, no address was in use, and the node needs another confirmation before it allocates again.
    Idle,
    /// The node does not allocate from it any more.
    Ended,
}

/// The version of an IPAMNode's spec. Versions are in the order in which the operator writes them, until a restore of the API
/// server takes them back.
///
/// An object that is created again within the same second compares as earlier. Its first grants then end, and the operator makes others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpecVersion {
    /// `metadata.creationTimestamp` of the object, in Unix seconds.
    pub created: i64,
    /// `metadata.generation`.
    pub generation: i64,
}
