//! The state of work on one pool: when it is due, what is being written, and what its IPAMNodes are derived from.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::plan::{Assignment, BlockPhase};
use ipam_core::{AddrRange, Pool, PoolKey};

use super::timing::{Backoff, Debounce, QUIET};
use crate::decide::{MetadataPatch, PoolEvent, UnavailableAddresses, outside_of};
use crate::ipam_node::IpamNodeRecord;
use crate::objects::{RawObject, is_older};
use crate::pool::{PoolRecord, StatusRecord};

/// The shortest time between two status writes in which only counts of addresses are new.
pub(super) const COUNTS_EVERY: Duration = Duration::from_secs(10);
/// The same during [`LIVELY`].
const COUNTS_WHILE_LIVELY: Duration = Duration::from_secs(1);
/// For so long after a status write began, nodes wait for its answer before anything is written for them.
pub(super) const HELD: Duration = Duration::from_secs(5);
/// For this long after everything was listed, counts are written more often: the reports from an outage arrive within seconds of
/// one another.
pub(super) const LIVELY: Duration = Duration::from_secs(15);

/// The work on one pool.
#[derive(Debug)]
pub(super) struct PoolTask {
    pub(super) record: PoolRecord,
    pub(super) due: Debounce,
    pub(super) backoff: Backoff,
    /// How many calls in a row were answered with an error, conflicts apart.
    pub(super) errors: u32,
    /// No call is made before this time, whatever happens: the last one failed, or a status waits for its bytes.
    pub(super) not_before: Option<Instant>,
    /// When the next status may be written that a user waits for. Its bytes are taken from the budget already.
    pub(super) turn: Option<Instant>,
    /// When the next counts may be written. Their bytes are taken from the budget already.
    pub(super) counts_turn: Option<Instant>,
    /// The call under way. While there is one, events of the pool wait in `pending_event`.
    pub(super) call: Option<Call>,
    pub(super) pending_event: Option<RawObject>,
    /// The last status whose write failed. The write may have taken effect, or may do so later.
    pub(super) unacknowledged: Option<StatusRecord>,
    /// The plan of a failed status write, until a later version of the pool shows whether the write took effect.
    pub(super) doubt: Option<Doubt>,
    /// The resourceVersion that this leader wrote, or that the API server confirmed as current while it led.
    pub(super) confirmed: Option<String>,
    /// The plan that IPAMNodes are derived from: the last valid one that a confirmed status records.
    pub(super) applied: Option<Applied>,
    pub(super) written_at: Option<Instant>,
    /// Until when counts are written more often, see [`LIVELY`].
    pub(super) lively_until: Option<Instant>,
    /// The older pool that has addresses of this one.
    pub(super) older_overlap: Option<PoolKey>,
    /// Names in the annotation force-release that have no effect until their nodes leave.
    pub(super) kept_names: BTreeSet<String>,
}

/// The call under way, and what follows once it has succeeded.
#[derive(Debug)]
pub(super) struct Call {
    /// Tells this call apart from earlier ones of the pool.
    pub(super) id: u64,
    pub(super) began: Instant,
    /// The status that was sent. With neither status nor patch, the call only confirms that the known version is current.
    pub(super) status: Option<StatusRecord>,
    /// The size of that status.
    pub(super) bytes: u64,
    pub(super) patch: Option<MetadataPatch>,
    pub(super) applies: Option<Applied>,
    pub(super) notes: Vec<PoolEvent>,
    /// Nodes that wait for the outcome, or whose entries stay as they are until then.
    pub(super) held: BTreeSet<String>,
}

impl Call {
    /// Returns a call about to be sent, for which no node waits yet.
    pub(super) fn new(id: u64, began: Instant) -> Self {
        Self { id, began, status: None, bytes: 0, patch: None, applies: None, notes: Vec::new(), held: BTreeSet::new() }
    }

    /// Whether it changes something, so that its success makes another version.
    pub(super) fn writes(&self) -> bool {
        self.status.is_some() || self.patch.is_some()
    }

    /// Whether it only makes a new version, so that an earlier write cannot take effect any more.
    pub(super) const fn is_fence(&self) -> bool {
        matches!(self.patch, Some(MetadataPatch::Fence(_)))
    }
}

