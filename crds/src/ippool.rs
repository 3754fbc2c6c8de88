//! `IPPool`: one flat network, cut into runs of addresses for nodes. Every pod gets the mask of the whole network.

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

/// What an IPPool is made of, written by its user.
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
    doc = "IPPool gives each selected node a run of addresses (a block) out of one subnet. Pods on the node get their \
           addresses from its block, with the mask of the subnet."
)]
#[kube(
    printcolumn(name = "Subnet", type_ = "string", json_path = ".spec.subnet"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".spec.gateway"),
    printcolumn(name = "Block Size", type_ = "integer", json_path = ".spec.perNodeBlockSize"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.addresses.used"),
    printcolumn(name = "Capacity", type_ = "integer", json_path = ".status.addresses.capacity"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
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
    /// The pool's network in CIDR notation. Blocks are cut from it, and its prefix length is the mask of pods' addresses.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr())]
    pub subnet: String,
    /// Number of addresses in the block of each node.
    #[schemars(range(min = 1))]
    pub per_node_block_size: i64,
    /// Gateway of the subnet. It is never given to a pod unless the pod asks for it. Empty means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address_or_empty())]
    pub gateway: Option<String>,
    /// Addresses that are not given to pods. Ranges may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<Exclusion>,
    /// Positions in the block of each node that are not given to pods. Position 0 is the block's first address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub per_node_exclusions: Vec<ExclusionIndex>,
    /// Nodes that get a block. Without it every node does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Gives pods a default route through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_gateway: Option<bool>,
    /// Deprecated: an old spelling of defaultGateway, which is meant. True in either of the two counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaut_gateway: Option<bool>,
    /// Static routes that pods get, through the gateway.
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

/// The block is no larger than the subnet has usable addresses: 1 in a /32 or /128, 2 in a /31 or /127, else all but the
/// network address and, in IPv4, the broadcast address.
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

/// What the operator says about an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Which node holds which block, sorted by node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // One writer writes it whole: as a map, managedFields would grow with it and be half of the object at 5,000 nodes.
    #[schemars(length(max = MOST_BLOCKS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub allocations: Vec<IPPoolAllocation>,
    /// Blocks that are being taken back, sorted by node name: nothing more is given from them, and nobody else gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub releasing: Vec<IPPoolRelease>,
    /// Conditions of the pool: Ready, Exhausted, Degraded, Releasing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// How many nodes are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// How many blocks there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockCounts>,
    /// How many addresses there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
}

/// The block of one node.
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

/// A block that is being taken back from its node.
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
    /// Since when it is being taken back.
    pub since: Time,
    /// Since when there is no such Node any more; absent while there is. From here --released-block-grace counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone_since: Option<Time>,
}
