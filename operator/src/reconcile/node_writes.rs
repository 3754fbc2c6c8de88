//! IPAMNodes: what each is to say, when it is written, and what is known of it while that is under way.
//!
//! Never tells a node anything about a pool that a status write under way may overtake: the node waits for the answer.

use std::time::Instant;

use ipam_core::PoolKey;
use ipam_core::plan::Usage;

use super::node_queue::NodeQueue;
use super::{CallError, Command, NodeAction, NodeVersion, NodeWrite, Reconciler};
use crate::index::IpamNodes;
use crate::ipam_node::{IpamNodeRecord, entry, sort};

impl Reconciler {
    /// Sends the writes of the nodes that are ready.
    pub(super) fn write_ipam_nodes(&mut self, now: Instant) {
        while let Some(node) = self.queue.pop(now) {
            if self.waits_for_a_status(&node) {
                continue;
            }
            let Some(action) = self.wanted(&node) else {
                self.queue.forget(&node);
                continue;
            };
            self.queue.begin(&node);
            if let Some(known) = self.ipam_nodes.get_mut(&node) {
                known.unsettled = true;
            }
            self.outbox.push(Command::WriteIpamNode(NodeWrite { node, action }));
        }
    }

    /// Whether a status under way changes the node's part of a pool. If so the call takes note of the node, and puts it
    /// back into the queue when it is settled. A node that joins two pools thus gets both blocks in one write too.
    fn waits_for_a_status(&mut self, node: &str) -> bool {
        let mut under_way =
            self.pools.values_mut().filter_map(|task| Some((task.applied.as_ref(), task.call.as_mut()?)));
        let Some((_, call)) = under_way.find(|(applied, call)| call.changes_part_of(node, *applied)) else {
            return false;
        };
        call.held.insert(node.to_owned());
        true
    }

    /// What is to be done with a node's IPAMNode, if anything.
    fn wanted(&self, node: &str) -> Option<NodeAction> {
        let known = self.ipam_nodes.get(node);
        let mut blocks = Vec::new();
        for (key, task) in &self.pools {
            match &task.applied {
                Some(applied) => blocks.extend(applied.of(node).map(|given| entry(&applied.pool, given, known))),
                None => blocks.extend(known.and_then(|known| known.block(key)).cloned()),
            }
        }
        sort(&mut blocks);
        match known {
            // A name that a status records but no Node bears has no agent to tell. It may be no name at all.
            None => (!blocks.is_empty() && self.nodes.contains(node)).then_some(NodeAction::Create(blocks)),
            Some(known) if blocks.is_empty() && !self.nodes.contains(node) => {
                Some(NodeAction::Delete(known.uid.clone(), known.resource_version.clone()))
            }
            // Writing what is there already tells whether the write before, whose answer was lost, has changed it.
            Some(known) if blocks == known.blocks && !known.unsettled => None,
            Some(known) => Some(NodeAction::Update(known.resource_version.clone(), blocks)),
        }
    }

    pub(super) fn settle_ipam_node(
        &mut self,
        write: NodeWrite,
        result: Result<Option<NodeVersion>, CallError>,
        now: Instant,
    ) {
        let NodeWrite { node, action } = write;
        self.metrics.ipam_node_written(&result);
        match result {
            Ok(version) => {
                if self.queue.succeed(&node) && self.ipam_nodes.get(&node).is_none() {
                    // What was written may be gone again: to believe in it would leave the node without its blocks.
                    self.queue.push(&node);
                } else {
                    self.note_written(&node, action, version);
                }
                self.wake_pools_that_wait_for(&node, now);
            }
            Err(error) => {
                match &error {
                    CallError::Conflict(_) => tracing::debug!(%node, %error, "observing again"),
                    CallError::Failed(_) => tracing::warn!(%node, %error, "IPAMNode not written"),
                }
                self.queue.fail(&node, now);
            }
        }
    }

    /// A block that waits for its addresses to be unheld may be free, now that it is certain what its node was told.
    fn wake_pools_that_wait_for(&mut self, node: &str, now: Instant) {
        let Some(record) = self.ipam_nodes.get(node) else { return };
        for (key, task) in &mut self.pools {
            if task.waits_for_blocks() && record.usage(key) == Usage::Empty {
                task.due.wake(now);
            }
        }
    }

    /// Notes what a write of ours has made, without waiting for the watch to tell.
    fn note_written(&mut self, node: &str, action: NodeAction, version: Option<NodeVersion>) {
        let (NodeAction::Create(blocks) | NodeAction::Update(_, blocks), Some(version)) = (action, version) else {
            // Deleted: the watch tells when it is gone, which a finalizer may put off.
            return;
        };
        let NodeVersion { uid, resource_version, generation } = version;
        match self.ipam_nodes.get_mut(node) {
            Some(known) if known.uid == uid => {
                if !crate::objects::is_older(&resource_version, &known.resource_version) {
                    (known.resource_version, known.generation, known.blocks) = (resource_version, generation, blocks);
                    known.unsettled = false;
                }
            }
            Some(_) => {}
            None => {
                let made = IpamNodeRecord { uid, generation, resource_version, blocks, ..IpamNodeRecord::default() };
                drop(self.ipam_nodes.apply(node, made));
            }
        }
    }
}

/// Every node whose IPAMNode has an entry of the pool is to be looked at.
pub(super) fn queue_holders(queue: &mut NodeQueue, ipam_nodes: &IpamNodes, key: &PoolKey) {
    for (node, _) in ipam_nodes.all().iter().filter(|(_, record)| record.block(key).is_some()) {
        queue.push(node);
    }
}
