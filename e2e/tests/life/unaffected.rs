//! Trouble with one pool or one node, and a node that joins: it gets its block of another pool at once.

use ipam_e2e::cluster::install_crds;
use ipam_e2e::eventually_blocking;
use serde_json::json;

use crate::api::{Api, Blocks, IPAMNODES, IPPOOLS, SOON, text};
use crate::site::{Site, ensure_apart};
use crate::stage::{Stage, await_paused, await_resumed, ip_spec};
use crate::witness::Witness;

const BARE: &str = r#"{"metadata":{"finalizers":null}}"#;

/// Deletes an object against its finalizers.
fn remove_by_force(stage: &Stage, kind: &str, name: &str) {
    stage.api.delete(kind, name);
    stage.kubectl(&["patch", kind, name, "--type=merge", "-p", BARE], "");
}

#[test]
fn a_pool_removed_by_force_stops_no_other_pool() {
    let mut stage = Stage::set("forced", 1);
    let lost = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.71.0.0/24", 4));
    let _pod = stage.resident(0, IPPOOLS, "p");
    let block = stage.api.blocks(IPPOOLS, "p")[&lost].clone();
    stage.kill_agent(0);
    stage.api.delete_node(&lost);
    stage.await_releasing(IPPOOLS, "p", &[&lost]);
    stage.api.create(IPPOOLS, "q", &stage.for_us(ip_spec("10.71.1.0/24", 4)));
    let witness = Witness::of(stage.plane(), &stage.api, "q");
    stage.api.delete(IPPOOLS, "p");
    stage.api.await_condition(IPPOOLS, "p", ("Ready", "False", "Deleting"));
    remove_by_force(&stage, IPAMNODES, &lost);
    stage.await_gone(IPAMNODES, &lost);
    let said = stage.controller(&["release-pools", &format!("--ippools-namespace={}", stage.namespace())]);
    assert!(said.contains("IPPool p released"), "{said}");
    stage.await_gone(IPPOOLS, "p");

    let newcomer = stage.join("x");
    stage.api.await_blocks(IPPOOLS, "q", &[(&newcomer, "10.71.1.1-10.71.1.4")]);
    stage.api.await_ipam_node(&newcomer, 1);
    // The block of the lost machine is reserved, and nothing else.
    stage.api.create(IPPOOLS, "p", &stage.for_us(ip_spec("10.71.0.0/24", 4)));
    let blocks = stage.api.await_count(IPPOOLS, "p", 1);
    assert_ne!(blocks[&newcomer], block);
    await_resumed(&stage.api, "p");
    witness.finish(&stage.api, "AllocationPaused");
}

