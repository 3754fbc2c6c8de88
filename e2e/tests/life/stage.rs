//! A namespace with two operators that elect a leader, and nodes with agents that only its pools select.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ipam_e2e::cluster::{Agent, Operator, install_crds};
use ipam_e2e::netns::{BRIDGE, Node, Pod, Sandbox};
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, IPAMNODES, IPPOOLS, SOON};

/// Label that tells the nodes of one test from those of others; its value is the test's namespace.
pub(crate) const GROUP: &str = "e2e.nv-ipam.invalid/group";

fn plane() -> &'static ControlPlane {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let plane = ControlPlane::shared().unwrap();
    READY.get_or_init(|| install_crds(plane).map_err(|error| format!("{error:#}"))).as_ref().unwrap();
    plane
}

/// What one test plays on.
pub(crate) struct Stage {
    pub(crate) api: Api,
    pub(crate) nodes: Vec<Node>,
    namespace: String,
    plane: &'static ControlPlane,
    operators: Vec<Operator>,
    agents: Vec<Option<Agent>>,
    _sandbox: Sandbox,
}

impl Stage {
    pub(crate) fn set(prefix: &str, nodes: u8) -> Self {
        let plane = plane();
        let namespace = plane.namespace(prefix).unwrap();
        let elects = ["--leader-elect", &format!("--leader-elect-namespace={namespace}")];
        let operators = (0..2).map(|_| Operator::start(plane, &namespace, &elects).unwrap()).collect();
        let (sandbox, api) = (Sandbox::start(plane).unwrap(), Api::new(plane, &namespace));
        let name = |index: u8| format!("{namespace}-{}", char::from(b'a' + index));
        let nodes: Vec<Node> =
            (0..nodes).map(|index| Node::start(&sandbox, &name(index), index + 1).unwrap()).collect();
        for node in &nodes {
            api.create_node(node.name(), &json!({GROUP: namespace}));
        }
        let agents = nodes.iter().map(|node| Some(Agent::start(plane, node, &namespace, &[]).unwrap())).collect();
        Self { api, nodes, namespace, plane, operators, agents, _sandbox: sandbox }
    }

    /// A spec that selects this stage's nodes.
    pub(crate) fn for_us(&self, mut spec: Value) -> Value {
        let expression = json!({"key": GROUP, "operator": "In", "values": [self.namespace]});
        spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        spec
    }

    /// Makes a pool and waits until all agents know it.
    pub(crate) fn pool(&self, name: &str, spec: Value) {
        self.api.create(IPPOOLS, name, &self.for_us(spec));
        for node in &self.nodes {
            self.api.await_used(node.name(), name, 0);
        }
    }

    /// Registers a node, without an agent, that this stage's pools select.
    pub(crate) fn join(&self, short: &str) -> String {
        let name = format!("{}-{short}", self.namespace);
        self.api.create_node(&name, &json!({GROUP: self.namespace}));
        name
    }

    /// A pod on a node, with a name of its own.
    pub(crate) fn pod(&self, node: usize) -> Pod {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pod-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.nodes[node].pod("default", &name, &format!("uid-{name}")).unwrap()
    }

    pub(crate) fn network(&self, pool: &str) -> Value {
        json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
            "ipam": {"type": "nv-ipam", "poolName": pool}})
    }

    /// Waits until the blocks of just these nodes are being taken back.
    pub(crate) fn await_releasing(&self, pool: &str, nodes: &[&str]) {
        let mut wanted: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        wanted.sort();
        eventually_blocking(&format!("releasing of {pool} are {wanted:?}"), SOON, || {
            let status = self.api.get(IPPOOLS, pool)["status"].clone();
            let releasing = status["releasing"].as_array().cloned().unwrap_or_default();
            let names: Vec<_> = releasing.iter().map(|one| one["nodeName"].as_str().unwrap().to_owned()).collect();
            if names == wanted { Ok(()) } else { Err(status.to_string()) }
        })
        .unwrap();
    }

    /// Waits until the agent of a node says that it gives no more from its first block.
    pub(crate) fn await_told_releasing(&self, node: &str) {
        eventually_blocking(&format!("{node} gives no more"), SOON, || {
            let object = self.api.get(IPAMNODES, node);
            let (told, read) = (&object["metadata"]["generation"], &object["status"]["observedGeneration"]);
            let gives_no_more = object["spec"]["pools"][0]["state"] == "Releasing" && told == read;
            if gives_no_more { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
    }

    pub(crate) fn await_gone(&self, kind: &str, name: &str) {
        eventually_blocking(&format!("{kind}/{name} is gone"), SOON, || match self.api.find(kind, name) {
            None => Ok(()),
            Some(object) => Err(object.to_string()),
        })
        .unwrap();
    }

    /// Ends the operator that leads, as a power cut would.
    pub(crate) fn crash_leader(&mut self) {
        let leads = |operator: &Operator| {
            let (_, text) = ipam_e2e::http::get(&operator.metrics(), "/metrics").unwrap();
            text.lines().any(|line| line == "nv_ipam_controller_leader 1")
        };
        let place = self.operators.iter().position(leads).expect("one of the two leads");
        self.operators[place].process().kill().unwrap();
    }

    /// Ends the agent of a node for good.
    pub(crate) fn kill_agent(&mut self, node: usize) {
        drop(self.agents[node].take());
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let namespaced: Vec<&str> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.plane.kubectl().run(&namespaced).unwrap()
    }
}

/// The addresses of a CNI result.
pub(crate) fn addresses(result: &Value) -> Vec<String> {
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}
