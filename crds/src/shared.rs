//! Types of both kinds of pools: exclusions, routes, the node selector, and the counts in their status.
//!
//! The node selector has the fields of core/v1, so that the selector of a Pod's node affinity is valid here. It has
//! types of its own because the schema of core/v1 carries no CEL rules.

#![expect(clippy::struct_field_names, reason = "the fields of a node selector's term have core/v1's names")]

use std::collections::BTreeMap;

use ipam_core::hint::MATCH_LABELS;
use kube::{
    KubeSchema,
    core::{Reason, Rule},
};
use schemars::JsonSchema;
use serde::de::{Deserializer, Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::rules::{
    ADDRESS_LENGTH, CIDR_LENGTH, LABEL_KEY_LENGTH, LABEL_VALUE_LENGTH, NAME_LENGTH, field_rule, ipv4_number,
    is_address, is_cidr, one_line, rule, say,
};

/// A range of excluded addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = same_family(), validation = ipv4_in_order())]
pub struct Exclusion {
    /// First address of the range (inclusive). Must be inside the network of the pool.
    #[serde(rename = "startIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub start_ip: String,
    /// Last address of the range (inclusive). Must be inside the network of the pool and not lower than startIP.
    #[serde(rename = "endIP")]
    #[schemars(length(max = ADDRESS_LENGTH))]
    #[x_kube(validation = is_address())]
    pub end_ip: String,
}

fn same_family() -> Rule {
    field_rule(
        ".endIP",
        "!isIP(self.startIP) || !isIP(self.endIP) || ip(self.startIP).family() == ip(self.endIP).family()",
        Reason::FieldValueInvalid,
        say("%s must be of the same address family as startIP %s", &["self.endIP", "self.startIP"]),
    )
}

fn ipv4_in_order() -> Rule {
    let (start, end) = (ipv4_number("self.startIP"), ipv4_number("self.endIP"));
    field_rule(
        ".endIP",
        format!(
            "!isIP(self.startIP) || !isIP(self.endIP) || ip(self.startIP).family() != 4 || \
             ip(self.endIP).family() != 4 || {start} <= {end}"
        ),
        Reason::FieldValueInvalid,
        say("%s must not be lower than startIP %s", &["self.endIP", "self.startIP"]),
    )
}

/// A range of indexes, excluded in the block of every node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = indexes_in_order())]
pub struct ExclusionIndex {
    /// First index of the range (inclusive). Must not be negative.
    #[schemars(range(min = 0))]
    pub start_index: i32,
    /// Last index of the range (inclusive). Must not be lower than startIndex, and must be inside the block.
    #[schemars(range(min = 0))]
    pub end_index: i32,
}

fn indexes_in_order() -> Rule {
    field_rule(
        ".endIndex",
        "self.startIndex <= self.endIndex",
        Reason::FieldValueInvalid,
        say("%d must not be lower than startIndex %d", &["self.endIndex", "self.startIndex"]),
    )
}

/// A static route through the gateway of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Route {
    /// Destination network in CIDR notation, of the pool's address family. Bits after the prefix length are ignored.
    #[schemars(length(max = CIDR_LENGTH))]
    #[x_kube(validation = is_cidr())]
    pub dst: String,
}

/// Selects nodes by labels or name, with the syntax of a Pod's required node affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = terms_are_needed(), validation = no_labels())]
pub struct NodeSelector {
    /// Required. List of node selector terms, at least one. The terms are ORed.
    // A CEL rule requires the list, not the schema: the schema's error would not say what to write, and would hide all
    // other errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[x_kube(validation = at_least_one_term())]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
    /// Must not be set: a node selector has no matchLabels. Use matchExpressions in nodeSelectorTerms.
    // The API server drops an undeclared field, or calls it unknown without a hint at what to write.
    #[serde(default, deserialize_with = "no_value", skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
}

fn terms_are_needed() -> Rule {
    field_rule(
        ".nodeSelectorTerms",
        "has(self.nodeSelectorTerms) || has(self.matchLabels)",
        Reason::FieldValueRequired,
        say(
            "write nodeSelectorTerms: [{matchExpressions: [{key: KEY, operator: In, values: [VALUE]}]}]; to select every \
             node remove nodeSelector",
            &[],
        ),
    )
}

fn no_labels() -> Rule {
    field_rule(".matchLabels", "!has(self.matchLabels)", Reason::FieldValueForbidden, say(MATCH_LABELS, &[]))
}

/// No object has labels here, unless no API server has seen it.
fn no_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    match Option::<IgnoredAny>::deserialize(deserializer)? {
        None => Ok(None),
        Some(_) => Err(D::Error::custom(MATCH_LABELS)),
    }
}

fn at_least_one_term() -> Rule {
    rule(
        "size(self) > 0",
        Reason::FieldValueRequired,
        say("needs at least one term; to select every node remove nodeSelector", &[]),
    )
}

