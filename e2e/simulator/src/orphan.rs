//! Calls of replicas and reports of agents whose sender was killed or has stopped waiting. Each arrives at any time, or never.

use ipam_operator::election::campaign::Next;
use ipam_reconciler::reconcile::Command;
use serde_json::Value;

use super::wire::{Shared, Wire, lock, vote};

enum Orphan {
    /// `nodes_seen` is the version up to which its sender had received all changes of Nodes.
    Call {
        wire: Box<Wire>,
        command: Box<Command>,
        nodes_seen: u64,
    },
    Report {
        node: String,
        patch: Value,
    },
    Lease {
        call: Box<Next>,
    },
}

/// All such calls and reports.
#[derive(Default)]
pub(super) struct Orphans {
    on_their_way: Vec<Orphan>,
}

impl Orphans {
    /// Adds a replica's call.
    pub(super) fn call(&mut self, wire: Wire, command: Command, nodes_seen: u64) {
        self.on_their_way.push(Orphan::Call { wire: Box::new(wire), command: Box::new(command), nodes_seen });
    }

    /// The lowest version up to which a sender had received all changes of Nodes.
    pub(super) fn nodes_seen(&self) -> Option<u64> {
        let calls = self.on_their_way.iter();
        calls.filter_map(|it| if let Orphan::Call { nodes_seen, .. } = it { Some(*nodes_seen) } else { None }).min()
    }

    /// Adds a replica's call about the Lease. A read changes nothing, whenever it arrives.
    pub(super) fn lease(&mut self, call: Next) {
        if call != Next::Read {
            self.on_their_way.push(Orphan::Lease { call: Box::new(call) });
        }
    }

    /// Adds the report of a node's agent.
    pub(super) fn report(&mut self, node: String, patch: Value) {
        self.on_their_way.push(Orphan::Report { node, patch });
    }

    /// Delivers one. Its answer is dropped. Returns whether there was one.
    pub(super) fn arrive(&mut self, pick: usize, server: &Shared) -> bool {
        let Some(place) = pick.checked_rem(self.on_their_way.len()) else { return false };
        match self.on_their_way.remove(place) {
            Orphan::Call { wire, command, .. } => wire.arrive(*command),
            Orphan::Lease { call } => drop(vote(&mut lock(server), *call)),
            Orphan::Report { node, patch } => drop(lock(server).json_patch("ipamnodes", &node, true, patch)),
        }
        true
    }

    /// Whether no call or report is on its way, except calls about the Lease.
    pub(super) fn is_empty(&self) -> bool {
        self.on_their_way.iter().all(|orphan| matches!(orphan, Orphan::Lease { .. }))
    }

    /// Drops all of them.
    pub(super) fn forget(&mut self) {
        self.on_their_way.clear();
    }
}
