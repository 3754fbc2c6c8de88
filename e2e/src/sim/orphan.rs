//! What is still on its way when nobody waits for it any more: calls of replicas and reports of agents that were killed, or have
//! given up waiting. Each arrives at some time, or never.

use ipam_operator::reconcile::Command;
use serde_json::Value;

use super::action::Fate;
use super::wire::{Shared, Wire, lock};

enum Orphan {
    Call(Wire, Box<Command>),
    Report { node: String, patch: Value },
}

/// All of it.
#[derive(Default)]
pub(super) struct Orphans {
    on_their_way: Vec<Orphan>,
}

impl Orphans {
    /// A replica's call.
    pub(super) fn call(&mut self, wire: Wire, command: Command) {
        self.on_their_way.push(Orphan::Call(wire, Box::new(command)));
    }

    /// The report of a node's agent.
    pub(super) fn report(&mut self, node: String, patch: Value) {
        self.on_their_way.push(Orphan::Report { node, patch });
    }

    /// One arrives. Nobody hears of the answer.
    pub(super) fn arrive(&mut self, pick: usize, server: &Shared) {
        let Some(place) = pick.checked_rem(self.on_their_way.len()) else { return };
        match self.on_their_way.remove(place) {
            Orphan::Call(wire, command) => drop(wire.make(*command, Fate::AnswerLost)),
            Orphan::Report { node, patch } => drop(lock(server).json_patch("ipamnodes", &node, true, patch)),
        }
    }

    /// None of it arrives.
    pub(super) fn forget(&mut self) {
        self.on_their_way.clear();
    }
}
