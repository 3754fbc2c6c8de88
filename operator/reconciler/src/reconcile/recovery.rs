//! Recovery: records of blocks are lost, or may be from an earlier time.
//!
//! Two records have the block of each node: the pool's status and the IPAMNode. The agents' journals have it, too. So the operator
//! requests reports: it writes a new ID into `spec.reportRequest` of an IPAMNode, and the agent repeats the ID in its next report.
//! Until then the earlier report of that node proves nothing: it releases no block.
//!
//! | what the leader sees | what it requests | what waits |
//! | --- | --- | --- |
//! | both records of a block are gone | a report of that node | nothing: the block is reserved for its node |
//! | the API server is back in an earlier state, or may be | reports of all nodes | new blocks, for at most [`PAUSE`] |
//! | the Lease has `Allocated`, and only reports are recorded | reports of all nodes | new blocks, for at most [`PAUSE`] |
//! | the Lease has `Allocated`, and nothing is recorded | reports of all nodes | new blocks, until all have reported |
//!
//! "May be" means: the new leader found [`AllocationState::Recovering`] or [`AllocationState::Doubtful`] in the Lease.
//! With `Recovering` and no recorded block, new blocks also wait until all have reported. No pool waits for a Node that joins meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipam_core::plan::{Claim, ClaimSource};
use ipam_core::{AddrRange, PoolKey};

use super::pool_task::Applied;
use super::{NodeAction, PoolTask, Reconciler};
use crate::allocation_state::AllocationState;
use crate::cluster_cache::key_of;
use crate::ipam_node::{IpamNodeRecord, claim_of};

/// So many nodes the log names that have not answered when the wait for reports ends.
const NAMED: usize = 20;

/// How long new blocks wait for reports if records exist and may be from an earlier time.
pub(super) const PAUSE: Duration = Duration::from_mins(2);

/// Pool, node and block.
pub(super) type Reserved = (PoolKey, String, AddrRange);

/// Which reports are requested, and which blocks are reserved.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Node → ID of the request that its agent has not answered.
    awaited: BTreeMap<String, String>,
    /// The awaited nodes that an admin has named in an annotation of force-release.
    force_released: BTreeSet<String>,
    /// Blocks whose records are lost, or may be. A reservation ends when a status records the block, the node's agent answers, the
    /// grace of a missing Node ends, or an admin force-releases it.
    reserved: Reservations,
    /// Until when no pool assigns a new block.
    pause: Pause,
    /// How many pauses have ended. A plan from before such an end does not include the last reports.
    ended_pauses: u32,
    /// The awaited nodes for which the pause waits: those that run an agent and whose Nodes existed when it began.
    pausing: BTreeSet<String>,
    /// The nodes for which the last pause waited in vain, until they answer.
    late: BTreeSet<String>,
    /// Whether the records must be compared with the Lease once all watches have listed.
    examines: bool,
    /// Whether the API server is back in an earlier state.
    rolled_back: bool,
    /// The known state of the Lease.
    said: AllocationState,
    /// The state that the Lease had when this leader acquired it, until the records are compared with it.
    inherited: AllocationState,
    /// Whether this leader has seen records. If there are none any more, all blocks were released in order.
    saw_records: bool,
    /// Nodes with a call that waits for the Lease.
    held: BTreeSet<String>,
    /// Nodes whose IPAMNodes were deleted after their agents had reported.
    reported: BTreeSet<String>,
}

/// The reserved blocks.
#[derive(Debug, Default)]
struct Reservations {
    by_node: BTreeMap<String, BTreeSet<(PoolKey, AddrRange)>>,
    /// Nodes whose reserved blocks have changed since the last update of the occupancy.
    changed: BTreeSet<String>,
}

impl Reservations {
    fn insert(&mut self, (key, node, range): Reserved) {
        self.changed.insert(node.clone());
        self.by_node.entry(node).or_default().insert((key, range));
    }

