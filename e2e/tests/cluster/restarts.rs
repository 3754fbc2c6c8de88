//! The operator killed at any moment, with others writing beside it, and statuses edited by hand: no allocation moves, none
//! is given twice.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ipam_e2e::eventually_blocking;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::api::{Api, Blocks, CIDRPOOLS, IPAMNODES, IPPOOLS, SOON};
use crate::stage::Stage;

const POOLS: [(&str, &str); 2] = [(IPPOOLS, "flat"), (CIDRPOOLS, "routed")];
const ROUNDS: usize = 6;

/// Every block seen in a record, a pool's status or an IPAMNode, with its node.
#[derive(Default)]
struct Memory {
    holders: Mutex<HashMap<(String, String), String>>,
    /// Entries of IPAMNodes that were compared with the rest.
    entries: AtomicU32,
}

impl Memory {
    /// Takes in what stands in a record now; fails if it contradicts anything seen before.
    fn look(&self, pool: &str, blocks: &Blocks) {
        let mut holders = self.holders.lock().unwrap();
        for (node, block) in blocks {
            let holder = holders.entry((pool.to_owned(), block.clone())).or_insert_with(|| node.clone());
            assert_eq!(holder, node, "{block} of {pool} was given to a second node");
        }
        let mut by_node: HashMap<(&str, &str), &str> = HashMap::new();
        for ((pool, block), node) in holders.iter() {
            let other = by_node.insert((pool, node), block);
            assert!(other.is_none(), "{node} had {block} of {pool} and {other:?}");
        }
    }

    fn look_at(&self, api: &Api) {
        for (kind, pool) in POOLS {
            self.look(pool, &api.blocks(kind, pool));
        }
        for node in api.list(IPAMNODES) {
            let name = node["metadata"]["name"].as_str().unwrap().to_owned();
            for block in node["spec"]["pools"].as_array().into_iter().flatten() {
                self.look(block["name"].as_str().unwrap(), &Blocks::from([(name.clone(), as_in_status(block))]));
                self.entries.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// The block of an IPAMNode's entry as a pool's status writes it.
fn as_in_status(entry: &Value) -> String {
    let text = |name: &str| entry[name].as_str().unwrap_or_default();
    match (text("poolType"), text("gateway")) {
        ("CIDRPool", "") => text("subnet").to_owned(),
        ("CIDRPool", gateway) => format!("{} via {gateway}", text("subnet")),
        _ => format!("{}-{}", text("startIP"), text("endIP")),
    }
}

#[test]
fn a_block_of_two_nodes_is_seen_in_either_record() {
    let memory = Memory::default();
    let entry = json!({"poolType": "IPPool", "startIP": "10.10.0.1", "endIP": "10.10.0.5", "gateway": "10.10.0.1"});
    memory.look("flat", &Blocks::from([("a".to_owned(), "10.10.0.1-10.10.0.5".to_owned())]));
    let second = Blocks::from([("b".to_owned(), as_in_status(&entry))]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.look("flat", &second))).is_err());
}

/// Ends a thread's loop also when the test fails, which would else wait for it for ever.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A second writer: labels of the pool, and parts of its status that are the operator's alone.
fn disturb(stage: &Stage, stop: &AtomicBool, writes: &AtomicU32) {
    let api = Api::new(stage.plane, &stage.namespace);
    for count in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        for (kind, pool) in POOLS {
            api.merge(kind, pool, &json!({"metadata": {"labels": {"count": count.to_string()}}}));
            api.merge_status(
                kind,
                pool,
                &json!({"observedGeneration": 0, "nodes": {"served": 7, "unserved": 7, "releasing": 7}}),
            )
            .unwrap();
        }
        writes.fetch_add(1, Ordering::SeqCst);
    }
}

fn watch(stage: &Stage, stop: &AtomicBool, memory: &Memory) {
    let api = Api::new(stage.plane, &stage.namespace);
    while !stop.load(Ordering::SeqCst) {
        memory.look_at(&api);
    }
}

fn pools_of(stage: &Stage) {
    let flat = json!({"subnet": "10.10.0.0/20", "perNodeBlockSize": 5, "gateway": "10.10.0.1"});
    let routed = json!({"cidr": "fd10::/64", "perNodeNetworkPrefix": 120, "gatewayIndex": 1});
    for ((kind, pool), spec) in POOLS.into_iter().zip([flat, routed]) {
        stage.api.create(kind, pool, &stage.for_us(spec));
    }
}

#[test]
fn an_operator_killed_at_any_moment_beside_another_writer_neither_moves_nor_doubles_a_block() {
    let mut stage = Stage::set("killed");
    pools_of(&stage);
    let (stop, writes, memory) = (AtomicBool::new(false), AtomicU32::new(0), Memory::default());
    let mut names: Vec<String> = (0..4).map(|index| stage.join(&format!("old-{index}"))).collect();
    for (kind, pool) in POOLS {
        stage.api.await_count(kind, pool, names.len());
    }
    for round in 0..ROUNDS {
        // The node that leaves has pods, so that its blocks stay its own.
        stage.api.use_blocks(&names[round], POOLS.len());
        // The disturbance is of each round, for the next needs the stage to itself to replace the operator.
        stop.store(false, Ordering::SeqCst);
        let operator = stage.operator.process().pid();
        std::thread::scope(|scope| {
            let _stops = StopOnDrop(&stop);
            scope.spawn(|| disturb(&stage, &stop, &writes));
            scope.spawn(|| watch(&stage, &stop, &memory));
            let before = writes.load(Ordering::SeqCst);
            for index in 0..5 {
                names.push(stage.join(&format!("r{round}-{index}")));
            }
            stage.api.delete_node(&names[round]);
            // Each round gives the operator a little more time, from none at all to a few blocks written.
            eventually_blocking("the other writer has written", SOON, || {
                (writes.load(Ordering::SeqCst) >= before + u32::try_from(round).unwrap()).then_some(()).ok_or("not yet")
            })
            .unwrap();
            kill_process(operator, Signal::KILL).unwrap();
        });
        stage.crash_operator();
        eventually_blocking("every node has its block", SOON, || {
            memory.look_at(&stage.api);
            let lacking = |kind, pool| {
                let blocks = stage.api.blocks(kind, pool);
                names.iter().filter(|name| !blocks.contains_key(*name)).count()
            };
            let lacking = POOLS.map(|(kind, pool)| lacking(kind, pool));
            if lacking == [0, 0] { Ok(()) } else { Err(format!("{lacking:?} nodes have none")) }
        })
        .unwrap();
    }
    assert!(writes.load(Ordering::SeqCst) > 10, "nobody disturbed");
    assert!(memory.entries.load(Ordering::SeqCst) > 0, "no IPAMNode was compared with a status");
    eventually_blocking("the status is the operator's own again", SOON, || {
        let nodes = POOLS.map(|(kind, pool)| stage.api.get(kind, pool)["status"]["nodes"].clone());
        let served = |nodes: &Value| nodes["unserved"] == 0 && nodes["served"] == names.len() - ROUNDS;
        if nodes.iter().all(served) { Ok(()) } else { Err(format!("{nodes:?}")) }
    })
    .unwrap();
}

/// Statuses that no operator would write, given the right one.
fn nonsense(right: &Value) -> Vec<(&'static str, Value)> {
    let edited = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut entries = right.as_array().unwrap().clone();
        edit(&mut entries);
        json!({ "allocations": entries })
    };
    vec![
        ("wiped", json!({"allocations": null, "conditions": null, "nodes": null, "blocks": null, "addresses": null})),
        ("the last two entries gone", edited(&|entries| entries.truncate(2))),
        (
            "the second node with the first one's block",
            edited(&|entries| {
                entries[1] = json!({"nodeName": entries[1]["nodeName"], "startIP": entries[0]["startIP"], "endIP": entries[0]["endIP"]});
            }),
        ),
        (
            "the first node with the second one's block",
            edited(&|entries| {
                entries[0] = json!({"nodeName": entries[0]["nodeName"], "startIP": entries[1]["startIP"], "endIP": entries[1]["endIP"]});
            }),
        ),
        (
            "a node that never was with the third one's block",
            edited(&|entries| {
                entries.insert(
                    0,
                    json!({"nodeName": "a-ghost", "startIP": entries[2]["startIP"], "endIP": entries[2]["endIP"]}),
                );
                entries.remove(3);
            }),
        ),
        ("backwards", edited(&|entries| entries.reverse())),
        ("a range that is none", edited(&|entries| entries[3]["endIP"] = json!("10.20.0.0"))),
        (
            "a range of another pool",
            edited(&|entries| {
                entries[2]["startIP"] = json!("172.16.0.1");
                entries[2]["endIP"] = json!("172.16.0.4");
            }),
        ),
        (
            "half a block further",
            edited(&|entries| {
                entries[3]["startIP"] = json!("10.20.0.15");
                entries[3]["endIP"] = json!("10.20.0.18");
            }),
        ),
    ]
}

