//! A model of kube-runtime's Controllers, for tests and simulators: which key is stepped when.
//!
//! It has what a Controller promises, and `operator/tests/controllers.rs` compares these with the real one:
//! * A key has one step under way at a time.
//! * A key that is woken during its step is stepped once more after it.
//! * Wakes and requeues of one key are joined. The earliest time counts.
//!
//! Nothing compares these:
//! * A key that is not in the store when its time comes is dropped.
//! * Keys that are due at the same time have no order.
//! * After a call the next step of the same key follows.
//!
//! Not modelled: how many keys of a Controller are stepped at one time, and that a Controller waits for its first list. The state machine
//! decides nothing before all lists are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use kube::runtime::watcher::Event;

use super::{Command, Key, Now, Observed, Outcome, Reconciler, Step};
use crate::objects::Kind;

/// The Controllers of one process.
#[derive(Debug, Default)]
pub struct Model {
    /// When a key is stepped next.
    scheduled: BTreeMap<Key, Instant>,
    /// Keys with a call under way.
    running: BTreeSet<Key>,
    stores: BTreeMap<Kind, Store>,
    /// Chooses among the keys that are due. Without it, the first key is next.
    random: Option<fastrand::Rng>,
}

/// The names in the store of a Controller.
#[derive(Debug, Default)]
struct Store {
    keys: BTreeSet<Key>,
    /// Names of a list that is not complete yet.
    listed: BTreeSet<Key>,
}

impl Model {
    /// Controllers in which `seed` chooses among keys that are due at the same time.
    pub fn of_seed(seed: u64) -> Self {
        Self { random: Some(fastrand::Rng::with_seed(seed)), ..Self::default() }
    }

    /// Takes in an event of a watch: first into the store of its Controller, then into the state machine.
    pub fn observe(&mut self, reconciler: &mut Reconciler, event: Observed, now: Instant) {
        self.store(event.kind(), event.keys());
        reconciler.observe(event, now);
    }

    fn store(&mut self, kind: Kind, event: Event<Key>) {
        let store = self.stores.entry(kind).or_default();
        match event {
            Event::Init => store.listed.clear(),
            Event::InitApply(key) => drop(store.listed.insert(key)),
            Event::InitDone => store.keys = std::mem::take(&mut store.listed),
            Event::Apply(key) => drop(store.keys.insert(key)),
            Event::Delete(key) => drop(store.keys.remove(&key)),
        }
    }

    /// A key is to be stepped no later than `at`.
    pub fn wake(&mut self, key: Key, at: Instant) {
        let scheduled = self.scheduled.entry(key).or_insert(at);
        *scheduled = at.min(*scheduled);
    }

    /// The next key that is due and has no step under way.
    pub fn next(&mut self, now: Instant) -> Option<Key> {
        let due = self.scheduled.iter().filter(|(key, at)| **at <= now && !self.running.contains(*key));
        let place = match &mut self.random {
            Some(random) => random.usize(..due.clone().count().max(1)),
            None => 0,
        };
        let key = due.map(|(key, _)| key).nth(place)?.clone();
        self.scheduled.remove(&key);
        Some(key)
    }

    /// A step of the key is under way.
    pub fn begin(&mut self, key: Key) {
        self.running.insert(key);
    }

    /// The step of the key is over.
    pub fn end(&mut self, key: &Key) -> bool {
        self.running.remove(key)
    }

    /// When the next key without a step under way is due, or the next tick of the state machine.
    pub fn next_due(&self, reconciler: &Reconciler) -> Option<Instant> {
        let idle = self.scheduled.iter().filter(|(key, _)| !self.running.contains(*key));
        idle.map(|(_, at)| *at).chain(reconciler.next_tick()).min()
    }

    /// Steps every key that is due, and returns the calls to be made.
    pub fn poll(&mut self, reconciler: &mut Reconciler, now: Now) -> Vec<Command> {
        if reconciler.next_tick().is_some_and(|at| at <= now.instant) {
            reconciler.tick(now.instant);
        }
        let mut calls = Vec::new();
        self.take_wakes(reconciler, now);
        while let Some(key) = self.next(now.instant) {
            if !self.is_stored(&key) {
                continue;
            }
            match reconciler.step(&key, now) {
                Step::Call(call) => {
                    calls.push(*call);
                    self.begin(key);
                }
                Step::Wait(at) => self.wake(key, at),
                Step::Done => {}
            }
            self.take_wakes(reconciler, now);
        }
        calls
    }

    /// Takes in the outcome of a call.
    pub fn settle(&mut self, reconciler: &mut Reconciler, outcome: Outcome, now: Instant) {
        let keys = match &outcome {
            Outcome::Pool(pool, _) => vec![Key::Pool(pool.key.clone())],
            // One of the two Controllers made the call.
            Outcome::IpamNode(write, _) => vec![Key::Node(write.node.clone()), Key::IpamNode(write.node.clone())],
        };
        reconciler.settle(outcome, now);
        for key in keys {
            if self.end(&key) {
                self.wake(key, now);
            }
        }
    }

    /// Takes in which keys the state machine has woken.
    pub fn take_wakes(&mut self, reconciler: &mut Reconciler, now: Now) {
        for key in reconciler.take_wakes(now) {
            self.wake(key, now.instant);
        }
    }

    fn is_stored(&self, key: &Key) -> bool {
        self.stores.get(&key.kind()).is_some_and(|store| store.keys.contains(key))
    }
}
