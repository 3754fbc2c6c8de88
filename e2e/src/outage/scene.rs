//! Three nodes with agents, two operators, a pool of each kind; and what an outage does to them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::SOON;
use crate::cluster::{Agent, Operator, register_node};
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::http;
use crate::netns::{Node, Sandbox};

/// Plural and name of the pools.
pub(super) const POOLS: [(&str, &str); 2] = [("ippools", "flat"), ("cidrpools", "routed")];
/// Nodes with agents.
const NODES: u8 = 3;
/// Label of the nodes that the pools select.
const GROUP: &str = "e2e.nv-ipam.invalid/group";

/// Node → pool → addresses held.
pub(super) type Held = BTreeMap<String, BTreeMap<&'static str, usize>>;

/// All that runs besides the control plane.
pub(super) struct Scene<'a> {
    plane: &'a ControlPlane,
    namespace: String,
    runtime: Runtime,
    client: Client,
    operators: Vec<Operator>,
    agents: Vec<Agent>,
    nodes: Vec<Node>,
    _sandbox: Sandbox,
}

impl<'a> Scene<'a> {
    /// All of it, ready: each agent knows its blocks.
    pub(super) fn set(plane: &'a ControlPlane, namespace: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(plane.client())?;
        let sandbox = Sandbox::start(plane)?;
        let name = |number: u8| format!("{namespace}-{number}");
        let nodes =
            (1..=NODES).map(|number| Node::start(&sandbox, &name(number), number)).collect::<Result<Vec<_>>>()?;
        let mut scene = Self {
            plane,
            namespace: namespace.to_owned(),
            runtime,
            client,
            operators: Vec::new(),
            agents: Vec::new(),
            nodes,
            _sandbox: sandbox,
        };
        for _ in 0..2 {
            let operator = scene.launch_operator()?;
            scene.operators.push(operator);
        }
        for node in &scene.nodes {
            register_node(plane, node.name(), &[(GROUP, namespace)])?;
        }
        scene.make_pools()?;
        for place in 0..scene.nodes.len() {
            let agent = Agent::launch(plane, &scene.nodes[place], namespace, &[])?;
            scene.agents.push(agent);
        }
        let none = scene.nodes.iter().map(|node| (node.name().to_owned(), BTreeMap::new())).collect();
        scene.await_statuses(&none)?;
        Ok(scene)
    }

    fn make_pools(&self) -> Result<()> {
        let expression = json!({"key": GROUP, "operator": "In", "values": [self.namespace]});
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        let flat = json!({"subnet": "10.99.0.0/20", "perNodeBlockSize": 64, "gateway": "10.99.0.1"});
        let routed = json!({"cidr": "fd99::/64", "perNodeNetworkPrefix": 120, "gatewayIndex": 1});
        for ((_, name), (kind, mut spec)) in POOLS.iter().zip([("IPPool", flat), ("CIDRPool", routed)]) {
            spec["nodeSelector"] = selector.clone();
            let metadata = json!({"name": name, "namespace": self.namespace});
            let object = json!({
                "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
            });
            self.plane.kubectl().apply(&object.to_string())?;
        }
        Ok(())
    }

    fn launch_operator(&self) -> Result<Operator> {
        let flags = vec![
            format!("--kubeconfig={}", self.plane.kubeconfig().display()),
            format!("--ippools-namespace={}", self.namespace),
            "--leader-elect".to_owned(),
            format!("--leader-elect-namespace={}", self.namespace),
        ];
        Operator::launch(self.plane, flags)
    }

    /// The nodes.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Waits until an operator other than `than` says that it leads, and answers which. One that stands still says nothing.
    pub(super) fn await_leader(&self, than: Option<usize>) -> Result<usize> {
        let leads = |operator: &Operator| {
            let answer = http::get(&operator.metrics(), "/metrics");
            answer.is_ok_and(|(_, text)| text.lines().any(|line| line == crate::cluster::IS_LEADER))
        };
        eventually_blocking("somebody leads", SOON, || {
            let others = self.operators.iter().enumerate().filter(|(place, _)| Some(*place) != than);
            let leader = others.into_iter().find(|(_, operator)| leads(operator)).map(|(place, _)| place);
            leader.ok_or("nobody does")
        })
    }

    /// Stops an operator where it stands.
    pub(super) fn stop_operator(&mut self, place: usize) -> Result<()> {
        self.operators[place].process().signal(Signal::STOP)
    }

