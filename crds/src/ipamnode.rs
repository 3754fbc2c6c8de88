//! `IPAMNode`: the blocks assigned to one node, and the addresses in use there. One object per node, in the namespace
//! of the pools, with the name of the node.
//!
//! The operator writes only the spec. The node's agent writes only the status. The object contains everything that the
//! agent needs, so the agent watches this object and no pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{ADDRESS_LENGTH, CIDR_LENGTH, NAME_LENGTH, is_address, is_cidr};

/// Blocks assigned to the node, written by the operator.
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
    doc = "IPAMNode lists the blocks assigned to one node and the addresses in use there. The operator writes the spec, and \
           the agent of the node writes the status. Do not edit it."
)]
#[kube(
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Agent Version", type_ = "string", json_path = ".status.agentVersion"),
    printcolumn(name = "Pools", type_ = "string", priority = 1, json_path = ".spec.pools[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct IPAMNodeSpec {
    /// ID of the operator's last request for a report, 16 hexadecimal digits. The agent answers with a report that has
    /// the same status.reportRequest. If not set, the operator has requested none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = REQUEST_LENGTH))]
    pub report_request: Option<String>,
    /// Blocks of the node, one per pool, sorted by poolType and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["poolType".into(), "name".into()]))]
    pub pools: Vec<NodeBlock>,
}

/// Kind of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PoolType {
    /// The pool is a CIDRPool.
    CIDRPool,
    /// The pool is an IPPool.
    #[default]
    IPPool,
}

/// State of a block on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BlockState {
    /// The agent allocates and frees addresses.
    #[default]
    Active,
    /// The agent frees addresses and allocates none.
    Releasing,
    /// The operator can assign the block to another node, whatever the agent reports.
    Revoked,
}

/// Length of the ID of a request for a report.
const REQUEST_LENGTH: usize = 16;

/// Length of a grant ID.
const GRANT_LENGTH: usize = 16;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The block of the node from one pool, with the network settings of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBlock {
    /// Name of the pool.
    #[schemars(length(max = NAME_LENGTH))]
    pub name: String,
    /// Kind of the pool.
    pub pool_type: PoolType,
    /// ID of this assignment of the block to the node, 16 hexadecimal digits. Each assignment has another ID. The first 8
    /// digits are the Unix time in seconds. If not set, the agent does not use the block.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = GRANT_LENGTH))]
    pub grant: String,
    /// The block was free when the operator made the grant, or the node runs no agent. So if no report has the grant,
    /// none of its addresses was ever in use. If not set, the value is false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub never_used: bool,
    /// State of the block. Active: the agent allocates and frees addresses. Releasing: the agent frees addresses and
    /// allocates none. Revoked: the block is not the node's any more.
    pub state: BlockState,
    /// First address that the agent can allocate (inclusive).
    #[serde(rename = "startIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub start_ip: String,
    /// Last address that the agent can allocate (inclusive).
    #[serde(rename = "endIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub end_ip: String,
    /// Subnet of the pool (IPPool) or prefix of the node (CIDRPool) in CIDR notation. It sets the prefix length of pod
    /// addresses. Pods can request addresses only inside it.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr())]
    pub subnet: String,
    /// Gateway address of pods. If not set, pods have no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub gateway: Option<String>,
    /// Address ranges that the agent allocates only to pods that request the address. Sorted, without overlaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<AddressRange>,
    /// Address ranges that the agent must not allocate, for example because pods on other nodes use them. Sorted,
    /// without overlaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub held_elsewhere: Vec<AddressRange>,
    /// Static routes of pods through the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub routes: Vec<RouteDestination>,
    /// Whether pods have a default route through the gateway. If not set, the value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_gateway: Option<bool>,
}

/// A range of addresses.
// It has no CEL rules, unlike `Exclusion`: the operator has clipped and sorted the ranges, and the cost of rules on
// lists within lists would limit the length of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddressRange {
    /// First address of the range (inclusive).
    #[serde(rename = "startIP")]
    pub start_ip: String,
    /// Last address of the range (inclusive).
    #[serde(rename = "endIP")]
    pub end_ip: String,
}

/// A static route through the gateway.
// It has no CEL rules, unlike `Route`, for the same reason as `AddressRange`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteDestination {
    /// Destination network in CIDR notation.
    pub dst: String,
}

/// Observed state of the node, written by its agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPAMNodeStatus {
    /// The metadata.generation of the spec that the agent uses and has saved to disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The spec.reportRequest that the agent had read and saved to disk when it made this report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = REQUEST_LENGTH))]
    pub report_request: Option<String>,
    /// Version of the agent that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Addresses in use on the node, per pool. Includes pools without a block on the node whose addresses are in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Atomic because the agent writes the whole list: it costs one name in managedFields, which every write returns.
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub pools: Vec<BlockUse>,
    /// Position of the agent's journal at the time of this report. It decreases only if the journal was deleted or
    /// replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerPosition>,
    /// ID of the agent's store. It changes if the store was deleted or replaced by another.
    #[serde(rename = "storeID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = IDENTITY_LENGTH))]
    pub store_id: Option<String>,
    /// UUID of the machine, as its firmware shows it. If not set, the firmware shows none.
    #[serde(rename = "systemUUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = IDENTITY_LENGTH))]
    pub system_uuid: Option<String>,
    /// ID of the boot in which the agent made this report. It changes with each start of the machine.
    #[serde(rename = "bootID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = IDENTITY_LENGTH))]
    pub boot_id: Option<String>,
    /// Conditions of the agent. The only type is Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Addresses of one pool in use on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockUse {
    /// Name of the pool.
    pub name: String,
    /// Kind of the pool.
    pub pool_type: PoolType,
    /// First address of the range that the agent used for this report (inclusive).
    #[serde(rename = "startIP")]
    pub start_ip: String,
    /// Last address of the range that the agent used for this report (inclusive).
    #[serde(rename = "endIP")]
    pub end_ip: String,
    /// Grant that this report is about. If not set, the pool has no block on the node, or the agent has not recorded the
    /// grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = GRANT_LENGTH))]
    pub grant: Option<String>,
    /// The agent never allocates from this grant again. If not set, the value is false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
    /// No address of the pool is in use, and the agent allocates from this grant only after a later report without `idle`
    /// that the API server has accepted. If not set, the value is false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub idle: bool,
    /// Number of addresses of the pool in use on the node, inside and outside the range.
    pub used: i64,
    /// Number of addresses that the agent can allocate from the range, in use or free. Values above 2^63-1 are reported
    /// as 2^63-1.
    pub capacity: i64,
    /// Addresses of the pool in use on the node, as at most 64 ascending ranges. If 64 ranges are not enough, they
    /// include free addresses. Agents of earlier versions do not report this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = HELD_RUNS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub held: Vec<AddressRange>,
}

/// Maximum length of the IDs of store, machine and boot.
const IDENTITY_LENGTH: usize = 64;

/// Maximum number of ranges of addresses in use in a report.
pub const HELD_RUNS: usize = 64;

/// Position of the agent's journal, ordered by epoch, then by sequence.
// A lower position than before means that the journal was deleted, or that the disk is back in an earlier state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LedgerPosition {
    /// Number of the journal file. Increases by one with each new file.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Number of the last record in the journal file.
    #[schemars(range(min = 0))]
    pub sequence: i64,
}
