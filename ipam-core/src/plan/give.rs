//! Which block a node without one gets: step 3 of [`super::plan`].

use super::keep::Kept;
use super::{Assignment, Plan, Standing};
use crate::{Pool, RunSet};

/// Gives blocks to nodes, which must come in name order.
pub(super) struct Giver<'a> {
    pool: &'a Pool,
    kept: Kept<'a>,
    /// Indexes of the blocks that are not to be had: given, reserved, overlapped by what is kept, or wholly excluded.
    taken: RunSet,
    /// No block below this one is free. It only rises, which makes serving all nodes one walk over the runs.
    lowest: u128,
    unserved: Vec<String>,
}

impl<'a> Giver<'a> {
    pub(super) fn new(pool: &'a Pool, kept: Kept<'a>) -> Self {
        let mut taken = pool.not_given();
        taken.extend(kept.holders.ranges().filter_map(|range| pool.grid().touched(range)));
        Self { pool, kept, taken, lowest: 0, unserved: Vec::new() }
    }

    /// Gives `node` a block if it has none.
    pub(super) fn serve(&mut self, node: &'a str) {
        if self.kept.blocks.contains_key(node) {
            return;
        }
        let index = match self.pool.static_index(node) {
            Some(index) => self.free_static(node, index),
            None => self.lowest_free(),
        };
        match index.and_then(|index| self.pool.block(index)) {
            Some(block) => {
                self.kept.holders.insert(block.range, node);
                self.kept.blocks.insert(node, (block, Standing::Serving));
            }
            None => self.unserved.push(node.to_owned()),
        }
    }

    /// The node's static block, unless another node still has a part of it.
    fn free_static(&mut self, node: &str, index: u128) -> Option<u128> {
        let range = self.pool.grid().range(index)?;
        let Some((holder, held)) = self.kept.holders.of(&range) else { return Some(index) };
        let line = format!("node {node:?}: its static prefix {range} waits, for node {holder:?} still has {held}");
        self.kept.dropped.push(line);
        None
    }

    fn lowest_free(&mut self) -> Option<u128> {
        let index = self.taken.first_gap(self.lowest, self.pool.grid().last_index())?;
        self.taken.insert(index, index);
        self.lowest = index;
        Some(index)
    }

    pub(super) fn finish(self) -> Plan {
        let Self { pool, kept, taken, unserved, .. } = self;
        let assignments: Vec<Assignment> = kept
            .blocks
            .into_iter()
            .map(|(node, (block, standing))| Assignment { node: node.to_owned(), block, standing })
            .collect();
        let capacity = assignments
            .iter()
            .filter(|assignment| assignment.standing == Standing::Serving)
            .fold(0_u128, |sum, assignment| sum.saturating_add(pool.capacity(&assignment.block)));
        let blocks_free = taken.gaps_in(0, pool.grid().last_index());
        Plan { assignments, unserved, dropped: kept.dropped, blocks_total: pool.block_count(), blocks_free, capacity }
    }
}