#[test]
fn a_deleted_record_without_an_agent_stops_no_pool() {
    let mut stage = Stage::set("orphan", 1);
    let lost = stage.name(0).to_owned();
    stage.pool(IPPOOLS, "p", ip_spec("10.72.0.0/24", 4));
    stage.pool(IPPOOLS, "q", ip_spec("10.72.1.0/24", 4));
    let _pod = stage.resident(0, IPPOOLS, "p");
    let before = stage.api.blocks(IPPOOLS, "p");
    stage.kill_agent(0);
    let witness = Witness::of(stage.plane(), &stage.api, "q");
    remove_by_force(&stage, IPPOOLS, "p");
    stage.await_gone(IPPOOLS, "p");
    eventually_blocking("the entry of the removed pool is left", SOON, || {
        let entries = stage.api.get(IPAMNODES, &lost)["spec"]["pools"].clone();
        let of_p = entries.as_array().unwrap().iter().find(|entry| entry["name"] == "p").cloned();
        if of_p.is_some_and(|entry| entry["state"] == "Releasing") { Ok(()) } else { Err(entries.to_string()) }
    })
    .unwrap();
    let uid = stage.api.get(IPAMNODES, &lost)["metadata"]["uid"].clone();
    remove_by_force(&stage, IPAMNODES, &lost);
    eventually_blocking("the node has another IPAMNode", SOON, || match stage.api.find(IPAMNODES, &lost) {
        Some(object) if object["metadata"]["uid"] != uid => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();

    let newcomer = stage.join("x");
    let of_q = [(lost.as_str(), "10.72.1.1-10.72.1.4"), (&newcomer, "10.72.1.5-10.72.1.8")];
    stage.api.await_blocks(IPPOOLS, "q", &of_q);
    stage.api.await_ipam_node(&newcomer, 1);
    // Its own block waits for the machine, and for no other node.
    stage.api.create(IPPOOLS, "p", &stage.for_us(ip_spec("10.72.0.0/24", 4)));
    let blocks = stage.api.await_count(IPPOOLS, "p", 2);
    assert_eq!(blocks[&lost], before[&lost]);
    await_resumed(&stage.api, "p");
    witness.finish(&stage.api, "AllocationPaused");
}

/// Waits until a pool says that `node` has no block because new blocks wait for the report of `awaited`, and answers the latter.
fn await_unserved(api: &Api, pool: &str, node: &str, awaited: &str) -> String {
    eventually_blocking(&format!("{pool} says that {node} has no block"), SOON, || {
        let condition = api.await_condition(IPPOOLS, pool, ("Exhausted", "True", "AwaitingAgentReports"));
        let said = text(&condition["message"]);
        if said.contains(node) { Ok(()) } else { Err(said) }
    })
    .unwrap();
    await_paused(api, pool, awaited)
}

#[test]
fn nodes_that_join_during_a_recovery_are_not_awaited() {
    let mut stage = Stage::set("joining", 2);
    let unreported = stage.name(1).to_owned();
    for (pool, subnet) in [("p", "10.73.0.0/24"), ("q", "10.73.1.0/24")] {
        stage.pool(IPPOOLS, pool, ip_spec(subnet, 4));
    }
    stage.kill_agent(1);
    stage.crash_leader();
    stage.kubectl(&crate::stage::AGED_LEASE, "");
    for pool in ["p", "q"] {
        await_paused(&stage.api, pool, &unreported);
    }
    // No agent runs on them.
    let newcomers = ["x", "y"].map(|short| stage.join(short));
    for pool in ["p", "q"] {
        for newcomer in &newcomers {
            let awaited = await_unserved(&stage.api, pool, newcomer, &unreported);
            assert!(!awaited.contains(newcomer.as_str()), "{awaited}");
        }
    }
    stage.start_agent(1, &[]);
    for pool in ["p", "q"] {
        stage.api.await_count(IPPOOLS, pool, 4);
        await_resumed(&stage.api, pool);
    }
    let object = stage.api.get(IPAMNODES, &unreported);
    let (request, answer) = (&object["spec"]["reportRequest"], &object["status"]["reportRequest"]);
    assert!(request.is_string() && request == answer, "the wait ended otherwise: {object}");
}

/// Labels of a node that runs an agent, and of one that runs none.
const SYSTEM: &str = "kubernetes.io/os";

#[test]
fn a_node_without_agent_delays_nothing_after_an_outage() {
    let site = Site::set("away", 1);
    let flags = [format!("--agent-node-selector={SYSTEM}=linux")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut leader = site.elected(&flags);
    let join = |name: &str, system: &str| site.api().create_node(name, &json!({SYSTEM: system}));
    join("node-1", "linux");
    join("windows", "windows");
    for (pool, subnet) in [("p", "10.74.0.0/24"), ("q", "10.74.1.0/24")] {
        site.api().create(IPPOOLS, pool, &ip_spec(subnet, 4));
    }
    let mut agent = site.agent(0);
    let before = site.pod(0, "before");
    site.api().await_count(IPPOOLS, "q", 2);

    // The leader lists again while it writes, and ends soon after.
    site.plane.kill_apiserver().unwrap();
    site.plane.compact().unwrap();
    site.plane.start_apiserver().unwrap();
    join("early", "windows");
    eventually_blocking("the leader has listed again, or ended", SOON, || {
        let is_served = site.api().blocks(IPPOOLS, "p").contains_key("early");
        if is_served || leader.process().ended().unwrap().is_some() { Ok(()) } else { Err("not yet") }
    })
    .unwrap();
    agent.process().kill().unwrap();
    leader.process().kill().unwrap();
    site.age_the_lease();
    let _heir = site.elected(&flags);
    for pool in ["p", "q"] {
        let said = await_paused(&site.api(), pool, "node-1");
        assert!(!said.contains("windows") && !said.contains("early"), "they run no agent: {said}");
    }
    join("late", "linux");
    let _agent = site.agent(0);
    for pool in ["p", "q"] {
        site.api().await_count(IPPOOLS, pool, 4);
        await_resumed(&site.api(), pool);
    }
    site.await_answer("node-1");
    ensure_apart(&[&before, &site.pod(0, "after")], &[]);
    site.api().delete(IPPOOLS, "q");
    eventually_blocking("q is gone", SOON, || match site.api().find(IPPOOLS, "q") {
        None => Ok(()),
        Some(object) => Err(object["status"]["releasing"].to_string()),
    })
    .unwrap();
}

/// Two pools of a site whose definitions go and come back.
struct Pools(Site);

impl Pools {
    fn create(&self) {
        for (pool, subnet) in [("p", "10.75.0.0/24"), ("q", "10.75.1.0/24")] {
            self.0.api().create(IPPOOLS, pool, &ip_spec(subnet, 4));
        }
    }

    fn lose_records(&self) {
        self.0.delete_definitions();
        install_crds(&self.0.plane).unwrap();
        self.create();
    }

    /// Waits until both pools serve so many nodes.
    fn await_served(&self, nodes: usize) -> Blocks {
        ["q", "p"].map(|pool| self.0.api().await_count(IPPOOLS, pool, nodes)).into_iter().next_back().unwrap()
    }
}

#[test]
fn a_lost_machine_with_a_node_is_named_until_released() {
    let pools = Pools(Site::set("lost", 2));
    let site = &pools.0;
    let mut operator = site.elected(&[]);
    site.register("node-1");
    site.register("node-2");
    pools.create();
    let (_agent, lost) = (site.agent(0), site.agent(1));
    let (before, of_lost) = (site.pod(0, "before"), site.pod(1, "lost"));
    let blocks = site.api().blocks(IPPOOLS, "p");
    drop(lost);

    // The leader sees the records go: it knows the blocks of both nodes, and nothing waits.
    pools.lose_records();
    let witness = Witness::of(&site.plane, &site.api(), "q");
    site.register("joins-1");
    let again = pools.await_served(3);
    assert_eq!((&again["node-1"], &again["node-2"]), (&blocks["node-1"], &blocks["node-2"]));
    witness.finish(&site.api(), "AllocationPaused");
    site.await_recorded();
    ensure_apart(&[&before, &site.pod(0, "between")], &[&of_lost]);

    // Another leader knows nothing. All pools wait for the lost machine, until an admin ends that.
    operator.process().terminate(SOON).unwrap();
    pools.lose_records();
    site.api().delete_node("joins-1");
    let _heir = site.elected(&[]);
    site.await_answer("node-1");
    site.register("joins-2");
    let said = ["p", "q"].map(|pool| await_unserved(&site.api(), pool, "joins-2", "node-2"));
    for (pool, said) in ["p", "q"].iter().zip(&said) {
        assert!(said.contains("or until a Node has been gone for 24 h") && !said.contains("joins-2"), "{said}");
        assert!(site.api().blocks(IPPOOLS, pool).is_empty());
    }
    let (_, command) = said[1].rsplit_once("kubectl ").expect("a command to paste");
    let command = command.replace("NODE", "node-2");
    site.plane.kubectl().run(&command.split_whitespace().collect::<Vec<_>>()).unwrap();
    pools.await_served(3);
    for pool in ["p", "q"] {
        await_resumed(&site.api(), pool);
    }
    eventually_blocking("the annotation is gone", SOON, || {
        let annotations = site.api().get(IPPOOLS, "q")["metadata"]["annotations"].clone();
        let is_there = annotations.get("nv-ipam.nvidia.com/force-release").is_some();
        if is_there { Err(annotations.to_string()) } else { Ok(()) }
    })
    .unwrap();
    site.await_recorded();
    ensure_apart(&[&before, &site.pod(0, "after")], &[]);
}
