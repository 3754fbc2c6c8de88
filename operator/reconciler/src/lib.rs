//! The operator's state machine: which node has which block, the statuses of pools, and which calls are due.
//!
//! The path of an event through the crate: [`objects`] (as on the wire) → [`cluster_cache`], [`pool`], [`ipam_node`] (plain data) → [`reconcile`]
//! (what is due) → [`decide`] (the decision; pure) → [`calls`] (the calls to make).
//!
//! The crate makes no call and bases no decision on a clock. It never assigns an address to two nodes. An invalid spec releases no block.

pub mod allocation_state;
pub mod calls;
pub mod cluster_cache;
pub mod decide;
pub mod facts;
pub mod ipam_node;
pub mod metrics;
pub mod node_absence;
pub mod objects;
pub mod pool;
pub mod reconcile;
