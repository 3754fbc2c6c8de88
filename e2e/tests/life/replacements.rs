//! Nodes that are replaced under other names, as an autoscaler or an upgrade does it.

use std::collections::BTreeSet;
use std::ops::Range;

use ipam_e2e::cluster::Agent;
use ipam_e2e::eventually_blocking;
use ipam_e2e::netns::{Node, Pod};
use serde_json::{Value, json};

use crate::api::{IPAMNODES, IPPOOLS, SOON};
use crate::stage::{Stage, ip_spec};
use crate::witness::Witness;

/// Nodes that the cluster has.
const NODES: usize = 6;
/// Blocks of the pool.
const BLOCKS: usize = 8;
/// Nodes that are replaced in all.
const REPLACED: usize = 100;
/// Nodes that are replaced at a time.
const AT_A_TIME: usize = 5;
/// How many of their successors join before their blocks are free.
const EARLY: usize = BLOCKS - NODES;
/// What keeps a Node while it is drained.
const DRAINS: &str = "example.com/drain";
/// All that a machine knows of addresses.
const STORE: &str = "/var/lib/cni/nv-ipam";

/// A machine: one Node after the other runs on it, each as on a new machine.
struct Machine {
    host: Node,
    pod: Pod,
    agent: Option<Agent>,
    name: String,
}

impl Machine {
    fn start(stage: &Stage, index: usize) -> Self {
        let host = stage.machine(u8::try_from(index + 1).unwrap());
        let pod = host.pod("default", "pod", &format!("uid-{index}")).unwrap();
        Self { host, pod, agent: None, name: String::new() }
    }

    /// Registers a Node of this name, and starts its agent.
    fn join(&mut self, stage: &Stage, short: &str) {
        self.name = stage.join(short);
        self.host.entrance().run(&["find", STORE, "-mindepth", "1", "-delete"]).unwrap();
        let name = format!("--node-name={}", self.name);
        self.agent = Some(Agent::launch(stage.plane(), &self.host, stage.namespace(), &[&name]).unwrap());
    }

    /// Waits until the Node has a block that its agent allocates from. Then a pod gets an address.
    fn serve(&self, stage: &Stage, witness: &Witness) {
        eventually_blocking(&format!("the agent of {} has a block", self.name), SOON, || {
            witness.ensure_never("Exhausted");
            let object = stage.api.find(IPAMNODES, &self.name).ok_or("there is no IPAMNode")?;
            let (assigned, reported) = (&object["spec"]["pools"][0], &object["status"]["pools"][0]);
            let is_served = assigned["state"] == "Active" && assigned["grant"] == reported["grant"];
            if is_served { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
        // A runtime repeats an ADD while the agent waits for the confirmation of its grant.
        eventually_blocking(&format!("a pod on {}", self.name), SOON, || self.pod.add("net1", &network())).unwrap();
    }
}

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "nv-ipam", "ipam": {"type": "nv-ipam", "poolName": "p"}})
}

/// Nodes of a cluster that come and go.
struct Cluster {
    stage: Stage,
    /// Those with a Node come first.
    machines: Vec<Machine>,
    joined: usize,
    witness: Witness,
}

impl Cluster {
    /// Registers Nodes for these machines, and waits until a pod on each has an address.
    fn join(&mut self, machines: Range<usize>) {
        for machine in &mut self.machines[machines.clone()] {
            machine.join(&self.stage, &format!("n{}", self.joined));
            self.joined += 1;
        }
        for machine in &self.machines[machines] {
            machine.serve(&self.stage, &self.witness);
        }
    }

    /// Deletes the Nodes of these machines. Finalizers keep them.
    fn begin_to_drain(&self, machines: Range<usize>) -> Vec<String> {
        let names: Vec<String> = self.machines[machines].iter().map(|machine| machine.name.clone()).collect();
        // The agents of those that joined last may not have reported the pod yet.
        self.stage.api.await_used(&names[0], "p", 1);
        for name in &names {
            self.set_finalizers(name, &json!([DRAINS]));
            self.stage.api.delete_node(name);
        }
        self.stage.await_releasing(IPPOOLS, "p", &names.iter().map(String::as_str).collect::<Vec<_>>());
        let said = self.stage.told(IPPOOLS, "p", ("Releasing", "True", "BlocksInUse"));
        assert!(said.contains(&format!("{} (1 in use, Node terminating)", names[0])), "{said}");
        names
    }

    /// The pods of these machines end, and their blocks are free. Then the machines are off.
    fn drain(&mut self, machines: Range<usize>) {
        for machine in &self.machines[machines.clone()] {
            machine.pod.del("net1", &network()).unwrap();
        }
        self.stage.await_releasing(IPPOOLS, "p", &[]);
        for machine in &mut self.machines[machines] {
            machine.agent = None;
        }
    }

    fn set_finalizers(&self, node: &str, finalizers: &Value) {
        let change = json!({"metadata": {"finalizers": finalizers}});
        let path = format!("/api/v1/nodes/{node}");
        self.stage.api.send("PATCH", &path, "application/merge-patch+json", &change).unwrap();
    }

    /// No two nodes have the same block, and no block is free.
    fn ensure_all_used(&self) {
        let blocks = self.stage.api.blocks(IPPOOLS, "p");
        assert_eq!((blocks.len(), blocks.values().collect::<BTreeSet<_>>().len()), (BLOCKS, BLOCKS), "{blocks:?}");
    }
}

#[test]
fn a_pool_outlives_a_hundred_replacements_without_being_exhausted() {
    let stage = Stage::set("replaced", 0);
    let machines = (0..BLOCKS).map(|index| Machine::start(&stage, index)).collect();
    stage.api.create(IPPOOLS, "p", &stage.for_us(ip_spec("10.84.0.0/26", 7)));
    let witness = Witness::of(stage.plane(), &stage.api, "p");
    let mut cluster = Cluster { stage, machines, joined: 0, witness };
    cluster.join(0..NODES);
    for _ in 0..REPLACED / AT_A_TIME {
        let leaving = cluster.begin_to_drain(0..AT_A_TIME);
        cluster.join(NODES..BLOCKS);
        cluster.ensure_all_used();
        cluster.drain(0..AT_A_TIME);
        // The others get the blocks of Nodes that exist still.
        cluster.join(0..AT_A_TIME - EARLY);
        for name in &leaving {
            cluster.set_finalizers(name, &Value::Null);
        }
        cluster.machines.rotate_left(AT_A_TIME);
    }
    assert_eq!(cluster.joined, NODES + REPLACED);
    cluster.witness.finish(&cluster.stage.api, "Exhausted");
}
