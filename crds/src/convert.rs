//! From objects of the API to the specs that `ipam-core` judges, and the words both use for a pool's kind.
//!
//! Nothing is judged here and nothing can fail: a wrong value goes over as it is, so that there is one place that refuses.

use ipam_core::PoolKind;
use ipam_core::spec::{
    CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, NodeSelectorSpec, NodeSelectorTermSpec,
    PoolSpec, RequirementSpec, StaticAllocationSpec,
};

use crate::{
    CIDRPoolSpec, Exclusion, ExclusionIndex, IPPoolSpec, NodeFieldRequirement, NodeLabelRequirement, NodeSelector,
    NodeSelectorTerm, PoolType, Route, StaticAllocation,
};

impl From<&IPPoolSpec> for PoolSpec {
    fn from(spec: &IPPoolSpec) -> Self {
        Self::Ip(IpPoolSpec {
            subnet: spec.subnet.clone(),
            per_node_block_size: spec.per_node_block_size,
            gateway: spec.gateway.clone(),
            common: CommonSpec {
                exclusions: each(&spec.exclusions),
                per_node_exclusions: each(&spec.per_node_exclusions),
                node_selector: spec.node_selector.as_ref().map(NodeSelectorSpec::from),
                default_gateway: spec.default_gateway(),
                deprecated_default_gateway: spec.defaut_gateway.is_some(),
                routes: destinations(&spec.routes),
            },
        })
    }
}

impl From<&CIDRPoolSpec> for PoolSpec {
    fn from(spec: &CIDRPoolSpec) -> Self {
        Self::Cidr(CidrPoolSpec {
            cidr: spec.cidr.clone(),
            per_node_network_prefix: spec.per_node_network_prefix.into(),
            gateway_index: spec.gateway_index.map(i64::from),
            static_allocations: each(&spec.static_allocations),
            common: CommonSpec {
                exclusions: each(&spec.exclusions),
                per_node_exclusions: each(&spec.per_node_exclusions),
                node_selector: spec.node_selector.as_ref().map(NodeSelectorSpec::from),
                default_gateway: spec.default_gateway(),
                deprecated_default_gateway: spec.defaut_gateway.is_some(),
                routes: destinations(&spec.routes),
            },
        })
    }
}

impl IPPoolSpec {
    /// The spec as `ipam-core` reads it.
    pub fn to_spec(&self) -> PoolSpec {
        self.into()
    }
}

impl CIDRPoolSpec {
    /// The spec as `ipam-core` reads it.
    pub fn to_spec(&self) -> PoolSpec {
        self.into()
    }
}

impl From<&Exclusion> for ExclusionSpec {
    fn from(exclusion: &Exclusion) -> Self {
        Self { start_ip: exclusion.start_ip.clone(), end_ip: exclusion.end_ip.clone() }
    }
}

impl From<&ExclusionIndex> for IndexRangeSpec {
    fn from(range: &ExclusionIndex) -> Self {
        Self { start_index: range.start_index.into(), end_index: range.end_index.into() }
    }
}

impl From<&StaticAllocation> for StaticAllocationSpec {
    fn from(entry: &StaticAllocation) -> Self {
        Self { node_name: entry.node_name.clone(), gateway: entry.gateway.clone(), prefix: entry.prefix.clone() }
    }
}

impl From<&NodeSelector> for NodeSelectorSpec {
    fn from(selector: &NodeSelector) -> Self {
        Self { terms: each(&selector.node_selector_terms) }
    }
}

impl From<&NodeSelectorTerm> for NodeSelectorTermSpec {
    fn from(term: &NodeSelectorTerm) -> Self {
        Self { match_expressions: each(&term.match_expressions), match_fields: each(&term.match_fields) }
    }
}

impl From<&NodeLabelRequirement> for RequirementSpec {
    fn from(requirement: &NodeLabelRequirement) -> Self {
        let NodeLabelRequirement { key, operator, values } = requirement.clone();
        Self { key, operator, values }
    }
}

impl From<&NodeFieldRequirement> for RequirementSpec {
    fn from(requirement: &NodeFieldRequirement) -> Self {
        let NodeFieldRequirement { key, operator, values } = requirement.clone();
        Self { key, operator, values }
    }
}

impl From<PoolKind> for PoolType {
    fn from(kind: PoolKind) -> Self {
        match kind {
            PoolKind::IpPool => Self::IPPool,
            PoolKind::CidrPool => Self::CIDRPool,
        }
    }
}

impl From<PoolType> for PoolKind {
    fn from(pool_type: PoolType) -> Self {
        match pool_type {
            PoolType::IPPool => Self::IpPool,
            PoolType::CIDRPool => Self::CidrPool,
        }
    }
}

fn each<'a, Source, Target: From<&'a Source>>(items: &'a [Source]) -> Vec<Target> {
    items.iter().map(Target::from).collect()
}

fn destinations(routes: &[Route]) -> Vec<String> {
    routes.iter().map(|route| route.dst.clone()).collect()
}
