//! Records of which node has which block. Parsing checks only the format. The plan decides which claims are kept.

use std::net::IpAddr;

use crate::addr::{HostBits, parse_addr};
use crate::{AddrRange, Cidr};

/// The source of a claim, in falling order of trust.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ClaimSource {
    /// `status.allocations` of the pool, which is written first.
    Status,
    /// `spec.pools` of the node's IPAMNode: the second record, for when the first is missing or damaged.
    IpamNode,
}

/// A record that a node has a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The node's name.
    pub node: String,
    /// IPPool: startIP to endIP. CIDRPool: the whole prefix.
    pub range: AddrRange,
    /// The gateway that was recorded. A block that agrees with the spec has the spec's gateway instead.
    pub gateway: Option<IpAddr>,
    /// The source of the record.
    pub source: ClaimSource,
}

impl Claim {
    /// Parses an IPPool's record. `None` if the node has no name, an address is invalid, or the two are not a range.
    pub fn from_ip_range(node: &str, start: &str, end: &str, source: ClaimSource) -> Option<Self> {
        let range = AddrRange::new(parse_addr(start).ok()?, parse_addr(end).ok()?)?;
        Self::new(node, range, None, source)
    }

    /// Parses a CIDRPool's record. `None` if the node has no name, or the prefix is invalid or has host bits. A gateway
    /// that is invalid or outside the prefix counts as absent: it does not matter for the assignment.
    pub fn from_prefix(node: &str, prefix: &str, gateway: Option<&str>, source: ClaimSource) -> Option<Self> {
        let (prefix, HostBits::Zero) = Cidr::parse(prefix).ok()? else { return None };
        let gateway = gateway.and_then(|text| parse_addr(text).ok()).filter(|addr| prefix.contains(*addr));
        Self::new(node, prefix.range(), gateway, source)
    }

    fn new(node: &str, range: AddrRange, gateway: Option<IpAddr>, source: ClaimSource) -> Option<Self> {
        (!node.is_empty()).then(|| Self { node: node.to_owned(), range, gateway, source })
    }
}
