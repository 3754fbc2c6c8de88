//! The disk of a node: the agent's real journal on a simulated disk, with faults and restores of earlier states.

use ipam_core::ledger::{Ledger, Reservation};
use ipam_node_agent::identity::Identity;
use ipam_node_agent::note::{Noted, Start, Subject};
use ipam_node_store::fake::FakeDisk;
use ipam_node_store::{Journal, Opened, Position, Store as _, StoreError};

use super::action::Disk as State;
use super::server::NAMESPACE;

/// Zeros that the journal writes ahead: room for some records, so that journals grow and are compacted within a history.
const CHUNK: usize = 512;

/// Seconds in which a freed address is not allocated again, unless a pod requests it by value or index.
pub(super) const COOLDOWN: i64 = 2;

/// What survives a crash.
#[derive(Default, Debug)]
pub(super) struct Disk {
    store: FakeDisk,
    /// The copy of the store, if one was made, with what `went_back` was then.
    copy: Option<(FakeDisk, Option<Position>)>,
    /// The state of the disk.
    is: State,
    /// One of the next syncs fails.
    fails: bool,
    /// The journal replaced a later one, and no agent has compared it with its report and recorded the result yet. Has the position
    /// of the journal when it was put in place, the least if that happened more than once.
    went_back: Option<Position>,
    /// What the journal must have at the next start.
    owed: Option<Owed>,
    /// The step at which the disk is cut.
    cut_at: Option<usize>,
}

/// What the agent had acknowledged when it ended.
#[derive(Debug)]
struct Owed {
    reservations: Vec<Reservation>,
    /// A request was under way, so that the journal may have one record more.
    more: bool,
    /// No power cut can take them.
    is_durable: bool,
}

/// What happened to a store that was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Replaced {
    /// The store is deleted.
    Deleted,
    /// An earlier state of the store is there.
    PutBack,
}

/// A store that an agent has opened.
pub(super) struct OpenStore {
    pub(super) ledger: Ledger,
    pub(super) journal: Journal<FakeDisk>,
    /// What the agent had noted.
    pub(super) start: Start,
}

impl Disk {
    /// Opens the store like the agent of `node` that starts in this boot. `Ok(None)` if it cannot start.
    ///
    /// # Errors
    /// The journal is not what the agent had acknowledged.
    pub(super) fn open(&mut self, node: &str, here: Identity) -> Result<Option<OpenStore>, String> {
        let mut ledger = Ledger::new(COOLDOWN);
        let opened = match Opened::read(self.store.clone(), |change| ledger.apply(change)) {
            Err(error @ StoreError::Damaged { .. }) => return Err(format!("finds its journal damaged: {error}")),
            Err(_) => return Ok(None),
            Ok(opened) => opened.with_chunk(CHUNK),
        };
        let before = opened.position();
        let mut start = Start::new(subject(node), &mut ledger, before, here);
        let failed = self.failed_syncs();
        let Ok(journal) = opened.begin(ledger.snapshot()) else { return Ok(None) };
        if self.failed_syncs() > failed {
            return Err("starts after a sync that failed".to_owned());
        }
        if journal.position().epoch > before.epoch {
            start = start.recorded();
        }
        self.owed.take().map_or(Ok(()), |owed| owed.compare(&ledger))?;
        Ok(Some(OpenStore { ledger, journal, start }))
    }