    /// Keeps the blocks of the node that `which` accepts.
    fn retain(&mut self, node: &str, which: impl Fn(&PoolKey, &AddrRange) -> bool) {
        let Some(blocks) = self.by_node.get_mut(node) else { return };
        let before = blocks.len();
        blocks.retain(|(key, range)| which(key, range));
        if blocks.len() != before {
            self.changed.insert(node.to_owned());
        }
        if blocks.is_empty() {
            self.by_node.remove(node);
        }
    }

    fn of_node(&self, node: &str) -> impl Iterator<Item = &(PoolKey, AddrRange)> {
        self.by_node.get(node).into_iter().flatten()
    }
}

/// How long new blocks wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Pause {
    /// New blocks do not wait.
    #[default]
    None,
    /// Until all agents have reported, but no longer than this.
    Until(Instant),
    /// Until all agents have reported.
    UntilReported,
}

impl Recovery {
    /// The nodes whose reports are awaited, by name.
    #[cfg(test)]
    pub(super) fn awaited_nodes(&self) -> Vec<&String> {
        self.awaited.keys().collect()
    }

    /// The request that the node's agent has not answered.
    pub(super) fn request_to(&self, node: &str) -> Option<&String> {
        self.awaited.get(node)
    }

    /// The nodes for which all pools wait.
    pub(super) fn pausing(&self) -> Vec<String> {
        if self.is_paused() { self.pausing.iter().cloned().collect() } else { Vec::new() }
    }

    /// The nodes that had not answered when the pause ended, and have not since.
    pub(super) fn late(&self) -> Vec<String> {
        self.late.iter().cloned().collect()
    }

    /// Whether no pool assigns a new block.
    pub(super) fn is_paused(&self) -> bool {
        self.pause != Pause::None && !self.pausing.is_empty()
    }

    /// When the pause ends, even if reports are missing.
    pub(super) fn pause_ends(&self) -> Option<Instant> {
        match self.pause {
            Pause::Until(end) if self.is_paused() => Some(end),
            _ => None,
        }
    }

    /// How many pauses have ended.
    pub(super) const fn ended_pauses(&self) -> u32 {
        self.ended_pauses
    }

    /// Whether the next leader has to request reports, too.
    fn is_for_the_next_leader(&self) -> bool {
        self.is_paused() || !self.reserved.by_node.is_empty()
    }

    /// The longest time that new blocks wait; `None` without a limit.
    pub(super) fn limit(&self) -> Option<Duration> {
        matches!(self.pause, Pause::Until(_)).then_some(PAUSE)
    }

    /// Whether the state of the Lease does not yet make the next leader request reports. Until it does, no pool is written either: a
    /// single record would show the next leader that not all records are lost.
    pub(super) fn waits_for_the_lease_state(&self) -> bool {
        self.is_for_the_next_leader() && !self.said.covers(AllocationState::Doubtful)
    }

    /// How many calls wait for the Lease.
    pub(super) fn held_calls(&self) -> usize {
        self.held.len()
    }

    /// The reserved blocks of a pool.
    pub(super) fn of(&self, key: &PoolKey) -> Vec<Claim> {
        let of_pool = self.reserved().filter(|(of, ..)| *of == key);
        let claim = |(_, node, range): (&PoolKey, &String, &AddrRange)| Claim {
            node: node.clone(),
            range: *range,
            gateway: None,
            source: ClaimSource::IpamNode,
        };
        of_pool.map(claim).collect()
    }

