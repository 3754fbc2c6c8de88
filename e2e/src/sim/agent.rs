//! One node: its agent, its disk, and the pods that really run there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::ledger::Owner;
use ipam_core::{AddrRange, PoolKey};
use ipam_crds::BlockUse;
use ipam_node_agent::status::status_patch;
use ipam_node_agent::watch::Standing;
use serde_json::Value;

use super::action::{self, Fate};
use super::activity::{Activity, EXPECTED};
use super::disk::Disk;
use super::process::{Heard, Process};
use super::records::{AssignmentId, Records};
use super::replica::Clock;
use super::request::{request, told_address};
use super::server::Server;

/// The interface of every pod.
pub(super) const IF_NAME: &str = "net1";
/// An address that was freed is not allocated again for so many seconds, unless a pod asks for it by name.
pub(super) const COOLDOWN: i64 = 2;

/// What a pod asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// Any address.
    Any,
    /// Any address, and the agent dies after the record is durable and before it answers: the runtime then deletes the pod.
    AnyAndCrash,
    /// The address this far into the node's block, by its value or by its index.
    Named(u8),
}

/// An address that a pod really has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) pool: PoolKey,
    pub(super) addr: IpAddr,
    /// The assignment of the block from which the agent allocated it.
    pub(super) assignment: Option<AssignmentId>,
}

/// What came of an ADD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// There was nothing to ask for.
    NotAsked,
    /// The pod has its address.
    Served,
    /// The address is recorded, and the agent died before it answered.
    Crashed,
    /// By the agent, for this reason, or because it does not run.
    Refused(&'static str),
}

/// A node.
pub(super) struct Node {
    /// Its name.
    pub(super) name: String,
    disk: Disk,
    process: Option<Process>,
    /// The addresses that each pod really has, by container.
    pods: BTreeMap<String, Vec<Held>>,
    /// When each address was freed, in seconds, since the store is what it is.
    freed: BTreeMap<(PoolKey, IpAddr), i64>,
    /// Pods of whose addresses nothing tells that is left, since somebody has taken the agent's store away, or also the report
    /// that told of them.
    unknown: BTreeSet<String>,
    made: u32,
    /// Changes with what pods hold.
    moves: u64,
    /// What the agent did that none may do.
    wrong: Option<String>,
}