/// The plan of [`PoolTask::unacknowledged`], while the outcome of that write is unknown. No other status is written meanwhile.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) plan: Applied,
    /// The events of that write.
    pub(super) notes: Vec<PoolEvent>,
    /// Nodes whose entries stay as they are until the outcome is known.
    pub(super) held: BTreeSet<String>,
}

/// The plan in force: the block of each node, and the spec from which the entries are made.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    /// `None` if the spec is invalid. Then all blocks are being released.
    pub(super) pool: Option<Arc<Pool>>,
    /// Sorted by node name.
    pub(super) assignments: Vec<Assignment>,
    /// Nodes whose entries are revoked, whatever their agents report.
    pub(super) revoked: BTreeSet<String>,
    /// Nodes whose blocks are free since this plan because the grace is over.
    pub(super) expired: BTreeSet<String>,
    /// Addresses that nodes must not allocate, because other nodes may use them.
    pub(super) unavailable_addresses: UnavailableAddresses,
    /// Whether a block is Releasing or Stale, so that it waits until its addresses are free. Checked with every report of an agent.
    pub(super) waits: bool,
    /// Nodes whose block was free until a status write of this leader assigned it.
    pub(super) just_assigned: BTreeSet<String>,
    /// How many waits for reports had ended when the plan was made.
    pub(super) ended_pauses: u32,
    /// Blocks outside the network of the spec from which nodes may allocate. Usually empty.
    pub(super) beyond: Vec<AddrRange>,
}

impl Applied {
    pub(super) fn new(pool: Option<Arc<Pool>>, assignments: Vec<Assignment>) -> Self {
        let network = pool.as_ref().map(|pool| pool.network().range());
        let beyond = outside_of(network.as_ref(), &assignments).copied().collect();
        let waits = assignments.iter().any(|assignment| assignment.phase != BlockPhase::Active);
        Self {
            pool,
            assignments,
            revoked: BTreeSet::new(),
            expired: BTreeSet::new(),
            unavailable_addresses: UnavailableAddresses::default(),
            waits,
            just_assigned: BTreeSet::new(),
            ended_pauses: 0,
            beyond,
        }
    }

    /// Keeps `just_assigned` of the plan `before` for unchanged blocks.
    pub(super) fn follow(&mut self, before: &Self) {
        let block = |applied: &Self, node: &str| applied.of(node).map(|given| given.block.range);
        let same = before.just_assigned.iter().filter(|node| block(before, node) == block(self, node));
        let same: Vec<String> = same.cloned().collect();
        self.just_assigned.extend(same);
    }

    pub(super) fn of(&self, node: &str) -> Option<&Assignment> {
        let place = self.assignments.binary_search_by(|assignment| assignment.node.as_str().cmp(node)).ok()?;
        self.assignments.get(place)
    }

    /// Whether the node has an Active block.
    pub(super) fn serves(&self, node: &str) -> bool {
        self.of(node).is_some_and(|given| given.phase == BlockPhase::Active)
    }

    /// Whether the node's part differs from that in `old`.
    fn differs_for(&self, node: &str, old: Option<&Self>) -> bool {
        match old {
            Some(old) if old.is_of_the_spec_of(self) => old.part_of(node) != self.part_of(node),
            Some(old) => old.of(node).is_some() || self.of(node).is_some(),
            None => self.of(node).is_some(),
        }
    }

    /// All that the node's entry is made from, except the spec.
    fn part_of(&self, node: &str) -> (Option<&Assignment>, bool, Option<&Vec<AddrRange>>, bool) {
        let UnavailableAddresses { held, suspended, .. } = &self.unavailable_addresses;
        (self.of(node), self.revoked.contains(node), held.get(node), suspended.contains(node))
    }

    /// Nodes whose part has more than their block, in this plan or in `other`.
    pub(super) fn specials<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a String> {
        [self, other].into_iter().flat_map(|applied| {
            let UnavailableAddresses { held, suspended, .. } = &applied.unavailable_addresses;
            applied.revoked.iter().chain(held.keys()).chain(suspended)
        })
    }

    pub(super) fn is_of_the_spec_of(&self, other: &Self) -> bool {
        match (&self.pool, &other.pool) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two) || one == two,
            (one, two) => one.is_none() && two.is_none(),
        }
    }
}

