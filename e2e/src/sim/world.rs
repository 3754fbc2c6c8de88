//! The whole cluster in one value, and what each action does to it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;

use super::action::{Action, Fate};
use super::agent::Node;
use super::catalogue::{POOLS, manifest};
use super::replica::{Clock, Replica};
use super::server::{Backup, PLURALS, Server, text};
use super::wire::{Shared, Wire, lock};

/// Nodes that there may be.
pub(super) const NODES: u8 = 4;
/// Replicas of the operator that there may be.
pub(super) const REPLICAS: u8 = 2;
/// Labels that select a node, and that do not.
const SELECTED: [&str; 2] = ["x", "y"];

/// The cluster.
pub struct World {
    /// The model API server.
    pub(super) server: Shared,
    /// The machines, with their agents and pods.
    pub(super) nodes: Vec<Node>,
    /// The replicas that run.
    pub(super) replicas: Vec<Option<Replica>>,
    orphans: RefCell<Vec<(Wire, ipam_operator::reconcile::Command)>>,
    runtime: Rc<Runtime>,
    clock: Clock,
    starts: u32,
    /// Pool and node of the blocks of which an admin has said that they are to be taken back, whoever holds an address.
    pub(super) given_up: BTreeSet<(&'static str, String)>,
    backup: Option<Backup>,
}

impl World {
    /// An empty cluster: machines whose agents run, and no replica yet.
    pub(super) fn new(runtime: Rc<Runtime>) -> Self {
        let clock = Clock { start: Instant::now(), elapsed: Duration::from_mins(1) };
        let nodes = (0..NODES).map(|node| Node::new(&node_name(node), clock)).collect();
        let replicas = (0..REPLICAS).map(|_| None).collect();
        Self {
            server: Shared::default(),
            nodes,
            replicas,
            orphans: RefCell::default(),
            runtime,
            clock,
            starts: 0,
            given_up: BTreeSet::new(),
            backup: None,
        }
    }

    /// All objects of the server as text, to compare two ends.
    pub fn summary(&self) -> String {
        let server = lock(&self.server);
        let objects = PLURALS.into_iter().flat_map(|plural| server.list(plural)).map(ToString::to_string);
        objects.collect::<Vec<_>>().join("\n")
    }

