//! `CIDRPool`: one large network, divided into one prefix for each node. Each prefix has its own gateway.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    CustomResource, KubeSchema,
    core::{Reason, Rule},
};
use serde::{Deserialize, Serialize};

use crate::rules::{
    ADDRESS_LENGTH, CIDR_LENGTH, NAME_LENGTH, default_gateway_needs, exclusions_inside, field_rule, host_bits, is_cidr,
    no_element, no_host_bits, one_default_route, power_of_two, routes_need, routes_of_family, say,
};
use crate::shared::{AddressCounts, BlockCounts, Exclusion, ExclusionIndex, NodeCounts, NodeSelector, Route};
use crate::transitions::{MOST_BLOCKS, cidr_keeps_blocks, keeps_block_size};

/// Desired state of the pool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nv-ipam.nvidia.com",
    version = "v1alpha1",
    kind = "CIDRPool",
    plural = "cidrpools",
    shortname = "cidrp",
    category = "nv-ipam",
    namespaced,
    derive = "PartialEq",
    status = "CIDRPoolStatus",
    doc = "CIDRPool divides one network into prefixes and assigns one prefix to each selected node. The agent of a node \
           allocates addresses to pods from this prefix. Each prefix is a subnet with its own gateway."
)]
#[kube(
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "Gateway index", type_ = "integer", json_path = ".spec.gatewayIndex"),
    printcolumn(name = "Per Node Network Prefix", type_ = "integer", json_path = ".spec.perNodeNetworkPrefix"),
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
#[kube(validation = keeps_block_size("perNodeNetworkPrefix"), validation = cidr_keeps_blocks())]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = prefix_fits(),
    validation = gateway_index_inside(),
    validation = exclusions_inside("cidr"),
    validation = exclusion_indexes_inside(),
    validation = static_entries_fit(),
    validation = default_gateway_needs("gatewayIndex", GATEWAY_SET),
    validation = routes_need("gatewayIndex", GATEWAY_SET),
    validation = routes_of_family("cidr"),
    validation = one_default_route()
)]
pub struct CIDRPoolSpec {
    /// Network of the pool in CIDR notation, IPv4 or IPv6. It is divided into prefixes, one per node. Bits after the
    /// prefix length must be zero.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr(), validation = no_host_bits())]
    pub cidr: String,
    /// Prefix length of each node's prefix, in bits. Must be at least the prefix length of cidr, and at most 32 (IPv4)
    /// or 128 (IPv6).
    #[schemars(range(min = 1, max = 128))]
    pub per_node_network_prefix: i32,
    /// Index of the gateway in each prefix. Index 0 is the network address, allowed only in prefixes of one or two
    /// addresses. If not set, only static allocations can have a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub gateway_index: Option<i32>,
    /// Address ranges in the network to exclude. An excluded address is allocated only to a pod that requests it.
    /// Ranges may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<Exclusion>,
    /// Index ranges to exclude in the prefix of every node. Index 0 is the network address of the prefix. An excluded
    /// address is allocated only to a pod that requests it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub per_node_exclusions: Vec<ExclusionIndex>,
    /// Prefixes reserved for one node each, or for no node. The operator does not assign them to other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Atomic, as in nv-ipam: as a map, managedFields would name every prefix, and each write, even of the status alone,
    // would take the API server seconds. `ipam-core` checks that prefixes and nodes are unique. Many more entries do
    // not fit into an object: the status repeats them, and etcd's default limit is 1.5 MiB.
    #[schemars(length(max = 8192))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub static_allocations: Vec<StaticAllocation>,
    /// Selects the nodes that the operator assigns a prefix to. If not set, the pool selects every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Whether pods have a default route through the gateway. True requires gatewayIndex. If not set, the value is
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_gateway: Option<bool>,
    /// Deprecated: use defaultGateway. True in either field adds the default route. If not set, the value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaut_gateway: Option<bool>,
    /// Static routes of pods through the gateway. Routes require gatewayIndex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub routes: Vec<Route>,
}

impl CIDRPoolSpec {
    /// Whether pods get a default route: true in either spelling of the field counts.
    pub fn default_gateway(&self) -> bool {
        self.default_gateway == Some(true) || self.defaut_gateway == Some(true)
    }
}

/// CEL: a gateway is given.
const GATEWAY_SET: &str = "has(self.gatewayIndex)";

/// CEL: the length of nodes' prefixes is one, so that other fields can be judged by it.
const LENGTH_KNOWN: &str = "self.perNodeNetworkPrefix >= 1 && \
    self.perNodeNetworkPrefix <= (isCIDR(self.cidr) && cidr(self.cidr).ip().family() == 4 ? 32 : 128)";

/// The length of nodes' prefixes lies between that of the pool and that of an address.
fn prefix_fits() -> Rule {
    let bits = "(cidr(self.cidr).ip().family() == 4 ? 32 : 128)";
    field_rule(
        ".perNodeNetworkPrefix",
        format!(
            "!isCIDR(self.cidr) || (self.perNodeNetworkPrefix >= cidr(self.cidr).prefixLength() && \
             self.perNodeNetworkPrefix <= {bits})"
        ),
        Reason::FieldValueInvalid,
        say(
            "%d must be from %d, the prefix length of cidr, to %d",
            &["self.perNodeNetworkPrefix", "cidr(self.cidr).prefixLength()", bits],
        ),
    )
}