    /// Lets an operator go on that has slept through its lease: it ends by itself, and is started anew as a kubelet would.
    pub(super) fn wake_operator(&mut self, place: usize) -> Result<()> {
        let process = self.operators[place].process();
        process.signal(Signal::CONT)?;
        let status = process.wait(SOON).context("one that has lost the lead works on")?;
        ensure!(!status.success(), "one that has lost the lead ends as if all were well");
        self.operators[place] = self.launch_operator()?;
        Ok(())
    }

    /// Kills an operator and starts it anew.
    pub(super) fn restart_operator(&mut self, place: usize) -> Result<()> {
        self.operators[place].process().kill()?;
        self.operators[place] = self.launch_operator()?;
        Ok(())
    }

    /// A node without an agent joins.
    pub(super) fn join(&self, short: &str) -> Result<()> {
        register_node(self.plane, &format!("{}-{short}", self.namespace), &[(GROUP, &self.namespace)])
    }

    /// Such a node leaves.
    pub(super) fn leave(&self, short: &str) -> Result<()> {
        let name = format!("{}-{short}", self.namespace);
        self.plane.kubectl().run(&["delete", "node", &name]).map(drop)
    }

    /// Waits until the API server lists and takes writes of objects of all our kinds. Its first lists wait for a cache of its own.
    pub(super) fn await_our_kinds(&self) -> Result<()> {
        let node = self.nodes.first().map_or_else(String::new, |node| node.name().to_owned());
        let pools = POOLS.map(|(plural, name)| (plural, name.to_owned()));
        for (plural, name) in pools.into_iter().chain([("ipamnodes", node)]) {
            let path = format!("{}/{plural}", self.path());
            eventually_blocking(&format!("{plural} can be listed and written"), SOON, || {
                self.get(&path)?;
                let request = ::http::Request::patch(format!("{path}/{name}?dryRun=All"));
                let request = request.header("content-type", "application/merge-patch+json");
                let request = request.body(br#"{"metadata":{"labels":{"tried":"true"}}}"#.to_vec())?;
                self.runtime.block_on(self.client.request::<Value>(request))?;
                anyhow::Ok(())
            })?;
        }
        Ok(())
    }

    /// Waits until exactly the nodes that there are have blocks of both pools.
    pub(super) fn await_served(&self) -> Result<()> {
        for pool in POOLS {
            eventually_blocking(&format!("all nodes are served by {}", pool.1), SOON, || {
                let nodes = self.get("/api/v1/nodes")?;
                let (status, count) = (self.status(pool)?, nodes["items"].as_array().map_or(0, Vec::len));
                ensure!(status["nodes"]["served"] == count, "{count} nodes and {}", status["nodes"]);
                anyhow::Ok(())
            })?;
        }
        Ok(())
    }

    /// Waits until every status tells what is held, and that all is well.
    pub(super) fn await_statuses(&self, held: &Held) -> Result<()> {
        eventually_blocking("all statuses are right", SOON, || {
            for (node, pools) in held {
                let object = self.get(&format!("{}/ipamnodes/{node}", self.path()))?;
                self.agree(&object, pools).with_context(|| format!("IPAMNode {node}: {}", object["status"]))?;
            }
            for pool in POOLS {
                let wanted: usize = held.values().filter_map(|pools| pools.get(pool.1)).sum();
                let status = self.status(pool)?;
                let ready = status["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == "Ready");
                let well = ready.is_some_and(|ready| ready["status"] == "True");
                ensure!(well && status["addresses"]["used"] == wanted, "{} should have {wanted}: {status}", pool.1);
            }
            anyhow::Ok(())
        })
    }

    fn agree(&self, object: &Value, pools: &BTreeMap<&str, usize>) -> Result<()> {
        let status = &object["status"];
        ensure!(status["observedGeneration"] == object["metadata"]["generation"], "of another generation");
        for (_, pool) in POOLS {
            let wanted = pools.get(pool).copied().unwrap_or(0);
            let report = status["pools"].as_array().into_iter().flatten().find(|report| report["name"] == pool);
            let used = report.with_context(|| format!("no report of {pool}"))?["used"].clone();
            ensure!(used == wanted, "{pool} has {wanted} in use in {}, told are {used}", self.namespace);
        }
        Ok(())
    }

    fn status(&self, (plural, name): (&str, &str)) -> Result<Value> {
        let mut pool = self.get(&format!("{}/{plural}/{name}", self.path()))?;
        ensure!(
            pool["status"]["observedGeneration"] == pool["metadata"]["generation"],
            "{name} has a status of another spec"
        );
        Ok(pool["status"].take())
    }

    fn path(&self) -> String {
        format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{}", self.namespace)
    }

    fn get(&self, path: &str) -> Result<Value> {
        let request = ::http::Request::get(path).body(Vec::new())?;
        Ok(self.runtime.block_on(self.client.request(request))?)
    }
}