    /// Returns the nodes whose reserved blocks have changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.reserved.changed)
    }

    /// The reserved blocks of a node.
    pub(super) fn reserved_of(&self, node: &str) -> impl Iterator<Item = &(PoolKey, AddrRange)> {
        self.reserved.of_node(node)
    }

    /// Every reserved block, with its node.
    pub(super) fn reserved(&self) -> impl Iterator<Item = (&PoolKey, &String, &AddrRange)> {
        let by_node = self.reserved.by_node.iter();
        by_node.flat_map(|(node, blocks)| blocks.iter().map(move |(key, range)| (key, node, range)))
    }

    /// Ends the reservations of the blocks that a status records now.
    pub(super) fn recorded(&mut self, key: &PoolKey, applied: &Applied) {
        let nodes: Vec<String> = self.reserved.by_node.keys().cloned().collect();
        for node in nodes {
            let recorded = applied.of(&node).map(|given| given.block.range);
            self.reserved.retain(&node, |of, range| of != key || recorded != Some(*range));
        }
    }
}

impl Reconciler {
    /// Begins with the state that the Lease had when this leader acquired it.
    pub(super) fn begin_by(&mut self, given: AllocationState) {
        let before = std::mem::take(&mut self.recovery.reserved);
        let changed = before.changed.into_iter().chain(before.by_node.into_keys()).collect();
        let reserved = Reservations { changed, ..Reservations::default() };
        self.recovery = Recovery { said: given, inherited: given, examines: true, reserved, ..Recovery::default() };
    }

    /// Reserves all known blocks until the records are listed and compared, because the API server is back in an earlier state.
    pub(super) fn reserve_all(&mut self) {
        for (key, task) in &self.pools {
            let plans = task.applied.iter().chain(task.call.iter().filter_map(|call| call.applies.as_ref()));
            let assignments = plans.flat_map(|applied| &applied.assignments);
            let blocks = assignments.map(|given| (key.clone(), given.node.clone(), given.block.range));
            for block in blocks {
                self.recovery.reserved.insert(block);
            }
        }
        for (node, record) in self.ipam_nodes.all() {
            let claims = record.blocks.iter().map(key_of).filter_map(|key| Some((record.claim(node, &key)?, key)));
            claims.for_each(|(claim, key)| self.recovery.reserved.insert((key, claim.node, claim.range)));
        }
        self.recovery.rolled_back = true;
    }

    /// The known state is not that of the API server: the records will be compared once they are listed.
    pub(super) fn doubt_records(&mut self) {
        self.recovery.examines = true;
    }

    /// Takes in the known state of the Lease.
    pub(super) fn on_allocation_state(&mut self, given: AllocationState) {
        // Without this check, each event would queue every waiting node again, and these would wake the others.
        if std::mem::replace(&mut self.recovery.said, given) != given {
            self.release_held();
        }
    }

    /// Queues the nodes whose calls waited for the Lease.
    pub(super) fn release_held(&mut self) {
        for node in std::mem::take(&mut self.recovery.held) {
            self.queue.push(&node);
        }
    }

    /// Returns the state that the Lease must have.
    pub(super) fn wanted_state(&self) -> AllocationState {
        let said = self.recovery.said;
        if self.recovery.is_for_the_next_leader() {
            return self.recovery_state();
        }
        if self.recovery.examines {
            return said;
        }
        let may_forget =
            matches!(said, AllocationState::NoneAllocated | AllocationState::Doubtful) || self.recovery.saw_records;
        if self.has_records() || !may_forget {
            AllocationState::Allocated
        } else if self.is_in_use() {
            // The next leader needs the reports, but need not wait for them without a limit.
            AllocationState::Doubtful
        } else {
            AllocationState::NoneAllocated
        }
    }

    /// Returns the state that the Lease must have during a recovery. If no block is recorded or reserved, the next leader need not wait
    /// longer than this one.
    fn recovery_state(&self) -> AllocationState {
        let is_known = !self.recovery.reserved.by_node.is_empty() || self.assigns();
        let is_limited = matches!(self.recovery.pause, Pause::Until(_));
        if is_limited && !is_known { AllocationState::Doubtful } else { AllocationState::Recovering }
    }

    /// Whether a status or an IPAMNode has a block. A status write without an answer does not count: no node gets a block by it, so it leaves
    /// no mark in the Lease if it fails.
    fn has_records(&self) -> bool {
        self.pools.values().any(PoolTask::has_records) || self.ipam_nodes.all().values().any(has_blocks)
    }

