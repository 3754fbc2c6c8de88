//! What the agent records in the journal beside the addresses: the spec in force, addresses without a record, and how far the journal
//! had come before it was compared with this node's report.
//!
//! Decides without disk and clock. The grants in the journal decide from which of these blocks the agent allocates: a spec that
//! comes back after a restore has grants that have ended.
//!
//! Each start begins a new epoch of the journal. A start that ends before it has seen this node's report must leave behind from where
//! it came: after enough of them a store that was deleted or restored would pass for one that is ahead of the report. So the position is
//! recorded with the new epoch. It goes once it was compared, together with what follows from that, and before another report
//! is written, for of that one it would be too early.

use ipam_core::ledger::{Change, Ledger};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::identity::Identity;
use crate::lost::{Found, Lost};
use crate::reclaim::Reclaim;
use crate::spec::NodeSpec;
use crate::standing::Standing;
use ipam_node_store::Position;

const VERSION: u32 = 1;

/// The spec in force, and what is known of this node's reports.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// The last spec of the API server. Empty before the first, and if the object does not exist.
    pub spec: NodeSpec,
    /// The store, and the machine and the boot in which it was used last.
    #[serde(default)]
    pub identity: Identity,
    /// What this node's reports have as in use without a record in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Lost>,
    /// How far the journal had come before the first start that has not yet compared it with this node's report; `None` once one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncompared: Option<Position>,
    /// Whether an admin takes the journal for complete: the next comparison finds nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) accepts_loss: bool,
}

/// The object that a note is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subject {
    /// The node.
    pub node: String,
    /// The namespace of its IPAMNode.
    pub namespace: String,
}

#[derive(Serialize, Deserialize)]
struct Recorded {
    version: u32,
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    noted: Noted,
}

impl Subject {
    /// `noted` as the journal records it.
    pub fn text(&self, noted: &Noted) -> String {
        let recorded = Recorded { version: VERSION, subject: self.clone(), noted: noted.clone() };
        // A value of these types always has a text.
        serde_json::to_string(&recorded).unwrap_or_default()
    }

    /// What the journal has recorded last; nothing if it is new.
    ///
    /// # Errors
    /// Why what is recorded cannot be used.
    pub fn read(&self, text: &str) -> Result<Noted, String> {
        let recorded: Recorded = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if recorded.version != VERSION {
            return Err(of_another_version(recorded.version));
        }
        let Subject { node, namespace } = &recorded.subject;
        if *self != recorded.subject {
            return Err(format!("it is about node {node:?} in namespace {namespace:?}"));
        }
        Ok(recorded.noted)
    }
}

/// The note for a journal that a program without an API server opens when it has come to `position`. The agent compares this position with
/// the report later. `None` if there is no note of this version: the journal then counts as older than any report.
pub(crate) fn opened_at(ledger: &Ledger, position: Position) -> Option<Change> {
    let mut recorded = recorded(ledger).ok()?;
    recorded.noted.uncompared.get_or_insert(position);
    Some(recorded.change())
}

/// The note with which the agent takes its journal for complete.
///
/// # Errors
/// There is no note that can be used.
pub(crate) fn accepting_loss(ledger: &Ledger) -> Result<Change, String> {
    let mut recorded = recorded(ledger)?;
    recorded.noted.lost = None;
    recorded.noted.accepts_loss = true;
    Ok(recorded.change())
}

fn recorded(ledger: &Ledger) -> Result<Recorded, String> {
    let text = ledger.note().ok_or("no agent has used this store")?;
    let recorded: Recorded = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if recorded.version == VERSION { Ok(recorded) } else { Err(of_another_version(recorded.version)) }
}

fn of_another_version(version: u32) -> String {
    format!("it is of version {version}, this agent knows {VERSION}")
}

impl Recorded {
    fn change(&self) -> Change {
        Change::Note { text: self.subject.text(&self.noted) }
    }
}

/// The note of a journal, for an agent that starts.
#[derive(Clone, Debug)]
pub struct Start {
    pub(crate) subject: Subject,
    /// What the agent begins with.
    pub(crate) noted: Noted,
    /// What the journal has of it.
    pub(crate) durable: Noted,
    /// Whether the journal has what the ledger notes. Otherwise a compaction writes that, so that it must be recorded again.
    pub(crate) is_recorded: bool,
}

