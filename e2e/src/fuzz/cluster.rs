//! Pools with their statuses, IPAMNodes with spec and status, and Nodes, as an operator that comes to lead reads them; and all
//! that it then does, around an API server that does what it is asked. No agent reports anything new.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::{AddrRange, Cidr, PoolKey, PoolKind};
use ipam_crds::BlockUse;
use ipam_reconciler::allocation_state::LeaseState;
use ipam_reconciler::cluster_cache::Labels;
use ipam_reconciler::ipam_node::FINALIZER;
use ipam_reconciler::metrics::Metrics;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::reconcile::model::Model;
use ipam_reconciler::reconcile::{
    Command, NodeAction, NodeVersion, NodeWrite, Now, Observed, Outcome, PoolPatch, PoolRef, Reconciler, Settings,
};
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde::Deserialize as _;
use serde_json::{Value as Json, json};

use crate::cases::{self, Case, POOL};

/// Objects of one input at most.
const MOST_OBJECTS: usize = 24;
/// Seconds after which nothing more may be done.
const ROUNDS: u32 = 240;

struct Cluster {
    reconciler: Reconciler,
    controllers: Model,
    pools: BTreeMap<PoolKey, Json>,
    ipam_nodes: BTreeMap<String, Json>,
    nodes: BTreeSet<String>,
    version: u64,
    calls: usize,
    now: Instant,
}

pub(super) fn run(data: &[u8]) {
    play(data);
}

/// How many calls the operator made.
fn play(data: &[u8]) -> usize {
    let Ok(Json::Array(objects)) = serde_json::from_slice::<Json>(data) else { return 0 };
    let mut cluster = Cluster {
        reconciler: Reconciler::new(Settings::default(), Arc::new(Metrics::default())),
        controllers: Model::default(),
        pools: BTreeMap::new(),
        ipam_nodes: BTreeMap::new(),
        nodes: BTreeSet::new(),
        version: 1_000,
        calls: 0,
        now: Instant::now(),
    };
    for object in objects.into_iter().take(MOST_OBJECTS) {
        cluster.place(object);
    }
    let before = cluster.blocks();
    let held = cluster.held();
    cluster.lead();
    let last = cluster.settle();
    assert!(last < ROUNDS, "the operator does not come to rest");
    cluster.check(&before, &held);
    cluster.calls
}

