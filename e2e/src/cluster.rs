//! Our three programs as a cluster runs them: the operator beside the API server, an agent on each node, the plugin below a CNI
//! plugin of others; and the objects around them: CRDs, Nodes, Pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::http;
use crate::netns::{Node, Pod};
use crate::ports::Port;
use crate::process::Process;

/// The metric of an operator that is the leader.
pub const IS_LEADER: &str = "leader_election_master_status{name=\"dd1643cf.nvidia.com\"} 1";

/// Ample for a loaded machine; each takes well under a second on an idle one.
const READY: Duration = Duration::from_mins(1);
/// Where an agent answers probes, inside its own network namespace.
const AGENT_PROBES: &str = "127.0.0.1:8081";

/// Applies the CRDs of the repository and waits until the API server serves them.
///
/// # Errors
/// When the API server refuses one.
pub fn install_crds(plane: &ControlPlane) -> Result<()> {
    let folder = binaries::workspace().join("crds");
    let mut files: Vec<_> = std::fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    ensure!(!files.is_empty(), "no CRDs in {}", folder.display());
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &text)?;
    }
    await_crds(plane)
}

/// Waits until the API server serves all CRDs that it has been given. (`kubectl wait` fails on one that has no conditions yet.)
///
/// # Errors
/// When one is not served in time.
pub fn await_crds(plane: &ControlPlane) -> Result<()> {
    eventually_blocking("all CRDs are established", READY, || {
        let text = plane.kubectl().run(&["get", "crd", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl answered no JSON")?;
        for crd in list["items"].as_array().into_iter().flatten() {
            let mut conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
            let established = |found: &Value| found["type"] == "Established" && found["status"] == "True";
            ensure!(conditions.any(established), "{} is not: {}", crd["metadata"]["name"], crd["status"]);
        }
        Ok(())
    })
}

/// Waits for a namespace that the API server makes by itself after it has become ready.
///
/// # Errors
/// When it does not appear.
pub fn await_namespace(plane: &ControlPlane, name: &str) -> Result<()> {
    eventually_blocking(name, READY, || plane.kubectl().run(&["get", "namespace", name])).map(|_| ())
}

/// Creates a Node object with labels; nothing else of it matters to us.
///
/// # Errors
/// When the API server refuses it.
pub fn register_node(plane: &ControlPlane, name: &str, labels: &[(&str, &str)]) -> Result<()> {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    plane.kubectl().apply(&node.to_string()).map(|_| ())
}

/// A running operator.
pub struct Operator {
    process: Process,
    probes: Port,
    metrics: Port,
}

impl Operator {
    /// Starts it for the pools of `namespace` and waits until `/readyz` says so. `extra` are further flags.
    ///
    /// # Errors
    /// When it does not build, start or become ready; the message carries the end of its log.
    pub fn start(plane: &ControlPlane, namespace: &str, extra: &[&str]) -> Result<Self> {
        let mut arguments =
            vec![format!("--kubeconfig={}", plane.kubeconfig().display()), format!("--ippools-namespace={namespace}")];
        arguments.extend(extra.iter().map(|word| (*word).to_owned()));
        let mut operator = Self::launch(plane, arguments)?;
        operator.await_ready()?;
        Ok(operator)
    }

    /// Starts it with these flags and waits for nothing. Probes and metrics are put on ports that are free, whatever the
    /// flags say: of a flag given twice the last one counts.
    ///
    /// # Errors
    /// When it does not build, or ends at once.
    pub fn launch(plane: &ControlPlane, mut arguments: Vec<String>) -> Result<Self> {
        let (probes, metrics) = (Port::reserve()?, Port::reserve()?);
        arguments.push(format!("--health-probe-bind-address=127.0.0.1:{}", probes.number()));
        arguments.push(format!("--metrics-bind-address=127.0.0.1:{}", metrics.number()));
        let log = plane.directory().join(format!("ipam-controller.{}.log", probes.number()));
        let process = Process::start("ipam-controller", &binaries::build()?.controller, &arguments, &log)?;
        Ok(Self { process, probes, metrics })
    }

    /// Waits until `/readyz` says so.
    ///
    /// # Errors
    /// When it ends or the deadline passes; the message carries the end of its log.
    pub fn await_ready(&mut self) -> Result<()> {
        let address = self.probes();
        self.process.ready("/readyz", READY, || http::ok(&address, "/readyz"))
    }

    /// The process, to signal or end it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// `HOST:PORT` of `/healthz` and `/readyz`.
    pub fn probes(&self) -> String {
        format!("127.0.0.1:{}", self.probes.number())
    }

    /// `HOST:PORT` of `/metrics`.
    pub fn metrics(&self) -> String {
        format!("127.0.0.1:{}", self.metrics.number())
    }
}

/// A running agent on a node.
pub struct Agent {
    process: Process,
}

impl Agent {
    /// Starts it for the pools of `namespace` and waits until `/readyz` says so. `extra` are further flags.
    ///
    /// # Errors
    /// When it does not build, start or become ready; the message carries the end of its log.
    pub fn start(plane: &ControlPlane, node: &Node, namespace: &str, extra: &[&str]) -> Result<Self> {
        let mut agent = Self::launch(plane, node, namespace, extra)?;
        agent.await_ready(node)?;
        Ok(agent)
    }

    /// Starts it without waiting: for an agent that is not expected to become ready.
    ///
    /// # Errors
    /// When it does not build, or ends at once.
    pub fn launch(plane: &ControlPlane, node: &Node, namespace: &str, extra: &[&str]) -> Result<Self> {
        let mut arguments = vec![
            format!("--node-name={}", node.name()),
            format!("--kubeconfig={}", plane.kubeconfig().display()),
            format!("--ippools-namespace={namespace}"),
            format!("--cni-nv-ipam-bin-file={}", binaries::build()?.plugin.display()),
        ];
        arguments.extend(extra.iter().map(|word| (*word).to_owned()));
        Self::launch_as(node, &arguments, &[])
    }

    /// Starts it with these flags and environment variables alone, and waits for nothing.
    ///
    /// # Errors
    /// When it does not build, or ends at once.
    pub fn launch_as(node: &Node, arguments: &[String], environment: &[(String, String)]) -> Result<Self> {
        let mut command = node.entrance().command(&binaries::build()?.agent);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        Ok(Self { process: node.spawn("ipam-node", command)? })
    }

    /// Waits until `/readyz`, asked on the node, says so.
    ///
    /// # Errors
    /// When it ends or the deadline passes; the message carries the end of its log.
    pub fn await_ready(&mut self, node: &Node) -> Result<()> {
        self.process.ready("/readyz", READY, || Self::probe(node, "/readyz"))
    }

    /// Asks a probe (`/readyz`, `/healthz`) on the node.
    ///
    /// # Errors
    /// When the answer is not 200, with its body.
    pub fn probe(node: &Node, path: &str) -> Result<()> {
        node.http(AGENT_PROBES, path).map(|_| ())
    }

    /// The process, to signal or end it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Creates a Pod object bound to the node, and its network namespace on the node.
///
/// # Errors
/// When the API server refuses the object, or the name is taken on the node.
pub fn run_pod(plane: &ControlPlane, node: &Node, namespace: &str, name: &str) -> Result<Pod> {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node.name(), "containers": [{"name": "none", "image": "example.invalid/none:1"}]},
    });
    let made = plane.kubectl().run_with(&["create", "-f", "-", "-o", "json"], &object.to_string())?;
    let made: Value = serde_json::from_str(&made).context("kubectl answered no JSON")?;
    node.pod(namespace, name, made["metadata"]["uid"].as_str().context("a Pod without uid")?)
}

/// Removes a Pod object at once, as when its node's kubelet has confirmed the end.
///
/// # Errors
/// When it is not there.
pub fn forget_pod(plane: &ControlPlane, namespace: &str, name: &str) -> Result<()> {
    plane.kubectl().run(&["delete", "pod", name, "-n", namespace, "--grace-period=0", "--force"]).map(|_| ())
}