impl PoolTask {
    pub(super) fn new(record: PoolRecord) -> Self {
        Self {
            record,
            due: Debounce::default(),
            backoff: Backoff::default(),
            errors: 0,
            not_before: None,
            turn: None,
            counts_turn: None,
            call: None,
            pending_event: None,
            unacknowledged: None,
            doubt: None,
            confirmed: None,
            applied: None,
            written_at: None,
            lively_until: None,
            older_overlap: None,
            kept_names: BTreeSet::new(),
        }
    }

    /// A call has done what the pool waited for.
    pub(super) fn has_succeeded(&mut self) {
        self.backoff.reset();
        self.errors = 0;
    }

    /// The names in the annotation force-release that have an effect now.
    pub(super) fn forced_names(&self) -> impl Iterator<Item = &String> {
        self.record.life.force_release.difference(&self.kept_names)
    }

    /// Whether the annotation force-release names the node and has an effect now.
    pub(super) fn forces(&self, node: &str) -> bool {
        self.record.life.force_releases(node) && !self.kept_names.contains(node)
    }

    /// Keeps the names of nodes that are served, by the plan in force or without one by the status. They are kept until a plan in force does
    /// not serve them, so also while records are lost. A name that comes while the report of its node is awaited ends that wait.
    pub(super) fn keep_names(&mut self, is_awaited: impl Fn(&str) -> bool) {
        let names = &self.record.life.force_release;
        self.kept_names.retain(|node| names.contains(node));
        let planned = self.applied.iter().flat_map(|applied| &applied.assignments);
        let planned = planned.filter(|given| given.phase == BlockPhase::Active).map(|given| &given.node);
        let recorded = self.record.status.allocations.iter().filter(|_| self.applied.is_none());
        let served = planned.chain(recorded.map(|claim| &claim.node));
        self.kept_names.extend(served.filter(|node| names.contains(*node) && !is_awaited(node)).cloned());
    }

