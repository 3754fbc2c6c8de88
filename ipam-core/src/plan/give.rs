//! Assigns blocks to nodes that have none: step 3 of [`super::plan`].

use super::candidates::Candidate;
use super::keep::{Holders, Kept};
use super::{Assignment, BlockPhase, Plan};
use crate::{AddrRange, Block, Pool, RangeSet};

/// Assigns blocks without `barred` addresses to the selected nodes that have none, in name order. Returns the whole plan.
pub(super) fn give(pool: &Pool, mut kept: Kept<'_>, barred: &[AddrRange]) -> Plan {
    let mut giver = Giver::new(pool, &kept.holders, barred);
    let mut unserved = Vec::new();
    for row in kept.rows.iter_mut().filter(|row| row.is_selected && row.block.is_none()) {
        match giver.block_for(row.name, &mut kept.dropped) {
            Some(block) => row.block = Some((block, BlockPhase::Active)),
            None => unserved.push(row.name.to_owned()),
        }
    }
    let blocks_free = giver.free();
    let assignments: Vec<Assignment> = kept.rows.iter().filter_map(assignment).collect();
    let capacity = assignments
        .iter()
        .filter(|assignment| assignment.phase != BlockPhase::Releasing)
        .fold(0_u128, |sum, assignment| sum.saturating_add(pool.capacity(&assignment.block)));
    Plan { assignments, unserved, dropped: kept.dropped, blocks_total: pool.block_count(), blocks_free, capacity }
}

fn assignment(row: &Candidate<'_>) -> Option<Assignment> {
    let (block, phase) = row.block?;
    Some(Assignment { node: row.name.to_owned(), block, phase })
}

struct Giver<'a> {
    pool: &'a Pool,
    /// Blocks that nodes have kept. Newly assigned blocks need not be in it: blocks of one grid never overlap.
    holders: &'a Holders<'a>,
    /// Indexes of the blocks with an unavailable address.
    barred: RangeSet,
    /// Indexes of the blocks that cannot be assigned: those assigned, reserved, overlapped by a kept block, with an
    /// unavailable address, or wholly excluded.
    taken: RangeSet,
    /// No block before this one is free. It only increases, so all nodes together need one pass over the runs.
    lowest: u128,
}

impl<'a> Giver<'a> {
    fn new(pool: &'a Pool, holders: &'a Holders<'a>, barred: &[AddrRange]) -> Self {
        let barred: RangeSet = barred.iter().filter_map(|range| pool.grid().touched(range)).collect();
        let mut taken = pool.not_given();
        taken.extend(barred.runs());
        taken.extend(holders.ranges().filter_map(|range| pool.grid().touched(range)));
        Self { pool, holders, barred, taken, lowest: 0 }
    }

    fn block_for(&mut self, node: &str, dropped: &mut Vec<String>) -> Option<Block> {
        let index = match self.pool.static_index(node) {
            Some(index) => self.free_static(node, index, dropped),
            None => self.lowest_free(),
        };
        self.pool.block(index?)
    }

    /// The node's static block, unless another node has a part of it or an address of it is unavailable.
    fn free_static(&self, node: &str, index: u128, dropped: &mut Vec<String>) -> Option<u128> {
        let range = self.pool.grid().range(index)?;
        if self.barred.contains(index) {
            dropped.push(format!(
                "node {node:?}: its static prefix {range} waits, for addresses of it may be held elsewhere"
            ));
            return None;
        }
        let Some((holder, held)) = self.holders.of(&range) else { return Some(index) };
        dropped.push(format!("node {node:?}: its static prefix {range} waits, for node {holder:?} still has {held}"));
        None
    }

    fn lowest_free(&mut self) -> Option<u128> {
        let index = self.taken.first_gap(self.lowest, self.pool.grid().last_index())?;
        self.taken.insert(index, index);
        self.lowest = index;
        Some(index)
    }

    /// Number of blocks that can still be assigned; saturates.
    fn free(&self) -> u128 {
        self.taken.gaps_in(0, self.pool.grid().last_index())
    }
}
