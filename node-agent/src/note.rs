//! What the agent knows of its IPAMNode, as it stands in force and in the copy on disk.
//!
//! Decides without disk and clock. From which blocks the agent allocates is for the grants in the journal to say: a spec that
//! comes back after a restore has grants that have ended.

use serde::{Deserialize, Serialize};

use crate::lost::Lost;
use crate::spec::NodeSpec;

/// The spec in force, and what the object reports as in use without a record in the journal.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// The last spec of the API server.
    pub spec: NodeSpec,
    /// What the newest object reports as in use without a record here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Lost>,
}

impl Noted {
    /// `spec`, with nothing known before it.
    pub fn first(spec: NodeSpec) -> Self {
        Self { spec, lost: None }
    }

    /// What is noted once the API server has sent `spec`.
    #[must_use]
    pub fn followed_by(&self, spec: NodeSpec) -> Self {
        // Whoever replaces the object states that no pod uses those addresses any more. Without an object nobody has.
        let stays = |lost: &Lost| spec.generation.is_none() || lost.uid == spec.uid;
        let lost = self.lost.clone().filter(stays);
        Self { spec, lost }
    }

    /// The same where the newest object also reports `lost` as in use without a record here.
    #[must_use]
    pub fn missing(self, lost: Option<Lost>) -> Self {
        let Some(found) = lost else { return self };
        Self { lost: Some(found.and(self.lost)), ..self }
    }

    /// What the newest object reports as in use without a record here.
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
    use super::*;
    use crate::blocks::tests::block;

    fn spec(uid: &str, generation: i64, names: &[&str]) -> NodeSpec {
        let blocks = names.iter().map(|name| block(name, "10.0.0.1", "10.0.0.4", "10.0.0.0/24", "10.0.0.1")).collect();
        NodeSpec { uid: uid.into(), generation: Some(generation), blocks }
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
