//! The door behind all doors: a pool that came in although everyone else was away. The operator's state machine is driven to its
//! rest, around a model of the API server that does what it is asked and of agents that say what the table says they hold; then
//! conditions and blocks are held against the table. What refuses a pool elsewhere stands here in its condition, with the same
//! words, and nobody loses what he holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::{AdviceCode, Claim, Held, PoolKey, PoolKind};
use ipam_crds::{BlockUse, NodeBlock};
use ipam_e2e::cases::{Age, Case, Refusal, fleet, load};
use ipam_reconciler::allocation_state::LeaseState;
use ipam_reconciler::cluster_cache::Labels;
use ipam_reconciler::ipam_node::FINALIZER;
use ipam_reconciler::metrics::Metrics;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::pool::StatusRecord;
use ipam_reconciler::reconcile::model::Model;
use ipam_reconciler::reconcile::{
    Command, NodeAction, NodeVersion, NodeWrite, Now, Observed, Outcome, PoolPatch, PoolRef, Reconciler, Settings,
};
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use crate::core::{created, say};
use crate::objects;
use crate::verdict::assert_none;

/// Rounds after which all must be at rest; few are needed.
const ROUNDS: usize = 200;

/// The operator and what is around it.
struct Cluster<'a> {
    case: &'a Case,
    reconciler: Reconciler,
    controllers: Model,
    pools: BTreeMap<PoolKey, Value>,
    /// By name: version, generation, and what was told and said.
    ipam_nodes: BTreeMap<String, IpamNode>,
    statuses: BTreeMap<PoolKey, StatusRecord>,
    /// The texts of all events.
    events: Vec<String>,
    version: u64,
    now: Instant,
}

#[derive(Clone, Default)]
struct IpamNode {
    version: u64,
    generation: i64,
    finalizers: Vec<String>,
    told: Vec<(NodeBlock, Option<BlockUse>)>,
}

impl<'a> Cluster<'a> {
    /// With all that stands there before the pool comes in or is edited. The nodes are those that have blocks, or else all.
    fn before(case: &'a Case) -> Self {
        let reconciler = Reconciler::new(
            Settings { released_block_grace: None, ..Settings::default() },
            Arc::new(Metrics::default()),
        );
        let mut cluster = Self {
            case,
            reconciler,
            controllers: Model::default(),
            pools: BTreeMap::new(),
            ipam_nodes: BTreeMap::new(),
            statuses: BTreeMap::new(),
            events: Vec::new(),
            version: 0,
            now: Instant::now(),
        };
        for other in &case.others {
            cluster.pool_comes(objects::other(other), other.age);
        }
        if let Some(old) = objects::old(case) {
            cluster.pool_comes(old, Age::Same);
        }
        for (node, told) in objects::told(case) {
            cluster.ipam_nodes.insert(
                node,
                IpamNode { version: 1, generation: 1, finalizers: vec![FINALIZER.to_owned()], told: vec![told] },
            );
        }
        cluster.lead();
        cluster
    }

