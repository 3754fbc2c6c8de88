//! Nodes and IPAMNodes as the watches report them, as plain data. Returns for each event whether it changes anything. Decides nothing else.
//!
//! Of a Node it keeps the name, the labels and whether the Node leaves. No other change of a Node wakes a pool or node.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::Arc;

use ipam_core::PoolKey;
use ipam_core::plan::{NodeRef, Usage};
use ipam_crds::NodeBlock;

use crate::ipam_node::IpamNodeRecord;
pub use crate::ipam_node::key_of;
use crate::objects::{NodeObject, is_older};

/// A hash map with a fixed hasher, so that the simulator can replay the order of its entries.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
type Set<T> = HashSet<T, BuildHasherDefault<DefaultHasher>>;

/// Labels of a node. Clones share one map, so a clone is cheap.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Labels(Arc<BTreeMap<String, String>>);

impl Labels {
    /// No labels.
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

/// Annotation of a Node. With the value `"true"`, no pool serves the node, and its blocks are released like those of a node that no pool
/// selects.
pub const CORDON: &str = "nv-ipam.nvidia.com/cordon";

/// Why no pool serves a Node that still exists. Its blocks are released while its agent runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It has the annotation [`CORDON`].
    Cordoned,
    /// It has a `deletionTimestamp`: a finalizer keeps it until it is drained.
    Terminating,
}

/// Data of a Node besides its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeMeta {
    /// `metadata.labels`.
    pub labels: Labels,
    /// Whether it leaves, and why.
    pub leaving: Option<Leaving>,
}

impl NodeMeta {
    /// Name and data of a Node.
    pub fn of(node: &NodeObject) -> (String, Self) {
        let cordon = node.metadata.annotations.as_ref().and_then(|all| all.get(CORDON));
        let leaving = if node.metadata.deletion_timestamp.is_some() {
            Some(Leaving::Terminating)
        } else {
            cordon.filter(|value| *value == "true").map(|_| Leaving::Cordoned)
        };
        let labels = node.metadata.labels.clone().unwrap_or_default().into();
        (node.metadata.name.clone().unwrap_or_default(), Self { labels, leaving })
    }
}

impl From<Labels> for NodeMeta {
    fn from(labels: Labels) -> Self {
        Self { labels, leaving: None }
    }
}

/// The progress of one watch: whether a full list was seen, and what the list under way has named so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListSync {
    named: Option<Set<String>>,
    /// Objects that this leader has written since the list began. The list may name them at an earlier version.
    written: Set<String>,
    synced: bool,
}

impl ListSync {
    /// Discards all lists so far: another list must complete first.
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

    /// The list is complete. Returns the `known` objects that it did not name: they are gone.
    pub fn finish<'a>(&mut self, known: impl Iterator<Item = &'a String>) -> Vec<String> {
        // `expire` was called during this list, so the list does not show which objects are gone.
        let Some(named) = self.named.take() else { return Vec::new() };
        self.synced = true;
        known.filter(|name| !named.contains(*name)).cloned().collect()
    }

    /// Whether a list has begun and is not complete.
    pub fn is_under_way(&self) -> bool {
        self.named.is_some()
    }

    /// Whether a list was complete since the last [`ListSync::expire`].
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
    /// Adds or updates a node. Returns whether that changes anything: a new name, other labels, or another reason to leave.
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

    /// Removes a node. Returns whether it was known.
    pub fn delete(&mut self, name: &str) -> bool {
        self.leaving.remove(name);
        self.labels.remove(name).is_some()
    }

    /// The nodes that leave, and why.
    pub fn leaving(&self) -> &BTreeMap<String, Leaving> {
        &self.leaving
    }

    /// Whether the node exists.
    pub fn contains(&self, name: &str) -> bool {
        self.labels.contains_key(name)
    }

    /// The labels of a node, if it exists.
    pub fn labels(&self, name: &str) -> Option<&Labels> {
        self.labels.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.labels.keys()
    }

    /// All nodes, as the plan takes them.
    pub fn refs(&self) -> Vec<NodeRef<'_>> {
        self.labels.iter().map(|(name, labels)| NodeRef { name, labels: &labels.0 }).collect()
    }
}

/// The event changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unchanged;

/// Every IPAMNode, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IpamNodes {
    records: Map<String, IpamNodeRecord>,
    /// Node → the blocks of this leader's writes whose outcome is unknown, the latest last.
    sent: Map<String, Vec<Vec<NodeBlock>>>,
    /// Nodes whose record has changed since [`IpamNodes::take_changed`].
    changed: BTreeSet<String>,
}

