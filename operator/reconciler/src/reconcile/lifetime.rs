//! The lifetime of an IPAMNode: created for each Node, kept while its agent's report counts, deleted after its Node.
//!
//! The operator creates it without blocks, because no version makes a creation conditional. A creation by a former leader may take
//! effect at any later time, and then assigns nothing.

use std::time::{Duration, Instant};

use ipam_core::PoolKey;
use ipam_crds::BlockUse;

use super::Reconciler;
use super::pool_task::PoolTask;
use super::recovery::PAUSE;
use super::timing::Backoff;
use crate::decide::CreateBlocked;
use crate::ipam_node::IpamNodeRecord;

/// No IPAMNode can be created at present.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoPlace {
    why: CreateBlocked,
    /// Before this time no creation is tried, of any node.
    until: Instant,
    backoff: Backoff,
}

impl Reconciler {
    /// Why no IPAMNode can be created, by the last creation; `None` if one can.
    pub(super) fn no_place(&self) -> Option<CreateBlocked> {
        self.no_place.as_ref().map(|no_place| no_place.why)
    }

    /// Before which time no IPAMNode is created.
    pub(super) fn creates_after(&self, now: Instant) -> Option<Instant> {
        self.no_place.as_ref().map(|no_place| no_place.until).filter(|until| *until > now)
    }

    /// A creation was refused, as any other would be. All nodes wait, so that a namespace that is being deleted is not flooded. Pools show the
    /// cause in a condition.
    pub(super) fn creation_blocked(&mut self, why: CreateBlocked, now: Instant) {
        let before = self.no_place();
        let no_place = self.no_place.get_or_insert(NoPlace { why, until: now, backoff: Backoff::default() });
        no_place.why = why;
        if no_place.until <= now {
            no_place.until = now + no_place.backoff.pause();
        }
        if before != Some(why) {
            self.wake_pools(now);
        }
    }

    /// A creation succeeded. The nodes that waited are due.
    pub(super) fn creation_succeeded(&mut self, now: Instant) {
        if self.no_place.take().is_none() {
            return;
        }
        self.wake_pools(now);
        for node in self.nodes.names().filter(|node| self.ipam_nodes.get(node).is_none()) {
            self.queue.push(node);
        }
    }

    /// Whether the agent reports addresses in use that neither an admin nor the grace has released.
    pub(super) fn report_counts(&self, node: &str, known: &IpamNodeRecord, now: Instant) -> bool {
        self.reports_use(node, known) && !self.is_grace_over(node, now)
    }

    /// Whether this leader has seen the Node missing for the grace, so that no report of it counts any more.
    pub(super) fn is_grace_over(&self, node: &str, now: Instant) -> bool {
        self.gone_expiry(node, now).is_some_and(|expiry| expiry <= now)
    }

    /// Whether the agent reports addresses in use that no admin has released.
    fn reports_use(&self, node: &str, known: &IpamNodeRecord) -> bool {
        let is_released = |task: &PoolTask| {
            task.forces(node) || task.applied.as_ref().is_some_and(|applied| applied.revoked.contains(node))
        };
        let is_free = |report: &BlockUse| {
            let key = PoolKey::new(report.pool_type.into(), report.name.as_str());
            self.pools.get(&key).is_some_and(is_released)
        };
        known.reports.iter().any(|report| report.used > 0 && !is_free(report))
    }

    /// Whether a status still records a block of the node. If this leader ends before it writes the status without that block, the
    /// next leader requests a report again.
    pub(super) fn is_recorded(&self, node: &str) -> bool {
        self.pools.values().filter_map(|task| task.applied.as_ref()).any(|applied| applied.of(node).is_some())
    }

    /// Records since when an IPAMNode, or the report of a deleted one, has no Node. After the grace the report no longer counts.
    pub(super) fn note_gone(&mut self, node: &str, now: Instant) {
        if self.ipam_nodes.get(node).is_none() && self.is_released_by_hand(node) {
            self.forget_report(node, now);
            self.end_wait(node, now);
        }
        let known = self.ipam_nodes.get(node);
        // The decision about the pool ends the grace of a block.
        let may_report = |known: &IpamNodeRecord| known.is_doubted || self.reports_use(node, known);
        let reports = known.is_some_and(|known| known.blocks.is_empty() && may_report(known));
        let is_awaited = self.keeps_report(node) || self.is_awaited(node);
        let is_empty = known.is_none_or(|known| known.blocks.is_empty());
        if (known.is_none() && !is_awaited) || self.nodes.contains(node) {
            self.gone.remove(node);
            self.expired.remove(node);
            return;
        }
        self.gone.entry(node.to_owned()).or_insert(now);
        self.end_lost_report(node, now);
        let Some(expiry) = self.gone_expiry(node, now) else { return };
        if expiry > now {
            if reports || (is_awaited && is_empty) {
                self.queue.push_at(node, expiry);
            }
            return;
        }
        self.end_wait(node, now);
    }

    /// Drops the report of a deleted IPAMNode once its Node was missing for [`PAUSE`], or for the grace if that is shorter. No record of
    /// the report is left, so the next leader does not have it.
    fn end_lost_report(&mut self, node: &str, now: Instant) {
        if !self.keeps_report(node) {
            return;
        }
        let grace = self.settings.released_block_grace.unwrap_or(PAUSE).min(PAUSE);
        match self.gone_after(node, grace, now) {
            Some(end) if end > now => self.queue.push_at(node, end),
            _ => self.forget_report(node, now),
        }
    }

    /// When the grace of the node's report ends, if its Node stays missing; `None` without a grace, or while the Node exists.
    fn gone_expiry(&self, node: &str, now: Instant) -> Option<Instant> {
        let grace = self.settings.released_block_grace?;
        if self.expired.contains(node) { Some(now) } else { self.gone_after(node, grace, now) }
    }

    /// The grace has released a block of the node, by the time in a status. So it is over for the node's report, too, although this
    /// leader may have led for a part of it only.
    pub(super) fn grace_has_ended(&mut self, node: &str) {
        if !self.nodes.contains(node) {
            self.expired.insert(node.to_owned());
            self.queue.push(node);
        }
    }

    /// When the Node will have been missing for `time`; `None` while it exists.
    fn gone_after(&self, node: &str, time: Duration, now: Instant) -> Option<Instant> {
        let seen = self.absences.observed_at(node, time, now);
        Some((*self.gone.get(node)? + time).max(seen))
    }
}
