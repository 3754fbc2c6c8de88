//! An agent as a process on this host, with the flags and the token of its pod. Its folders and ports are its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::meter::Meter;
use super::stage::Stage;
use ipam_e2e::binaries;
use ipam_e2e::http;
use ipam_e2e::ports::Port;
use ipam_e2e::process::Process;

const READY: Duration = Duration::from_mins(1);

/// A running agent.
pub(super) struct Agent {
    process: Process,
    arguments: Vec<String>,
    home: PathBuf,
    probes: Port,
    _metrics: Port,
}

impl Agent {
    /// Starts one for a node, and waits for nothing. It reaches the API server at `port`.
    pub(super) fn launch(stage: &Stage<'_>, node: &str, port: u16) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (mut arguments, mut config) = stage.agent(node)?;
        let home = stage.plane.directory().join(format!("a{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        for folder in ["", "bin", "conf"] {
            std::fs::create_dir_all(home.join(folder)).with_context(|| format!("cannot create {}", home.display()))?;
        }
        config["clusters"][0]["cluster"]["server"] = json!(format!("https://127.0.0.1:{port}"));
        std::fs::write(home.join("kubeconfig"), config.to_string())?;
        let (probes, metrics) = (Port::reserve()?, Port::reserve()?);
        arguments.extend(placement(&home, &binaries::build()?.plugin, probes.number(), metrics.number()));
        let process = Process::start("ipam-node", &binaries::build()?.agent, &arguments, &home.join("log"))?;
        Ok(Self { process, arguments, home, probes, _metrics: metrics })
    }

    /// Ends it as the kubelet does.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.process.terminate(READY).map(drop)
    }

    /// Starts it again, and waits until it is ready.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let program = &binaries::build()?.agent;
        self.process = Process::start("ipam-node", program, &self.arguments, &self.home.join("log"))?;
        self.await_ready()
    }

    /// The command that starts it, without the guard that [`Process`] puts before it.
    pub(super) fn command(&self) -> Result<Command> {
        let mut command = Command::new(&binaries::build()?.agent);
        command.args(&self.arguments);
        Ok(command)
    }

    /// Starts one, and waits until it is ready.
    pub(super) fn start(stage: &Stage<'_>, node: &str, port: u16) -> Result<Self> {
        let mut agent = Self::launch(stage, node, port)?;
        agent.await_ready()?;
        Ok(agent)
    }

    pub(super) fn await_ready(&mut self) -> Result<()> {
        let address = format!("127.0.0.1:{}", self.probes.number());
        self.process.ready("/readyz", READY, || http::ok(&address, "/readyz"))
    }

    pub(super) fn meter(&self) -> Meter {
        Meter::of(&self.process)
    }

    pub(super) fn ensure_running(&mut self) -> Result<()> {
        self.process.ensure_running()
    }

    /// Where its store lies, and whatever else belongs to this agent.
    pub(super) fn home(&self) -> &Path {
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

/// The flags that put an agent into a folder of its own. All others are the chart's.
fn placement(home: &Path, plugin: &Path, probes: u16, metrics: u16) -> Vec<String> {
    let file = |name: &str| home.join(name).display().to_string();
    let socket = format!("unix://{}", file("daemon.sock"));
    vec![
        format!("--kubeconfig={}", file("kubeconfig")),
        format!("--store-file={}", file("store")),
        format!("--bind-address={socket}"),
        format!("--health-probe-bind-address=127.0.0.1:{probes}"),
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        format!("--cni-bin-dir={}", file("bin")),
        format!("--cni-conf-dir={}", file("conf")),
        format!("--cni-daemon-socket={socket}"),
        format!("--cni-log-file={}", file("cni.log")),
        format!("--cni-nv-ipam-bin-file={}", plugin.display()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::PLACED;

    #[test]
    fn an_agent_is_placed_by_flags_the_head_hides() {
        for argument in placement(Path::new("/home"), Path::new("/plugin"), 1, 2) {
            let (flag, _) = argument.split_once('=').unwrap();
            assert!(PLACED.contains(&flag), "{argument}");
        }
    }
}
