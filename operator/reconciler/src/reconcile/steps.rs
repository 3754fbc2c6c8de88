//! The steps of a key: which keys are woken, and the next step of each.

use std::time::Instant;

use ipam_core::PoolKey;
use kube::runtime::watcher::Event;

use super::pool_task::PoolTask;
use super::{Command, Now, Observed, Reconciler};
use crate::objects::Kind;

/// What is reconciled. Each kind of key has a Controller.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// A pool.
    Pool(PoolKey),
    /// The IPAMNode of the node of this name, whose Node exists.
    Node(String),
    /// The IPAMNode of this name, whose Node is gone.
    IpamNode(String),
}

impl Key {
    /// Returns the key of the object of this kind and name.
    pub fn new(kind: Kind, name: &str) -> Self {
        match kind {
            Kind::Pool(kind) => Self::Pool(PoolKey::new(kind, name)),
            Kind::Node => Self::Node(name.to_owned()),
            Kind::IpamNode => Self::IpamNode(name.to_owned()),
        }
    }

    /// The kind of its object.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Pool(key) => Kind::Pool(key.kind),
            Self::Node(_) => Kind::Node,
            Self::IpamNode(_) => Kind::IpamNode,
        }
    }

    /// The name of its object.
    pub fn name(&self) -> &str {
        match self {
            Self::Pool(key) => &key.name,
            Self::Node(name) | Self::IpamNode(name) => name,
        }
    }
}

/// The next step of a key.
#[derive(Debug)]
pub enum Step {
    /// Make this call. After [`Reconciler::settle`] with its outcome, there may be another step.
    Call(Box<Command>),
    /// Nothing before this instant, unless the key is woken.
    Wait(Instant),
    /// Nothing, until the key is woken.
    Done,
}

impl Reconciler {
    /// Returns the keys that were woken since the last call. The driver steps each of them, after a step that is under way.
    pub fn take_wakes(&mut self, now: Now) -> Vec<Key> {
        if !self.decides() {
            return Vec::new();
        }
        let (mut keys, mut is_changed) = (Vec::new(), false);
        while let Some(node) = self.queue.take_woken() {
            if let Some(key) = self.key_of_node(&node) {
                keys.push(key);
            } else {
                // A node with neither object has no Controller and needs no call. Its known state is updated here.
                drop(self.step_node(&node, now));
                is_changed = true;
            }
        }
        if is_changed {
            self.note_occupancy(now.instant);
        }
        // These come last, because what changed above wakes pools.
        let pools =
            self.pools.iter_mut().filter_map(|(key, task)| task.due.take_woken().then(|| Key::Pool(key.clone())));
        keys.extend(pools);
        keys
    }

    /// When [`Reconciler::tick`] is to be called, if nothing happens before.
    pub fn next_tick(&self) -> Option<Instant> {
        if !self.decides() {
            return None;
        }
        self.recovery.pause_ends().into_iter().chain(self.queue.next_later()).min()
    }

    /// Does the due work that has no key, and wakes the nodes whose time has come. A node with neither object has no Controller that waits.
    pub fn tick(&mut self, now: Instant) {
        self.tend(now);
    }

    /// The key by which the node is reconciled; `None` if neither its Node nor its IPAMNode exists.
    fn key_of_node(&self, node: &str) -> Option<Key> {
        if self.nodes.contains(node) {
            return Some(Key::Node(node.to_owned()));
        }
        self.ipam_nodes.get(node).map(|_| Key::IpamNode(node.to_owned()))
    }

    /// The store of a Controller now has the object of this key, or all objects if `key` is `None`. A key that was woken before is woken
    /// again, because the Controller did not find its object.
    fn is_stored(&mut self, key: Option<&Key>) {
        match key {
            Some(Key::Pool(key)) => self.pools.get_mut(key).into_iter().for_each(|task| task.due.wake_again()),
            Some(Key::Node(node) | Key::IpamNode(node)) => self.queue.wake_again(node),
            None => self.wake_all(),
        }
    }

    /// Takes in an event that the store of its Controller has already, if this process leads.
    pub fn observe(&mut self, event: Observed, now: Instant) {
        let stored = match event.keys() {
            Event::Apply(key) => Some(Some(key)),
            Event::InitDone => Some(None),
            Event::Init | Event::InitApply(_) | Event::Delete(_) => None,
        };
        self.take_in(event, now);
        if let Some(key) = stored {
            self.is_stored(key.as_ref());
        }
    }

    /// The number of pools, and of IPAMNodes, that wait for a decision, the Lease or a call, or whose call is under way.
    pub fn queued(&self, now: Instant) -> (usize, usize) {
        let waits = |task: &&PoolTask| task.call.is_some() || task.due_at().is_some_and(|at| at <= now);
        (self.pools.values().filter(waits).count(), self.queue.len() + self.recovery.held_calls())
    }

    /// Wakes every key with something to do.
    pub(super) fn wake_all(&mut self) {
        self.pools.values_mut().for_each(|task| task.due.wake_again());
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
            Key::Node(node) | Key::IpamNode(node) if self.key_of_node(node).as_ref() == Some(key) => {
                self.step_node(node, now)
            }
            // The other Controller reconciles the node by now.
            Key::Node(node) | Key::IpamNode(node) => {
                self.queue.wake_again(node);
                Step::Done
            }
        };
        self.note_occupancy(now.instant);
        step
    }

    /// Does the due work that has no key.
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
        let waits_for_the_lease = self.recovery.waits_for_the_lease_state();
        if std::mem::replace(&mut self.waits_for_the_lease, waits_for_the_lease) && !waits_for_the_lease {
            self.wake_all();
            self.release_held();
        }
    }

    fn step_pool(&mut self, key: &PoolKey, now: Now) -> Step {
        let waits_for_the_lease = self.recovery.waits_for_the_lease_state();
        loop {
            let Some(task) = self.pools.get_mut(key) else { return Step::Done };
            if task.call.is_some() || waits_for_the_lease {
                return Step::Done;
            }
            let due = task.due_at();
            if due.is_none_or(|at| at > now.instant) {
                return due.map_or(Step::Done, Step::Wait);
            }
            task.due.take(now.instant);
            // Writes that were sent for other pools matter to this one.
            self.note_occupancy(now.instant);
            if let Some(call) = self.look_at_pool(key, now) {
                return Step::Call(Box::new(call));
            }
        }
    }
}
