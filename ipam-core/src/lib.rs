//! The rules of address management.
//!
//! This crate decides; it never acts. It reads no clock, file, socket or random number: time and ids come in as
//! arguments, and the same input always gives the same output. Nothing here enumerates a range: all arithmetic is on
//! interval ends in `u128`, so an IPv6 /8 costs what an IPv4 /30 costs.
//!
//! The way of an address through the crate:
//! [`spec`] (what a user wrote) → [`Pool`] (what is valid) → [`plan()`] (nodes → [`Block`]s) → [`NodePool`] (what one
//! node may give) → [`ledger`] (requests → addresses).

pub mod addr;
pub mod advice;
pub mod edit;
pub mod grant;
pub mod hint;
pub mod key;
pub mod ledger;
pub mod names;
pub mod node_pool;
pub mod occupancy;
pub mod overlap;
pub mod plan;
pub mod pool;
mod quoted;
pub mod run_set;
pub mod selector;
pub mod spec;
pub mod violation;
pub mod words;

pub use addr::{AddrRange, Cidr, Family};
pub use advice::{Advice, AdviceCode, advise, advise_annotation, advise_nodes};
pub use edit::{Displaced, Held, displaced};
pub use grant::GrantId;
pub use key::{PoolKey, PoolKind};
pub use node_pool::{NodePool, Pause, PoolState};
pub use occupancy::Occupancy;
pub use overlap::{Contender, Contenders, settle};
pub use plan::{Assignment, Claim, ClaimSource, NodeRef, Plan, Standing, Usage, plan};
pub use pool::{Block, Pool};
pub use run_set::RunSet;
pub use selector::NodeSelector;
pub use violation::{Reason, Violation};
