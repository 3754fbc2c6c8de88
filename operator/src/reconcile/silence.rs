//! Nodes whose agents are asked because every record of their blocks may be lost.
//!
//! Who has which block stands in pools' statuses and again in IPAMNodes. Where both are gone the agents still know, and each tells
//! it in its IPAMNode, also of pools that this one does not name. So a Node that has none is made one, without blocks, and until
//! its agent has spoken no pool may give a new block: any address may be held there. A leader keeps no copy of what was lost; it
//! keeps the names, and the Lease says that there are some ([`Given::Unrecorded`]) before the first is asked.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use ipam_core::plan::Claim;
use ipam_core::{AddrRange, PoolKey};

use super::{NodeAction, PoolTask, Reconciler};
use crate::election::given::Given;
use crate::index::key_of;
use crate::ipam_node::IpamNodeRecord;
use crate::pool::StatusRecord;

/// Who is waited for, and what the Lease says of it.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Nodes whose agents have not spoken since their records were lost.
    nodes: BTreeSet<String>,
    /// Whether what is recorded is to be held against the Lease, once all is listed.
    examines: bool,
    /// Whether Nodes that turn up are asked like those that were there.
    asks_all: bool,
    /// What the Lease may be relied upon to say.
    said: Given,
    /// What another leader had the Lease say, until that has been looked into. Our own word is no news of what is lost: while all is
    /// listed anew it is [`Given::Unrecorded`] though nothing may be.
    inherited: Given,
    /// Whether we have seen records: if there are none any more, and nobody is silent, all was given back in good order.
    saw_records: bool,
    /// Nodes about which a call waits for the Lease.
    held: BTreeSet<String>,
}

impl Silence {
    /// The nodes, by name.
    pub(super) fn nodes(&self) -> &BTreeSet<String> {
        &self.nodes
    }

    /// What is known is not what the API server has: all is to be looked through once it is listed anew.
    pub(super) fn doubt(&mut self) {
        self.examines = true;
    }

    /// Whether calls wait for the Lease.
    pub(super) fn holds_calls(&self) -> bool {
        !self.held.is_empty()
    }
}

impl Reconciler {
    /// Begins anew with what the Lease said when we came to lead.
    pub(super) fn begin_by(&mut self, given: Given) {
        self.silence = Silence { said: given, inherited: given, examines: true, ..Silence::default() };
    }

    /// The Lease may be relied upon to say this. What waited for it is looked at again.
    pub fn lease_says(&mut self, given: Given) {
        self.silence.said = given;
        for node in std::mem::take(&mut self.silence.held) {
            self.queue.push(&node);
        }
    }

    /// What the Lease is to say.
    pub fn wants_lease_to_say(&self) -> Given {
        let said = self.silence.said;
        if self.silence.examines {
            return if self.memory.is_empty() { said } else { Given::Unrecorded };
        }
        if !self.silence.nodes.is_empty() {
            return Given::Unrecorded;
        }
        let may_forget = said == Given::Nothing || self.silence.saw_records;
        if may_forget && !self.gives() && !self.is_held() { Given::Nothing } else { Given::Recorded }
    }

    /// Whether a block is given, or about to be.
    fn gives(&self) -> bool {
        self.pools.values().any(PoolTask::gives) || self.ipam_nodes.all().values().any(has_blocks)
    }

    /// Whether an agent tells that it holds anything, whatever it has from us.
    fn is_held(&self) -> bool {
        !self.memory.is_empty() || self.ipam_nodes.strays().next().is_some()
    }

    /// Notes that there are records, whose going we see from now on.
    pub(super) fn note_records(&mut self) {
        self.silence.saw_records = self.silence.saw_records || self.gives();
    }

    /// Whether the node's agent has not spoken since its records were lost.
    pub(super) fn is_silent(&self, node: &str) -> bool {
        self.silence.nodes.contains(node)
    }

    /// Whether a call would do more than the Lease would let another leader know of. If so it waits for the Lease.
    pub(super) fn waits_for_the_lease(&mut self, node: &str, action: &NodeAction) -> bool {
        // One report in a new IPAMNode makes the next leader believe that not all records are lost, unless the Lease says otherwise.
        let creates = *action == NodeAction::Create;
        let needs = if self.is_silent(node) || (creates && !self.silence.nodes.is_empty()) {
            Given::Unrecorded
        } else if action.blocks().is_empty() {
            Given::Nothing
        } else {
            Given::Recorded
        };
        let waits = self.silence.said < needs;
        if waits {
            self.silence.held.insert(node.to_owned());
        }
        waits
    }

    /// Holds what is listed against what the Lease said, and against what was remembered. Only once all is listed.
    pub(super) fn examine(&mut self, now: Instant) {
        if !std::mem::take(&mut self.silence.examines) {
            return;
        }
        let inherited = std::mem::take(&mut self.silence.inherited);
        let is_all_lost = self.silence.said > Given::Nothing && !self.is_anything_recorded();
        let mut asked = self.unrecorded_in_memory();
        if is_all_lost || inherited == Given::Unrecorded {
            self.silence.asks_all = true;
            asked.extend(self.nodes.names().cloned());
            // Also of a Node that is gone: one who led before has asked, and the agent may still answer.
            asked.extend(self.ipam_nodes.all().keys().cloned());
        }
        self.ask(asked, now);
        // All have told already. Where no Node is registered yet, those that turn up are asked.
        self.silence.asks_all &= !self.silence.nodes.is_empty() || self.nodes.names().next().is_none();
    }

