//! What is still on its way when nobody waits for it any more: calls of replicas and reports of agents that were killed, or have
//! given up waiting. Each arrives at some time, or never: at any time where a version fences it, and within bounds where none does.

use std::time::Duration;

use ipam_operator::election::campaign::Next;
use ipam_operator::reconcile::{Command, NodeAction, NodeWrite};
use serde_json::Value;

use super::wire::{Shared, Wire, lock, vote};

/// For how long a creation may be on its way, as replicas here are told.
pub(super) const CREATIONS_ARRIVE_WITHIN: Duration = Duration::from_secs(45);
/// For how long it really is: less, as in every cluster.
const LONGEST_WAY: Duration = Duration::from_secs(40);

enum Orphan {
    Call { wire: Box<Wire>, command: Box<Command>, sent: Duration },
    Report { node: String, patch: Value },
    Lease { call: Box<Next> },
}

/// All of it.
#[derive(Default)]
pub(super) struct Orphans {
    on_their_way: Vec<Orphan>,
}

impl Orphans {
    /// A replica's call, `sent` then or before.
    pub(super) fn call(&mut self, wire: Wire, command: Command, sent: Duration) {
        self.on_their_way.push(Orphan::Call { wire: Box::new(wire), command: Box::new(command), sent });
    }

    /// A replica's call about the Lease. A read changes nothing, whenever it arrives.
    pub(super) fn lease(&mut self, call: Next) {
        if call != Next::Read {
            self.on_their_way.push(Orphan::Lease { call: Box::new(call) });
        }
    }

    /// The report of a node's agent.
    pub(super) fn report(&mut self, node: String, patch: Value) {
        self.on_their_way.push(Orphan::Report { node, patch });
    }

    /// One arrives, unless it is a creation whose time is over. Nobody hears of the answer. Whether one arrived.
    pub(super) fn arrive(&mut self, pick: usize, server: &Shared, now: Duration) -> bool {
        let Some(place) = pick.checked_rem(self.on_their_way.len()) else { return false };
        match self.on_their_way.remove(place) {
            Orphan::Call { command, sent, .. } if creates(&command).is_some() && now > sent + LONGEST_WAY => {
                return false;
            }
            Orphan::Call { wire, command, .. } => wire.arrive(*command),
            Orphan::Lease { call } => drop(vote(&mut lock(server), *call)),
            Orphan::Report { node, patch } => drop(lock(server).json_patch("ipamnodes", &node, true, patch)),
        }
        true
    }

    /// No creation of the node's IPAMNode arrives any more. Who deletes one by hand must know that none is on its way.
    pub(super) fn forget_creations(&mut self, node: &str) {
        let is_one = |orphan: &Orphan| matches!(orphan, Orphan::Call { command, .. } if creates(command) == Some(node));
        self.on_their_way.retain(|orphan| !is_one(orphan));
    }

    /// Whether no call or report is on its way, those about the Lease apart.
    pub(super) fn is_empty(&self) -> bool {
        self.on_their_way.iter().all(|orphan| matches!(orphan, Orphan::Lease { .. }))
    }

    /// None of it arrives.
    pub(super) fn forget(&mut self) {
        self.on_their_way.clear();
    }
}

/// The node whose IPAMNode the call creates, if it creates one.
fn creates(command: &Command) -> Option<&str> {
    match command {
        Command::WriteIpamNode(NodeWrite { node, action: NodeAction::Create(_) | NodeAction::Placeholder }) => {
            Some(node)
        }
        _ => None,
    }
}
