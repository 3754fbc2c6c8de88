//! A model of kube-runtime's Controllers, for tests and simulators: which key is stepped when.
//!
//! It has what a Controller promises, and `operator/tests/controllers.rs` holds it against the real one:
//! * A key has one step under way at a time.
//! * A key that is woken during its step is stepped once more after it.
//! * Wakes and requeues of one key are joined. The earliest time counts.
//! * After a call the next step of the same key follows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Command, Key, Now, Outcome, Reconciler, Step};

/// The Controllers of one process.
#[derive(Debug, Default)]
pub struct Model {
    /// When a key is stepped next.
    scheduled: BTreeMap<Key, Instant>,
    /// Keys with a call under way.
    running: BTreeSet<Key>,
}

impl Model {
    /// A key is to be stepped no later than `at`.
    pub fn wake(&mut self, key: Key, at: Instant) {
        let scheduled = self.scheduled.entry(key).or_insert(at);
        *scheduled = at.min(*scheduled);
    }

    /// The next key that is due and has no step under way.
    pub fn next(&mut self, now: Instant) -> Option<Key> {
        let is_due = |(key, at): &(&Key, &Instant)| **at <= now && !self.running.contains(*key);
        let key = self.scheduled.iter().find(is_due).map(|(key, _)| key.clone())?;
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

    /// When the next key is due that has no step under way.
    pub fn next_due(&self) -> Option<Instant> {
        let idle = self.scheduled.iter().filter(|(key, _)| !self.running.contains(*key));
        idle.map(|(_, at)| *at).min()
    }

    /// Steps every key that is due, and returns the calls to be made.
    pub fn poll(&mut self, reconciler: &mut Reconciler, now: Now) -> Vec<Command> {
        let mut calls = Vec::new();
        loop {
            self.take_wakes(reconciler, now);
            let Some(key) = self.next(now.instant) else { return calls };
            match reconciler.step(&key, now) {
                Step::Call(call) => {
                    calls.push(*call);
                    self.begin(key);
                }
                Step::Wait(at) => self.wake(key, at),
                Step::Done => {}
            }
        }
    }

    /// Takes in what became of a call.
    pub fn settle(&mut self, reconciler: &mut Reconciler, outcome: Outcome, now: Instant) {
        let key = outcome.key();
        reconciler.settle(outcome, now);
        if self.end(&key) {
            self.wake(key, now);
        }
    }

    /// Takes in which keys the state machine has woken.
    pub fn take_wakes(&mut self, reconciler: &mut Reconciler, now: Now) {
        for key in reconciler.take_wakes(now) {
            self.wake(key, now.instant);
        }
    }
}
