//! Relations between pools: which pools overlap, and which addresses nodes may use from other pools.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ipam_core::occupancy::{Evidence, Source, Touched};
use ipam_core::overlap::{OverlapCandidate, settle};
use ipam_core::{AddrRange, PoolKey};

use super::Reconciler;
use super::pool_task::PoolTask;
use crate::decide::OtherPools;
use crate::facts;
use crate::ipam_node::IpamNodeRecord;
use crate::pool::{PoolRecord, StatusRecord};

impl Reconciler {
    /// Decides again which pool yields to which older one, if pools have changed. The result depends on the pools alone, so
    /// every leader gets the same one.
    pub(super) fn settle_overlaps(&mut self, now: Instant) {
        if !std::mem::take(&mut self.overlaps_stale) {
            return;
        }
        let contenders: Vec<OverlapCandidate> =
            self.pools.values().filter_map(|task| contender(&task.record)).collect();
        let losers = settle(&contenders);
        for (key, task) in &mut self.pools {
            let older_overlap = losers.get(key);
            if task.older_overlap.as_ref() != older_overlap {
                task.older_overlap = older_overlap.cloned();
                task.due.wake(now);
            }
        }
    }

    /// Returns what other pools mean for the pool `key`.
    pub(super) fn other_pools(&self, key: &PoolKey) -> OtherPools {
        let Some(task) = self.pools.get(key) else { return OtherPools::default() };
        let mut other_pools = OtherPools {
            older_overlap: task.older_overlap.clone(),
            reserved: self.recovery.of(key),
            ..OtherPools::default()
        };
        (other_pools.unreported, other_pools.limit) = (self.recovery.pausing(), self.recovery.limit());
        other_pools.late = self.recovery.late();
        let Ok(pool) = &task.record.spec else { return other_pools };
        let shares = self.shares_with(task);
        other_pools.sharing = self.pools.keys().filter(|other| *other != key && shares(other)).cloned().collect();
        other_pools.unavailable = facts::unavailable(&self.occupancy, pool, &shares);
        let seniority = (task.record.life.created, key);
        let others: BTreeSet<&PoolKey> = other_pools.unavailable.iter().map(|fact| &*fact.pool).collect();
        let is_older = |other: &&PoolKey| {
            let created = self.pools.get(*other).map(|other| other.record.life.created);
            created.is_some_and(|created| (created, *other) < seniority)
        };
        other_pools.older = others.into_iter().filter(is_older).cloned().collect();
        other_pools
    }

    /// Returns a test for pools that may have the same addresses as the pool of `task`: both must allow it.
    fn shares_with(&self, task: &PoolTask) -> impl Fn(&PoolKey) -> bool {
        let allows = |other: &PoolKey| self.pools.get(other).is_some_and(|other| other.record.life.allows_overlap);
        move |other| task.record.life.allows_overlap && allows(other)
    }

    /// Updates the occupancy by the changed records, and wakes the pools that this concerns.
    pub(super) fn note_occupancy(&mut self, now: Instant) {
        let mut touched = Touched::default();
        for node in self.ipam_nodes.take_changed() {
            let record = self.ipam_nodes.get(&node);
            let sent = self.ipam_nodes.all_sent(&node);
            let facts = record.map(|record| facts::of_ipam_node(&mut self.occupancy, &node, record, sent));
            if record.is_some_and(IpamNodeRecord::has_reported) {
                touched.extend(self.occupancy.replace(&Source::DeletedIpamNode(node.clone()), Vec::new()));
            }
            touched.extend(self.occupancy.replace(&Source::IpamNode(node), facts.unwrap_or_default()));
        }
        for key in std::mem::take(&mut self.changed_pools) {
            let statuses = self.pools.get(&key).into_iter().flat_map(PoolTask::statuses);
            let facts = facts::of_statuses(&mut self.occupancy, &key, statuses);
            touched.extend(self.occupancy.replace(&Source::Status(key), facts));
        }
        for node in self.recovery.take_changed() {
            let reserved = self.recovery.reserved_of(&node);
            let facts = reserved.map(|(key, range)| self.occupancy.fact(key, &node, *range, Evidence::Reserved));
            let facts = facts.collect();
            touched.extend(self.occupancy.replace(&Source::Reservations(node), facts));
        }
        self.wake_concerned(&touched, now);
    }

