//! The node's blocks as last seen, and the copy on disk: it serves a restart with the API server away, and without it no
//! address is given from a block that is new.

use std::path::{Path, PathBuf};
use std::{fs, io};

use ipam_crds::{IPAMNode, NodeBlock};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::note::Noted;

/// What the operator says about this node.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// `metadata.uid`; empty when the object does not exist.
    pub uid: String,
    /// `metadata.generation`; `None` when the object does not exist.
    pub generation: Option<i64>,
    /// `spec.pools`.
    pub blocks: Vec<NodeBlock>,
}

impl From<&IPAMNode> for NodeSpec {
    fn from(object: &IPAMNode) -> Self {
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            generation: object.metadata.generation,
            blocks: object.spec.pools.clone(),
        }
    }
}

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    node: String,
    namespace: String,
    #[serde(flatten)]
    noted: Noted,
}

/// The copy on disk.
#[derive(Clone, Debug)]
pub struct SpecFile {
    path: PathBuf,
    node: String,
    namespace: String,
}

impl SpecFile {
    /// The file `spec.json` in the store's directory, for this node's object in this namespace.
    pub fn new(directory: &Path, node: &str, namespace: &str) -> Self {
        Self { path: directory.join("spec.json"), node: node.to_owned(), namespace: namespace.to_owned() }
    }

    /// The path, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was saved last; `None` if nothing was. An error says why what is there cannot be used.
    pub fn load(&self) -> Result<Option<Noted>, String> {
        self.read(&self.path)
    }

    /// What a copy had seen that was taken away, as long as no other was saved since: all but its blocks, and what is held
    /// without a record.
    pub fn load_seen(&self) -> Result<Option<Noted>, String> {
        Ok(self.read(&self.seen())?.map(|saved| saved.followed_by(NodeSpec::default())))
    }

    /// The file `seen.json` beside the copy.
    fn seen(&self) -> PathBuf {
        self.path.with_file_name("seen.json")
    }

    fn read(&self, path: &Path) -> Result<Option<Noted>, String> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let saved: Saved = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if saved.version != VERSION {
            return Err(format!("it is of version {}, this agent knows {VERSION}", saved.version));
        }
        if (&saved.node, &saved.namespace) != (&self.node, &self.namespace) {
            return Err(format!("it is about node {:?} in namespace {:?}", saved.node, saved.namespace));
        }
        Ok(Some(saved.noted.completed()))
    }

    /// Replaces what was saved. On an error the copy on disk is the earlier one, or none: a copy with a block that `noted`
    /// no longer has, or has otherwise, or withholds, is taken away, for by the next start that block may be another node's.
    /// What it had seen stays in another file. The error says so if that fails, too: then the next start may go by the earlier
    /// copy.
    pub fn save(&self, noted: &Noted) -> io::Result<()> {
        let saved = self.replace(noted).map_err(|error| {
            let taken_away = match self.load() {
                Ok(None) => return error,
                Ok(Some(saved)) if may_stay(&saved, noted) => return error,
                Ok(Some(_)) => files::rename(&self.path, &self.seen()),
                Err(_) => files::remove(&self.path),
            };
            match taken_away {
                Ok(()) => error,
                Err(why) => {
                    let text = format!("{error}; nor can the earlier copy be removed, which is true no longer: {why}");
                    io::Error::new(error.kind(), text)
                }
            }
        });
        if saved.is_ok() && self.seen().exists() {
            // It is read only where there is no copy.
            drop(files::remove(&self.seen()));
        }
        saved
    }

    fn replace(&self, noted: &Noted) -> io::Result<()> {
        let Self { node, namespace, .. } = self.clone();
        let saved = Saved { version: VERSION, node, namespace, noted: noted.clone() };
        let text = serde_json::to_vec(&saved).map_err(io::Error::other)?;
        files::replace(&self.path, &text, 0o600)
    }
}

