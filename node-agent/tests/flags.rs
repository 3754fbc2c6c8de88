//! The flags of behaviour.md §9 on the real binary: that each does what it says, seen from outside.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{blue, deadline, parameters, save_spec};
use ipam_crds::NodeBlock;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_api::client::AgentClient;
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tonic::Code;

/// Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder with a spec for `node1` in namespace `pools`: one address of pool "blue" besides the gateway.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        for directory in ["bin", "conf"] {
            std::fs::create_dir(home.path(directory)).unwrap();
        }
        std::fs::write(home.path("plugin"), "the plugin").unwrap();
        home.kubeconfig("127.0.0.1:1".parse().unwrap());
        let block = NodeBlock { end_ip: "192.168.0.2".into(), ..blue() };
        let spec =
            NodeSpec { uid: "u".into(), created: 0, generation: Some(1), blocks: vec![block], ..NodeSpec::default() };
        save_spec(&home.path("store.d"), "pools", spec);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn kubeconfig(&self, server: SocketAddr) {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: \
             u}}}}], clusters: [{{name: k, cluster: {{server: 'http://{server}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(self.path("kubeconfig"), text).unwrap();
    }

    /// `--flag=` with a path of this folder.
    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    fn socket(&self) -> String {
        format!("unix://{}", self.path("daemon.sock").display())
    }

    /// The agent with what every test needs; `arguments` are added, and of a flag given twice the last counts.
    fn start(&self, arguments: &[String]) -> Agent {
        let child = Command::new(env!("CARGO_BIN_EXE_ipam-node"))
            .args(["--node-name=node1", "--ippools-namespace=pools"])
            .args(["--health-probe-bind-address=0", "--metrics-bind-address=0"])
            .args([self.flag("kubeconfig", "kubeconfig"), self.flag("store-file", "store")])
            .args([self.flag("cni-nv-ipam-bin-file", "plugin"), self.flag("cni-bin-dir", "bin")])
            .args([self.flag("cni-conf-dir", "conf"), format!("--bind-address={}", self.socket())])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Agent(child)
    }

    async fn start_and_connect(&self, arguments: &[String]) -> (Agent, AgentClient) {
        let mut agent = self.start(arguments);
        let client = agent.client(&self.socket()).await;
        (agent, client)
    }

    fn files(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(directory)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A child that does not outlive its test.
struct Agent(Child);

impl Agent {
    /// Waits until `look` finds something; the agent must live so long.
    fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if let Some(status) = self.0.try_wait().unwrap() {
                let mut text = String::new();
                self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                panic!("the agent has ended with {status}: {text}");
            }
            assert!(Instant::now() < until, "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    async fn client(&mut self, address: &str) -> AgentClient {
        let address = address.parse().unwrap();
        let until = deadline();
        loop {
            if let Ok(client) = AgentClient::connect(&address, until).await
                && client.probe(until).await.is_ok()
            {
                return client;
            }
            assert_eq!(self.0.try_wait().unwrap(), None, "the agent has ended");
            assert!(tokio::time::Instant::now() < until, "the agent does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lines of standard output as they come.
    fn stdout(&mut self) -> Receiver<String> {
        let (told, lines) = channel();
        let log = BufReader::new(self.0.stdout.take().unwrap());
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| told.send(line)));
        lines
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Ports that nothing else asks for: on a loopback address of this process's own.
fn own_addresses<const N: usize>() -> [SocketAddr; N] {
    let id = std::process::id();
    let [high, low] = [(id >> 8) & 0xff, id & 0xff];
    // All are held until all are known: none is told twice.
    let held = [(); N].map(|()| TcpListener::bind(format!("127.77.{high}.{low}:0")).unwrap());
    held.map(|listener| listener.local_addr().unwrap())
}

/// GET over plain HTTP: status code and body; `None` while nobody listens.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[test]
fn without_a_node_name_nothing_is_started() {
    let (code, _, stderr) = common::run(&mut Command::new(env!("CARGO_BIN_EXE_ipam-node")));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--node-name \"\" is required"), "{stderr}");
}

#[test]
fn the_plugin_and_its_conf_file_are_installed_under_the_names_that_runtimes_and_plugin_look_for() {
    let home = Home::new();
    let flags = [
        "--cni-daemon-socket=unix:///run/other.sock",
        "--cni-daemon-call-timeout=9",
        "--cni-log-file=/var/log/other.log",
        "--cni-log-level=debug",
        "--cni-force-pool-name",
    ];
    let mut agent = home.start(&flags.map(str::to_owned));
    let conf = agent.wait_for("the conf file", || std::fs::read(home.path("conf/nv-ipam.conf")).ok());
    let expected = json!({"daemonSocket": "unix:///run/other.sock", "daemonCallTimeoutSeconds": 9,
        "logFile": "/var/log/other.log", "logLevel": "debug", "forcePoolName": true});
    assert_eq!(serde_json::from_slice::<Value>(&conf).unwrap(), expected);
    assert_eq!(std::fs::read(home.path("bin/nv-ipam")).unwrap(), b"the plugin", "it is put in place before the conf");
    assert_eq!((home.files("bin"), home.files("conf")), (vec!["nv-ipam".to_owned()], vec!["nv-ipam.conf".to_owned()]));
}

#[tokio::test]
async fn what_is_to_be_skipped_is_not_installed() {
    let none: Vec<String> = Vec::new();
    for (flag, bin, conf) in [
        ("--cni-skip-nv-ipam-binary-copy", &none, &vec!["nv-ipam.conf".to_owned()]),
        ("--cni-skip-nv-ipam-config-creation", &vec!["nv-ipam".to_owned()], &none),
    ] {
        let home = Home::new();
        let (mut agent, client) = home.start_and_connect(&[flag.to_owned()]).await;
        drop(client);
        agent.terminate();
        // An orderly end comes after the installation, which comes before the first call is answered.
        assert!(common::ended(&mut agent.0, "the agent").success());
        assert_eq!((&home.files("bin"), &home.files("conf")), (bin, conf), "{flag}");
    }
}

#[tokio::test]
async fn addresses_given_by_flags_are_those_that_are_served() {
    let home = Home::new();
    let [calls, probes, metrics] = own_addresses();
    let mut agent = home.start(&[
        format!("--bind-address=tcp://{calls}"),
        format!("--health-probe-bind-address={probes}"),
        format!("--metrics-bind-address={metrics}"),
    ]);
    let client = agent.client(&format!("tcp://{calls}")).await;
    let given = client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
    assert_eq!(given[0].ip, "192.168.0.2/16");
    assert_eq!(get(probes, "/healthz").unwrap().0, 200);
    assert_eq!(get(probes, "/readyz").unwrap().0, 200, "it serves the blocks that it has saved");
    let (code, body) = get(metrics, "/metrics").unwrap();
    assert!(code == 200 && body.contains("# TYPE ipam_node_requests_total counter"), "{code} {body}");
    assert!(home.path("store.d/journal").exists(), "the journal is kept beside the store file");
}

#[test]
fn the_object_that_is_watched_is_named_by_the_flags() {
    const OBJECTS: &str = "GET /apis/nv-ipam.nvidia.com/v1alpha1/namespaces/pools/ipamnodes";
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    home.kubeconfig(listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let mut agent = home.start(&[]);
    // The report of what is used may ask before the watch does.
    let watch = agent.wait_for("a list of IPAMNodes", || {
        let (stream, _) = listener.accept().ok()?;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut first = String::new();
        BufReader::new(stream).read_line(&mut first).unwrap();
        let query = first.strip_prefix(OBJECTS).unwrap_or_else(|| panic!("asks for something else: {first}"));
        query.starts_with('?').then(|| query.to_owned())
    });
    assert!(watch.contains("fieldSelector=metadata.name%3Dnode1"));
}

#[tokio::test]
async fn a_released_address_rests_for_the_cooldown_of_the_flag() {
    for (flags, is_free) in [(vec![], true), (vec!["--released-ip-cooldown=1h".to_owned()], false)] {
        let home = Home::new();
        let (_agent, client) = home.start_and_connect(&flags).await;
        client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
        client.deallocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
        let again = client.allocate(parameters(&["blue"], "c2"), deadline()).await;
        match (is_free, again) {
            (true, Ok(given)) => assert_eq!(given[0].ip, "192.168.0.2/16"),
            (false, Err(status)) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert!(status.message().contains("1 released and cooling down"), "{status}");
            }
            (_, again) => panic!("{flags:?}: {again:?}"),
        }
    }
}

#[tokio::test]
async fn every_flag_that_the_reference_has_is_taken_together_with_the_others() {
    let home = Home::new();
    let flags = [
        "--stale-ip-check-interval=1m",
        "--stale-ip-check-count-before-release=3",
        "--released-ip-cooldown=0s",
        "--cni-daemon-socket=unix:///var/lib/cni/nv-ipam/daemon.sock",
        "--cni-daemon-call-timeout=5",
        "--cni-log-file=/var/log/nv-ipam-cni.log",
        "--cni-log-level=info",
        "--cni-force-pool-name=false",
        "--cni-skip-nv-ipam-binary-copy=false",
        "--cni-skip-nv-ipam-config-creation=false",
        "--logging-format=text",
        "--log-flush-frequency=5s",
        "--log-json-info-buffer-size=0",
        "--log-json-split-stream=false",
        "-v=1",
        "--vmodule=rpc=1",
        "--feature-gates=ContextualLogging=true,LoggingAlphaOptions=true",
    ];
    // Every test here gives the others: node name, namespace, kubeconfig, addresses, store, places of the plugin.
    let (_agent, client) = home.start_and_connect(&flags.map(str::to_owned)).await;
    client.allocate(parameters(&["blue"], "c1"), deadline()).await.unwrap();
}

#[test]
fn buffered_lines_come_at_the_flush_frequency_and_not_before() {
    let home = Home::new();
    let flags = |every: &str| {
        ["--logging-format=json", "--log-json-split-stream", "--log-json-info-buffer-size=1Mi"]
            .into_iter()
            .chain(["--feature-gates=LoggingAlphaOptions=true"])
            .map(str::to_owned)
            .chain([format!("--log-flush-frequency={every}")])
            .collect::<Vec<_>>()
    };
    let mut agent = home.start(&flags("50ms"));
    let line = agent.stdout().recv_timeout(PATIENCE).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["msg"], "ipam-node starts");
    drop(agent);

    std::fs::remove_file(home.path("conf/nv-ipam.conf")).ok();
    let mut agent = home.start(&flags("1h"));
    // The agent has logged its start before it installs the conf file.
    agent.wait_for("the conf file", || home.path("conf/nv-ipam.conf").exists().then_some(()));
    assert_eq!(ioctl_fionread(agent.0.stdout.as_ref().unwrap()).unwrap(), 0, "bytes on standard output");
    let lines = agent.stdout();
    agent.terminate();
    assert!(lines.recv_timeout(PATIENCE).unwrap().contains("ipam-node starts"), "the end flushes");
}
