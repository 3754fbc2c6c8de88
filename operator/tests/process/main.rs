//! The real binary: what each flag does, seen from outside. The API server is a few lines of HTTP with no pools in it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what a test needs and lacks is its failure")]

mod server;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use server::{Held, Server};

/// Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(30);

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ipam-controller"))
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Killed {
    /// Waits until the child ends. The test fails if the child still runs after [`PATIENCE`].
    fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the operator still runs after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Exit code, standard output and standard error of a run that ends by itself.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let [stdout, stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let child = program()
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().unwrap())
        .stderr(stderr.try_clone().unwrap())
        .spawn()
        .unwrap();
    let status = Killed(child).ended();
    let text = |mut file: File| {
        file.rewind().unwrap();
        std::io::read_to_string(file).unwrap()
    };
    (status.code(), text(stdout), text(stderr))
}

/// A kubeconfig for `server`, in a file of the test's own.
fn kubeconfig(test: &str, server: &Server) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.kubeconfig"));
    let content = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
         clusters: [{{name: k, cluster: {{server: 'http://{}'}}}}], users: [{{name: u, user: {{}}}}]}}",
        server.address()
    );
    std::fs::write(&path, content).unwrap();
    path
}

/// A running operator that does not outlive its test.
struct Operator {
    child: Killed,
    lines: Receiver<Value>,
}

impl Operator {
    /// Starts the binary with its log in JSON and its ports chosen by the system.
    fn start(test: &str, server: &Server, arguments: &[&str]) -> Self {
        let mut child = program()
            .arg("--kubeconfig")
            .arg(kubeconfig(test, server))
            .args(["--logging-format=json", "--health-probe-bind-address=127.0.0.1:0"])
            .arg("--metrics-bind-address=127.0.0.1:0")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (told, lines) = channel();
        let log = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in log.lines() {
                let line: Value = serde_json::from_str(&line.unwrap()).expect("a line that is no JSON");
                drop(told.send(line));
            }
        });
        Self { child: Killed(child), lines }
    }

    /// The `address` of the log line with this message.
    fn address(&self, message: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())).expect(message);
            if line["msg"] == message {
                return line["address"].as_str().expect("an address").to_owned();
            }
        }
    }

    /// Ends the operator as kubelet does, and waits.
    fn terminate(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM).unwrap();
        self.child.ended().code()
    }
}

