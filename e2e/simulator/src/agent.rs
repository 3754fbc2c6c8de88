//! One node: its agent, its disk, its clock, and the pods that really run there.

mod cni;
mod collect;
mod report;
mod stops;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ipam_core::ledger::{Owner, Request, Reservation};
use ipam_core::{AddrRange, PoolKey};
use ipam_crds::{BlockUse, IPAMNode};
use ipam_node_agent::allocator::{Allocator, Failure};
use ipam_node_agent::lost::Lost;
use ipam_node_agent::standing::{DISCARD, Standing};
use ipam_node_store::Position;
use serde::Deserialize as _;
use serde_json::Value;

use super::action;
use super::activity::Activity;
use super::clock::Clock;
use super::disk::{Disk, Replaced};
use super::process::{Heard, Killed, Process};
use super::records::{AssignmentId, pool_of_entry, range_of_entry};
use super::request::IF_NAME;
use super::server::Server;
use collect::Objects;

/// The result of an ADD that is refused because its block waits for a confirmation.
pub(super) const UNCONFIRMED: &str = "ADD refused: Unconfirmed";

/// An address that a pod really has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) pool: PoolKey,
    pub(super) addr: IpAddr,
    /// The assignment of the block from which the agent allocated it.
    pub(super) assignment: Option<AssignmentId>,
}

/// A pod that runs.
#[derive(Debug)]
struct Pod {
    /// Its addresses.
    held: Vec<Held>,
    /// Its request.
    request: Request,
    /// Whether the journal has its addresses: the store is not from an earlier time.
    is_recorded: bool,
}

/// The result of an ADD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// There was nothing to request.
    NotAsked,
    /// The pod has its address.
    Served,
    /// The agent was killed after the record and before it answered.
    Crashed,
    /// The agent was killed, or the power of its node was cut, before it answered. The address may be recorded.
    Cut,
    /// The agent refused it for this reason, or does not run.
    Refused(&'static str),
}

/// A node.
pub(super) struct Node {
    /// Its name.
    pub(super) name: String,
    disk: Disk,
    process: Option<Process>,
    /// No agent has ever run here, and none will.
    without_agent: bool,
    /// The wall clock, in Unix seconds, and how far it is off.
    wall: Arc<AtomicI64>,
    skew: i64,
    /// The pods that really run, by container.
    pods: BTreeMap<String, Pod>,
    /// The pods that the API server has.
    objects: Objects,
    /// What the runtime must delete, and could not yet.
    to_delete: Vec<(Vec<PoolKey>, Owner)>,
    /// What was deleted last.
    deleted: Option<(Vec<PoolKey>, Owner)>,
    /// There may be records of pods that are gone and that no DEL frees.
    has_leftovers: bool,
    /// When each address was freed, by the wall clock. Empty after the store was replaced or the clock has jumped.
    freed: BTreeMap<(PoolKey, IpAddr), i64>,
    /// Pods whose addresses are in no record and no report any more, since the agent's store was replaced, or also the
    /// report that had them.
    unknown: BTreeSet<String>,
    made: u32,
    /// Starts of the machine, and of its agent.
    boots: u32,
    starts: u32,
    /// Changes with the addresses of pods.
    moves: u64,
    /// The first violation of the agent's rules.
    wrong: Option<String>,
    /// The agent's store was deleted or restored, or the machine was reinstalled.
    has_lost_its_store: bool,
    activity: Activity,
}

