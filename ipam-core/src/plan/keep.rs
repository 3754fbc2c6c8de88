//! Which earlier records are honoured: steps 1 and 2 of [`super::plan`].
//!
//! Records are heard in order of trust, so that a spoilt one never takes a block from a sound one:
//! a record of the pool's status that the node's IPAMNode repeats, then one that it does not, then one that only the
//! IPAMNode has. Within one rank the first node by name wins.

use std::collections::BTreeMap;

use super::{Claim, ClaimSource, Standing, Usage};
use crate::{AddrRange, Block, Family, Pool};

/// Blocks that stay with their nodes.
pub(super) struct Kept<'a> {
    pool: &'a Pool,
    /// Names of the selected nodes, sorted.
    selected: &'a [&'a str],
    usage: &'a dyn Fn(&str) -> Usage,
    /// By node.
    pub(super) blocks: BTreeMap<&'a str, (Block, Standing)>,
    pub(super) holders: Holders<'a>,
    pub(super) dropped: Vec<String>,
}

impl<'a> Kept<'a> {
    pub(super) fn new(pool: &'a Pool, selected: &'a [&'a str], usage: &'a dyn Fn(&str) -> Usage) -> Self {
        let (blocks, holders, dropped) = (BTreeMap::new(), Holders::default(), Vec::new());
        Self { pool, selected, usage, blocks, holders, dropped }
    }

    /// Hears all records. Those that agree with the spec come first, whatever their rank, so that no block of a sound
    /// record is barred by a remnant of an earlier spec.
    pub(super) fn keep(&mut self, claims: &'a [Claim]) {
        let mut outdated = Vec::new();
        for claim in by_trust(claims) {
            match self.agreed_index(claim) {
                Some(index) => self.keep_agreed(claim, index),
                None => outdated.push(claim),
            }
        }
        for claim in outdated {
            self.keep_outdated(claim);
        }
    }

    /// The index of the claimed block, if the spec of today would give just that to the node.
    fn agreed_index(&self, claim: &Claim) -> Option<u128> {
        let index = self.pool.grid().index_of(&claim.range)?;
        let is_allowed = match self.pool.static_index(&claim.node) {
            Some(own) => own == index,
            None => !self.pool.is_static(index),
        };
        is_allowed.then_some(index)
    }

    fn keep_agreed(&mut self, claim: &'a Claim, index: u128) {
        if self.has_block_already(claim) {
            return;
        }
        if let Some((holder, _)) = self.holders.of(&claim.range) {
            let line = format!("node {:?}: {} is not its block, for node {holder:?} has it", claim.node, claim.range);
            self.dropped.push(line);
            return;
        }
        let is_useless = self.pool.is_barren(index) && !self.pool.is_static(index);
        if is_useless && self.is_selected(&claim.node) && (self.usage)(&claim.node) == Usage::Empty {
            let line =
                format!("node {:?}: {} is given up, for exclusions leave nothing of it", claim.node, claim.range);
            self.dropped.push(line);
            return;
        }
        if let Some(block) = self.pool.block(index) {
            self.insert(claim, block, Standing::Serving);
        }
    }

    fn keep_outdated(&mut self, claim: &'a Claim) {
        if self.has_block_already(claim) {
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
        self.insert(claim, Block { range: claim.range, gateway }, Standing::Outdated);
    }

    /// A node has one block. A further record of the pool's status that says otherwise is worth telling; an IPAMNode that
    /// lags behind the status is not.
    fn has_block_already(&mut self, claim: &Claim) -> bool {
        let Some((block, _)) = self.blocks.get(claim.node.as_str()) else { return false };
        if claim.source == ClaimSource::Status && claim.range != block.range {
            let line = format!("node {:?}: {} is not its block, for it has {}", claim.node, claim.range, block.range);
            self.dropped.push(line);
        }
        true
    }

    fn insert(&mut self, claim: &'a Claim, block: Block, standing: Standing) {
        let standing = if self.is_selected(&claim.node) { standing } else { Standing::Departed };
        self.holders.insert(block.range, &claim.node);
        self.blocks.insert(&claim.node, (block, standing));
    }

    fn is_selected(&self, node: &str) -> bool {
        self.selected.binary_search(&node).is_ok()
    }
}

/// Claims in the order in which they are heard: by trust, then by node. An IPAMNode's claim that repeats the status is
/// left out.
fn by_trust(claims: &[Claim]) -> Vec<&Claim> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    sorted.sort_unstable_by_key(|claim| (&claim.node, claim.source, claim.range, claim.gateway));
    let (mut repeated, mut status, mut second) = (Vec::with_capacity(sorted.len()), Vec::new(), Vec::new());
    for of_node in sorted.chunk_by(|a, b| a.node == b.node) {
        let told = |range: &AddrRange, source| {
            of_node.binary_search_by_key(&(source, *range), |c| (c.source, c.range)).is_ok()
        };
        for &claim in of_node {
            match claim.source {
                ClaimSource::Status if told(&claim.range, ClaimSource::IpamNode) => repeated.push(claim),
                ClaimSource::Status => status.push(claim),
                ClaimSource::IpamNode if told(&claim.range, ClaimSource::Status) => {}
                ClaimSource::IpamNode => second.push(claim),
            }
        }
    }
    repeated.append(&mut status);
    repeated.append(&mut second);
    repeated
}

/// Who has which addresses; ranges in it never overlap.
#[derive(Default)]
pub(super) struct Holders<'a> {
    /// First address → last address and node.
    ranges: BTreeMap<(Family, u128), (AddrRange, &'a str)>,
}

impl<'a> Holders<'a> {
    /// A node that has an address of `range`, and all that it has.
    pub(super) fn of(&self, range: &AddrRange) -> Option<(&'a str, AddrRange)> {
        let (_, last) = range.numbers();
        // Ranges are apart, so the one that starts last before the end of `range` is also the one that ends last.
        let (_, (held, node)) = self.ranges.range(..=(range.family(), last)).next_back()?;
        held.overlaps(range).then_some((*node, *held))
    }

    pub(super) fn insert(&mut self, range: AddrRange, node: &'a str) {
        self.ranges.insert((range.family(), range.numbers().0), (range, node));
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = &AddrRange> {
        self.ranges.values().map(|(range, _)| range)
    }
}
