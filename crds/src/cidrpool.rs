//! `CIDRPool`: one large network, cut into a network of its own for each node, with a gateway of its own.

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

/// What a CIDRPool is made of, written by its user.
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
    doc = "CIDRPool gives each selected node a prefix of its own out of one network. Pods on the node get their addresses \
           from its prefix, with the mask and the gateway of the prefix."
)]
#[kube(
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "Gateway index", type_ = "integer", json_path = ".spec.gatewayIndex"),
    printcolumn(name = "Per Node Network Prefix", type_ = "integer", json_path = ".spec.perNodeNetworkPrefix"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.addresses.used"),
    printcolumn(name = "Capacity", type_ = "integer", json_path = ".status.addresses.capacity"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
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
    /// The pool's network in CIDR notation, without host bits. It is cut into one prefix for each node.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr(), validation = no_host_bits())]
    pub cidr: String,
    /// Prefix length of each node's network, in bits. Not shorter than that of cidr.
    #[schemars(range(min = 1, max = 128))]
    pub per_node_network_prefix: i32,
    /// Position of the gateway in each node's prefix, counted from its network address. Without it there is no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub gateway_index: Option<i32>,
    /// Addresses that are not given to pods. Ranges may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub exclusions: Vec<Exclusion>,
    /// Positions in the prefix of each node that are not given to pods. Position 0 is the prefix's network address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub per_node_exclusions: Vec<ExclusionIndex>,
    /// Prefixes that are reserved for certain nodes, or for none. They are never given to other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // Written whole, as in nv-ipam: as a map, managedFields would name every prefix, and each write, also one of the status
    // alone, would take the API server seconds. That prefixes and nodes stand once is for `ipam-core` to say. Many more entries
    // do not fit into an object beside the status that names them again: etcd takes 1.5 MiB unless told otherwise.
    #[schemars(length(max = 8192))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub static_allocations: Vec<StaticAllocation>,
    /// Nodes that get a prefix. Without it every node does.
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

/// The gateway is one of the prefix's hosts: not its network address or IPv4 broadcast address, unless it is so small that
/// it has none.
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
/// There may be thousands, and an API server evaluates the rules of the spec at each write, also of the status alone. So this is
/// one rule over all of them, none at each, which parses a text once and passes over what has not changed. It names the first
/// wrong entry; what is wrong with it, and whether prefixes or nodes stand twice, is told by whoever else judges it.
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

/// A prefix that the user gives to a certain node, or to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticAllocation {
    /// Name of the node that gets the prefix, at most once in the pool. Empty: the prefix is reserved and nobody gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = NAME_LENGTH))]
    pub node_name: Option<String>,
    /// Gateway of this prefix. Empty: the address at gatewayIndex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    pub gateway: Option<String>,
    /// The prefix in CIDR notation, without host bits, inside cidr and of the length perNodeNetworkPrefix.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
}

/// What the operator says about a CIDRPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Which node holds which prefix, sorted by node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // One writer writes it whole: as a map, managedFields would grow with it and be half of the object at 5,000 nodes.
    #[schemars(length(max = MOST_BLOCKS))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub allocations: Vec<CIDRPoolAllocation>,
    /// Blocks that are being taken back, sorted by node name: nothing more is given from them, and nobody else gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub releasing: Vec<CIDRPoolRelease>,
    /// Conditions of the pool: Ready, Exhausted, Degraded, Releasing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// How many nodes are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// How many prefixes there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockCounts>,
    /// How many addresses there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
}

/// The prefix of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolAllocation {
    /// Name of the node.
    pub node_name: String,
    /// The prefix in CIDR notation.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
    /// Gateway of the prefix, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// A block that is being taken back from its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CIDRPoolRelease {
    /// Name of the node.
    pub node_name: String,
    /// The prefix in CIDR notation.
    #[schemars(length(max = CIDR_LENGTH))]
    pub prefix: String,
    /// Gateway of the prefix, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Since when it is being taken back.
    pub since: Time,
    /// Since when there is no such Node any more; absent while there is. From here --released-block-grace counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone_since: Option<Time>,
}
