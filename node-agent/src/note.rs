//! What the agent notes of its blocks before it gives from them, and which of them a new spec lets it give from.
//!
//! Decides without disk and clock. A block that the latest IPAMNode does not have is never given from, whatever was noted
//! before. A block that comes back only because the object went back to an earlier state (the API server was restored from
//! a backup) is not given from either: the agent may have said meanwhile that it holds nothing of it, and another node may
//! have it. Generations are compared within one uid; of objects that have replaced each other, the uids are remembered.

use ipam_crds::{BlockState, NodeBlock, PoolType};
use serde::{Deserialize, Serialize};

use crate::lost::Lost;
use crate::spec::NodeSpec;

/// Objects remembered as replaced. One comes with each deletion of the IPAMNode, which is rare.
const REMEMBERED: usize = 32;

/// The spec in force, and how it compares with what was seen before.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Noted {
    /// What the API server said last.
    pub spec: NodeSpec,
    /// The newest state seen of the newest object.
    #[serde(default)]
    newest: Option<Mark>,
    /// uids of the objects that this one has replaced, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<String>,
    /// Pools whose blocks have come back with an earlier state alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    withheld: Vec<(PoolType, String)>,
    /// What the newest object tells as held without a record here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Lost>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    uid: String,
    generation: i64,
}

impl Noted {
    /// `spec`, with nothing seen before it.
    pub fn first(spec: NodeSpec) -> Self {
        Self::default().followed_by(spec)
    }

    /// The same with `newest`, which earlier agents did not write.
    pub(crate) fn completed(self) -> Self {
        if self.newest.is_some() { self } else { Self::first(self.spec) }
    }

    /// What is noted once the API server has told `told`.
    #[must_use]
    pub fn followed_by(&self, told: NodeSpec) -> Self {
        if told == self.spec {
            return self.clone();
        }
        let Some(generation) = told.generation else {
            // No object: no blocks. What was seen is remembered, for it may come back as it was long ago.
            return Self { spec: told, withheld: Vec::new(), ..self.clone() };
        };
        if self.is_behind(&told.uid, generation) {
            let returned =
                told.blocks.iter().filter(|block| block.state == BlockState::Active && !self.lets_give(block));
            let withheld = returned.map(pool).collect();
            return Self { spec: told, withheld, ..self.clone() };
        }
        let mut replaced = self.replaced.clone();
        replaced.extend(self.newest.iter().filter(|newest| newest.uid != told.uid).map(|newest| newest.uid.clone()));
        replaced.drain(..replaced.len().saturating_sub(REMEMBERED));
        // Whoever has the object replaced says that nobody holds those any more.
        let lost = self.lost.clone().filter(|lost| lost.uid == told.uid);
        Self {
            newest: Some(Mark { uid: told.uid.clone(), generation }),
            replaced,
            withheld: Vec::new(),
            lost,
            spec: told,
        }
    }

    /// The same where the newest object tells also `lost` as held without a record here.
    #[must_use]
    pub fn missing(self, lost: Option<Lost>) -> Self {
        let Some(found) = lost else { return self };
        Self { lost: Some(found.and(self.lost)), ..self }
    }

    /// What the newest object tells as held without a record here.
    pub const fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// Whether the API server has gone back to an earlier state since.
    fn is_behind(&self, uid: &str, generation: i64) -> bool {
        match &self.newest {
            Some(newest) if newest.uid == uid => generation <= newest.generation,
            _ => self.replaced.iter().any(|replaced| replaced == uid),
        }
    }

    /// The generation of this object that `durable` knows: this one, if it has just this spec, or an earlier one. One as high
    /// with another spec is of a time that the API server has gone back behind, and says nothing of the object of today.
    pub fn generation_in(&self, durable: &Self) -> Option<i64> {
        let earlier = |known: &i64| durable.spec.uid == self.spec.uid && Some(*known) < self.spec.generation;
        durable.spec.generation.filter(|known| durable.spec == self.spec || earlier(known))
    }

    /// Whether new addresses may be given from just this block.
    pub fn lets_give(&self, block: &NodeBlock) -> bool {
        !self.withholds(block) && self.spec.blocks.iter().any(|known| same_block(known, block))
    }

    /// Whether the block has come back with an earlier state alone.
    pub fn withholds(&self, block: &NodeBlock) -> bool {
        self.withheld.contains(&pool(block))
    }
}

fn pool(block: &NodeBlock) -> (PoolType, String) {
    (block.pool_type, block.name.clone())
}

