//! Actions that are made of many calls: what a cluster does when nothing is slow, and what an admin does with all of it at once. The
//! laws are checked after each call.

use ipam_operator::pool::FORCE_RELEASE;
use serde_json::{Value, json};

use super::action::{Action, Disk, Fate};
use super::admin;
use super::agent::Wish;
use super::server::NAMESPACE;
use super::wire::lock;
use super::world::{LONGEST_PASS, LONGEST_PAUSE, NODES, QUIET, REPLICAS, REPORTS_APART, World, node_name};
use super::{RESTORE, UNDEFINE};

impl World {
    /// Time passes while those who lead look after their lease.
    pub(super) fn rest(&mut self, seconds: u8) {
        for _ in 0..seconds.div_ceil(2) {
            self.clock.elapsed += LONGEST_PASS;
            for replica in 0..REPLICAS {
                self.campaign_if_due(replica);
            }
        }
    }

    /// A store is put back as the docs say: the operator is stopped first, and nothing is on its way.
    pub(super) fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        for replica in 0..REPLICAS {
            self.kill(replica);
        }
        self.forget_orphans();
        let runs = |world: &Self, node: u8| world.nodes[usize::from(node)].held().next().is_some();
        let registered = |world: &Self, node: u8| lock(&world.server).get("nodes", &node_name(node)).is_some();
        self.restoring = Some((0..NODES).filter(|node| runs(self, *node) || registered(self, *node)).collect());
        self.activity.count("restores");
        self.by_hand = Some(RESTORE);
        lock(&self.server).restore(&backup);
        self.allowed.restore(&lock(&self.server));
        self.look();
        self.by_hand = None;
        for node in 0..NODES {
            // What is reported is what was then.
            self.nodes[usize::from(node)].lose_word();
            self.on_node(Action::AgentLoseWatch { node });
            self.on_node(Action::AgentHear { node, words: 64 });
        }
    }

    /// The definitions are deleted and installed again. Every machine is registered, as the docs say, and no creation of before is
    /// on its way: as when an IPAMNode is deleted by hand.
    pub(super) fn undefine(&mut self, breaks: bool) {
        for node in 0..NODES {
            let it = &self.nodes[usize::from(node)];
            let has_ipam_node = lock(&self.server).get("ipamnodes", &it.name).is_some();
            if has_ipam_node || it.pools() > 0 || it.held().next().is_some() {
                admin::act(&mut lock(&self.server), Action::NodeJoins { node });
            }
            self.nodes[usize::from(node)].lose_word();
            self.orphans.forget_creations(&node_name(node));
        }
        self.allowed.undefine();
        self.activity.count("records lost: definitions deleted");
        self.by_hand = Some(UNDEFINE);
        lock(&self.server).sweep("ipamnodes");
        for plural in ["ippools", "cidrpools"] {
            let pools = lock(&self.server).sweep(plural);
            self.swept.extend(pools.iter().map(|pool| (plural, as_applied(pool))));
        }
        self.look();
        self.by_hand = None;
        for (node, replica) in (0..NODES).zip((0..REPLICAS).cycle()).filter(|_| breaks) {
            self.on_node(Action::AgentLoseWatch { node });
            for watch in 0..3 {
                self.on_replica(Action::LoseWatch { replica, watch });
            }
        }
    }

    /// What the docs say is to be done after that and before the operator starts: every machine is registered, and every agent
    /// tells anew what it holds, to an object without blocks.
    pub(super) fn rebuild(&mut self) {
        let Some(machines) = self.restoring.take() else { return };
        for node in machines {
            admin::act(&mut lock(&self.server), Action::NodeJoins { node });
        }
        for node in 0..NODES {
            self.admin(Action::RemoveIpamNode { node });
            let name = node_name(node);
            let is_registered = lock(&self.server).get("nodes", &name).is_some();
            if is_registered {
                let empty = json!({"metadata": {"name": name}, "spec": {"pools": []}});
                drop(lock(&self.server).create("ipamnodes", empty));
            }
            self.on_node(Action::Disk { node, is: Disk::Well });
            self.on_node(Action::AgentStart { node });
        }
        for _ in 0..2 {
            self.clock.elapsed += LONGEST_PAUSE;
            for node in 0..NODES {
                self.on_node(Action::AgentHear { node, words: 64 });
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
        }
    }

    pub(super) fn listen(&mut self, replica: u8) {
        for watch in 0..4 {
            self.on_replica(Action::Hear { replica, watch, words: 64 });
        }
    }

    pub(super) fn work(&mut self, replica: u8) {
        self.campaign_if_due(replica);
        self.listen(replica);
        // A burst of news is over only when it is quiet.
        self.clock.elapsed += QUIET;
        self.decide_and_call(replica);
    }

    /// A replica decides, and its calls are made and answered. Returns whether there were any.
    fn decide_and_call(&mut self, replica: u8) -> bool {
        self.on_replica(Action::Decide { replica });
        if self.awake(replica).is_some_and(|it| it.presses()) {
            self.on_replica(Action::Campaign { replica, fate: Fate::Done });
            self.on_replica(Action::Decide { replica });
        }
        let calls = self.awake(replica).map_or(0, |it| it.calls());
        for _ in 0..calls {
            self.on_replica(Action::Call { replica, call: 0, fate: Fate::Done });
            self.on_replica(Action::Answer { replica, answer: 0 });
        }
        calls > 0
    }

    pub(super) fn round(&mut self, replica: u8) {
        for _ in 0..2 {
            self.work(replica);
            for _ in 0..3 {
                self.clock.elapsed += QUIET;
                if !self.decide_and_call(replica) {
                    break;
                }
            }
            for node in 0..NODES {
                self.on_node(Action::AgentHear { node, words: 64 });
            }
            self.clock.elapsed += REPORTS_APART;
            for node in 0..NODES {
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
        }
        self.work(replica);
    }

    pub(super) fn crowd(&mut self) {
        for node in 0..NODES {
            for pool in 0..self.nodes[usize::from(node)].pools() {
                self.add(node, pool, Wish::Any);
                self.look();
            }
        }
    }
}

/// A pool as its manifest has it.
fn as_applied(pool: &Value) -> Value {
    let mut annotations = pool["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(FORCE_RELEASE);
    let metadata = json!({"name": pool["metadata"]["name"], "namespace": NAMESPACE, "annotations": annotations});
    json!({"metadata": metadata, "spec": pool["spec"]})
}
