//! What one node may give from one pool: the parsed form of an entry of `IPAMNode.spec.pools`.
//!
//! This module only describes. Which address a pod gets, and who holds what, is for the ledger to decide.

use std::fmt;
use std::net::IpAddr;

use crate::addr::number;
use crate::{AddrRange, Cidr, Family, GrantId, PoolKey, RunSet};

/// Whether a node may still give from its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolState {
    /// New addresses are given.
    Active,
    /// No new addresses are given; those given before are served until they are released.
    Releasing,
    /// The block is the node's, but no new addresses are given for now; those given before are served.
    Paused(Pause),
}

/// Why a node gives nothing new from a block that it is told to give from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pause {
    /// The API server has not confirmed the grant of the block, or the grant has ended.
    Unconfirmed,
    /// The node has not heard of its blocks for longer than its admin allows.
    Offline,
    /// The node knows of the block from before its start alone: somebody else may have it now.
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

/// What a node needs to know of one pool, and all it needs to know (behaviour.md §4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePool {
    /// The pool.
    pub key: PoolKey,
    /// Whether new addresses are given.
    pub state: PoolState,
    /// The grant of the block. New addresses are allocated only once the grant is confirmed; `None` needs no grant.
    pub grant: Option<GrantId>,
    /// The first to the last address that the node gives from. In an IPPool the block, in a CIDRPool the hosts of the
    /// node's prefix.
    pub range: AddrRange,
    /// Gives answers their prefix length, and says which addresses may be asked for by name. In an IPPool the pool's
    /// subnet, in a CIDRPool the node's prefix.
    pub subnet: Cidr,
    /// The gateway, if the pool has one. It may lie in `range`, and is then not given.
    pub gateway: Option<IpAddr>,
    /// Addresses of `range` that are not given: the pool's exclusions and the per-node ones, as numbers of `range`'s
    /// family. The gateway is not part of them.
    pub exclusions: RunSet,
    /// Addresses that are not given by any means, not even by name: pods of other nodes hold them, or may, or pods of this one
    /// of which there is no record. These may lie outside `range`.
    pub elsewhere: RunSet,
    /// Destinations that pods reach by the gateway, as the pool lists them.
    pub routes: Vec<Cidr>,
    /// Whether the gateway is also the pods' default gateway.
    pub default_gateway: bool,
}

impl NodePool {
    /// Number of addresses that the node can give: those of the range without the exclusions, what is held elsewhere and the
    /// gateway. Saturates.
    pub fn capacity(&self) -> u128 {
        let (first, last) = self.range.numbers();
        let barred: RunSet = self.exclusions.runs().chain(self.elsewhere.runs()).collect();
        let open = barred.gaps_in(first, last);
        let gateway_takes_one =
            self.gateway.is_some_and(|gateway| self.range.contains(gateway) && !barred.contains(number(gateway)));
        open.saturating_sub(u128::from(gateway_takes_one))
    }

    /// Whether `addr` is one that pods hold, or may, of which this node has no record.
    pub fn is_held_elsewhere(&self, addr: IpAddr) -> bool {
        Family::of(addr) == self.family() && self.elsewhere.contains(number(addr))
    }

    /// Routes of an answer: the pool's, and the default route of the range's family if the gateway is the default
    /// gateway; sorted, without doubles. Empty without a gateway, since a route needs one.
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

    /// The family of the addresses given.
    pub const fn family(&self) -> Family {
        self.range.family()
    }
}
