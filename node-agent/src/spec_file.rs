//! The copy on disk of the last spec of the node's IPAMNode, for a restart while the API server is away.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::note::Noted;

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
        let text = match fs::read(&self.path) {
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
        Ok(Some(saved.noted))
    }

    /// Replaces the copy. On an error the copy on disk is the earlier one. The next start may then use it: its grants that have
    /// ended since allocate nothing.
    pub fn save(&self, noted: &Noted) -> io::Result<()> {
        let Self { node, namespace, .. } = self.clone();
        let saved = Saved { version: VERSION, node, namespace, noted: noted.clone() };
        let text = serde_json::to_vec(&saved).map_err(io::Error::other)?;
        files::replace(&self.path, &text, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::NodeSpec;

    fn noted(generation: i64, names: &[&str]) -> Noted {
        let block = |name: &&str| crate::blocks::tests::block(name, "10.0.0.1", "10.0.0.4", "10.0.0.0/24", "10.0.0.1");
        let blocks = names.iter().map(block).collect();
        Noted::first(NodeSpec {
            uid: "u1".into(),
            created: 0,
            generation: Some(generation),
            blocks,
            ..NodeSpec::default()
        })
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = SpecFile::new(directory.path(), "node1", "kube-system");
        assert_eq!(file.load(), Ok(None));
        file.save(&noted(3, &["blue"])).unwrap();
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
    fn a_copy_that_cannot_be_replaced_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = unwritable(directory.path());
        file.save(&noted(4, &["blue", "red"])).unwrap_err();
        assert_eq!(file.load(), Ok(Some(noted(3, &["blue"]))));
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
