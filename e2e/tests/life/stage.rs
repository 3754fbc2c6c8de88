//! A namespace with two operators that elect a leader, and nodes with agents that only its pools select.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ipam_e2e::cluster::{Agent, Operator, forget_pod, install_crds, run_pod};
use ipam_e2e::netns::{BRIDGE, CniError, Node, Pod, Sandbox};
use ipam_e2e::{ControlPlane, binaries, child, eventually_blocking};
use serde_json::{Value, json};

use crate::api::{Api, IPAMNODES, IPPOOLS, SOON, kind_of};

/// Label that tells the nodes of one test from those of others; its value is the test's namespace.
pub(crate) const GROUP: &str = "e2e.nv-ipam.invalid/group";

/// The Lease as a backup of an hour ago has it, or an outage of an hour leaves it: arguments of kubectl.
pub(crate) const AGED_LEASE: [&str; 6] = [
    "patch",
    "lease",
    "dd1643cf.nvidia.com",
    "--type=merge",
    "-p",
    r#"{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z","leaseDurationSeconds":1}}"#,
];

/// A block is idle after 30 seconds without a pod.
const IDLE: Duration = Duration::from_mins(2);

/// The interface that pods have from the network of a pool.
const INTERFACE: &str = "net1";

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
    sandbox: Sandbox,
}

impl Stage {
    /// One with so many nodes, each with an agent.
    pub(crate) fn set(prefix: &str, nodes: u8) -> Self {
        let plane = plane();
        let namespace = plane.namespace(prefix).unwrap();
        // A recovery awaits no report of the nodes of other tests.
        let agents = format!("--agent-node-selector={GROUP}={namespace}");
        let elects = ["--leader-elect", &format!("--leader-elect-namespace={namespace}"), &agents];
        let operators = (0..2).map(|_| Operator::start(plane, &namespace, &elects).unwrap()).collect();
        let (sandbox, api) = (Sandbox::start(plane).unwrap(), Api::new(plane, &namespace));
        let name = |index: u8| format!("{namespace}-{}", char::from(b'a' + index));
        let nodes: Vec<Node> =
            (0..nodes).map(|index| Node::start(&sandbox, &name(index), index + 1).unwrap()).collect();
        for node in &nodes {
            api.create_node(node.name(), &json!({GROUP: namespace}));
        }
        let agents = nodes.iter().map(|node| Some(Agent::launch(plane, node, &namespace, &[]).unwrap())).collect();
        Self { api, nodes, namespace, plane, operators, agents, sandbox }
    }

