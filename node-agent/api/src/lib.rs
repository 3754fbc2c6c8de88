//! The gRPC contract between the CNI plugin and the node agent: messages, services, the agent's address, a client.
//!
//! Decides what stands on the wire (behaviour.md §5) and how the agent is reached. Knows nothing about pools, addresses
//! or CNI, and must never change the number or type of a published field: plugins and agents of other versions, and of
//! the original nv-ipam, are at the other end.
//!
//! Features: `client` adds [`client::AgentClient`], `server` adds the traits an agent implements.

pub mod address;
#[cfg(feature = "client")]
pub mod client;
pub mod spool;

pub use address::AgentAddress;

/// Messages and services of the package `nvidia.ipam.node.v1`, generated from `proto/`.
///
/// With the feature `server`: `ipam_service_server::{IpamService, IpamServiceServer}` and
/// `ipam_garbage_service_server::{IpamGarbageService, IpamGarbageServiceServer}`.
pub mod v1 {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        reason = "generated code, documented in the .proto; which of these lints fire depends on the features"
    )]
    tonic::include_proto!("nvidia.ipam.node.v1");
}