/// A node selector term. Its requirements are ANDed. A term without requirements matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = no_labels())]
pub struct NodeSelectorTerm {
    /// List of requirements on node labels. The requirements are ANDed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_expressions: Vec<NodeLabelRequirement>,
    /// List of requirements on node fields. The requirements are ANDed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_fields: Vec<NodeFieldRequirement>,
    /// Must not be set: a node selector term has no matchLabels. Use matchExpressions, with one requirement per label.
    #[serde(default, deserialize_with = "no_value", skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// A requirement on one node label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = values_as_operator_wants(), validation = bound_is_integer())]
pub struct NodeLabelRequirement {
    /// Key of the label that the requirement applies to.
    #[schemars(length(max = LABEL_KEY_LENGTH), regex(pattern = LABEL_KEY))]
    pub key: String,
    /// Comparison of the label with values: In, NotIn, Exists, DoesNotExist, Gt or Lt. NotIn and DoesNotExist also
    /// match nodes without the label.
    #[schemars(length(max = 16))]
    #[x_kube(validation = is_label_operator())]
    pub operator: String,
    /// Values to compare with. At least one for In and NotIn, none for Exists and DoesNotExist, one integer for Gt and
    /// Lt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(max = LABEL_VALUE_LENGTH), regex(pattern = LABEL_VALUE)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// A label key as core/v1 validates it: an optional DNS prefix and a name of at most 63 characters. It is a schema
/// pattern and not a CEL rule because the API server estimates a high cost for a regular expression in CEL, and there
/// are many keys.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$";

/// A label value as core/v1 validates it: nothing, or a name. Its length is a bound of its own, by which CEL's cost is
/// reckoned.
const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?$";

fn is_label_operator() -> Rule {
    rule(
        "self in ['In', 'NotIn', 'Exists', 'DoesNotExist', 'Gt', 'Lt']",
        Reason::FieldValueInvalid,
        say("\"%s\" is not an operator; write In, NotIn, Exists, DoesNotExist, Gt or Lt", &[&one_line("self")]),
    )
}

fn values_as_operator_wants() -> Rule {
    let count = "(has(self.values) ? size(self.values) : 0)";
    field_rule(
        ".values",
        format!(
            "self.operator in ['In', 'NotIn'] ? {count} > 0 : \
             (self.operator in ['Exists', 'DoesNotExist'] ? {count} == 0 : \
             (!(self.operator in ['Gt', 'Lt']) || {count} == 1))"
        ),
        Reason::FieldValueInvalid,
        say(
            "operator %s takes %s",
            &[
                "self.operator",
                "self.operator in ['In', 'NotIn'] ? 'at least one value' : \
                 (self.operator in ['Gt', 'Lt'] ? 'exactly one value' : 'no values')",
            ],
        ),
    )
}

/// Labels are compared as integers of 64 bits. Of digits as many as the highest of them has, texts compare as numbers
/// do; of more, with zeros in front, the operator judges.
fn bound_is_integer() -> Rule {
    const BOUND: &str = "self.values[0]";
    field_rule(
        ".values",
        format!(
            "!(self.operator in ['Gt', 'Lt']) || !has(self.values) || size(self.values) != 1 || \
             {BOUND}.matches('^-?0*[0-9]{{1,18}}$') || \
             ({BOUND}.matches('^0*[0-9]{{19}}$') && (size({BOUND}) > 19 || {BOUND} <= '{}'))",
            i64::MAX
        ),
        Reason::FieldValueInvalid,
        say("\"%s\" is no integer of 64 bits, but operator %s takes one", &[&one_line(BOUND), "self.operator"]),
    )
}

/// A requirement on one node field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = one_field_value())]
pub struct NodeFieldRequirement {
    /// Field that the requirement applies to. Must be metadata.name.
    #[schemars(length(max = LABEL_KEY_LENGTH))]
    #[x_kube(validation = is_node_name_field())]
    pub key: String,
    /// Comparison of the field with the value: In or NotIn.
    #[schemars(length(max = 16))]
    #[x_kube(validation = is_field_operator())]
    pub operator: String,
    /// Value to compare with: exactly one node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(max = NAME_LENGTH), regex(pattern = NODE_NAME)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// The name of a node as core/v1 validates it: a DNS subdomain.
const NODE_NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

fn is_node_name_field() -> Rule {
    rule(
        "self == 'metadata.name'",
        Reason::FieldValueInvalid,
        say("\"%s\" is not a field to select nodes by; only metadata.name is", &[&one_line("self")]),
    )
}

fn is_field_operator() -> Rule {
    rule(
        "self in ['In', 'NotIn']",
        Reason::FieldValueInvalid,
        say("\"%s\" is not an operator for fields; write In or NotIn", &[&one_line("self")]),
    )
}

fn one_field_value() -> Rule {
    field_rule(
        ".values",
        "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) == 1)",
        Reason::FieldValueInvalid,
        say("operator %s takes exactly one value for a field", &["self.operator"]),
    )
}

/// Number of nodes by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// Number of nodes with an assigned block.
    #[serde(default)]
    pub served: i32,
    /// Number of selected nodes without a block.
    #[serde(default)]
    pub unserved: i32,
    /// Number of nodes whose block is being released.
    #[serde(default)]
    pub releasing: i32,
}

/// Number of blocks. Values above 2^63-1 are reported as 2^63-1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockCounts {
    /// Number of blocks in the network of the pool, including assigned and reserved blocks.
    #[serde(default)]
    pub total: i64,
    /// Number of blocks that can be assigned to further nodes.
    #[serde(default)]
    pub free: i64,
}

/// Number of addresses. Values above 2^63-1 are reported as 2^63-1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddressCounts {
    /// Number of addresses that agents can allocate from assigned blocks of the current spec, both in use and free.
    /// It does not include excluded addresses and gateways.
    #[serde(default)]
    pub capacity: i64,
    /// Number of addresses in use by pods on all nodes, as reported by the agents. It can lag by up to 20 seconds.
    #[serde(default)]
    pub used: i64,
}