fn raw(object: &Json) -> Option<RawObject> {
    // From text: `spec` and `status` stay as they are written.
    serde_json::from_str(&object.to_string()).ok()
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn range(first: &Json, last: &Json) -> Option<AddrRange> {
    let addr = |value: &Json| value.as_str()?.parse::<IpAddr>().ok();
    AddrRange::new(addr(first)?, addr(last)?)
}

/// The block of a pool's status entry.
fn block(entry: &Json) -> Option<AddrRange> {
    match entry["prefix"].as_str() {
        Some(prefix) => Cidr::parse(prefix).ok().map(|(cidr, _)| cidr.range()),
        None => range(&entry["startIP"], &entry["endIP"]),
    }
}

/// Node and block of each allocation, and of each that is being taken back.
fn blocks_of(pool: &Json) -> Vec<(String, AddrRange)> {
    let entries = list(&pool["status"]["allocations"]).iter().chain(list(&pool["status"]["releasing"]));
    entries.filter_map(|entry| Some((entry["nodeName"].as_str()?.to_owned(), block(entry)?))).collect()
}

impl Cluster {
    /// Puts an object where the API server has it. What has no name of its own there is left out.
    fn place(&mut self, mut object: Json) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() || !object["metadata"].is_object() {
            return;
        }
        object["metadata"]["uid"] = json!(format!("uid-{name}"));
        object["metadata"]["resourceVersion"] = json!(self.next_version());
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match (kind.as_str(), PoolKind::from_kind(&kind)) {
            (_, Some(kind)) if raw(&object).is_some() => drop(self.pools.insert(PoolKey::new(kind, name), object)),
            ("IPAMNode", _) if raw(&object).is_some() => drop(self.ipam_nodes.insert(name, object)),
            ("Node", _) => drop(self.nodes.insert(name)),
            _ => {}
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Who has which block by any record: a pool's status, or the entry of an IPAMNode.
    fn blocks(&self) -> BTreeMap<PoolKey, Vec<(String, AddrRange)>> {
        let statuses = self.pools.iter().map(|(key, pool)| (key.clone(), blocks_of(pool)));
        let mut blocks: BTreeMap<PoolKey, Vec<(String, AddrRange)>> = statuses.collect();
        for (node, object) in &self.ipam_nodes {
            for entry in list(&object["spec"]["pools"]) {
                let kind = entry["poolType"].as_str().and_then(PoolKind::from_kind);
                let subnet = entry["subnet"].as_str().and_then(|text| Some(Cidr::parse(text).ok()?.0.range()));
                let run = range(&entry["startIP"], &entry["endIP"]);
                let Some((kind, name)) = kind.zip(entry["name"].as_str()) else { continue };
                let block = if kind == PoolKind::CidrPool { subnet } else { run };
                let known = blocks.entry(PoolKey::new(kind, name)).or_default();
                known.extend(block.map(|block| (node.clone(), block)));
            }
        }
        blocks
    }

    /// The addresses that each node's agent reports as in use, by pool.
    fn held(&self) -> Vec<(PoolKey, String, AddrRange)> {
        let mut held = Vec::new();
        for (node, object) in &self.ipam_nodes {
            // The API server accepts no other reports.
            let reports =
                list(&object["status"]["pools"]).iter().filter(|report| BlockUse::deserialize(*report).is_ok());
            for report in reports {
                let kind = report["poolType"].as_str().and_then(PoolKind::from_kind);
                let Some((kind, name)) = kind.zip(report["name"].as_str()) else { continue };
                let runs = list(&report["held"]).iter().filter_map(|run| range(&run["startIP"], &run["endIP"]));
                held.extend(runs.map(|run| (PoolKey::new(kind, name), node.clone(), run)));
            }
        }
        held
    }

    fn hear(&mut self, event: Observed) {
        self.controllers.observe(&mut self.reconciler, event, self.now);
    }

    fn lead(&mut self) {
        self.reconciler.lead(LeaseState::default(), self.now);
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            self.hear(Observed::Pool(kind, Event::Init));
            let objects: Vec<RawObject> =
                self.pools.iter().filter(|(key, _)| key.kind == kind).filter_map(|(_, pool)| raw(pool)).collect();
            for object in objects {
                self.hear(Observed::Pool(kind, Event::InitApply(object)));
            }
            self.hear(Observed::Pool(kind, Event::InitDone));
        }
        self.hear(Observed::Node(Event::Init));
        for name in self.nodes.clone() {
            self.hear(Observed::Node(Event::InitApply((name, Labels::new().into()))));
        }
        self.hear(Observed::Node(Event::InitDone));
        self.hear(Observed::IpamNode(Event::Init));
        let objects: Vec<RawObject> = self.ipam_nodes.values().filter_map(raw).collect();
        for object in objects {
            self.hear(Observed::IpamNode(Event::InitApply(object)));
        }
        self.hear(Observed::IpamNode(Event::InitDone));
    }

    /// Does what is asked until nothing is for a while; the second in which the last call was made.
    fn settle(&mut self) -> u32 {
        let mut last = 0;
        for second in 1..=ROUNDS {
            self.now += Duration::from_secs(1);
            let wall = Timestamp::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + u64::from(second));
            self.reconciler.on_lease_state(self.reconciler.lease_request().granted(), self.now);
            for command in self.controllers.poll(&mut self.reconciler, Now { instant: self.now, wall }) {
                // A confirmation changes nothing in the API.
                if !matches!(command, Command::Confirm { .. }) {
                    last = second;
                    self.calls += 1;
                }
                self.perform(command);
            }
        }
        last
    }

    fn perform(&mut self, command: Command) {
        let outcome = match command {
            Command::WriteStatus { pool, status } => {
                let body = serde_json::to_value(status.body(pool.key.kind)).unwrap_or_default();
                self.change_pool(pool, |object| object["status"] = body)
            }
            Command::PatchPool { pool, patch: PoolPatch::Finalizers(finalizers) } => {
                self.change_pool(pool, |object| object["metadata"]["finalizers"] = json!(finalizers))
            }
            Command::PatchPool { pool, patch: PoolPatch::Annotation(name, value) } => {
                self.change_pool(pool, |object| object["metadata"]["annotations"][name] = json!(value))
            }
            Command::Confirm { pool } => {
                let version = self.pools.get(&pool.key).map(|object| object["metadata"]["resourceVersion"].clone());
                let version = version.as_ref().and_then(Json::as_str).unwrap_or_default().to_owned();
                Outcome::Pool(pool, Ok(version))
            }
            Command::WriteIpamNode(write) => return self.write_ipam_node(write),
        };
        let changed = match &outcome {
            Outcome::Pool(pool, _) => Some(pool.key.clone()),
            Outcome::IpamNode(..) => None,
        };
        self.controllers.settle(&mut self.reconciler, outcome, self.now);
        let object = changed.and_then(|key| Some((key.kind, raw(self.pools.get(&key)?)?)));
        if let Some((kind, object)) = object {
            self.hear(Observed::Pool(kind, Event::Apply(object)));
        }
    }

    fn change_pool(&mut self, pool: PoolRef, change: impl FnOnce(&mut Json)) -> Outcome {
        let version = self.next_version();
        if let Some(object) = self.pools.get_mut(&pool.key) {
            assert_eq!(object["metadata"]["resourceVersion"], *pool.resource_version, "another version is written");
            object["metadata"]["resourceVersion"] = json!(version);
            change(object);
        }
        Outcome::Pool(pool, Ok(version))
    }

    fn write_ipam_node(&mut self, write: NodeWrite) {
        let name = write.node.clone();
        let blocks = write.action.blocks().to_vec();
        let keys: BTreeSet<_> = blocks.iter().map(|block| (block.pool_type, block.name.clone())).collect();
        assert_eq!(keys.len(), blocks.len(), "an IPAMNode has two entries of a pool: {blocks:?}");
        if let NodeAction::Delete(..) = write.action {
            let last = self.ipam_nodes.remove(&name).as_ref().and_then(raw);
            self.controllers.settle(&mut self.reconciler, Outcome::IpamNode(write, Ok(None)), self.now);
            if let Some(last) = last {
                self.hear(Observed::IpamNode(Event::Delete(last)));
            }
            return;
        }
        let resource_version = self.next_version();
        let status = self.ipam_nodes.get(&name).map(|object| object["status"].clone()).unwrap_or_default();
        let generation = self.ipam_nodes.get(&name).and_then(|object| object["metadata"]["generation"].as_i64());
        let made = NodeVersion {
            uid: format!("uid-{name}"),
            resource_version: resource_version.clone(),
            generation: generation.unwrap_or_default().saturating_add(1),
        };
        let finalizers = match &write.action {
            NodeAction::Update { finalizers, .. } => finalizers.clone(),
            NodeAction::Create { .. } | NodeAction::Delete(..) => Vec::new(),
        };
        let metadata = json!({"name": name, "namespace": "kube-system", "uid": made.uid, "generation": made.generation,
            "resourceVersion": resource_version, "finalizers": finalizers});
        let object = json!({"metadata": metadata, "spec": {"pools": blocks}, "status": status});
        let event = raw(&object);
        self.ipam_nodes.insert(name, object);
        self.controllers.settle(&mut self.reconciler, Outcome::IpamNode(write, Ok(Some(made))), self.now);
        if let Some(event) = event {
            self.hear(Observed::IpamNode(Event::Apply(event)));
        }
    }

    /// What stands in the end: no address is two nodes' by the status of a valid pool, and no block that is new has an address
    /// that another node's agent reported as in use.
    fn check(&self, before: &BTreeMap<PoolKey, Vec<(String, AddrRange)>>, held: &[(PoolKey, String, AddrRange)]) {
        for (key, pool) in &self.pools {
            let ready = list(&pool["status"]["conditions"]).iter().find(|condition| condition["type"] == "Ready");
            if ready.is_none_or(|ready| ready["status"] != "True") {
                continue;
            }
            let blocks = blocks_of(pool);
            for (index, (node, block)) in blocks.iter().enumerate() {
                let other = blocks[..index].iter().find(|(_, other)| other.overlaps(block));
                assert!(other.is_none(), "{block} of {key} is {node}'s and {other:?}'s");
                if before.get(key).is_some_and(|before| before.contains(&(node.clone(), *block))) {
                    continue;
                }
                let mut others = held.iter().filter(|(of, holder, _)| of == key && holder != node);
                let taken = others.find(|(_, _, run)| run.overlaps(block));
                assert!(taken.is_none(), "{block} of {key} is assigned to {node}, and in use: {taken:?}");
            }
        }
    }
}

