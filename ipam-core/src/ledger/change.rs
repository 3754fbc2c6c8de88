//! What is remembered: reservations, and the changes that a journal keeps.

use std::net::IpAddr;

use super::{Attachment, GrantStep, Owner, SpecVersion};
use crate::{GrantId, PoolKey};

/// One address held by one owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The pool that it was given from.
    pub pool: PoolKey,
    /// Who holds it.
    pub owner: Owner,
    /// The address.
    pub addr: IpAddr,
    /// What it is held for.
    pub attachment: Attachment,
    /// When it was made, in Unix seconds.
    pub created: i64,
}

/// One step of a ledger's history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// An address is held from now on.
    Reserve {
        /// By whom, in which pool.
        reservation: Reservation,
        /// Whether the address was found by round robin, which goes on behind it.
        moves_cursor: bool,
    },
    /// What the owner holds in the pool is given back.
    Release {
        /// The pool.
        pool: PoolKey,
        /// Who held it.
        owner: Owner,
        /// When, in Unix seconds: the start of the cooldown.
        at: i64,
    },
    /// The last address found by round robin. For snapshots and for records taken over from elsewhere.
    Cursor {
        /// The pool.
        pool: PoolKey,
        /// The address; it need not be held.
        addr: IpAddr,
    },
    /// An address that was given back and may still cool down. For snapshots.
    Cooling {
        /// The pool.
        pool: PoolKey,
        /// The address.
        addr: IpAddr,
        /// When it was given back, in Unix seconds.
        since: i64,
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
}