    /// Whether a block is assigned, or about to be.
    fn assigns(&self) -> bool {
        self.pools.values().any(PoolTask::assigns) || self.ipam_nodes.all().values().any(has_blocks)
    }

    /// Whether an agent reports addresses in use outside its blocks.
    fn is_in_use(&self) -> bool {
        self.occupancy.has_outside_blocks()
    }

    /// Remembers that this leader has seen records. From then on it sees whether they disappear.
    pub(super) fn note_records(&mut self) {
        self.recovery.saw_records = self.recovery.saw_records || self.assigns();
    }

    /// Whether a report of the node is awaited.
    pub(super) fn is_awaited(&self, node: &str) -> bool {
        self.recovery.awaited.contains_key(node)
    }

    /// Whether a call needs a state of the Lease that would make the next leader more careful than the known one. If so it waits for it.
    pub(super) fn waits_for_the_lease(&mut self, node: &str, action: &NodeAction) -> bool {
        // A report in a new IPAMNode shows the next leader that not all records are lost, unless the Lease has another state.
        let creates = matches!(action, NodeAction::Create { .. });
        let needs = if self.recovery.is_for_the_next_leader() && (creates || self.is_awaited(node)) {
            self.recovery_state()
        } else if action.blocks().is_empty() {
            AllocationState::NoneAllocated
        } else {
            AllocationState::Allocated
        };
        let waits = !self.recovery.said.covers(needs);
        if waits {
            self.recovery.held.insert(node.to_owned());
        }
        waits
    }

    /// Compares the listed records with the state of the Lease, once all watches have listed.
    pub(super) fn examine(&mut self, now: Instant) {
        if !std::mem::take(&mut self.recovery.examines) {
            return;
        }
        self.forget_reports_of_missing_nodes(now);
        let inherited = std::mem::take(&mut self.recovery.inherited);
        let rolled_back = std::mem::take(&mut self.recovery.rolled_back);
        let is_all_lost = match self.recovery.said {
            AllocationState::NoneAllocated | AllocationState::Doubtful => false,
            AllocationState::Allocated => !self.is_anything_recorded(),
            // Another leader has begun a recovery, and some agents may have reported since.
            AllocationState::Recovering => !self.assigns(),
        };
        // An agent may have reported in an IPAMNode that was created after all records were lost.
        let may_be_lost = self.recovery.said == AllocationState::Allocated && !self.assigns();
        if !is_all_lost && !may_be_lost && !rolled_back && inherited < AllocationState::Doubtful {
            return;
        }
        self.recovery.pause = if is_all_lost { Pause::UntilReported } else { Pause::Until(now + PAUSE) };
        self.recovery.pausing = self.nodes.names().filter(|node| self.runs_agent(node)).cloned().collect();
        if self.recovery.pausing.is_empty() && self.nodes.names().next().is_some() {
            tracing::warn!("--agent-node-selector matches no Node, so new blocks wait for no report");
        }
        let reserved = self.recovery.reserved.by_node.keys();
        let with_blocks = self.ipam_nodes.all().iter().filter(|(_, known)| has_blocks(known)).map(|(node, _)| node);
        let with_blocks = with_blocks.filter(|node| self.may_have_agent(node));
        let nodes = self.recovery.pausing.iter().chain(self.recovery.awaited.keys()).chain(reserved).chain(with_blocks);
        let nodes: BTreeSet<String> = nodes.cloned().collect();
        self.recovery.awaited.clear();
        self.request_reports(nodes, now);
    }

    /// Whether the node runs an agent, by [`super::Settings::agent_nodes`].
    fn runs_agent(&self, node: &str) -> bool {
        let labels = self.nodes.labels(node);
        self.settings.agent_nodes.iter().all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
    }

