//! State from watches that a decision needs besides the object itself: networks of other pools, blocks and addresses in use
//! of each node, and nodes.
//!
//! Decides nothing. On every replica, leader or not, it receives the same events as the controller. It stores a digest of
//! each object, so that 10,000 pools take a few megabytes and no query scans all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipam_core::addr::{number, parse_addr};
use ipam_core::plan::{Claim, NodeRef};
use ipam_core::{Held, OverlapCandidate, OverlapCandidates, Pool, PoolKey, PoolKind, RangeSet};
use ipam_crds::{BlockState, BlockUse};
use kube::runtime::watcher::Event;

use super::pool_object::ReviewedPool;
use ipam_reconciler::cluster_cache::{ListSync, NodeMeta, Nodes};
use ipam_reconciler::ipam_node::IpamNodeRecord;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::reconcile::Observed;

/// The state from watches that decisions use.
#[derive(Default, Debug)]
pub struct AdmissionCache {
    /// The namespace whose pools are served; empty serves every namespace.
    namespace: String,
    pools: BTreeSet<PoolKey>,
    contenders: OverlapCandidates,
    nodes: Nodes,
    holdings: HashMap<PoolKey, BTreeMap<String, Holding>>,
    /// The pools of which a node has blocks, by node name.
    blocks: HashMap<String, Vec<PoolKey>>,
    pool_lists: [ListSync; 2],
    node_list: ListSync,
    ipam_node_list: ListSync,
}

/// The block of one pool in one IPAMNode, and its use.
#[derive(Clone, PartialEq, Debug)]
struct Holding {
    claim: Claim,
    /// Whether the block is Releasing: the agent allocates no more addresses from it.
    is_leaving: bool,
    held: Held,
}

