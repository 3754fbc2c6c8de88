//! What the demo plays on: the control plane, three nodes, our programs; how it is set up and left.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::pods::Placed;
use super::story::Story;
use crate::cluster::{self, Agent, Operator};
use crate::control_plane::ControlPlane;
use crate::netns::{Node, Sandbox};
use crate::progress::say;
use crate::{assets, binaries};

/// Namespace of the pools, the default of the operator.
pub(super) const POOLS: &str = "kube-system";
/// How long anything in the cluster may take to come about on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(30);
/// The label that the examples' node selectors ask for.
const WORKER: (&str, &str) = ("node-role.kubernetes.io/worker", "");
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

pub(super) struct Scene {
    pub(super) story: Story,
    pub(super) placed: Vec<Placed>,
    // In the order in which they have to end.
    pub(super) agents: Vec<Agent>,
    operator: Option<Operator>,
    pub(super) nodes: Vec<Node>,
    pub(super) sandbox: Sandbox,
    pub(super) plane: ControlPlane,
}

impl Scene {
    /// Everything that can be missing is found out, and everything that takes long is built, before the story begins.
    pub(super) fn prepare() -> Result<Self> {
        Sandbox::possible()?;
        assets::ensure(&[assets::CONTROL_PLANE.as_slice(), &assets::PLUGINS].concat())?;
        binaries::build()?;
        let mut story =
            Story::begin("nv-ipam: the way of an address, on a real API server, in real network namespaces")?;
        story.step(
            "A control plane and three nodes",
            "a real etcd and kube-apiserver, and nodes with a network and CNI folders of their own",
        )?;
        let plane = ControlPlane::start()?;
        cluster::await_namespace(&plane, POOLS)?;
        let sandbox = Sandbox::start(&plane)?;
        let mut nodes = Vec::new();
        for (index, name) in (1..).zip(NODES) {
            nodes.push(Node::start(&sandbox, name, index)?);
            cluster::register_node(&plane, name, &[WORKER, ("kubernetes.io/hostname", name)])?;
        }
        let mut scene = Self { story, placed: Vec::new(), agents: Vec::new(), operator: None, nodes, sandbox, plane };
        scene.show(&["version"])?;
        scene.show(&["get", "nodes", "--label-columns=kubernetes.io/hostname"])?;
        Ok(scene)
    }

    /// The CRDs and the operator.
    pub(super) fn install(&mut self) -> Result<()> {
        self.story
            .step("The CRDs and the operator", "the API server accepts the CRDs, and the operator becomes ready")?;
        cluster::install_crds(&self.plane)?;
        self.show(&["api-resources", "--api-group=nv-ipam.nvidia.com"])?;
        let operator = Operator::start(&self.plane, POOLS, &[])?;
        self.story.line(&format!("ipam-controller runs and is ready (http://{}/readyz).", operator.probes()))?;
        self.operator = Some(operator);
        Ok(())
    }

    /// An agent on each node.
    pub(super) fn start_agents(&mut self) -> Result<()> {
        self.story
            .step("An agent on each node", "the agent knows its node's blocks and has installed the CNI plugin")?;
        for node in &self.nodes {
            self.agents.push(Agent::start(&self.plane, node, POOLS, &[])?);
        }
        let found =
            self.nodes[0].entrance().script("ls -l /opt/cni/bin /etc/cni/net.d/nv-ipam.d /var/lib/cni/nv-ipam")?;
        self.story.shown("ls -l /opt/cni/bin /etc/cni/net.d/nv-ipam.d /var/lib/cni/nv-ipam     # on node-1", &found)
    }

    /// The tables as they are at the end, the summary, and with `keep` a pause until Ctrl-C.
    pub(super) fn finish(mut self, keep: bool) -> Result<()> {
        self.story.step("How it looks in the end", "status tells who has which block and how much of it is used")?;
        self.await_totals()?;
        self.show(&["get", "ippools,cidrpools,ipamnodes", "-n", POOLS])?;
        self.show(&["get", "events", "-n", POOLS, "--field-selector=reason!=LeaderElection"])?;
        self.story.summary()?;
        if keep {
            self.tell_how_to_enter()?;
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }

    fn tell_how_to_enter(&mut self) -> Result<()> {
        self.story.line("")?;
        self.story.line("All of it stays up until Ctrl-C. In another terminal:")?;
        self.story.line(&format!("export KUBECONFIG={}", self.plane.kubeconfig().display()))?;
        self.story.line(&format!("alias kubectl={}", self.plane.kubectl().program().display()))?;
        self.story.line(&format!("kubectl get ippools,cidrpools,ipamnodes -n {POOLS}"))?;
        for node in &self.nodes {
            self.story.line(&format!(
                "{}     # a shell on {}; `ip netns` lists its pods",
                node.entrance().shell_line(),
                node.name()
            ))?;
        }
        self.story.line(&format!("ls {}     # logs", self.plane.directory().display()))
    }

    /// Runs kubectl and shows it as typed.
    pub(super) fn show(&mut self, arguments: &[&str]) -> Result<()> {
        let output = self.plane.kubectl().run(arguments)?;
        self.story.shown(&format!("kubectl {}", arguments.join(" ")), &output)
    }

    /// An object as JSON.
    pub(super) fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.plane.kubectl().run(&["get", kind, name, "-n", POOLS, "-o", "json"])?;
        serde_json::from_str(&text).with_context(|| format!("{kind}/{name} is no JSON"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say("demo: ended by a panic; everything it started ends with it");
        }
    }
}