    /// Whether an agent may have allocated on the node. The labels of a missing Node are unknown, and those of another may have changed
    /// since its agent reported.
    pub(super) fn may_have_agent(&self, node: &str) -> bool {
        let reports = || self.ipam_nodes.get(node).is_some_and(IpamNodeRecord::has_reported);
        !self.nodes.contains(node) || self.runs_agent(node) || self.recovery.reported.contains(node) || reports()
    }

    /// Whether any record has a block, or an agent has reported.
    fn is_anything_recorded(&self) -> bool {
        let has_claims = |task: &PoolTask| task.record.status.claims().next().is_some();
        let tells = |record: &IpamNodeRecord| has_blocks(record) || record.has_reported();
        self.pools.values().any(has_claims) || self.ipam_nodes.all().values().any(tells)
    }

    /// A status no longer records these blocks, or was deleted with its pool. Blocks without an entry in an IPAMNode are lost.
    /// `was_unused` returns whether the block of a node was free until this leader assigned it.
    pub(super) fn status_lost(
        &mut self,
        key: &PoolKey,
        lost: impl IntoIterator<Item = (String, AddrRange)>,
        was_unused: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        if !self.sees_losses() {
            return;
        }
        // An entry with another block of the node does not record this one.
        let is_recorded = |node: &str, range: &AddrRange| {
            let known = self.ipam_nodes.get(node).and_then(|known| known.claim(node, key));
            known.is_some_and(|claim| claim.range == *range)
        };
        // A block that was free until this leader assigned it is not in use before a write that may have made an entry.
        let is_unused = |node: &str| was_unused(node) && self.ipam_nodes.has_no_entry(node, key);
        let is_lost = |node: &str, range: &AddrRange| !is_recorded(node, range) && !is_unused(node);
        let blocks = lost.into_iter().filter(|(node, range)| is_lost(node, range) && self.may_have_agent(node));
        let blocks: Vec<Reserved> = blocks.map(|(node, range)| (key.clone(), node, range)).collect();
        self.reserve(blocks, now);
    }

    /// An IPAMNode was deleted. Its blocks that no status records are lost.
    pub(super) fn ipam_node_lost(&mut self, node: &str, gone: &IpamNodeRecord, now: Instant) {
        if !self.sees_losses() {
            return;
        }
        if gone.has_reported() && self.nodes.contains(node) {
            self.recovery.reported.insert(node.to_owned());
        }
        if !self.may_have_agent(node) {
            return;
        }
        let is_recorded = |key: &PoolKey| {
            let status = self.pools.get(key).map(|task| &task.record.status);
            status.is_some_and(|status| status.claims().any(|claim| claim.node == node))
        };
        let entries = gone.blocks.iter().chain(gone.intended_blocks.iter().flatten());
        let lost = entries.filter(|entry| {
            let key = key_of(entry);
            !is_recorded(&key) && (gone.write_in_flight || !gone.is_over(&key))
        });
        let lost = lost.filter_map(|entry| Some((key_of(entry), node.to_owned(), claim_of(node, entry)?.range)));
        let lost: Vec<Reserved> = lost.collect();
        self.reserve(lost, now);
    }

    /// Whether a deleted record existed while this leader led. A record from before may have been deleted in order meanwhile.
    pub(super) fn sees_losses(&self) -> bool {
        self.is_leading() && !self.recovery.examines
    }

    /// Reserves blocks for their nodes, and requests reports of these.
    fn reserve(&mut self, blocks: Vec<Reserved>, now: Instant) {
        let nodes: BTreeSet<String> = blocks.iter().map(|(_, node, _)| node.clone()).collect();
        if nodes.is_empty() {
            return;
        }
        for block in blocks {
            self.recovery.reserved.insert(block);
        }
        self.request_reports(nodes, now);
    }

