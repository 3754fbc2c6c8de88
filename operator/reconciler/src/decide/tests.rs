use std::collections::BTreeMap;
use std::sync::LazyLock;

use ipam_core::GrantId;
use ipam_core::occupancy::Source;
use ipam_core::plan::ClaimSource;
use ipam_crds::{AddressCounts, BlockCounts, BlockState, BlockUse, NodeBlock, NodeCounts, PoolType};
use serde_json::{Value, json};

use super::*;
use crate::facts;
use crate::ipam_node::{IpamNodeRecord, entry, grant};
use crate::objects::RawObject;
use crate::pool::FORCE_RELEASE;

mod cordon;
mod gateways;
mod releases;
mod status_size;
mod unavailable_addresses;

const IP_SPEC: &str = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.1"}"#;
const TINY_SPEC: &str = r#"{"subnet":"10.0.0.0/29","perNodeBlockSize":3}"#;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// The same moment by the clock that nobody sets.
fn instant(second: i64) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + Duration::from_secs(u64::try_from(second).unwrap())
}

fn pool(spec: &str, generation: i64, status: &Value) -> PoolRecord {
    pool_of(PoolKind::IpPool, spec, generation, status)
}

fn pool_of(kind: PoolKind, spec: &str, generation: i64, status: &Value) -> PoolRecord {
    let object = json!({
        "metadata": {"name": "blue", "uid": "u", "generation": generation, "resourceVersion": "1",
            "finalizers": [crate::pool::FINALIZER]},
        "spec": serde_json::from_str::<Value>(spec).unwrap(),
        "status": status,
    });
    let object: RawObject = serde_json::from_str(&object.to_string()).unwrap();
    PoolRecord::read(kind, &object, None)
}

/// A scene to decide about: nodes by name, IPAMNodes by name, and the time.
#[derive(Default)]
struct Scene {
    nodes: BTreeMap<String, BTreeMap<String, String>>,
    leaving: BTreeMap<String, Leaving>,
    ipam_nodes: IpamNodes,
    other_pools: OtherPools,
    grace: Option<Duration>,
    absences: NodeAbsences,
    no_place: Option<CreateBlocked>,
    write_errors: BTreeMap<String, String>,
    told: Vec<Assignment>,
    just_assigned: BTreeSet<String>,
    previous_gateways: Option<Vec<AddrRange>>,
    second: i64,
    counts_wait: bool,
}

impl Scene {
    fn of(nodes: &[&str]) -> Self {
        let nodes = nodes.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect();
        let mut absences = NodeAbsences::default();
        absences.resume(instant(0));
        Self { nodes, absences, ..Self::default() }
    }

    fn decide(&self, pool: &PoolRecord) -> Decision {
        self.decide_at(pool, at(self.second))
    }

    /// By a wall clock that may be wrong.
    fn decide_at(&self, pool: &PoolRecord, now: Timestamp) -> Decision {
        let nodes: Vec<NodeRef<'_>> = self.nodes.iter().map(|(name, labels)| NodeRef { name, labels }).collect();
        let occupancy = self.occupancy();
        let unavailable = pool.spec.as_ref().map(|pool| facts::unavailable(&occupancy, pool, &|_| false));
        let other_pools = OtherPools { unavailable: unavailable.unwrap_or_default(), ..self.other_pools.clone() };
        decide(&DecisionInput {
            pool,
            nodes: &nodes,
            leaving: &self.leaving,
            ipam_nodes: &self.ipam_nodes,
            occupancy: &occupancy,
            told: &self.told,
            just_assigned: &self.just_assigned,
            previous_gateways: self.previous_gateways.as_deref(),
            other_pools: &other_pools,
            grace: self.grace,
            absences: &self.absences,
            no_place: self.no_place,
            write_error: &|node| self.write_errors.get(node).cloned(),
            finalizers: true,
            counts_due: !self.counts_wait,
            now,
            instant: instant(self.second),
        })
    }

    fn occupancy(&self) -> Occupancy {
        let mut occupancy = Occupancy::new();
        for (node, record) in self.ipam_nodes.all() {
            let facts = crate::facts::of_ipam_node(&mut occupancy, node, record, &[]);
            occupancy.replace(&Source::IpamNode(node.clone()), facts);
        }
        for claim in &self.other_pools.reserved {
            let key = PoolKey::new(PoolKind::IpPool, "blue");
            let fact = occupancy.fact(&key, &claim.node, claim.range, Evidence::Reserved);
            occupancy.replace(&Source::Reservations(claim.node.clone()), vec![fact]);
        }
        occupancy
    }

