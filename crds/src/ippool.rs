//! `IPPool`: one flat network, divided into blocks of addresses for nodes. Every pod address has the prefix length of
//! the network.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    CustomResource, KubeSchema,
    core::{Reason, Rule},
};
use serde::{Deserialize, Serialize};

use crate::rules::{
    ADDRESS_LENGTH, CIDR_LENGTH, default_gateway_needs, exclusions_inside, field_rule, host_bits, is_address_or_empty,
    is_cidr, no_element, one_default_route, power_of_two, routes_need, routes_of_family, say,
};
use crate::shared::{AddressCounts, BlockCounts, Exclusion, ExclusionIndex, NodeCounts, NodeSelector, Route};
use crate::transitions::{MOST_BLOCKS, keeps_block_size, subnet_keeps_blocks};

/// Desired state of the pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nv-ipam.nvidia.com",
    version = "v1alpha1",
    kind = "IPPool",
    plural = "ippools",
    shortname = "ipp",
    category = "nv-ipam",
    namespaced,
    derive = "PartialEq",
    status = "IPPoolStatus",
    doc = "IPPool divides one subnet into blocks and assigns one block to each selected node. The agent of a node \
           allocates addresses to pods from this block. Pod addresses have the prefix length of the subnet."
)]
#[kube(
    printcolumn(name = "Subnet", type_ = "string", json_path = ".spec.subnet"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".spec.gateway"),
    printcolumn(name = "Block Size", type_ = "integer", json_path = ".spec.perNodeBlockSize"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.served"),
    printcolumn(name = "Free Blocks", type_ = "integer", json_path = ".status.blocks.free"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.addresses.used"),
    printcolumn(name = "Capacity", type_ = "integer", json_path = ".status.addresses.capacity"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Unserved", type_ = "integer", priority = 1, json_path = ".status.nodes.unserved"),
    printcolumn(name = "Releasing", type_ = "integer", priority = 1, json_path = ".status.nodes.releasing"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(validation = keeps_block_size("perNodeBlockSize"), validation = subnet_keeps_blocks())]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = block_fits(),
    validation = gateway_inside(),
    validation = exclusions_inside("subnet"),
    validation = exclusion_indexes_inside(),
    validation = default_gateway_needs("gateway", GATEWAY_SET),
    validation = routes_need("gateway", GATEWAY_SET),
    validation = routes_of_family("subnet"),
    validation = one_default_route()
)]
pub struct IPPoolSpec {
    /// Network of the pool in CIDR notation, IPv4 or IPv6. Blocks are parts of it. Its prefix length is the prefix
    /// length of pod addresses. Bits after the prefix length are ignored.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr())]
    pub subnet: String,
    /// Number of addresses in the block of each node, at least 1. It includes excluded addresses and the gateway. The
    /// subnet must have at least this many usable addresses.
    #[schemars(range(min = 1))]
    pub per_node_block_size: i64,
    /// Gateway address of pods, inside the subnet. It is allocated only to a pod that requests it. If not set or empty,
    /// pods have no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address_or_empty())]
    pub gateway: Option<String>,
    /// Address ranges in the subnet to exclude. An excluded address is allocated only to a pod that requests it. Ranges
    /// may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<Exclusion>,
    /// Index ranges to exclude in the block of every node. Index 0 is the first address of the block. An excluded
    /// address is allocated only to a pod that requests it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub per_node_exclusions: Vec<ExclusionIndex>,
    /// Selects the nodes that the operator assigns a block to. If not set, the pool selects every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Whether pods have a default route through the gateway. True requires gateway. If not set, the value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_gateway: Option<bool>,
    /// Deprecated: use defaultGateway. True in either field adds the default route. If not set, the value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaut_gateway: Option<bool>,
    /// Static routes of pods through the gateway. Routes require gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub routes: Vec<Route>,
}

impl IPPoolSpec {
    /// Whether pods get a default route: true in either spelling of the field counts.
    pub fn default_gateway(&self) -> bool {
        self.default_gateway == Some(true) || self.defaut_gateway == Some(true)
    }
}

/// CEL: a gateway is given.
const GATEWAY_SET: &str = "(has(self.gateway) && self.gateway != '')";

/// The block is no larger than the subnet has usable addresses: 1 in a /32 or /128, 2 in a /31 or /127, else all but
/// the network address and, in IPv4, the broadcast address.
fn block_fits() -> Rule {
    let bits = host_bits("self.subnet", "cidr(self.subnet).prefixLength()");
    let all = power_of_two(&bits);
    let usable = format!("({all} - ({bits} < 2 ? 0 : (cidr(self.subnet).ip().family() == 4 ? 2 : 1)))");
    field_rule(
        ".perNodeBlockSize",
        format!("!isCIDR(self.subnet) || {bits} > 62 || self.perNodeBlockSize <= {usable}"),
        Reason::FieldValueInvalid,
        say(
            "a block of %d addresses does not fit in subnet %s, which has %d usable",
            &["self.perNodeBlockSize", "self.subnet", &usable],
        ),
    )
}

fn gateway_inside() -> Rule {
    field_rule(
        ".gateway",
        "!has(self.gateway) || !isIP(self.gateway) || !isCIDR(self.subnet) || \
         cidr(self.subnet).containsIP(self.gateway)",
        Reason::FieldValueInvalid,
        say("%s must lie inside subnet %s", &["self.gateway", "self.subnet"]),
    )
}

fn exclusion_indexes_inside() -> Rule {
    no_element(
        "perNodeExclusions",
        "self.perNodeBlockSize >= 1",
        "x.endIndex >= self.perNodeBlockSize",
        &say("endIndex %d must be lower than perNodeBlockSize %d", &["x.endIndex", "self.perNodeBlockSize"]),
    )
}

/// Observed state of the pool, written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// The metadata.generation of the pool that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Blocks assigned to nodes, at most one per node, sorted by node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Atomic because the operator alone writes the list: as a map, managedFields would be half of the object at 5,000
    // nodes.
    #[schemars(length(max = MOST_BLOCKS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub allocations: Vec<IPPoolAllocation>,
    /// Blocks that are being released, sorted by node name. Agents do not allocate addresses from them, and the
    /// operator does not assign them to other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub releasing: Vec<IPPoolRelease>,
    /// Conditions of the pool, one for each of the types Ready, Exhausted, Degraded, Releasing
    /// and AllocationPaused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Number of nodes by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Number of blocks. Values above 2^63-1 are reported as 2^63-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockCounts>,
    /// Number of addresses. Values above 2^63-1 are reported as 2^63-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
}

/// The block assigned to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolAllocation {
    /// Name of the node.
    pub node_name: String,
    /// First address of the block (inclusive).
    #[serde(rename = "startIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub start_ip: String,
    /// Last address of the block (inclusive).
    #[serde(rename = "endIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub end_ip: String,
}

/// A block that is being released by its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolRelease {
    /// Name of the node.
    pub node_name: String,
    /// First address of the block (inclusive).
    #[serde(rename = "startIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub start_ip: String,
    /// Last address of the block (inclusive).
    #[serde(rename = "endIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub end_ip: String,
    /// Time at which the release began. Absent if the status of the pool is too large for times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Time since which the Node object does not exist. The operator counts --released-block-grace from this time.
    /// Absent while the Node exists, or if the status of the pool is too large for times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone_since: Option<Time>,
}
