//! Which node has which block of a pool.
//!
//! [`plan`] is a function of its arguments alone: the same pool, nodes, records and usage give the same plan, in whatever
//! order they are told. What it must never do: give two nodes one address, or move a block whose addresses may be held.

mod claim;
mod give;
mod keep;
mod roster;
mod wind_down;

use std::collections::BTreeMap;

pub use claim::{Claim, ClaimSource};

pub use wind_down::wind_down;

use crate::{AddrRange, Block, Pool};
use give::give;
use keep::Kept;
use roster::Roster;

/// A node, as far as planning cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRef<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
}

/// How many addresses of a node's block pods hold, as the node's agent reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// No agent has reported about this block. Counts as held.
    Unknown,
    /// None is held, and none will be: the node gives no more from it.
    Empty,
    /// So many are held.
    Held(u64),
}

/// How an assigned block stands to the spec and to the nodes there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Standing {
    /// A block as the spec wants it, of a node that the pool selects.
    Serving,
    /// The node is gone or no longer selected, or the pool serves nobody any more. The block is being taken back: it stays
    /// with the node's name, and is given to nobody else, until it is known to be empty.
    Departed,
    /// The block no longer agrees with the spec, but its addresses may be held: it is kept as it is.
    Outdated,
}

/// A block and the node that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The node's name.
    pub node: String,
    /// Its block.
    pub block: Block,
    /// What is to be thought of it.
    pub standing: Standing,
}

/// What [`plan`] decides.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// By node name; one for each node at most.
    pub assignments: Vec<Assignment>,
    /// Selected nodes left without a block, by name.
    pub unserved: Vec<String>,
    /// For people: records that were not honoured and static entries that wait, and why.
    pub dropped: Vec<String>,
    /// Blocks in the pool's grid; saturates.
    pub blocks_total: u128,
    /// Blocks that a further node could be given: neither assigned, nor reserved by a static entry, nor wholly excluded.
    /// Saturates.
    pub blocks_free: u128,
    /// Addresses that the serving blocks can give; saturates.
    pub capacity: u128,
}

/// Decides which node has which block (behaviour.md §3).
///
/// `claims` are the records of what was given before, `usage` tells how much of a node's block is held; it is asked only
/// about nodes that are to lose the block. In this order:
/// 1. A claim that agrees with the spec is kept; that of a node that is gone or no longer selected only until the block is
///    known to be empty.
/// 2. A claim that disagrees is kept as it is while its addresses may be held, if nobody of step 1 has a part of it.
/// 3. Selected nodes without a block get their static prefix, or else the lowest free block, by name.
pub fn plan(pool: &Pool, nodes: &[NodeRef<'_>], claims: &[Claim], usage: &dyn Fn(&str) -> Usage) -> Plan {
    plan_beside(pool, nodes, claims, usage, &[])
}

/// As [`plan`], but no node is newly given a block that has an address of `barred`: addresses that others may hold, by
/// another pool of the same network or by an earlier state of this one. What is kept is kept all the same.
pub fn plan_beside(
    pool: &Pool,
    nodes: &[NodeRef<'_>],
    claims: &[Claim],
    usage: &dyn Fn(&str) -> Usage,
    barred: &[AddrRange],
) -> Plan {
    let roster = Roster::new(pool, nodes, claims);
    give(pool, Kept::new(pool, roster, usage), barred)
}
