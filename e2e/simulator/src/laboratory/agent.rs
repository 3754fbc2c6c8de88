//! An agent on a disk, and what it has answered.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Pick, Request, Reservation, SpecVersion};
use ipam_core::{NodePool, PoolKey, PoolKind};
use ipam_crds::NodeBlock;
use ipam_node_agent::allocator::{Allocator, Failure, Source, Unlisted, Worker};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::metrics::Metrics;
use ipam_node_store::fake::FakeDisk;
use ipam_node_store::{Journal, Opened, Store as _, StoreError};
use serde_json::json;

use super::played::Played;
use super::step::{CONTAINERS, Step};
use crate::inline::ask;

/// Zeros that the journal writes ahead: room for some records, so that it grows and is compacted within a history.
const CHUNK: usize = 512;

/// Who holds which address: by pool and owner.
type Held = BTreeMap<(PoolKey, Owner), IpAddr>;
/// An agent, and what it has answered.
pub(super) struct Laboratory {
    pub(super) disk: FakeDisk,
    lies: bool,
    clock: Arc<AtomicI64>,
    agent: Option<(Allocator, Worker)>,
    size: u8,
    generation: i64,
    /// What was answered.
    held: Held,
    /// When each of them was allocated.
    since: BTreeMap<(PoolKey, Owner), i64>,
    /// The reservations of the older stores that there are, with their paths.
    older: Vec<(String, Reservation)>,
    /// Every state that was answered.
    states: Vec<Held>,
    /// What the request may have changed that had no answer.
    open: Open,
    /// Whether the disk can only be read once the agent has ended.
    turns_read_only: bool,
    pub(super) has_waited: bool,
}

/// What a request without an answer may have done.
#[derive(Clone, Default, Debug)]
struct Open {
    /// These may hold addresses now.
    given: BTreeSet<(PoolKey, Owner)>,
    /// These may hold none any more.
    freed: BTreeSet<(PoolKey, Owner)>,
    /// A release was answered, and a disk that takes nothing had not recorded it then.
    forgotten: Held,
}

fn pools(size: u8) -> Vec<NodePool> {
    let last = ["10.0.0.6", "10.0.0.9", "10.0.0.4"][usize::from(size % 3)];
    let blue = json!({"name": "blue", "poolType": "IPPool", "grant": "6500000000000001", "state": "Active",
        "startIP": "10.0.0.1", "endIP": last, "subnet": "10.0.0.0/24", "gateway": "10.0.0.1"});
    let six = json!({"name": "six", "poolType": "CIDRPool", "grant": "6500000000000002", "state": "Active",
        "startIP": "fd00::1", "endIP": "fd00::6", "subnet": "fd00::/120"});
    let blocks: Vec<NodeBlock> = [blue, six].into_iter().filter_map(|it| serde_json::from_value(it).ok()).collect();
    node_pools(&blocks).0
}

/// The pools of a request: one of them, or both.
fn keys(pools: u8) -> Vec<PoolKey> {
    let (blue, six) = (PoolKey::new(PoolKind::IpPool, "blue"), PoolKey::new(PoolKind::CidrPool, "six"));
    match pools % 3 {
        0 => vec![blue],
        1 => vec![six],
        _ => vec![blue, six],
    }
}

pub(super) fn repair(disk: &FakeDisk) {
    disk.set_room(None);
    disk.set_copy_on_write(false);
    disk.set_read_only(false);
    disk.fail_sync_at(0);
}

fn owner(container: u8) -> Owner {
    Owner::new(format!("c{container}"), "net1")
}

fn request(owner: Owner, pools: Vec<PoolKey>) -> Request {
    let attachment = Attachment {
        pod_name: owner.container_id.clone(),
        pod_namespace: "default".to_owned(),
        network: "net".to_owned(),
        ..Attachment::default()
    };
    Request { pools, owner, attachment, requested: Vec::new(), pick: Pick::Next }
}

fn all(ledger: &Ledger) -> Held {
    let held = ledger.reservations().filter_map(|it| {
        let addr = ledger.addr_of(&it.pool, &it.owner)?;
        Some(((it.pool, it.owner), addr))
    });
    held.collect()
}

