//! The steps of a key: which keys are woken, and what is to be done next about each.

use std::time::Instant;

use ipam_core::PoolKey;

use super::pool_task::PoolTask;
use super::{Command, Now, Reconciler};

/// What is reconciled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// A pool.
    Pool(PoolKey),
    /// The IPAMNode of the node of this name.
    Node(String),
}

/// What is to be done next about a key.
#[derive(Debug)]
pub enum Step {
    /// This call. Once [`Reconciler::settle`] knows its outcome, there may be another step.
    Call(Box<Command>),
    /// Nothing before this instant, if nothing happens before.
    Wait(Instant),
    /// Nothing, until it is woken.
    Done,
}

/// Which object of a node is reconciled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Root {
    /// Its Node.
    Node,
    /// Its IPAMNode, because its Node is gone.
    IpamNode,
}

impl Reconciler {
    /// Returns the keys that were woken since the last time. Each is to be stepped, if a step is under way, after it.
    pub fn take_wakes(&mut self, now: Now) -> Vec<Key> {
        if !self.decides() {
            return Vec::new();
        }
        let pools = self.pools.iter_mut().filter_map(|(key, task)| task.take_woken().then(|| Key::Pool(key.clone())));
        let mut keys: Vec<Key> = pools.collect();
        // A node without both objects has no Controller and needs no call. What the operator knows of it is updated here.
        while let Some(node) = self.queue.take_woken() {
            if self.root(&node).is_some() {
                keys.push(Key::Node(node));
            } else {
                drop(self.step_node(&node, now));
            }
        }
        keys
    }

    /// Which object of the node is reconciled; `None` if it has none.
    pub fn root(&self, node: &str) -> Option<Root> {
        if self.nodes.contains(node) {
            return Some(Root::Node);
        }
        self.ipam_nodes.get(node).map(|_| Root::IpamNode)
    }

    /// The store of a Controller has the object of this key, or without a key all objects. A key that was woken before is woken again:
    /// the Controller did not find its object.
    pub fn is_stored(&mut self, key: Option<&Key>) {
        match key {
            Some(Key::Pool(key)) => self.pools.get_mut(key).into_iter().for_each(PoolTask::wake_again),
            Some(Key::Node(node)) => self.queue.wake_again(node),
            None => self.wake_all(),
        }
    }

    /// IPAMNodes that wait to be written, or are being written.
    pub fn ipam_nodes_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Wakes every key with something to do.
    pub(super) fn wake_all(&mut self) {
        self.pools.values_mut().for_each(PoolTask::wake_again);
        self.queue.wake_all();
    }

    /// The next step of `key`.
    pub fn step(&mut self, key: &Key, now: Now) -> Step {
        if !self.decides() {
            return Step::Done;
        }
        self.tend(now.instant);
        let step = match key {
            Key::Pool(key) => self.step_pool(key, now),
            Key::Node(node) => self.step_node(node, now),
        };
        self.note_occupancy(now.instant);
        step
    }

    /// What is due besides keys.
    pub(super) fn tend(&mut self, now: Instant) {
        if !self.decides() {
            return;
        }
        self.examine(now);
        self.note_records();
        self.end_waits_by_hand(now);
        self.end_pause(now);
        self.settle_overlaps(now);
        self.queue.promote(now);
        let waits_for_the_lease = self.recovery.waits_for_the_word();
        if std::mem::replace(&mut self.waits_for_the_lease, waits_for_the_lease) && !waits_for_the_lease {
            self.wake_all();
            self.release_held();
        }
    }

    fn step_pool(&mut self, key: &PoolKey, now: Now) -> Step {
        let waits_for_the_lease = self.recovery.waits_for_the_word();
        loop {
            // These times are of no key that is there.
            let others = self.recovery.pause_ends().into_iter().chain(self.queue.next_later()).min();
            let Some(task) = self.pools.get_mut(key) else { return Step::Done };
            if task.call.is_some() || waits_for_the_lease {
                task.due.block();
                return Step::Done;
            }
            if let Some((pool, note)) = task.notes.pop_front() {
                return Step::Call(Box::new(Command::Publish { pool, note }));
            }
            let due = task.due_at();
            if due.is_none_or(|at| at > now.instant) {
                return due.into_iter().chain(others).min().map_or(Step::Done, Step::Wait);
            }
            task.due.take(now.instant);
            // What was sent for other pools matters to this one.
            self.note_occupancy(now.instant);
            if let Some(call) = self.look_at_pool(key, now) {
                return Step::Call(Box::new(call));
            }
        }
    }
}