    /// The control plane, which other tests use, too.
    pub(crate) fn plane(&self) -> &'static ControlPlane {
        self.plane
    }

    /// A machine of this stage's network on which no agent runs. `index` tells it from the nodes, which are counted from 1.
    pub(crate) fn machine(&self, index: u8) -> Node {
        Node::start(&self.sandbox, &format!("{}-machine-{index}", self.namespace), index).unwrap()
    }

    /// The namespace, which is also the value of the nodes' label.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of a node.
    pub(crate) fn name(&self, node: usize) -> &str {
        self.nodes[node].name()
    }

    /// A spec that selects this stage's nodes.
    pub(crate) fn for_us(&self, mut spec: Value) -> Value {
        let expression = json!({"key": GROUP, "operator": "In", "values": [self.namespace]});
        spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        spec
    }

    /// Makes a pool and waits until all agents know it.
    pub(crate) fn pool(&self, kind: &str, name: &str, spec: Value) {
        self.api.create(kind, name, &self.for_us(spec));
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

    /// A pod on a node, with a name of its own, in the network of a pool.
    pub(crate) fn pod(&self, node: usize, kind: &str, pool: &str) -> Resident {
        let name = pod_name();
        let pod = self.nodes[node].pod("default", &name, &format!("uid-{name}")).unwrap();
        Self::in_network(pod, kind, pool)
    }

    /// The same with an object in the API server.
    pub(crate) fn registered(&self, node: usize, kind: &str, pool: &str) -> Resident {
        let pod = run_pod(self.plane, &self.nodes[node], &self.namespace, &pod_name()).unwrap();
        Self::in_network(pod, kind, pool)
    }

    /// Removes the object of a [registered](Self::registered) pod.
    pub(crate) fn forget(&self, pod: &Resident) {
        forget_pod(self.plane, &self.namespace, pod.name()).unwrap();
    }

    fn in_network(pod: Pod, kind: &str, pool: &str) -> Resident {
        let network = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
            "ipam": {"type": "nv-ipam", "poolName": pool, "poolType": kind_of(kind).to_lowercase()}});
        Resident { pod, network, result: Value::Null }
    }

    /// A pod that has an address, and has been reported.
    pub(crate) fn resident(&self, node: usize, kind: &str, pool: &str) -> Resident {
        let mut pod = self.pod(node, kind, pool);
        pod.add().unwrap();
        self.await_held(node, &[&pod]);
        pod
    }

    /// Waits until the agent of a node has reported the addresses of these pods.
    pub(crate) fn await_held(&self, node: usize, pods: &[&Resident]) {
        eventually_blocking("the agent has reported the pods' addresses", SOON, || {
            let object = self.api.get(IPAMNODES, self.name(node));
            let is_held = pods.iter().all(|pod| holds(&object, &pod.address()));
            if is_held { Ok(()) } else { Err(object["status"].to_string()) }
        })
        .unwrap();
    }

    /// Waits until the blocks of just these nodes are being taken back.
    pub(crate) fn await_releasing(&self, kind: &str, pool: &str, nodes: &[&str]) {
        let mut wanted: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        wanted.sort();
        eventually_blocking(&format!("releasing of {pool} are {wanted:?}"), SOON, || {
            let status = self.api.get(kind, pool)["status"].clone();
            let releasing = status["releasing"].as_array().cloned().unwrap_or_default();
            let names: Vec<_> = releasing.iter().map(|one| one["nodeName"].as_str().unwrap().to_owned()).collect();
            if names == wanted { Ok(()) } else { Err(status.to_string()) }
        })
        .unwrap();
    }

    /// Waits until the agent of a node has heard that its first block is in a state, `Active` or `Releasing`.
    pub(crate) fn await_told(&self, node: &str, state: &str) {
        eventually_blocking(&format!("{node} knows that its block is {state}"), SOON, || {
            let object = self.api.get(IPAMNODES, node);
            let (told, read) = (&object["metadata"]["generation"], &object["status"]["observedGeneration"]);
            let knows = object["spec"]["pools"][0]["state"] == state && told == read;
            if knows { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
    }

    /// Waits until the agent of a node has heard that its first block has a gateway.
    pub(crate) fn await_gateway(&self, node: usize, gateway: &str) {
        let name = self.name(node);
        eventually_blocking(&format!("{name} knows that the gateway is {gateway}"), SOON, || {
            let object = self.api.get(IPAMNODES, name);
            let (told, read) = (&object["metadata"]["generation"], &object["status"]["observedGeneration"]);
            let knows = object["spec"]["pools"][0]["gateway"] == gateway && told == read;
            if knows { Ok(()) } else { Err(object.to_string()) }
        })
        .unwrap();
    }

    /// Waits until an object is gone.
    pub(crate) fn await_gone(&self, kind: &str, name: &str) {
        eventually_blocking(&format!("{kind}/{name} is gone"), SOON, || match self.api.find(kind, name) {
            None => Ok(()),
            Some(object) => Err(object.to_string()),
        })
        .unwrap();
    }

    /// What a condition of a pool says, once it is so.
    pub(crate) fn told(&self, kind: &str, pool: &str, condition: (&str, &str, &str)) -> String {
        crate::api::text(&self.api.await_condition(kind, pool, condition)["message"])
    }

    /// Ends the operator that leads, as a power cut would.
    pub(crate) fn crash_leader(&mut self) {
        let leads = |operator: &Operator| {
            let (_, text) = ipam_e2e::http::get(&operator.metrics(), "/metrics").unwrap();
            text.lines().any(|line| line == ipam_e2e::cluster::IS_LEADER)
        };
        let place = self.operators.iter().position(leads).expect("one of the two leads");
        self.operators[place].process().kill().unwrap();
    }

    /// Ends the agent of a node for good.
    pub(crate) fn kill_agent(&mut self, node: usize) {
        drop(self.agents[node].take());
    }

    /// Stops the agent of a node for good, as a machine does that is switched off in good order.
    pub(crate) fn stop_agent(&mut self, node: usize) {
        let mut agent = self.agents[node].take().expect("the agent runs");
        agent.process().terminate(SOON).unwrap();
    }

    /// Starts an agent with further flags on a node on which none runs.
    pub(crate) fn start_agent(&mut self, node: usize, flags: &[&str]) {
        let agent = Agent::start(self.plane, &self.nodes[node], &self.namespace, flags);
        assert!(self.agents[node].replace(agent.unwrap()).is_none(), "one agent for each node");
    }

    /// Runs a program on a node.
    pub(crate) fn on_node(&self, node: usize, words: &[&str]) {
        self.nodes[node].entrance().run(words).unwrap();
    }

    /// Waits until the agent of a node says that its first block is idle.
    pub(crate) fn await_idle(&self, node: usize) {
        eventually_blocking(&format!("{} has an idle block", self.name(node)), IDLE, || {
            let object = self.api.get(IPAMNODES, self.name(node));
            if object["status"]["pools"][0]["idle"] == true { Ok(()) } else { Err(object["status"].to_string()) }
        })
        .unwrap();
    }

    /// kubectl in this stage's namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let namespaced: Vec<&str> = ["-n", &self.namespace].into_iter().chain(arguments.iter().copied()).collect();
        self.plane.kubectl().run_with(&namespaced, input).unwrap()
    }

    /// Runs `ipam-controller` as an admin does; answers what it said.
    pub(crate) fn controller(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&binaries::build().unwrap().controller);
        command.args(arguments).arg(format!("--kubeconfig={}", self.plane.kubeconfig().display()));
        let output = child::output(&mut command).unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{said}");
        said
    }

    /// The block that each IPAMNode tells of a pool, by node.
    pub(crate) fn told_blocks(&self, pool: &str) -> BTreeMap<String, String> {
        let mut told = BTreeMap::new();
        for object in self.api.list(IPAMNODES) {
            for block in object["spec"]["pools"].as_array().into_iter().flatten().filter(|block| block["name"] == pool)
            {
                let range = format!("{}-{}", crate::api::text(&block["startIP"]), crate::api::text(&block["endIP"]));
                told.insert(crate::api::text(&object["metadata"]["name"]), range);
            }
        }
        told
    }
}

