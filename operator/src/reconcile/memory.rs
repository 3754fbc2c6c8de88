//! What a leader knew before the API server went back to an earlier state.
//!
//! The earlier state lacks what was given since, while pods hold addresses of it. So a leader that saw it given holds on to
//! it: the node gets its block back where the earlier state leaves room, and nobody else gets an address of it. A claim is
//! forgotten once a status records it again, or once its node, of which the earlier state knows nothing, was asked and has told
//! ([`super::silence`]); any other is barred for as long as this replica leads. One who comes to lead later knows nothing of
//! this: see docs/operations/restore-etcd.md for the procedure of a restore.

use std::collections::BTreeSet;

use ipam_core::plan::{Claim, ClaimSource};
use ipam_core::{AddrRange, PoolKey};

use super::pool_task::Applied;
use super::{PoolTask, Reconciler};
use crate::index::key_of;

/// Pool, node and block.
pub(super) type Given = (PoolKey, String, AddrRange);

/// All that was given and is not recorded again yet.
#[derive(Debug, Default)]
pub(super) struct Memory {
    given: BTreeSet<Given>,
}

impl Memory {
    /// Notes what a plan in force says.
    fn note_plan(&mut self, key: &PoolKey, task: &PoolTask) {
        let plans = task.applied.iter().chain(task.call.iter().filter_map(|call| call.applies.as_ref()));
        let assignments = plans.flat_map(|applied| &applied.assignments);
        self.given.extend(assignments.map(|given| (key.clone(), given.node.clone(), given.block.range)));
    }

    /// What a pool gave.
    pub(super) fn of(&self, key: &PoolKey) -> Vec<Claim> {
        let of_pool = self.given.iter().filter(|(of, ..)| of == key);
        let claim = |(_, node, range): &Given| Claim {
            node: node.clone(),
            range: *range,
            gateway: None,
            source: ClaimSource::IpamNode,
        };
        of_pool.map(claim).collect()
    }

    /// Every block, with its pool.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (&PoolKey, &AddrRange)> {
        self.given.iter().map(|(key, _, range)| (key, range))
    }

    /// Pool, node and block of all of it.
    pub(super) fn all(&self) -> impl Iterator<Item = &Given> {
        self.given.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The node has told what it holds.
    pub(super) fn forget(&mut self, node: &str) {
        self.given.retain(|(_, of, _)| of != node);
    }

    /// A status records this now.
    pub(super) fn recorded(&mut self, key: &PoolKey, applied: &Applied) {
        let is_recorded = |node: &str, range: &AddrRange| applied.of(node).is_some_and(|it| it.block.range == *range);
        self.given.retain(|(of, node, range)| of != key || !is_recorded(node, range));
    }
}

impl Reconciler {
    /// Remembers all that is known to be given.
    pub(super) fn remember(&mut self) {
        for (key, task) in &self.pools {
            self.memory.note_plan(key, task);
        }
        for (node, record) in self.ipam_nodes.all() {
            let claims = record.blocks.iter().map(key_of).filter_map(|key| Some((record.claim(node, &key)?, key)));
            self.memory.given.extend(claims.map(|(claim, key)| (key, claim.node, claim.range)));
        }
    }
}
