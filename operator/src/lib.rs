//! The operator (`ipam-controller`): gives blocks of pools to nodes and tells each node its share in an IPAMNode.
//!
//! The way of an event: [`watch`] (what the API server tells) → [`ipam_reconciler`] (what is right, and what is due) → [`act`] (calls).
//! [`controllers`] are kube-runtime's loops around them, [`election`] says whether this replica may act at all.
//!
//! Never: writes the spec of a pool or the status of an IPAMNode, acts while another replica may lead.

pub mod act;
pub mod controllers;
pub mod election;
pub mod flags;
pub mod metrics;
pub mod release_pools;
pub mod run;
pub mod watch;
