//! How an agent starts and ends: a normal start, kill -9, and a power cut of its node.

use ipam_node_agent::identity::Identity;

use super::super::clock::Clock;
use super::super::process::Process;
use super::collect::Objects;
use super::{Node, Reservation};

impl Node {
    /// Starts the agent, if it does not run.
    pub(crate) fn start(&mut self, clock: Clock) {
        if self.process.is_some() || self.without_agent {
            return;
        }
        self.starts += 1;
        let here = self.identity();
        match Process::start(&self.name, &mut self.disk, here, &self.wall, clock) {
            Ok(process) => self.process = process,
            Err(wrong) => self.blame(Some(wrong)),
        }
        if self.process.is_some() {
            self.retry_deletes(clock);
        }
    }

    /// This machine in this boot, and the ID that a new store gets.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            store: Some(format!("{}-{}", self.name, self.starts)),
            machine: Some(self.name.clone()),
            boot: Some(self.boots.to_string()),
        }
    }

    /// kill -9. Returns whether the agent ran.
    pub(crate) fn crash(&mut self) -> bool {
        let runs = self.process.is_some();
        if let Some(acknowledged) = self.acknowledged() {
            self.end(acknowledged, false, None);
        }
        runs
    }

    /// Cuts the power of the node: its pods end, too. For an odd `luck` the runtime deletes what is left of them later.
    pub(crate) fn lose_power(&mut self, luck: u8) {
        match self.acknowledged() {
            Some(acknowledged) => self.end(acknowledged, false, Some(luck)),
            None => self.lose_all(luck),
        }
    }

    /// Ends the process by a kill, or by a power cut. `more` is whether a request was under way.
    pub(super) fn end(&mut self, acknowledged: Vec<Reservation>, more: bool, power: Option<u8>) {
        // A journal that waits forgets releases.
        let forgets = self.process.as_ref().is_some_and(Process::is_waiting);
        if forgets {
            self.deleted = None;
        }
        self.process = None;
        self.has_leftovers = true;
        // An agent whose journal waits may have read what is not on the disk. It answers no ADD with that.
        self.disk.owes(acknowledged, more || forgets, !forgets);
        match power {
            None => self.disk.is_killed(),
            Some(luck) => self.lose_all(luck),
        }
    }

    fn lose_all(&mut self, luck: u8) {
        if !self.disk.is_empty() {
            self.activity.count("power cuts of nodes");
        }
        self.boots += 1;
        for pod in std::mem::take(&mut self.pods).into_values() {
            if luck % 2 == 1 {
                self.to_delete.push((pod.request.pools, pod.request.owner));
            }
        }
        self.objects = Objects::default();
        self.unknown.clear();
        self.has_leftovers = true;
        self.moves += 1;
        self.disk.lose_power(u64::from(luck) << 32 | u64::from(self.made));
    }
}
