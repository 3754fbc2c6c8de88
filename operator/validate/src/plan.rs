//! How a pool would serve a number of nodes: whether they fit, and which gets which block.

use std::fmt;

use ipam_core::plan::{Assignment, BlockPhase, Claim, ClaimSource, NodeRef, Usage, plan};
use ipam_core::spec::PoolSpec;
use ipam_core::{Advice, Cidr, Pool, PoolKind, advise_nodes};
use serde::Serialize;

use super::nodes::Nodes;
use super::tree::Node;

/// How a pool would serve the given nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    /// Given nodes that the pool selects. If their labels are not known, all of them count as selected.
    pub selected: usize,
    /// Selected nodes that get a block.
    pub served: usize,
    /// Nodes that the pool could serve in total. Saturates at 2^63-1.
    pub room: i64,
    /// Addresses for pods in the blocks of the served nodes. Saturates at 2^63-1.
    pub addresses: i64,
    /// The blocks of the served nodes, by node, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<Share>>,
    /// Selected nodes without a block, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unserved: Vec<String>,
}

/// A block as a pool's status writes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Block {
    /// A block of an IPPool.
    Run {
        /// First address.
        #[serde(rename = "startIP")]
        start_ip: String,
        /// Last address.
        #[serde(rename = "endIP")]
        end_ip: String,
    },
    /// A block of a CIDRPool.
    Prefix {
        /// The prefix in CIDR notation.
        prefix: String,
    },
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { start_ip, end_ip } => write!(f, "{start_ip}-{end_ip}"),
            Self::Prefix { prefix } => f.write_str(prefix),
        }
    }
}

/// What one node would get.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The node.
    pub node: String,
    /// Its block, in the form of the pool's own status.
    #[serde(flatten)]
    pub block: Block,
    /// Gateway of the block's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Addresses for pods.
    pub addresses: i64,
}

/// Plans `pool` for `nodes`. If the user has named the nodes, they keep the blocks that they have by `claims`.
pub(super) fn fit(spec: &PoolSpec, pool: &Pool, claims: Vec<Claim>, nodes: &Nodes, explain: bool) -> Fit {
    let for_all = (!nodes.labels_are_known()).then(|| without_selector(spec, pool)).flatten();
    let pool = for_all.as_ref().unwrap_or(pool);
    let given = if nodes.are_real() { claims } else { Vec::new() };
    let nodes: Vec<NodeRef<'_>> = nodes.refs().collect();
    let selected = nodes.iter().filter(|node| pool.selects(node.name, node.labels)).count();
    let made = plan(pool, &nodes, &given, &|_| Usage::Unknown);
    let served = selected.saturating_sub(made.unserved.len());
    let room = u128::try_from(served).unwrap_or(u128::MAX).saturating_add(made.blocks_free);
    Fit {
        selected,
        served,
        room: count(room),
        addresses: count(made.capacity),
        plan: explain.then(|| shares(pool, &made.assignments)),
        unserved: if explain { made.unserved } else { Vec::new() },
    }
}

/// Advice about `pool` and `nodes`. Empty if the nodes are only a count.
pub(super) fn advice(spec: &PoolSpec, pool: &Pool, nodes: &Nodes) -> Vec<Advice> {
    if !nodes.are_real() {
        return Vec::new();
    }
    let for_all = (!nodes.labels_are_known()).then(|| without_selector(spec, pool)).flatten();
    advise_nodes(for_all.as_ref().unwrap_or(pool), &nodes.refs().collect::<Vec<_>>())
}

/// The pool as it would be if it selected every node.
fn without_selector(spec: &PoolSpec, pool: &Pool) -> Option<Pool> {
    let mut spec = spec.clone();
    match &mut spec {
        PoolSpec::Ip(spec) => spec.common.node_selector = None,
        PoolSpec::Cidr(spec) => spec.common.node_selector = None,
    }
    Pool::parse(&pool.key().name, &spec).ok()
}

/// The blocks in the status of a manifest.
pub(super) fn claims(pool: &Pool, object: &Node) -> Vec<Claim> {
    let allocations = object.get("status").and_then(|status| status.get("allocations"));
    let claim = |entry: &Node| {
        let text = |name| entry.get(name).and_then(Node::text);
        let node = text("nodeName")?;
        match pool.key().kind {
            PoolKind::IpPool => Claim::from_ip_range(node, text("startIP")?, text("endIP")?, ClaimSource::Status),
            PoolKind::CidrPool => Claim::from_prefix(node, text("prefix")?, text("gateway"), ClaimSource::Status),
        }
    };
    allocations.map_or(&[][..], Node::items).iter().filter_map(|entry| claim(entry)).collect()
}

fn shares(pool: &Pool, assignments: &[Assignment]) -> Vec<Share> {
    let serving = assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Active);
    serving
        .map(|Assignment { node, block, .. }| Share {
            node: node.clone(),
            block: match pool.key().kind {
                PoolKind::IpPool => {
                    Block::Run { start_ip: block.range.first().to_string(), end_ip: block.range.last().to_string() }
                }
                PoolKind::CidrPool => Block::Prefix { prefix: Cidr::enclosing(&block.range).to_string() },
            },
            gateway: block.gateway.map(|gateway| gateway.to_string()),
            addresses: count(pool.capacity(block)),
        })
        .collect()
}

fn count(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