    /// The addresses in use, by the journal.
    pub(super) fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(COOLDOWN);
        // Of a damaged journal nothing is known.
        let opened = Opened::read(self.store.clone(), |change| ledger.apply(change));
        if opened.is_ok() { ledger } else { Ledger::new(0) }
    }

    /// Sets what the journal must have when the agent starts again: `reservations` are acknowledged. `more` is whether a
    /// request was under way, `is_durable` whether no power cut can take the reservations.
    pub(super) fn owes(&mut self, reservations: Vec<Reservation>, more: bool, is_durable: bool) {
        self.owed = Some(Owed { reservations, more, is_durable });
    }

    /// Whether the disk works, and no sync is to fail.
    pub(super) fn is_well(&self) -> bool {
        self.is == State::Well && !self.fails
    }

    /// Sets the state of the disk.
    pub(super) fn set(&mut self, is: State) {
        self.is = is;
        self.fails &= is != State::Well;
        let files = &self.store;
        files.set_read_only(is == State::ReadOnly);
        files.set_room(None);
        match is {
            // Syncs are counted from 1.
            State::Well => files.fail_sync_at(0),
            State::Full => files.fill(),
            State::ReadOnly => {}
        }
    }

    /// After this many more syncs, one fails.
    pub(super) fn fail_sync(&mut self, after: usize) {
        self.fails = true;
        self.store.fail_sync_at(self.store.syncs() + 1 + after);
    }

    /// Number of syncs that have failed.
    pub(super) fn failed_syncs(&self) -> usize {
        self.store.failed_syncs()
    }

    /// After this many more steps, nothing reaches the disk.
    pub(super) fn cut(&mut self, after: usize) {
        let at = self.store.steps() + after;
        self.store.cut_at(at);
        self.cut_at = Some(at);
    }

    /// Whether nothing reaches it any more.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_at.is_some_and(|at| self.store.steps() >= at)
    }

    /// The process was killed. What it had written is in the memory of the system.
    pub(super) fn is_killed(&mut self) {
        self.cut_at = None;
        self.store.end_cut();
    }

    /// The power was cut. Each part of the unsynced data is kept or lost by chance.
    pub(super) fn lose_power(&mut self, seed: u64) {
        self.cut_at = None;
        self.owed = self.owed.take().filter(|owed| owed.is_durable);
        let mut rng = fastrand::Rng::with_seed(seed);
        self.store = self.store.after_cut(&mut || rng.bool());
        self.set(self.is);
    }

    /// What the agent of `node` has noted in its journal.
    pub(super) fn noted(&self, node: &str) -> Noted {
        self.ledger().note().and_then(|text| subject(node).read(text).ok()).unwrap_or_default()
    }

    /// Whether an earlier state of the store was restored, and no agent has detected it yet.
    pub(super) const fn went_back(&self) -> bool {
        self.went_back.is_some()
    }

    /// Where the journal stood that was put in place, while no agent has detected it yet.
    pub(super) const fn went_back_to(&self) -> Option<Position> {
        self.went_back
    }

    /// Records that an agent has detected it.
    pub(super) const fn is_known_to_have_gone_back(&mut self) {
        self.went_back = None;
    }

    /// Copies the store.
    pub(super) fn copy(&mut self) {
        self.copy = Some((self.store.copied(), self.went_back));
    }

    /// Replaces the store by the copy; deletes it if there is no copy. Not while an agent runs. Returns what happened to
    /// the store; `None` if it is as before.
    pub(super) fn put_back(&mut self) -> Option<Replaced> {
        if self.is == State::ReadOnly {
            return None;
        }
        let before = self.store.bytes("journal");
        let (store, earlier) = self.copy.as_ref().map(|(copy, at)| (copy.copied(), *at)).unwrap_or_default();
        self.store = store;
        self.set(self.is);
        self.owed = None;
        let at = Opened::read(self.store.clone(), |_| {}).map(|opened| opened.position()).unwrap_or_default();
        self.went_back = Some(earlier.map_or(at, |earlier| earlier.min(at)));
        let replaced = if self.copy.is_none() { Replaced::Deleted } else { Replaced::PutBack };
        (self.store.bytes("journal") != before).then_some(replaced)
    }

    /// Whether no agent has left anything on it.
    pub(super) fn is_empty(&self) -> bool {
        !self.store.has("journal")
    }
}

/// What a note of the agent of this node is about.
fn subject(node: &str) -> Subject {
    Subject { node: node.to_owned(), namespace: NAMESPACE.to_owned() }
}

impl Owed {
    fn compare(&self, ledger: &Ledger) -> Result<(), String> {
        let lost = self.reservations.iter().find(|it| ledger.held_by(&it.pool, &it.owner).as_ref() != Some(*it));
        if let Some(lost) = lost {
            return Err(format!("starts without the record of {} of {} for {}", lost.addr, lost.pool, lost.owner));
        }
        let extra = ledger.reservations().find(|it| !self.reservations.contains(it)).filter(|_| !self.more);
        match extra {
            Some(extra) => Err(format!("starts with a record of {} of {} that was freed", extra.addr, extra.pool)),
            None => Ok(()),
        }
    }
}
