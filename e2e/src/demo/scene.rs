//! The cluster of the demo: the control plane, three nodes, our programs and the pods. How the demo sets it up.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::story::Story;
use crate::cluster::{self, Agent, Operator};
use crate::control_plane::ControlPlane;
use crate::netns::{Node, Pod, Sandbox};
use crate::progress::say;
use crate::{assets, binaries};

/// Namespace of the pools, the operator's default.
pub(super) const NAMESPACE: &str = "kube-system";
/// Deadline of each wait, long enough for a busy machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// The label that the node selectors of the pools require.
const WORKER: (&str, &str) = ("node-role.kubernetes.io/worker", "");
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

const TITLE: &str = "nv-ipam demo: IP addresses for secondary pod networks, on a real API server";
const INTRODUCTION: [&str; 9] = [
    "nv-ipam manages IP addresses of secondary pod networks in Kubernetes. It has three programs:",
    "",
    "  ipam-controller   the operator. It divides address pools into blocks and assigns the blocks to nodes.",
    "  ipam-node         the agent on each node. It allocates addresses from the blocks of its node to pods.",
    "  nv-ipam           the CNI plugin. It requests an address when a pod starts and frees it when the pod ends.",
    "",
    "This demo runs all three on this machine. Nodes and pods are Linux network namespaces. No container runs.",
    "Each step checks its results. The demo stops with an error at the first failed check.",
    "Lines that begin with $ are the commands that print the output below them.",
];

/// A pod with its addresses and CNI results on both networks.
pub(super) struct RunningPod {
    pub(super) pod: Pod,
    /// Index of the node.
    pub(super) node: usize,
    pub(super) rdma: (IpAddr, Value),
    pub(super) storage: (IpAddr, Value),
}

pub(super) struct Scene {
    pub(super) story: Story,
    pub(super) pods: Vec<RunningPod>,
    // Drop order: agents, operator, nodes, sandbox, control plane.
    pub(super) agents: Vec<Agent>,
    operator: Option<Operator>,
    pub(super) nodes: Vec<Node>,
    pub(super) sandbox: Sandbox,
    pub(super) plane: ControlPlane,
}

impl Scene {
    /// Checks the requirements and builds all programs, then starts the control plane and the nodes.
    pub(super) fn prepare() -> Result<Self> {
        Sandbox::possible()?;
        assets::ensure(&[assets::CONTROL_PLANE.as_slice(), &assets::PLUGINS].concat())?;
        binaries::build()?;
        let mut story = Story::begin(TITLE, &INTRODUCTION)?;
        story.step(
            "Start a control plane and three nodes",
            "etcd and kube-apiserver run, and three worker nodes are registered",
        )?;
        let plane = ControlPlane::start()?;
        cluster::await_namespace(&plane, NAMESPACE)?;
        let sandbox = Sandbox::start(&plane)?;
        let mut nodes = Vec::new();
        for (index, name) in (1..).zip(NODES) {
            nodes.push(Node::start(&sandbox, name, index)?);
            cluster::register_node(&plane, name, &[WORKER, ("kubernetes.io/hostname", name)])?;
        }
        let mut scene = Self { story, pods: Vec::new(), agents: Vec::new(), operator: None, nodes, sandbox, plane };
        scene.kubectl(&["version"])?;
        scene.kubectl(&["get", "nodes"])?;
        scene.story.line("The status is Unknown because no kubelet runs. nv-ipam needs only the Node objects.")?;
        Ok(scene)
    }

    /// Installs the CRDs and starts the operator.
    pub(super) fn install(&mut self) -> Result<()> {
        self.story.step(
            "Install the CRDs and start the operator",
            "the API server accepts the CRDs, and the operator becomes ready",
        )?;
        cluster::install_crds(&self.plane)?;
        self.kubectl(&["api-resources", "--api-group=nv-ipam.nvidia.com"])?;
        let operator = Operator::start(&self.plane, NAMESPACE, &[])?;
        self.story.line(&format!("The operator is ready: http://{}/readyz", operator.probes()))?;
        self.operator = Some(operator);
        Ok(())
    }

    /// Starts an agent on each node.
    pub(super) fn start_agents(&mut self) -> Result<()> {
        self.story.step(
            "Start an agent on each node",
            "each agent installs the CNI plugin and serves the blocks of its node",
        )?;
        for node in &self.nodes {
            self.agents.push(Agent::start(&self.plane, node, NAMESPACE, &[])?);
        }
        self.story
            .line("Each agent installs the CNI plugin and its configuration, opens a socket, and keeps a journal:")?;
        let script = "ls /opt/cni/bin /etc/cni/net.d/nv-ipam.d /var/lib/cni/nv-ipam";
        let files = self.nodes[0].entrance().script(script)?;
        self.story.command(&format!("{script}     # on node-1"), &files)?;
        self.story.line("")?;
        self.story.line("Each agent watches one object, the IPAMNode of its node. It lists the blocks of the node:")?;
        for node in NODES {
            self.await_used(node, 0)?;
        }
        self.kubectl(&["get", "ipamnodes", "-n", NAMESPACE])
    }

    /// Runs kubectl and prints the command and its output.
    pub(super) fn kubectl(&mut self, arguments: &[&str]) -> Result<()> {
        let output = self.plane.kubectl().run(arguments)?;
        self.story.command(&format!("kubectl {}", arguments.join(" ")), &output)
    }

    /// An object as JSON.
    pub(super) fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.plane.kubectl().run(&["get", kind, name, "-n", NAMESPACE, "-o", "json"])?;
        serde_json::from_str(&text).with_context(|| format!("kubectl get {kind} {name} printed no JSON"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say("demo failed: a panic. All processes of the demo are ended.");
        }
    }
}
