//! Requests to the ledger, and its answers.

use std::net::IpAddr;

use super::change::Change;
use super::owner::{Attachment, Owner};
use crate::{Cidr, PoolKey, Reason, Violation};

pub(super) const DEFAULT_GATEWAY_FIELD: &str = "parameters.features.allocate_default_gateway";
pub(super) const INDEX_FIELD: &str = "parameters.features.allocate_ip_with_index";

/// How an address is chosen in the pools for which no address is requested by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Pick {
    /// The next free one, round robin.
    #[default]
    Next,
    /// The pool's gateway itself (`allocateDefaultGateway`).
    Gateway,
    /// The address this far behind the first of the node's range (`allocateIPWithIndex`).
    Index(i32),
}

impl Pick {
    /// The choice that the features of a request name; they exclude each other.
    pub fn from_features(default_gateway: bool, index: Option<i32>) -> Result<Self, Violation> {
        match (default_gateway, index) {
            (false, None) => Ok(Self::Next),
            (true, None) => Ok(Self::Gateway),
            (false, Some(index)) => Ok(Self::Index(index)),
            (true, Some(index)) => Err(Violation::new(
                INDEX_FIELD,
                Reason::Conflict,
                format!("{index} cannot stand together with {DEFAULT_GATEWAY_FIELD}; keep one of the two"),
            )),
        }
    }
}

/// A request for one address in each of one or two pools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The pools, in the order of the answer.
    pub pools: Vec<PoolKey>,
    /// The owner.
    pub owner: Owner,
    /// The pod and the interface; the pod's name and namespace are required.
    pub attachment: Attachment,
    /// Addresses wanted by value, at most one for each pool. In a pool whose subnet has none of them, `pick` chooses.
    pub requested: Vec<IpAddr>,
    /// How the rest is chosen; must be [`Pick::Next`] together with `requested`.
    pub pick: Pick,
}

/// One address, with the settings of its interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The pool that it comes from.
    pub pool: PoolKey,
    /// The address.
    pub addr: IpAddr,
    /// Its mask: bits of the pool's subnet, or of the node's prefix.
    pub prefix_len: u8,
    /// The pool's gateway; `None` also when [`Pick::Gateway`] allocates the gateway itself.
    pub gateway: Option<IpAddr>,
    /// Destinations behind `gateway`, sorted, without doubles; empty without a gateway.
    pub routes: Vec<Cidr>,
}

/// A granted request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// One for each pool of the request, in its order.
    pub grants: Vec<Grant>,
    /// What to [`apply`](super::Ledger::apply), and to make durable before the answer. Empty when the owner has all
    /// addresses already.
    pub changes: Vec<Change>,
}
