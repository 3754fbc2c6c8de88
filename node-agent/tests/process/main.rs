//! The real binary: what it prints and returns, and what survives kill -9 under load. The API server is always away.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

#[path = "../common/mod.rs"]
mod common;

mod authority;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{blue, confirm_in, deadline, parameters, save_spec, save_unconfirmed, with_ips};
use ipam_crds::NodeBlock;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use ipam_node_api::spool::Spool;
use ipam_node_api::v1::{PoolType, ReleaseUnlistedRequest};
use rustix::process::{Pid, Signal, kill_process};

/// A spec with one wide block.
fn wide() -> NodeSpec {
    let block = NodeBlock { end_ip: "192.168.99.99".into(), ..blue() };
    NodeSpec { uid: "u".into(), created: 0, generation: Some(1), blocks: vec![block], ..NodeSpec::default() }
}

/// A folder with all that one agent needs, and a kubeconfig of a server that is not there.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let kubeconfig = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, \
            user: u}}], clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
        std::fs::write(home.path("kubeconfig"), kubeconfig).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Saves [`wide`] as the spec seen last, with a journal in which its grants are confirmed.
    fn with_spec(self) -> Self {
        save_spec(&self.path("store.d"), "kube-system", wide());
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-node"));
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command
            .args(["--node-name=node1", "--health-probe-bind-address=0", "--metrics-bind-address=0"])
            .args(["--cni-skip-nv-ipam-binary-copy", "--cni-skip-nv-ipam-config-creation"])
            .arg(flag("kubeconfig", &self.path("kubeconfig")))
            .arg(flag("store-file", &self.path("store")))
            .arg(format!("--bind-address=unix://{}", self.path("daemon.sock").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Starts the agent; returns once it answers.
    async fn start(&self) -> (Agent, AgentClient) {
        self.start_with(|_| {}).await
    }

    /// The same, with a changed command.
    async fn start_with(&self, change: impl FnOnce(&mut Command)) -> (Agent, AgentClient) {
        self.start_until(change, async |client: &AgentClient| client.probe(deadline()).await.is_ok()).await
    }

    /// Starts an agent that is not ready; returns once it answers DEL.
    async fn start_unready(&self) -> (Agent, AgentClient) {
        let nothing = parameters(&["blue"], "nothing");
        self.start_until(|_| {}, async |client| client.deallocate(nothing.clone(), deadline()).await.is_ok()).await
    }

    async fn start_until(
        &self,
        change: impl FnOnce(&mut Command),
        is_up: impl AsyncFn(&AgentClient) -> bool,
    ) -> (Agent, AgentClient) {
        let mut command = self.command();
        change(&mut command);
        let mut agent = Agent(command.spawn().unwrap());
        let address = AgentAddress::Unix(self.path("daemon.sock"));
        let until = deadline();
        loop {
            if let Ok(client) = AgentClient::connect(&address, until).await
                && is_up(&client).await
            {
                return (agent, client);
            }
            assert_eq!(agent.0.try_wait().unwrap(), None, "the agent has ended");
            assert!(tokio::time::Instant::now() < until, "the agent does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs the agent to its end: exit code and stderr.
    fn run(&self, change: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
        let mut command = self.command();
        command.stderr(std::fs::File::create(self.path("stderr")).unwrap());
        change(&mut command);
        let mut agent = Agent(command.spawn().unwrap());
        let status = common::ended(&mut agent.0, "the agent");
        (status.code(), std::fs::read_to_string(self.path("stderr")).unwrap())
    }
}

/// A child that does not outlive its test.
struct Agent(Child);

impl Agent {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    async fn wait(&mut self) -> Option<i32> {
        let until = deadline();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(tokio::time::Instant::now() < until, "the agent does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What callers were told, by container: the address held, or `None` once given back. A container whose last call got
/// no answer is not in it.
type Told = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// Adds, and gives every third back, until the agent is gone.
async fn load(client: AgentClient, worker: u32, round: u32, told: Told) {
    for number in 0.. {
        let container = format!("c-{round}-{worker}-{number}");
        let Ok(given) = client.allocate(parameters(&["blue"], &container), deadline()).await else { return };
        let ip = given[0].ip.clone();
        told.lock().unwrap().insert(container.clone(), Some(ip));
        if number % 3 == 0 {
            told.lock().unwrap().remove(&container);
            let Ok(()) = client.deallocate(parameters(&["blue"], &container), deadline()).await else { return };
            told.lock().unwrap().insert(container, None);
        }
    }
}

/// Agents that are killed, each under 32 callers.
const KILLS: u32 = 200;

#[tokio::test]
async fn kill_9_under_load_loses_no_acknowledged_address_and_doubles_none() {
    let home = Home::new().with_spec();
    let told = Told::default();
    for round in 0..KILLS {
        let (mut agent, client) = home.start().await;
        verify(&client, &told).await;
        forget(&client, &told).await;
        let before = told.lock().unwrap().len();
        let workers: Vec<_> =
            (0..32).map(|worker| tokio::spawn(load(client.clone(), worker, round, Arc::clone(&told)))).collect();
        let (until, calls) = (deadline(), usize::try_from(round % 100).unwrap());
        while told.lock().unwrap().len() < before + calls {
            assert!(tokio::time::Instant::now() < until, "the agent does not answer {calls} calls in time");
            tokio::task::yield_now().await;
        }
        agent.signal(Signal::KILL);
        agent.wait().await;
        for worker in workers {
            worker.await.unwrap();
        }
    }
    let (mut agent, client) = home.start().await;
    verify(&client, &told).await;
    // A repeated ADD of the last one gets the same address from the restarted agent too.
    let last = told
        .lock()
        .unwrap()
        .iter()
        .rfind(|(_, ip)| ip.is_some())
        .map(|(container, ip)| (container.clone(), ip.clone()));
    let (container, ip) = last.unwrap();
    let given = client.allocate(parameters(&["blue"], &container), deadline()).await.unwrap();
    assert_eq!(Some(&given[0].ip), ip.as_ref());
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await, Some(0));
}

/// Checks each answer that was given against a restarted agent.
async fn verify(client: &AgentClient, told: &Told) {
    let told = told.lock().unwrap().clone();
    let mut holders = BTreeMap::new();
    for (container, ip) in &told {
        let Some(ip) = ip else {
            let status = client.is_allocated(parameters(&["blue"], container), deadline()).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::NotFound, "{container} was freed");
            continue;
        };
        let (alone, _) = ip.split_once('/').unwrap();
        client.is_allocated(with_ips(parameters(&["blue"], container), &[alone]), deadline()).await.unwrap();
        assert_eq!(holders.insert(ip, container), None, "{ip} is in use twice");
    }
}

/// Frees the addresses of earlier rounds, so that the next check is short. One of each tenth round stays in use to the end.
async fn forget(client: &AgentClient, told: &Told) {
    let earlier = std::mem::take(&mut *told.lock().unwrap());
    for (container, ip) in earlier {
        if ip.is_none() {
            continue;
        }
        let stays = container.ends_with("0-0-1");
        if !stays {
            client.deallocate(parameters(&["blue"], &container), deadline()).await.unwrap();
        }
        told.lock().unwrap().insert(container, ip.filter(|_| stays));
    }
}

#[tokio::test]
async fn sigterm_ends_the_agent_in_order_and_takes_the_socket_away() {
    let home = Home::new().with_spec();
    let (mut agent, client) = home.start().await;
    client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await, Some(0));
    assert!(!home.path("daemon.sock").exists());
}

#[tokio::test]
async fn what_was_held_by_nobody_is_not_logged_as_given_back() {
    let home = Home::new().with_spec();
    let log = std::fs::File::create(home.path("log")).unwrap();
    let to_file = |command: &mut Command| {
        command.stderr(log);
    };
    let (mut agent, client) = home.start_with(to_file).await;
    let unlisted = |network: &str| ReleaseUnlistedRequest {
        network_name: network.into(),
        pools: vec!["blue".into()],
        pool_type: PoolType::Ippool.into(),
        valid_attachments: Vec::new(),
    };
    let held = parameters(&["blue"], "held");
    client.allocate(held.clone(), deadline()).await.unwrap();
    for _ in 0..2 {
        client.deallocate(held.clone(), deadline()).await.unwrap();
        client.deallocate(parameters(&["blue"], "never-seen"), deadline()).await.unwrap();
        assert_eq!(client.release_unlisted(unlisted("no-such-network"), deadline()).await.unwrap(), 0);
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await, Some(0));
    let text = std::fs::read_to_string(home.path("log")).unwrap();
    let told = text.lines().filter(|line| line.contains("given back")).collect::<Vec<_>>();
    assert!(matches!(told[..], [line] if line.contains("released=1") && line.contains("held")), "{text}");
    assert!(!text.contains("never-seen") && !text.contains("no-such-network"), "{text}");
}

#[tokio::test]
async fn a_connection_that_stays_open_does_not_keep_the_agent_from_ending() {
    let home = Home::new().with_spec();
    let (mut agent, _) = home.start().await;
    let _idle = tokio::net::UnixStream::connect(home.path("daemon.sock")).await.unwrap();
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await, Some(0));
}

#[tokio::test]
async fn a_second_agent_on_the_same_store_is_refused_and_the_first_goes_on() {
    let home = Home::new().with_spec();
    let (_agent, client) = home.start().await;
    let (code, stderr) = home.run(|_| {});
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("in use by another process") && stderr.contains("store.d"), "{stderr}");
    client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
}

#[test]
fn wrong_flags_are_all_named_and_end_with_2() {
    let (code, stderr) = Home::new().run(|command| {
        command.args(["--node-name=", "--v=x", "--bind-address=nowhere"]);
    });
    assert_eq!(code, Some(2));
    for part in ["--node-name \"\" is required", "--v \"x\"", "--bind-address \"nowhere\""] {
        assert!(stderr.contains(part), "{stderr} lacks {part}");
    }
}

#[test]
fn version_is_printed_on_stdout() {
    let (code, stdout, stderr) = common::run(Command::new(env!("CARGO_BIN_EXE_ipam-node")).arg("--version"));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, format!("ipam-node {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_kubeconfig_that_is_missing_ends_the_agent_with_a_line_that_names_it() {
    let home = Home::new();
    let (code, stderr) = home.run(|command| {
        command.arg("--kubeconfig=/nowhere/kubeconfig");
    });
    assert_eq!(code, Some(1));
    assert!(stderr.contains("/nowhere/kubeconfig") && stderr.contains("--kubeconfig"), "{stderr}");
}

/// A store of NVIDIA's agent with these containers and addresses of "blue".
fn older_store(entries: &[(&str, &str)]) -> String {
    let entry = |(container, addr): &(&str, &str)| {
        format!(
            r#""{container}_net1":{{"container_id":"{container}","interface_name":"net1","ip_address":"{addr}","metadata":{{"create_time":"2024-01-02T03:04:05Z","pod_uuid":"","pod_name":"pod-{container}","pod_namespace":"default","device_id":"","pool_config_snapshot":""}}}}"#
        )
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    let pools = format!(
        r#"{{"blue":{{"name":"blue","entries":{{{}}},"last_pool_config":"","last_reserved_ip":"192.168.0.2"}}}}"#,
        entries.join(",")
    );
    let with = |checksum: u32| format!(r#"{{"version":1,"checksum":{checksum},"pools":{pools}}}"#);
    // FNV-1a of the text with a checksum of 0.
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    with(with(0).bytes().fold(0x811c_9dc5, fnv))
}

/// The files beside the store that have an imported one.
fn kept(home: &Home) -> Vec<String> {
    let files = std::fs::read_dir(home.0.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut kept: Vec<_> = files.filter(|path| path.display().to_string().contains("store.imported-")).collect();
    kept.sort();
    kept.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[tokio::test]
async fn an_older_store_is_imported_once_and_put_away() {
    let home = Home::new();
    save_unconfirmed(&home.path("store.d"), "kube-system", wide());
    let older = older_store(&[("old", "192.168.0.2")]);
    std::fs::write(home.path("store"), &older).unwrap();
    let (mut agent, client) = home.start().await;
    client.is_allocated(with_ips(parameters(&["blue"], "old"), &["192.168.0.2"]), deadline()).await.unwrap();
    let placeholder = std::fs::read_to_string(home.path("store")).unwrap();
    assert_eq!(placeholder, r#"{"version":1,"checksum":0,"pools":{}}"#);
    assert_eq!(kept(&home), [older]);
    agent.signal(Signal::TERM);
    agent.wait().await;
    confirm_in(&home.path("store.d"), &wide().blocks);
    let (mut agent, client) = home.start().await;
    let given = client.allocate(parameters(&["blue"], "new"), deadline()).await.unwrap();
    assert_eq!(given[0].ip, "192.168.0.3/16");
    client.deallocate(parameters(&["blue"], "old"), deadline()).await.unwrap();
    agent.signal(Signal::TERM);
    agent.wait().await;
    let (_agent, client) = home.start().await;
    let gone = client.is_allocated(parameters(&["blue"], "old"), deadline()).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound, "what was released after the import does not come back");
}

#[tokio::test]
async fn beside_a_running_agent_nothing_is_imported() {
    let home = Home::new().with_spec();
    let older = older_store(&[("old", "192.168.0.2")]);
    std::fs::write(home.path("store"), &older).unwrap();
    // NVIDIA's agent still serves.
    let other = std::os::unix::net::UnixListener::bind(home.path("daemon.sock")).unwrap();
    let (code, stderr) = home.run(|_| {});
    assert_eq!(code, Some(1));
    assert!(stderr.contains("another process listens there; stop it first"), "{stderr}");
    assert_eq!((std::fs::read_to_string(home.path("store")).unwrap(), kept(&home)), (older, Vec::new()));
    // It allocates another address, and ends.
    std::fs::write(home.path("store"), older_store(&[("late", "192.168.0.3"), ("old", "192.168.0.2")])).unwrap();
    drop(other);
    let (_agent, client) = home.start().await;
    for (container, addr) in [("old", "192.168.0.2"), ("late", "192.168.0.3")] {
        client.is_allocated(with_ips(parameters(&["blue"], container), &[addr]), deadline()).await.unwrap();
    }
}

#[test]
fn a_store_that_another_process_has_locked_is_not_imported() {
    let home = Home::new();
    let older = older_store(&[("old", "192.168.0.2")]);
    std::fs::write(home.path("store"), &older).unwrap();
    // NVIDIA's agent on another socket.
    let file = std::fs::File::open(home.path("store")).unwrap();
    file.lock().unwrap();
    let (code, stderr) = home.run(|_| {});
    assert_eq!(code, Some(1));
    assert!(stderr.contains("stop nv-ipam on this node first"), "{stderr}");
    assert_eq!((std::fs::read_to_string(home.path("store")).unwrap(), kept(&home)), (older, Vec::new()));
}

#[tokio::test]
async fn after_a_rollback_the_changed_store_is_imported_again() {
    let home = Home::new().with_spec();
    std::fs::write(home.path("store"), older_store(&[("old", "192.168.0.2")])).unwrap();
    let (mut agent, client) = home.start().await;
    let given = client.allocate(parameters(&["blue"], "ours"), deadline()).await.unwrap();
    assert_eq!(given[0].ip, "192.168.0.3/16");
    agent.signal(Signal::TERM);
    agent.wait().await;
    // NVIDIA's agent on the file that was kept knows nothing of "ours", and allocates its address again.
    let back = older_store(&[("late", "192.168.0.4"), ("old", "192.168.0.2"), ("twice", "192.168.0.3")]);
    std::fs::write(home.path("store"), &back).unwrap();
    let log = home.path("log");
    let (mut agent, client) = home
        .start_with(|command| {
            command.stderr(std::fs::File::create(&log).unwrap());
        })
        .await;
    for (container, addr) in
        [("old", "192.168.0.2"), ("ours", "192.168.0.3"), ("twice", "192.168.0.3"), ("late", "192.168.0.4")]
    {
        client.is_allocated(with_ips(parameters(&["blue"], container), &[addr]), deadline()).await.unwrap();
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("two pods may use one address") && log.contains("default/pod-twice"), "{log}");
    assert_eq!(kept(&home).len(), 2);
    // The address is free once both pods are gone, and also then after a restart.
    client.deallocate(parameters(&["blue"], "ours"), deadline()).await.unwrap();
    agent.signal(Signal::TERM);
    agent.wait().await;
    let (_agent, client) = home.start().await;
    let asked = || with_ips(parameters(&["blue"], "next"), &["192.168.0.3"]);
    let taken = client.allocate(asked(), deadline()).await.unwrap_err();
    assert!(taken.message().contains("pod-twice"), "{taken:?}");
    client.deallocate(parameters(&["blue"], "twice"), deadline()).await.unwrap();
    assert_eq!(client.allocate(asked(), deadline()).await.unwrap()[0].ip, "192.168.0.3/16");
}

#[tokio::test]
async fn without_an_older_store_a_placeholder_keeps_nvidias_agent_from_starting_empty() {
    let home = Home::new().with_spec();
    let (_agent, _client) = home.start().await;
    assert!(std::fs::read_to_string(home.path("store")).unwrap().contains(r#""checksum":0"#));
}

#[tokio::test]
async fn an_agent_whose_socket_is_replaced_ends() {
    let home = Home::new().with_spec();
    let log = home.path("log");
    let (mut agent, _client) = home
        .start_with(|command| {
            command.stderr(std::fs::File::create(&log).unwrap());
        })
        .await;
    std::fs::remove_file(home.path("daemon.sock")).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(home.path("daemon.sock")).unwrap();
    assert_eq!(agent.wait().await, Some(1));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("daemon.sock is not the socket of this agent any more"), "{log}");
    assert!(home.path("daemon.sock").exists(), "the other agent keeps its socket");
}

#[test]
fn an_older_store_that_cannot_be_read_stops_the_start() {
    let home = Home::new();
    std::fs::write(home.path("store"), &older_store(&[("old", "192.168.0.2")])[..100]).unwrap();
    let (code, stderr) = home.run(|_| {});
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot import") && stderr.contains("Repair the file"), "{stderr}");
}

#[tokio::test]
async fn the_files_of_the_oldest_versions_are_imported_and_put_away() {
    let home = Home::new().with_spec();
    let pool = home.path("state/host-local/blue");
    std::fs::create_dir_all(&pool).unwrap();
    for (name, text) in [("192.168.0.2", "older\r\nnet1"), ("last_reserved_ip.0", "192.168.0.2"), ("lock", "")] {
        std::fs::write(pool.join(name), text).unwrap();
    }
    let (_agent, client) = home.start().await;
    client.is_allocated(with_ips(parameters(&["blue"], "older"), &["192.168.0.2"]), deadline()).await.unwrap();
    let given = client.allocate(parameters(&["blue"], "new"), deadline()).await.unwrap();
    assert_eq!(given[0].ip, "192.168.0.3/16");
    client.deallocate(parameters(&["blue"], "older"), deadline()).await.unwrap();
    let kept: Vec<_> = std::fs::read_dir(home.path("state")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(matches!(&kept[..], [one] if one.to_string_lossy().starts_with("host-local.imported-")), "{kept:?}");
}

#[tokio::test]
async fn what_the_plugin_left_while_no_agent_ran_is_freed_before_the_next_one_serves() {
    let home = Home::new().with_spec();
    let (mut agent, client) = home.start().await;
    for container in ["c1", "c2"] {
        client.allocate(parameters(&["blue"], container), deadline()).await.unwrap();
    }
    agent.signal(Signal::TERM);
    agent.wait().await;
    let spool = Spool::of(&AgentAddress::Unix(home.path("daemon.sock"))).unwrap();
    spool.leave(&parameters(&["blue"], "c1")).unwrap();
    std::fs::write(spool.path().join("0.del"), "no request").unwrap();
    // Left before the address was allocated, as if the clock had gone back: it frees nothing.
    spool.leave(&parameters(&["blue"], "c2")).unwrap();
    let note = spool.notes().unwrap().into_iter().find(|note| {
        let request = note.request.clone().ok().and_then(|request| request.parameters);
        request.is_some_and(|parameters| parameters.cni_containerid == "c2")
    });
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(note.unwrap().path).unwrap().set_modified(long_ago).unwrap();

    let (_agent, client) = home.start().await;
    let gone = client.is_allocated(parameters(&["blue"], "c1"), deadline()).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound);
    client.is_allocated(parameters(&["blue"], "c2"), deadline()).await.unwrap();
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0, "what was applied, or never can be, is taken away");
    // While the agent runs, too.
    spool.leave(&parameters(&["blue"], "c2")).unwrap();
    let until = deadline();
    while client.is_allocated(parameters(&["blue"], "c2"), deadline()).await.is_ok() {
        assert!(tokio::time::Instant::now() < until, "the note is not applied");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
