//! The Kubernetes API of the IPAM: `IPPool`, `CIDRPool` and `IPAMNode` in `nv-ipam.nvidia.com/v1alpha1`.
//!
//! This crate decides the fields of an object and the CEL rules that the API server checks. It must never decide
//! anything else: `ipam-core` has the rules of address management and checks every spec in full. A CEL rule must never
//! refuse a spec that the core accepts.
//!
//! Doc comments of types and fields are the descriptions that `kubectl explain` shows. Notes for maintainers
//! are `//` comments. The YAML beside `Cargo.toml` is [`custom_resource_definitions`] as text. A test keeps it up to
//! date.

#![expect(clippy::duplicated_attributes, reason = "printer columns share attribute names, each within its own column")]
#![expect(unreachable_pub, reason = "the schema derive copies every struct, with its `pub`, into a function body")]

pub mod cidrpool;
pub mod convert;
pub mod ipamnode;
pub mod ippool;
pub mod read;
mod rules;
pub mod shared;
mod transitions;

pub use cidrpool::{CIDRPool, CIDRPoolAllocation, CIDRPoolRelease, CIDRPoolSpec, CIDRPoolStatus, StaticAllocation};
pub use ipamnode::{
    AddressRange, BlockState, BlockUse, HELD_RUNS, IPAMNode, IPAMNodeSpec, IPAMNodeStatus, LedgerPosition, NodeBlock,
    PoolType, RouteDestination,
};
pub use ippool::{IPPool, IPPoolAllocation, IPPoolRelease, IPPoolSpec, IPPoolStatus};
pub use shared::{
    AddressCounts, BlockCounts, Exclusion, ExclusionIndex, NodeCounts, NodeFieldRequirement, NodeLabelRequirement,
    NodeSelector, NodeSelectorTerm, Route,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

/// API group of all three kinds.
pub const GROUP: &str = "nv-ipam.nvidia.com";
/// API version of all three kinds.
pub const VERSION: &str = "v1alpha1";

/// The three CustomResourceDefinitions as the chart installs them: IPPool, CIDRPool, IPAMNode.
pub fn custom_resource_definitions() -> [CustomResourceDefinition; 3] {
    [IPPool::crd(), CIDRPool::crd(), IPAMNode::crd()].map(published)
}

/// The definition without `nullable` and with each description on one line.
///
/// The derive marks each `Option` as nullable. The API server would then keep an explicit `null`, and a CEL rule with
/// `has()` would treat it as a value. The derive also keeps the line breaks of doc comments, and `kubectl explain`
/// shows them.
fn published(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let versions = definition.spec.versions.iter_mut();
    for schema in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        publish(schema);
    }
    definition
}

fn publish(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.description = schema.description.take().map(|text| text.replace('\n', " "));
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        publish(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        publish(items);
    }
}
