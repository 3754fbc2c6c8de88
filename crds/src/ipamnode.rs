//! `IPAMNode`: what one node may give, and what it has given. One object for each node, beside the pools, named as the node.
//!
//! The operator writes the spec and nothing else, the node's agent the status and nothing else. The object holds everything
//! that the agent needs, so that it watches this one and no pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{ADDRESS_LENGTH, CIDR_LENGTH, NAME_LENGTH, is_address, is_cidr};

/// The blocks of one node, written by the operator.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nv-ipam.nvidia.com",
    version = "v1alpha1",
    kind = "IPAMNode",
    plural = "ipamnodes",
    shortname = "ipn",
    category = "nv-ipam",
    namespaced,
    derive = "PartialEq",
    status = "IPAMNodeStatus",
    doc = "IPAMNode holds the blocks that one node has from all pools, and what its agent has given out of them. The \
           operator writes it; it is not meant to be edited."
)]
#[kube(
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Agent Version", type_ = "string", json_path = ".status.agentVersion"),
    printcolumn(name = "Pools", type_ = "string", priority = 1, json_path = ".spec.pools[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct IPAMNodeSpec {
    /// The node's blocks, sorted by poolType and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["poolType".into(), "name".into()]))]
    pub pools: Vec<NodeBlock>,
}

/// Kind of the pool that a block is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PoolType {
    /// Block of a CIDRPool.
    CIDRPool,
    /// Block of an IPPool.
    #[default]
    IPPool,
}

/// What the agent may do with a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BlockState {
    /// Give and take back.
    #[default]
    Active,
    /// Only take back.
    Releasing,
}

/// The node's block from one pool, with everything that is needed to give addresses from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBlock {
    /// Name of the pool.
    #[schemars(length(max = NAME_LENGTH))]
    pub name: String,
    /// Kind of the pool.
    pub pool_type: PoolType,
    /// Active: addresses are given from the block. Releasing: held addresses are only taken back.
    pub state: BlockState,
    /// First address that the agent may give (inclusive).
    #[serde(rename = "startIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub start_ip: String,
    /// Last address that the agent may give (inclusive).
    #[serde(rename = "endIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub end_ip: String,
    /// The pool's subnet (IPPool) or the node's prefix (CIDRPool) in CIDR notation: the mask of addresses, and where a
    /// static address may lie.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr())]
    pub subnet: String,
    /// Gateway for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub gateway: Option<String>,
    /// Addresses of the range that are not given, sorted and disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<AddressRange>,
    /// Addresses of the range that pods of other nodes hold, or may: not given by any means, sorted and disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub held_elsewhere: Vec<AddressRange>,
    /// Static routes for pods, through the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub routes: Vec<RouteDestination>,
    /// Gives pods a default route through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_gateway: Option<bool>,
}

/// A range of addresses. Without the rules of [`crate::Exclusion`]: the operator has cut and sorted these itself, and the cost
/// of rules on lists within lists would limit how long a list may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddressRange {
    /// First address (inclusive).
    #[serde(rename = "startIP")]
    pub start_ip: String,
    /// Last address (inclusive).
    #[serde(rename = "endIP")]
    pub end_ip: String,
}

/// A static route for pods. Without the rules of [`crate::Route`], for the same reason as [`AddressRange`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteDestination {
    /// Destination of the route in CIDR notation.
    pub dst: String,
}

/// What the node's agent says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPAMNodeStatus {
    /// The generation of the spec that the agent works with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// What is held on the node, for each pool of which anything is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // The agent writes all of it at once: as one piece it costs managedFields, which come back with every write, one name.
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub pools: Vec<BlockUse>,
    /// How far the agent's journal had come when this was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerPosition>,
    /// Conditions of the agent: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How far the block of one pool is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockUse {
    /// Name of the pool.
    pub name: String,
    /// Kind of the pool.
    pub pool_type: PoolType,
    /// First address of the range that the agent worked with when it counted.
    #[serde(rename = "startIP")]
    pub start_ip: String,
    /// Last address of the range that the agent worked with when it counted.
    #[serde(rename = "endIP")]
    pub end_ip: String,
    /// Addresses of the pool that pods on the node hold, those outside the range included.
    pub used: i64,
    /// Addresses that the range can give. Numbers beyond 2^63-1 are shown as 2^63-1.
    pub capacity: i64,
    /// Ascending runs that neither touch nor overlap and cover the addresses of the pool that are held: exactly, unless that
    /// takes more than 64 runs. Absent although some are held: the agent is an older one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = HELD_RUNS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub held: Vec<AddressRange>,
}

/// Runs of held addresses that a report tells at most.
pub const HELD_RUNS: usize = 64;

/// How far the agent's journal has come: it only rises, by epoch, then by sequence. One that has fallen tells of a disk that
/// was put back to an earlier state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LedgerPosition {
    /// How many times the journal was begun anew.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Number of the last record in this epoch.
    #[schemars(range(min = 0))]
    pub sequence: i64,
}