/// Whether both give the same addresses; routes, exclusions and gateway may differ.
fn same_block(a: &NodeBlock, b: &NodeBlock) -> bool {
    let place = |block: &NodeBlock| (pool(block), block.state, block.start_ip.clone(), block.end_ip.clone());
    place(a) == place(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::tests::block;

    fn spec(uid: &str, generation: i64, names: &[&str]) -> NodeSpec {
        let blocks = names.iter().map(|name| block(name, "10.0.0.1", "10.0.0.4", "10.0.0.0/24", "10.0.0.1")).collect();
        NodeSpec { uid: uid.into(), generation: Some(generation), blocks }
    }

    /// The pools that may be given from after these specs, in order.
    fn given(told: &[NodeSpec]) -> Vec<String> {
        let noted = told.iter().fold(Noted::default(), |noted, spec| noted.followed_by(spec.clone()));
        let blocks = noted.spec.blocks.iter().filter(|block| noted.lets_give(block));
        blocks.map(|block| block.name.clone()).collect()
    }

    #[test]
    fn what_the_latest_object_has_is_given_and_nothing_else() {
        assert_eq!(given(&[spec("a", 1, &["x"]), spec("a", 2, &["x", "y"])]), ["x", "y"]);
        assert_eq!(given(&[spec("a", 1, &["x", "y"]), spec("a", 2, &["y"])]), ["y"]);
        assert_eq!(given(&[spec("a", 1, &["x"]), NodeSpec::default()]), [""; 0]);
    }

    #[test]
    fn a_lower_generation_of_the_same_object_gives_only_what_was_given_all_along() {
        let (early, late) = (spec("a", 5, &["x", "y"]), spec("a", 7, &["y"]));
        assert_eq!(given(&[late.clone(), early.clone()]), ["y"]);
        assert_eq!(given(&[late.clone(), early.clone(), spec("a", 6, &["x", "y"])]), ["y"], "still behind");
        assert_eq!(given(&[late.clone(), early.clone(), spec("a", 7, &["x", "y"])]), ["y"], "another seventh state");
        assert_eq!(given(&[late.clone(), early.clone(), spec("a", 8, &["x", "y"])]), ["x", "y"]);
        assert_eq!(given(&[late, early, NodeSpec::default(), spec("b", 1, &["x", "y"])]), ["x", "y"]);
    }

    #[test]
    fn generations_are_compared_within_one_object_only() {
        assert_eq!(given(&[spec("a", 7, &["x"]), spec("b", 1, &["x", "y"])]), ["x", "y"]);
    }

    #[test]
    fn an_object_that_was_replaced_does_not_bring_its_blocks_back() {
        let (old, new) = (spec("a", 9, &["x"]), spec("b", 1, &["y"]));
        assert_eq!(given(&[old.clone(), new.clone(), old.clone()]), [""; 0]);
        assert_eq!(given(&[old.clone(), new, NodeSpec::default(), old.clone(), spec("a", 10, &["x"])]), [""; 0]);
        assert_eq!(given(&[old.clone(), NodeSpec::default(), old]), [""; 0], "deleted, then restored");
    }

    #[test]
    fn a_block_that_moved_or_was_being_released_is_not_given_again_by_an_earlier_state() {
        let moved = NodeBlock { end_ip: "10.0.0.8".into(), ..spec("a", 1, &["x"]).blocks.remove(0) };
        let late = NodeSpec { blocks: vec![moved], ..spec("a", 7, &[]) };
        assert_eq!(given(&[late, spec("a", 5, &["x"])]), [""; 0]);
        let mut releasing = spec("a", 7, &["x"]);
        releasing.blocks[0].state = BlockState::Releasing;
        assert_eq!(given(&[releasing.clone(), spec("a", 5, &["x"])]), [""; 0]);
        assert_eq!(given(&[releasing, spec("a", 8, &["x"])]), ["x"], "the node came back");
    }

    #[test]
    fn what_is_seen_survives_the_disk() {
        let noted = Noted::first(spec("a", 7, &[])).followed_by(spec("a", 5, &["x"]));
        let read: Noted = serde_json::from_str(&serde_json::to_string(&noted).unwrap()).unwrap();
        assert_eq!(read, noted);
        assert!(!read.followed_by(spec("a", 6, &["x"])).lets_give(&spec("a", 6, &["x"]).blocks[0]));
    }

    #[test]
    fn a_generation_is_known_to_the_disk_only_if_it_is_of_the_same_object_and_spec_or_earlier() {
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

    #[test]
    fn memory_of_replaced_objects_is_bounded() {
        let many = (0..100).map(|number| spec(&number.to_string(), 1, &[]));
        let noted = many.fold(Noted::default(), |noted, spec| noted.followed_by(spec));
        assert_eq!(noted.replaced.len(), REMEMBERED);
    }
}
