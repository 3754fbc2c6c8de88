//! The machines: what each action does to them, their agents and their pods.

use std::time::Duration;

use super::World;
use crate::action::{Action, Fate};
use crate::agent::{Added, UNCONFIRMED};
use crate::disk::Replaced;
use crate::process::Killed;
use crate::request::Wish;
use crate::server::Server;
use crate::size::{MOST_NODES, node_name};
use crate::wire::lock;

/// Whether the action is one on a node.
pub(super) const fn is_on_node(action: Action) -> bool {
    matches!(
        action,
        Action::AgentHear { .. }
            | Action::AgentLoseWatch { .. }
            | Action::Add { .. }
            | Action::AddAndCrash { .. }
            | Action::AddByName { .. }
            | Action::CopyStore { .. }
            | Action::PutStoreBack { .. }
            | Action::Delete { .. }
            | Action::Report { .. }
            | Action::AgentKill { .. }
            | Action::AgentStart { .. }
            | Action::Disk { .. }
            | Action::Drain { .. }
            | Action::Wipe { .. }
            | Action::AddTwo { .. }
            | Action::AddAgain { .. }
            | Action::AddAndCut { .. }
            | Action::Check { .. }
            | Action::DeleteAgain { .. }
            | Action::Vanish { .. }
            | Action::RuntimeGc { .. }
            | Action::CheckPods { .. }
            | Action::PowerCut { .. }
            | Action::FailSync { .. }
            | Action::AgentHearAndKill { .. }
            | Action::TurnClock { .. }
            | Action::WithoutAgent { .. }
    )
}

impl World {
    pub(super) fn on_node(&mut self, action: Action) {
        self.build(node_of(action));
        self.act_on_node(action);
        self.look();
    }

    fn act_on_node(&mut self, action: Action) {
        let (clock, shared) = (self.clock, self.server.clone());
        let at = |index: u8| usize::from(index % MOST_NODES);
        // An ADD calls the server by itself.
        let wish = match action {
            Action::Add { node, pool } => Some((node, pool, Wish::Any)),
            Action::AddAndCrash { node, pool } => Some((node, pool, Wish::AnyAndCrash)),
            Action::AddByName { node, pool, place } => {
                let by_index = place.is_multiple_of(2);
                Some((node, pool, Wish::Named { offset: place.into(), by_index }))
            }
            _ => None,
        };
        if let Some((node, pool, wish)) = wish {
            self.add(node, pool.into(), wish);
            return;
        }
        let mut server = lock(&shared);
        match action {
            Action::AgentHear { node, words } => self.nodes[at(node)].hear(words.into(), &server, clock),
            Action::AgentLoseWatch { node } => self.nodes[at(node)].lose_watch(),
            Action::CopyStore { node } => self.nodes[at(node)].copy_store(),
            // Only the agent can detect that a restored IPAMNode is an earlier one. The docs have an admin delete it, so
            // it is not played.
            Action::PutStoreBack { node } if self.is_restored(node, &server) => {}
            Action::PutStoreBack { node } => {
                let replaced = self.nodes[at(node)].put_store_back();
                if self.nodes[at(node)].has_lost_its_store() {
                    self.records.forget_grants(&node_name(node));
                }
                if let Some(replaced) = replaced {
                    self.activity.count(match replaced {
                        Replaced::Deleted => "stores deleted",
                        Replaced::PutBack => "stores put back",
                    });
                }
            }
            Action::Delete { node, pod } => self.nodes[at(node)].delete(pod.into(), clock),
            Action::Report { node, fate } => {
                if let Some(patch) = self.nodes[at(node)].report(&mut server, fate, clock) {
                    self.orphans.report(node_name(node), patch);
                }
            }
            Action::AgentKill { node } => {
                if self.nodes[at(node)].crash() {
                    self.activity.count("agents killed");
                }
            }
            Action::AgentStart { node } => self.nodes[at(node)].start(clock),
            Action::Wipe { node } => {
                self.records.forget_grants(&node_name(node));
                if self.nodes[at(node)].wipe() {
                    self.activity.count("nodes reinstalled");
                }
            }
            Action::Disk { node, is } => self.nodes[at(node)].set_disk(is, clock),
            Action::Drain { node } => {
                while self.nodes[at(node)].held().next().is_some() {
                    self.nodes[at(node)].delete(0, clock);
                }
            }
            _ => {
                drop(server);
                self.act_on_runtime(action);
            }
        }
    }