    /// The agent of `node` reports about the block that its IPAMNode has.
    fn report(&mut self, node: &str, used: i64) {
        let record = self.ipam_nodes.get_mut(node).unwrap();
        record.observed_generation = Some(record.generation);
        let reports = record.blocks.iter().map(|block| BlockUse {
            name: block.name.clone(),
            pool_type: block.pool_type,
            start_ip: block.start_ip.clone(),
            end_ip: block.end_ip.clone(),
            grant: Some(block.grant.clone()),
            ended: used == 0 && block.state == BlockState::Releasing,
            idle: false,
            used,
            capacity: 4,
            held: Vec::new(),
        });
        record.reports = reports.collect();
    }

    /// Writes the IPAMNodes that follow from a decision: what is released is taken out.
    fn write_ipam_nodes(&mut self, pool: &PoolRecord, assignments: &[Assignment]) {
        for assignment in assignments {
            let node = assignment.node.as_str();
            if self.ipam_nodes.get(node).is_none() {
                self.ipam_nodes.apply(node, IpamNodeRecord::default()).unwrap();
                self.ipam_nodes.get_mut(node).unwrap().fenced = true;
            }
            let known = self.ipam_nodes.get(node).unwrap();
            let is_out = assignment.phase != BlockPhase::Active && known.has_released(&pool.key);
            let mut new = (!is_out).then(|| entry(&pool.key, pool.spec.as_deref().ok(), assignment, Some(known)));
            if let Some(new) = &mut new {
                grant(new, Some(known), None, false, |least| GrantId::new(least, 7));
            }
            let blocks: Vec<NodeBlock> = new.into_iter().collect();
            if known.blocks != blocks {
                self.ipam_nodes.begin_write(node, &blocks);
                self.ipam_nodes.end_write(node, true);
                let record = self.ipam_nodes.get_mut(node).unwrap();
                (record.blocks, record.generation, record.write_in_flight) = (blocks, record.generation + 1, false);
            }
        }
    }

    fn block_of(&self, node: &str) -> &NodeBlock {
        &self.ipam_nodes.get(node).unwrap().blocks[0]
    }
}

/// The pool after `decision` was written.
fn written(pool: &PoolRecord, decision: &Decision) -> PoolRecord {
    PoolRecord { status: decision.status.clone().expect("a status to write"), ..pool.clone() }
}

fn condition<'a>(
    status: &'a StatusRecord,
    kind: &str,
) -> &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    status.summary.conditions.iter().find(|condition| condition.type_ == kind).expect(kind)
}

fn blocks(status: &StatusRecord) -> Vec<String> {
    status.allocations.iter().map(|claim| format!("{}={}", claim.node, claim.range)).collect()
}