impl Node {
    /// A machine whose agent has just started for the first time.
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            disk: Disk::default(),
            process: None,
            without_agent: false,
            wall: Arc::default(),
            skew: 0,
            pods: BTreeMap::new(),
            objects: Objects::default(),
            to_delete: Vec::new(),
            deleted: None,
            has_leftovers: false,
            freed: BTreeMap::new(),
            unknown: BTreeSet::new(),
            made: 0,
            boots: 0,
            starts: 0,
            moves: 0,
            wrong: None,
            has_lost_its_store: false,
            activity: Activity::default(),
        };
        node.start(clock);
        node
    }

    /// Makes this a node on which no agent ever runs. Does nothing once the agent has received something.
    pub(super) fn go_without_agent(&mut self) {
        let has_heard = self.process.as_ref().is_some_and(|process| process.in_force.is_some());
        if !self.without_agent && self.has_no_spec() && !has_heard {
            self.wipe();
            self.without_agent = true;
            self.activity.count("nodes without an agent");
        }
    }

    /// Whether the agent has recorded no spec.
    fn has_no_spec(&self) -> bool {
        self.disk.noted(&self.name).spec.generation.is_none()
    }

    /// Whether an agent runs here, or has run.
    pub(super) fn has_agent(&self) -> bool {
        !self.without_agent
    }

    /// Whether the agent has run and does not run now. It has the blocks of its disk when it starts.
    pub(super) fn is_down(&self) -> bool {
        self.process.is_none() && !self.disk.is_empty()
    }

    /// The wall clock jumps by this many seconds.
    pub(super) fn turn_clock(&mut self, seconds: i64) {
        self.skew += seconds;
        // By the clock, their cooldown may be over, or not have begun.
        self.freed.clear();
        if seconds != 0 && !self.without_agent {
            self.activity.count("clocks of nodes turned");
        }
    }

    /// Reinstalls the machine: pods and disk are gone. Returns whether it had pods or a saved spec.
    pub(super) fn wipe(&mut self) -> bool {
        let was_used = !self.pods.is_empty() || !self.has_no_spec();
        self.process = None;
        self.pods.clear();
        self.objects = Objects::default();
        (self.to_delete, self.deleted) = (Vec::new(), None);
        self.freed.clear();
        self.moves += 1;
        self.disk = Disk::default();
        self.boots += 1;
        self.has_lost_its_store = true;
        was_used
    }

    /// Copies the agent's store.
    pub(super) fn copy_store(&mut self) {
        self.disk.copy();
    }

    /// Ends the agent and replaces its store by the copy, or deletes the store. The pods continue to run. Returns what
    /// happened to the store; `None` if it is as before.
    pub(super) fn put_store_back(&mut self) -> Option<Replaced> {
        self.crash();
        self.freed.clear();
        self.deleted = None;
        let replaced = self.disk.put_back();
        if self.disk.went_back() {
            self.has_lost_its_store = true;
        }
        let ledger = self.disk.ledger();
        for (container, pod) in &mut self.pods {
            let owner = Owner::new(container.clone(), IF_NAME);
            pod.is_recorded = pod.held.iter().all(|it| ledger.held_by(&it.pool, &owner).is_some());
        }
        self.has_leftovers = true;
        replaced
    }

    /// Handles the loss of all knowledge about addresses that pods of this node use without a record in the journal.
    pub(super) fn lose_word(&mut self) {
        self.forget(None);
    }

    /// Handles a replaced report. If the store was lost and no agent has detected that, only the previous report had
    /// those addresses.
    pub(super) fn lose_report(&mut self, server: &Server) {
        if self.disk.went_back() {
            let object = server.get("ipamnodes", &self.name).and_then(|object| IPAMNode::deserialize(&***object).ok());
            self.forget(object.as_ref().map(Standing::from).as_ref());
        }
    }

    /// Every address that pods of this node really have, with the pod.
    pub(super) fn held(&self) -> impl Iterator<Item = (&str, &Held)> {
        self.pods.iter().flat_map(|(name, pod)| pod.held.iter().map(move |held| (name.as_str(), held)))
    }

    /// Whether the pod's addresses are known: from the journal, or from the report at the time when the journal was replaced.
    pub(super) fn is_known(&self, pod: &str) -> bool {
        !self.unknown.contains(pod)
    }

    /// Whether the agent reports addresses of which it has no record.
    pub(super) fn says_lost(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.noted.lost().is_some())
    }

    /// Whether the agent's store was lost in this history.
    pub(super) const fn has_lost_its_store(&self) -> bool {
        self.has_lost_its_store
    }

    /// Whether the agent goes by the IPAMNode with this uid, and has read it since the last restore.
    pub(super) fn knows_object(&self, server: &Server, uid: &str) -> bool {
        let process = self.process.as_ref().filter(|process| process.watch.is_connected(server));
        let in_force = process.and_then(|process| process.in_force.as_ref());
        in_force.is_some_and(|in_force| in_force.spec.uid == uid)
    }

    /// The addresses that the agent reports without a record.
    pub(super) fn lost(&self) -> Vec<(PoolKey, AddrRange)> {
        let noted = self.process.as_ref().map_or_else(|| self.disk.noted(&self.name), |it| it.noted.clone());
        let lost = noted.lost().and_then(|lost| serde_json::to_value(lost).ok()).unwrap_or_default();
        let of_pool = |entry: &Value| {
            let runs = entry["held"].as_array().into_iter().flatten().filter_map(range_of_entry);
            runs.map(|run| (pool_of_entry(entry), run)).collect::<Vec<_>>()
        };
        lost["pools"].as_array().into_iter().flatten().flat_map(of_pool).collect()
    }

    /// The first violation of the agent's rules, as text.
    pub(super) fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Keeps the first violation of the agent's rules.
    fn blame(&mut self, wrong: Option<String>) {
        self.wrong = self.wrong.take().or(wrong);
    }

    /// A number that changes with the addresses of pods.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Counts of what happened on this node.
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Whether the agent has received all events, and no report is due.
    pub(super) fn is_idle(&self, server: &Server, clock: Clock) -> bool {
        let Some(process) = &self.process else { return true };
        process.watch.is_current(server) && self.due(clock).is_none_or(|due| due > clock.elapsed)
    }

    /// Whether the agent runs, its disk works, and it has nothing to do for now.
    pub(super) fn has_settled(&self, server: &Server, clock: Clock) -> bool {
        let has_cleaned_up = !self.has_leftovers && self.to_delete.is_empty();
        let works = self.process.is_some() && self.disk.is_well() && has_cleaned_up;
        self.without_agent || (works && self.is_idle(server, clock))
    }

    /// When the next report is due.
    pub(super) fn due(&self, clock: Clock) -> Option<Duration> {
        self.process.as_ref()?.due(clock)
    }

    /// The wall clock, in Unix seconds.
    fn now(&self, clock: Clock) -> i64 {
        i64::try_from(clock.elapsed.as_secs()).unwrap_or_default() + self.skew
    }

    /// Sends a request to the agent. `None` if it does not answer: it does not run, or its store fails, which ends it.
    fn ask<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        clock: Clock,
        question: impl FnOnce(Allocator) -> F,
    ) -> Option<Result<T, Failure>> {
        self.wall.store(self.now(clock), Ordering::Relaxed);
        self.ask_now(question)
    }

    fn ask_now<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        question: impl FnOnce(Allocator) -> F,
    ) -> Option<Result<T, Failure>> {
        let failed = self.disk.failed_syncs();
        let process = self.process.as_ref()?;
        let (answer, works) = process.ask(question);
        self.activity.add("journals compacted", process.compactions());
        // A process that ends closes its connections, and that is not an answer.
        let answer = answer.filter(|answer| !matches!(answer, Err(Failure::Stopped)));
        let has_failed = self.disk.failed_syncs() > failed;
        if works.is_err() {
            self.activity.count(match answer {
                _ if has_failed => "agents ended by a failed sync",
                None if self.disk.is_cut() => "agents stopped within a record",
                Some(_) if self.disk.is_cut() => "agents stopped within a compaction",
                _ => "agents ended by their disk",
            });
            self.process = None;
            self.has_leftovers = true;
        } else if has_failed {
            self.blame(Some("goes on after a sync that failed".to_owned()));
        }
        answer
    }

    /// All records. `None` if the request ends the agent, because its disk fails.
    fn acknowledged(&mut self) -> Option<Vec<Reservation>> {
        let answer = self.ask_now(|allocator| async move { allocator.reservations().await });
        answer.and_then(Result::ok)
    }

    /// All records; none if the agent does not answer.
    fn reservations(&mut self) -> Vec<Reservation> {
        self.acknowledged().unwrap_or_default()
    }

    /// Delivers up to `count` events of the watch.
    pub(super) fn hear(&mut self, count: usize, server: &Server, clock: Clock) {
        for _ in 0..count {
            if !self.hear_one(server, None, clock) {
                return;
            }
        }
    }

    /// Delivers all events of the watch, and kills the agent while it processes the first spec.
    pub(super) fn hear_and_die(&mut self, killed: Killed, server: &Server, clock: Clock) {
        while self.hear_one(server, Some(killed), clock) {}
    }

    /// Delivers one event of the watch. Returns whether there was one and the agent still runs.
    fn hear_one(&mut self, server: &Server, killed: Option<Killed>, clock: Clock) -> bool {
        let Some(process) = &mut self.process else { return false };
        let Some(told) = process.watch.next(server) else { return false };
        let lost = process.noted.lost().and_then(version_of);
        let recorded = process.durable.lost().and_then(version_of);
        let store = process.noted.identity.store.clone();
        let heard = process.hear(told, killed, clock);
        let has_ended = self.has_ended();
        if matches!(heard, Heard::Killed) && !has_ended {
            self.activity.count("agents killed while a spec was saved");
            self.crash();
        }
        if has_ended || matches!(heard, Heard::Killed) {
            // What is saved may have discarded the addresses, too.
            if let Some(version) = recorded.filter(|_| self.lost().is_empty()) {
                self.discard(&version, server);
            }
            return false;
        }
        if let Heard::FirstReport(standing) = heard
            && let Some(at) = self.disk.went_back_to()
        {
            self.forget(Some(&*standing).filter(|standing| has_more(standing, at, store.as_ref())));
        }
        if let Some(version) = lost.filter(|_| !self.says_lost()) {
            self.discard(&version, server);
        }
        self.note_comparison();
        true
    }

    /// Whether the process has ended because its store failed outside of a request.
    fn has_ended(&mut self) -> bool {
        let has_ended = self.process.as_ref().is_some_and(Process::has_ended);
        if has_ended {
            self.activity.count("agents ended by their disk");
            self.process = None;
            self.has_leftovers = true;
        }
        has_ended
    }

    /// Records that the rollback is detected, once the result of the comparison of journal and report is on disk. Then no
    /// later start compares again.
    fn note_comparison(&mut self) {
        let is_noted = |process: &Process| process.has_compared() && process.noted == process.durable;
        if self.disk.went_back() && self.process.as_ref().is_some_and(is_noted) {
            self.disk.is_known_to_have_gone_back();
        }
    }

    /// Handles that the agent does not count addresses any more that only the report of this version has. An admin must have said so.
    fn discard(&mut self, version: &str, server: &Server) {
        let says = |object: &Value| {
            object["metadata"]["name"] == *self.name && object["metadata"]["annotations"][DISCARD] == *version
        };
        let mut objects = server.since("ipamnodes", 0).iter().map(|event| &**event.object);
        if objects.any(says) || server.get("ipamnodes", &self.name).is_some_and(|object| says(object)) {
            self.forget(None);
        } else {
            let what = format!("discards the addresses of the report at version {version}, and no admin has said so");
            self.blame(Some(what));
        }
    }

    /// Marks pods as unknown whose addresses are neither in the journal nor in the report. The pods of a report of an earlier boot have ended.
    fn forget(&mut self, report: Option<&Standing>) {
        let (ledger, lost, here) = (self.disk.ledger(), self.lost(), self.identity());
        let report = report.filter(|standing| !here.is_another_boot(&standing.identity()));
        let reports = || report.iter().flat_map(|standing| &standing.status.pools);
        let is_known = |pod: &String, it: &Held| {
            ledger.held_by(&it.pool, &Owner::new(pod.clone(), IF_NAME)).is_some()
                || reports().any(|report| tells(report, &it.pool, it.addr))
                || lost.iter().any(|(pool, range)| *pool == it.pool && range.contains(it.addr))
        };
        let unknown = self.pods.iter().filter(|(name, pod)| pod.held.iter().any(|it| !is_known(name, it)));
        self.unknown.extend(unknown.map(|(name, _)| name.clone()));
    }

    /// Sets the state of the disk. If it works again, the agent saves what it could not save.
    pub(super) fn set_disk(&mut self, is: action::Disk, clock: Clock) {
        self.disk.set(is);
        // The agent looks by itself every few seconds.
        self.ask_now(|allocator| async move { allocator.look_for_room().await });
        if let Some(process) = &mut self.process {
            process.put_again(clock);
        }
        if !self.has_ended() {
            self.note_comparison();
        }
    }

    /// After this many more syncs of the journal, one fails.
    pub(super) fn fail_sync(&mut self, after: u8) {
        self.disk.fail_sync(after.into());
    }

    /// The watch breaks and lists again.
    pub(super) fn lose_watch(&mut self) {
        if let Some(process) = &mut self.process {
            process.watch.expire();
        }
    }

    /// The number of pools that this node knows.
    pub(super) fn pools(&self) -> usize {
        self.process.as_ref().and_then(|it| it.in_force.as_ref()).map_or(0, |in_force| in_force.spec.blocks.len())
    }
}

