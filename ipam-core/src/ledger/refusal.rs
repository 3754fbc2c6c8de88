//! Why the ledger refuses a request. Each message names the pool and the value, and what would be right.

use std::fmt::Write as _;
use std::net::IpAddr;

use thiserror::Error;

use super::{Owner, Reservation};
use crate::{AddrRange, Cidr, Pause, PoolKey, Violation};

/// A request that is not granted, or a check that fails. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// The request is invalid, now or later; all its errors.
    #[error("{}", joined(.0, "; "))]
    Invalid(Vec<Violation>),
    /// This node has no block of the pool.
    #[error("no {pool} on this node: {}", known_pools(.known))]
    UnknownPool {
        /// The requested pool.
        pool: PoolKey,
        /// The pools that the node has.
        known: Vec<PoolKey>,
    },
    /// Every address from which the node may allocate is in use or in its cooldown.
    #[error("{pool} has no free address on this node: {held} held in {range}{}", cooling_part(*.cooling, *.free_in_seconds))]
    Exhausted {
        /// The pool.
        pool: PoolKey,
        /// The addresses from which the node allocates.
        range: AddrRange,
        /// Addresses of the range that are in use.
        held: usize,
        /// Addresses that wait for the end of their cooldown.
        cooling: usize,
        /// Seconds until the first of these is free.
        free_in_seconds: Option<u64>,
    },
    /// The address wanted by value, gateway or index is in use by another owner.
    #[error("{addr} of {pool} is held by {}", holder_name(.holder))]
    AddressTaken {
        /// The pool.
        pool: PoolKey,
        /// The address.
        addr: IpAddr,
        /// The owner of the address.
        holder: Box<Reservation>,
    },
    /// The address wanted by value, gateway or index is unavailable: pods on other nodes may use it, or pods on this node
    /// without a record.
    #[error("{addr} of {pool} is held on another node, as far as its agent has told, or on this one without a record")]
    HeldElsewhere {
        /// The pool.
        pool: PoolKey,
        /// The address.
        addr: IpAddr,
    },
    /// The owner has another address than it requests now.
    #[error("this container and interface already hold {held} of {pool}, but {}; delete the attachment first", .conflict)]
    AlreadyHeld {
        /// The pool.
        pool: PoolKey,
        /// The address of the owner.
        held: IpAddr,
        /// What does not agree with it.
        conflict: HeldConflict,
    },
    /// A check found no reservation.
    #[error("{owner} holds no address of {pool}")]
    NotReserved {
        /// The pool.
        pool: PoolKey,
        /// The owner in the request.
        owner: Owner,
    },
    /// A check found a reservation of another address.
    #[error("{held} of {pool} is reserved, which is not among the expected addresses ({})", joined(.expected, ", "))]
    Mismatch {
        /// The pool.
        pool: PoolKey,
        /// What is reserved.
        held: IpAddr,
        /// The addresses that the caller expects.
        expected: Vec<IpAddr>,
    },
    /// The node may not allocate from its block: the block is being released, or is suspended because of a duplicate address.
    #[error(
        "{pool} gives no new addresses on this node: the operator takes its block {range} back, or has suspended it because \
         an address is held on two nodes; the pool's conditions say which"
    )]
    Releasing {
        /// The pool.
        pool: PoolKey,
        /// The block's addresses.
        range: AddrRange,
    },
    /// The node allocates no new addresses from its block for now.
    #[error("{pool} gives no new addresses on this node for now: {pause}")]
    Paused {
        /// The pool.
        pool: PoolKey,
        /// Why.
        pause: Pause,
    },
}

impl Refusal {
    /// One word for metrics and details: the variant's name, or that of the pause.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "Invalid",
            Self::UnknownPool { .. } => "UnknownPool",
            Self::Exhausted { .. } => "Exhausted",
            Self::AddressTaken { .. } => "AddressTaken",
            Self::HeldElsewhere { .. } => "HeldElsewhere",
            Self::AlreadyHeld { .. } => "AlreadyHeld",
            Self::NotReserved { .. } => "NotReserved",
            Self::Mismatch { .. } => "Mismatch",
            Self::Releasing { .. } => "Releasing",
            Self::Paused { pause, .. } => pause.as_str(),
        }
    }
}

/// Why an owner's reservation does not answer its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HeldConflict {
    /// Another address is requested.
    #[error("{0} is asked for")]
    Asked(IpAddr),
    /// The pool has a new subnet on this node: the old address would get a mask and a gateway that are not its own.
    #[error("the pool's subnet is now {0}")]
    Subnet(Cidr),
}

fn joined<T: ToString>(items: &[T], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

fn known_pools(known: &[PoolKey]) -> String {
    if known.is_empty() { "it has no pools yet".to_owned() } else { format!("it has {}", joined(known, ", ")) }
}

fn cooling_part(cooling: usize, free_in_seconds: Option<u64>) -> String {
    let mut text = String::new();
    if cooling > 0 {
        let _ = write!(text, ", {cooling} released and cooling down");
    }
    if let Some(seconds) = free_in_seconds {
        let _ = write!(text, ", the next is free in {seconds} s");
    }
    text
}

fn holder_name(holder: &Reservation) -> String {
    let Reservation { owner, attachment, .. } = holder;
    if attachment.pod_name.is_empty() {
        return owner.to_string();
    }
    format!("pod {}/{} ({owner})", attachment.pod_namespace, attachment.pod_name)
}