    /// The time.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Something happens.
    pub(super) fn step(&mut self, action: Action) {
        match action {
            Action::Pass(milliseconds) => self.clock.elapsed += Duration::from_millis(milliseconds.into()),
            Action::AgentHear { .. }
            | Action::AgentLoseWatch { .. }
            | Action::Add { .. }
            | Action::AddAndCrash { .. }
            | Action::Delete { .. }
            | Action::Report { .. }
            | Action::AgentKill { .. }
            | Action::AgentStart { .. }
            | Action::Wipe { .. } => self.on_node(action),
            Action::NodeJoins { .. }
            | Action::NodeLeaves { .. }
            | Action::Relabel { .. }
            | Action::Apply { .. }
            | Action::Remove { .. }
            | Action::RemoveIpamNode { .. }
            | Action::WipeStatus { .. }
            | Action::ForceRelease { .. } => self.admin(action),
            Action::Backup => self.backup = Some(lock(&self.server).backup()),
            Action::Restore => self.restore(),
            Action::Orphan { call } => self.orphan(call),
            Action::Work { replica } => self.work(replica),
            Action::AgentWork { node } => {
                self.on_node(Action::AgentHear { node, words: 64 });
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
            _ => self.on_replica(action),
        }
        self.end_those_past_their_deadline();
    }

    fn on_node(&mut self, action: Action) {
        let (clock, shared) = (self.clock, self.server.clone());
        let mut server = lock(&shared);
        let at = |index: u8| usize::from(index % NODES);
        match action {
            Action::AgentHear { node, words } => self.nodes[at(node)].hear(words.into(), &server),
            Action::AgentLoseWatch { node } => self.nodes[at(node)].lose_watch(),
            Action::Add { node, pool } => self.nodes[at(node)].add(pool.into(), false, clock),
            Action::AddAndCrash { node, pool } => self.nodes[at(node)].add(pool.into(), true, clock),
            Action::Delete { node, pod } => self.nodes[at(node)].delete(pod.into(), clock),
            Action::Report { node, fate } => self.nodes[at(node)].report(&mut server, fate, clock),
            Action::AgentKill { node } => self.nodes[at(node)].crash(),
            Action::AgentStart { node } => self.nodes[at(node)].start(clock),
            Action::Wipe { node } => self.nodes[at(node)].wipe(),
            _ => {}
        }
    }

    fn admin(&mut self, action: Action) {
        let mut server = lock(&self.server);
        // What an admin asks for and the server refuses is an action that made no sense.
        match action {
            Action::NodeJoins { node } => {
                let object = json!({"metadata": {"name": node_name(node), "labels": {"group": SELECTED[0]}}});
                drop(server.create("nodes", object));
            }
            Action::NodeLeaves { node } => drop(server.delete("nodes", &node_name(node), &json!({}))),
            Action::Relabel { node } => relabel(&mut server, &node_name(node)),
            Action::Apply { pool, spec } => apply(&mut server, pool, spec),
            Action::Remove { pool } => {
                let (plural, name) = POOLS[usize::from(pool) % POOLS.len()];
                drop(server.delete(plural, name, &json!({})));
            }
            Action::RemoveIpamNode { node } => drop(server.delete("ipamnodes", &node_name(node), &json!({}))),
            Action::WipeStatus { pool } => {
                let (plural, name) = POOLS[usize::from(pool) % POOLS.len()];
                drop(server.merge(plural, name, true, &json!({ "status": null })));
            }
            Action::ForceRelease { pool, node } => {
                let (plural, name) = POOLS[usize::from(pool) % POOLS.len()];
                let note = json!({"nv-ipam.nvidia.com/force-release": node_name(node)});
                let patch = json!({"metadata": {"annotations": note}});
                if server.merge(plural, name, false, &patch).is_ok() {
                    self.given_up.insert((name, node_name(node)));
                }
            }
            _ => {}
        }
    }

    fn on_replica(&mut self, action: Action) {
        let clock = self.clock;
        match action {
            Action::Start { replica, skew } => self.start(replica, skew),
            Action::Kill { replica } => self.kill(replica),
            Action::Campaign { replica, fate } => {
                let shared = self.server.clone();
                let stays = self.awake(replica).is_none_or(|it| it.campaign(&mut lock(&shared), fate, clock));
                if !stays {
                    self.kill(replica);
                }
            }
            Action::Hear { replica, watch, words } => {
                let shared = self.server.clone();
                if let Some(it) = self.awake(replica) {
                    it.hear(watch.into(), words.into(), &lock(&shared), clock);
                }
            }
            _ => {
                if let Some(it) = self.awake(replica_of(action)) {
                    within(it, action, clock);
                }
            }
        }
    }

    /// A store is restored as its manual says: the operator is stopped first, nothing is on its way, and it is started once
    /// every agent has told again what it holds.
    fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        for replica in 0..REPLICAS {
            self.kill(replica);
        }
        self.forget_orphans();
        lock(&self.server).restore(&backup);
        for node in 0..NODES {
            self.on_node(Action::AgentLoseWatch { node });
            self.on_node(Action::AgentStart { node });
        }
        for _ in 0..3 {
            self.clock.elapsed += Duration::from_secs(20);
            for node in 0..NODES {
                self.on_node(Action::AgentHear { node, words: 64 });
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
        }
    }

    fn work(&mut self, replica: u8) {
        self.on_replica(Action::Campaign { replica, fate: Fate::Done });
        for watch in 0..4 {
            self.on_replica(Action::Hear { replica, watch, words: 64 });
        }
        self.on_replica(Action::Decide { replica });
        let calls = self.awake(replica).map_or(0, |it| it.calls());
        for _ in 0..calls {
            self.on_replica(Action::Call { replica, call: 0, fate: Fate::Done });
            self.on_replica(Action::Answer { replica, answer: 0 });
        }
    }

    /// The replica, if it runs and does not stand still.
    fn awake(&mut self, replica: u8) -> Option<&mut Replica> {
        let now = self.clock.elapsed;
        self.replicas[usize::from(replica % REPLICAS)].as_mut().filter(|it| it.frozen_until <= now)
    }

    fn start(&mut self, replica: u8, skew: i8) {
        let place = usize::from(replica % REPLICAS);
        if self.replicas[place].is_none() {
            self.starts += 1;
            let name = format!("replica-{}", self.starts);
            let wire = Wire::new(self.runtime.clone(), &self.server, &name);
            self.replicas[place] = Some(Replica::start(&name, skew.into(), wire));
        }
    }

    fn kill(&mut self, replica: u8) {
        if let Some(it) = self.replicas[usize::from(replica % REPLICAS)].take() {
            let wire = it.wire();
            self.orphans.borrow_mut().extend(it.into_sent().into_iter().map(|command| (wire.clone(), command)));
        }
    }

    fn orphan(&mut self, call: u8) {
        let mut orphans = self.orphans.borrow_mut();
        let count = orphans.len();
        if count > 0 {
            let (wire, command) = orphans.remove(usize::from(call) % count);
            drop(wire.make(command, Fate::AnswerLost));
        }
    }

    /// Nothing of a killed process is on its way any more.
    pub(super) fn forget_orphans(&mut self) {
        self.orphans.borrow_mut().clear();
    }

    fn end_those_past_their_deadline(&mut self) {
        let clock = self.clock;
        for replica in 0..REPLICAS {
            if self.awake(replica).is_some_and(|it| it.is_past_its_deadline(clock)) {
                self.kill(replica);
            }
        }
    }
}

fn within(it: &mut Replica, action: Action, clock: Clock) {
    match action {
        Action::HearAgain { watch, .. } => it.hear_again(watch.into(), clock),
        Action::LoseWatch { watch, .. } => it.lose_watch(watch.into()),
        Action::Decide { .. } => it.decide(clock),
        Action::Call { call, fate, .. } => it.deliver(call.into(), fate),
        Action::Answer { answer, .. } => it.settle(answer.into(), clock),
        Action::Freeze { seconds, .. } => it.frozen_until = clock.elapsed + Duration::from_secs(seconds.into()),
        _ => {}
    }
}

const fn replica_of(action: Action) -> u8 {
    match action {
        Action::HearAgain { replica, .. }
        | Action::LoseWatch { replica, .. }
        | Action::Decide { replica }
        | Action::Call { replica, .. }
        | Action::Answer { replica, .. }
        | Action::Freeze { replica, .. } => replica,
        _ => 0,
    }
}

/// The name of a node.
pub(super) fn node_name(node: u8) -> String {
    format!("node-{}", node % NODES)
}

fn relabel(server: &mut Server, name: &str) {
    let Some(object) = server.get("nodes", name) else { return };
    let next = if text(object, "/metadata/labels/group") == SELECTED[0] { SELECTED[1] } else { SELECTED[0] };
    drop(server.merge("nodes", name, false, &json!({"metadata": {"labels": {"group": next}}})));
}

/// `kubectl apply`: made if it is not there, else the spec is replaced.
fn apply(server: &mut Server, pool: u8, spec: u8) {
    let (plural, name, object) = manifest(pool, spec);
    match server.get(plural, name) {
        None => drop(server.create(plural, object)),
        Some(old) => {
            let mut new = (**old).clone();
            new["spec"] = object["spec"].clone();
            drop(server.replace(plural, false, &new));
        }
    }
}
