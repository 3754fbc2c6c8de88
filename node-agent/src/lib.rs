//! The node agent (ipam-node): gives addresses of its node's blocks to pods, durably.
//!
//! The way of a call: [`rpc`] (wire → request) → [`allocator`] (one thread owns ledger and store) → [`ipam_node_store`] (journal,
//! one sync for a batch) → answer. Around it: [`watch`] brings the node's blocks, [`note`] is what the agent knows of them,
//! [`lost`] has the addresses of a report that no record is left of, [`status`] reports what is in use and gets grants
//! confirmed, [`gc`] frees what pods left behind and asks the [`runtime`] for that, [`reclaim`] what no pod has and no record names, [`spool`] what a DEL has left without an
//! agent, [`room`] follows whether the disk is full, [`install`] puts the CNI plugin in place. [`command`] is `ipam-node store`, without the agent.
//!
//! It never answers ADD before the record is durable, never gives an address twice, never fails DEL because something is
//! already gone, and never needs the API server for any of these. Only a new block does: the agent allocates from it once the
//! API server has confirmed its grant.

pub mod allocator;
pub mod blocks;
pub mod command;
pub mod contact;
mod files;
pub mod flags;
pub mod gc;
pub mod identity;
pub mod import;
pub mod install;
pub mod lost;
pub mod metrics;
mod network_status;
pub mod note;
pub mod problem;
pub mod ready;
pub mod reclaim;
pub mod reclaimer;
pub mod room;
pub mod rpc;
pub mod run;
pub mod runtime;
pub mod socket;
pub mod spec;
pub mod spool;
pub mod standing;
pub mod status;
mod text;
pub mod watch;

// k8s-openapi is named in Cargo.toml also to choose the Kubernetes version that kube is built for.