impl Start {
    /// Reads the note of `ledger`, whose journal has come to `position`, and replaces it by one that has the position from which this start,
    /// or an earlier one that could not compare, came. A note that cannot be used may have had addresses without a record. The journal
    /// then counts as older than any report. `here` is this machine and boot, and the ID of the store if it has none.
    pub fn new(subject: Subject, ledger: &mut Ledger, position: Position, here: Identity) -> Self {
        let durable = match ledger.note().map(|text| subject.read(text)) {
            None => Noted::default(),
            Some(Ok(noted)) => noted,
            Some(Err(why)) => {
                warn!(why, "the recorded blocks cannot be used, waiting for the API server");
                let noted = Noted { uncompared: Some(Position::default()), identity: here, ..Noted::default() };
                return Self { subject, durable: Noted::default(), noted, is_recorded: false }.applied(ledger);
            }
        };
        let lost = if here.is_another_boot(&durable.identity) {
            // No pod of the earlier boot runs any more.
            durable.lost.clone().and_then(Lost::of_other_machines)
        } else {
            durable.lost.clone()
        };
        let identity = Identity { store: durable.identity.store.clone().or(here.store), ..here };
        let uncompared = durable.uncompared.or(Some(position));
        let accepts_loss = durable.accepts_loss;
        let noted = Noted { spec: durable.spec.clone(), identity, lost, uncompared, accepts_loss };
        Self { subject, noted, durable, is_recorded: false }.applied(ledger)
    }

    fn applied(self, ledger: &mut Ledger) -> Self {
        ledger.apply(&Change::Note { text: self.subject.text(&self.noted) });
        self
    }

    /// The journal has begun a new epoch with the ledger.
    #[must_use]
    pub fn recorded(self) -> Self {
        Self { durable: self.noted.clone(), is_recorded: true, ..self }
    }

    /// What its notes are about.
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// What the agent begins with.
    pub const fn noted(&self) -> &Noted {
        &self.noted
    }

    /// What the journal has of it.
    pub const fn durable(&self) -> &Noted {
        &self.durable
    }

    /// Whether the journal has what the ledger notes.
    pub const fn is_recorded(&self) -> bool {
        self.is_recorded
    }
}

impl Noted {
    /// `spec`, with nothing known before it.
    pub fn first(spec: NodeSpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// What is noted once the API server has sent `spec`. Addresses without a record stay, whatever object the spec is of: that an
    /// object was deleted or replaced does not mean that no pod uses them.
    #[must_use]
    pub fn followed_by(&self, spec: NodeSpec) -> Self {
        Self { spec, ..self.clone() }
    }

    /// The same without the addresses that an admin has discarded in the object that shows `standing`.
    #[must_use]
    pub fn discarded_by(self, standing: Option<&Standing>) -> Self {
        let is_discarded = |lost: &Lost| standing.is_some_and(|standing| lost.is_discarded_by(standing));
        Self { lost: self.lost.filter(|lost| !is_discarded(lost)), ..self }
    }

    /// The same once the journal was compared with the report of the newest object, which has `lost` as in use without a record
    /// here. An annotation of the same object discards earlier addresses only: call [`Self::discarded_by`] first.
    #[must_use]
    pub fn compared(self, lost: Option<Lost>) -> Self {
        let lost = match lost.filter(|_| !self.accepts_loss) {
            Some(found) => Some(found.and(self.lost)),
            None => self.lost,
        };
        Self { lost, uncompared: None, accepts_loss: false, ..self }
    }

    /// The same once no pod of this node has these addresses. It changes nothing if others were found meanwhile.
    #[must_use]
    pub fn reclaimed(self, reclaim: Reclaim) -> Self {
        let is_of_it = self.lost.as_ref() == Some(&reclaim.lost);
        Self { lost: if is_of_it { reclaim.left } else { self.lost }, ..self }
    }

    /// The journal as it was before it is compared; `None` if it has been. Addresses that pods of another machine may use stay unavailable
    /// for `grace`, in seconds.
    pub fn found(&self, grace: Option<u64>) -> Option<Found> {
        self.uncompared.map(|position| Found { position, identity: self.identity.clone(), grace })
    }

    /// The same after the agent has run for so many seconds more.
    #[must_use]
    pub fn after(self, seconds: u64) -> Self {
        Self { lost: self.lost.and_then(|lost| lost.after(seconds)), ..self }
    }

    /// After how many seconds the next addresses become available by themselves.
    pub fn next_end(&self) -> Option<u64> {
        self.lost.as_ref().and_then(Lost::next_end)
    }

    /// What this node's reports have as in use without a record in the journal.
    pub const fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// Whether a report may take the place of the one that stands, if the journal has `durable` of this: not while that report alone has
    /// addresses without a record, nor while the next start would compare it with what was there before this one.
    pub fn allows_a_report(&self, durable: &Self) -> bool {
        self.lost == durable.lost && durable.uncompared.is_none()
    }

    /// The generation of this object that the copy `durable` has: this one if it has just this spec, or an earlier one. An
    /// equal generation with another spec is from before a restore, and is none of the present object.
    pub fn generation_in(&self, durable: &Self) -> Option<i64> {
        let earlier = |known: &i64| durable.spec.uid == self.spec.uid && Some(*known) < self.spec.generation;
        durable.spec.generation.filter(|known| durable.spec == self.spec || earlier(known))
    }
}

#[cfg(test)]
mod tests {
    use ipam_crds::{BlockUse, IPAMNodeStatus, LedgerPosition};

