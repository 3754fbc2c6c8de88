//! The real binary on a small disk of its own (tmpfs in a mount namespace), which is full or read-only. It needs `unshare` and `nsenter` of util-linux.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{blue, deadline, parameters, save_spec};
use ipam_crds::NodeBlock;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use tonic::Code;

/// Size of the disk. The journal takes half a MiB at first.
const SIZE: &str = "4m";

/// A child that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// An agent's node: a folder, in which `disk` is a small file system of the namespace of `holder` alone.
struct Node {
    folder: tempfile::TempDir,
    holder: Process,
}

impl Node {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let script =
            format!("mount -t tmpfs -o size={SIZE} none '{0}' && : > '{0}/mounted' && exec sleep 600", disk.display());
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", &script]).stdin(Stdio::null());
        let holder = Process(command.spawn().expect("the test needs unshare; install util-linux"));
        let node = Self { folder, holder };
        await_that("the disk is mounted", || node.inside("mounted").exists()).await;
        let kubeconfig = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
            clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
        std::fs::write(node.path("kubeconfig"), kubeconfig).unwrap();
        let block = NodeBlock { end_ip: "192.168.99.99".into(), ..blue() };
        let spec = NodeSpec { uid: "u".into(), generation: Some(1), blocks: vec![block], ..NodeSpec::default() };
        save_spec(&node.inside("store.d"), "kube-system", spec);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the disk as this process sees it.
    fn inside(&self, name: &str) -> PathBuf {
        let disk = self.path("disk").join(name);
        Path::new("/proc").join(self.holder.0.id().to_string()).join("root").join(disk.strip_prefix("/").unwrap())
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.inside("filler")).unwrap();
        let mut bytes = 64 * 1024;
        while bytes > 0 {
            if file.write_all(&vec![7; bytes]).is_err() {
                bytes /= 2;
            }
        }
    }

    /// A command with the file systems of the holder.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.0.id().to_string(), "--user", "--mount", "--preserve-credentials"]);
        command
    }

    /// Remounts the disk: `ro` or `rw`.
    fn remount(&self, how: &str) {
        let mut command = self.enter();
        command.args(["mount", "-o", &format!("remount,{how}")]).arg(self.path("disk"));
        assert!(command.status().expect("the test needs nsenter and mount").success());
    }

    fn make_room(&self) {
        std::fs::remove_file(self.inside("filler")).unwrap();
    }

    /// Starts the agent; returns once it answers calls.
    async fn start(&self) -> (Process, AgentClient) {
        let mut command = self.enter();
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command
            .arg(env!("CARGO_BIN_EXE_ipam-node"))
            .args(["--node-name=node1", "--health-probe-bind-address=0", "--metrics-bind-address=0"])
            .args(["--cni-skip-nv-ipam-binary-copy", "--cni-skip-nv-ipam-config-creation"])
            .arg(flag("kubeconfig", &self.path("kubeconfig")))
            .arg(flag("store-file", &self.path("disk/store")))
            .arg(format!("--bind-address=unix://{}", self.path("daemon.sock").display()))
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut agent = Process(command.spawn().expect("the test needs nsenter; install util-linux"));
        let (address, until) = (AgentAddress::Unix(self.path("daemon.sock")), deadline());
        loop {
            if let Ok(client) = AgentClient::connect(&address, until).await
                && client
                    .is_allocated(parameters(&["blue"], "no-container"), until)
                    .await
                    .is_err_and(|it| it.code() == Code::NotFound)
            {
                return (agent, client);
            }
            assert_eq!(agent.0.try_wait().unwrap(), None, "the agent has ended");
            assert!(tokio::time::Instant::now() < until, "the agent does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = deadline();
    while !is_so() {
        assert!(tokio::time::Instant::now() < until, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until STATUS fails; returns why.
async fn unwell(client: &AgentClient) -> String {
    let until = deadline();
    loop {
        if let Err(status) = client.probe(until).await {
            return status.message().to_owned();
        }
        assert!(tokio::time::Instant::now() < until, "STATUS does not fail");
    }
}

/// Waits until STATUS succeeds.
async fn well(client: &AgentClient) {
    let until = deadline();
    while let Err(status) = client.probe(until).await {
        assert!(tokio::time::Instant::now() < until, "STATUS fails for too long: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn on_a_full_disk_every_pod_can_be_removed_and_new_ones_come_when_there_is_space() {
    let node = Node::new().await;
    let (agent, client) = node.start().await;
    client.probe(deadline()).await.unwrap();
    node.fill();
    let mut held = 0;
    let refused = loop {
        match client.allocate(parameters(&["blue"], &format!("c{held}")), deadline()).await {
            Ok(_) => held += 1,
            Err(refused) => break refused,
        }
    };
    assert!(held > 0, "the journal has room ahead");
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    assert!(refused.message().contains("no space left"), "{refused}");
    assert!(unwell(&client).await.contains("no space left"), "STATUS has the reason");
    client.allocate(parameters(&["blue"], "c0"), deadline()).await.expect("what has its record needs no room");
    client.deallocate(parameters(&["blue"], "never-was"), deadline()).await.expect("nothing is to be recorded");
    drop(agent);

    let (_agent, client) = node.start().await;
    for number in 0..held {
        client.deallocate(parameters(&["blue"], &format!("c{number}")), deadline()).await.unwrap();
    }
    // What is left of that room serves some more, until the next refusal.
    while client.allocate(parameters(&["blue"], &format!("c{held}")), deadline()).await.is_ok() {
        held += 1;
    }
    unwell(&client).await;
    // No request for an address follows.
    node.make_room();
    well(&client).await;
    client.allocate(parameters(&["blue"], "later"), deadline()).await.unwrap();
}

#[tokio::test]
async fn on_a_read_only_disk_pods_can_be_removed_and_new_ones_come_when_it_can_be_written() {
    let node = Node::new().await;
    let (agent, client) = node.start().await;
    for container in ["c0", "c1"] {
        client.allocate(parameters(&["blue"], container), deadline()).await.unwrap();
    }
    drop(agent);
    node.remount("ro");

    let (_agent, client) = node.start().await;
    client.is_allocated(parameters(&["blue"], "c0"), deadline()).await.expect("CHECK works");
    client.deallocate(parameters(&["blue"], "c0"), deadline()).await.expect("DEL works");
    let refused = client.allocate(parameters(&["blue"], "c2"), deadline()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    assert!(refused.message().contains("read-only"), "{refused}");
    let repeated = client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap_err();
    assert!(repeated.message().contains("read-only"), "its record may not be on the disk: {repeated}");
    assert!(unwell(&client).await.contains("read-only"), "STATUS has the reason");
    // No request for an address follows.
    node.remount("rw");
    well(&client).await;
    client.allocate(parameters(&["blue"], "c2"), deadline()).await.unwrap();
    let freed = client.is_allocated(parameters(&["blue"], "c0"), deadline()).await.unwrap_err();
    assert_eq!(freed.code(), Code::NotFound, "{freed}");
}
