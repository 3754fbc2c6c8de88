//! Random choices, for the generators of histories.

use super::action::Action;
use super::catalogue::POOLS;
use super::size::NODES;

/// Makes an action.
pub(super) type Make = fn(&mut Dice) -> Action;

/// Random choices within the scope of a history.
pub(super) struct Dice {
    /// The source of random numbers.
    pub(super) rng: fastrand::Rng,
    /// Whether IPAMNodes are deleted by hand; if not, statuses are wiped. A status and the IPAMNodes derived from it are
    /// each other's second record. If both are destroyed by hand, no record is left, so a history has only one of the
    /// two.
    pub(super) removes_ipam_nodes: bool,
    /// How many machines there are.
    pub(super) machines: u8,
    pools: Vec<u8>,
}

impl Dice {
    /// The choices for the history of this seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let all = u8::try_from(POOLS.len()).unwrap_or(u8::MAX);
        // Few pools, so that much happens to each. The first, whose addresses other pools overlap, is nearly always one of them.
        let mut pools: Vec<u8> = (0..rng.usize(1..=3)).map(|_| rng.u8(0..all)).collect();
        if rng.u8(0..4) > 0 {
            pools.push(0);
        }
        let removes_ipam_nodes = rng.bool();
        Self { rng, removes_ipam_nodes, machines: NODES, pools }
    }

    /// The choices for the same history, from another seed.
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

    /// Mostly the first replica: a cluster in which two replicas work at the same time all the time is not realistic.
    pub(super) fn replica(&mut self) -> u8 {
        u8::from(self.rng.u8(0..4) == 0)
    }

    /// One of a replica's watches.
    pub(super) fn watch(&mut self) -> u8 {
        self.rng.u8(0..4)
    }

    /// A number to select by.
    pub(super) fn any(&mut self) -> u8 {
        self.rng.u8(..)
    }
}