    /// Requests a report of each of these nodes.
    fn request_reports(&mut self, nodes: BTreeSet<String>, now: Instant) {
        // One line for a loss of many records, which comes as many events.
        if self.recovery.awaited.is_empty() {
            tracing::warn!("records of blocks are missing or from an earlier time: requesting reports");
        }
        for node in nodes {
            let id = format!("{:016x}", self.random.u64(..));
            self.ipam_nodes.doubt_report(&node);
            self.queue.push(&node);
            self.recovery.awaited.insert(node, id);
        }
        self.note_awaited(now);
    }

    /// The node's IPAMNode has changed: its report may be the awaited one.
    pub(super) fn note_report(&mut self, node: &str, now: Instant) {
        let Some(request) = self.recovery.request_to(node) else { return };
        let answer = self.ipam_nodes.get(node).and_then(|known| known.answers.as_ref());
        if answer == Some(request) {
            self.end_wait(node, now);
        } else {
            self.ipam_nodes.doubt_report(node);
        }
    }

    /// Ends the doubt about a node that runs no agent and never did: nobody will answer the request of a former leader.
    pub(super) fn end_doubt_without_agent(&mut self, node: &str, now: Instant) {
        let is_doubted = self.ipam_nodes.get(node).is_some_and(|known| known.is_doubted);
        if !is_doubted || self.is_awaited(node) || self.may_have_agent(node) {
            return;
        }
        if let Some(known) = self.ipam_nodes.get_mut(node) {
            known.is_doubted = false;
        }
        self.wake_pools_with_block_of(node, now);
    }

    /// A report counts again.
    fn wake_pools_with_block_of(&mut self, node: &str, now: Instant) {
        let has_block = |task: &PoolTask| task.applied.as_ref().is_some_and(|applied| applied.of(node).is_some());
        self.pools.values_mut().filter(|task| has_block(task)).for_each(|task| task.due.wake(now));
    }

    /// Ends the wait for the node's report, and releases its reserved blocks.
    pub(super) fn end_wait(&mut self, node: &str, now: Instant) {
        if self.recovery.awaited.remove(node).is_none() {
            return;
        }
        if self.recovery.awaited.is_empty() {
            tracing::info!("no requested report is awaited any more");
        }
        self.recovery.force_released.remove(node);
        self.recovery.pausing.remove(node);
        self.ipam_nodes.end_doubt(node);
        self.queue.push(node);
        self.recovery.reserved.retain(node, |_, _| false);
        self.wake_pools_with_block_of(node, now);
        self.end_late(node, now);
        self.note_awaited(now);
    }

    /// No pool shows the node any more as one whose report is missing.
    fn end_late(&mut self, node: &str, now: Instant) {
        if self.recovery.late.remove(node) {
            self.wake_pools(now);
        }
    }

    /// Ends the pause for each node that an admin force-releases on a pool. Its reserved blocks of that pool, and of deleted pools, are
    /// released. Its earlier report still proves nothing: the annotation can be older than the loss of records, and it concerns one
    /// pool. So the report stays awaited as long as the node has a Node or a block.
    pub(super) fn end_waits_by_hand(&mut self, now: Instant) {
        if self.recovery.awaited.is_empty() {
            return;
        }
        let recovery = &self.recovery;
        // A deleted pool cannot have an annotation.
        let is_meant = |named: &PoolKey, of: &PoolKey| named == of || !self.pools.contains_key(of);
        let is_for = |(key, node): &(&PoolKey, &String)| {
            let is_reserved = || recovery.reserved_of(node).any(|(of, _)| is_meant(key, of));
            let is_new = || recovery.awaited.contains_key(*node) && !recovery.force_released.contains(*node);
            recovery.pausing.contains(*node) || is_reserved() || is_new()
        };
        let named = self.pools.iter().flat_map(|(key, task)| task.forced_names().map(move |node| (key, node)));
        let named: Vec<_> = named.filter(is_for).map(|(key, node)| (key.clone(), node.clone())).collect();
        for (pool, node) in named {
            tracing::warn!(%pool, %node, "no new block waits for the report of this node: the annotation force-release names it");
            self.recovery.pausing.remove(&node);
            self.end_late(&node, now);
            self.recovery.force_released.insert(node.clone());
            self.queue.push(&node);
            let pools = &self.pools;
            self.recovery.reserved.retain(&node, |of, _| *of != pool && pools.contains_key(of));
            self.note_awaited(now);
        }
    }