#[test]
fn nodes_get_the_lowest_blocks_in_name_order() {
    let pool = pool(IP_SPEC, 1, &json!({}));
    let decision = Scene::of(&["n2", "n1"]).decide(&pool);
    let status = decision.status.unwrap();
    assert_eq!(blocks(&status), ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"]);
    assert_eq!(status.summary.observed_generation, Some(1));
    assert_eq!(status.summary.nodes, Some(NodeCounts { served: 2, unserved: 0, releasing: 0 }));
    assert_eq!(status.summary.blocks.unwrap().total, 16383);
    assert_eq!(status.summary.addresses, Some(AddressCounts { capacity: 7, used: 0 }));
    assert_eq!(condition(&status, READY).status, "True");
    assert_eq!(condition(&status, EXHAUSTED).status, "False");
    assert_eq!(condition(&status, DEGRADED).status, "False");
    assert!(decision.notes.is_empty());
}

#[test]
fn a_block_that_is_reserved_for_two_nodes_is_assigned_to_neither() {
    let (pool, mut scene) = (pool(IP_SPEC, 1, &json!({})), Scene::of(&["n1", "n2"]));
    let range = AddrRange::new("192.168.0.9".parse().unwrap(), "192.168.0.12".parse().unwrap()).unwrap();
    let reserved = |node: &str| Claim { node: node.to_owned(), range, gateway: None, source: ClaimSource::IpamNode };
    scene.other_pools.reserved = vec![reserved("n2")];
    let status = scene.decide(&pool).status.unwrap();
    assert_eq!(blocks(&status), ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.9-192.168.0.12"]);
    scene.other_pools.reserved.push(reserved("n1"));
    let status = scene.decide(&pool).status.unwrap();
    assert_eq!(blocks(&status), ["n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"]);
    // While the pool is deleted, its finalizer stays until both have reported.
    let mut deleted = pool.clone();
    deleted.life.deleting = true;
    let decision = scene.decide(&deleted);
    assert_eq!((decision.patch, decision.status.unwrap().releasing.len()), (None, 2));
}

#[test]
fn what_is_right_is_not_written_again() {
    let (pool, mut scene) = (pool(IP_SPEC, 1, &json!({})), Scene::of(&["n1"]));
    let pool = written(&pool, &scene.decide(&pool));
    scene.second = 1000;
    let decision = scene.decide(&pool);
    assert_eq!((decision.status, decision.notes), (None, vec![]));
    assert_eq!(decision.assignments.unwrap().len(), 1, "who has what is told all the same");
}

#[test]
fn an_invalid_spec_takes_nothing_away_and_says_every_mistake_once_per_generation() {
    let (before, mut scene) = (pool(IP_SPEC, 1, &json!({})), Scene::of(&["n1"]));
    let before = written(&before, &scene.decide(&before));
    let broken = r#"{"subnet":"nonsense","perNodeBlockSize":0}"#;
    let edited = PoolRecord { status: before.status.clone(), ..pool(broken, 2, &json!({})) };
    scene.second = 60;
    let decision = scene.decide(&edited);
    let status = decision.status.as_ref().unwrap();
    assert_eq!(blocks(status), blocks(&before.status));
    assert_eq!(status.summary.nodes, before.status.summary.nodes);
    let ready = condition(status, READY);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "InvalidSpec"));
    assert!(
        ready.message.contains("spec.subnet") && ready.message.contains("spec.perNodeBlockSize"),
        "{}",
        ready.message
    );
    let way_out = ". Until the spec is valid, existing blocks stay, and none is assigned or released.";
    assert!(ready.message.ends_with(way_out), "{}", ready.message);
    assert_eq!(ready.last_transition_time.0, at(60));
    assert_eq!(decision.assignments, None, "what was given before stands");
    assert_eq!(decision.notes.len(), 1);
    assert_eq!(decision.notes[0].reason, "InvalidSpec");

    let edited = written(&edited, &decision);
    assert_eq!(scene.decide(&edited), Decision::default(), "said once");
    let again = PoolRecord { generation: 3, ..edited };
    let decision = scene.decide(&again);
    assert_eq!(decision.notes.len(), 1, "a new generation is said anew");
    assert_eq!(condition(&decision.status.unwrap(), READY).last_transition_time.0, at(60), "still the same state");
}

#[test]
fn a_spec_that_is_mended_is_ready_again_with_nothing_moved() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let good = pool(IP_SPEC, 1, &json!({}));
    let good = written(&good, &scene.decide(&good));
    let bad = PoolRecord { status: good.status.clone(), ..pool("{}", 2, &json!({})) };
    let bad = written(&bad, &scene.decide(&bad));
    scene.second = 5;
    let mended = PoolRecord { status: bad.status.clone(), generation: 3, ..good.clone() };
    let status = scene.decide(&mended).status.unwrap();
    assert_eq!(blocks(&status), blocks(&good.status));
    assert_eq!(condition(&status, READY).last_transition_time.0, at(5));
}