/// The gateway is one of the prefix's hosts: not its network address or IPv4 broadcast address, unless it is so small
/// that it has none.
fn gateway_index_inside() -> Rule {
    let bits = host_bits("self.cidr", "self.perNodeNetworkPrefix");
    let last = format!("({} - ({bits} < 2 || cidr(self.cidr).ip().family() == 6 ? 1 : 2))", power_of_two(&bits));
    field_rule(
        ".gatewayIndex",
        format!(
            "!has(self.gatewayIndex) || !isCIDR(self.cidr) || !({LENGTH_KNOWN}) || ((self.gatewayIndex > 0 || {bits} < 2) && \
             ({bits} > 62 || self.gatewayIndex <= {last}))"
        ),
        Reason::FieldValueInvalid,
        say(
            "%d is no host of a /%d prefix; write a number from %d to %d",
            &[
                "self.gatewayIndex",
                "self.perNodeNetworkPrefix",
                &format!("{bits} < 2 ? 0 : 1"),
                &format!("{bits} > 31 ? {} : {last}", i32::MAX),
            ],
        ),
    )
}

fn exclusion_indexes_inside() -> Rule {
    let bits = host_bits("self.cidr", "self.perNodeNetworkPrefix");
    let size = power_of_two(&bits);
    no_element(
        "perNodeExclusions",
        &format!("isCIDR(self.cidr) && {LENGTH_KNOWN} && {bits} <= 62"),
        &format!("x.endIndex >= {size}"),
        &say(
            "endIndex %d must be lower than %d, the number of addresses in a /%d prefix",
            &["x.endIndex", &size, "self.perNodeNetworkPrefix"],
        ),
    )
}

/// The static entry `x` fits into the network `c`, and its gateway into its prefix `p`.
const STATIC_FITS: &str = "isCIDR(x.prefix) && [cidr(x.prefix)].all(p, p == p.masked() && \
    p.prefixLength() == self.perNodeNetworkPrefix && c.containsCIDR(p) && \
    (!has(x.gateway) || x.gateway == '' || (isIP(x.gateway) && p.containsIP(x.gateway))))";

/// CEL: nothing of what [`static_entries_fit`] reads has changed.
const STATICS_STAY: &str = "oldSelf.hasValue() && has(oldSelf.value().staticAllocations) && \
    self.cidr == oldSelf.value().cidr && self.perNodeNetworkPrefix == oldSelf.value().perNodeNetworkPrefix && \
    self.staticAllocations == oldSelf.value().staticAllocations";

/// Static entries are networks within the pool's, of the right length, and their gateways lie in them.
///
/// There may be thousands, and an API server evaluates the rules of the spec at each write, also of the status alone.
/// So this is one rule over all of them, none at each, which parses a text once and passes over what has not changed.
/// It names the first wrong entry; what is wrong with it, and whether prefixes or nodes stand twice, is told by whoever
/// else judges it.
fn static_entries_fit() -> Rule {
    const ALL: &str = "self.staticAllocations";
    let bad = format!("[cidr(self.cidr)].map(c, {ALL}.filter(x, !({STATIC_FITS})).map(x, x.prefix))[0]");
    let more = format!("size(bad) == 1 ? '' : {}", say(" (and %d more like this)", &["size(bad) - 1"]));
    let message = say(
        "the entry with prefix \"%s\" does not fit: a prefix is a network inside cidr %s, of the length perNodeNetworkPrefix, \
         which is %d, without host bits, and its gateway an address in it%s",
        &["bad[0]", "self.cidr", "self.perNodeNetworkPrefix", &more],
    );
    field_rule(
        ".staticAllocations",
        format!(
            "!has({ALL}) || !(isCIDR(self.cidr) && {LENGTH_KNOWN}) || ({STATICS_STAY}) || \
             [cidr(self.cidr)].all(c, {ALL}.all(x, {STATIC_FITS}))"
        ),
        Reason::FieldValueInvalid,
        format!("[{bad}].map(bad, {message})[0]"),
    )
    .optional_old_self(true)
}

/// A prefix reserved for one node, or for no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticAllocation {
    /// Name of the node that the prefix is reserved for, unique in the list. nodeSelector must select the node. If not
    /// set or empty, the prefix is assigned to no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = NAME_LENGTH))]
    pub node_name: Option<String>,
    /// Gateway address of the prefix, inside the prefix. If not set or empty, gatewayIndex applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub gateway: Option<String>,
    /// The prefix in CIDR notation, inside cidr, unique in the list. Its prefix length must be perNodeNetworkPrefix.
    /// Bits after the prefix length must be zero.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
}

/// Observed state of the pool, written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolStatus {
    /// The metadata.generation of the pool that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Prefixes assigned to nodes, at most one per node, sorted by node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Atomic because the operator alone writes the list: as a map, managedFields would be half of the object at 5,000
    // nodes.
    #[schemars(length(max = MOST_BLOCKS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub allocations: Vec<CIDRPoolAllocation>,
    /// Prefixes that are being released, sorted by node name. Agents do not allocate addresses from them, and the
    /// operator does not assign them to other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub releasing: Vec<CIDRPoolRelease>,
    /// Conditions of the pool, one for each of the types Ready, Exhausted, Degraded, Releasing
    /// and AllocationPaused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Number of nodes by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Number of prefixes. Values above 2^63-1 are reported as 2^63-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockCounts>,
    /// Number of addresses. Values above 2^63-1 are reported as 2^63-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
}

/// The prefix assigned to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolAllocation {
    /// Name of the node.
    pub node_name: String,
    /// The prefix in CIDR notation.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
    /// Gateway address of the prefix. Absent if the prefix has no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// A prefix that is being released by its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolRelease {
    /// Name of the node.
    pub node_name: String,
    /// The prefix in CIDR notation.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
    /// Gateway address of the prefix. Absent if the prefix has no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Time at which the release began. Absent if the status of the pool is too large for times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Time since which the Node object does not exist. The operator counts --released-block-grace from this time.
    /// Absent while the Node exists, or if the status of the pool is too large for times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone_since: Option<Time>,
}