    /// Every watch begins with a list.
    fn lead(&mut self) {
        self.reconciler.lead(LeaseState::default(), self.now);
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            let listed = self.pools.iter().filter(|(key, _)| key.kind == kind);
            let listed: Vec<Observed> =
                listed.map(|(_, pool)| Observed::Pool(kind, Event::InitApply(raw(pool)))).collect();
            self.hear([Observed::Pool(kind, Event::Init)]);
            self.hear(listed);
            self.hear([Observed::Pool(kind, Event::InitDone)]);
        }
        let is_there = |name: &String| self.case.blocks.is_empty() || self.case.blocks.contains_key(name);
        let nodes = fleet().into_iter().filter(|(name, _)| is_there(name));
        let nodes = nodes.map(|(name, labels)| Observed::Node(Event::InitApply((name, Labels::from(labels).into()))));
        self.hear([Observed::Node(Event::Init)].into_iter().chain(nodes).chain([Observed::Node(Event::InitDone)]));
        let listed = self.ipam_nodes.iter().map(|(name, node)| Observed::IpamNode(Event::InitApply(node.object(name))));
        let listed: Vec<Observed> = listed.collect();
        self.hear([Observed::IpamNode(Event::Init)]);
        self.hear(listed);
        self.hear([Observed::IpamNode(Event::InitDone)]);
    }

    fn hear(&mut self, events: impl IntoIterator<Item = Observed>) {
        for event in events {
            self.controllers.observe(&mut self.reconciler, event, self.now);
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn pool_comes(&mut self, mut pool: Value, age: Age) -> PoolKey {
        let kind = PoolKind::from_kind(pool["kind"].as_str().unwrap()).unwrap();
        let key = PoolKey::new(kind, pool["metadata"]["name"].as_str().unwrap());
        let at = Timestamp::from_second(created(age)).unwrap().to_string();
        let metadata = json!({"uid": format!("uid-{key}"), "generation": 1, "creationTimestamp": at,
            "resourceVersion": self.next_version()});
        merge(&mut pool["metadata"], &metadata);
        self.pools.insert(key.clone(), pool);
        key
    }

    /// The case's pool comes in, or is edited.
    fn case_comes(&mut self) {
        let key = PoolKey::new(self.case.kind(), &self.case.pool);
        let new = objects::new(self.case);
        if self.pools.contains_key(&key) {
            let version = self.next_version();
            let pool = self.pools.get_mut(&key).unwrap();
            let generation = pool["metadata"]["generation"].as_i64().unwrap() + i64::from(pool["spec"] != new["spec"]);
            merge(&mut pool["metadata"], &json!({"generation": generation, "resourceVersion": version}));
            pool["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
            pool["spec"] = new["spec"].clone();
        } else {
            self.pool_comes(new, Age::Same);
        }
        self.tell_pool(&key);
    }

    fn tell_pool(&mut self, key: &PoolKey) {
        let event = Event::Apply(raw(&self.pools[key]));
        self.hear([Observed::Pool(key.kind, event)]);
    }

    /// Does all that is asked until nothing is.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.now += Duration::from_secs(1);
            let wall = Timestamp::from_second(1_800_000_000).unwrap();
            self.reconciler.on_lease_state(self.reconciler.lease_request().granted(), self.now);
            for command in self.controllers.poll(&mut self.reconciler, Now { instant: self.now, wall }) {
                self.perform(command);
            }
            let warnings = self.reconciler.take_events().into_iter().filter(|event| event.note.is_warning);
            self.events.extend(warnings.map(|event| event.note.text));
            if self.reconciler.is_idle() {
                return;
            }
        }
        panic!("{}: not at rest", self.case.title());
    }

    fn perform(&mut self, command: Command) {
        let outcome = match command {
            Command::WriteStatus { pool, status } => {
                let body = serde_json::to_value(status.body(pool.key.kind)).unwrap();
                self.statuses.insert(pool.key.clone(), status);
                self.change_pool(pool, |object| object["status"] = body)
            }
            Command::PatchPool { pool, patch: PoolPatch::Finalizers(finalizers) } => {
                self.change_pool(pool, |object| object["metadata"]["finalizers"] = json!(finalizers))
            }
            Command::PatchPool { patch: PoolPatch::Annotation(name, _), .. } => panic!("nobody has set {name}"),
            Command::Confirm { pool } => {
                let version = self.pools[&pool.key]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                Outcome::Pool(pool, Ok(version))
            }
            Command::WriteIpamNode(write) => return self.write_ipam_node(write),
        };
        let changed = match &outcome {
            Outcome::Pool(pool, _) => Some(pool.key.clone()),
            Outcome::IpamNode(..) => None,
        };
        self.controllers.settle(&mut self.reconciler, outcome, self.now);
        if let Some(key) = changed {
            self.tell_pool(&key);
        }
    }

    fn change_pool(&mut self, pool: PoolRef, change: impl FnOnce(&mut Value)) -> Outcome {
        let version = self.next_version();
        let object = self.pools.get_mut(&pool.key).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], *pool.resource_version, "{}", pool.key);
        object["metadata"]["resourceVersion"] = version.as_str().into();
        change(object);
        Outcome::Pool(pool, Ok(version))
    }

    /// The write, and what the node's agent says to it at once.
    fn write_ipam_node(&mut self, write: NodeWrite) {
        let name = write.node.clone();
        if let NodeAction::Delete(..) = write.action {
            let last = self.ipam_nodes.remove(&name).unwrap_or_default().object(&name);
            self.controllers.settle(&mut self.reconciler, Outcome::IpamNode(write, Ok(None)), self.now);
            return self.hear([Observed::IpamNode(Event::Delete(last))]);
        }
        let blocks = write.action.blocks().to_vec();
        let told = blocks.into_iter().map(|block| (block.clone(), self.says(&name, &block))).collect();
        let generation = self.ipam_nodes.get(&name).map_or(0, |node| node.generation) + 1;
        let (uid, written) = (format!("uid-{name}"), self.next_version());
        self.version += 1;
        let finalizers = match &write.action {
            NodeAction::Update { finalizers, .. } => finalizers.clone(),
            NodeAction::Create { .. } | NodeAction::Delete(..) => Vec::new(),
        };
        let node = IpamNode { version: self.version, generation, finalizers, told };
        let event = Event::Apply(node.object(&name));
        self.ipam_nodes.insert(name, node);
        let made = NodeVersion { uid, resource_version: written, generation };
        self.controllers.settle(&mut self.reconciler, Outcome::IpamNode(write, Ok(Some(made))), self.now);
        self.hear([Observed::IpamNode(event)]);
    }

    /// An agent that has told nothing goes on telling nothing; what one holds, it keeps. Of a block that is new to the table
    /// nothing is held.
    fn says(&self, node: &str, block: &NodeBlock) -> Option<BlockUse> {
        let is_own = block.name == self.case.pool && PoolKind::from(block.pool_type) == self.case.kind();
        let held = match self.case.held_by(node).unwrap() {
            held if is_own && self.case.blocks.contains_key(node) => held,
            _ => Held::Count(0),
        };
        objects::report(block, &held)
    }

    /// Status, reason and message of a pool's condition Ready.
    fn ready(&self, key: &PoolKey) -> (String, String, String) {
        let conditions = &self.statuses[key].summary.conditions;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        (ready.status.clone(), ready.reason.clone(), ready.message.clone())
    }
}

