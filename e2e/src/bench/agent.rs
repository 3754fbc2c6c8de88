//! An agent as a process on this host: its own folder for socket, store and log; its way to the API server by a port of choice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::Lone;
use super::meter::{Meter, mib};
use super::table::Finding;
use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::http;
use crate::ports::Port;
use crate::process::Process;

const READY: Duration = Duration::from_mins(1);
const NODE: &str = "lone.example.org";
/// The pool of the lone agent, with room for all that the rows ask for.
pub(super) const POOL: &str = "wide";
const MEMORY_AIM: u64 = 10 * 1024;

/// A running agent.
pub(super) struct Agent {
    process: Process,
    home: PathBuf,
    _probes: Port,
}

impl Agent {
    /// Starts one for a node that need not exist yet, and waits until it is ready. It reaches the API server at `port`.
    pub(super) fn start(plane: &ControlPlane, namespace: &str, node: &str, port: u16) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let home = plane.directory().join(format!("a{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&home)?;
        let kubeconfig = home.join("kubeconfig");
        let mut config: Value = serde_json::from_slice(&std::fs::read(plane.kubeconfig())?)?;
        config["clusters"][0]["cluster"]["server"] = json!(format!("https://127.0.0.1:{port}"));
        std::fs::write(&kubeconfig, config.to_string())?;
        let probes = Port::reserve()?;
        let arguments = [
            format!("--node-name={node}"),
            format!("--ippools-namespace={namespace}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--store-file={}", home.join("store").display()),
            format!("--bind-address=unix://{}", home.join("daemon.sock").display()),
            format!("--health-probe-bind-address=127.0.0.1:{}", probes.number()),
            "--metrics-bind-address=0".to_owned(),
            "--cni-skip-nv-ipam-binary-copy".to_owned(),
            "--cni-skip-nv-ipam-config-creation".to_owned(),
        ];
        let mut process = Process::start("ipam-node", &binaries::build()?.agent, &arguments, &home.join("log"))?;
        let address = format!("127.0.0.1:{}", probes.number());
        process.ready("/readyz", READY, || http::ok(&address, "/readyz"))?;
        Ok(Self { process, home, _probes: probes })
    }

    pub(super) fn meter(&self) -> Meter {
        Meter::of(&self.process)
    }

    pub(super) fn ensure_running(&mut self) -> Result<()> {
        self.process.ensure_running()
    }

    /// Where its store lies, and whatever else belongs to this agent.
    pub(super) fn home(&self) -> &std::path::Path {
        &self.home
    }

    pub(super) fn address(&self) -> AgentAddress {
        AgentAddress::Unix(self.home.join("daemon.sock"))
    }

    /// Waits until it answers on its socket.
    pub(super) fn await_answers(&self, runtime: &Runtime) -> Result<()> {
        runtime.block_on(async {
            let deadline = Instant::now() + READY;
            let client = AgentClient::connect(&self.address(), deadline).await?;
            client.probe(deadline).await.context("the agent does not answer")
        })
    }
}

/// An agent in a namespace without an operator, with one block of 65,000 addresses, at rest.
pub(super) fn lone(plane: &ControlPlane) -> Result<Agent> {
    let namespace = plane.namespace("lone")?;
    let object = json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": NODE, "namespace": namespace},
        "spec": {"pools": [{
            "name": POOL, "poolType": "IPPool", "state": "Active", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1",
            "startIP": "10.1.0.1", "endIP": "10.1.255.254",
        }]},
    });
    plane.kubectl().apply(&object.to_string())?;
    let agent = Agent::start(plane, &namespace, NODE, plane.port())?;
    agent.meter().settle(Duration::from_secs(2))?;
    Ok(agent)
}

/// Resident memory before the first call and after all others of this run.
pub(super) fn memory(lone: &mut Lone<'_>) -> Result<Vec<Finding>> {
    let later = lone.agent.meter().memory()?;
    Ok(vec![Finding {
        what: "agent RSS idle".to_owned(),
        reference: "38.9 MiB",
        aim: "≤ 10 MiB",
        measured: format!(
            "{}; after the calls above {}, at most {}",
            mib(lone.idle_memory),
            mib(later.now),
            mib(later.most)
        ),
        met: lone.idle_memory <= MEMORY_AIM,
    }])
}
