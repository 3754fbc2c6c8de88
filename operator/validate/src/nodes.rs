//! The nodes of a plan: a count, names, or the output of `kubectl get nodes`.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::{names, plan::NodeRef};

use super::documents;
use super::tree::{Limits, Node, shortened};

/// Most nodes that are planned for.
pub const MAX_NODES: usize = 100_000;
/// Most errors in a list of nodes that are reported. The others are counted.
const MAX_TOLD: usize = 10;

/// Nodes to plan for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    by_name: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether the user has named them.
    real: bool,
    labels_known: bool,
}

impl Nodes {
    /// `count` nodes, node-1 and so on, padded with zeros so that they sort by number.
    ///
    /// # Errors
    /// If `count` is more than [`MAX_NODES`].
    pub fn numbered(count: usize) -> Result<Self, String> {
        if count > MAX_NODES {
            return Err(format!("is more than the {MAX_NODES} nodes that are planned for"));
        }
        let width = count.to_string().len();
        let by_name = (1..=count).map(|number| (format!("node-{number:0width$}"), BTreeMap::new())).collect();
        Ok(Self { by_name, real: false, labels_known: false })
    }

    /// Nodes from a comma-separated list of names.
    ///
    /// # Errors
    /// The invalid and the duplicate names, up to a limit.
    pub fn named(names: &str) -> Result<Self, String> {
        let mut list = List::default();
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).for_each(|name| list.add(name, None));
        list.into_nodes()
    }

    /// Nodes from the content of a file: Node objects (YAML or JSON, also in a List), or lines as `kubectl get nodes` prints
    /// them. In a line the first word is the name, and the last one the labels, if it has any (`--show-labels`).
    ///
    /// # Errors
    /// The entries that are not valid nodes, up to a limit.
    pub fn from_file(file: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut list = List::default();
        let mut are_objects = false;
        documents::read(file, bytes, Limits::CLUSTER, |document| match document {
            Ok(node) if node.get("kind").is_some() => {
                are_objects = true;
                list.object(&node);
            }
            Ok(_) => {}
            Err(unread) => list.broken.push(format!("{}: {}", unread.at, unread.message)),
        });
        if !are_objects {
            let text = std::str::from_utf8(bytes).map_err(|_| "is no text".to_owned())?;
            list = List::default();
            text.lines().for_each(|line| list.line(line));
        }
        list.into_nodes()
    }

    /// Whether the labels are known, so that selectors can be evaluated.
    pub(super) const fn labels_are_known(&self) -> bool {
        self.labels_known
    }

    pub(super) const fn are_real(&self) -> bool {
        self.real
    }

    /// Each node, by name.
    pub fn refs(&self) -> impl Iterator<Item = NodeRef<'_>> {
        self.by_name.iter().map(|(name, labels)| NodeRef { name, labels })
    }
}

#[derive(Default)]
struct List {
    by_name: BTreeMap<String, BTreeMap<String, String>>,
    labelled: bool,
    broken: Vec<String>,
    doubled: BTreeSet<String>,
}

impl List {
    fn add(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        if !names::is_dns_subdomain(name) {
            self.broken.push(format!("{:?} is no name of a node", shortened(name)));
            return;
        }
        self.labelled |= labels.is_some();
        if self.by_name.insert(name.to_owned(), labels.unwrap_or_default()).is_some() {
            self.doubled.insert(name.to_owned());
        }
    }

    fn object(&mut self, node: &Node) {
        match node.get("kind").and_then(Node::text) {
            Some("Node") => {
                let of = |name| node.get("metadata").and_then(|metadata| metadata.get(name));
                let labels = of("labels").map_or(&[][..], Node::members).iter();
                let labels = labels.filter_map(|label| Some((label.name.to_string(), label.node.text()?.to_owned())));
                self.add(of("name").and_then(Node::text).unwrap_or_default(), Some(labels.collect()));
            }
            Some("List" | "NodeList") => {
                node.get("items").map_or(&[][..], Node::items).iter().for_each(|item| self.object(item));
            }
            _ => self.broken.push(format!("{}: an object that is no Node", node.at)),
        }
    }

    fn line(&mut self, line: &str) {
        let line = line.split_once('#').map_or(line, |(text, _)| text);
        let mut words = line.split_whitespace();
        let Some(name) = words.next().filter(|word| *word != "NAME") else { return };
        let labels = words.next_back().filter(|word| word.contains('='));
        let labels = labels.map(|labels| {
            let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        });
        self.add(name.strip_prefix("node/").unwrap_or(name), labels);
    }

    fn into_nodes(mut self) -> Result<Nodes, String> {
        self.broken.extend(self.doubled.iter().map(|name| format!("{name} stands twice")));
        if self.by_name.len() > MAX_NODES {
            self.broken.push(format!("more than the {MAX_NODES} nodes that are planned for"));
        }
        if self.by_name.is_empty() && self.broken.is_empty() {
            self.broken.push("there is no node in it".to_owned());
        }
        if self.broken.is_empty() {
            return Ok(Nodes { by_name: self.by_name, real: true, labels_known: self.labelled });
        }
        let more = self.broken.len().saturating_sub(MAX_TOLD);
        self.broken.truncate(MAX_TOLD);
        if more > 0 {
            self.broken.push(format!("and {more} more"));
        }
        Err(self.broken.join("; "))
    }
}
