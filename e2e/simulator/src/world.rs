//! The whole cluster in one value, and what each action does to it.

mod compound;
mod nodes;
mod operators;

use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;

use super::action::{Action, Fate};
use super::activity::Activity;
use super::admin::{self, pool_at};
use super::agent::Node;
use super::allowed::{Allowed, key_of};
use super::broken::Broken;
use super::clock::Clock;
use super::orphan::Orphans;
use super::records::{AssignmentId, Records};
use super::replica::Replica;
use super::server::{Backup, PLURALS};
use super::size::{MOST_NODES, NODES, REPLICAS, node_name};
use super::wire::{Shared, lock};
use super::{EarlyAssignment, Unproven};
use nodes::{is_on_node, node_of};

/// The longest time that passes at once while all is left to settle, so that leaders renew in time.
const LONGEST_PASS: Duration = Duration::from_secs(2);
/// After this long without an event, an operator decides on what it has received.
const QUIET: Duration = Duration::from_millis(15);
/// After this long an agent may write its next report.
const REPORTS_APART: Duration = Duration::from_secs(1);

/// The state of the server when a backup was restored.
#[derive(Clone, Debug)]
pub(super) struct PutBack {
    /// The number of uids made until then.
    pub(super) uids: u64,
    /// Whether a leader has not read all pools since.
    pub(super) is_unseen: bool,
}

/// Checks the laws that must hold after each call. The crate passes it to the world: the laws read the world, so the
/// world must not import them.
pub(super) type Check = fn(&mut World) -> Result<(), Broken>;

/// The cluster.
pub struct World {
    /// The model API server.
    pub(super) server: Shared,
    /// The machines, with their agents and pods.
    pub(super) nodes: Vec<Node>,
    /// The replicas that run.
    pub(super) replicas: Vec<Option<Replica>>,
    pub(super) orphans: Orphans,
    pub(super) runtime: Rc<Runtime>,
    pub(super) clock: Clock,
    pub(super) starts: u32,
    /// The violations that the laws allow, because an admin has accepted them.
    pub(super) allowed: Allowed,
    /// The last backup, the last assignment before it, and when it was made.
    pub(super) backup: Option<(Backup, AssignmentId, Duration)>,
    /// The state of the server when a backup was restored under a running leader.
    pub(super) put_back: Option<PutBack>,
    /// Whether a backup was restored whose Lease does not record assigned blocks, and the Lease was not written since.
    pub(super) is_unmarked: bool,
    /// Whether a call of a replica that does not lead any more arrives.
    pub(super) is_late_call: bool,
    /// The pools that were deleted with their CRDs.
    pub(super) swept: Vec<(&'static str, Value)>,
    /// The machines that were in use when the store was restored, until the operator is started again.
    pub(super) restoring: Option<Vec<u8>>,
    /// The state at the last check of the laws: the server's news and the nodes' moves.
    pub(super) checked: (u64, u64),
    /// At the last check, all leaders and the senders of all calls on their way had read the changes of Nodes up to this resource version.
    pub(super) nodes_seen: u64,
    /// Counts of what happened so far.
    pub(super) activity: Activity,
    /// Counts of what had happened when the history was over.
    at_end: Option<Activity>,
    /// Which blocks were assigned to which nodes.
    pub(super) records: Records,
    /// The admin's action that is under way, if it changes what is recorded.
    pub(super) by_hand: Option<&'static str>,
    /// Entries of restored objects that no report proves.
    pub(super) unproven: Vec<Unproven>,
    /// Assignments that were made while a node had not reported.
    pub(super) early: Vec<EarlyAssignment>,
    /// When records were last lost or restored.
    pub(super) lost_at: Duration,
    /// Checks the laws after each call.
    check: Check,
    /// The first law that was broken.
    broken: Option<Broken>,
}

impl World {
    /// An empty cluster: machines whose agents run, and no replica yet. The world calls `check` after each call to the server.
    pub(super) fn new(runtime: Rc<Runtime>, check: Check) -> Self {
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
            allowed: Allowed::default(),
            backup: None,
            at_end: None,
            put_back: None,
            is_unmarked: false,
            is_late_call: false,
            swept: Vec::new(),
            restoring: None,
            checked: (0, 0),
            nodes_seen: 0,
            activity: Activity::default(),
            records: Records::default(),
            by_hand: None,
            unproven: Vec::new(),
            early: Vec::new(),
            lost_at: Duration::ZERO,
            check,
            broken: None,
        }
    }

