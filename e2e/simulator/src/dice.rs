//! Chance, by which the makers of histories choose.

use super::action::Action;
use super::catalogue::POOLS;
use super::size::NODES;

/// Makes an action.
pub(super) type Make = fn(&mut Dice) -> Action;

/// Chance, within what a history is about.
pub(super) struct Dice {
    /// Where it comes from.
    pub(super) rng: fastrand::Rng,
    /// Whether IPAMNodes are deleted by hand, or else statuses wiped. A status and the IPAMNodes derived from it are each other's
    /// second record. Nothing that is left tells who holds what once both are destroyed by hand, so a history has only one of
    /// the two.
    pub(super) removes_ipam_nodes: bool,
    /// How many machines there are.
    pub(super) machines: u8,
    pools: Vec<u8>,
}

impl Dice {
    /// For the history of this seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let all = u8::try_from(POOLS.len()).unwrap_or(u8::MAX);
        // Few, so that much happens to each; the first, over whose addresses others come, is nearly always there.
        let mut pools: Vec<u8> = (0..rng.usize(1..=3)).map(|_| rng.u8(0..all)).collect();
        if rng.u8(0..4) > 0 {
            pools.push(0);
        }
        let removes_ipam_nodes = rng.bool();
        Self { rng, removes_ipam_nodes, machines: NODES, pools }
    }

    /// The same history's, from another seed.
    pub(super) fn apart(&self, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, removes_ipam_nodes: self.removes_ipam_nodes, machines: self.machines, pools: self.pools.clone() }
    }

    /// A pool.
    pub(super) fn pool(&mut self) -> u8 {
        self.pools[self.rng.usize(0..self.pools.len())]
    }

    /// A node.
    pub(super) fn node(&mut self) -> u8 {
        self.rng.u8(0..self.machines)
    }

    /// Mostly the first replica: two that work side by side all the time are no cluster that we know.
    pub(super) fn replica(&mut self) -> u8 {
        u8::from(self.rng.u8(0..4) == 0)
    }

    /// One of a replica's watches.
    pub(super) fn watch(&mut self) -> u8 {
        self.rng.u8(0..4)
    }

    /// A number to pick by.
    pub(super) fn any(&mut self) -> u8 {
        self.rng.u8(..)
    }
}
