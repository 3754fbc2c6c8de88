//! The share of one node in one pool: the parsed form of an entry of `IPAMNode.spec.pools`.
//!
//! This module only describes. The ledger decides which address a pod gets, and records which addresses are in use.

use std::fmt;
use std::net::IpAddr;

use crate::addr::number;
use crate::{AddrRange, Cidr, Family, GrantId, PoolKey, RangeSet};

/// Whether a node may allocate new addresses from its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolState {
    /// New addresses are allocated.
    Active,
    /// No new addresses are allocated. Addresses in use are served until they are freed.
    Releasing,
    /// The block is assigned to the node, but no new addresses are allocated for now. Addresses in use are served.
    Paused(Pause),
}

/// Why a node allocates no new addresses from an Active block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pause {
    /// The API server has not confirmed the grant of the block, or the grant has ended.
    Unconfirmed,
    /// The agent has been without the API server for longer than `--offline-limit`.
    Offline,
    /// The agent has just started and has the block only from its saved copy: another node may have the block now.
    Starting,
}

impl Pause {
    /// One word for metrics and details.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unconfirmed => "Unconfirmed",
            Self::Offline => "Offline",
            Self::Starting => "Starting",
        }
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unconfirmed => {
                "the API server has not confirmed the block yet, which takes less than a second; if this stays, the agent cannot report (see its \
                 log) or no operator runs to replace a grant that has ended"
            }
            Self::Offline => "the agent has been without the API server for longer than --offline-limit",
            Self::Starting => {
                "the agent has just started and waits, for seconds at most, for the API server to say whether the block is still \
                 this node's"
            }
        })
    }
}

/// All that a node needs to know about one pool (behaviour.md §4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePool {
    /// The pool.
    pub key: PoolKey,
    /// Whether new addresses are allocated.
    pub state: PoolState,
    /// The grant of the block. New addresses are allocated only once the grant is confirmed; `None` needs no grant.
    pub grant: Option<GrantId>,
    /// The addresses from which the node allocates. In an IPPool these are the block, in a CIDRPool the host addresses of
    /// the node's prefix.
    pub range: AddrRange,
    /// The network that defines the prefix length of answers and the addresses that a request may name. In an IPPool this
    /// is the pool's subnet, in a CIDRPool the node's prefix.
    pub subnet: Cidr,
    /// The gateway, if the pool has one. If it is in `range`, it is not allocated dynamically.
    pub gateway: Option<IpAddr>,
    /// Addresses of `range` that are not allocated dynamically: the pool's exclusions and the per-node ones, as numbers
    /// of `range`'s family. The gateway is not part of them.
    pub exclusions: RangeSet,
    /// Unavailable addresses, which are not even allocated if a request names them. Pods on other nodes may use them, or
    /// pods on this node without a record. They may be outside `range`.
    pub elsewhere: RangeSet,
    /// Destinations that pods reach through the gateway, as the pool lists them.
    pub routes: Vec<Cidr>,
    /// Whether the gateway is also the pods' default gateway.
    pub default_gateway: bool,
}

impl NodePool {
    /// Number of addresses that the node can allocate: those of the range without exclusions, unavailable addresses and
    /// the gateway. Saturates.
    pub fn capacity(&self) -> u128 {
        let (first, last) = self.range.numbers();
        let barred: RangeSet = self.exclusions.runs().chain(self.elsewhere.runs()).collect();
        let open = barred.gaps_in(first, last);
        let gateway_takes_one =
            self.gateway.is_some_and(|gateway| self.range.contains(gateway) && !barred.contains(number(gateway)));
        open.saturating_sub(u128::from(gateway_takes_one))
    }

    /// Number of unavailable addresses of the range, saturating.
    pub fn unavailable(&self) -> u64 {
        let (first, last) = self.range.numbers();
        u64::try_from(self.elsewhere.clipped(first, last).size()).unwrap_or(u64::MAX)
    }

    /// Whether `addr` is unavailable: a pod may use it, and this node has no record of that.
    pub fn is_held_elsewhere(&self, addr: IpAddr) -> bool {
        Family::of(addr) == self.family() && self.elsewhere.contains(number(addr))
    }

    /// Routes of an answer, sorted and without duplicates: the routes of the pool, and the default route if the gateway
    /// is the default gateway. Empty without a gateway, since a route needs one.
    pub fn effective_routes(&self) -> Vec<Cidr> {
        if self.gateway.is_none() {
            return Vec::new();
        }
        let mut routes = self.routes.clone();
        if self.default_gateway {
            routes.push(Cidr::default_route(self.family()));
        }
        routes.sort_unstable();
        routes.dedup();
        routes
    }

    /// The family of the addresses of `range`.
    pub const fn family(&self) -> Family {
        self.range.family()
    }
}
