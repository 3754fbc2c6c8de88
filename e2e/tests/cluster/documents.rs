//! The documents' examples, applied unchanged, give exactly the blocks and first pod addresses that the texts state.

use std::fs;
use std::path::PathBuf;

use ipam_e2e::binaries::workspace;
use ipam_e2e::cluster::{Agent, Operator, await_namespace, install_crds};
use ipam_e2e::netns::{BRIDGE, Node, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, Blocks, CIDRPOOLS, IPAMNODES, IPPOOLS, SOON, blocks_of};
use crate::last_mile::ips;

/// Where the documents put their pools.
const NAMESPACE: &str = "kube-system";

struct Scene {
    plane: ControlPlane,
    api: Api,
}

impl Scene {
    fn example(file: &str) -> PathBuf {
        workspace().join("crds/examples").join(file)
    }

    fn apply(&self, file: &str) {
        self.plane.kubectl().apply(&fs::read_to_string(Self::example(file)).unwrap()).unwrap();
    }

    /// Applies a document's example, waits for the blocks, hands over to `look`, and removes the pool.
    fn with_example(&self, file: &str, wanted: &[(&str, &str)], look: impl FnOnce()) {
        let (kind, name) = pool_of(&read(file));
        self.apply(file);
        self.api.await_blocks(kind, &name, wanted);
        look();
        self.api.remove_pool(kind, &name);
    }

    /// The same for the pools whose status the documents print.
    fn with_printed_status(&self, file: &str, printed: &str) {
        let stated: Blocks = blocks_of(&read(printed));
        let stated: Vec<(&str, &str)> = stated.iter().map(|(node, block)| (node.as_str(), block.as_str())).collect();
        assert!(stated.len() > 1, "{printed} states no blocks");
        self.with_example(file, &stated, || ());
    }

    fn block_of_node(&self, node: &str) -> Value {
        let first = || {
            let block = self.api.find(IPAMNODES, node)?["spec"]["pools"][0].clone();
            (!block.is_null()).then_some(block)
        };
        eventually_blocking("the node is told its block", SOON, || first().ok_or("not yet")).unwrap()
    }
}

fn read(file: &str) -> Value {
    serde_yaml::from_str(&fs::read_to_string(Scene::example(file)).unwrap()).unwrap()
}

fn pool_of(manifest: &Value) -> (&'static str, String) {
    let kind = if manifest["kind"] == "IPPool" { IPPOOLS } else { CIDRPOOLS };
    (kind, manifest["metadata"]["name"].as_str().unwrap().to_owned())
}