impl IpamNodes {
    /// Stores the record of an IPAMNode. Returns the one before.
    ///
    /// # Errors
    /// [`Unchanged`] if the version is not newer than the known one, as in the echo of this leader's own write.
    pub fn apply(&mut self, name: &str, mut record: IpamNodeRecord) -> Result<Option<IpamNodeRecord>, Unchanged> {
        if let Some(known) = self.records.get(name) {
            let (read, had) = (record.resource_version.as_str(), known.resource_version.as_str());
            if known.uid == record.uid && (read == had || is_older(read, had)) {
                return Err(Unchanged);
            }
        }
        let known = self.records.get(name).filter(|known| known.uid == record.uid);
        record.fenced = known.is_some_and(|known| !known.resource_version.is_empty());
        record.follow(self.records.get(name));
        self.changed.insert(name.to_owned());
        Ok(self.records.insert(name.to_owned(), record))
    }

    /// Detects that another writer has changed the blocks of an IPAMNode since the record `before`. The blocks that the operator wrote are
    /// kept until the object has them again.
    pub fn note_edit(&mut self, name: &str, before: &IpamNodeRecord) {
        let Some(known) = self.records.get_mut(name) else { return };
        // Who wrote an object is unknown if it replaces another of the same name, or if its record was invalidated.
        if before.uid != known.uid || before.resource_version.is_empty() {
            return;
        }
        // A newer version settles the outcome of a write: it is the result of that write, or it made the write fail.
        let sent = self.sent.remove(name).filter(|_| before.write_in_flight).unwrap_or_default();
        let told = before.intended_blocks.as_ref().unwrap_or(&before.blocks);
        if known.blocks != *told && !sent.contains(&known.blocks) {
            known.intended_blocks = Some(sent.last().unwrap_or(told).clone());
        }
    }

    /// Accepts the blocks of an IPAMNode as what the operator would write, and drops the intended ones.
    pub fn accept(&mut self, name: &str) {
        if self.records.get(name).is_some_and(|known| known.intended_blocks.is_some())
            && let Some(known) = self.get_mut(name)
        {
            known.intended_blocks = None;
        }
    }

    /// Removes an IPAMNode. Returns its record.
    pub fn delete(&mut self, name: &str) -> Option<IpamNodeRecord> {
        self.sent.remove(name);
        self.changed.insert(name.to_owned());
        self.records.remove(name)
    }

    /// The nodes whose record has changed, or may have, since the last call.
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

    /// The wait for another report of the node is over. The report stays doubted if the agent has not answered `spec.reportRequest`.
    pub fn end_doubt(&mut self, name: &str) {
        if let Some(known) = self.get_mut(name) {
            known.is_doubted = known.is_unanswered();
        }
    }

    /// A write that leaves the node with `blocks` is about to be sent.
    pub fn begin_write(&mut self, name: &str, blocks: &[NodeBlock]) {
        if let Some(known) = self.get_mut(name) {
            known.write_in_flight = true;
            let sent = self.sent.entry(name.to_owned()).or_default();
            sent.retain(|earlier| earlier != blocks);
            sent.push(blocks.to_vec());
        }
    }

    /// The entry of a pool in the node's last write whose outcome is unknown.
    pub fn sent(&self, name: &str, key: &PoolKey) -> Option<&NodeBlock> {
        self.sent.get(name)?.last()?.iter().find(|block| key_of(block) == *key)
    }

    /// The blocks of the node's writes whose outcome is unknown.
    pub fn all_sent(&self, name: &str) -> &[Vec<NodeBlock>] {
        self.sent.get(name).map_or(&[], Vec::as_slice)
    }

    /// The last write of the node has ended. If it has not `succeeded`, it may still have taken effect.
    pub fn end_write(&mut self, name: &str, succeeded: bool) {
        if succeeded {
            self.sent.remove(name);
        }
    }

    /// Invalidates all records until the objects are read again, at any version.
    pub fn invalidate_all(&mut self) {
        self.sent.clear();
        self.changed.extend(self.records.keys().cloned());
        for record in self.records.values_mut() {
            record.resource_version.clear();
            record.intended_blocks = None;
            record.fenced = false;
        }
    }

    /// Whether the node has no entry of the pool, and no write in flight may add one. An IPAMNode is created without entries.
    pub fn has_no_entry(&self, name: &str, key: &PoolKey) -> bool {
        self.records.get(name).is_none_or(|known| !known.write_in_flight && known.block(key).is_none())
    }

    /// Whether the node has an entry of the pool whose grant is not over, or a write in flight may add one.
    pub fn may_serve(&self, name: &str, key: &PoolKey) -> bool {
        let is_in_force = |known: &IpamNodeRecord| known.block(key).is_some() && !known.is_over(key);
        self.records.get(name).is_some_and(|known| known.write_in_flight || is_in_force(known))
    }

    /// Usage of the node's block of a pool. `Empty` means that the operator can assign the block to another node.
    pub fn usage(&self, name: &str, key: &PoolKey) -> Usage {
        match self.records.get(name) {
            Some(known) if known.has_released(key) => Usage::Empty,
            Some(known) => known.counted(key),
            None => Usage::Unknown,
        }
    }

    /// All records, by node name.
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
        let mut list = ListSync::default();
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