/// The version of the report that has addresses without a record.
fn version_of(lost: &Lost) -> Option<String> {
    let lost = serde_json::to_value(lost).ok()?;
    Some(lost["resourceVersion"].as_str()?.to_owned())
}

/// Whether the report is of a later time than the journal at this position, or of another store.
fn has_more(standing: &Standing, at: Position, store: Option<&String>) -> bool {
    let reported = standing.status.ledger.map(|it| (i128::from(it.epoch), i128::from(it.sequence)));
    let is_later = reported.is_some_and(|it| it > (i128::from(at.epoch), i128::from(at.sequence)));
    let of_store = standing.identity().store;
    is_later || store.zip(of_store.as_ref()).is_some_and(|(own, other)| own != other)
}

/// Whether by the report the address of the pool may be in use.
fn tells(report: &BlockUse, pool: &PoolKey, addr: IpAddr) -> bool {
    let is_in = |first: &str, last: &str| range(first, last).is_some_and(|range| range.contains(addr));
    let is_told = report.held.iter().any(|run| is_in(&run.start_ip, &run.end_ip));
    let may_be = report.held.is_empty() && report.used > 0 && is_in(&report.start_ip, &report.end_ip);
    *pool == PoolKey::new(report.pool_type.into(), report.name.clone()) && (is_told || may_be)
}

fn range(first: &str, last: &str) -> Option<AddrRange> {
    AddrRange::new(first.parse().ok()?, last.parse().ok()?)
}
