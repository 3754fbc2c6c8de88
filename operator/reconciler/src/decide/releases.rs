//! When a block that is being released is free for other nodes.
//!
//! It is free by the report of the agent, by an admin, or by time. Time counts once the Node is gone, as the status records it and as this
//! leader has itself seen for a while. A missing Node, a changed label or a missing record alone frees no block.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ipam_core::plan::{Assignment, BlockPhase, Claim, Usage};
use jiff::Timestamp;

use super::DecisionInput;
use super::condition_merge::whole_seconds;
use crate::cluster_cache::Leaving;
use crate::pool::Release;

/// Tolerance for adjustments of the wall clock, and for fractions of seconds that the API drops.
const CLOCK_SET: Duration = Duration::from_secs(5);

/// Why a block is released without a report of its agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The annotation force-release names the node.
    Forced,
    /// The Node has been gone for the whole grace.
    Expired,
}

/// Blocks that are being released, and when they are free.
pub(super) struct Releases<'a> {
    seen: &'a DecisionInput<'a>,
    recorded: HashMap<&'a str, &'a Release>,
}

impl<'a> Releases<'a> {
    pub(super) fn new(seen: &'a DecisionInput<'a>) -> Self {
        let recorded = seen.pool.status.releasing.iter().map(|release| (release.claim.node.as_str(), release));
        Self { seen, recorded: recorded.collect() }
    }

    /// Whether the Node exists.
    pub(super) fn exists(&self, node: &str) -> bool {
        self.seen.nodes.binary_search_by(|known| known.name.cmp(node)).is_ok()
    }

    /// Whether the last report may be from before a restore, so that it releases nothing, and another is requested.
    pub(super) fn is_doubted(&self, node: &str) -> bool {
        self.seen.ipam_nodes.get(node).is_some_and(|known| known.is_doubted)
    }

    /// Why no pool serves the node, if it leaves.
    pub(super) fn leaving(&self, node: &str) -> Option<Leaving> {
        self.seen.leaving.get(node).copied()
    }

    /// Why the block of a node that loses it is released without a report; `None` if it is not.
    pub(super) fn revoked(&self, node: &str) -> Option<Cause> {
        if self.seen.pool.life.force_releases(node) {
            return Some(Cause::Forced);
        }
        let expiry = self.expiry(node)?;
        (expiry <= self.seen.now && !self.exists(node)).then_some(Cause::Expired)
    }

    /// When the grace of the node's block ends, if its Node stays missing.
    fn expiry(&self, node: &str) -> Option<Timestamp> {
        let DecisionInput { absences, now, instant, grace, .. } = self.seen;
        let gone_since = self.seen_missing_since(node).or_else(|| self.gone_since(node))?;
        let unseen = absences.observed_at(node, (*grace)?, *instant).saturating_duration_since(*instant);
        Some(later(gone_since, (*grace)?)?.max(later(*now, unseen)?))
    }

    /// Usage of the node's block. A block that is force-released, or whose grace is over, is free once its entry is revoked, or if the node
    /// has no entry. A block that was just assigned is free until the node has an entry.
    pub(super) fn usage(&self, node: &str) -> Usage {
        let (ipam_nodes, key) = (self.seen.ipam_nodes, &self.seen.pool.key);
        let is_free = self.revoked(node).is_some() || self.seen.just_assigned.contains(node);
        let is_fenced = self.seen.just_assigned.contains(node) || ipam_nodes.get(node).is_none_or(|known| known.fenced);
        if is_free && is_fenced && ipam_nodes.has_no_entry(node, key) {
            return Usage::Empty;
        }
        ipam_nodes.usage(node, key)
    }

    /// Usage of the node's block by the last report.
    pub(super) fn counted(&self, node: &str) -> Usage {
        let (ipam_nodes, key) = (self.seen.ipam_nodes, &self.seen.pool.key);
        ipam_nodes.get(node).map_or(Usage::Unknown, |record| record.counted(key))
    }

