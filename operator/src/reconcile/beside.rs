//! What pools mean for one another: which stands in whose way, and which addresses nodes have from elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ipam_core::overlap::{Contender, settle};
use ipam_core::{AddrRange, PoolKey};

use super::Reconciler;
use super::pool_task::PoolTask;
use super::recovery::claims;
use crate::decide::Beside;
use crate::index::key_of;
use crate::ipam_node::{claim_of, held_ranges};
use crate::pool::{PoolRecord, StatusRecord};

impl Reconciler {
    /// Decides anew which pool stands in whose way, if pools have changed. The answer depends on the pools alone, so that
    /// every leader comes to the same one.
    pub(super) fn settle_overlaps(&mut self, now: Instant) {
        if !std::mem::take(&mut self.stale.overlaps) {
            return;
        }
        let contenders: Vec<Contender> = self.pools.values().filter_map(|task| contender(&task.record)).collect();
        let losers = settle(&contenders);
        for (key, task) in &mut self.pools {
            let in_the_way = losers.get(key);
            if task.in_the_way.as_ref() != in_the_way {
                task.in_the_way = in_the_way.cloned();
                task.due.wake(now);
            }
        }
    }

    /// What is beside the pool `key`.
    pub(super) fn beside(&self, key: &PoolKey) -> Beside {
        let Some(task) = self.pools.get(key) else { return Beside::default() };
        let mut beside =
            Beside { in_the_way: task.in_the_way.clone(), reserved: self.recovery.of(key), ..Beside::default() };
        (beside.unreported, beside.limit) = (self.recovery.pausing(), self.recovery.limit());
        if let Ok(pool) = &task.record.spec {
            self.look_beside(key, task, &pool.network().range(), &mut beside);
        }
        beside
    }

    /// Finds the addresses of `network` that nodes have from other pools, or may hold outside their blocks.
    fn look_beside(&self, key: &PoolKey, task: &PoolTask, network: &AddrRange, found: &mut Beside) {
        let seniority = (task.record.life.created, key);
        let is_apart = |other: &PoolKey| {
            let allows = |other: &PoolTask| other.record.life.allows_overlap && task.record.life.allows_overlap;
            self.pools.get(other).is_some_and(allows)
        };
        let barred = &mut found.barred;
        for (other, beside) in self.pools.iter().filter(|(other, _)| *other != key) {
            if beside.may_reach(network) && !is_apart(other) {
                found.rivals.push((other.clone(), (beside.record.life.created, other) < seniority));
                let sent = beside.call.iter().filter_map(|call| call.status.as_ref());
                let given = sent.chain([&beside.record.status]).flat_map(claims).map(|claim| claim.range);
                // A status that was wiped says nothing, and that of an invalid spec is not put right: the nodes know.
                let told = self.ipam_nodes.all().iter().filter_map(|(node, record)| record.claim(node, other));
                let given = given.chain(told.map(|claim| claim.range));
                barred.extend(given.filter(|range| range.overlaps(network)));
                let held = self.may_hold(other, beside);
                found.held.extend(held.into_iter().filter(|(_, range)| range.overlaps(network)));
            }
        }
        let strays = self.ipam_nodes.strays().filter(|(_, of, _)| *of == key || !is_apart(of));
        barred.extend(strays.map(|(.., range)| range).filter(|range| range.overlaps(network)));
        let outlying = self.outlying.values().flatten().filter(|(of, _)| of == key || !is_apart(of));
        barred.extend(outlying.map(|(_, range)| *range).filter(|range| range.overlaps(network)));
        let reserved = self.recovery.reserved().filter(|(of, ..)| of == key || !is_apart(of)).map(|(.., range)| *range);
        barred.extend(reserved.filter(|range| range.overlaps(network)));
    }

    /// What nodes hold of a pool, or may be giving: the whole of a block until its agent has answered for an entry that takes
    /// it back, then what the agent says.
    fn may_hold(&self, of: &PoolKey, task: &PoolTask) -> Vec<(String, AddrRange)> {
        let has_stopped = |node: &str, range: AddrRange| {
            let known = self.ipam_nodes.get(node);
            known.is_some_and(|known| {
                known.gives_no_more(of) && known.claim(node, of).map(|own| own.range) == Some(range)
            })
        };
        let sent = task.call.iter().filter_map(|call| call.status.as_ref());
        let given = sent.chain([&task.record.status]).flat_map(claims).map(|claim| (claim.node.clone(), claim.range));
        let records = || self.ipam_nodes.all().iter();
        let told = records().filter_map(|(node, record)| Some((node.clone(), record.claim(node, of)?.range)));
        let mut held: Vec<(String, AddrRange)> =
            given.chain(told).filter(|(node, range)| !has_stopped(node, *range)).collect();
        for (node, report) in records().filter_map(|(node, record)| Some((node, record.report(of)?))) {
            let ranges = if report.used > 0 { held_ranges(report) } else { Vec::new() };
            held.extend(ranges.into_iter().map(|range| (node.clone(), range)));
        }
        held.sort_unstable();
        held.dedup();
        held
    }

    /// Finds anew which blocks nodes have that no pool answers for, if pools have changed.
    pub(super) fn gather_outlying(&mut self, now: Instant) {
        if !std::mem::take(&mut self.stale.outlying) {
            return;
        }
        let all = self.ipam_nodes.all().keys().map(|node| (node.clone(), self.outlying_of(node)));
        let found: HashMap<_, _> = all.filter(|(_, blocks)| !blocks.is_empty()).collect();
        let before = std::mem::replace(&mut self.outlying, found);
        let differs = |node: &&String| before.get(*node) != self.outlying.get(*node);
        let nodes: HashSet<&String> = before.keys().chain(self.outlying.keys()).filter(differs).collect();
        let blocks =
            nodes.iter().flat_map(|node| before.get(*node).into_iter().chain(self.outlying.get(*node)).flatten());
        let touched: Vec<AddrRange> = blocks.map(|(_, range)| *range).collect();
        self.wake_pools_over(&touched, now);
    }