#[test]
fn a_status_edited_to_nonsense_is_repaired_without_moving_what_was_right() {
    let mut stage = Stage::set("nonsense");
    for short in ["a", "b", "c", "d"] {
        stage.join(short);
    }
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.20.0.0/24", "perNodeBlockSize": 4})));
    stage.api.await_count(IPPOOLS, "p", 4);
    let right = stage.api.get(IPPOOLS, "p")["status"]["allocations"].clone();
    // Of this stage's nodes alone: those of other tests come and go.
    let records =
        |stage: &Stage| ["a", "b", "c", "d"].map(|short| stage.api.get(IPAMNODES, &stage.name(short))["spec"].clone());
    for short in ["a", "b", "c", "d"] {
        stage.api.await_ipam_node(&stage.name(short), 1);
    }
    let served = records(&stage);
    // Consistent in itself, so that only who has seen the right one knows better.
    let mut swapped = right.clone();
    let (first, second) = (swapped[0]["nodeName"].take(), swapped[1]["nodeName"].take());
    (swapped[0]["nodeName"], swapped[1]["nodeName"]) = (second, first);
    let swapped = ("two nodes with each other's block", json!({ "allocations": swapped }));
    for (what, status) in nonsense(&right).into_iter().chain([swapped]) {
        stage.api.merge_status(IPPOOLS, "p", &status).unwrap_or_else(|refused| panic!("{what}: {refused:?}"));
        repaired(&stage, what, &right);
        assert_eq!(records(&stage), served, "{what}");
    }
    // The same with an operator that was not there to see the right one.
    for (what, status) in nonsense(&right) {
        stage.operator.process().kill().unwrap();
        stage.api.merge_status(IPPOOLS, "p", &status).unwrap();
        stage.crash_operator();
        repaired(&stage, &format!("{what}, while the operator was away"), &right);
    }
    assert_eq!(records(&stage), served);
}

fn repaired(stage: &Stage, what: &str, right: &Value) {
    eventually_blocking(&format!("{what}: repaired"), SOON, || {
        let status = stage.api.get(IPPOOLS, "p")["status"].clone();
        let counts = json!({"served": 4, "unserved": 0, "releasing": 0});
        if status["allocations"] == *right && status["nodes"] == counts { Ok(()) } else { Err(status.to_string()) }
    })
    .unwrap();
}
