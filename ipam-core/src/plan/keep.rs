//! Which claims are kept: steps 1 and 2 of [`super::plan`].

use std::collections::BTreeMap;

use super::candidates::{Candidate, Candidates, Heard};
use super::{BlockPhase, Claim, ClaimSource, Usage};
use crate::{AddrRange, Block, Family, Pool};

/// Blocks that nodes keep.
pub(super) struct Kept<'a> {
    pool: &'a Pool,
    usage: &'a dyn Fn(&str) -> Usage,
    /// All nodes, by name.
    pub(super) rows: Vec<Candidate<'a>>,
    pub(super) holders: Holders<'a>,
    pub(super) dropped: Vec<String>,
}

impl<'a> Kept<'a> {
    /// Processes all claims. Claims that agree with the spec come first, whatever their source. So a remnant of an
    /// earlier spec never takes a block from a valid claim.
    pub(super) fn new(pool: &'a Pool, roster: Candidates<'a>, usage: &'a dyn Fn(&str) -> Usage) -> Self {
        let mut kept = Self { pool, usage, rows: roster.rows, holders: Holders::default(), dropped: Vec::new() };
        let mut outdated = Vec::new();
        for heard in roster.claims {
            match pool.index_for(&heard.claim.node, &heard.claim.range) {
                Some(index) => kept.keep_agreed(heard, index),
                None => outdated.push(heard),
            }
        }
        for heard in outdated {
            kept.keep_outdated(heard);
        }
        kept
    }

    fn keep_agreed(&mut self, Heard { row, claim }: Heard<'a>, index: u128) {
        if self.has_block_already(row, claim) {
            return;
        }
        if let Some((holder, _)) = self.holders.of(&claim.range) {
            let line = format!("node {:?}: {} is not its block, for node {holder:?} has it", claim.node, claim.range);
            self.dropped.push(line);
            return;
        }
        if !self.rows[row].is_selected && (self.usage)(&claim.node) == Usage::Empty {
            return;
        }
        let is_useless = self.pool.is_barren(index) && !self.pool.is_static(index);
        if is_useless && self.rows[row].is_selected && (self.usage)(&claim.node) == Usage::Empty {
            let line =
                format!("node {:?}: {} is given up, for exclusions leave nothing of it", claim.node, claim.range);
            self.dropped.push(line);
            return;
        }
        if let Some(block) = self.pool.block(index) {
            self.insert(row, block, BlockPhase::Active);
        }
    }

    fn keep_outdated(&mut self, Heard { row, claim }: Heard<'a>) {
        if self.has_block_already(row, claim) {
            return;
        }
        if (self.usage)(&claim.node) == Usage::Empty {
            let line =
                format!("node {:?}: {} no longer agrees with the spec and is empty; given up", claim.node, claim.range);
            self.dropped.push(line);
            return;
        }
        if let Some((holder, range)) = self.holders.of(&claim.range) {
            let line = format!(
                "node {:?}: {} does not agree with the spec and overlaps {range} of node {holder:?}; given up, though \
                 addresses of it may be held",
                claim.node, claim.range
            );
            self.dropped.push(line);
            return;
        }
        let gateway = claim.gateway.or_else(|| self.pool.gateway_for_outdated(&claim.range));
        self.insert(row, Block { range: claim.range, gateway }, BlockPhase::Stale);
    }

    /// Whether the node has a block already; it can have only one. A different range in the pool's status is added to
    /// `dropped`. A different range in an IPAMNode is not, because it may lag behind the status.
    fn has_block_already(&mut self, row: usize, claim: &Claim) -> bool {
        let Some((block, _)) = &self.rows[row].block else { return false };
        if claim.source == ClaimSource::Status && claim.range != block.range {
            let line = format!("node {:?}: {} is not its block, for it has {}", claim.node, claim.range, block.range);
            self.dropped.push(line);
        }
        true
    }

    fn insert(&mut self, row: usize, block: Block, phase: BlockPhase) {
        let row = &mut self.rows[row];
        let phase = if row.is_selected { phase } else { BlockPhase::Releasing };
        row.block = Some((block, phase));
        self.holders.insert(block.range, row.name);
    }
}

/// The ranges that nodes have. They never overlap.
#[derive(Default)]
pub(super) struct Holders<'a> {
    /// Family and first address → the range and its node.
    ranges: BTreeMap<(Family, u128), (AddrRange, &'a str)>,
}

impl<'a> Holders<'a> {
    /// A node that has an address of `range`, and its whole range.
    pub(super) fn of(&self, range: &AddrRange) -> Option<(&'a str, AddrRange)> {
        let (_, last) = range.numbers();
        // Ranges are disjoint, so the last one that starts before the end of `range` is also the last one that ends.
        let (_, (held, node)) = self.ranges.range(..=(range.family(), last)).next_back()?;
        held.overlaps(range).then_some((*node, *held))
    }

    fn insert(&mut self, range: AddrRange, node: &'a str) {
        self.ranges.insert((range.family(), range.numbers().0), (range, node));
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = &AddrRange> {
        self.ranges.values().map(|(range, _)| range)
    }
}