    /// Whether the report of the node no longer matters: the node has no Node, an admin has force-released it, and no record has a
    /// block of it.
    pub(super) fn is_released_by_hand(&self, node: &str) -> bool {
        let has_blocks = || self.ipam_nodes.get(node).is_some_and(has_blocks);
        let is_reserved = || self.recovery.reserved_of(node).next().is_some();
        let is_released = !self.nodes.contains(node) && self.recovery.force_released.contains(node);
        is_released && !has_blocks() && !is_reserved() && !self.is_recorded(node)
    }

    /// Ends the pause when its time has come.
    pub(super) fn end_pause(&mut self, now: Instant) {
        if self.recovery.pause_ends().is_some_and(|end| end <= now) {
            let nodes: Vec<&str> = self.recovery.awaited.keys().take(NAMED).map(String::as_str).collect();
            tracing::warn!(
                nodes = self.recovery.awaited.len(),
                first = nodes.join(" "),
                "blocks are assigned again, though these nodes have not reported"
            );
            self.recovery.pause = Pause::None;
            self.recovery.late = std::mem::take(&mut self.recovery.pausing);
            self.pause_is_over(now);
        }
    }

    /// Updates the nodes that the conditions of pools show as awaited. Ends the pause when there is none.
    fn note_awaited(&mut self, now: Instant) {
        let Recovery { awaited, force_released, .. } = &self.recovery;
        self.metrics.nodes_awaiting_report(awaited.keys().filter(|node| !force_released.contains(*node)).count());
        if self.recovery.pause == Pause::None {
            return;
        }
        if self.recovery.pausing.is_empty() {
            self.recovery.pause = Pause::None;
            self.pause_is_over(now);
            return;
        }
        for task in self.pools.values_mut() {
            task.due.by(task.burst_of_counts_at(now));
        }
    }

    /// Drops all plans, because they do not include the last reports. Plans under way are dropped when they arrive.
    fn pause_is_over(&mut self, now: Instant) {
        self.recovery.ended_pauses += 1;
        self.pools.values_mut().for_each(|task| task.applied = None);
        self.wake_pools(now);
        // Entries that lacked a grant get one, also those of a missing Node.
        for node in self.nodes.names().chain(self.ipam_nodes.all().keys()) {
            self.queue.push(node);
        }
    }
}

/// Whether it has a block, or is to get one again that another writer took away.
fn has_blocks(record: &IpamNodeRecord) -> bool {
    !record.blocks.is_empty() || record.intended_blocks.as_ref().is_some_and(|intended| !intended.is_empty())
}

impl PoolTask {
    /// Whether a block of it is assigned, or about to be.
    fn assigns(&self) -> bool {
        let mut planned = self.call.iter().filter_map(|call| call.applies.as_ref());
        self.has_records() || planned.any(|applied| !applied.assignments.is_empty())
    }

    /// Whether its status has a block.
    fn has_records(&self) -> bool {
        let is_applied = self.applied.as_ref().is_some_and(|applied| !applied.assignments.is_empty());
        is_applied || self.record.status.claims().next().is_some()
    }

    /// Nodes and the blocks that they may use, by the status or by the plan that IPAMNodes are derived from.
    pub(super) fn blocks(&self) -> BTreeSet<(String, AddrRange)> {
        let planned = self.applied.iter().flat_map(|applied| &applied.assignments);
        let planned = planned.map(|given| (given.node.clone(), given.block.range));
        let recorded = self.record.status.claims().map(|claim| (claim.node.clone(), claim.range));
        recorded.chain(planned).collect()
    }
}