    /// The nodes of blocks that were known before the API server went back, and that nothing records any more.
    fn unrecorded_in_memory(&self) -> HashSet<String> {
        if self.memory.is_empty() {
            return HashSet::new();
        }
        let mut recorded = HashSet::new();
        for (key, task) in &self.pools {
            recorded.extend(claims(&task.record.status).map(|claim| (key, claim.node.as_str(), claim.range)));
        }
        let is_told = |key: &PoolKey, node: &str, range: &AddrRange| {
            self.ipam_nodes.get(node).and_then(|known| known.claim(node, key)).is_some_and(|told| told.range == *range)
        };
        let is_recorded = |key: &PoolKey, node: &str, range: &AddrRange| {
            recorded.contains(&(key, node, *range)) || is_told(key, node, range)
        };
        let lost = self.memory.all().filter(|(key, node, range)| !is_recorded(key, node, range));
        lost.map(|(_, node, _)| node.clone()).collect()
    }

    /// Whether any record tells that a block was given, or an agent has spoken.
    fn is_anything_recorded(&self) -> bool {
        let has_claims = |task: &PoolTask| claims(&task.record.status).next().is_some();
        let tells = |record: &IpamNodeRecord| has_blocks(record) || record.has_spoken();
        self.pools.values().any(has_claims) || self.ipam_nodes.all().values().any(tells)
    }

    /// A Node turns up while all are asked: it may be one whose kubelet was away when that began.
    pub(super) fn ask_who_joins(&mut self, node: &str, now: Instant) {
        if self.silence.asks_all {
            self.ask([node.to_owned()], now);
        }
    }

    /// A pool's status says so no more, or is gone: asks those of its claims that no IPAMNode records or tells.
    pub(super) fn ask_for(&mut self, key: &PoolKey, lost: impl IntoIterator<Item = String>, now: Instant) {
        if !self.sees_losses() {
            return;
        }
        let is_recorded = |node: &String| {
            let has_entry = |known: &IpamNodeRecord| known.block(key).is_some();
            self.ipam_nodes.get(node).is_some_and(has_entry)
        };
        let unrecorded: Vec<String> = lost.into_iter().filter(|node| !is_recorded(node)).collect();
        self.ask(unrecorded, now);
    }

    /// An IPAMNode is gone, and with it the blocks of which no status says anything.
    pub(super) fn ask_after(&mut self, node: &str, gone: &IpamNodeRecord, now: Instant) {
        let is_recorded = |key: &PoolKey| {
            let status = self.pools.get(key).map(|task| &task.record.status);
            status.is_some_and(|status| claims(status).any(|claim| claim.node == node))
        };
        let mut keys = gone.blocks.iter().chain(gone.unedited.iter().flatten()).map(key_of);
        if self.sees_losses() && keys.any(|key| !is_recorded(&key) && (gone.unsettled || !gone.is_over(&key))) {
            self.ask([node.to_owned()], now);
        }
    }

    /// Whether what is gone was there while we led: what was known before may have gone in good order meanwhile.
    pub(super) fn sees_losses(&self) -> bool {
        self.leading && !self.silence.examines
    }

    /// These nodes are silent from now on, but those whose agents have spoken.
    fn ask(&mut self, nodes: impl IntoIterator<Item = String>, now: Instant) {
        let before = self.silence.nodes.len();
        for node in nodes {
            if !self.ipam_nodes.get(&node).is_some_and(IpamNodeRecord::has_spoken) {
                self.queue.push(&node);
                self.silence.nodes.insert(node);
            }
        }
        if self.silence.nodes.len() != before {
            tracing::warn!(
                nodes = self.silence.nodes.len(),
                "records of blocks are lost: no new ones before these agents have spoken"
            );
            self.count_the_silent(now);
        }
    }

    /// The node's agent has told what it holds, or is waited for no more.
    pub(super) fn end_silence(&mut self, node: &str, now: Instant) {
        if self.silence.nodes.remove(node) {
            self.memory.forget(node);
            self.count_the_silent(now);
        }
    }

    /// Lets go of the nodes that admins name on pools.
    pub(super) fn let_go_of_the_silent(&mut self, now: Instant) {
        if self.silence.nodes.is_empty() {
            return;
        }
        let named = self.pools.values().flat_map(|task| &task.record.life.force_release);
        for node in named.filter(|node| self.is_silent(node)).cloned().collect::<BTreeSet<String>>() {
            tracing::warn!(%node, "its agent is waited for no more, because an admin said so");
            self.end_silence(&node, now);
        }
    }

    /// Pools say for whom they wait, and give again when that is nobody.
    fn count_the_silent(&mut self, now: Instant) {
        self.metrics.silent_nodes(self.silence.nodes.len());
        let is_over = self.silence.nodes.is_empty();
        self.silence.asks_all &= !is_over;
        for task in self.pools.values_mut() {
            if is_over {
                task.due.wake(now);
            } else {
                task.due.by(super::pool_events::counts_at(task, now));
            }
        }
    }
}

fn has_blocks(record: &IpamNodeRecord) -> bool {
    !record.blocks.is_empty()
}

/// All that a status says nodes have.
pub(super) fn claims(status: &StatusRecord) -> impl Iterator<Item = &Claim> {
    status.allocations.iter().chain(status.releasing.iter().map(|release| &release.claim))
}

impl PoolTask {
    /// Whether a block of it is given, or about to be.
    fn gives(&self) -> bool {
        let plans = self.applied.iter().chain(self.call.iter().filter_map(|call| call.applies.as_ref()));
        claims(&self.record.status).next().is_some() || plans.into_iter().any(|applied| !applied.assignments.is_empty())
    }

    /// The nodes that have blocks of it by its status, or by what IPAMNodes are derived from.
    pub(super) fn holders(&self) -> BTreeSet<String> {
        let planned = self.applied.iter().flat_map(|applied| &applied.assignments).map(|given| &given.node);
        claims(&self.record.status).map(|claim| &claim.node).chain(planned).cloned().collect()
    }
}
