//! What a node tells of a pool: how much of it is held, and which addresses, as runs.
//!
//! Only describes what the books say. A report must have a bounded length, so beyond a number of runs the addresses are
//! not told at all: a part of them would be taken for the whole.

use std::net::IpAddr;

use crate::addr::number;
use crate::{AddrRange, Family, PoolKey};

/// What is held of one pool, whether the node still has a block of it or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The pool.
    pub key: PoolKey,
    /// First to last address that the node gives from. Of a pool that is not configured: from the first to the last
    /// address held (of its first family, should a pool of this name have been of both).
    pub range: AddrRange,
    /// Every address held from this pool, those outside `range` included. Zero means that the node uses nothing of it.
    pub used: u64,
    /// Addresses that can be given dynamically when nothing is held, saturating; zero if the pool is not configured.
    pub capacity: u128,
    /// All that is held, as maximal runs in rising order; `None` if there are more runs than asked for.
    pub runs: Option<Vec<AddrRange>>,
}

/// Maximal runs of addresses that come in rising order, IPv4 first; `None` if they are more than `most`.
pub(super) fn runs(addrs: impl Iterator<Item = IpAddr>, most: usize) -> Option<Vec<AddrRange>> {
    let mut runs: Vec<AddrRange> = Vec::new();
    for addr in addrs {
        let continued = runs.pop_if(|run| follows(run.last(), addr));
        if runs.len() == most {
            return None;
        }
        let first = continued.map_or(addr, |run| run.first());
        runs.extend(AddrRange::new(first, addr));
    }
    Some(runs)
}

/// From the first address to the last one of the same family, of addresses in rising order; `None` without any.
pub(super) fn hull(mut addrs: impl DoubleEndedIterator<Item = IpAddr>) -> Option<AddrRange> {
    let first = addrs.next()?;
    let last = addrs.rfind(|addr| Family::of(*addr) == Family::of(first)).unwrap_or(first);
    AddrRange::new(first, last)
}

fn follows(before: IpAddr, addr: IpAddr) -> bool {
    Family::of(before) == Family::of(addr) && number(before).checked_add(1) == Some(number(addr))
}