/// Whether an earlier copy may stay on disk where `noted` could not be saved. One with a block that `noted` no longer has, or
/// has otherwise, or withholds, may not, for by the next start that block may be another node's.
pub fn may_stay(saved: &Noted, noted: &Noted) -> bool {
    let has = |block: &NodeBlock| noted.spec.blocks.contains(block);
    saved.spec.blocks.iter().all(|block| has(block) && (saved.withholds(block) || !noted.withholds(block)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(generation: i64, names: &[&str]) -> Noted {
        let block = |name: &&str| crate::blocks::tests::block(name, "10.0.0.1", "10.0.0.4", "10.0.0.0/24", "10.0.0.1");
        let blocks = names.iter().map(block).collect();
        Noted::first(NodeSpec { uid: "u1".into(), generation: Some(generation), blocks })
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = SpecFile::new(directory.path(), "node1", "kube-system");
        assert_eq!(file.load(), Ok(None));
        file.save(&noted(3, &["blue"])).unwrap();
        assert_eq!(file.load(), Ok(Some(noted(3, &["blue"]))));
    }

    #[test]
    fn a_copy_of_an_earlier_agent_is_read_as_what_it_had_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = SpecFile::new(directory.path(), "node1", "kube-system");
        let blocks = serde_json::to_value(&noted(3, &["blue"]).spec).unwrap();
        let text = serde_json::json!({"version": 1, "node": "node1", "namespace": "kube-system", "spec": blocks});
        fs::write(file.path(), text.to_string()).unwrap();
        assert_eq!(file.load(), Ok(Some(noted(3, &["blue"]))));
    }

    /// Where the temporary file of a replacement would go stands a directory, so that nothing can be saved.
    fn unwritable(directory: &Path) -> SpecFile {
        let file = SpecFile::new(directory, "node1", "kube-system");
        file.save(&noted(3, &["blue"])).unwrap();
        fs::create_dir(directory.join(".spec.json.new")).unwrap();
        file
    }

    #[test]
    fn a_copy_that_cannot_be_replaced_is_kept_only_while_all_that_it_says_is_true() {
        let directory = tempfile::tempdir().unwrap();
        let file = unwritable(directory.path());
        file.save(&noted(4, &["blue", "red"])).unwrap_err();
        assert_eq!(file.load(), Ok(Some(noted(3, &["blue"]))), "what it says of the first block still holds");
        file.save(&noted(5, &[])).unwrap_err();
        assert_eq!(file.load(), Ok(None), "the node no longer has the block");
    }

    #[test]
    fn of_a_copy_that_is_taken_away_all_but_its_blocks_stays_until_another_is_saved() {
        let directory = tempfile::tempdir().unwrap();
        let file = unwritable(directory.path());
        assert_eq!(file.load_seen(), Ok(None));
        file.save(&noted(5, &[])).unwrap_err();
        file.save(&noted(6, &[])).unwrap_err();
        let seen = file.load_seen().unwrap().unwrap();
        assert_eq!(seen.spec, NodeSpec::default());
        // An object that goes back behind it does not bring the block back.
        let back = noted(3, &["blue"]).spec;
        assert!(!seen.followed_by(back.clone()).lets_give(&back.blocks[0]));
        fs::remove_dir(directory.path().join(".spec.json.new")).unwrap();
        file.save(&noted(7, &[])).unwrap();
        assert_eq!(file.load_seen(), Ok(None));
    }

    #[test]
    fn a_copy_that_can_be_neither_replaced_nor_removed_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = unwritable(directory.path());
        // A directory is not removed as a file is, whoever asks.
        fs::remove_file(file.path()).unwrap();
        fs::create_dir(file.path()).unwrap();
        let error = file.save(&noted(5, &[])).unwrap_err().to_string();
        assert!(error.contains("nor can the earlier copy be removed"), "{error}");
    }

    #[test]
    fn a_copy_that_gives_a_block_which_has_come_back_by_a_restore_alone_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = unwritable(directory.path());
        let NodeSpec { uid, blocks, .. } = noted(3, &["blue"]).spec;
        let without = NodeSpec { uid: uid.clone(), generation: Some(4), blocks: Vec::new() };
        let back = noted(3, &["blue"]).followed_by(without).followed_by(NodeSpec { uid, generation: Some(3), blocks });
        assert!(back.withholds(&back.spec.blocks[0]));
        file.save(&back).unwrap_err();
        assert_eq!(file.load(), Ok(None));
    }

    #[test]
    fn a_copy_of_another_node_or_an_unreadable_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        SpecFile::new(directory.path(), "node1", "kube-system").save(&noted(3, &["blue"])).unwrap();
        let other = SpecFile::new(directory.path(), "node2", "kube-system");
        assert!(other.load().unwrap_err().contains("node1"));
        for text in ["", "{", "[]", "{\"version\":1}", "\u{0}\u{1}"] {
            fs::write(other.path(), text).unwrap();
            assert!(other.load().is_err(), "{text:?}");
        }
    }
}