    /// The same for one node, whose IPAMNode has changed.
    pub(super) fn note_outlying(&mut self, node: &str, now: Instant) {
        if self.stale.outlying {
            return;
        }
        let found = self.outlying_of(node);
        let before = self.outlying.get(node).map_or(&[][..], Vec::as_slice);
        if before == found {
            return;
        }
        let touched: Vec<AddrRange> = before.iter().chain(&found).map(|(_, range)| *range).collect();
        if found.is_empty() {
            self.outlying.remove(node);
        } else {
            self.outlying.insert(node.to_owned(), found);
        }
        self.wake_pools_over(&touched, now);
    }

    /// Looks at the pools that could give of these addresses. All others have nothing to do with them.
    pub(super) fn wake_pools_over(&mut self, touched: &[AddrRange], now: Instant) {
        for task in self.pools.values_mut().filter(|_| !touched.is_empty()) {
            let network = task.record.spec.as_ref().map(|pool| pool.network().range());
            if network.is_ok_and(|network| touched.iter().any(|range| range.overlaps(&network))) {
                task.due.wake(now);
            }
        }
    }

    /// Pools of other networks may have waited for blocks that a pool had outside its own and that its next status gives up.
    pub(super) fn wake_those_who_wait_for(&mut self, key: &PoolKey, next: &StatusRecord, now: Instant) {
        let Some(task) = self.pools.get(key) else { return };
        // A spec that is invalid has no network to be inside of, and such a pool is beside all others.
        let is_outside = |range: &AddrRange| task.record.spec.is_err() || task.is_outside(range);
        let outside = claims(&task.record.status).map(|claim| claim.range).filter(is_outside);
        let mut given_up: HashSet<AddrRange> = outside.collect();
        if !given_up.is_empty() {
            for claim in claims(next) {
                given_up.remove(&claim.range);
            }
        }
        let given_up: Vec<AddrRange> = given_up.into_iter().collect();
        self.wake_pools_over(&given_up, now);
    }

    fn outlying_of(&self, node: &str) -> Outlying {
        let Some(record) = self.ipam_nodes.get(node) else { return Vec::new() };
        let entries = record.blocks.iter().chain(record.unedited.iter().flatten());
        let blocks = entries.filter_map(|entry| Some((key_of(entry), claim_of(node, entry)?.range)));
        blocks.filter(|(key, range)| self.pools.get(key).is_none_or(|task| task.is_outside(range))).collect()
    }

    /// Pools of the same addresses may have got some, now that the status of `key` is another.
    pub(super) fn wake_those_beside(&mut self, key: &PoolKey, now: Instant) {
        let winner = self.pools.get(key).and_then(|task| task.in_the_way.clone());
        let losers = self.pools.iter().filter(|(_, task)| task.in_the_way.as_ref() == Some(key));
        let beside: Vec<PoolKey> = losers.map(|(other, _)| other.clone()).chain(winner).collect();
        for other in beside {
            if let Some(task) = self.pools.get_mut(&other) {
                task.due.wake(now);
            }
        }
    }

    /// Whether the change from one record of a pool to the next is one that others may feel.
    pub(super) fn note_change(&mut self, old: &PoolRecord, new: &PoolRecord, now: Instant) {
        let same_spec = match (&old.spec, &new.spec) {
            (Ok(one), Ok(two)) => Arc::ptr_eq(one, two),
            (Err(_), Err(_)) => true,
            _ => false,
        };
        let same_life = old.life.allows_overlap == new.life.allows_overlap && old.life.created == new.life.created;
        self.stale.overlaps |= !(same_spec && same_life);
        self.stale.outlying |= !same_spec;
        // Blocks outside today's network bar pools of other networks, too.
        if old.life.allows_overlap != new.life.allows_overlap {
            self.wake_pools(now);
        }
    }
}

fn contender(record: &PoolRecord) -> Option<Contender> {
    let pool = record.spec.as_ref().ok()?;
    Some(Contender {
        key: record.key.clone(),
        network: pool.network(),
        created: record.life.created,
        allows_overlap: record.life.allows_overlap,
    })
}

/// Blocks of a node that no pool answers for, with the pool that they are of.
pub(super) type Outlying = Vec<(PoolKey, AddrRange)>;

impl PoolTask {
    /// Whether the pool has another network than that of a block.
    fn is_outside(&self, range: &AddrRange) -> bool {
        self.record.spec.as_ref().is_ok_and(|pool| !pool.network().range().contains_range(range))
    }

    /// Whether nodes may have addresses of `network` from this pool. Quick for one whose network is another and whose
    /// blocks are all of today's network, which is nearly every one.
    fn may_reach(&self, network: &AddrRange) -> bool {
        let Ok(pool) = &self.record.spec else { return true };
        let own = pool.network().range();
        let is_outside = |claim: &ipam_core::plan::Claim| !own.contains_range(&claim.range);
        // The plan in force tells whether a block waits to be given back, but only if it is one for today's spec: another pool may
        // be edited onto the addresses of this one in the same moment in which this one is moved away.
        let planned = self.applied.as_ref().and_then(|applied| applied.pool.as_ref());
        let is_planned = planned.is_some_and(|planned| Arc::ptr_eq(planned, pool) || planned == pool);
        own.overlaps(network)
            || ((!is_planned || self.waits_for_blocks()) && claims(&self.record.status).any(is_outside))
    }
}
