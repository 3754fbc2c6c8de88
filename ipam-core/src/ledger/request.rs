//! What is asked of the ledger, and what it answers when it agrees.

use std::fmt;
use std::net::IpAddr;

use super::Change;
use super::validate::{DEFAULT_GATEWAY_FIELD, INDEX_FIELD};
use crate::{Cidr, PoolKey, Reason, Violation};

/// One interface of one sandbox. Always a pair: joined to one string, `a_b` + `c` would be `a` + `b_c`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// `CNI_CONTAINERID`: the sandbox.
    pub container_id: String,
    /// `CNI_IFNAME`: the interface in it.
    pub if_name: String,
}

impl Owner {
    /// An owner.
    pub fn new(container_id: impl Into<String>, if_name: impl Into<String>) -> Self {
        Self { container_id: container_id.into(), if_name: if_name.into() }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {:?} interface {:?}", self.container_id, self.if_name)
    }
}

/// What an address is held for; kept for people and for garbage collection. An empty text means "not told".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Attachment {
    /// Name of the pod.
    pub pod_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// The device that is attached, for example a PCI address.
    pub device_id: String,
    /// Name of the CNI network.
    pub network: String,
}

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
    /// Who asks.
    pub owner: Owner,
    /// What for; the pod's name and namespace must be told.
    pub attachment: Attachment,
    /// Addresses wanted by value, at most one for each pool. A pool whose subnet has none of them is given from by `pick`.
    pub requested: Vec<IpAddr>,
    /// How the rest is chosen; must be [`Pick::Next`] beside `requested`.
    pub pick: Pick,
}

/// One address, as the interface is to have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The pool that it comes from.
    pub pool: PoolKey,
    /// The address.
    pub addr: IpAddr,
    /// Its mask: bits of the pool's subnet, or of the node's prefix.
    pub prefix_len: u8,
    /// The pool's gateway; `None` also when the gateway itself is given by [`Pick::Gateway`].
    pub gateway: Option<IpAddr>,
    /// Destinations behind `gateway`, sorted, without doubles; empty without a gateway.
    pub routes: Vec<Cidr>,
}

/// A granted request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// One for each pool of the request, in its order.
    pub grants: Vec<Grant>,
    /// What to [`apply`](super::Ledger::apply), and to make durable before anyone hears of the grants. Empty when the owner
    /// held all of it already.
    pub changes: Vec<Change>,
}
