//! Grants on one node: which are seen, which the API server has confirmed, which are idle, and which have ended.
//!
//! A grant is *seen*, then *confirmed*, and at last *ended*. The node allocates only from a confirmed grant. A grant of
//! which no address is in use can become *idle*: the node may then report that it needs a new confirmation. So the
//! operator can assign the block to another node if this one is gone. An idle grant is *seen* again once a pod requests
//! an address.
//!
//! An ended grant never allocates again, whatever spec has it: the operator may have assigned its block to another node.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, GrantStep, SpecVersion};
use crate::node_pool::PoolState;
use crate::{GrantId, NodePool, PoolKey};

/// Number of ended grants that are recorded one by one.
pub const MOST_ENDED: usize = 8192;

/// The grants that the node knows.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Grants {
    /// The grant of each pool that has not ended, and its step.
    current: BTreeMap<PoolKey, (GrantId, GrantStep)>,
    /// Steps, idle or ended, that the API server has received from a later journal than this one, until they are recorded.
    withdrawn: BTreeMap<GrantId, (PoolKey, GrantStep)>,
    ended: BTreeSet<GrantId>,
    /// Every ID up to this one that is not current counts as ended.
    ended_to: Option<GrantId>,
    /// The version of the spec whose grants are recorded.
    version: Option<SpecVersion>,
}

impl Grants {
    /// The step that the grant of a block of `pool` has reached; `None` if it was never seen.
    pub(super) fn step(&self, pool: &PoolKey, id: GrantId) -> Option<GrantStep> {
        match self.current.get(pool) {
            Some((current, step)) if *current == id => Some(*step),
            _ => self.has_ended(id).then_some(GrantStep::Ended),
        }
    }

    fn has_ended(&self, id: GrantId) -> bool {
        self.ended.contains(&id) || self.ended_to.is_some_and(|last| id <= last)
    }

    /// Whether the node allocates from the grant.
    pub(super) fn allows(&self, pool: &PoolKey, id: GrantId) -> bool {
        self.step(pool, id) == Some(GrantStep::Confirmed) && !self.withdrawn.contains_key(&id)
    }

    /// These grants are to take these steps, whether addresses are in use or not. Until that is recorded they allocate nothing.
    pub(super) fn withdraw(&mut self, steps: impl IntoIterator<Item = (PoolKey, GrantId, GrantStep)>) {
        self.withdrawn.extend(steps.into_iter().map(|(pool, id, step)| (id, (pool, step))));
    }

    /// Whether the API server has received from a later journal that the grant is at this step.
    fn is_withdrawn(&self, id: GrantId, to: GrantStep) -> bool {
        self.withdrawn.get(&id).is_some_and(|(_, step)| *step == to)
    }

    /// Records a step. An ended grant stays ended.
    pub(super) fn apply(&mut self, pool: &PoolKey, id: GrantId, step: GrantStep) {
        if step == GrantStep::Ended {
            if self.current.get(pool).is_some_and(|(current, _)| *current == id) {
                self.current.remove(pool);
            }
            self.withdrawn.remove(&id);
            self.ended.insert(id);
        } else if can_follow(self.step(pool, id), step) {
            if !self.is_withdrawn(id, GrantStep::Ended) {
                self.withdrawn.remove(&id);
            }
            let before = self.current.insert(pool.clone(), (id, step));
            // A pool has one grant. Another that was not ended before is ended by its successor.
            self.ended.extend(before.map(|(before, _)| before).filter(|before| *before != id));
        }
    }

    /// Records that all grants up to `id` have ended, but for the current ones.
    pub(super) fn end_to(&mut self, id: GrantId) {
        self.ended_to = self.ended_to.max(Some(id));
        self.ended.retain(|ended| *ended > id);
    }

    /// Records that the grants of the spec of this version are recorded.
    pub(super) const fn record(&mut self, version: SpecVersion) {
        self.version = Some(version);
    }

    /// The steps that follow from the configured pools, each with whether an address of it is in use. `version` is that of their
    /// spec.
    pub(super) fn steps<'a>(
        &self,
        version: Option<SpecVersion>,
        pools: impl Iterator<Item = (&'a NodePool, bool)>,
    ) -> Vec<Change> {
        // What a spec of the past has and the node does not know may have come and gone unseen.
        let went_back = version.is_some_and(|version| Some(version) < self.version);
        let first = if went_back { GrantStep::Ended } else { GrantStep::Seen };
        let granted = pools.filter_map(|(pool, in_use)| Some((&pool.key, (pool.grant?, pool.state, in_use))));
        let granted: BTreeMap<&PoolKey, (GrantId, PoolState, bool)> = granted.collect();
        let mut steps = Vec::new();
        let mut step = |pool: &PoolKey, id, step| steps.push(Change::Grant { pool: pool.clone(), id, step });
        let mut ending = 0;
        for (id, (pool, to)) in &self.withdrawn {
            if *to == GrantStep::Ended {
                step(pool, *id, GrantStep::Ended);
                ending += 1;
            }
        }
        for (pool, (id, _)) in &self.current {
            let is_granted = granted.get(pool).is_some_and(|(granted, ..)| granted == id);
            if !is_granted && !self.is_withdrawn(*id, GrantStep::Ended) {
                step(pool, *id, GrantStep::Ended);
                ending += 1;
            }
        }
        for (pool, (id, state, in_use)) in granted {
            if self.is_withdrawn(id, GrantStep::Ended) {
                continue;
            }
            let known = self.step(pool, id);
            if known.is_none() {
                step(pool, id, first);
            }
            if known == Some(GrantStep::Confirmed) && self.is_withdrawn(id, GrantStep::Idle) {
                step(pool, id, GrantStep::Idle);
            }
            if known.or(Some(first)) != Some(GrantStep::Ended) && state == PoolState::Releasing && !in_use {
                step(pool, id, GrantStep::Ended);
                ending += 1;
            }
        }
        let surplus = (self.ended.len() + ending).saturating_sub(MOST_ENDED);
        let oldest = surplus.checked_sub(1).and_then(|last| self.ended.iter().nth(last));
        steps.extend(oldest.map(|id| Change::GrantsEndedTo { id: *id }));
        let newer = version.filter(|_| version != self.version);
        steps.extend(newer.map(|version| Change::Spec { version }));
        steps
    }

    /// The changes that make an equal record from an empty one.
    pub(super) fn snapshot(&self) -> Vec<Change> {
        let step = |pool: &PoolKey, id, step| Change::Grant { pool: pool.clone(), id, step };
        let ended_to = self.ended_to.map(|id| Change::GrantsEndedTo { id });
        let seen = self.current.iter().map(|(pool, (id, at))| step(pool, *id, *at));
        // Of an ended grant the pool does not matter.
        let nameless = PoolKey::new(crate::PoolKind::IpPool, "");
        let ended = self.ended.iter().map(|id| step(&nameless, *id, GrantStep::Ended));
        let version = self.version.map(|version| Change::Spec { version });
        seen.chain(ended).chain(ended_to).chain(version).collect()
    }
}

/// Whether a grant that is at `before` can go to `step`, which is not the end. A snapshot begins with any of them.
const fn can_follow(before: Option<GrantStep>, step: GrantStep) -> bool {
    use GrantStep::{Confirmed, Idle, Seen};
    match before {
        None => true,
        Some(before) => matches!((before, step), (Seen, Confirmed) | (Confirmed, Idle) | (Idle, Seen)),
    }
}
