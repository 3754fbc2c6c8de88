//! The Kubernetes API of the IPAM: `IPPool`, `CIDRPool` and `IPAMNode` in `nv-ipam.nvidia.com/v1alpha1`.
//!
//! This crate decides what an object looks like and what the API server itself refuses (CEL rules beside the fields). It
//! must never decide anything else: the rules of address management are `ipam-core`'s, which judges every spec again and
//! in full. A CEL rule here may say less than the core, never more.
//!
//! The YAML beside `Cargo.toml` is [`custom_resource_definitions`] written down; a test keeps it so.

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

/// The three CustomResourceDefinitions as they are to be applied: IPPool, CIDRPool, IPAMNode.
pub fn custom_resource_definitions() -> [CustomResourceDefinition; 3] {
    [IPPool::crd(), CIDRPool::crd(), IPAMNode::crd()].map(without_nullable)
}

/// Takes `nullable` away from every field of a definition.
///
/// The derive marks each `Option` as nullable. The API server would then keep an explicit `null`, and CEL rules, which
/// ask with `has()`, would take it for a value. Optional here means absent.
fn without_nullable(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let versions = definition.spec.versions.iter_mut();
    for schema in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        clear_nullable(schema);
    }
    definition
}

fn clear_nullable(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        clear_nullable(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        clear_nullable(items);
    }
}
