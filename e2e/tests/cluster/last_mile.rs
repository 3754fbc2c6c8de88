//! The last mile: our plugin below the real bridge and macvlan plugins, in real network namespaces of two nodes.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::{Agent, Operator};
use ipam_e2e::netns::{BRIDGE, CniError, Node, PARENT, Pod, Sandbox};
use serde_json::{Value, json};

use crate::api::{Api, CIDRPOOLS, IPPOOLS};
use crate::stage::{GROUP, plane, selecting};

const ANSWERS: Duration = Duration::from_secs(20);

/// Two nodes with agents, which all tests of this module share; each has pools of its own.
struct World {
    plane: &'static ControlPlane,
    namespace: String,
    nodes: [Node; 2],
    _running: (Operator, [Agent; 2], Sandbox),
}

impl World {
    fn get() -> &'static Self {
        static WORLD: OnceLock<Result<World, String>> = OnceLock::new();
        WORLD.get_or_init(|| Self::build().map_err(|error| format!("{error:#}"))).as_ref().unwrap()
    }

    fn build() -> Result<Self> {
        let plane = plane();
        let namespace = plane.namespace("mile")?;
        let operator = Operator::start(plane, &namespace, &[])?;
        let sandbox = Sandbox::start(plane)?;
        let api = Api::new(plane, &namespace);
        let name = |short: &str| format!("{namespace}-{short}");
        let nodes = [Node::start(&sandbox, &name("east"), 1)?, Node::start(&sandbox, &name("west"), 2)?];
        for node in &nodes {
            api.create_node(node.name(), &json!({GROUP: namespace}));
        }
        let agents =
            [Agent::start(plane, &nodes[0], &namespace, &[])?, Agent::start(plane, &nodes[1], &namespace, &[])?];
        Ok(Self { plane, namespace, nodes, _running: (operator, agents, sandbox) })
    }

    fn api(&self) -> Api {
        Api::new(self.plane, &self.namespace)
    }

    /// Makes a pool and waits until both agents know it.
    fn pool(&self, api: &Api, kind: &str, name: &str, spec: Value) {
        api.create(kind, name, &selecting(spec, &self.namespace));
        for node in &self.nodes {
            api.await_used(node.name(), name, 0);
        }
    }

    /// A pod on a node, with a name of its own.
    fn pod(&self, node: usize) -> Pod {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pod-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.nodes[node].pod("default", &name, &format!("uid-{name}")).unwrap()
    }
}

/// A network of a main plugin; the plugin `nv-ipam` itself is called as main plugins call it.
fn network(plugin: &str, pools: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "bridge": BRIDGE, "master": PARENT, "mode": "bridge",
        "ipam": {"type": "nv-ipam", "poolName": pools},
    })
}

fn with(mut network: Value, key: &str, value: Value) -> Value {
    network[key] = value;
    network
}

/// Address and gateway of each entry of a CNI result.
pub(crate) fn ips(result: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    result["ips"].as_array().unwrap().iter().map(|ip| (word(&ip["address"]), word(&ip["gateway"]))).collect()
}

fn plain(address: &str) -> IpAddr {
    address.split('/').next().unwrap().parse().unwrap()
}

