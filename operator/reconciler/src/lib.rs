//! The operator's state machine: who gets which block, what pools say of it, and which calls are due.
//!
//! The way of an event through the crate: [`objects`] (as they are on the wire) → [`index`], [`pool`], [`ipam_node`] (plain data) →
//! [`reconcile`] (what is due) → [`decide`] (what is right; pure) → [`calls`] (what is to be called).
//!
//! Never: makes a call or decides by a clock, gives an address to two nodes, takes away what an invalid spec gave before.

pub mod absence;
pub mod calls;
pub mod decide;
pub mod facts;
pub mod given;
pub mod index;
pub mod ipam_node;
pub mod metrics;
pub mod objects;
pub mod pool;
pub mod reconcile;
