//! The real agent below strace, which writes down its system calls and lets some of them fail.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ipam_crds::NodeBlock;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{blue, deadline, save_spec};
use crate::trace::{Call, read};

/// The calls that the tests look at. strace stops the agent at no others.
const CALLS: &str = "trace=read,recvfrom,recvmsg,write,writev,sendto,sendmsg,pwrite64,pwritev,fallocate,fsync,fdatasync,\
    rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat";
/// No server listens here.
const AWAY: &str = "127.0.0.1:1";

/// A folder with all that one agent needs.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    /// Without a store, and with this API server.
    pub(crate) fn new(server: Option<SocketAddr>) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let server = server.map_or(AWAY.to_owned(), |address| address.to_string());
        let kubeconfig = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: \
             u}}}}], clusters: [{{name: k, cluster: {{server: 'http://{server}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(home.path("kubeconfig"), kubeconfig).unwrap();
        std::fs::write(home.path("plugin"), "the plugin").unwrap();
        for directory in ["bin", "conf"] {
            std::fs::create_dir(home.path(directory)).unwrap();
        }
        home
    }

    /// With a spec that an earlier agent saved, and no API server.
    pub(crate) fn with_spec() -> Self {
        let home = Self::new(None);
        home.save(vec![NodeBlock { end_ip: "192.168.0.99".into(), ..blue() }]);
        home
    }

    /// Saves a spec as an earlier agent did.
    fn save(&self, blocks: Vec<NodeBlock>) {
        let spec = NodeSpec { uid: "u".into(), created: 0, generation: Some(1), blocks, ..NodeSpec::default() };
        save_spec(&self.path("store.d"), "kube-system", spec);
    }

    /// Saves an address in use as the oldest versions of NVIDIA's agent did.
    pub(crate) fn save_host_local(&self, pool: &str, address: &str, owner: &str) {
        let folder = self.path("state/host-local").join(pool);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(address), owner).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts the agent. `faults` are strace's: `-P PATH`, `-e inject=CALL:error=EIO:when=2`.
    pub(crate) fn start(&self, faults: &[&str]) -> Agent {
        let flag = |name: &str, path: &str| format!("--{name}={}", self.path(path).display());
        let mut command = Command::new("strace");
        command
            .args(["-f", "--seccomp-bpf", "-y", "-xx", "-s", "4096", "-e", CALLS, "-o"])
            .arg(self.path("trace"))
            .args(faults)
            .arg(env!("CARGO_BIN_EXE_ipam-node"))
            .args(["--node-name=node1", "--health-probe-bind-address=0", "--metrics-bind-address=0"])
            .args([flag("kubeconfig", "kubeconfig"), flag("store-file", "store")])
            .args([flag("cni-nv-ipam-bin-file", "plugin"), flag("cni-bin-dir", "bin"), flag("cni-conf-dir", "conf")])
            .arg(format!("--bind-address=unix://{}", self.path("daemon.sock").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path("log")).unwrap());
        match command.spawn() {
            Ok(strace) => Agent { strace, home: self.0.path().to_owned() },
            Err(error) => panic!("`strace` cannot be started ({error}): install the package strace"),
        }
    }

    /// Starts the agent and waits until STATUS succeeds.
    pub(crate) async fn serve(&self, faults: &[&str]) -> (Agent, AgentClient) {
        self.serve_until(faults, async |client| client.probe(deadline()).await.is_ok()).await
    }

    /// Starts the agent and waits until it is up.
    pub(crate) async fn serve_until(
        &self,
        faults: &[&str],
        is_up: impl AsyncFn(&AgentClient) -> bool,
    ) -> (Agent, AgentClient) {
        let mut agent = self.start(faults);
        let address = AgentAddress::Unix(self.path("daemon.sock"));
        let until = deadline();
        loop {
            if let Ok(client) = AgentClient::connect(&address, until).await
                && is_up(&client).await
            {
                return (agent, client);
            }
            assert_eq!(agent.strace.try_wait().unwrap(), None, "the agent has ended: {}", self.log());
            assert!(tokio::time::Instant::now() < until, "the agent does not answer: {}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the agent has logged, and strace complained of.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }
}

/// strace and the agent below it; neither outlives the test.
pub(crate) struct Agent {
    strace: Child,
    home: PathBuf,
}

impl Agent {
    /// The agent itself: the one child of strace. Only strace waits for it, so the kernel does not reuse its id.
    fn pid(&self) -> Option<Pid> {
        let parent = format!(" {} ", self.strace.id());
        let is_child = |stat: &str| {
            let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            behind_name.get(2..).is_some_and(|rest| rest.starts_with(&parent))
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let child = stats.filter(|stat| is_child(stat)).find_map(|stat| stat.split(' ').next()?.parse().ok());
        Pid::from_raw(child?)
    }

    /// Ends the agent in order; its system calls.
    pub(crate) async fn stop(mut self) -> Vec<Call> {
        kill_process(self.pid().unwrap(), Signal::TERM).unwrap();
        assert_eq!(self.end().await, Some(0));
        read(&self.home.join("trace"))
    }

    /// Waits until the agent ends by itself; its exit code.
    pub(crate) async fn end(&mut self) -> Option<i32> {
        let until = deadline();
        loop {
            // strace ends as its agent did.
            if let Some(status) = self.strace.try_wait().unwrap() {
                assert_eq!(status.signal(), None, "the agent was killed");
                return status.code();
            }
            assert!(tokio::time::Instant::now() < until, "the agent does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The calls so far; for an agent that has ended.
    pub(crate) fn calls(&self) -> Vec<Call> {
        read(&self.home.join("trace"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Without strace the agent would go on: it goes first, and strace with it. It may not have started yet.
        let until = deadline();
        while matches!(self.strace.try_wait(), Ok(None)) && tokio::time::Instant::now() < until {
            let _ = self.pid().map(|agent| kill_process(agent, Signal::KILL));
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(self.strace.kill());
        drop(self.strace.wait());
    }
}

/// The path of the folder that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap()
}