/// Code and message of a refusal by the plugin.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Result<T, CniError>) -> (i64, String) {
    match answer {
        Err(CniError::Refused { code, message, .. }) => (code, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

/// What CHECK says of an interface that has no address of the IPPool.
pub(crate) fn not_reserved(pod: &Pod, interface: &str, pool: &str) -> String {
    let container = pod.container_id();
    format!(
        "not reserved for this interface: container \"{container}\" interface \"{interface}\" holds no address of IPPool \
         \"{pool}\" (NotFound)"
    )
}

/// What ADD says of an IPPool whose block is full on this node.
pub(crate) fn exhausted(pool: &str, held: usize, block: &str) -> String {
    format!(
        "no address to give: IPPool \"{pool}\" has no free address on this node: {held} held in {block} (ResourceExhausted)"
    )
}

#[test]
fn dual_stack_pods_of_two_nodes_reach_each_other_by_bridge_and_by_macvlan_and_give_their_addresses_back() {
    let (world, pools) = (World::get(), ["dual4", "dual6"]);
    let api = world.api();
    world.pool(
        &api,
        IPPOOLS,
        pools[0],
        json!({"subnet": "10.60.0.0/24", "perNodeBlockSize": 8, "gateway": "10.60.0.254"}),
    );
    world.pool(&api, IPPOOLS, pools[1], json!({"subnet": "fd60::/64", "perNodeBlockSize": 8, "gateway": "fd60::ff"}));
    for (turn, plugin) in ["bridge", "macvlan"].into_iter().enumerate() {
        let network = network(plugin, "dual4, dual6");
        let pods = [world.pod(0), world.pod(1)];
        let mut given = Vec::new();
        for (pod, first) in pods.iter().zip([1, 9]) {
            let result = pod.add("net1", &network).unwrap();
            let place = first + turn;
            let wanted = [format!("10.60.0.{place}/24"), format!("fd60::{place:x}/64")];
            let gateways = ["10.60.0.254", "fd60::ff"].map(str::to_owned);
            assert_eq!(ips(&result), wanted.clone().into_iter().zip(gateways).collect::<Vec<_>>(), "{plugin}");
            assert_eq!(pod.addresses("net1").unwrap(), wanted, "what `ip address` shows");
            given.push((result, wanted));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            for address in &given[to].1 {
                pods[from].ping(plain(address), ANSWERS).unwrap();
            }
        }
        for (node, (pod, (result, _))) in world.nodes.iter().zip(pods.iter().zip(&given)) {
            for pool in pools {
                api.await_used(node.name(), pool, 1);
            }
            pod.check("net1", &network, result).unwrap();
            pod.del("net1", &network).unwrap();
            for pool in pools {
                api.await_used(node.name(), pool, 0);
            }
            pod.del("net1", &network).expect("DEL of what is gone succeeds");
        }
    }
}

#[test]
fn check_fails_when_the_reservation_is_gone_or_another() {
    let world = World::get();
    world.pool(&world.api(), IPPOOLS, "checked", json!({"subnet": "10.61.0.0/24", "perNodeBlockSize": 8}));
    let network = network("bridge", "checked");
    let pod = world.pod(0);
    let result = pod.add("net1", &network).unwrap();
    pod.check("net1", &network, &result).unwrap();
    // Behind the main plugin's back: the interface stays as it is.
    let ours = with(network.clone(), "type", json!("nv-ipam"));
    pod.del("net1", &ours).unwrap();
    assert_eq!(refusal(pod.check("net1", &network, &result)), (102, not_reserved(&pod, "net1", "checked")));
    let other = pod.add("net1", &ours).unwrap();
    assert_ne!(ips(&other), ips(&result), "the next address in turn");
    let [reserved, expected] = [&other, &result].map(|result| plain(&ips(result)[0].0));
    let differs = format!(
        "not reserved for this interface: {reserved} of IPPool \"checked\" is reserved, which is not among the expected \
         addresses ({expected}) (NotFound)"
    );
    assert_eq!(refusal(pod.check("net1", &network, &result)), (102, differs));
    pod.check("net1", &ours, &other).unwrap();
}

#[test]
fn a_pod_has_the_pools_default_route_and_routes() {
    let world = World::get();
    let spec = json!({
        "subnet": "10.62.0.0/24", "perNodeBlockSize": 8, "gateway": "10.62.0.254", "defaultGateway": true,
        "routes": [{"dst": "10.98.0.0/16"}, {"dst": "10.97.0.0/16"}, {"dst": "10.98.0.0/16"}],
    });
    world.pool(&world.api(), IPPOOLS, "routes4", spec);
    let spec =
        json!({"cidr": "fd62::/48", "perNodeNetworkPrefix": 64, "gatewayIndex": 1, "routes": [{"dst": "fd97::/64"}]});
    world.pool(&world.api(), CIDRPOOLS, "routes6", spec);
    for plugin in ["bridge", "macvlan"] {
        let pod = world.pod(0);
        let result = pod.add("net1", &network(plugin, "routes4")).unwrap();
        let route = |dst: &str, gateway: &str| json!({"dst": dst, "gw": gateway});
        let gateway = "10.62.0.254";
        let wanted = [route("0.0.0.0/0", gateway), route("10.97.0.0/16", gateway), route("10.98.0.0/16", gateway)];
        assert_eq!(result["routes"], json!(wanted));
        let shown = pod.routes(false).unwrap();
        for line in ["default via", "10.97.0.0/16 via", "10.98.0.0/16 via"] {
            let line = format!("{line} {gateway} dev net1");
            assert!(shown.iter().any(|route| route.starts_with(&line)), "{line} is not in {shown:?}");
        }
        let mut six = network(plugin, "routes6");
        six["ipam"]["poolType"] = json!("CIDRPool");
        pod.add("net2", &six).unwrap();
        let shown = pod.routes(true).unwrap();
        assert!(shown.iter().any(|route| route.starts_with("fd97::/64 via fd62::1 dev net2")), "{shown:?}");
        assert!(!shown.iter().any(|route| route.starts_with("default")), "no default route was asked for: {shown:?}");
    }
}

#[test]
fn a_pod_gets_the_address_it_asks_for_in_each_of_the_three_ways() {
    let world = World::get();
    world.pool(
        &world.api(),
        IPPOOLS,
        "wishes",
        json!({"subnet": "10.63.0.0/24", "perNodeBlockSize": 8, "gateway": "10.63.0.1"}),
    );
    let plain = network("bridge", "wishes");
    let by_runtime = with(plain.clone(), "runtimeConfig", json!({"ips": ["10.63.0.100/16"]}));
    let by_runtime = with(by_runtime, "args", json!({"cni": {"ips": ["10.63.0.101"]}}));
    let by_args = with(plain.clone(), "args", json!({"cni": {"ips": ["10.63.0.101"]}}));
    for (network, wanted) in
        [(by_runtime, "10.63.0.100/24"), (by_args, "10.63.0.101/24"), (plain.clone(), "10.63.0.102/24")]
    {
        let pod = world.pod(0).with_arguments("IP=10.63.0.102");
        assert_eq!(ips(&pod.add("net1", &network).unwrap()), [(wanted.to_owned(), "10.63.0.1".to_owned())]);
        assert_eq!(pod.addresses("net1").unwrap(), [wanted]);
    }
    let taken = world.pod(0).with_arguments("IP=10.63.0.100");
    let (code, message) = refusal(taken.add("net1", &plain));
    assert_eq!(code, 11, "{message}");
    assert!(message.starts_with("no address to give: 10.63.0.100 of IPPool \"wishes\" is held by "), "{message}");
    let pod = world.pod(0);
    assert_eq!(
        ips(&pod.add("net1", &plain).unwrap())[0].0,
        "10.63.0.2/24",
        "wishes do not move the place in the round"
    );
}

#[test]
fn a_pod_gets_the_address_with_an_index_or_the_gateways() {
    let world = World::get();
    world.pool(
        &world.api(),
        CIDRPOOLS,
        "indexed",
        json!({"cidr": "10.64.0.0/16", "perNodeNetworkPrefix": 24, "gatewayIndex": 1}),
    );
    let mut plain = network("macvlan", "indexed");
    plain["ipam"]["poolType"] = json!("cidrpool");
    let asking = |wish: Value| with(plain.clone(), "args", json!({ "cni": wish }));
    let pod = world.pod(1);
    let result = pod.add("net1", &asking(json!({"allocateIPWithIndex": 6}))).unwrap();
    assert_eq!(ips(&result), [("10.64.1.7/24".to_owned(), "10.64.1.1".to_owned())], "range start, .1, and six more");
    let (code, message) = refusal(world.pod(1).add("net1", &asking(json!({"allocateIPWithIndex": 0}))));
    let is_gateway = "0 is the gateway of CIDRPool \"indexed\", 10.64.1.1; take another";
    assert!(code == 7 && message.contains(is_gateway), "{code} {message}");
    let router = world.pod(1);
    let result = router.add("net1", &asking(json!({"allocateDefaultGateway": true}))).unwrap();
    assert_eq!(ips(&result), [("10.64.1.1/24".to_owned(), String::new())], "no gateway for who is the gateway");
    assert_eq!(router.addresses("net1").unwrap(), ["10.64.1.1/24"]);
    pod.ping("10.64.1.1".parse().unwrap(), ANSWERS).unwrap();
    let both = json!({"allocateDefaultGateway": true, "allocateIPWithIndex": 6});
    let exclusive = "args.cni: allocateDefaultGateway, allocateIPWithIndex and static addresses exclude one another";
    assert_eq!(refusal(world.pod(1).add("net1", &asking(both))), (7, exclusive.to_owned()));
}

#[test]
fn gc_releases_what_is_not_listed_and_only_of_its_own_network() {
    let world = World::get();
    let api = world.api();
    world.pool(&api, IPPOOLS, "swept", json!({"subnet": "10.65.0.0/24", "perNodeBlockSize": 8}));
    let named = |name: &str| with(network("nv-ipam", "swept"), "name", json!(name));
    let (ours, theirs) = (named("ours"), named("theirs"));
    let (kept, lost, foreign) = (world.pod(0), world.pod(0), world.pod(0));
    let held = kept.add("net1", &ours).unwrap();
    let gone = kept.add("net2", &ours).unwrap();
    let also_gone = lost.add("net1", &ours).unwrap();
    let others = foreign.add("net1", &theirs).unwrap();
    api.await_used(world.nodes[0].name(), "swept", 4);
    let valid = json!([{"containerID": kept.container_id(), "ifname": "net1"}]);
    kept.cni("GC", "net1", &with(ours.clone(), "cni.dev/valid-attachments", valid)).unwrap();
    kept.check("net1", &ours, &held).expect("listed");
    foreign.check("net1", &theirs, &others).expect("of another network");
    assert_eq!(refusal(kept.check("net2", &ours, &gone)), (102, not_reserved(&kept, "net2", "swept")));
    assert_eq!(refusal(lost.check("net1", &ours, &also_gone)), (102, not_reserved(&lost, "net1", "swept")));
    api.await_used(world.nodes[0].name(), "swept", 2);
}

#[test]
fn a_full_block_asks_the_runtime_to_come_back_and_two_pools_are_given_both_or_none() {
    let world = World::get();
    let api = world.api();
    world.pool(&api, IPPOOLS, "roomy", json!({"subnet": "10.66.0.0/24", "perNodeBlockSize": 8}));
    world.pool(&api, IPPOOLS, "narrow", json!({"subnet": "10.67.0.0/30", "perNodeBlockSize": 1}));
    let pod = world.pod(0);
    pod.add("net1", &network("nv-ipam", "narrow")).unwrap();
    let full = (11, exhausted("narrow", 1, "10.67.0.1-10.67.0.1"));
    assert_eq!(refusal(world.pod(0).add("net1", &network("nv-ipam", "narrow"))), full);
    assert_eq!(refusal(world.pod(0).add("net1", &network("nv-ipam", "roomy,narrow"))), full);
    let next = world.pod(0).add("net1", &network("nv-ipam", "roomy")).unwrap();
    assert_eq!(ips(&next)[0].0, "10.66.0.1/24", "nothing of the refused pair was kept");
    let (code, message) = refusal(world.pod(0).add("net1", &network("nv-ipam", "unheard-of")));
    let unknown =
        "the agent of this node does not know the pool: no IPPool \"unheard-of\" on this node: it has IPPool \"";
    assert!(code == 101 && message.starts_with(unknown), "{code} {message}");
}