/// Another name with each call.
fn pod_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("pod-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether an IPAMNode's report names the address.
fn holds(object: &Value, address: &str) -> bool {
    let bare: std::net::IpAddr = address.split('/').next().unwrap_or_default().parse().unwrap();
    let reports = object["status"]["pools"].as_array().into_iter().flatten();
    let runs = reports.flat_map(|report| report["held"].as_array().into_iter().flatten());
    let end = |value: &Value| value.as_str().unwrap().parse::<std::net::IpAddr>().unwrap();
    runs.into_iter().any(|run| (end(&run["startIP"])..=end(&run["endIP"])).contains(&bare))
}

/// A pod, and the address that it has.
pub(crate) struct Resident {
    pod: Pod,
    network: Value,
    result: Value,
}

impl Resident {
    /// The name of the pod.
    pub(crate) fn name(&self) -> &str {
        self.pod.name()
    }

    /// CNI ADD.
    pub(crate) fn add(&mut self) -> Result<(), CniError> {
        self.result = self.pod.add(INTERFACE, &self.network)?;
        Ok(())
    }

    /// The address that ADD gave, with its length.
    pub(crate) fn address(&self) -> String {
        crate::api::text(&self.result["ips"][0]["address"])
    }

    /// The gateway that ADD told.
    pub(crate) fn gateway(&self) -> String {
        crate::api::text(&self.result["ips"][0]["gateway"])
    }

    /// CNI CHECK: what was given is held, and wired.
    pub(crate) fn check(&self) {
        self.pod.check(INTERFACE, &self.network, &self.result).unwrap();
    }

    /// CNI DEL.
    pub(crate) fn del(&self) {
        self.pod.del(INTERFACE, &self.network).unwrap();
    }
}

/// Waits until new blocks of an IPPool wait for the report of a node, and answers what the pool says.
pub(crate) fn await_paused(api: &Api, pool: &str, node: &str) -> String {
    let condition = api.await_condition(IPPOOLS, pool, ("AllocationPaused", "True", "AwaitingAgentReports"));
    let said = crate::api::text(&condition["message"]);
    assert!(said.contains(node) && said.contains("nv-ipam.nvidia.com/force-release=NODE"), "{said}");
    said
}

/// Waits until new blocks of an IPPool wait for no report.
pub(crate) fn await_resumed(api: &Api, pool: &str) {
    api.await_condition(IPPOOLS, pool, ("AllocationPaused", "False", "RecordsComplete"));
}

/// The specs of the IPPools of these tests need little.
pub(crate) fn ip_spec(subnet: &str, size: u32) -> Value {
    json!({"subnet": subnet, "perNodeBlockSize": size})
}

/// A status subresource without anything in it, as `kubectl replace --subresource=status` sends it.
pub(crate) fn wiped(stage: &Stage, pool: &str) -> String {
    let mut object = stage.api.get(IPPOOLS, pool);
    object.as_object_mut().unwrap().remove("status");
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object.to_string()
}
