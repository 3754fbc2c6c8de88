//! What the watches have told, as plain data. Says of each event whether it is news; decides nothing else.
//!
//! Keeps of a Node its name, its labels and whether it leaves: nothing else of it can ever wake anything.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::Arc;

use ipam_core::PoolKey;
use ipam_core::plan::{NodeRef, Usage};
use ipam_crds::NodeBlock;

use crate::ipam_node::IpamNodeRecord;
pub use crate::ipam_node::key_of;
use crate::objects::is_older;

/// A hash map with a fixed hasher, so that the simulator can replay the order of its entries.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
type Set<T> = HashSet<T, BuildHasherDefault<DefaultHasher>>;

/// Labels of a node. A copy costs nothing: all who know the node share one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Labels(Arc<BTreeMap<String, String>>);

impl Labels {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Deref for Labels {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<BTreeMap<String, String>> for Labels {
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self(Arc::new(labels))
    }
}

impl<const N: usize> From<[(String, String); N]> for Labels {
    fn from(labels: [(String, String); N]) -> Self {
        BTreeMap::from(labels).into()
    }
}

impl FromIterator<(String, String)> for Labels {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(labels: T) -> Self {
        BTreeMap::from_iter(labels).into()
    }
}

/// Annotation of a Node: with the value `"true"` no pool serves it any more, and its blocks are taken back as those of a node
/// that no pool selects.
pub const CORDON: &str = "nv-ipam.nvidia.com/cordon";

/// Why no pool serves a Node that still exists. Its blocks are released while its agent runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It has the annotation [`CORDON`].
    Cordoned,
    /// It has a `deletionTimestamp`: a finalizer keeps it until it is drained.
    Terminating,
}

/// What is kept of a Node besides its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeMeta {
    /// `metadata.labels`.
    pub labels: Labels,
    /// Whether it leaves, and why.
    pub leaving: Option<Leaving>,
}

impl From<Labels> for NodeMeta {
    fn from(labels: Labels) -> Self {
        Self { labels, leaving: None }
    }
}

/// The progress of one watch: whether a full list was seen, and what the list under way has named so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Relist {
    named: Option<Set<String>>,
    /// Objects that this leader has written since the list began. The list may name them at an earlier version.
    written: Set<String>,
    synced: bool,
}

impl Relist {
    /// What was listed so far is no longer good enough: another list must be complete first.
    pub fn expire(&mut self) {
        *self = Self::default();
    }

    /// A list begins.
    pub fn begin(&mut self) {
        self.named = Some(Set::default());
        self.written.clear();
    }

    /// This leader has written an object.
    pub fn wrote(&mut self, name: &str) {
        if self.named.is_some() {
            self.written.insert(name.to_owned());
        }
    }

    /// Whether this leader has written the object since the list began.
    pub fn has_written(&self, name: &str) -> bool {
        self.written.contains(name)
    }

    /// The list names an object.
    pub fn name(&mut self, name: &str) {
        if let Some(named) = &mut self.named {
            named.insert(name.to_owned());
        }
    }

    /// The list is complete: which of the `known` objects it did not name, and which are gone therefore.
    pub fn finish<'a>(&mut self, known: impl Iterator<Item = &'a String>) -> Vec<String> {
        // The rest of a list that was begun before it was known to be no good says nothing of what is gone.
        let Some(named) = self.named.take() else { return Vec::new() };
        self.synced = true;
        known.filter(|name| !named.contains(*name)).cloned().collect()
    }

    /// Whether a list has begun and is not complete.
    pub fn is_under_way(&self) -> bool {
        self.named.is_some()
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
    leaving: BTreeMap<String, Leaving>,
}

impl Nodes {
    /// A node is there. Whether that is news: a new name, other labels, or another reason to leave.
    pub fn apply(&mut self, name: &str, meta: impl Into<NodeMeta>) -> bool {
        let NodeMeta { labels, leaving } = meta.into();
        let before = match leaving {
            Some(why) => self.leaving.insert(name.to_owned(), why),
            None => self.leaving.remove(name),
        };
        let turned = before != leaving;
        if self.labels.get(name).is_some_and(|known| *known == labels) {
            return turned;
        }
        self.labels.insert(name.to_owned(), labels);
        true
    }

    /// A node is gone. Whether that is news.
    pub fn delete(&mut self, name: &str) -> bool {
        self.leaving.remove(name);
        self.labels.remove(name).is_some()
    }

    /// The nodes that leave, and why.
    pub fn leaving(&self) -> &BTreeMap<String, Leaving> {
        &self.leaving
    }

    /// Whether there is such a node.
    pub fn contains(&self, name: &str) -> bool {
        self.labels.contains_key(name)
    }

    /// The labels of a node, if there is such a node.
    pub fn labels(&self, name: &str) -> Option<&Labels> {
        self.labels.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.labels.keys()
    }

    /// All nodes, as planning wants them.
    pub fn refs(&self) -> Vec<NodeRef<'_>> {
        self.labels.iter().map(|(name, labels)| NodeRef { name, labels: &labels.0 }).collect()
    }
}

/// What was told is known already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoNews;

/// Every IPAMNode, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IpamNodes {
    records: Map<String, IpamNodeRecord>,
    /// Node → what the writes of ours say of which it is not known whether they took effect, the latest last.
    sent: Map<String, Vec<Vec<NodeBlock>>>,
    /// Nodes whose record has changed since [`IpamNodes::take_changed`].
    changed: BTreeSet<String>,
}

