//! The agent's process on one node: what it has heard, what it goes by, and what it reports, all decided by the real code. As
//! its own loop (`node-agent/src/watch.rs`, `status.rs`) has it, with the disk and the time in the simulator's hand.

use std::cell::Cell;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::Ledger;
use ipam_core::node_pool::Pause;
use ipam_crds::{HELD_RUNS, IPAMNode, LedgerPosition, NodeBlock};
use ipam_node_agent::allocator::Holdings;
use ipam_node_agent::blocks::usable;
use ipam_node_agent::lost::Lost;
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::status::{Pace, Report};
use ipam_node_agent::store::Position;
use ipam_node_agent::watch::{FIRST_WORD, InForce, Standing};
use serde::Deserialize as _;

use super::disk::Disk;
use super::object::Object;
use super::replica::Clock;
use super::server::Change;
use super::watch::{Told, Watch};

/// A running agent.
pub(super) struct Process {
    pub(super) ledger: Ledger,
    pub(super) in_force: Option<InForce>,
    pub(super) noted: Noted,
    /// What was on disk when a save last succeeded.
    pub(super) durable: Noted,
    pub(super) watch: Watch,
    pub(super) pace: Pace,
    standing: Option<Standing>,
    listed: Option<IPAMNode>,
    /// Until when nothing new is given from the copy on disk for want of a first word; `None` once that was heard or missed.
    starting: Option<Duration>,
    /// How far the journal had come before this start; `None` once it was compared with the report that the server has.
    found: Option<Position>,
    /// When the next report is due, once somebody has asked: to find out takes the whole report.
    due: Cell<Due>,
}

/// When a report is due, as far as that was found out.
#[derive(Clone, Copy)]
enum Due {
    Unasked,
    Never,
    At(tokio::time::Instant),
}

/// What a word of the watch makes known.
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// The object, or that there is none.
    Object,
    /// The object, for the first time since the start: what it reports was compared with the journal. With it the report, if
    /// that is of a later time than the journal.
    FirstReport(Option<Standing>),
}

impl Process {
    /// One that starts with what is on `disk`; `None` if it cannot.
    pub(super) fn start(node: &str, disk: &mut Disk, clock: Clock) -> Option<Self> {
        let (ledger, found) = disk.open()?;
        let mut process = Self {
            ledger,
            in_force: None,
            noted: Noted::default(),
            durable: Noted::default(),
            watch: Watch::new("ipamnodes", Some(node.to_owned())),
            pace: Pace::new(clock.instant().into()),
            standing: None,
            listed: None,
            starting: None,
            found: Some(found),
            due: Cell::new(Due::Unasked),
        };
        if let Some(noted) = disk.noted() {
            (process.noted, process.durable) = (noted.clone(), noted.clone());
            // Whoever puts a store back sees to it that the server can be heard.
            process.starting = Some(if disk.went_back() { Duration::MAX } else { clock.elapsed + FIRST_WORD });
            process.put();
        }
        Some(process)
    }

    /// The pools in force, Active or not: the agent is to refuse by itself.
    pub(super) fn block(&self, pick: usize) -> Option<&NodeBlock> {
        let blocks = &self.in_force.as_ref()?.spec.blocks;
        blocks.get(pick.checked_rem(blocks.len())?)
    }

    /// uid and generation of the IPAMNode that the agent goes by.
    pub(super) fn told(&self) -> Option<(String, i64)> {
        let spec = &self.in_force.as_ref()?.spec;
        Some((spec.uid.clone(), spec.generation?))
    }

    /// Whether the journal was compared with the report that the server had.
    pub(super) const fn has_compared(&self) -> bool {
        self.found.is_none()
    }

    /// Something has changed that a report may tell.
    pub(super) fn has_news(&self) {
        self.due.set(Due::Unasked);
    }

    /// When the next report is due; `at` is how far the journal has come.
    pub(super) fn due(&self, at: Position, clock: Clock) -> Option<Duration> {
        if matches!(self.due.get(), Due::Unasked) {
            let due = self.report(at).and_then(|report| self.pace.due(&report));
            self.due.set(due.map_or(Due::Never, Due::At));
        }
        match self.due.get() {
            Due::At(due) => Some(due.into_std().saturating_duration_since(clock.start)),
            Due::Unasked | Due::Never => None,
        }
    }

    /// After too long without a first word it goes by the copy on disk.
    pub(super) fn goes_on(&mut self, clock: Clock) {
        if self.starting.take_if(|until| *until <= clock.elapsed).is_some() {
            self.put();
        }
    }