impl Laboratory {
    /// Plays a history until the power is cut.
    pub(super) fn run(history: &[Step], cut: Option<usize>, lies: bool) -> Result<Self, String> {
        let mut lab = Self {
            disk: FakeDisk::default(),
            lies,
            clock: Arc::new(AtomicI64::new(1_000)),
            agent: None,
            size: 0,
            generation: 0,
            held: Held::new(),
            since: BTreeMap::new(),
            older: Vec::new(),
            states: vec![Held::new()],
            open: Open::default(),
            turns_read_only: false,
            has_waited: false,
        };
        lab.disk.set_lies(lies);
        if let Some(cut) = cut {
            lab.disk.cut_at(cut);
        }
        lab.begin()?;
        for step in history {
            lab.clock.fetch_add(1, Ordering::Relaxed);
            lab.step(*step)?;
            if lab.agent.is_none() && !lab.disk.is_cut() {
                lab.disk.fail_sync_at(0);
                if std::mem::take(&mut lab.turns_read_only) {
                    lab.disk.set_read_only(true);
                }
                lab.begin()?;
            }
            if lab.disk.is_cut() {
                break;
            }
        }
        Ok(lab)
    }

    fn now(&self) -> i64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Add { container, pools } => self.add(&owner(container), keys(pools)),
            Step::Del { container, pools } => self.del(owner(container), keys(pools), i64::MAX),
            // A release that was forgotten leaves it open since when the address is in use.
            Step::Note { .. } if self.has_waited => Ok(()),
            Step::Note { container, age } => {
                let until = self.now() - age;
                self.del(owner(container), keys(2), until)
            }
            Step::Gc { valid } => self.gc(valid),
            Step::Spec { size } => {
                self.size = size;
                self.configure();
                Ok(())
            }
            Step::Import { container } => {
                self.agent = None;
                self.older.extend(self.older_store(container));
                self.begin()
            }
            Step::Restart => {
                self.agent = None;
                self.begin()
            }
            Step::Fill { copies } => {
                self.disk.fill();
                self.disk.set_copy_on_write(copies);
                Ok(())
            }
            Step::ReadOnly => {
                self.disk.set_read_only(true);
                Ok(())
            }
            Step::Repair => {
                repair(&self.disk);
                let has_waited = self.is_waiting();
                self.ask(|allocator| async move { allocator.look_for_room().await });
                if has_waited && !self.is_waiting() && !self.disk.is_cut() {
                    self.settle_by_answer()?;
                }
                Ok(())
            }
            Step::FailSync { then_read_only } => {
                self.turns_read_only = then_read_only;
                self.disk.fail_sync_at(self.disk.syncs() + 1);
                Ok(())
            }
        }
    }

    /// The answer of the agent; `None` if it has none, because the agent ends.
    fn ask<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        question: impl FnOnce(Allocator) -> F,
    ) -> Option<Result<T, Failure>> {
        let (allocator, worker) = self.agent.as_mut()?;
        let (answer, works) = ask(worker, question(allocator.clone()));
        if works.is_err() {
            self.agent = None;
        }
        answer.filter(|answer| !matches!(answer, Err(Failure::Stopped)))
    }

    /// Whether the journal forgets releases.
    fn is_waiting(&self) -> bool {
        self.agent.as_ref().is_some_and(|(_, worker)| worker.is_waiting())
    }

    /// The journal takes records again, and has what the agent has in memory.
    fn settle_by_answer(&mut self) -> Result<(), String> {
        let answer = self.ask(|allocator| async move { allocator.reservations().await });
        let Some(Ok(reservations)) = answer else { return Ok(()) };
        let mut found = Held::new();
        for it in &reservations {
            // A contested address of an older store is above all others, and not the one that the owner is answered.
            found.entry((it.pool.clone(), it.owner.clone())).or_insert(it.addr);
        }
        self.compare(&found)?;
        self.settle(found, reservations.into_iter());
        Ok(())
    }

    /// The journal of a disk, and the ledger with it and the older stores that it does not have.
    fn read(&self, disk: &FakeDisk) -> Result<(Opened<FakeDisk>, Ledger), StoreError> {
        let mut ledger = Ledger::new(0);
        let opened = Opened::read(disk.clone(), |change| ledger.apply(change))?.with_chunk(CHUNK);
        for (path, reservation) in &self.older {
            if ledger.imported(path).is_none() {
                let reservation = reservation.clone();
                // Like the agent's import.
                ledger.apply(&if ledger.addr_of(&reservation.pool, &reservation.owner).is_some() {
                    Change::Contested { reservation }
                } else {
                    Change::Reserve { reservation, moves_cursor: false }
                });
                ledger.apply(&Change::Imported { source: path.clone(), digest: [0; 32] });
            }
        }
        Ok((opened, ledger))
    }

    /// Starts the agent. Compares what it finds with what was answered.
    fn begin(&mut self) -> Result<(), String> {
        let (opened, ledger) = self.read(&self.disk).map_err(|error| format!("refuses its journal: {error}"))?;
        let found = all(&ledger);
        self.compare(&found)?;
        // Also what a request without an answer had recorded.
        self.states.push(found.clone());
        let Ok(journal) = opened.begin(ledger.snapshot()) else { return Ok(()) };
        if journal.is_waiting() {
            self.has_waited = true;
        } else {
            self.settle(found, ledger.reservations());
        }
        self.agent = Some(self.allocator(ledger, journal));
        self.configure();
        Ok(())
    }

    fn allocator(&self, ledger: Ledger, journal: Journal<FakeDisk>) -> (Allocator, Worker) {
        let clock = Arc::clone(&self.clock);
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        Allocator::inline(ledger, Box::new(journal), clock, Arc::new(Metrics::default()))
    }

    /// An older store with a free address, for a container without an address.
    fn older_store(&self, container: u8) -> Option<(String, Reservation)> {
        let (pool, owner) = (keys(0).remove(0), owner(container));
        let addr = IpAddr::from([10, 0, 0, 100 + container]);
        let is_taken = self.held.iter().any(|(key, other)| key.1 == owner || *other == addr);
        let Request { attachment, .. } = request(owner.clone(), Vec::new());
        let reservation = Reservation { pool, owner, addr, attachment, created: 1 };
        (!is_taken).then(|| (format!("older-{}", self.older.len()), reservation))
    }

    fn configure(&mut self) {
        self.generation += 1;
        let (pools, version) = (pools(self.size), SpecVersion { created: 1, generation: self.generation });
        let note = Some(format!("spec {}", self.generation));
        let grants: Vec<_> = pools.iter().filter_map(|pool| Some((pool.key.clone(), pool.grant?))).collect();
        let source = Source::ApiServer(Some(version));
        self.ask(|allocator| async move { allocator.configure(pools, source, note).await });
        self.ask(|allocator| async move { allocator.confirm(grants).await });
    }

    fn add(&mut self, owner: &Owner, pools: Vec<PoolKey>) -> Result<(), String> {
        let asked: BTreeSet<_> = pools.iter().map(|pool| (pool.clone(), owner.clone())).collect();
        let question = request(owner.clone(), pools);
        let was_there = self.agent.is_some();
        match self.ask(|allocator| async move { allocator.allocate(question).await }) {
            Some(Ok(allocation)) => {
                let now = self.now();
                for grant in allocation.grants {
                    let key = (grant.pool, owner.clone());
                    let is_other = |other: &(PoolKey, Owner)| *other != key && !self.open.freed.contains(other);
                    let mut others = self.held.iter().filter(|(other, addr)| **addr == grant.addr && is_other(other));
                    if let Some((other, addr)) = others.next() {
                        return Err(format!("{addr} of {} is allocated to {owner}, and {} has it", key.0, other.1));
                    }
                    match self.held.insert(key.clone(), grant.addr) {
                        Some(before) if before != grant.addr && !self.open.freed.contains(&key) => {
                            return Err(format!("{owner} had {before} and is answered {}", grant.addr));
                        }
                        Some(_) => {}
                        None => drop(self.since.insert(key, now)),
                    }
                }
                self.states.push(self.held.clone());
            }
            None if was_there => {
                let unanswered = asked.into_iter().filter(|it| !self.held.contains_key(it));
                self.open.given.extend(unanswered);
            }
            Some(Err(_)) | None => {}
        }
        Ok(())
    }

    fn del(&mut self, owner: Owner, pools: Vec<PoolKey>, until: i64) -> Result<(), String> {
        let keys = pools.iter().map(|pool| (pool.clone(), owner.clone()));
        let is_freed = |key: &(PoolKey, Owner)| {
            self.held.contains_key(key) && self.since.get(key).is_none_or(|since| *since <= until)
        };
        let freed: BTreeSet<_> = keys.filter(is_freed).collect();
        let answer = self.ask(|allocator| async move { allocator.release_until(pools, owner, until).await });
        self.freed(freed, answer.as_ref())
    }

    fn gc(&mut self, valid: u8) -> Result<(), String> {
        let valid: HashSet<_> = (0..CONTAINERS).filter(|at| valid >> at & 1 == 1).map(owner).collect();
        let freed = self.held.keys().filter(|(_, owner)| !valid.contains(owner)).cloned().collect();
        let unlisted = Unlisted { network: "net".to_owned(), pools: keys(2), valid };
        let answer = self.ask(|allocator| async move { allocator.release_unlisted(&unlisted).await });
        self.freed(freed, answer.as_ref())
    }

    fn freed(
        &mut self,
        freed: BTreeSet<(PoolKey, Owner)>,
        answer: Option<&Result<usize, Failure>>,
    ) -> Result<(), String> {
        // Those that an earlier request without an answer may have freed.
        let least = freed.difference(&self.open.freed).count();
        match answer {
            Some(Ok(count)) if !(least..=freed.len() + self.unanswered()).contains(count) => {
                return Err(format!("{count} addresses are freed instead of {}: {freed:?}", freed.len()));
            }
            Some(Ok(_)) => {
                let forgets = self.is_waiting();
                for key in freed {
                    self.since.remove(&key);
                    if let Some(addr) = self.held.remove(&key).filter(|_| forgets) {
                        self.open.forgotten.insert(key, addr);
                    }
                }
                self.states.push(self.held.clone());
            }
            Some(Err(_)) => {}
            None => self.open.freed.extend(freed),
        }
        Ok(())
    }

    /// How many addresses the agent may have that do not count as answered.
    fn unanswered(&self) -> usize {
        let older = self.older.iter().filter(|(_, it)| !self.held.contains_key(&(it.pool.clone(), it.owner.clone())));
        self.open.given.len() + self.open.forgotten.len() + older.count()
    }

    /// Whether a journal has what was answered.
    fn compare(&self, found: &Held) -> Result<(), String> {
        if self.lies && self.states.contains(found) {
            return Ok(());
        }
        let Open { given, freed, forgotten } = &self.open;
        let lost = self.held.iter().find(|(key, addr)| found.get(key) != Some(addr) && !freed.contains(key));
        if let Some(((pool, owner), addr)) = lost {
            return Err(format!("{addr} of {pool} was answered to {owner}, and the journal lacks it"));
        }
        let is_older = |key: &(PoolKey, Owner), addr: &IpAddr| {
            self.older.iter().any(|(_, it)| (&it.pool, &it.owner, &it.addr) == (&key.0, &key.1, addr))
        };
        let is_known = |key: &(PoolKey, Owner), addr: &IpAddr| {
            self.held.contains_key(key)
                || given.contains(key)
                || forgotten.get(key) == Some(addr)
                || is_older(key, addr)
        };
        let extra = found.iter().find(|(key, addr)| !is_known(key, addr));
        if let Some(((pool, owner), addr)) = extra {
            return Err(format!("{addr} of {pool} is free, and {owner} has it in the journal"));
        }
        let addrs: BTreeSet<_> = found.iter().map(|((pool, _), addr)| (pool, addr)).collect();
        if addrs.len() < found.len() {
            return Err(format!("an address has two owners: {found:?}"));
        }
        Ok(())
    }

    /// What a restart has found is what was answered from now on.
    fn settle(&mut self, found: Held, reservations: impl Iterator<Item = Reservation>) {
        self.since = reservations.map(|it| ((it.pool, it.owner), it.created)).collect();
        self.held = found;
        self.open = Open::default();
        self.states.push(self.held.clone());
    }

    /// Starts another agent on the disk, which compares, and allocates an address that is free.
    pub(super) fn start_on(&self, disk: &FakeDisk, played: &mut Played) -> Result<(), String> {
        played.cuts += 1;
        let (opened, ledger) = match self.read(disk) {
            Ok(read) => read,
            Err(StoreError::Damaged { .. }) if self.lies => {
                played.refused += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("refuses its journal: {error}")),
        };
        let found = all(&ledger);
        self.compare(&found)?;
        played.lost += u64::from(self.lies && self.held != found);
        let journal = opened.begin(ledger.snapshot()).map_err(|error| format!("does not start: {error}"))?;
        let agent = self.allocator(ledger, journal);
        let mut next = Self {
            disk: disk.clone(),
            lies: self.lies,
            clock: Arc::clone(&self.clock),
            agent: Some(agent),
            size: self.size,
            generation: self.generation,
            held: found,
            since: BTreeMap::new(),
            older: self.older.clone(),
            states: Vec::new(),
            open: Open::default(),
            turns_read_only: false,
            has_waited: false,
        };
        next.configure();
        next.add(&owner(CONTAINERS), keys(2))?;
        for (key, addr) in next.held.clone() {
            next.del(key.1, vec![key.0], i64::MAX)?;
            if next.held.values().any(|other| *other == addr) {
                return Err(format!("{addr} is held after its DEL"));
            }
        }
        let left = all(&next.read(disk).map_err(|error| error.to_string())?.1);
        if left.is_empty() { Ok(()) } else { Err(format!("these are held after their DEL: {left:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_cannot_write_answers_no_repeated_add() {
        let add = Step::Add { container: 0, pools: 0 };
        let lab = Laboratory::run(&[Step::FailSync { then_read_only: true }, add, add], None, false).unwrap();
        let (_, read) = lab.read(&lab.disk).unwrap();
        assert_eq!(all(&read).len(), 1, "the record is in the file, and may not be on the disk");
        assert!(lab.has_waited && lab.held.is_empty(), "{:?}", lab.held);
    }
}
