//! The operator (`ipam-controller`): assigns blocks of pools to nodes, and writes the blocks of each node into its IPAMNode.
//!
//! The path of an event: [`watch`] (events of the API server) → [`ipam_reconciler`] (decisions and due steps) → [`api_writer`] (calls).
//! [`controllers`] runs kube-runtime's Controllers around them. [`election`] decides whether this replica may act.
//!
//! The operator never writes the spec of a pool or the status of an IPAMNode, and never acts while another replica may lead.

pub mod api_writer;
pub mod controllers;
pub mod definitions;
pub mod election;
pub mod events;
pub mod flags;
pub mod metrics;
pub mod release_pools;
pub mod run;
pub mod watch;