    /// Performs a less common action on a node.
    fn act_on_runtime(&mut self, action: Action) {
        let clock = self.clock;
        let at = |index: u8| usize::from(index % MOST_NODES);
        match action {
            Action::AddTwo { node, pool, other } => _ = self.add(node, pool.into(), Wish::Two(other)),
            Action::AddAndCut { node, pool, after, power } => {
                _ = self.add(node, pool.into(), Wish::AnyAndCut { after: after % 8, power });
            }
            Action::AddAgain { node, pod } => self.nodes[at(node)].add_again(pod.into(), clock),
            Action::Check { node, pod } => self.nodes[at(node)].check(pod.into(), clock),
            Action::DeleteAgain { node } => self.nodes[at(node)].delete_again(clock),
            Action::Vanish { node, pod } => self.nodes[at(node)].vanish(pod.into()),
            Action::RuntimeGc { node, foreign } => self.nodes[at(node)].runtime_gc(foreign, clock),
            Action::CheckPods { node, list } => self.nodes[at(node)].check_pods(list, clock),
            Action::PowerCut { node, luck } => self.nodes[at(node)].lose_power(luck),
            Action::FailSync { node, after } => self.nodes[at(node)].fail_sync(after % 4),
            Action::AgentHearAndKill { node, saved } => {
                let killed = if saved { Killed::BeforeItIsInForce } else { Killed::BeforeSaving };
                self.nodes[at(node)].hear_and_die(killed, &lock(&self.server), clock);
            }
            Action::TurnClock { node, minutes } => self.nodes[at(node)].turn_clock(i64::from(minutes) * 60),
            Action::WithoutAgent { node } => self.nodes[at(node)].go_without_agent(),
            _ => {}
        }
    }

    /// Whether the node's IPAMNode is from a restore.
    fn is_restored(&self, node: u8, server: &Server) -> bool {
        let object = server.get("ipamnodes", &node_name(node));
        self.restoring.is_some() || object.is_some_and(|object| self.is_of_before(object))
    }

    /// CNI ADD of a new pod.
    pub(crate) fn add(&mut self, node: u8, pool: usize, wish: Wish) -> Added {
        self.confirm(node);
        let mut added = self.nodes[usize::from(node % MOST_NODES)].add(pool, wish, self.clock, &self.records);
        // The request has woken an idle grant.
        if added == Added::Refused(UNCONFIRMED) && self.confirm(node) {
            added = self.nodes[usize::from(node % MOST_NODES)].add(pool, wish, self.clock, &self.records);
        }
        match (added, wish) {
            (Added::Served, Wish::Two(_)) => self.activity.count("pods served from two pools"),
            (Added::Served, Wish::Named { by_index: true, .. }) => self.activity.count("pods served by index"),
            (Added::Served, Wish::Named { by_index: false, .. }) => self.activity.count("pods served by value"),
            (Added::Served, _) => self.activity.count("pods served"),
            (Added::Crashed, _) => self.activity.count("agents killed after the record of an ADD"),
            (Added::Refused(why), _) => self.activity.count(why),
            (Added::Cut | Added::NotAsked, _) => {}
        }
        added
    }

    /// An ADD waits for the confirmation of a grant. Mostly the report that requests it reaches the server meanwhile.
    /// Returns whether it did.
    fn confirm(&mut self, node: u8) -> bool {
        let waits = self.nodes[usize::from(node % MOST_NODES)].waits_for_confirmation(self.clock);
        if waits {
            self.report(node);
        }
        waits
    }

    /// How long it takes until the next report of the agent is due.
    pub(crate) fn until_report(&self, node: u8) -> Duration {
        let due = self.nodes[usize::from(node % MOST_NODES)].due(self.clock);
        due.unwrap_or_default().saturating_sub(self.clock.elapsed)
    }

    /// The agent writes the report that is due.
    pub(crate) fn report(&mut self, node: u8) {
        let (clock, shared) = (self.clock, self.server.clone());
        self.nodes[usize::from(node % MOST_NODES)].report(&mut lock(&shared), Fate::Done, clock);
        self.look();
    }
}

/// The machine that an action is about; the first if it is about none.
pub(super) const fn node_of(action: Action) -> u8 {
    match action {
        Action::AgentHear { node, .. }
        | Action::AgentLoseWatch { node }
        | Action::Add { node, .. }
        | Action::AddAndCrash { node, .. }
        | Action::AddByName { node, .. }
        | Action::AddTwo { node, .. }
        | Action::AddAgain { node, .. }
        | Action::AddAndCut { node, .. }
        | Action::Check { node, .. }
        | Action::DeleteAgain { node }
        | Action::Vanish { node, .. }
        | Action::RuntimeGc { node, .. }
        | Action::CheckPods { node, .. }
        | Action::PowerCut { node, .. }
        | Action::FailSync { node, .. }
        | Action::AgentHearAndKill { node, .. }
        | Action::TurnClock { node, .. }
        | Action::WithoutAgent { node }
        | Action::CopyStore { node }
        | Action::PutStoreBack { node }
        | Action::Delete { node, .. }
        | Action::Report { node, .. }
        | Action::AgentKill { node }
        | Action::AgentStart { node }
        | Action::Disk { node, .. }
        | Action::Drain { node }
        | Action::Wipe { node }
        | Action::NodeJoins { node }
        | Action::NodeLeaves { node }
        | Action::NodeTerminates { node }
        | Action::Relabel { node }
        | Action::Cordon { node }
        | Action::RemoveIpamNode { node }
        | Action::DiscardReport { node }
        | Action::ForceRelease { node, .. } => node,
        _ => 0,
    }
}
