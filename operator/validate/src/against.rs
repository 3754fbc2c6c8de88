//! The pools of a cluster, as `kubectl get` prints them. The given manifests are judged as edits of them, by the decision of the webhook.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipam_core::spec::PoolSpec;
use ipam_core::{Advice, OverlapCandidate, Pool, PoolKey, PoolKind, Violation, overlap};
use ipam_reconciler::cluster_cache::NodeMeta;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::reconcile::Observed;
use ipam_webhook::cache::AdmissionCache;
use ipam_webhook::judge;
use ipam_webhook::pool_object::ReviewedPool;
use kube::runtime::watcher::Event;

use super::documents;
use super::nodes::Nodes;
use super::objects::{self, Object};
use super::tree::{Limits, Node};

/// Most errors that are reported. The others are counted.
const MAX_TOLD: usize = 10;

/// The objects of a cluster.
#[derive(Default, Debug)]
pub struct Live {
    by_namespace: BTreeMap<String, Namespace>,
}

/// The objects of one namespace.
#[derive(Default, Debug)]
struct Namespace {
    pools: HashMap<PoolKey, ReviewedPool>,
    cache: AdmissionCache,
}

impl Live {
    /// Reads the pools and IPAMNodes in the output of `kubectl get -o yaml` or `-o json`. `nodes` are those of the cluster, if they are known.
    ///
    /// # Errors
    /// The documents that cannot be parsed, and the objects that are not what the API server returns, up to a limit.
    pub fn read(file: &str, bytes: &[u8], nodes: Option<&Nodes>) -> Result<Self, String> {
        let mut live = Self::default();
        let mut wrong = Vec::new();
        let mut count = 0_usize;
        documents::read(file, bytes, Limits::CLUSTER, |document| match document {
            Ok(document) => {
                count += 1;
                objects::objects(&document, &mut |_, object| {
                    let read = match object {
                        Object::Pool(kind, node) => live.add_pool(kind, node).map_err(|why| (node.at, why)),
                        Object::IpamNode(node) => live.add_ipam_node(node).map_err(|why| (node.at, why)),
                        Object::Stray(_, problem) => {
                            Err((problem.place, format!("{}: {}", problem.field, problem.message)))
                        }
                        Object::Network(_) | Object::Other => Ok(()),
                    };
                    wrong.extend(read.err().map(|(at, why)| format!("{at}: {why}")));
                });
            }
            Err(unread) => wrong.push(format!("{}: {}", unread.at, unread.message)),
        });
        if count == 0 && wrong.is_empty() {
            wrong.push("has no document; of a cluster without pools, kubectl prints a List without items".to_owned());
        }
        if !wrong.is_empty() {
            let more = wrong.len().saturating_sub(MAX_TOLD);
            wrong.truncate(MAX_TOLD);
            if more > 0 {
                wrong.push(format!("and {more} more"));
            }
            return Err(wrong.join("; "));
        }
        if let Some(nodes) = nodes.filter(|nodes| nodes.are_real() && nodes.labels_are_known()) {
            live.by_namespace.values_mut().for_each(|namespace| namespace.set_nodes(nodes));
        }
        Ok(live)
    }

    fn add_pool(&mut self, kind: PoolKind, node: &Node) -> Result<(), String> {
        let object = raw(node)?;
        let namespace = self.namespace_of(&object)?;
        namespace.pools.insert(PoolKey::new(kind, object.name()), ReviewedPool::of(kind, &object));
        namespace.cache.observe(&Observed::Pool(kind, Event::Apply(object)));
        Ok(())
    }

    fn add_ipam_node(&mut self, node: &Node) -> Result<(), String> {
        let object = raw(node)?;
        let namespace = self.namespace_of(&object)?;
        namespace.cache.observe(&Observed::IpamNode(Event::Apply(object)));
        Ok(())
    }

    fn namespace_of(&mut self, object: &RawObject) -> Result<&mut Namespace, String> {
        let name = object.metadata.namespace.clone().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| "metadata.namespace: is required: every pool of a cluster has one".to_owned())?;
        Ok(self.by_namespace.entry(name).or_default())
    }

    /// The pool as it is in the cluster.
    pub(super) fn pool(&self, namespace: &str, key: &PoolKey) -> Option<&ReviewedPool> {
        self.by_namespace.get(namespace)?.pools.get(key)
    }

    /// The names of all pools.
    pub(super) fn keys(&self) -> impl Iterator<Item = &PoolKey> {
        self.by_namespace.values().flat_map(|namespace| namespace.pools.keys())
    }

    /// What the cluster says about an edit of one of its pools; `None` if it has no such pool.
    pub(super) fn judge_edit(
        &self,
        namespace: &str,
        key: &PoolKey,
        spec: &PoolSpec,
        pool: &Pool,
    ) -> Option<(Vec<Violation>, Option<Advice>)> {
        let known = &self.by_namespace.get(namespace)?.cache;
        let old = self.pool(namespace, key)?;
        let new = ReviewedPool {
            name: key.name.clone(),
            created: old.created,
            is_going: false,
            allow_overlap: None,
            spec: spec.clone(),
            unread: Vec::new(),
            claims: Vec::new(),
            releasing: Vec::new(),
        };
        Some(judge::judge_edit(key, old, &new, pool, known))
    }

    /// The overlap of a given pool with pools of the cluster that are not `given`, too, and that it did not overlap before.
    pub(super) fn overlap(
        &self,
        namespace: &str,
        candidate: &OverlapCandidate,
        given: &BTreeSet<PoolKey>,
    ) -> Option<Violation> {
        let known = self.by_namespace.get(namespace)?;
        let old = known.pools.get(&candidate.key);
        let before = old.and_then(|old| old.contender(candidate.key.kind));
        let created = before.as_ref().map_or(i64::MAX, |before| before.created);
        let candidate = OverlapCandidate { created, ..candidate.clone() };
        let mut conflicts = known.cache.conflicts_made(before.as_ref(), &candidate);
        conflicts.retain(|other| !given.contains(&other.key));
        overlap::violation(&candidate, &conflicts)
    }
}

impl Namespace {
    fn set_nodes(&mut self, nodes: &Nodes) {
        self.cache.observe(&Observed::Node(Event::Init));
        for node in nodes.refs() {
            let meta = NodeMeta { labels: node.labels.clone().into(), leaving: None };
            self.cache.observe(&Observed::Node(Event::InitApply((node.name.to_owned(), meta))));
        }
        self.cache.observe(&Observed::Node(Event::InitDone));
    }
}

/// The object as the operator reads it from a watch.
fn raw(node: &Node) -> Result<RawObject, String> {
    let object: RawObject = serde_json::from_str(&node.json().to_string()).map_err(|error| error.to_string())?;
    if object.name().is_empty() {
        return Err("metadata.name: is required".to_owned());
    }
    Ok(object)
}