    /// Takes in what the watch tells.
    pub(super) fn hear(&mut self, told: Told, disk: &mut Disk) -> Heard {
        self.has_news();
        let object = match self.observe(told) {
            Known::NotYet => return Heard::Nothing,
            Known::Absent => None,
            Known::Object(object) => Some(*object),
        };
        self.see(object.as_ref());
        let spec = object.as_ref().map(NodeSpec::from).unwrap_or_default();
        let first = self.found.take_if(|_| self.standing.is_some()).zip(self.standing.clone());
        let lost = first.as_ref().and_then(|(found, standing)| Lost::find(standing, *found));
        let confirmed = self.starting.take().is_some();
        if self.in_force.is_none() || self.noted.spec != spec || lost.is_some() {
            self.noted = self.noted.followed_by(spec).missing(lost);
            self.save(disk);
            self.put();
        } else if confirmed {
            self.put();
        } else {
            let standing = self.to_report_to();
            self.in_force.iter_mut().for_each(|in_force| in_force.standing.clone_from(&standing));
        }
        first.map_or(Heard::Object, |(found, standing)| {
            Heard::FirstReport(Some(standing).filter(|standing| is_later(standing, found)))
        })
    }

    /// The disk may be well again: what could not be saved is.
    pub(super) fn save_again(&mut self, disk: &mut Disk) {
        if self.durable != self.noted && self.save(disk) {
            self.has_news();
            self.put();
        }
    }

    /// What it would report now.
    pub(super) fn report(&self, at: Position) -> Option<Report> {
        let in_force = self.in_force.as_ref()?;
        in_force.standing.as_ref()?;
        Report::new(in_force, &Holdings { pools: self.ledger.holdings(HELD_RUNS), position: at })
    }

    /// What the watch says the object is now, or that there is none, once that is known. As the agent's own watch has it.
    fn observe(&mut self, told: Told) -> Known {
        match told {
            Told::Init => {
                self.listed = None;
                Known::NotYet
            }
            Told::Listed(object) => {
                self.listed = read(&object);
                Known::NotYet
            }
            Told::Done => self.listed.take().map_or(Known::Absent, |object| Known::Object(Box::new(object))),
            Told::Changed(Change::Applied, object) => {
                read(&object).map_or(Known::NotYet, |object| Known::Object(Box::new(object)))
            }
            Told::Changed(Change::Deleted, _) => Known::Absent,
        }
    }

    /// Takes note of the report that the server shows.
    fn see(&mut self, object: Option<&IPAMNode>) {
        let standing = object.map(|object| Standing {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
        });
        if let Some(standing) = standing.as_ref().filter(|standing| self.standing.as_ref() != Some(standing)) {
            self.pace.shown(Report::read(standing));
        }
        self.standing = standing;
    }

    /// Saves what is noted. Whether that worked.
    fn save(&mut self, disk: &mut Disk) -> bool {
        let saved = disk.save(&self.noted);
        if saved {
            self.durable.clone_from(&self.noted);
        }
        saved
    }

    fn put(&mut self) {
        let silence = self.starting.map(|_| Pause::Starting);
        let (pools, problems) = usable(&self.noted, &self.durable, silence);
        self.ledger.configure(pools);
        let spec = self.noted.spec.clone();
        let (saved, lost) = (self.noted.generation_in(&self.durable), self.noted.lost().cloned());
        self.in_force = Some(InForce { spec, saved, problems, lost, standing: self.to_report_to() });
    }

    /// The report that another may take the place of: not while it alone tells what is held without a record.
    fn to_report_to(&self) -> Option<Standing> {
        self.standing.clone().filter(|_| self.noted.lost() == self.durable.lost())
    }
}

/// What a watch has said of the one object so far.
enum Known {
    NotYet,
    Absent,
    Object(Box<IPAMNode>),
}

/// Whether the report is of a later time than that of a journal which had come so far.
fn is_later(report: &Standing, found: Position) -> bool {
    let position =
        |ledger: LedgerPosition| Some((u64::try_from(ledger.epoch).ok()?, u64::try_from(ledger.sequence).ok()?));
    report.status.ledger.and_then(position).is_some_and(|at| at > (found.epoch, found.sequence))
}

fn read(object: &Object) -> Option<IPAMNode> {
    IPAMNode::deserialize(&**object).ok()
}

/// The pool that an entry is of.
pub(super) fn pool_of(block: &NodeBlock) -> PoolKey {
    PoolKey::new(block.pool_type.into(), block.name.clone())
}