/// The pool of each case with its blocks and what its nodes hold, and the pools beside it.
pub(super) fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let seed = |case: &Case| serde_json::to_vec(&objects(case)).map_err(anyhow::Error::from);
    cases::load()?.iter().map(seed).collect()
}

fn objects(case: &Case) -> Vec<Json> {
    let kind = case.kind().kind();
    let mut objects = vec![];
    let mut entries = Vec::new();
    for (node, text) in &case.blocks {
        let (first, last) = text.split_once('-').unwrap_or((text.as_str(), ""));
        let entry = match text.split_once(" via ") {
            Some((prefix, gateway)) => json!({"nodeName": node, "prefix": prefix, "gateway": gateway}),
            None if last.is_empty() => json!({"nodeName": node, "prefix": text}),
            None => json!({"nodeName": node, "startIP": first, "endIP": last}),
        };
        let block = block(&entry);
        entries.push(entry);
        let Some(block) = block else { continue };
        let (start, end) = (block.first().to_string(), block.last().to_string());
        let own = json!({"name": POOL, "poolType": kind, "grant": "6955b90000000001", "startIP": start, "endIP": end});
        let (mut entry, mut report) = (own.clone(), own);
        entry["state"] = json!("Active");
        let prefix = entries.last().map(|entry| entry["prefix"].clone()).filter(Json::is_string);
        entry["subnet"] = prefix.unwrap_or_else(|| case.spec["subnet"].clone());
        let used = case.held.get(node).map_or(0, cases::HeldByNode::count);
        report["used"] = json!(used);
        report["capacity"] = json!(8);
        report["held"] = if used > 0 { json!([{"startIP": end, "endIP": end}]) } else { json!([]) };
        objects.push(json!({"kind": "IPAMNode",
            "metadata": {"name": node, "generation": 2, "finalizers": [FINALIZER]},
            "spec": {"pools": [entry]}, "status": {"observedGeneration": 2, "pools": [report]}}));
    }
    let nodes = case.blocks.keys().map(String::as_str).chain(["n1", "n2", "n3"]).collect::<BTreeSet<_>>();
    objects.extend(nodes.iter().map(|node| json!({"kind": "Node", "metadata": {"name": node}})));
    let metadata = |name: &str| json!({"name": name, "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"});
    objects.push(json!({"kind": kind, "metadata": metadata(POOL), "spec": case.old.as_ref().unwrap_or(&case.spec),
        "status": {"allocations": entries, "observedGeneration": 2}}));
    let others = case.others.iter().take(2);
    objects
        .extend(others.map(|other| json!({"kind": other.kind, "metadata": metadata(&other.name), "spec": other.spec})));
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_acts_upon_the_seeds() {
        // An invalid pool gets a status and nothing else.
        let calls: Vec<usize> = seeds().unwrap().iter().map(|seed| play(seed)).collect();
        let count = |least: usize| calls.iter().filter(|calls| **calls >= least).count();
        assert!(count(1) == calls.len() && count(2) > 250, "{} {} of {}", count(1), count(2), calls.len());
    }

    #[test]
    fn an_address_that_another_node_holds_is_missed() {
        let key = PoolKey::new(PoolKind::IpPool, "p");
        let status = json!({"allocations": [{"nodeName": "a", "startIP": "10.0.0.1", "endIP": "10.0.0.4"}],
            "conditions": [{"type": "Ready", "status": "True"}]});
        let mut cluster = Cluster {
            reconciler: Reconciler::new(Settings::default(), Arc::new(Metrics::default())),
            controllers: Model::default(),
            pools: [(key.clone(), json!({ "status": status }))].into(),
            ipam_nodes: BTreeMap::new(),
            nodes: BTreeSet::new(),
            version: 0,
            calls: 0,
            now: Instant::now(),
        };
        let held = json!([{"startIP": "10.0.0.3", "endIP": "10.0.0.3"}]);
        let report = json!({"name": "p", "poolType": "IPPool", "startIP": "10.0.0.3", "endIP": "10.0.0.3", "used": 1, "capacity": 1, "held": held});
        cluster.ipam_nodes.insert("b".to_owned(), json!({"status": {"pools": [report]}}));
        let held = cluster.held();
        cluster.check(&cluster.blocks(), &held);
        let missed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cluster.check(&BTreeMap::new(), &held)));
        assert!(missed.is_err());
    }
}