#[test]
fn a_pool_that_runs_out_names_the_nodes_left_out_once_per_change() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let record = pool(TINY_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    let status = decision.status.as_ref().unwrap();
    let exhausted = condition(status, EXHAUSTED);
    assert_eq!((exhausted.status.as_str(), exhausted.reason.as_str()), ("True", "NoFreeRanges"));
    assert!(exhausted.message.contains("n3"), "{}", exhausted.message);
    assert_eq!(status.summary.nodes, Some(NodeCounts { served: 2, unserved: 1, releasing: 0 }));
    assert_eq!(decision.notes.len(), 1);
    assert_eq!(decision.notes[0].reason, "NoFreeRanges");

    let record = written(&record, &decision);
    scene.nodes.insert("n4".into(), BTreeMap::new());
    scene.second = 9;
    let decision = scene.decide(&record);
    assert!(decision.notes[0].text.contains("n3, n4"), "{:?}", decision.notes);
    assert_eq!(condition(decision.status.as_ref().unwrap(), EXHAUSTED).last_transition_time.0, at(0));

    let record = written(&record, &decision);
    scene.nodes.retain(|name, _| name.as_str() < "n3");
    scene.second = 20;
    let decision = scene.decide(&record);
    assert_eq!(decision.notes, vec![]);
    assert_eq!(condition(&decision.status.unwrap(), EXHAUSTED).last_transition_time.0, at(20));
}

