//! The rules of address management.
//!
//! This crate makes decisions and has no side effects. It reads no clock, file, socket or random number: callers pass in
//! time and IDs. The same input always produces the same output. No code here enumerates a range. All arithmetic is on
//! interval ends in `u128`, so an IPv6 /8 costs the same as an IPv4 /30.
//!
//! The path of an address through the crate:
//! [`spec`] (user input) → [`Pool`] (valid spec) → [`plan()`] (nodes → [`Block`]s) → [`NodePool`] (the share of one node)
//! → [`ledger`] (requests → addresses).

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
pub mod range_set;
pub mod selector;
pub mod spec;
pub mod violation;
pub mod words;

pub use addr::{AddrRange, Cidr, Family};
pub use advice::{Advice, AdviceCode, advise, advise_annotation, advise_nodes};
pub use edit::{AffectedNode, Held, displaced};
pub use grant::GrantId;
pub use key::{PoolKey, PoolKind};
pub use node_pool::{NodePool, Pause, PoolState};
pub use occupancy::Occupancy;
pub use overlap::{OverlapCandidate, OverlapCandidates, settle};
pub use plan::{Assignment, BlockPhase, Claim, ClaimSource, NodeRef, Plan, Usage, plan};
pub use pool::{Block, Pool};
pub use range_set::RangeSet;
pub use selector::NodeSelector;
pub use violation::{Reason, Violation};
