//! Pool specs as the user wrote them: every value may be invalid. [`crate::Pool::parse`] validates them.
//!
//! Field names and meanings are those of behaviour.md §2; absent lists are empty.

use crate::{Cidr, PoolKind};

/// A spec of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolSpec {
    /// `IPPool.spec`.
    Ip(IpPoolSpec),
    /// `CIDRPool.spec`.
    Cidr(CidrPoolSpec),
}

impl PoolSpec {
    /// The kind of pool this is a spec of.
    pub const fn kind(&self) -> PoolKind {
        match self {
            Self::Ip(_) => PoolKind::IpPool,
            Self::Cidr(_) => PoolKind::CidrPool,
        }
    }

    /// `subnet` or `cidr` without host bits, if it parses, even if the rest of the spec is invalid.
    pub fn network(&self) -> Option<Cidr> {
        let text = match self {
            Self::Ip(spec) => &spec.subnet,
            Self::Cidr(spec) => &spec.cidr,
        };
        Cidr::parse(text).ok().map(|(network, _)| network)
    }

    /// The fields that both kinds have.
    pub const fn common(&self) -> &CommonSpec {
        match self {
            Self::Ip(spec) => &spec.common,
            Self::Cidr(spec) => &spec.common,
        }
    }
}

/// `IPPool.spec`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IpPoolSpec {
    /// `subnet`.
    pub subnet: String,
    /// `perNodeBlockSize`, in addresses.
    pub per_node_block_size: i64,
    /// `gateway`. An empty text counts as absent, as in NVIDIA nv-ipam.
    pub gateway: Option<String>,
    /// The fields that both kinds have.
    pub common: CommonSpec,
}

/// `CIDRPool.spec`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CidrPoolSpec {
    /// `cidr`.
    pub cidr: String,
    /// `perNodeNetworkPrefix`, in bits.
    pub per_node_network_prefix: i64,
    /// `gatewayIndex`, counted from the network address of each prefix.
    pub gateway_index: Option<i64>,
    /// `staticAllocations`.
    pub static_allocations: Vec<StaticAllocationSpec>,
    /// The fields that both kinds have.
    pub common: CommonSpec,
}

/// The fields that both kinds of specs have.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommonSpec {
    /// `exclusions`.
    pub exclusions: Vec<ExclusionSpec>,
    /// `perNodeExclusions`.
    pub per_node_exclusions: Vec<IndexRangeSpec>,
    /// `nodeSelector`; absent selects every node.
    pub node_selector: Option<NodeSelectorSpec>,
    /// `defaultGateway`, or its old spelling `defautGateway`.
    pub default_gateway: bool,
    /// Whether the old spelling `defautGateway` was written, with either value.
    pub deprecated_default_gateway: bool,
    /// `routes[].dst`.
    pub routes: Vec<String>,
}

/// `exclusions[]`, both ends included.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ExclusionSpec {
    /// `startIP`.
    pub start_ip: String,
    /// `endIP`.
    pub end_ip: String,
}

/// `perNodeExclusions[]`, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IndexRangeSpec {
    /// `startIndex`.
    pub start_index: i64,
    /// `endIndex`.
    pub end_index: i64,
}

/// `staticAllocations[]`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StaticAllocationSpec {
    /// `nodeName`. If it is absent or empty, the prefix is reserved and assigned to no node.
    pub node_name: Option<String>,
    /// `gateway`. If it is absent or empty, `gatewayIndex` applies.
    pub gateway: Option<String>,
    /// `prefix`.
    pub prefix: String,
}

/// A core/v1 NodeSelector: terms are ORed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeSelectorSpec {
    /// `nodeSelectorTerms`.
    pub terms: Vec<NodeSelectorTermSpec>,
}

/// One term: its expressions are ANDed. A term without any expression matches no node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeSelectorTermSpec {
    /// `matchExpressions`, on labels.
    pub match_expressions: Vec<RequirementSpec>,
    /// `matchFields`, on `metadata.name`.
    pub match_fields: Vec<RequirementSpec>,
}

/// One expression.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequirementSpec {
    /// `key`.
    pub key: String,
    /// `operator`: In, NotIn, Exists, DoesNotExist, Gt or Lt.
    pub operator: String,
    /// `values`.
    pub values: Vec<String>,
}
