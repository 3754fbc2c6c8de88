//! Which node has which block of a pool.
//!
//! [`plan`] depends on its arguments alone: the same pool, nodes, claims and usage yield the same plan, in whatever
//! order. It must never assign an address to two nodes, or move a block whose addresses may be in use.

mod candidates;
mod claim;
mod give;
mod keep;
mod release_all;

use std::collections::BTreeMap;

pub use claim::{Claim, ClaimSource};

pub use release_all::release_all;

use crate::{AddrRange, Block, Pool};
use candidates::Candidates;
use give::give;
use keep::Kept;

/// The properties of a node that planning uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRef<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
}

/// How many addresses of a node's block are in use, as the node's agent reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// No agent has reported about this block. Counts as in use.
    Unknown,
    /// No address is in use, and none will be: the agent allocates no more from the block.
    Empty,
    /// This many addresses are in use.
    Held(u64),
}

/// The state of an assigned block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BlockPhase {
    /// The block agrees with the spec, and the pool selects its node.
    Active,
    /// The node is gone or no longer selected, or the pool is not served any more. The block is being released: it stays
    /// assigned to the node until it is known to be empty.
    Releasing,
    /// The block disagrees with the spec, but its addresses may be in use. It is kept as it is.
    Stale,
}

/// A block and the node that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The node's name.
    pub node: String,
    /// Its block.
    pub block: Block,
    /// The state of the block.
    pub phase: BlockPhase,
}

/// The result of [`plan`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// The assigned blocks, sorted by node name. At most one for each node.
    pub assignments: Vec<Assignment>,
    /// Selected nodes without a block, sorted by name.
    pub unserved: Vec<String>,
    /// Messages about claims that were not kept and static entries that wait, with the reason.
    pub dropped: Vec<String>,
    /// Blocks in the pool's grid; saturates.
    pub blocks_total: u128,
    /// Number of blocks that can still be assigned. Blocks that are assigned, reserved by a static entry, unavailable or
    /// wholly excluded do not count. Saturates.
    pub blocks_free: u128,
    /// Addresses that can be allocated from the Active and Stale blocks; saturates.
    pub capacity: u128,
}

/// Decides which node has which block (behaviour.md §3).
///
/// `claims` are the records of earlier assignments. `usage` returns the addresses in use of a node's block. It is called
/// only for nodes that are to lose the block. In this order:
/// 1. A claim that agrees with the spec is kept. If its node is gone or no longer selected, it is kept only until the
///    block is known to be empty. The same holds if exclusions leave no address in the block.
/// 2. A claim that disagrees is kept as it is while its addresses may be in use, unless a kept block overlaps it.
/// 3. Selected nodes without a block get their static prefix, or else the lowest free block, by name.
pub fn plan(pool: &Pool, nodes: &[NodeRef<'_>], claims: &[Claim], usage: &dyn Fn(&str) -> Usage) -> Plan {
    plan_with_unavailable(pool, nodes, claims, usage, &[])
}

/// Like [`plan`], but no block with an address of `barred` is newly assigned. These addresses are unavailable: they may
/// be in use by another pool of the same network or from an earlier state of this one. Claims are kept as in [`plan`].
pub fn plan_with_unavailable(
    pool: &Pool,
    nodes: &[NodeRef<'_>],
    claims: &[Claim],
    usage: &dyn Fn(&str) -> Usage,
    barred: &[AddrRange],
) -> Plan {
    let roster = Candidates::new(pool, nodes, claims);
    give(pool, Kept::new(pool, roster, usage), barred)
}
