//! The operator (`ipam-controller`): gives blocks of pools to nodes and tells each node its share in an IPAMNode.
//!
//! The way of an event through the crate: [`watch`] (what the API server tells) → [`index`], [`pool`], [`ipam_node`]
//! (plain data) → [`reconcile`] (what is due) → [`decide`] (what is right; pure) → [`act`] (calls). [`controllers`] are
//! kube-runtime's loops around them, [`election`] says whether this replica may act at all.
//!
//! Never: gives an address to two nodes, takes away what an invalid spec gave before, writes the spec of a pool or the
//! status of an IPAMNode.

pub mod absence;
pub mod act;
pub mod controllers;
pub mod decide;
pub mod election;
pub mod facts;
pub mod flags;
pub mod index;
pub mod ipam_node;
pub mod metrics;
pub mod objects;
pub mod pool;
pub mod reconcile;
pub mod release_pools;
pub mod run;
pub mod validate;
pub mod watch;
pub mod webhook;
