//! The disk of a node: the agent's real journal on a simulated disk, and a model of the files next to it. Both have
//! faults, and restores of earlier states.

use ipam_core::ledger::{Ledger, Reservation};
use ipam_node_agent::note::Noted;
use ipam_node_agent::store::fake::FakeDisk;
use ipam_node_agent::store::{Journal, Opened, Position, StoreError};

use super::action::Disk as State;

/// Zeros that the journal writes ahead: room for some records, so that journals grow and are compacted within a history.
const CHUNK: usize = 512;

/// Seconds in which a freed address is not allocated again, unless a pod requests it by value or index.
pub(super) const COOLDOWN: i64 = 2;

/// What survives a crash.
#[derive(Default, Debug)]
pub(super) struct Disk {
    store: Store,
    /// The copy of the store, if one was made.
    copy: Option<Store>,
    /// The state of the disk.
    is: State,
    /// One of the next syncs fails.
    fails: bool,
    /// The position of a journal that replaced a later one, until its agent has compared it with its report and has saved
    /// the result. (An agent that starts again and again before it receives anything cannot know.)
    went_back: Option<Position>,
    /// What the journal must have at the next start.
    owed: Option<Owed>,
    /// The step at which the disk is cut.
    cut_at: Option<usize>,
}

/// The agent's folder.
#[derive(Default, Debug)]
struct Store {
    /// The files, with the journal.
    files: FakeDisk,
    /// The copy of the spec.
    noted: Option<Noted>,
}

/// What the agent had acknowledged when it ended.
#[derive(Debug)]
struct Owed {
    reservations: Vec<Reservation>,
    /// A request was under way, so that the journal may have one record more.
    more: bool,
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
    /// The position of the journal before.
    pub(super) found: Position,
}

impl Store {
    /// A copy, file by file.
    fn copied(&self) -> Self {
        Self { files: self.files.copied(), noted: self.noted.clone() }
    }
}

impl Disk {
    /// Opens the store like an agent that starts. `Ok(None)` if it cannot start.
    ///
    /// # Errors
    /// The journal is not what the agent had acknowledged.
    pub(super) fn open(&mut self) -> Result<Option<OpenStore>, String> {
        let opened = match Opened::read(self.store.files.clone()) {
            Err(error @ StoreError::Damaged { .. }) => return Err(format!("finds its journal damaged: {error}")),
            Err(_) => return Ok(None),
            Ok(opened) => opened.with_chunk(CHUNK),
        };
        let found = self.went_back.unwrap_or(opened.position());
        let (ledger, opened) = replayed(opened);
        let failed = self.failed_syncs();
        let Ok(journal) = opened.begin(&ledger.snapshot()) else { return Ok(None) };
        if self.failed_syncs() > failed {
            return Err("starts after a sync that failed".to_owned());
        }
        self.owed.take().map_or(Ok(()), |owed| owed.compare(&ledger))?;
        Ok(Some(OpenStore { ledger, journal, found }))
    }

    /// The addresses in use, by the journal.
    pub(super) fn ledger(&self) -> Ledger {
        Opened::read(self.store.files.clone()).map_or_else(|_| Ledger::new(0), |opened| replayed(opened).0)
    }

    /// Sets what the journal must have when the agent starts again: `reservations` are acknowledged. `more` is whether a
    /// request was under way.
    pub(super) fn owes(&mut self, reservations: Vec<Reservation>, more: bool) {
        self.owed = Some(Owed { reservations, more });
    }

    /// Whether the disk works, and no sync is to fail.
    pub(super) fn is_well(&self) -> bool {
        self.is == State::Well && !self.fails
    }

    /// Sets the state of the disk.
    pub(super) fn set(&mut self, is: State) {
        self.is = is;
        self.fails &= is != State::Well;
        let files = &self.store.files;
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
        self.store.files.fail_sync_at(self.store.files.syncs() + 1 + after);
    }

    /// Number of syncs that have failed.
    pub(super) fn failed_syncs(&self) -> usize {
        self.store.files.failed_syncs()
    }

    /// After this many more steps, nothing reaches the disk.
    pub(super) fn cut(&mut self, after: usize) {
        let at = self.store.files.steps() + after;
        self.store.files.cut_at(at);
        self.cut_at = Some(at);
    }

    /// Whether nothing reaches it any more.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_at.is_some_and(|at| self.store.files.steps() >= at)
    }

    /// The process was killed. What it had written is in the memory of the system.
    pub(super) fn is_killed(&mut self) {
        self.cut_at = None;
        self.store.files.end_cut();
    }

    /// The power was cut. Each part of the unsynced data is kept or lost by chance.
    pub(super) fn lose_power(&mut self, seed: u64) {
        self.cut_at = None;
        let mut rng = fastrand::Rng::with_seed(seed);
        self.store.files = self.store.files.after_cut(&mut || rng.bool());
        self.set(self.is);
    }

    /// The copy of the spec.
    pub(super) fn noted(&self) -> Option<&Noted> {
        self.store.noted.as_ref()
    }

    /// Whether an earlier state of the store was restored, and no agent has detected it yet.
    pub(super) fn went_back(&self) -> bool {
        self.went_back.is_some()
    }

    /// Records that an agent has detected it.
    pub(super) fn is_known_to_have_gone_back(&mut self) {
        self.went_back = None;
    }

    /// Copies the store.
    pub(super) fn copy(&mut self) {
        self.copy = Some(self.store.copied());
    }

    /// Replaces the store by the copy; deletes it if there is no copy. Not while an agent runs. Returns what happened to
    /// the store; `None` if it is as before.
    pub(super) fn put_back(&mut self) -> Option<Replaced> {
        if self.is == State::ReadOnly {
            return None;
        }
        let before = self.contents();
        self.store = self.copy.as_ref().map(Store::copied).unwrap_or_default();
        self.set(self.is);
        self.owed = None;
        let position = Opened::read(self.store.files.clone()).map_or_else(|_| Position::default(), |it| it.position());
        self.went_back = Some(position);
        let replaced = if self.copy.is_none() { Replaced::Deleted } else { Replaced::PutBack };
        let had_any = before.1.is_some() || self.noted().is_some();
        (had_any && self.contents() != before).then_some(replaced)
    }

    /// The journal's bytes and the copy of the spec.
    fn contents(&self) -> (Vec<u8>, Option<Noted>) {
        (self.store.files.bytes("journal"), self.store.noted.clone())
    }

    /// Whether an agent has left anything on it.
    pub(super) fn is_empty(&self) -> bool {
        self.store.noted.is_none() && !self.store.files.has("journal")
    }

    /// Saves the spec like the agent's file. Returns whether that worked.
    pub(super) fn save(&mut self, noted: &Noted) -> bool {
        let works = self.is == State::Well;
        if works {
            self.store.noted = Some(noted.clone());
        }
        works
    }
}

impl Owed {
    fn compare(&self, ledger: &Ledger) -> Result<(), String> {
        let lost = self.reservations.iter().find(|it| ledger.held_by(&it.pool, &it.owner) != Some(*it));
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

/// The ledger of a journal, as an agent reads it at its start.
fn replayed(mut opened: Opened<FakeDisk>) -> (Ledger, Opened<FakeDisk>) {
    let mut ledger = Ledger::new(COOLDOWN);
    opened.take_changes().iter().for_each(|change| ledger.apply(change));
    (ledger, opened)
}
