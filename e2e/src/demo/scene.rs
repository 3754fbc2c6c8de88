//! The cluster of the demo: the control plane, three nodes, and our programs. Setup, the final state, and the next
//! steps.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::pods::RunningPod;
use super::pools::RDMA;
use super::story::Story;
use crate::cluster::{self, Agent, Operator};
use crate::control_plane::ControlPlane;
use crate::netns::{Node, Sandbox};
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

    /// Prints the final state, the summary and the next steps. With `keep` it does not return, so that the cluster runs
    /// until Ctrl-C.
    pub(super) fn finish(mut self, keep: bool) -> Result<()> {
        self.story.step("Show the final state", "the status shows the blocks of each node and the addresses in use")?;
        self.await_totals()?;
        self.kubectl(&["get", "ippools,cidrpools,ipamnodes", "-n", NAMESPACE])?;
        self.story.line("Events of the operator:")?;
        self.kubectl(&["get", "events", "-n", NAMESPACE, "--field-selector=reason!=LeaderElection"])?;
        self.story.summary()?;
        self.story.heading("Next steps (run the commands in the root of the repository)")?;
        self.show_first_step(keep)?;
        self.show_second_step()?;
        THIRD_STEP.iter().try_for_each(|line| self.story.line(line))?;
        if keep {
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }

    /// How to use kubectl on the cluster of the demo.
    fn show_first_step(&mut self, keep: bool) -> Result<()> {
        if !keep {
            self.story.line("1. Run the demo again, keep its cluster, and use kubectl on it:")?;
            return self.story.line("     cargo demo -- --keep");
        }
        self.story.line("1. Use kubectl on this cluster. It runs until you press Ctrl-C here. In another terminal:")?;
        let mut lines = vec![
            format!("export KUBECONFIG={}", self.plane.kubeconfig().display()),
            format!("alias kubectl={}", self.plane.kubectl().program().display()),
            format!("kubectl get ippools,cidrpools,ipamnodes -n {NAMESPACE}"),
            "kubectl explain ippool.spec".to_owned(),
        ];
        let shell = |node: &Node| format!("{}     # a shell on {}", node.entrance().shell_line(), node.name());
        lines.extend(self.nodes.iter().map(shell));
        lines.push("ip netns     # in such a shell: the pods of the node".to_owned());
        lines.push(format!("ls {}     # logs", self.plane.directory().display()));
        lines.iter().try_for_each(|line| self.story.line(&format!("     {line}")))?;
        self.story
            .line("   No kubelet runs: change pools and Nodes as you like, but a Pod that you create does not start.")
    }

    /// How to check a pool with the operator's program, which the demo has built.
    fn show_second_step(&mut self) -> Result<()> {
        let program = &binaries::build()?.controller;
        let program = program.strip_prefix(binaries::workspace()).unwrap_or(program).display();
        self.story.line("2. Write a pool of your own and check it with the operator's program, without a cluster:")?;
        self.story.line(&format!("     cp {} my-pool.yaml     # then edit my-pool.yaml", RDMA.file))?;
        self.story.line(&format!("     {program} validate --nodes 3 --explain my-pool.yaml"))
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

/// Where a reader finds more.
const THIRD_STEP: [&str; 3] = [
    "3. Read on, and install nv-ipam in a cluster of your own:",
    "     docs/README.md             the documentation",
    "     charts/nv-ipam/README.md   the Helm chart",
];

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say("demo failed: a panic. All processes of the demo are ended.");
        }
    }
}