    use super::*;
    use crate::blocks::tests::block;
    use ipam_node_store::Position;

    fn spec(uid: &str, generation: i64, names: &[&str]) -> NodeSpec {
        let blocks = names.iter().map(|name| block(name, "10.0.0.1", "10.0.0.4", "10.0.0.0/24", "10.0.0.1")).collect();
        NodeSpec { uid: uid.into(), created: 0, generation: Some(generation), blocks, ..NodeSpec::default() }
    }

    /// An object whose report has an address of "x" in use, with this annotation.
    fn standing(resource_version: &str, discard: Option<&str>) -> Standing {
        let report = BlockUse {
            name: "x".into(),
            start_ip: "10.0.0.1".into(),
            end_ip: "10.0.0.4".into(),
            used: 1,
            ..BlockUse::default()
        };
        let ledger = Some(LedgerPosition { epoch: 3, sequence: 5 });
        let status = IPAMNodeStatus { pools: vec![report], ledger, ..IPAMNodeStatus::default() };
        let (resource_version, discard) = (resource_version.into(), discard.map(str::to_owned));
        Standing { resource_version, status, discard, ..Standing::default() }
    }

    #[test]
    fn addresses_without_a_record_stay_until_the_annotation_has_their_version() {
        let lost = Lost::find(&standing("41", None), &found());
        let noted = Noted::first(spec("a", 7, &["x"])).compared(lost.clone());
        assert!(noted.lost().is_some());
        let after = |spec: NodeSpec, standing: Option<&Standing>| noted.followed_by(spec).discarded_by(standing);
        for spec in [spec("a", 8, &[]), spec("b", 1, &["x"]), NodeSpec::default()] {
            assert_eq!(after(spec, None).lost(), lost.as_ref(), "another spec or object is no reason");
        }
        for (value, stays) in [(None, true), (Some("40"), true), (Some("42"), true), (Some("41"), false)] {
            let after = after(noted.spec.clone(), Some(&standing("44", value)));
            assert_eq!((after.lost().is_some(), &after.spec), (stays, &noted.spec), "{value:?}");
        }
    }

    #[test]
    fn an_admin_who_accepts_the_loss_ends_it_and_the_next_comparison_finds_nothing() {
        let lost = Lost::find(&standing("41", None), &found());
        let mut ledger = Ledger::new(0);
        assert!(accepting_loss(&ledger).is_err());
        for noted in [Noted::default(), Noted::default().compared(lost.clone())] {
            ledger.apply(&Change::Note { text: subject().text(&noted) });
            ledger.apply(&accepting_loss(&ledger).unwrap());
            ledger.apply(&opened_at(&ledger, Position { epoch: 4, sequence: 0 }).unwrap());
            let start = Start::new(subject(), &mut ledger, Position { epoch: 5, sequence: 1 }, Identity::default());
            assert_eq!(start.noted().uncompared, Some(Position { epoch: 4, sequence: 0 }));
            assert_eq!(start.noted().lost(), None);
            let compared = start.noted.compared(lost.clone());
            assert_eq!((compared.lost(), compared.accepts_loss), (None, false));
            assert_eq!(compared.compared(lost.clone()).lost(), lost.as_ref(), "the one after it does");
        }
    }