    /// The nodes whose entries are to be revoked, whatever their agents report.
    pub(super) fn revoked_of(&self, assignments: &[Assignment]) -> BTreeSet<String> {
        let losing = assignments.iter().filter(|assignment| assignment.phase != BlockPhase::Active);
        losing.map(|assignment| &assignment.node).filter(|node| self.revoked(node).is_some()).cloned().collect()
    }

    /// The released blocks that the plan no longer has.
    fn gone(&self, assignments: &[Assignment]) -> impl Iterator<Item = &'a Release> {
        let has_block = |node: &str| assignments.binary_search_by(|given| given.node.as_str().cmp(node)).is_ok();
        self.seen.pool.status.releasing.iter().filter(move |release| !has_block(&release.claim.node))
    }

    /// The nodes whose blocks the plan no longer has because the grace is over.
    pub(super) fn expired(&self, assignments: &[Assignment]) -> BTreeSet<String> {
        let nodes = self.gone(assignments).map(|release| &release.claim.node);
        nodes.filter(|node| self.revoked(node) == Some(Cause::Expired)).cloned().collect()
    }

    /// When the next grace ends.
    pub(super) fn next_expiry(&self, assignments: &[Assignment]) -> Option<Timestamp> {
        let departed = assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Releasing);
        let ends = departed.filter_map(|assignment| self.expiry(&assignment.node));
        ends.filter(|end| *end > self.seen.now).min()
    }

    /// The entry of `status.releasing` for `claim`.
    pub(super) fn record(&self, claim: Claim) -> Release {
        let since = self.recorded.get(claim.node.as_str()).and_then(|release| release.since);
        let node_gone_since = self.gone_since(&claim.node);
        Release { claim, since: Some(since.unwrap_or_else(|| whole_seconds(self.seen.now))), node_gone_since }
    }

    /// Since when the Node is gone, as the status records it. The time is now if the status records none, or one in the future (the wall
    /// clock was set back). It is also now if the recorded time is of an earlier absence (the Node returned while the status could not be
    /// written).
    fn gone_since(&self, node: &str) -> Option<Timestamp> {
        if self.exists(node) {
            return None;
        }
        let recorded = self.recorded.get(node).and_then(|release| release.node_gone_since);
        let of_this = |since: &Timestamp| {
            let went_before = self.seen.absences.went_before(node, self.seen.instant);
            went_before.is_none_or(|ago| later(*since, ago + CLOCK_SET).is_none_or(|end| end >= self.seen.now))
        };
        let is_past = |since: &Timestamp| later(self.seen.now, CLOCK_SET).is_none_or(|end| *since <= end);
        Some(recorded.filter(is_past).filter(of_this).unwrap_or_else(|| whole_seconds(self.seen.now)))
    }

    /// Since when this leader has seen the Node missing, if the status has no room for times.
    fn seen_missing_since(&self, node: &str) -> Option<Timestamp> {
        let has_no_times = self.recorded.get(node).is_some_and(|release| release.since.is_none());
        if !has_no_times || self.exists(node) {
            return None;
        }
        let missing = self.seen.absences.missing_for(node, self.seen.instant);
        self.seen.now.checked_sub(jiff::SignedDuration::try_from(missing).ok()?).ok()
    }

    /// Released blocks that the plan no longer has, though their agents have not reported them as unused.
    pub(super) fn lost(&self, assignments: &[Assignment]) -> Vec<(&'a Release, Cause, Usage)> {
        let lost = self.gone(assignments).filter_map(|release| {
            let node = release.claim.node.as_str();
            Some((release, self.revoked(node)?, self.counted(node)))
        });
        lost.filter(|(.., counted)| *counted != Usage::Held(0)).collect()
    }
}

fn later(at: Timestamp, by: Duration) -> Option<Timestamp> {
    let by = jiff::SignedDuration::try_from(by).ok()?;
    at.checked_add(by).ok()
}