impl IpamNode {
    fn object(&self, name: &str) -> RawObject {
        let mut object = objects::ipam_node(name, &self.told);
        let metadata = json!({"uid": format!("uid-{name}"), "generation": self.generation,
            "resourceVersion": self.version.to_string(), "finalizers": self.finalizers});
        merge(&mut object["metadata"], &metadata);
        object["status"]["observedGeneration"] = self.generation.into();
        raw(&object)
    }
}

fn merge(into: &mut Value, fields: &Value) {
    into.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
}

fn raw(object: &Value) -> RawObject {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// What an InvalidSpec names, and how many mistakes it only counts.
pub(crate) fn named(message: &str) -> (Vec<Refusal>, usize) {
    let message = message.rsplit_once(". Until the spec is valid, ").map_or(message, |(errors, _)| errors);
    let counted = message.rsplit_once(" and ").and_then(|(said, counted)| {
        let count: usize = counted.strip_suffix(" more")?.parse().ok()?;
        Some((said, count))
    });
    let (said, more) = counted.unwrap_or((message, 0));
    // A message may hold the separator itself; what follows it names no reason.
    let refusals = said.split("; ").filter_map(|part| {
        let mut words = part.splitn(3, ": ");
        let (field, reason) = (words.next()?, words.next()?);
        let is_reason = ipam_core::Reason::ALL.iter().any(|known| known.as_str() == reason);
        is_reason.then(|| Refusal { field: field.to_owned(), reason: reason.to_owned() })
    });
    (refusals.collect(), more)
}

/// Whether a condition names the mistakes of an invalid spec: each with field and reason, or all beyond its length by number.
pub(crate) fn names_mistakes(case: &Case, message: &str) -> Result<(), String> {
    let (named, more) = named(message);
    let mut wanted: Vec<&Refusal> = case.refused.iter().filter(|refusal| refusal.is_of_the_spec()).collect();
    for one in &named {
        let place = wanted.iter().position(|wanted| *wanted == one);
        wanted.swap_remove(place.ok_or_else(|| format!("{one:?} is named, but not expected"))?);
    }
    if wanted.len() == more { Ok(()) } else { Err(format!("{wanted:?} are not named, {more} are counted")) }
}

fn disagreement(case: &Case) -> Result<(), String> {
    let mut cluster = Cluster::before(case);
    cluster.settle();
    cluster.case_comes();
    cluster.settle();
    let key = PoolKey::new(case.kind(), &case.pool);
    for other in &case.others {
        let of = PoolKey::new(PoolKind::from_kind(&other.kind).unwrap(), &other.name);
        // One of the same name is of the other kind, and is not the one that the table means.
        let yields = other.name != case.pool && case.yields.contains(&other.name);
        expect(&cluster.ready(&of), if yields { "Overlap" } else { "Valid" })?;
    }
    let ready = cluster.ready(&key);
    if case.is_invalid() {
        expect(&ready, "InvalidSpec")?;
        names_mistakes(case, &ready.2)?;
    } else if case.yields.contains(&case.pool) {
        expect(&ready, "Overlap")?;
    } else if case.is_deferred() {
        expect(&ready, "EditDeferred")?;
    } else {
        expect(&ready, "Valid")?;
    }
    has_the_effects_of_the_advice(&cluster, &key)?;
    keeps_what_is_held(case, &cluster.statuses[&key])
}

/// The operator gives no advice: what is `warned` of stands in no condition and in no event. Of three codes the status shows
/// the effect, and shows it only then: nodes without a block, no node at all, and nodes whose block is being released.
fn has_the_effects_of_the_advice(cluster: &Cluster<'_>, key: &PoolKey) -> Result<(), String> {
    let (case, status) = (cluster.case, &cluster.statuses[key]);
    let said = say(case, &|other| created(other.age));
    let conditions = &status.summary.conditions;
    let texts: Vec<&String> = conditions.iter().map(|condition| &condition.message).chain(&cluster.events).collect();
    for advice in said.advice.iter().chain(&said.of_nodes) {
        if texts.iter().any(|text| text.contains(&advice.message)) {
            return Err(format!("{advice} stands in {texts:?}"));
        }
    }
    let serves = !case.is_invalid() && !case.yields.contains(&case.pool);
    let is_warned = |code: AdviceCode| case.warned.iter().any(|warning| warning.code == code.as_str());
    let is_true = |kind: &str| conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True");
    let nodes = status.summary.nodes.unwrap_or_default();
    let mut effects = Vec::new();
    if serves && case.fleet && case.old.is_none() {
        effects.push((AdviceCode::TooSmall, is_true("Exhausted")));
        effects.push((AdviceCode::NoNodeSelected, nodes.served + nodes.unserved == 0));
    }
    if serves && case.old.is_some() {
        let leaves = |node: &String| !case.leaving.contains(node) && !case.held_by(node).unwrap().is_empty();
        let left_out = status.releasing.iter().any(|release| leaves(&release.claim.node));
        effects.push((AdviceCode::NodesLeftOut, left_out && is_true("Releasing")));
    }
    match effects.into_iter().find(|(code, shows)| is_warned(*code) != *shows) {
        Some((code, shows)) => Err(format!("the status shows {code}: {shows}, and the table warns of it: {}", !shows)),
        None => Ok(()),
    }
}

fn expect((status, reason, message): &(String, String, String), wanted: &str) -> Result<(), String> {
    let is_ready = if wanted == "Valid" { "True" } else { "False" };
    if (status.as_str(), reason.as_str()) == (is_ready, wanted) {
        return Ok(());
    }
    Err(format!("Ready is {status} ({reason}: {message}), not {is_ready} ({wanted})"))
}

/// Whose addresses may be held has the same block as before, whatever the spec says by now.
fn keeps_what_is_held(case: &Case, status: &StatusRecord) -> Result<(), String> {
    let releasing = status.releasing.iter().map(|release| &release.claim);
    let after: Vec<&Claim> = status.allocations.iter().chain(releasing).collect();
    for claim in case.claims().unwrap() {
        let is_held = !case.held_by(&claim.node).unwrap().is_empty();
        let has = |after: &&Claim| (&after.node, after.range) == (&claim.node, claim.range);
        if is_held && !after.iter().any(has) {
            return Err(format!("node {} lost {}, of which addresses are held", claim.node, claim.range));
        }
        let others = after.iter().filter(|after| after.node != claim.node && after.range.overlaps(&claim.range));
        if let Some(other) = others.into_iter().next().filter(|_| is_held) {
            return Err(format!("node {} has {} of node {}", other.node, other.range, claim.node));
        }
    }
    Ok(())
}

#[test]
fn reconcile_says_of_every_case_in_a_condition_what_the_table_says() {
    let wrong = load().unwrap().into_iter().filter_map(|case| {
        let found = disagreement(&case).err()?;
        Some(format!("{}: {found}", case.title()))
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn what_a_condition_names_is_read_as_it_was_written() {
    let refusal = |field: &str, reason: &str| Refusal { field: field.to_owned(), reason: reason.to_owned() };
    let message = "spec.subnet: Malformed: \"a; b\" is none; spec.gateway: OutsidePool: \"x\" is not in it and 12 more";
    assert_eq!(named(message), (vec![refusal("spec.subnet", "Malformed"), refusal("spec.gateway", "OutsidePool")], 12));
}