impl Node {
    /// A machine whose agent has just started for the first time.
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            disk: Disk::default(),
            process: None,
            pods: BTreeMap::new(),
            freed: BTreeMap::new(),
            unknown: BTreeSet::new(),
            made: 0,
            moves: 0,
            wrong: None,
        };
        node.start(clock);
        node
    }

    /// Starts the agent, if it does not run.
    pub(super) fn start(&mut self, clock: Clock) {
        if self.process.is_none() {
            self.process = Process::start(&self.name, &mut self.disk, clock);
            let untrue = self.process.as_ref().and_then(|_| self.disk.untrue());
            self.wrong = self.wrong.take().or(untrue);
        }
    }

    /// kill -9.
    pub(super) fn crash(&mut self) {
        self.process = None;
    }

    /// The machine is set up anew: pods and disk are gone.
    pub(super) fn wipe(&mut self) {
        self.process = None;
        self.pods.clear();
        self.freed.clear();
        self.moves += 1;
        self.disk = Disk::default();
    }

    /// Somebody makes a copy of the agent's store.
    pub(super) fn copy_store(&mut self) {
        self.disk.copy();
    }

    /// Somebody ends the agent and puts the copy in place of its store, or deletes the store. The pods run on.
    /// Whether there was no copy.
    pub(super) fn put_store_back(&mut self) -> bool {
        self.crash();
        self.freed.clear();
        self.disk.put_back()
    }

    /// Nothing tells any more what pods of this node hold without a record in the journal.
    pub(super) fn lose_word(&mut self) {
        self.forget(None);
    }

    /// Every address that pods of this node really have, with the pod.
    pub(super) fn held(&self) -> impl Iterator<Item = (&str, &Held)> {
        self.pods.iter().flat_map(|(pod, addresses)| addresses.iter().map(move |held| (pod.as_str(), held)))
    }

    /// Whether anything tells of the pod's addresses: the journal, or what the agent had reported when it was taken away.
    pub(super) fn is_known(&self, pod: &str) -> bool {
        !self.unknown.contains(pod)
    }

    /// Whether the agent holds on to addresses of which it has no record.
    pub(super) fn has_lost(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.noted.lost().is_some())
    }

    /// What the agent did that none may do, in words.
    pub(super) fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Another number after what pods hold has changed.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether the agent knows all that the server says, and has told all that is worth telling.
    pub(super) fn is_idle(&self, server: &Server, clock: Clock) -> bool {
        let Some(process) = &self.process else { return true };
        process.watch.is_current(server) && self.due(clock).is_none_or(|due| due > clock.elapsed)
    }

    /// Whether it runs, has room on its disk, and nothing to do for now.
    pub(super) fn has_settled(&self, server: &Server, clock: Clock) -> bool {
        self.process.is_some() && self.disk.is == action::Disk::Well && self.is_idle(server, clock)
    }

    /// When the next report is due.
    pub(super) fn due(&self, clock: Clock) -> Option<Duration> {
        self.process.as_ref()?.due(self.disk.at(), clock)
    }

    /// The watch tells up to `count` words.
    pub(super) fn hear(&mut self, count: usize, server: &Server) {
        for _ in 0..count {
            let Some(process) = &mut self.process else { return };
            let Some(told) = process.watch.next(server) else { return };
            if let Heard::FirstReport(later) = process.hear(told, &mut self.disk)
                && self.disk.went_back()
            {
                self.forget(later.as_ref());
            }
            self.note_comparison();
        }
    }

    /// What came of the comparison of journal and report is on disk, so that no later start has to make it again.
    fn note_comparison(&mut self) {
        let is_noted = |process: &Process| process.has_compared() && process.noted == process.durable;
        if self.disk.went_back() && self.process.as_ref().is_some_and(is_noted) {
            self.disk.is_known_to_have_gone_back();
        }
    }

    /// Nothing tells what pods hold that is neither in the journal nor in the report.
    fn forget(&mut self, report: Option<&Standing>) {
        let ledger = self.disk.ledger();
        let reports = || report.iter().flat_map(|standing| &standing.status.pools);
        let is_known = |pod: &String, pool: &PoolKey, addr: IpAddr| {
            ledger.held_by(pool, &Owner::new(pod.clone(), IF_NAME)).is_some()
                || reports().any(|it| tells(it, pool, addr))
        };
        let unknown = self.pods.iter().filter(|(pod, held)| held.iter().any(|it| !is_known(pod, &it.pool, it.addr)));
        self.unknown.extend(unknown.map(|(pod, _)| pod.clone()));
    }

    /// The disk fails, or is well again; what could not be saved is saved then.
    pub(super) fn set_disk(&mut self, is: action::Disk) {
        self.disk.is = is;
        if let Some(process) = &mut self.process {
            process.save_again(&mut self.disk);
        }
        self.note_comparison();
    }

    /// The watch breaks and begins anew.
    pub(super) fn lose_watch(&mut self) {
        if let Some(process) = &mut self.process {
            process.watch.expire();
        }
    }

    /// CNI ADD of a new pod in the `pick`-th pool that this node knows.
    pub(super) fn add(&mut self, pick: usize, wish: Wish, clock: Clock, records: &Records) -> Added {
        if self.disk.is == action::Disk::ReadOnly {
            return Added::Refused("ADD refused: disk");
        }
        let Some(process) = self.process.as_mut() else { return Added::Refused("ADD refused: no agent") };
        process.goes_on(clock);
        let Some(block) = process.block(pick).cloned() else { return Added::Refused("ADD refused: no block") };
        let told = process.told();
        self.made += 1;
        let container = format!("{}-{}", self.name, self.made);
        let Some(request) = request(container.clone(), &block, wish) else { return Added::NotAsked };
        let now = seconds(clock);
        let allocation = match process.ledger.allocate(&request, now) {
            Ok(allocation) => allocation,
            Err(refusal) => return Added::Refused(refused(refusal.reason())),
        };
        process.has_news();
        let pool = &request.pools[0];
        for grant in &allocation.grants {
            let unsaved = self.disk.unsaved(pool, grant.addr);
            let cools = || self.freed.get(&(pool.clone(), grant.addr)).is_some_and(|freed| now < freed + COOLDOWN);
            let wrong = || told_address(&block, grant, wish, cools());
            self.wrong = self.wrong.take().or(unsaved).or_else(wrong);
        }
        self.disk.record(&allocation.changes);
        if wish == Wish::AnyAndCrash {
            self.process = None;
            return Added::Crashed;
        }
        for step in &allocation.changes {
            process.ledger.apply(step);
        }
        let assignment = told.and_then(|(uid, generation)| records.told(&uid, generation, pool));
        let held = |addr| Held { pool: pool.clone(), addr, assignment };
        let addresses = allocation.grants.iter().map(|grant| held(grant.addr)).collect();
        self.pods.insert(container, addresses);
        self.moves += 1;
        Added::Served
    }

    /// The number of pools that this node knows.
    pub(super) fn pools(&self) -> usize {
        self.process.as_ref().and_then(|it| it.in_force.as_ref()).map_or(0, |in_force| in_force.spec.blocks.len())
    }

    /// CNI DEL of the `pick`-th pod. Without an agent the pod is gone all the same, and its address stays recorded until the
    /// runtime's next try: here, until the agent's garbage collection.
    pub(super) fn delete(&mut self, pick: usize, clock: Clock) {
        let count = self.pods.len();
        let Some(container) = self.pods.keys().nth(pick.checked_rem(count).unwrap_or(0)).cloned() else { return };
        self.pods.remove(&container);
        self.unknown.remove(&container);
        self.moves += 1;
        self.collect(clock);
    }

    /// CNI DEL of the pod that was started last.
    pub(super) fn delete_newest(&mut self, clock: Clock) {
        let newest = format!("{}-{}", self.name, self.made);
        let place = self.pods.keys().position(|pod| *pod == newest);
        if let Some(place) = place {
            self.delete(place, clock);
        }
    }

    /// Gives back what is recorded for pods that are gone.
    pub(super) fn collect(&mut self, clock: Clock) {
        let Some(process) = self.process.as_mut().filter(|_| self.disk.is != action::Disk::ReadOnly) else { return };
        let stale: Vec<_> = process
            .ledger
            .reservations()
            .filter(|held| !self.pods.contains_key(&held.owner.container_id))
            .map(|held| (held.pool.clone(), held.owner.clone()))
            .collect();
        for (pool, owner) in stale {
            process.has_news();
            if let Some(held) = process.ledger.held_by(&pool, &owner) {
                self.freed.insert((pool.clone(), held.addr), seconds(clock));
            }
            let changes = process.ledger.release(&[pool], &owner, seconds(clock));
            for step in &changes {
                process.ledger.apply(step);
            }
            self.disk.record(&changes);
        }
    }

    /// Writes the report, if one is due. Returns the patch if it is still on its way.
    pub(super) fn report(
        &mut self,
        server: &mut Server,
        fate: Fate,
        clock: Clock,
        activity: &mut Activity,
    ) -> Option<Value> {
        self.due(clock).filter(|due| *due <= clock.elapsed)?;
        let process = self.process.as_mut()?;
        let report = process.report(self.disk.at())?;
        process.has_news();
        let now = clock.instant().into();
        let patch = status_patch(&report.uid, &report.status(None, clock.wall(0)));
        if fate == Fate::Late {
            process.pace.failed(now);
            return Some(patch);
        }
        let written = fate != Fate::Lost && server.json_patch("ipamnodes", &self.name, true, patch).is_ok();
        if written {
            activity.count("reports written");
        }
        if written && fate == Fate::Done {
            process.pace.written(report, now);
        } else {
            process.pace.failed(now);
        }
        None
    }
}

/// What an ADD that the agent refuses counts as.
fn refused(reason: &'static str) -> &'static str {
    let known = EXPECTED.into_iter().find(|what| what.strip_prefix("ADD refused: ") == Some(reason));
    known.unwrap_or("ADD refused: for another reason")
}

/// Whether a report tells that the address may be held of the pool.
fn tells(report: &BlockUse, pool: &PoolKey, addr: IpAddr) -> bool {
    let is_in = |first: &str, last: &str| range(first, last).is_some_and(|range| range.contains(addr));
    let is_told = report.held.iter().any(|run| is_in(&run.start_ip, &run.end_ip));
    let may_be = report.held.is_empty() && report.used > 0 && is_in(&report.start_ip, &report.end_ip);
    *pool == PoolKey::new(report.pool_type.into(), report.name.clone()) && (is_told || may_be)
}

fn range(first: &str, last: &str) -> Option<AddrRange> {
    AddrRange::new(first.parse().ok()?, last.parse().ok()?)
}

fn seconds(clock: Clock) -> i64 {
    i64::try_from(clock.elapsed.as_secs()).unwrap_or_default()
}