/// GET over plain HTTP: status code and body.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A directory with a certificate for the webhook, as its flag.
fn certificates(test: &str) -> String {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.certificates"));
    std::fs::create_dir_all(&directory).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["webhook.invalid".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(directory.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    format!("--webhook-cert-dir={}", directory.display())
}

/// Asks until the answer has this code; tells the body that came with it.
fn wait_for(address: &str, path: &str, code: u16) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let (found, body) = get(address, path);
        if found == code {
            return body;
        }
        assert!(Instant::now() < until, "{path} answers {found}: {body}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn version_is_printed_on_stdout() {
    let expected = format!("ipam-controller {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]), (Some(0), expected, String::new()));
}

#[test]
fn wrong_flags_are_all_named_and_nothing_is_started() {
    let (code, stdout, stderr) = run(&["--leader-elect=maybe", "--v=x", "--ippools-namespace=A"]);
    assert_eq!(code, Some(2));
    assert_eq!(stdout, "");
    for part in ["--leader-elect \"maybe\"", "--v \"x\"", "--ippools-namespace \"A\""] {
        assert!(stderr.contains(part), "{stderr} lacks {part}");
    }
}

#[test]
fn a_mistyped_command_ends_with_2_and_one_line_that_names_the_right_one() {
    let (code, stdout, stderr) = run(&["vaildate", "pools/"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    let expected = "ipam-controller: there is no command \"vaildate\"; want validate or release-pools, or flags alone to \
                    run the operator\n";
    assert_eq!(stderr, expected);
}

#[test]
fn a_kubeconfig_that_is_missing_ends_the_operator_with_a_line_that_names_it() {
    let off = ["--health-probe-bind-address=0", "--metrics-bind-address=0", "--kubeconfig=/nowhere/kubeconfig"];
    let (code, _, stderr) = run(&off);
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    assert!(stderr.contains("/nowhere/kubeconfig") && stderr.contains("--kubeconfig"), "{stderr}");
}

#[test]
fn it_is_ready_once_its_caches_are_in_sync_and_alive_and_measured_before() {
    let server = Server::start(Held::Lists);
    let operator = Operator::start("ready", &server, &[]);
    let probes = operator.address("serving probes");
    let metrics = operator.address("serving metrics");
    server.wait_for_call("GET /api/v1/nodes");
    assert_eq!(get(&probes, "/healthz").0, 200);
    let (code, body) = get(&probes, "/readyz");
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("waiting for the first list of") && body.contains("nodes"), "{body}");
    let (code, body) = get(&metrics, "/metrics");
    assert_eq!(code, 200, "{body}");
    // What can be counted is there before the first event.
    for line in [
        "leader_election_master_status{name=\"dd1643cf.nvidia.com\"} 1",
        "nv_ipam_controller_build_info{version=\"0.1.0\"} 1",
        "nv_ipam_controller_ipam_node_writes_total{result=\"error\"} 0",
        "workqueue_depth{name=\"ipamnodes\"} 0",
        "nv_ipam_controller_watch_failures_total{resource=\"nodes\"} 0",
        "# TYPE process_resident_memory_bytes gauge",
    ] {
        assert!(body.lines().any(|it| it == line), "{line} in {body}");
    }
    server.release();
    wait_for(&probes, "/readyz", 200);
    assert_eq!(operator.terminate(), Some(0));
}

/// The schemas of our kinds, without this field of the status of an IPPool.
fn schemas_without(field: &str) -> Value {
    let schemas = ipam_crds::custom_resource_definitions().map(|definition| {
        let kind = definition.spec.names.kind;
        let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
        let mut schema = serde_json::to_value(schema).unwrap();
        if kind == "IPPool" {
            schema["properties"]["status"]["properties"].as_object_mut().unwrap().remove(field);
        }
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": ipam_crds::GROUP, "version": ipam_crds::VERSION, "kind": kind}]);
        (kind, schema)
    });
    Value::Object(schemas.into_iter().collect())
}

#[test]
fn it_does_not_work_while_the_definitions_lack_fields() {
    let server = Server::start(Held::Nothing);
    server.set_schemas(schemas_without("releasing"));
    let operator = Operator::start("definitions", &server, &["--leader-elect", "--leader-elect-namespace=net"]);
    let probes = operator.address("serving probes");
    let until = Instant::now() + PATIENCE;
    while !get(&probes, "/readyz").1.contains("ippools lacks status.releasing") {
        assert!(Instant::now() < until, "{:?}", get(&probes, "/readyz"));
        std::thread::sleep(Duration::from_millis(5));
    }
    let worked = |call: &String| call.contains("leases") || call.contains("ipamnodes");
    assert!(!server.calls().iter().any(worked), "{:#?}", server.calls());
    server.set_schemas(schemas_without("nothing"));
    wait_for(&probes, "/readyz", 200);
    assert_eq!(operator.terminate(), Some(0));
}

#[test]
fn pools_and_ipam_nodes_are_those_of_the_namespace_of_the_flag_and_no_other() {
    let server = Server::start(Held::Nothing);
    let operator = Operator::start("namespace", &server, &["--ippools-namespace=pools"]);
    wait_for(&operator.address("serving probes"), "/readyz", 200);
    assert_eq!(operator.terminate(), Some(0));
    let calls = server.calls();
    for plural in ["ippools", "cidrpools", "ipamnodes"] {
        let wanted = format!("GET /apis/nv-ipam.nvidia.com/v1alpha1/namespaces/pools/{plural}");
        assert!(calls.contains(&wanted), "{calls:#?} lacks {wanted}");
    }
    assert!(!calls.iter().any(|call| call.contains("kube-system")), "{calls:#?}");
    assert!(!calls.iter().any(|call| call.contains("leases")), "no election was asked for: {calls:#?}");
}

#[test]
fn leader_elect_takes_the_lease_of_the_reference_in_the_namespace_of_its_flag_and_gives_it_back() {
    let server = Server::start(Held::Nothing);
    let flags = ["--leader-elect", "--leader-elect-namespace=net"];
    let operator = Operator::start("election", &server, &flags);
    wait_for(&operator.address("serving probes"), "/readyz", 200);
    server.wait_for_call("POST /apis/coordination.k8s.io/v1/namespaces/net/leases");
    server.wait_for_call("POST /apis/events.k8s.io/v1/namespaces/net/events");
    let taken = server.lease();
    assert_eq!(taken["metadata"]["name"], "dd1643cf.nvidia.com");
    assert!(taken["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()), "{taken}");
    assert_eq!(operator.terminate(), Some(0));
    let released = server.lease();
    assert!(released["spec"]["holderIdentity"].as_str().unwrap_or_default().is_empty(), "{released}");
}

#[test]
fn every_flag_that_the_reference_has_is_taken_together_with_the_others() {
    let server = Server::start(Held::Nothing);
    let flags = [
        "--leader-elect=true",
        "--leader-elect-namespace=kube-system",
        "--ippools-namespace=kube-system",
        "--webhook=true",
        "--webhook-bind-address=127.0.0.1:0",
        &certificates("every-flag"),
        "--log-flush-frequency=5s",
        "--log-json-info-buffer-size=0",
        "--log-json-split-stream=false",
        "-v=1",
        "--vmodule=",
        "--feature-gates=ContextualLogging=true,LoggingAlphaOptions=true",
    ];
    let operator = Operator::start("every-flag", &server, &flags);
    wait_for(&operator.address("serving probes"), "/readyz", 200);
    assert_eq!(operator.terminate(), Some(0));
}