#[test]
fn a_node_whose_static_prefix_is_in_use_is_not_told_to_enlarge_the_pool() {
    let mut scene = Scene::of(&["n1"]);
    let record = pool_of(PoolKind::CidrPool, r#"{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":24}"#, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    scene.report("n1", 1);
    let status = written(&record, &decision).status;
    let spec = r#"{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":24,"staticAllocations":[{"nodeName":"n2","prefix":"10.0.0.0/24"}]}"#;
    let record = PoolRecord { status, ..pool_of(PoolKind::CidrPool, spec, 2, &json!({})) };
    scene.nodes.insert("n2".into(), BTreeMap::new());
    let status = scene.decide(&record).status.unwrap();
    let exhausted = condition(&status, EXHAUSTED);
    assert_eq!((exhausted.status.as_str(), exhausted.reason.as_str()), ("True", "NoFreePrefixes"));
    let message = &exhausted.message;
    let holder = "static prefixes are in use: n2 waits for node n1. Drain the nodes that have them.";
    assert!(message.contains("(n2)") && message.contains(holder) && !message.contains("Enlarge"), "{message}");
}

#[test]
fn a_node_whose_static_prefix_is_in_use_is_told_so_beside_others() {
    let spec = r#"{"cidr":"10.0.0.0/24","perNodeNetworkPrefix":24,"staticAllocations":[{"nodeName":"n2","prefix":"10.0.0.0/24"}]}"#;
    let mut scene = Scene::of(&["n2", "n3"]);
    // The node itself has the addresses from another pool.
    let block = json!({"name": "red", "poolType": "IPPool", "state": "Active", "startIP": "10.0.0.1", "endIP": "10.0.0.4",
        "subnet": "10.0.0.0/24", "grant": "6500000000000001"});
    let blocks = vec![serde_json::from_value(block).unwrap()];
    scene.ipam_nodes.apply("n2", IpamNodeRecord { blocks, ..IpamNodeRecord::default() }).unwrap();
    let status = scene.decide(&pool_of(PoolKind::CidrPool, spec, 1, &json!({}))).status.unwrap();
    let message = &condition(&status, EXHAUSTED).message;
    for text in ["n2 waits for node n2 of IPPool \"red\".", "For other nodes no block is free. Enlarge spec.cidr"] {
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn a_cidr_pool_that_runs_out_says_prefixes() {
    let spec = r#"{"cidr":"10.0.0.0/24","perNodeNetworkPrefix":24,"gatewayIndex":1}"#;
    let decision = Scene::of(&["n1", "n2"]).decide(&pool_of(PoolKind::CidrPool, spec, 1, &json!({})));
    assert_eq!(decision.notes[0].reason, "NoFreePrefixes");
    let status = decision.status.unwrap();
    assert_eq!(blocks(&status), ["n1=10.0.0.0-10.0.0.255"]);
    assert_eq!(status.allocations[0].gateway, Some("10.0.0.1".parse().unwrap()));
}

#[test]
fn a_cidr_pools_changed_gateway_is_updated_in_place() {
    let mut scene = Scene::of(&["n1"]);
    let spec = |index: u32| format!(r#"{{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":24,"gatewayIndex":{index}}}"#);
    let one = pool_of(PoolKind::CidrPool, &spec(1), 1, &json!({}));
    let decision = scene.decide(&one);
    scene.write_ipam_nodes(&one, decision.assignments.as_ref().unwrap());
    let one = written(&one, &decision);
    let unavailable = AddrRange::new("10.0.0.2".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    crate::ipam_node::set_unavailable(&mut scene.ipam_nodes.get_mut("n1").unwrap().blocks[0], &[unavailable]);
    scene.report("n1", 0);
    let two = PoolRecord { status: one.status, ..pool_of(PoolKind::CidrPool, &spec(2), 2, &json!({})) };
    let status = scene.decide(&two).status.unwrap();
    assert_eq!(status.allocations[0].gateway, Some("10.0.0.2".parse().unwrap()));
    assert_eq!(blocks(&status), ["n1=10.0.0.0-10.0.0.255"]);
}

fn releasing(status: &StatusRecord) -> Vec<String> {
    status.releasing.iter().map(|release| format!("{}={}", release.claim.node, release.claim.range)).collect()
}

/// Each of these nodes has its block of the pool, by status and IPAMNode.
fn served(nodes: &[&str]) -> (Scene, PoolRecord) {
    let mut scene = Scene::of(nodes);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    (scene, written(&record, &decision))
}

/// `n1` has left `n2`; its IPAMNode says Releasing.
fn departed() -> (Scene, PoolRecord) {
    let (mut scene, record) = served(&["n1", "n2"]);
    scene.nodes.remove("n1");
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    (scene, written(&record, &decision))
}

#[test]
fn a_record_of_an_ipam_node_outweighs_a_status_unless_it_is_known_to_be_released() {
    let entry = |node: &str, start: &str, end: &str| json!({"nodeName": node, "startIP": start, "endIP": end});
    let swapped = json!({"allocations": [
        entry("n1", "192.168.0.5", "192.168.0.8"), entry("n2", "192.168.0.1", "192.168.0.4")]});
    let mut scene = Scene::of(&["n1", "n2"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    let status = scene.decide(&pool(IP_SPEC, 1, &swapped)).status.unwrap();
    assert_eq!(blocks(&status), blocks(decision.status.as_ref().unwrap()), "nothing moves");

    for node in ["n1", "n2"] {
        let record = scene.ipam_nodes.get_mut(node).unwrap();
        record.blocks[0].state = BlockState::Releasing;
        scene.report(node, 0);
    }
    let decision = scene.decide(&pool(IP_SPEC, 1, &swapped));
    let status = decision.status.unwrap();
    assert_eq!(blocks(&status), ["n1=192.168.0.5-192.168.0.8", "n2=192.168.0.1-192.168.0.4"]);
}

#[test]
fn a_selector_that_matches_no_node_is_said() {
    let pool = pool(IP_SPEC, 1, &json!({}));
    let said = |scene: &Scene| {
        let status = scene.decide(&pool).status.unwrap();
        condition(&status, READY).message.clone()
    };
    assert_eq!(said(&Scene::default()), "nodeSelector matches no node.");
    assert_eq!(said(&Scene::of(&["n1"])), "");
}

#[test]
fn a_wiped_status_is_restored_from_ipam_nodes() {
    let mut scene = Scene::of(&["n1", "n2"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    // A node that would be first by name, were the blocks given anew.
    scene.nodes.insert("n0".into(), BTreeMap::new());
    let status = scene.decide(&record).status.unwrap();
    let expected = ["n0=192.168.0.9-192.168.0.12", "n1=192.168.0.1-192.168.0.4", "n2=192.168.0.5-192.168.0.8"];
    assert_eq!(blocks(&status), expected);
}

#[test]
fn a_status_edited_to_nonsense_is_repaired_without_moving_what_was_right() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    let record = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&record);
    let right = blocks(decision.status.as_ref().unwrap());
    scene.write_ipam_nodes(&record, decision.assignments.as_ref().unwrap());
    let entry = |node: &str, start: &str, end: &str| json!({"nodeName": node, "startIP": start, "endIP": end});
    let first = entry("n1", "192.168.0.1", "192.168.0.4");
    for nonsense in [
        json!({"allocations": [first, entry("n2", "x", "192.168.0.8"), "n3"]}),
        json!({"allocations": [first, entry("n2", "192.168.0.1", "192.168.0.4"), entry("n3", "10.0.0.1", "10.0.0.4")]}),
        json!({"allocations": [entry("n2", "192.168.0.6", "192.168.0.9")], "nodes": "many", "conditions": {}}),
        // Names that come first take what is another's: one that nobody bears, and one that has a block of its own.
        json!({"allocations": [entry("a0", "192.168.0.1", "192.168.0.4"), entry("n2", "192.168.0.5", "192.168.0.8")]}),
        json!({"allocations": [entry("a0", "192.168.0.5", "192.168.0.8"), first, entry("n2", "192.168.0.5", "192.168.0.8")]}),
        json!({"allocations": [entry("n1", "192.168.0.5", "192.168.0.8"), entry("n2", "192.168.0.5", "192.168.0.8")]}),
        json!("nonsense"),
    ] {
        let spoilt = pool(IP_SPEC, 1, &nonsense);
        let status = scene.decide(&spoilt).status.expect("a repair");
        assert_eq!(blocks(&status), right, "{nonsense}");
    }
}

#[test]
fn a_block_that_the_spec_no_longer_has_is_kept_until_the_agent_says_that_it_released_it() {
    let mut scene = Scene::of(&["n1"]);
    let old = pool(IP_SPEC, 1, &json!({}));
    let decision = scene.decide(&old);
    scene.write_ipam_nodes(&old, decision.assignments.as_ref().unwrap());
    let resized = IP_SPEC.replace(":4", ":8");
    let edited = PoolRecord { status: decision.status.unwrap(), ..pool(&resized, 2, &json!({})) };

    // Use that no agent has reported counts as held.
    let decision = scene.decide(&edited);
    let edited = written(&edited, &decision);
    assert_eq!(blocks(&edited.status), ["n1=192.168.0.1-192.168.0.4"]);
    assert_eq!(condition(&edited.status, DEGRADED).status, "True");
    let ready = condition(&edited.status, READY);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "EditDeferred"));
    assert!(ready.message.contains("node n1 (not reported)"), "{}", ready.message);
    let way_out = "while the node is cordoned, which stops all pools on it: kubectl annotate node NODE nv-ipam.nvidia.com/cordon=true; \
                   afterwards: kubectl annotate node NODE nv-ipam.nvidia.com/cordon-";
    for kind in [READY, DEGRADED] {
        let message = &condition(&edited.status, kind).message;
        assert!(message.ends_with(way_out), "{message}");
    }
    assert_eq!(decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["EditDeferred"]);
    assert_eq!(scene.decide(&edited).notes, vec![], "once");
    scene.write_ipam_nodes(&edited, decision.assignments.as_ref().unwrap());
    assert_eq!(scene.block_of("n1").state, BlockState::Active, "the last good state is served");

    // While addresses are held nothing changes; none held is believed only of an agent that was told to give no more.
    for (used, state) in [(2, BlockState::Active), (0, BlockState::Releasing)] {
        scene.report("n1", used);
        let decision = scene.decide(&edited);
        assert_eq!(decision.assignments.as_ref().unwrap()[0].block.range.to_string(), "192.168.0.1-192.168.0.4");
        scene.write_ipam_nodes(&edited, decision.assignments.as_ref().unwrap());
        assert_eq!(scene.block_of("n1").state, state, "{used} used");
    }
    assert_eq!(scene.decide(&edited).assignments.unwrap()[0].block.range.to_string(), "192.168.0.1-192.168.0.4");
    scene.report("n1", 0);
    let decision = scene.decide(&edited);
    let status = decision.status.unwrap();
    assert_eq!(blocks(&status), ["n1=192.168.0.1-192.168.0.8"]);
    assert_eq!(condition(&status, DEGRADED).status, "False");
}

#[test]
fn used_addresses_are_summed_and_written_alone_only_when_it_is_time() {
    let (mut scene, record) = served(&["n1", "n2"]);
    scene.report("n1", 2);
    scene.report("n2", 3);
    scene.counts_wait = true;
    let decision = scene.decide(&record);
    assert_eq!((decision.status, decision.counts_deferred), (None, true));
    scene.counts_wait = false;
    let status = scene.decide(&record).status.unwrap();
    assert_eq!(status.summary.addresses.unwrap().used, 5);
    scene.counts_wait = true;
    scene.nodes.insert("n3".into(), BTreeMap::new());
    let status = scene.decide(&record).status.expect("a join does not wait for counts");
    assert_eq!(status.summary.addresses.unwrap().used, 5);
}

#[test]
fn addresses_in_a_free_block_are_written_when_it_is_time() {
    let (mut scene, record) = served(&["n1"]);
    scene.report("n1", 1);
    let stray = ipam_crds::AddressRange { start_ip: "192.168.0.9".to_owned(), end_ip: "192.168.0.9".to_owned() };
    scene.ipam_nodes.get_mut("n1").unwrap().reports[0].held = vec![stray];
    scene.counts_wait = true;
    assert!(scene.decide(&record).counts_deferred);
    scene.counts_wait = false;
    let free = |status: &StatusRecord| status.summary.blocks.unwrap().free;
    assert_eq!(free(&record.status) - free(&scene.decide(&record).status.unwrap()), 1);
}

#[test]
fn counts_stop_at_the_largest_number_the_api_can_say() {
    let spec = r#"{"cidr":"fd00::/8","perNodeNetworkPrefix":100}"#;
    let status = Scene::of(&["n1"]).decide(&pool_of(PoolKind::CidrPool, spec, 1, &json!({}))).status.unwrap();
    assert_eq!(status.summary.blocks, Some(BlockCounts { total: i64::MAX, free: i64::MAX }));
}

#[test]
fn messages_stay_bounded_however_many_nodes_there_are() {
    let names: Vec<String> = (0..5000).map(|number| format!("node-{number:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let decision = Scene::of(&names).decide(&pool(TINY_SPEC, 1, &json!({})));
    assert!(decision.notes[0].text.len() <= 1024);
    let status = decision.status.unwrap();
    let message = &condition(&status, EXHAUSTED).message;
    assert!(message.len() < 1100 && message.contains("4998 nodes (") && message.contains(" more"), "{message}");
}

#[test]
fn a_problem_of_a_pool_hides_no_other() {
    let (mut scene, record) = served(&["n1", "n2", "n3"]);
    scene.write_errors.insert("n2".into(), "forbidden".into());
    let resized = IP_SPEC.replace(":4", ":8");
    let edited = PoolRecord { status: record.status, ..pool(&resized, 2, &json!({})) };
    let status = scene.decide(&edited).status.unwrap();
    let degraded = condition(&status, DEGRADED);
    assert_eq!(degraded.reason, "NodesNotUpdated");
    let texts = ["IPAMNodes of node n2 cannot be written", "Blocks of an earlier spec are in use on 3 nodes"];
    assert!(texts.iter().all(|text| degraded.message.contains(text)), "{}", degraded.message);
}

#[test]
fn each_problem_has_an_event_when_it_is_new() {
    let reasons = |decision: &Decision| decision.notes.iter().map(|note| note.reason).collect::<Vec<_>>();
    let (mut scene, record) = served(&["n1", "n2", "n3"]);
    // A block is being released, and pods of another node use addresses without a block.
    scene.nodes.remove("n3");
    let decision = scene.decide(&record);
    assert_eq!(reasons(&decision), ["BlocksReleasing"]);
    let record = written(&record, &decision);
    let mut stray = scene.ipam_nodes.get("n3").unwrap().clone();
    stray.blocks.clear();
    let address = ipam_crds::AddressRange { start_ip: "192.168.0.99".to_owned(), end_ip: "192.168.0.99".to_owned() };
    let held = json!({"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.97", "endIP": "192.168.0.100", "used": 1,
        "capacity": 4, "held": [address]});
    stray.reports = vec![serde_json::from_value(held).unwrap()];
    scene.ipam_nodes.apply("n4", stray).unwrap();
    let decision = scene.decide(&record);
    assert_eq!(reasons(&decision), ["InUseWithoutBlock"]);
    let record = written(&record, &decision);
    scene.write_errors.insert("n1".into(), "forbidden".into());
    let decision = scene.decide(&record);
    assert_eq!(reasons(&decision), ["NodesNotUpdated"]);
    // The text of another problem changes.
    let record = written(&record, &decision);
    scene.report("n3", 2);
    assert_eq!(reasons(&scene.decide(&record)), [""; 0]);
}

#[test]
fn ipam_nodes_that_cannot_be_written_degrade_the_pool() {
    let (mut scene, record) = served(&["n1", "n2", "n3"]);
    scene.write_errors.insert("n2".into(), "admission webhook denied the request".into());
    let decision = scene.decide(&record);
    let degraded = condition(decision.status.as_ref().unwrap(), DEGRADED);
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "NodesNotUpdated"));
    assert_eq!(
        degraded.message,
        "The IPAMNodes of node n2 cannot be written, so their agents may not know the last change of their blocks. The operator tries again. \
         Last error: admission webhook denied the request"
    );
    assert_eq!(decision.notes, [PoolEvent::warning("NodesNotUpdated", &degraded.message)]);
    let record = written(&record, &decision);
    scene.write_errors.insert("n3".into(), "forbidden ".repeat(100));
    let decision = scene.decide(&record);
    let message = &condition(decision.status.as_ref().unwrap(), DEGRADED).message;
    assert!(message.contains("2 nodes: n2, n3") && message.contains("forbidden") && message.len() < 600, "{message}");
    assert_eq!(decision.notes, [], "the event is published once");
    let record = written(&record, &decision);
    scene.write_errors.clear();
    let status = scene.decide(&record).status.unwrap();
    assert_eq!(condition(&status, DEGRADED).reason, "AsSpecified");
}

#[test]
fn a_pool_shows_that_no_ipam_node_can_be_created() {
    let (mut scene, record) = served(&["n1", "n2"]);
    scene.no_place = Some(CreateBlocked::Gone);
    assert_eq!(scene.decide(&record).status, None, "each node has an IPAMNode");
    drop(scene.ipam_nodes.delete("n2"));
    let decision = scene.decide(&record);
    let degraded = condition(decision.status.as_ref().unwrap(), DEGRADED);
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "IPAMNodesRefused"));
    assert_eq!(
        degraded.message,
        "The API server accepts no IPAMNodes: their namespace or their CustomResourceDefinition is not there. So the agents of node n2 do not \
         know their blocks of this pool. Install the CustomResourceDefinitions, or create the namespace."
    );
    assert_eq!(decision.notes, [PoolEvent::warning("IPAMNodesRefused", &degraded.message)]);
    let record = written(&record, &decision);
    assert_eq!((scene.decide(&record).status, scene.decide(&record).notes), (None, vec![]), "once");
    scene.no_place = None;
    assert_eq!(condition(&scene.decide(&record).status.unwrap(), DEGRADED).reason, "AsSpecified");
}

#[test]
fn conditions_of_others_are_left_alone() {
    let foreign = json!({"conditions": [{"type": "Audited", "status": "True", "reason": "ByHand", "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z"}]});
    let status = Scene::of(&["n1"]).decide(&pool(IP_SPEC, 1, &foreign)).status.unwrap();
    let kinds: Vec<_> = status.summary.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(kinds, ["Audited", READY, EXHAUSTED, DEGRADED, RELEASING, ALLOCATION_PAUSED]);
}

#[test]
fn an_ipam_node_says_what_the_node_may_give() {
    let spec = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":8,"gateway":"192.168.0.1","defaultGateway":true,
        "exclusions":[{"startIP":"192.168.0.7","endIP":"192.168.0.10"}],
        "perNodeExclusions":[{"startIndex":1,"endIndex":1}],"routes":[{"dst":"5.5.0.0/16"}],
        "nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}}"#;
    let (pool, scene) = (pool(&spec.replace("true,", "false,"), 1, &json!({})), Scene::of(&["n1", "n2"]));
    let assignments = scene.decide(&pool).assignments.unwrap();
    assert_eq!(assignments.len(), 1, "n2 is not selected");
    let block = entry(&pool.key, pool.spec.as_deref().ok(), &assignments[0], None);
    let range = |start: &str, end: &str| ipam_crds::AddressRange { start_ip: start.into(), end_ip: end.into() };
    let expected = NodeBlock {
        name: "blue".into(),
        pool_type: PoolType::IPPool,
        grant: String::new(),
        never_used: false,
        state: BlockState::Active,
        start_ip: "192.168.0.1".into(),
        end_ip: "192.168.0.8".into(),
        subnet: "192.168.0.0/16".into(),
        gateway: Some("192.168.0.1".into()),
        exclusions: vec![range("192.168.0.2", "192.168.0.2"), range("192.168.0.7", "192.168.0.8")],
        held_elsewhere: Vec::new(),
        routes: vec![ipam_crds::RouteDestination { dst: "5.5.0.0/16".into() }],
        default_gateway: None,
    };
    assert_eq!(block, expected);
}
