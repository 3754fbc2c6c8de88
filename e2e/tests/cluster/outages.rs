//! What still works, and what is never lost, while the API server is away or the agent is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::eventually_blocking;
use ipam_e2e::netns::{BRIDGE, CniError, Node, Pod, Sandbox};
use serde_json::{Value, json};

use crate::api::{Api, IPPOOLS, SOON};
use crate::last_mile::{exhausted, ips, not_reserved, refusal};
use crate::stage::{GROUP, plane, selecting};

fn network(plugin: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": "p"},
    })
}

fn pool(api: &Api, namespace: &str, node: &Node, spec: Value) {
    api.create_node(node.name(), &json!({GROUP: namespace}));
    api.create(IPPOOLS, "p", &selecting(spec, namespace));
    api.await_count(IPPOOLS, "p", 1);
}

fn await_status(pod: &Pod) {
    eventually_blocking("CNI STATUS is fine", SOON, || pod.cni("STATUS", "net1", &network("bridge"))).unwrap();
}

#[test]
fn without_an_api_server_add_del_and_a_restart_of_the_agent_work() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("away").unwrap();
    let _operator = Operator::start(&plane, &namespace, &[]).unwrap();
    let sandbox = Sandbox::start(&plane).unwrap();
    let node = Node::start(&sandbox, "lonely", 1).unwrap();
    let api = Api::new(&plane, &namespace);
    pool(&api, &namespace, &node, json!({"subnet": "10.70.0.0/24", "perNodeBlockSize": 8, "gateway": "10.70.0.1"}));
    let mut agent = Agent::start(&plane, &node, &namespace, &[]).unwrap();
    api.await_used("lonely", "p", 0);
    let pods = ["before", "during", "after"].map(|name| node.pod("default", name, &format!("uid-{name}")).unwrap());
    let network = network("bridge");
    let before = pods[0].add("net1", &network).unwrap();
    await_status(&pods[0]);

    plane.kill_apiserver().unwrap();
    let during = pods[1].add("net1", &network).unwrap();
    assert_eq!(ips(&during), [("10.70.0.3/24".to_owned(), "10.70.0.1".to_owned())]);
    agent.process().kill().unwrap();
    let (code, message) = refusal(pods[2].cni("STATUS", "net1", &network));
    assert!(code == 50 && message.contains("daemon.sock"), "{code} {message}");
    let (code, message) = refusal(pods[2].add("net1", &self::network("nv-ipam")));
    assert!(
        code == 11 && message.starts_with("cannot connect to the agent at "),
        "the runtime is to try again: {code} {message}"
    );

    agent = Agent::launch(&plane, &node, &namespace, &[]).unwrap();
    await_status(&pods[2]);
    pods[0].check("net1", &network, &before).expect("held before the API server went");
    pods[1].check("net1", &network, &during).expect("held while it was away");
    let after = pods[2].add("net1", &network).unwrap();
    assert_eq!(ips(&after)[0].0, "10.70.0.4/24");
    pods[0].ping("10.70.0.4".parse().unwrap(), SOON).unwrap();
    pods[1].del("net1", &network).unwrap();
    assert_eq!(refusal(pods[1].check("net1", &network, &during)), (102, not_reserved(&pods[1], "net1", "p")));

    plane.start_apiserver().unwrap();
    agent.await_ready(&node).unwrap();
    api.await_used("lonely", "p", 2);
    drop(agent);
}

const CALLERS: usize = 6;
const INTERFACES: usize = 12;
const KILLS: usize = 4;

/// ADD of each interface in turn, until it is acknowledged; what was acknowledged, by interface.
fn call(pod: &Pod, done: &AtomicUsize) -> BTreeMap<String, String> {
    let network = network("nv-ipam");
    let mut acknowledged = BTreeMap::new();
    for index in 0..INTERFACES {
        let interface = format!("net{index}");
        let result = eventually_blocking(&interface, SOON, || match pod.add(&interface, &network) {
            Ok(result) => Ok(Ok(result)),
            // Nobody listens, or the agent was killed before it answered: a runtime comes back.
            Err(CniError::Refused { code: 11, message, .. }) => Err(message),
            Err(other) => Ok(Err(other)),
        });
        let result = result.unwrap().unwrap_or_else(|other| panic!("{interface}: {other}"));
        acknowledged.insert(interface, ips(&result)[0].0.clone());
        done.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

#[test]
fn an_agent_killed_under_concurrent_adds_loses_nothing_acknowledged_and_doubles_nothing() {
    let plane = plane();
    let namespace = plane.namespace("killing").unwrap();
    let _operator = Operator::start(plane, &namespace, &[]).unwrap();
    let sandbox = Sandbox::start(plane).unwrap();
    let node = Node::start(&sandbox, &format!("{namespace}-a"), 1).unwrap();
    let api = Api::new(plane, &namespace);
    // Room for each interface once and no more: an address lost or doubled would be missed at the end.
    let room = CALLERS * INTERFACES;
    pool(&api, &namespace, &node, json!({"subnet": "10.71.0.0/24", "perNodeBlockSize": room}));
    let mut agent = Agent::start(plane, &node, &namespace, &[]).unwrap();
    api.await_used(node.name(), "p", 0);
    let pods: Vec<Pod> =
        (0..CALLERS).map(|index| node.pod("default", &format!("p{index}"), &format!("uid-{index}")).unwrap()).collect();
    let done = AtomicUsize::new(0);
    let acknowledged: Vec<BTreeMap<String, String>> = std::thread::scope(|scope| {
        let callers: Vec<_> = pods.iter().map(|pod| scope.spawn(|| call(pod, &done))).collect();
        for kill in 1..=KILLS {
            let reached = kill * room / (KILLS + 1);
            eventually_blocking("calls are under way", SOON, || {
                (done.load(Ordering::SeqCst) >= reached).then_some(()).ok_or("not yet")
            })
            .unwrap();
            agent.process().kill().unwrap();
            agent = Agent::launch(plane, &node, &namespace, &[]).unwrap();
        }
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let all: BTreeSet<&String> = acknowledged.iter().flat_map(BTreeMap::values).collect();
    assert_eq!(all.len(), room, "an address was given twice");
    agent.process().kill().unwrap();
    agent = Agent::launch(plane, &node, &namespace, &[]).unwrap();
    await_status(&pods[0]);
    let network = network("nv-ipam");
    for (pod, held) in pods.iter().zip(&acknowledged) {
        for (interface, address) in held {
            let again = pod.add(interface, &network).unwrap();
            assert_eq!(&ips(&again)[0].0, address, "{} {interface}: acknowledged and lost", pod.name());
        }
    }
    // The block is full, no more and no less.
    assert_eq!(refusal(pods[0].add("more", &network)), (11, exhausted("p", room, "10.71.0.1-10.71.0.72")));
    for (pod, held) in pods.iter().zip(&acknowledged) {
        for interface in held.keys() {
            pod.del(interface, &network).unwrap();
        }
    }
    agent.await_ready(&node).unwrap();
    api.await_used(node.name(), "p", 0);
}
