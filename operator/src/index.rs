//! What the watches have told, as plain data. Says of each event whether it is news; decides nothing else.
//!
//! Keeps of a Node its name and labels alone: nothing else of it can ever wake anything.

use std::collections::{BTreeMap, HashMap, HashSet};

use ipam_core::plan::NodeRef;

use crate::ipam_node::IpamNodeRecord;
use crate::objects::is_older;

/// Labels of a node.
pub type Labels = BTreeMap<String, String>;

/// The progress of one watch: whether a full list was seen, and what the list under way has named so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Relist {
    named: Option<HashSet<String>>,
    synced: bool,
}

impl Relist {
    /// What was listed so far is no longer good enough: another list must be complete first.
    pub fn expire(&mut self) {
        *self = Self::default();
    }

    /// A list begins.
    pub fn begin(&mut self) {
        self.named = Some(HashSet::new());
    }

    /// The list names an object.
    pub fn name(&mut self, name: &str) {
        if let Some(named) = &mut self.named {
            named.insert(name.to_owned());
        }
    }

    /// The list is complete: which of the `known` objects it did not name, and which are gone therefore.
    pub fn finish<'a>(&mut self, known: impl Iterator<Item = &'a String>) -> Vec<String> {
        self.synced = true;
        let named = self.named.take().unwrap_or_default();
        known.filter(|name| !named.contains(*name)).cloned().collect()
    }

    /// Whether a list was complete since the last [`Relist::expire`].
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

/// Every Node, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nodes {
    labels: BTreeMap<String, Labels>,
}

impl Nodes {
    /// A node is there. Whether that is news: a new name or other labels.
    pub fn apply(&mut self, name: &str, labels: Labels) -> bool {
        if self.labels.get(name).is_some_and(|known| *known == labels) {
            return false;
        }
        self.labels.insert(name.to_owned(), labels);
        true
    }

    /// A node is gone. Whether that is news.
    pub fn delete(&mut self, name: &str) -> bool {
        self.labels.remove(name).is_some()
    }

    /// Whether there is such a node.
    pub fn contains(&self, name: &str) -> bool {
        self.labels.contains_key(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.labels.keys()
    }

    /// All nodes, as planning wants them.
    pub fn refs(&self) -> Vec<NodeRef<'_>> {
        self.labels.iter().map(|(name, labels)| NodeRef { name, labels }).collect()
    }
}

/// What was told is known already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoNews;

/// Every IPAMNode, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IpamNodes {
    records: HashMap<String, IpamNodeRecord>,
}

impl IpamNodes {
    /// An IPAMNode reads so. Returns what it was before.
    ///
    /// # Errors
    /// It is no news: the echo of a write of ours, or an event that was on its way while we wrote.
    pub fn apply(&mut self, name: &str, record: IpamNodeRecord) -> Result<Option<IpamNodeRecord>, NoNews> {
        if let Some(known) = self.records.get(name) {
            let (read, had) = (record.resource_version.as_str(), known.resource_version.as_str());
            if known.uid == record.uid && (read == had || is_older(read, had)) {
                return Err(NoNews);
            }
        }
        Ok(self.records.insert(name.to_owned(), record))
    }

    /// An IPAMNode is gone. Returns what it was.
    pub fn delete(&mut self, name: &str) -> Option<IpamNodeRecord> {
        self.records.remove(name)
    }

    /// The record of a node.
    pub fn get(&self, name: &str) -> Option<&IpamNodeRecord> {
        self.records.get(name)
    }

    /// The record of a node, to note what a write of ours has made of it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut IpamNodeRecord> {
        self.records.get_mut(name)
    }

    /// All of them.
    pub fn all(&self) -> &HashMap<String, IpamNodeRecord> {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(value: &str) -> Labels {
        Labels::from([("rack".to_owned(), value.to_owned())])
    }

    #[test]
    fn a_node_is_news_when_it_is_new_or_its_labels_change() {
        let mut nodes = Nodes::default();
        assert!(nodes.apply("a", labels("1")));
        assert!(!nodes.apply("a", labels("1")), "a heartbeat is no news");
        assert!(nodes.apply("a", labels("2")));
        assert!(nodes.delete("a"));
        assert!(!nodes.delete("a"));
    }

    #[test]
    fn an_old_event_does_not_undo_what_we_wrote() {
        let version =
            |version: &str| IpamNodeRecord { resource_version: version.to_owned(), ..IpamNodeRecord::default() };
        let mut nodes = IpamNodes::default();
        assert!(nodes.apply("a", version("10")).is_ok());
        assert!(nodes.apply("a", version("9")).is_err());
        assert!(nodes.apply("a", version("10")).is_err(), "an echo is no news");
        assert!(nodes.apply("a", version("11")).is_ok());
        let recreated = IpamNodeRecord { uid: "other".to_owned(), ..version("5") };
        assert!(nodes.apply("a", recreated).is_ok());
    }

    #[test]
    fn what_a_second_list_does_not_name_is_gone() {
        let mut list = Relist::default();
        let known = ["a".to_owned(), "b".to_owned()];
        assert!(!list.is_synced());
        list.begin();
        list.name("a");
        assert_eq!(list.finish(known.iter()), ["b"]);
        assert!(list.is_synced());
        list.begin();
        assert!(list.is_synced(), "while a list is renewed the last one stands");
    }
}
