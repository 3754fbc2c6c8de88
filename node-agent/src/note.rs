//! What the agent knows of its IPAMNode: what is in force, and what the copy on disk has.
//!
//! Decides without disk and clock. The grants in the journal decide from which of these blocks the agent allocates: a spec that
//! comes back after a restore has grants that have ended.

use serde::{Deserialize, Serialize};

use crate::lost::Lost;
use crate::spec::NodeSpec;
use crate::standing::Standing;

/// The spec in force, and what this node's reports have as in use without a record in the journal.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// The last spec of the API server.
    pub spec: NodeSpec,
    /// What this node's reports have as in use without a record in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Lost>,
}

impl Noted {
    /// `spec`, with nothing known before it.
    pub fn first(spec: NodeSpec) -> Self {
        Self { spec, lost: None }
    }

    /// What is noted once the API server has sent `spec`. Addresses without a record stay, whatever object the spec is of: that an
    /// object was deleted or replaced does not mean that no pod uses them.
    #[must_use]
    pub fn followed_by(&self, spec: NodeSpec) -> Self {
        Self { spec, lost: self.lost.clone() }
    }

    /// The same without the addresses that an admin has discarded in the object that shows `standing`.
    #[must_use]
    pub fn discarded_by(self, standing: Option<&Standing>) -> Self {
        let is_discarded = |lost: &Lost| standing.is_some_and(|standing| lost.is_discarded_by(standing));
        Self { lost: self.lost.filter(|lost| !is_discarded(lost)), ..self }
    }

    /// The same where the newest object also reports `lost` as in use without a record here. An annotation of the same object
    /// discards earlier addresses only: call [`Self::discarded_by`] first.
    #[must_use]
    pub fn missing(self, lost: Option<Lost>) -> Self {
        let Some(found) = lost else { return self };
        Self { lost: Some(found.and(self.lost)), ..self }
    }

    /// What this node's reports have as in use without a record in the journal.
    pub const fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
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
    use crate::store::Position;

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
        let lost = Lost::find(&standing("41", None), Position::default());
        let noted = Noted::first(spec("a", 7, &["x"])).missing(lost.clone());
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
    fn what_is_found_together_with_the_annotation_stays() {
        let noted = Noted::first(spec("a", 7, &["x"])).missing(Lost::find(&standing("41", None), Position::default()));
        let shown = standing("50", Some("41"));
        let found = Lost::find(&shown, Position::default());
        let after = noted.followed_by(noted.spec.clone()).discarded_by(Some(&shown)).missing(found.clone());
        assert_eq!(after.lost(), found.as_ref());
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