impl AdmissionCache {
    /// An empty cache for the pools of `namespace`.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), ..Self::default() }
    }

    /// Whether pools of this namespace are served at all.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespace.is_empty() || self.namespace == namespace
    }

    /// The namespace whose pools are served.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pools that conflict with `new`, but did not conflict with `old`, its previous state; oldest first.
    pub fn conflicts_made(&self, old: Option<&OverlapCandidate>, new: &OverlapCandidate) -> Vec<&OverlapCandidate> {
        self.contenders.conflicts_made(old, new)
    }

    /// All nodes, or `None` until the node list is in sync.
    pub fn nodes(&self) -> Option<Vec<NodeRef<'_>>> {
        self.node_list.is_synced().then(|| self.nodes.refs())
    }

    /// Whether the pool would serve the node: the node exists, is selected and is not leaving. `None` until the node list is
    /// in sync.
    pub fn selects(&self, pool: &Pool, node: &str) -> Option<bool> {
        let labels = self.nodes.labels(node).filter(|_| !self.nodes.leaving().contains_key(node));
        self.node_list.is_synced().then(|| labels.is_some_and(|labels| pool.selects(node, labels)))
    }

    /// The addresses of a pool that are in use on the node, as its agent reports.
    pub fn held(&self, key: &PoolKey, node: &str) -> Held {
        let holding = self.holdings.get(key).and_then(|nodes| nodes.get(node));
        holding.map_or(Held::Unknown, |holding| holding.held.clone())
    }

    /// The blocks of a pool in all IPAMNodes, each with whether it is Releasing.
    pub fn claims(&self, key: &PoolKey) -> impl Iterator<Item = (&Claim, bool)> {
        let holdings = self.holdings.get(key).into_iter().flat_map(BTreeMap::values);
        holdings.map(|holding| (&holding.claim, holding.is_leaving))
    }

    /// Applies an event of a watch.
    pub fn observe(&mut self, event: &Observed) {
        match event {
            Observed::Node(event) => self.observe_node(event),
            Observed::Pool(kind, event) => self.observe_pool(*kind, event),
            Observed::IpamNode(event) => self.observe_ipam_node(event),
        }
    }

    fn observe_node(&mut self, event: &Event<(String, NodeMeta)>) {
        match event {
            Event::Init => self.node_list.begin(),
            Event::InitApply((name, meta)) => {
                self.node_list.name(name);
                self.nodes.apply(name, meta.clone());
            }
            Event::Apply((name, meta)) => drop(self.nodes.apply(name, meta.clone())),
            Event::Delete((name, _)) => drop(self.nodes.delete(name)),
            Event::InitDone => {
                for name in self.node_list.finish(self.nodes.names()) {
                    self.nodes.delete(&name);
                }
            }
        }
    }

    fn observe_pool(&mut self, kind: PoolKind, event: &Event<RawObject>) {
        let list = match kind {
            PoolKind::IpPool => &mut self.pool_lists[0],
            PoolKind::CidrPool => &mut self.pool_lists[1],
        };
        match event {
            Event::Init => list.begin(),
            Event::InitApply(object) => {
                list.name(object.name());
                self.pool_is_there(kind, object);
            }
            Event::Apply(object) => self.pool_is_there(kind, object),
            Event::Delete(object) => self.pool_is_gone(&PoolKey::new(kind, object.name())),
            Event::InitDone => {
                let ours = self.pools.iter().filter(|key| key.kind == kind).map(|key| &key.name);
                for name in list.finish(ours) {
                    self.pool_is_gone(&PoolKey::new(kind, name));
                }
            }
        }
    }

    fn pool_is_there(&mut self, kind: PoolKind, object: &RawObject) {
        let draft = ReviewedPool::of(kind, object);
        let key = PoolKey::new(kind, object.name());
        // An invalid pool without blocks assigns nothing, so it conflicts with no other pool.
        let gives = draft.is_valid() || !(draft.claims.is_empty() && draft.releasing.is_empty());
        match draft.contender(kind).filter(|_| gives) {
            Some(contender) => self.contenders.insert(contender),
            None => self.contenders.remove(&key),
        }
        self.pools.insert(key);
    }

    fn pool_is_gone(&mut self, key: &PoolKey) {
        self.pools.remove(key);
        self.contenders.remove(key);
    }

    fn observe_ipam_node(&mut self, event: &Event<RawObject>) {
        match event {
            Event::Init => self.ipam_node_list.begin(),
            Event::InitApply(object) => {
                self.ipam_node_list.name(object.name());
                self.ipam_node_is_there(object);
            }
            Event::Apply(object) => self.ipam_node_is_there(object),
            Event::Delete(object) => self.ipam_node_is_gone(object.name()),
            Event::InitDone => {
                for name in self.ipam_node_list.finish(self.blocks.keys()) {
                    self.ipam_node_is_gone(&name);
                }
            }
        }
    }

    fn ipam_node_is_there(&mut self, object: &RawObject) {
        let (node, record) = (object.name(), IpamNodeRecord::read(object));
        self.ipam_node_is_gone(node);
        let mut keys = Vec::with_capacity(record.blocks.len());
        for block in &record.blocks {
            let key = PoolKey::new(block.pool_type.into(), &block.name);
            let Some(claim) = record.claim(node, &key) else { continue };
            let report = record.report(&key);
            let of_this_block =
                |report: &&BlockUse| (&report.start_ip, &report.end_ip) == (&block.start_ip, &block.end_ip);
            let held = report.filter(of_this_block).map_or(Held::Unknown, held);
            let is_leaving = block.state == BlockState::Releasing;
            let holding = Holding { claim, is_leaving, held };
            self.holdings.entry(key.clone()).or_default().insert(node.to_owned(), holding);
            keys.push(key);
        }
        self.blocks.insert(node.to_owned(), keys);
    }

    fn ipam_node_is_gone(&mut self, node: &str) {
        for key in self.blocks.remove(node).unwrap_or_default() {
            let Some(nodes) = self.holdings.get_mut(&key) else { continue };
            nodes.remove(node);
            if nodes.is_empty() {
                self.holdings.remove(&key);
            }
        }
    }
}

/// The addresses in use that an agent reports. Ranges count only if they add up to `used`: older agents report none.
fn held(report: &BlockUse) -> Held {
    let Ok(used) = u64::try_from(report.used) else { return Held::Unknown };
    let runs = report
        .held
        .iter()
        .map(|run| Some((number(parse_addr(&run.start_ip).ok()?), number(parse_addr(&run.end_ip).ok()?))));
    let runs: Option<RangeSet> = runs.map(|run| run.filter(|(first, last)| first <= last)).collect();
    runs.filter(|runs| runs.size() == u128::from(used)).map_or(Held::Count(used), Held::Addresses)
}

#[cfg(test)]
mod tests;