    /// An IPAMNode was deleted. The addresses that its agent last reported in use outside its blocks stay unavailable until the agent
    /// has reported again.
    pub(super) fn keep_report(&mut self, node: &str, gone: &IpamNodeRecord, now: Instant) {
        let mut facts = facts::of_ipam_node(&mut self.occupancy, node, gone, &[]);
        facts.retain(|fact| gone.has_reported() && fact.evidence == Evidence::OutsideBlock);
        if !facts.is_empty() {
            let touched = self.occupancy.replace(&Source::DeletedIpamNode(node.to_owned()), facts);
            self.wake_concerned(&touched, now);
        }
    }

    /// Whether addresses in use are known from an IPAMNode that was deleted.
    pub(super) fn keeps_report(&self, node: &str) -> bool {
        self.occupancy.of(&Source::DeletedIpamNode(node.to_owned())).next().is_some()
    }

    /// Drops the reports of deleted IPAMNodes whose Nodes are missing after a full list. The order of both deletions is unknown, and a
    /// process that started later does not have the report either.
    pub(super) fn forget_reports_of_missing_nodes(&mut self, now: Instant) {
        let deleted = self.occupancy.sources().filter_map(|source| match source {
            Source::DeletedIpamNode(node) => Some(node),
            _ => None,
        });
        let missing: Vec<String> = deleted.filter(|node| !self.nodes.contains(node)).cloned().collect();
        for node in missing {
            self.forget_report(&node, now);
        }
    }

    /// Drops the report of a deleted IPAMNode.
    pub(super) fn forget_report(&mut self, node: &str, now: Instant) {
        let touched = self.occupancy.replace(&Source::DeletedIpamNode(node.to_owned()), Vec::new());
        self.wake_concerned(&touched, now);
    }

    fn wake_concerned(&mut self, touched: &Touched, now: Instant) {
        if touched.is_empty() {
            return;
        }
        let is_concerned = |(key, task): &(&PoolKey, &PoolTask)| {
            let network = task.record.network();
            let shares = self.shares_with(task);
            let mut beyond = task.beyond();
            touched.concerns(key, network.as_ref(), &shares) || beyond.any(|range| touched.reaches(key, range, &shares))
        };
        let concerned: Vec<PoolKey> = self.pools.iter().filter(is_concerned).map(|(key, _)| key.clone()).collect();
        for key in concerned {
            if let Some(task) = self.pools.get_mut(&key) {
                task.due.wake(now);
            }
        }
    }

    /// Marks the overlaps as stale if what they depend on has changed. Wakes all pools if the pool begins or ends to share addresses.
    pub(super) fn note_change(&mut self, old: &PoolRecord, new: &PoolRecord, now: Instant) {
        let same_spec = match (&old.spec, &new.spec) {
            (Ok(one), Ok(two)) => Arc::ptr_eq(one, two),
            (Err(_), Err(_)) => true,
            _ => false,
        };
        let same_life = old.life.allows_overlap == new.life.allows_overlap && old.life.created == new.life.created;
        self.overlaps_stale |= !(same_spec && same_life);
        // Blocks outside the current network are unavailable to pools of other networks, too.
        if old.life.allows_overlap != new.life.allows_overlap {
            self.wake_pools(now);
        }
    }
}

fn contender(record: &PoolRecord) -> Option<OverlapCandidate> {
    let pool = record.spec.as_ref().ok()?;
    Some(OverlapCandidate {
        key: record.key.clone(),
        network: pool.network(),
        created: record.life.created,
        allows_overlap: record.life.allows_overlap,
    })
}

impl PoolTask {
    /// The status, and those of writes whose outcome is unknown.
    fn statuses(&self) -> impl Iterator<Item = &StatusRecord> {
        let under_way = self.call.iter().filter_map(|call| call.status.as_ref());
        std::iter::once(&self.record.status).chain(under_way).chain(&self.unacknowledged)
    }
}

/// Each node that the status names, with its block.
pub(super) fn blocks(status: &StatusRecord) -> impl Iterator<Item = (&str, AddrRange)> {
    status.claims().map(|claim| (claim.node.as_str(), claim.range))
}