    #[test]
    fn another_boot_has_no_address_of_this_machine_in_use_and_keeps_those_of_another_machine() {
        let boot =
            |boot: &str| Identity { store: Some("s".into()), machine: Some("m".into()), boot: Some(boot.into()) };
        let reported = |machine: &str, store: &str| {
            let mut reported = standing("41", None);
            let status = &mut reported.status;
            (status.store_id, status.system_uuid) = (Some(store.into()), Some(machine.into()));
            status.boot_id = Some("a".into());
            reported
        };
        for (machine, stays) in [("m", false), ("n", true)] {
            let here = Found { identity: boot("a"), grace: Some(60), ..found() };
            let lost = Lost::find(&reported(machine, "t"), &here);
            assert!(lost.is_some(), "{machine}");
            let noted = Noted { identity: boot("a"), ..Noted::default() }.compared(lost.clone());
            let mut ledger = Ledger::new(0);
            ledger.apply(&Change::Note { text: subject().text(&noted) });
            let start = Start::new(subject(), &mut ledger, Position::default(), boot("b"));
            assert_eq!(start.noted().lost(), lost.as_ref().filter(|_| stays), "{machine}");
        }
    }

    #[test]
    fn what_is_found_together_with_the_annotation_stays() {
        let noted = Noted::first(spec("a", 7, &["x"])).compared(Lost::find(&standing("41", None), &found()));
        let shown = standing("50", Some("41"));
        let found = Lost::find(&shown, &found());
        let after = noted.followed_by(noted.spec.clone()).discarded_by(Some(&shown)).compared(found.clone());
        assert_eq!(after.lost(), found.as_ref());
    }

    fn found() -> Found {
        Found { position: Position::default(), identity: Identity::default(), grace: None }
    }

    fn subject() -> Subject {
        Subject { node: "node1".into(), namespace: "pools".into() }
    }

    #[test]
    fn the_first_of_the_starts_that_could_not_compare_counts() {
        let mut ledger = Ledger::new(0);
        let uncompared = |ledger: &mut Ledger, epoch| {
            let start = Start::new(subject(), ledger, Position { epoch, sequence: 1 }, Identity::default());
            assert_eq!(subject().read(ledger.note().unwrap()), Ok(start.noted().clone()), "the journal has it");
            start.noted().uncompared.map(|position| position.epoch)
        };
        for epoch in 3..6 {
            assert_eq!(uncompared(&mut ledger, epoch), Some(3));
        }
        ledger.apply(&Change::Note { text: subject().text(&Noted::default()) });
        assert_eq!(uncompared(&mut ledger, 6), Some(6), "the start before it has compared");
    }

    #[test]
    fn a_note_that_cannot_be_used_counts_as_older_than_any_report() {
        let other = Subject { node: "node2".into(), ..subject() };
        let of_later = subject().text(&Noted::default()).replace("\"version\":1", "\"version\":2");
        for text in ["", "{}", &of_later, &other.text(&Noted::first(spec("a", 7, &["x"])))] {
            assert!(subject().read(text).is_err(), "{text}");
            let mut ledger = Ledger::new(0);
            ledger.apply(&Change::Note { text: text.to_owned() });
            let start = Start::new(subject(), &mut ledger, Position { epoch: 9, sequence: 1 }, Identity::default());
            let unknown = Noted { uncompared: Some(Position::default()), ..Noted::default() };
            assert_eq!((start.noted(), start.durable()), (&unknown, &Noted::default()), "{text}");
            assert_eq!(subject().read(ledger.note().unwrap()), Ok(unknown), "{text}");
        }
    }

    #[test]
    fn a_copy_has_a_generation_of_the_same_object_and_spec_or_an_earlier_one() {
        let noted = |spec: &NodeSpec| Noted::first(spec.clone());
        let now = noted(&spec("a", 7, &["x"]));
        for (durable, known) in [
            (now.clone(), Some(7)),
            (noted(&spec("a", 6, &["x", "y"])), Some(6)),
            (noted(&spec("a", 7, &["x", "y"])), None),
            (noted(&spec("a", 9, &["x"])), None),
            (noted(&spec("b", 6, &["x"])), None),
            (Noted::default(), None),
        ] {
            assert_eq!(now.generation_in(&durable), known, "{durable:?}");
        }
    }
}
