//! The whole cluster in one value, and what each action does to it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ipam_operator::pool::FORCE_RELEASE;
use serde_json::{Value, json};

use tokio::runtime::Runtime;

use super::action::{Action, Disk, Fate};
use super::admin::{self, pool_at};
use super::agent::{Node, Wish};
use super::catalogue::POOLS;
use super::excuse::Excuses;
use super::orphan::Orphans;
use super::replica::{Clock, Replica};
use super::server::{Backup, NAMESPACE, PLURALS};
use super::wire::{Shared, Wire, lock};

/// Nodes that there may be.
pub(super) const NODES: u8 = 4;
/// Replicas of the operator that there may be.
pub(super) const REPLICAS: u8 = 2;
/// The longest time that passes at once while all is left to settle: leaders are to renew in time.
const LONGEST_PASS: Duration = Duration::from_secs(2);
/// After this long without news an operator decides upon what it has heard.
const QUIET: Duration = Duration::from_millis(15);
/// After this long an agent that has failed to report tries again.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// After this long an agent may write its next report.
const REPORTS_APART: Duration = Duration::from_secs(1);

/// The cluster.
pub struct World {
    /// The model API server.
    pub(super) server: Shared,
    /// The machines, with their agents and pods.
    pub(super) nodes: Vec<Node>,
    /// The replicas that run.
    pub(super) replicas: Vec<Option<Replica>>,
    orphans: Orphans,
    runtime: Rc<Runtime>,
    clock: Clock,
    starts: u32,
    /// What the laws do not speak of, for an admin has taken it upon himself.
    pub(super) excuses: Excuses,
    backup: Option<Backup>,
    /// The pools that went with their definitions.
    swept: Vec<(&'static str, Value)>,
    /// The machines that were registered when the store was put back, until the operator is started again.
    restoring: Option<Vec<u8>>,
    /// What the laws were checked at last: the server's news and the nodes' moves.
    pub(super) checked: (u64, u64),
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
            orphans: Orphans::default(),
            runtime,
            clock,
            starts: 0,
            excuses: Excuses::default(),
            backup: None,
            swept: Vec::new(),
            restoring: None,
            checked: (0, 0),
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
            Action::Rest(seconds) => self.rest(seconds),
            Action::Grace(seconds) => self.excuses.grace = (seconds > 0).then(|| Duration::from_secs(seconds.into())),
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
            | Action::Wipe { .. } => self.on_node(action),
            Action::NodeJoins { .. }
            | Action::NodeLeaves { .. }
            | Action::Relabel { .. }
            | Action::Cordon { .. }
            | Action::Apply { .. }
            | Action::Remove { .. }
            | Action::RemoveIpamNode { .. }
            | Action::WipeStatus { .. }
            | Action::Strip { .. }
            | Action::ForceRelease { .. }
            | Action::ForceAll { .. }
            | Action::Share { .. } => self.admin(action),
            Action::Backup => self.backup = Some(lock(&self.server).backup()),
            Action::Restore => self.restore(),
            Action::Undefine { breaks } => self.undefine(breaks),
            Action::Reapply => {
                for (plural, object) in std::mem::take(&mut self.swept) {
                    drop(lock(&self.server).create(plural, object));
                }
            }
            Action::Orphan { call } => self.orphans.arrive(call.into(), &self.server, self.clock.elapsed),
            Action::Work { replica } => self.work(replica),
            Action::Round { replica } => self.round(replica),
            Action::Listen { replica } => self.listen(replica),
            Action::Crowd => self.crowd(),
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
            Action::Add { node, pool } => self.nodes[at(node)].add(pool.into(), Wish::Any, clock),
            Action::AddAndCrash { node, pool } => self.nodes[at(node)].add(pool.into(), Wish::AnyAndCrash, clock),
            Action::AddByName { node, pool, place } => {
                self.nodes[at(node)].add(pool.into(), Wish::Named(place), clock);
            }
            Action::CopyStore { node } => self.nodes[at(node)].copy_store(),
            Action::PutStoreBack { node } => self.nodes[at(node)].put_store_back(),
            Action::Delete { node, pod } => self.nodes[at(node)].delete(pod.into(), clock),
            Action::Report { node, fate } => {
                if let Some(patch) = self.nodes[at(node)].report(&mut server, fate, clock) {
                    self.orphans.report(node_name(node), patch);
                }
            }
            Action::AgentKill { node } => self.nodes[at(node)].crash(),
            Action::AgentStart { node } => self.nodes[at(node)].start(clock),
            Action::Wipe { node } => self.nodes[at(node)].wipe(),
            Action::Disk { node, is } => self.nodes[at(node)].set_disk(is),
            Action::Drain { node } => {
                while self.nodes[at(node)].held().next().is_some() {
                    self.nodes[at(node)].delete(0, clock);
                }
            }
            _ => {}
        }
    }

    /// Time passes while those who lead look after their lease.
    fn rest(&mut self, seconds: u8) {
        for _ in 0..seconds.div_ceil(2) {
            self.clock.elapsed += LONGEST_PASS;
            for replica in 0..REPLICAS {
                self.campaign_if_due(replica);
            }
        }
    }

    fn campaign_if_due(&mut self, replica: u8) {
        let now = self.clock.elapsed;
        if self.awake(replica).is_some_and(|it| it.next_campaign() <= now) {
            self.on_replica(Action::Campaign { replica, fate: Fate::Done });
        }
    }

    fn admin(&mut self, action: Action) {
        if !admin::act(&mut lock(&self.server), action) {
            return;
        }
        match action {
            // Whoever deletes it says that nobody holds what it alone tells.
            Action::RemoveIpamNode { node } => {
                self.excuses.leaves_unheard(&lock(&self.server), &node_name(node));
                self.nodes[usize::from(node % NODES)].lose_word();
                self.orphans.forget_creations(&node_name(node));
            }
            // Nothing told of it but that machine.
            Action::NodeLeaves { node } => self.excuses.leaves_unheard(&lock(&self.server), &node_name(node)),
            Action::Strip { pool } => self.excuses.unguard(pool_at(pool).1),
            Action::WipeStatus { pool } => self.excuses.wipe(pool_at(pool).1),
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
            Action::HearLast { replica, watch } => {
                let shared = self.server.clone();
                if let Some(it) = self.awake(replica) {
                    it.hear_last(watch.into(), &lock(&shared), clock);
                }
            }
            Action::Call { replica, call, fate } => {
                if let Some(it) = self.awake(replica) {
                    let (late, wire) = (it.deliver(call.into(), fate, clock), it.wire());
                    if let Some(command) = late {
                        self.orphans.call(wire, command, clock.elapsed);
                    }
                }
            }
            _ => {
                if let Some(it) = self.awake(replica_of(action)) {
                    within(it, action, clock);
                }
            }
        }
    }

    /// A store is put back as the docs say: the operator is stopped first, and nothing is on its way.
    fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        for replica in 0..REPLICAS {
            self.kill(replica);
        }
        self.forget_orphans();
        let runs = |world: &Self, node: u8| world.nodes[usize::from(node)].held().next().is_some();
        let registered = |world: &Self, node: u8| lock(&world.server).get("nodes", &node_name(node)).is_some();
        self.restoring = Some((0..NODES).filter(|node| runs(self, *node) || registered(self, *node)).collect());
        lock(&self.server).restore(&backup);
        self.excuses.put_back = true;
        for (_, pool) in POOLS {
            self.excuses.unguard(pool);
        }
        for node in 0..NODES {
            // What is reported is what was then.
            self.nodes[usize::from(node)].lose_word();
            self.on_node(Action::AgentLoseWatch { node });
            self.on_node(Action::AgentHear { node, words: 64 });
        }
    }

    /// The definitions are deleted and installed again. Every machine is registered, as the docs say, and no creation of before is
    /// on its way: as when an IPAMNode is deleted by hand.
    fn undefine(&mut self, breaks: bool) {
        for node in 0..NODES {
            let it = &self.nodes[usize::from(node)];
            let has_ipam_node = lock(&self.server).get("ipamnodes", &it.name).is_some();
            if has_ipam_node || it.pools() > 0 || it.held().next().is_some() {
                admin::act(&mut lock(&self.server), Action::NodeJoins { node });
            }
            self.nodes[usize::from(node)].lose_word();
            self.orphans.forget_creations(&node_name(node));
        }
        self.excuses.undefine();
        lock(&self.server).sweep("ipamnodes");
        for plural in ["ippools", "cidrpools"] {
            let pools = lock(&self.server).sweep(plural);
            self.swept.extend(pools.iter().map(|pool| (plural, as_applied(pool))));
        }
        for (node, replica) in (0..NODES).zip((0..REPLICAS).cycle()).filter(|_| breaks) {
            self.on_node(Action::AgentLoseWatch { node });
            for watch in 0..3 {
                self.on_replica(Action::LoseWatch { replica, watch });
            }
        }
    }

    /// What the docs say is to be done after that and before the operator starts: every machine is registered, and every agent
    /// tells anew what it holds, to an object without blocks.
    fn rebuild(&mut self) {
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

    fn listen(&mut self, replica: u8) {
        for watch in 0..4 {
            self.on_replica(Action::Hear { replica, watch, words: 64 });
        }
    }

    fn work(&mut self, replica: u8) {
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

    fn round(&mut self, replica: u8) {
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

    fn crowd(&mut self) {
        let clock = self.clock;
        for node in &mut self.nodes {
            for pool in 0..node.pools() {
                node.add(pool, Wish::Any, clock);
            }
        }
    }

    /// Whether a node's agent runs and has nothing to do for now.
    pub(super) fn has_settled_agent(&self, node: u8) -> bool {
        self.nodes[usize::from(node)].has_settled(&lock(&self.server), self.clock)
    }

    /// Whether a replica does not run, or has nothing to do for now.
    pub(super) fn has_settled_replica(&self, replica: u8) -> bool {
        let now = self.clock.elapsed;
        self.replicas[usize::from(replica)].as_ref().is_none_or(|it| {
            let has_time = it.next_campaign() > now && it.next_wake(self.clock).is_none_or(|wake| wake > now);
            it.frozen_until > now || (has_time && it.has_done_all(&lock(&self.server)))
        })
    }

    /// How long nothing happens unless somebody does something, in milliseconds.
    pub(super) fn quiet_for(&self) -> u32 {
        let now = self.clock;
        let agents = self.nodes.iter().filter_map(|node| node.due(now));
        let running = self.replicas.iter().flatten();
        let replicas = running.flat_map(|it| [Some(it.next_campaign().max(it.frozen_until)), it.next_wake(now)]);
        let next = agents.chain(replicas.flatten()).filter(|at| *at > now.elapsed).min();
        let pause = next.map_or(LONGEST_PASS, |at| at.saturating_sub(now.elapsed)).min(LONGEST_PASS);
        u32::try_from(pause.as_millis()).unwrap_or(u32::MAX).max(10)
    }

    /// The replica, if it runs and does not stand still.
    fn awake(&mut self, replica: u8) -> Option<&mut Replica> {
        let now = self.clock.elapsed;
        self.replicas[usize::from(replica % REPLICAS)].as_mut().filter(|it| it.frozen_until <= now)
    }

    fn start(&mut self, replica: u8, skew: i8) {
        let place = usize::from(replica % REPLICAS);
        self.rebuild();
        if self.replicas[place].is_none() {
            self.starts += 1;
            let name = format!("replica-{}", self.starts);
            let wire = Wire::new(self.runtime.clone(), &self.server, &name);
            let grace = self.excuses.grace;
            // Where blocks are let go of by time, the replicas' clocks are as close as an admin has to keep them.
            let skew = if grace.is_some() { skew / 8 } else { skew };
            self.replicas[place] = Some(Replica::start(&name, skew.into(), grace, wire));
        }
    }

    fn kill(&mut self, replica: u8) {
        if let Some(it) = self.replicas[usize::from(replica % REPLICAS)].take() {
            // One that stood still has sent nothing since it led no more.
            let (wire, sent) = (it.wire(), it.led_until.min(self.clock.elapsed));
            it.into_sent().into_iter().for_each(|command| self.orphans.call(wire.clone(), command, sent));
        }
    }

    /// Nothing of those who do not wait for it is on its way any more.
    pub(super) fn forget_orphans(&mut self) {
        self.orphans.forget();
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
        | Action::Answer { replica, .. }
        | Action::Freeze { replica, .. } => replica,
        _ => 0,
    }
}

/// A pool as its manifest has it.
fn as_applied(pool: &Value) -> Value {
    let mut annotations = pool["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(FORCE_RELEASE);
    let metadata = json!({"name": pool["metadata"]["name"], "namespace": NAMESPACE, "annotations": annotations});
    json!({"metadata": metadata, "spec": pool["spec"]})
}

/// The name of a node.
pub(super) fn node_name(node: u8) -> String {
    format!("node-{}", node % NODES)
}