impl IpamNodes {
    /// An IPAMNode reads so. Returns what it was before.
    ///
    /// # Errors
    /// It is no news: the echo of a write of ours, or an event that was on its way while we wrote.
    pub fn apply(&mut self, name: &str, mut record: IpamNodeRecord) -> Result<Option<IpamNodeRecord>, NoNews> {
        if let Some(known) = self.records.get(name) {
            let (read, had) = (record.resource_version.as_str(), known.resource_version.as_str());
            if known.uid == record.uid && (read == had || is_older(read, had)) {
                return Err(NoNews);
            }
        }
        let known = self.records.get(name).filter(|known| known.uid == record.uid);
        record.fenced = known.is_some_and(|known| !known.resource_version.is_empty());
        record.follow(self.records.get(name));
        self.changed.insert(name.to_owned());
        Ok(self.records.insert(name.to_owned(), record))
    }

    /// Compares what an IPAMNode reads now with what it read before, which nobody but us should change. What we told is kept
    /// until it stands there again.
    pub fn note_edit(&mut self, name: &str, before: &IpamNodeRecord) {
        let Some(known) = self.records.get_mut(name) else { return };
        // Of an object that was doubted, and of another of the same name, nobody knows who wrote it.
        if before.uid != known.uid || before.resource_version.is_empty() {
            return;
        }
        // A newer version settles what became of a write: it is this one, or came before it and has made it fail.
        let sent = self.sent.remove(name).filter(|_| before.unsettled).unwrap_or_default();
        let told = before.unedited.as_ref().unwrap_or(&before.blocks);
        if known.blocks != *told && !sent.contains(&known.blocks) {
            known.unedited = Some(sent.last().unwrap_or(told).clone());
        }
    }

    /// What an IPAMNode says is what we would tell, whoever wrote it.
    pub fn accept(&mut self, name: &str) {
        if self.records.get(name).is_some_and(|known| known.unedited.is_some())
            && let Some(known) = self.get_mut(name)
        {
            known.unedited = None;
        }
    }

    /// An IPAMNode is gone. Returns what it was.
    pub fn delete(&mut self, name: &str) -> Option<IpamNodeRecord> {
        self.sent.remove(name);
        self.changed.insert(name.to_owned());
        self.records.remove(name)
    }

    /// The nodes whose record has changed, or may have, since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// The record of a node.
    pub fn get(&self, name: &str) -> Option<&IpamNodeRecord> {
        self.records.get(name)
    }

    /// The record of a node, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut IpamNodeRecord> {
        let known = self.records.get_mut(name)?;
        self.changed.insert(name.to_owned());
        Some(known)
    }

    /// The report of a node may be from an earlier time. Another is about to be requested.
    pub fn doubt_report(&mut self, name: &str) {
        if let Some(known) = self.get_mut(name) {
            known.is_doubted = true;
        }
    }

    /// No other report of a node is awaited. One that a leader has requested, and the agent has not made, is missing still.
    pub fn end_doubt(&mut self, name: &str) {
        if let Some(known) = self.get_mut(name) {
            known.is_doubted = known.is_unanswered();
        }
    }

    /// A write that leaves the node with `blocks` is about to be sent.
    pub fn begin_write(&mut self, name: &str, blocks: &[NodeBlock]) {
        if let Some(known) = self.get_mut(name) {
            known.unsettled = true;
            let sent = self.sent.entry(name.to_owned()).or_default();
            sent.retain(|earlier| earlier != blocks);
            sent.push(blocks.to_vec());
        }
    }

    /// The entry of a pool in the last write of the node, of which it is not known whether it took effect.
    pub fn sent(&self, name: &str, key: &PoolKey) -> Option<&NodeBlock> {
        self.sent.get(name)?.last()?.iter().find(|block| key_of(block) == *key)
    }

    /// What the writes of the node say of which it is not known whether they took effect.
    pub fn all_sent(&self, name: &str) -> &[Vec<NodeBlock>] {
        self.sent.get(name).map_or(&[], Vec::as_slice)
    }

    /// The write of the node that was begun last is done. If it has not `succeeded`, it may have taken effect all the same.
    pub fn end_write(&mut self, name: &str, succeeded: bool) {
        if succeeded {
            self.sent.remove(name);
        }
    }

    /// What was read and written before counts for nothing until it is read anew, at whatever version.
    pub fn doubt_all(&mut self) {
        self.sent.clear();
        self.changed.extend(self.records.keys().cloned());
        for record in self.records.values_mut() {
            record.resource_version.clear();
            record.unedited = None;
            record.fenced = false;
        }
    }

    /// Whether the node has no entry of the pool, and no write under way may give it one. An IPAMNode is created without entries.
    pub fn has_no_entry(&self, name: &str, key: &PoolKey) -> bool {
        self.records.get(name).is_none_or(|known| !known.unsettled && known.block(key).is_none())
    }

    /// How far the node's block of a pool is held. `Empty` means that others may have it.
    pub fn usage(&self, name: &str, key: &PoolKey) -> Usage {
        match self.records.get(name) {
            Some(known) if known.has_released(key) => Usage::Empty,
            Some(known) => known.counted(key),
            None => Usage::Unknown,
        }
    }

    /// All of them.
    pub fn all(&self) -> &Map<String, IpamNodeRecord> {
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
        assert!(nodes.apply("a", NodeMeta { labels: labels("2"), leaving: Some(Leaving::Cordoned) }));
        assert!(nodes.apply("a", NodeMeta { labels: labels("2"), leaving: Some(Leaving::Terminating) }));
        assert_eq!(nodes.leaving()["a"], Leaving::Terminating);
        assert!(nodes.apply("a", labels("2")) && nodes.leaving().is_empty());
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