    /// When the pool is due for a decision, if at all.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let at = self.due.at()?;
        Some(self.not_before.map_or(at, |earliest| at.max(earliest)))
    }

    /// A call failed. If it was a status write, it may have taken effect. Entries that it changes stay as they are until the pool's
    /// version is known again.
    pub(super) fn doubt(&mut self, call: &mut Call) {
        let Some(status) = call.status.take() else { return };
        self.unacknowledged = Some(status);
        let Some(plan) = call.applies.take() else { return };
        self.doubt = Some(Doubt { plan, notes: std::mem::take(&mut call.notes), held: self.end_doubt() });
        self.confirmed = None;
    }

    /// The last write has an outcome. Returns the nodes whose entries may change now.
    pub(super) fn end_doubt(&mut self) -> BTreeSet<String> {
        self.doubt.take().map(|doubt| doubt.held).unwrap_or_default()
    }

    /// Returns until when the node waits for the answer to a status write under way, if that changes the node's part of the pool.
    pub(super) fn holds_up(&mut self, node: &str, known: Option<&IpamNodeRecord>, now: Instant) -> Option<Instant> {
        let until = self.call.as_ref()?.began + HELD;
        (now < until && self.doubt.is_none() && self.keeps_entry(node, known)).then_some(until)
    }

    /// Whether a status write that is under way, or whose outcome is unknown, changes the node's part of the pool. If so, the node's entry
    /// stays as it is, and the node returns to the queue once the outcome is known.
    pub(super) fn keeps_entry(&mut self, node: &str, known: Option<&IpamNodeRecord>) -> bool {
        let sent = || self.call.as_ref().and_then(|call| call.applies.as_ref());
        let plan = self.doubt.as_ref().map(|doubt| &doubt.plan).or_else(sent);
        let is_kept = plan.is_some_and(|plan| self.is_changed_by(plan, node, known));
        let held = self.doubt.as_mut().map(|doubt| &mut doubt.held).or(self.call.as_mut().map(|call| &mut call.held));
        if let Some(held) = held.filter(|_| is_kept) {
            held.insert(node.to_owned());
        }
        is_kept
    }

    /// Before the first plan of this leader any plan may change an entry that the node has.
    fn is_changed_by(&self, plan: &Applied, node: &str, known: Option<&IpamNodeRecord>) -> bool {
        let (applied, key) = (self.applied.as_ref(), &self.record.key);
        let has_entry = |known: &IpamNodeRecord| known.block(key).is_some() || known.told(key).is_some();
        (applied.is_none() && known.is_some_and(has_entry)) || plan.differs_for(node, applied)
    }

    /// Whether `object` is not newer than the known version: the echo of this leader's own write, or an event older than it.
    pub(super) fn knows(&self, object: &RawObject) -> bool {
        let (read, known) = (object.resource_version(), self.record.resource_version.as_str());
        object.metadata.uid.as_deref() == Some(&self.record.uid) && (read == known || is_older(read, known))
    }

    /// Whether the node's block was free until a status write of this leader assigned it.
    pub(super) fn has_just_assigned(&self, node: &str) -> bool {
        self.applied.as_ref().is_some_and(|applied| applied.just_assigned.contains(node))
    }

    /// The nodes whose block was free until a status write of this leader assigned it.
    pub(super) fn just_assigned(&self) -> BTreeSet<String> {
        self.applied.as_ref().map(|applied| applied.just_assigned.clone()).unwrap_or_default()
    }

    /// An entry assigns the node's block, or may have. So the block does not count as never used any more.
    pub(super) fn forget_just_assigned(&mut self, node: &str) {
        if let Some(applied) = &mut self.applied {
            applied.just_assigned.remove(node);
        }
    }

    /// Whether a block of the pool waits until its addresses are free.
    pub(super) fn waits_for_blocks(&self) -> bool {
        self.applied.as_ref().is_some_and(|applied| applied.waits)
    }

    /// Whether the pool waits for the next report of the node's agent, whatever its content.
    pub(super) fn awaits(&self, node: &str) -> bool {
        self.applied.as_ref().is_some_and(|applied| applied.unavailable_addresses.awaited.contains(node))
    }

    /// Whether addresses are unavailable to their nodes, because other nodes may use them. Any report may end that, also one with the
    /// same count.
    pub(super) fn bars_addresses(&self) -> bool {
        let unavailable_addresses = self.applied.as_ref().map(|applied| &applied.unavailable_addresses);
        unavailable_addresses.is_some_and(|unavailable_addresses| {
            !unavailable_addresses.held.is_empty() || !unavailable_addresses.suspended.is_empty()
        })
    }

    /// Blocks outside the network of the spec from which nodes may allocate, also by a status write under way.
    pub(super) fn beyond(&self) -> impl Iterator<Item = &AddrRange> {
        let plans = self.applied.iter().chain(self.call.iter().filter_map(|call| call.applies.as_ref()));
        plans.chain(self.doubt.iter().map(|doubt| &doubt.plan)).flat_map(|applied| &applied.beyond)
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.as_deref() == Some(&self.record.resource_version)
    }

    /// When new counts of addresses may be written.
    pub(super) fn counts_at(&self, now: Instant) -> Instant {
        let pause_ends = self.written_at.map(|at| at + self.counts_every(now));
        pause_ends.max(self.counts_turn).map_or(now, |at| at.max(now))
    }

    /// The same, with time for more counts that may follow at once.
    pub(super) fn burst_of_counts_at(&self, now: Instant) -> Instant {
        self.counts_at(now).max(now + QUIET)
    }

    fn counts_every(&self, now: Instant) -> Duration {
        let is_lively = self.lively_until.is_some_and(|until| now < until);
        if is_lively { COUNTS_WHILE_LIVELY } else { COUNTS_EVERY }
    }
}

/// Returns the nodes whose part of the pool differs between `old` and `new`. Both are sorted by node name.
pub(super) fn changed_nodes<'a>(old: &'a [Assignment], new: &'a [Assignment]) -> Vec<&'a str> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let mut changed = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return changed,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.node.cmp(&is.node),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        if was != is {
            changed.extend(was.or(is).map(|assignment| assignment.node.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam_core::{AddrRange, Block};

    use super::*;

    fn given(node: &str, first: &str) -> Assignment {
        let first = first.parse().unwrap();
        let range = AddrRange::new(first, first).unwrap();
        Assignment { node: node.to_owned(), block: Block { range, gateway: None }, phase: BlockPhase::Active }
    }

    #[test]
    fn only_nodes_whose_part_changed_are_named() {
        let old = [given("a", "10.0.0.1"), given("b", "10.0.0.2"), given("d", "10.0.0.4")];
        let new = [given("b", "10.0.0.2"), given("c", "10.0.0.3"), given("d", "10.0.0.5")];
        assert_eq!(changed_nodes(&old, &new), ["a", "c", "d"]);
        assert_eq!(changed_nodes(&[], &new), ["b", "c", "d"]);
        assert!(changed_nodes(&new, &new).is_empty());
    }
}