    /// The machines, by number.
    pub(super) fn machines(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.nodes.len()).unwrap_or(MOST_NODES)
    }

    /// Adds the machines up to this one.
    fn build(&mut self, node: u8) {
        for node in self.machines().end..=node % MOST_NODES {
            self.activity.count("machines added");
            self.nodes.push(Node::new(&node_name(node), self.clock));
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

    /// Counts of what happened in the history, without what its end did to check the laws; and all checks.
    pub fn activity(&self) -> Activity {
        let mut activity = self.activity.clone();
        self.allowed.count(&mut activity);
        activity.join(lock(&self.server).errors());
        self.nodes.iter().for_each(|node| activity.join(node.activity()));
        match &self.at_end {
            Some(then) => activity.counted_until(then),
            None => activity,
        }
    }

    /// Ends the history. What happens from now on is not counted.
    pub(super) fn end_history(&mut self) {
        self.at_end = Some(self.activity());
    }

    /// Performs an action, and checks the laws after each call that it makes.
    pub(super) fn step(&mut self, action: Action) -> Result<(), Broken> {
        tracing::info!(?action, "step");
        let before = lock(&self.server).version();
        self.perform(action);
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.tell_changes(before);
        }
        self.end_those_past_their_deadline();
        self.look();
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Traces the changes of the server since this version.
    fn tell_changes(&self, before: u64) {
        let server = lock(&self.server);
        for plural in PLURALS {
            for event in server.since(plural, before) {
                tracing::debug!(version = event.version, change = ?event.change, object = %**event.object, "{plural}");
            }
        }
    }

    /// Checks the laws, and keeps the first that is broken.
    pub(super) fn look(&mut self) {
        if self.broken.is_none() {
            self.broken = (self.check)(self).err();
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Pass(milliseconds) => self.clock.elapsed += Duration::from_millis(milliseconds.into()),
            Action::Rest(seconds) => self.rest(seconds),
            Action::Grace(seconds) => self.allowed.grace = (seconds > 0).then(|| Duration::from_secs(seconds.into())),
            Action::Backup => {
                self.allowed.back_up(&self.records);
                self.records.back_up();
                self.backup = Some((lock(&self.server).backup(), self.records.last(), self.clock.elapsed));
            }
            Action::Restore => self.restore(),
            Action::RestoreLive { breaks } => self.restore_live(breaks),
            Action::Undefine { breaks } => self.undefine(breaks),
            Action::Reapply => {
                for (plural, object) in std::mem::take(&mut self.swept) {
                    drop(lock(&self.server).create(plural, object));
                }
            }
            Action::Orphan { call } => {
                if self.orphans.arrive(call.into(), &self.server) {
                    self.activity.count("late calls arrived");
                    self.is_late_call = true;
                    self.look();
                    self.is_late_call = false;
                }
            }
            Action::Work { replica } => self.work(replica),
            Action::WorkAgainst { replica, fate } => self.work_against(replica, fate),
            Action::Round { replica } => self.round(replica),
            Action::Listen { replica } => self.listen(replica),
            Action::Crowd => self.crowd(),
            Action::AgentWork { node } => {
                self.on_node(Action::AgentHear { node, words: 64 });
                self.on_node(Action::Report { node, fate: Fate::Done });
            }
            _ if admin::is_of_admin(action) => self.admin(action),
            _ if is_on_node(action) => self.on_node(action),
            _ => self.on_replica(action),
        }
    }

    pub(super) fn admin(&mut self, action: Action) {
        self.build(node_of(action));
        let counted = admin::counted(&lock(&self.server), action);
        let news = lock(&self.server).news();
        if !admin::act(&mut lock(&self.server), action) {
            return;
        }
        let changes = lock(&self.server).news() > news;
        if let Some(what) = counted.filter(|_| changes) {
            self.activity.count(what);
        }
        self.by_hand = Some(if matches!(action, Action::WipeStatus { .. }) { super::WIPE } else { "an admin" });
        self.note_by_hand(action);
        self.look();
        self.by_hand = None;
    }

    fn note_unreported(&mut self, node: u8) {
        let it = &self.nodes[usize::from(node % MOST_NODES)];
        self.allowed.leaves_unreported(&lock(&self.server), &self.records, it);
    }

    fn note_by_hand(&mut self, action: Action) {
        match action {
            // By deleting it, an admin confirms that no pod has addresses that only its report has.
            Action::RemoveIpamNode { node } => {
                self.note_unreported(node);
                self.nodes[usize::from(node % MOST_NODES)].lose_word();
                self.records.lose_copies(&node_name(node));
            }
            // Only the agent of that machine knew of its addresses.
            Action::NodeLeaves { node } => self.note_unreported(node),
            Action::Strip { pool } => {
                let (plural, name) = pool_at(pool);
                self.allowed.unguard(key_of(plural, name));
            }
            Action::WipeStatus { pool } => {
                let (plural, name) = pool_at(pool);
                self.allowed.wipe(&self.records, &key_of(plural, name));
            }
            _ => {}
        }
    }

    /// Whether a node's agent runs and has nothing to do for now.
    pub(super) fn has_settled_agent(&self, node: u8) -> bool {
        self.nodes[usize::from(node)].has_settled(&lock(&self.server), self.clock)
    }

    /// How long nothing happens without an action, in milliseconds.
    pub(super) fn quiet_for(&self) -> u32 {
        let now = self.clock;
        let agents = self.nodes.iter().filter_map(|node| node.due(now));
        let running = self.replicas.iter().flatten();
        let replicas = running.flat_map(|it| [Some(it.next_campaign().max(it.frozen_until)), it.next_wake(now)]);
        let next = agents.chain(replicas.flatten()).filter(|at| *at > now.elapsed).min();
        let pause = next.map_or(LONGEST_PASS, |at| at.saturating_sub(now.elapsed)).min(LONGEST_PASS);
        u32::try_from(pause.as_millis()).unwrap_or(u32::MAX).max(10)
    }

    /// The pod of the machine that started last ends.
    pub(super) fn end_newest_pod(&mut self, node: u8) {
        self.nodes[usize::from(node)].delete_newest(self.clock);
    }
}