fn worker() -> Value {
    json!({"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "worker"})
}

/// One test: the examples select all workers of a cluster, and one selects all nodes.
#[test]
fn the_documents_examples_give_the_blocks_and_first_addresses_that_the_texts_state() {
    let plane = ControlPlane::start().unwrap();
    await_namespace(&plane, NAMESPACE).unwrap();
    install_crds(&plane).unwrap();
    let _operator = Operator::start(&plane, NAMESPACE, &[]).unwrap();
    let scene = Scene { api: Api::new(&plane, NAMESPACE), plane };
    for node in ["host-a", "host-b"] {
        scene.api.create_node(node, &worker());
    }
    scene.with_printed_status("cidrpool-role-selector.yaml", "cidrpool-role-selector-allocated.yaml");
    for node in ["host-c", "k8s-master"] {
        scene.api.create_node(node, &worker());
    }
    blocks_of_examples_with_four_nodes(&scene);
    scene.api.create_node("node-33", &worker());
    static_allocation(&scene);
    first_pods(&scene);
}

fn blocks_of_examples_with_four_nodes(scene: &Scene) {
    scene.with_printed_status("ippool-role-selector.yaml", "ippool-role-selector-allocated.yaml");
    scene.with_printed_status("ippool-blocks-of-24.yaml", "ippool-blocks-of-24-allocated.yaml");
    let hundreds = [
        ("host-a", "192.168.0.1-192.168.0.100"),
        ("host-b", "192.168.0.101-192.168.0.200"),
        ("host-c", "192.168.0.201-192.168.1.44"),
        ("k8s-master", "192.168.1.45-192.168.1.144"),
    ];
    scene.with_example("ippool-blocks-of-100.yaml", &hundreds, || ());
    scene.with_example("ippool-ipv4.yaml", &hundreds, || {
        let block = scene.block_of_node("host-a");
        assert_eq!(block["exclusions"], json!([{"startIP": "192.168.0.10", "endIP": "192.168.0.20"}]));
        assert_eq!((&block["gateway"], &block["defaultGateway"]), (&json!("192.168.0.1"), &json!(true)));
        assert_eq!(block["routes"], json!([{"dst": "5.5.0.0/24"}]));
        assert!(scene.block_of_node("host-b")["exclusions"].as_array().is_none_or(Vec::is_empty));
    });
    let five_hundreds = [
        ("host-a", "fd52:2eb5:44::1-fd52:2eb5:44::1f4"),
        ("host-b", "fd52:2eb5:44::1f5-fd52:2eb5:44::3e8"),
        ("host-c", "fd52:2eb5:44::3e9-fd52:2eb5:44::5dc"),
        ("k8s-master", "fd52:2eb5:44::5dd-fd52:2eb5:44::7d0"),
    ];
    scene.with_example("ippool-ipv6.yaml", &five_hundreds, || ());
    let prefixes = [
        ("host-a", "fd52:2eb5:44::/120 via fd52:2eb5:44::1"),
        ("host-b", "fd52:2eb5:44::100/120 via fd52:2eb5:44::101"),
        ("host-c", "fd52:2eb5:44::200/120 via fd52:2eb5:44::201"),
        ("k8s-master", "fd52:2eb5:44::300/120 via fd52:2eb5:44::301"),
    ];
    scene.with_example("cidrpool-ipv6.yaml", &prefixes, || ());
}

/// 192.168.1.0/24 is reserved without a node, 192.168.33.0/24 is node-33's, with a gateway of its own.
fn static_allocation(scene: &Scene) {
    let blocks = [
        ("host-a", "192.168.0.0/24 via 192.168.0.1"),
        ("host-b", "192.168.2.0/24 via 192.168.2.1"),
        ("host-c", "192.168.3.0/24 via 192.168.3.1"),
        ("k8s-master", "192.168.4.0/24 via 192.168.4.1"),
        ("node-33", "192.168.33.0/24 via 192.168.33.10"),
    ];
    scene.with_example("cidrpool-ipv4.yaml", &blocks, || {
        let block = scene.block_of_node("host-a");
        assert_eq!(block["exclusions"], json!([{"startIP": "192.168.0.10", "endIP": "192.168.0.20"}]));
    });
}

/// The two examples of the introduction, and point to point prefixes, down to the first pod's interface. One after the other,
/// for their networks overlap.
fn first_pods(scene: &Scene) {
    let sandbox = Sandbox::start(&scene.plane).unwrap();
    let nodes = [Node::start(&sandbox, "node1", 1).unwrap(), Node::start(&sandbox, "node2", 2).unwrap()];
    for node in &nodes {
        scene.api.create_node(node.name(), &json!({}));
    }
    let agents = nodes.each_ref().map(|node| Agent::start(&scene.plane, node, NAMESPACE, &[]).unwrap());
    let selector = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node2"]}]},
    ]});
    let flat =
        json!({"subnet": "192.168.0.0/16", "gateway": "192.168.0.1", "perNodeBlockSize": 4, "nodeSelector": selector});
    scene.api.create(IPPOOLS, "flat", &flat);
    let ranges = [("node1", "192.168.0.1-192.168.0.4"), ("node2", "192.168.0.5-192.168.0.8")];
    scene.api.await_blocks(IPPOOLS, "flat", &ranges);
    let stated = [("192.168.0.2/16", "192.168.0.1"), ("192.168.0.5/16", "192.168.0.1")];
    first_pod_of_each(scene, &nodes, (IPPOOLS, "flat"), stated);

    let routed =
        json!({"cidr": "192.168.0.0/16", "perNodeNetworkPrefix": 24, "gatewayIndex": 1, "nodeSelector": selector});
    scene.api.create(CIDRPOOLS, "routed", &routed);
    let prefixes = [("node1", "192.168.0.0/24 via 192.168.0.1"), ("node2", "192.168.1.0/24 via 192.168.1.1")];
    scene.api.await_blocks(CIDRPOOLS, "routed", &prefixes);
    let stated = [("192.168.0.2/24", "192.168.0.1"), ("192.168.1.2/24", "192.168.1.1")];
    first_pod_of_each(scene, &nodes, (CIDRPOOLS, "routed"), stated);

    scene.apply("cidrpool-point-to-point.yaml");
    let links = [
        ("host-a", "192.168.100.0/31"),
        ("host-b", "192.168.100.2/31"),
        ("host-c", "192.168.100.4/31"),
        ("k8s-master", "192.168.100.6/31"),
        ("node-33", "192.168.100.8/31"),
        ("node1", "192.168.100.10/31"),
        ("node2", "192.168.100.12/31"),
    ];
    scene.api.await_blocks(CIDRPOOLS, "pool1", &links);
    first_pod_of_each(scene, &nodes, (CIDRPOOLS, "pool1"), [("192.168.100.10/31", ""), ("192.168.100.12/31", "")]);
    drop(agents);
}

/// The first pod of each node gets the stated address and gateway; then pods and pool go.
fn first_pod_of_each(scene: &Scene, nodes: &[Node; 2], (kind, pool): (&'static str, &str), stated: [(&str, &str); 2]) {
    let pool_type = if kind == IPPOOLS { "ippool" } else { "cidrpool" };
    let network = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": pool, "poolType": pool_type},
    });
    for (node, (address, gateway)) in nodes.iter().zip(stated) {
        let pod = node.pod("default", &format!("{pool}-1"), &format!("uid-{pool}")).unwrap();
        // The status is written first; the agent hears of its block a moment later.
        // What a failed ADD has made is for DEL to take away, as runtimes do.
        let add = || pod.add("net1", &network).inspect_err(|_| drop(pod.del("net1", &network)));
        let result = eventually_blocking("the agent has its block", SOON, add).unwrap();
        assert_eq!(ips(&result), [(address.to_owned(), gateway.to_owned())], "{}", node.name());
        assert_eq!(pod.addresses("net1").unwrap(), [address]);
        pod.del("net1", &network).unwrap();
    }
    scene.api.remove_pool(kind, pool);
}
