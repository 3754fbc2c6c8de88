//! The real binary: what stands on its standard output and error, and how it exits.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod support;

use std::process::{Child, ExitStatus};
use std::time::Duration;

use assert_cmd::Command;
use ipam_node_api::AgentAddress;
use ipam_node_api::spool::Spool;
use serde_json::{Value, json};
use support::{Agent, Asked, Script, environment, network};
use wait_timeout::ChildExt as _;

/// Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_mins(1);

/// The plugin, which is killed if it still runs after [`PATIENCE`]. It then has no exit status.
fn plugin(environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("nv-ipam"));
    command.env_clear().envs(environment.iter().copied()).timeout(PATIENCE);
    command
}

/// Waits until the plugin ends. If it still runs after [`PATIENCE`], it is killed and the test fails.
fn ended(plugin: &mut Child) -> ExitStatus {
    if let Some(status) = plugin.wait_timeout(PATIENCE).unwrap() {
        return status;
    }
    drop(plugin.kill());
    drop(plugin.wait());
    panic!("the plugin still ran after {PATIENCE:?} and was killed")
}

/// The places of the test instead of those of the machine.
fn ipam(agent: &Agent, pool: &str) -> Value {
    json!({
        "type": "nv-ipam", "poolName": pool, "daemonSocket": agent.socket(), "confDir": agent.dir.path(),
        "logFile": agent.log(),
    })
}

#[test]
fn add_and_del_speak_the_protocol_on_standard_output_only() {
    let agent = Agent::start(Script::default());
    let config = network("1.0.0", &ipam(&agent, "pool1")).to_string();
    plugin(&environment("ADD")).write_stdin(config.clone()).assert().success().stderr("").stdout(
        r#"{"cniVersion":"1.0.0","ips":[{"address":"192.168.0.2/24","gateway":"192.168.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"192.168.0.1"}],"dns":{}}
"#,
    );
    plugin(&environment("DEL")).write_stdin(config).assert().success().stderr("").stdout("");
    assert!(matches!(agent.asked().as_slice(), [Asked::Allocate(_), Asked::Deallocate(_)]));
}

/// The note is on the disk before the plugin succeeds: its file is synced before it gets its name, and the folder afterwards.
#[test]
fn a_note_of_del_is_on_the_disk_before_the_plugin_ends() {
    let agent = Agent::away();
    let spool = Spool::of(&agent.socket().parse::<AgentAddress>().unwrap()).unwrap();
    spool.create().unwrap();
    let (config, trace) = (network("1.1.0", &ipam(&agent, "pool1")).to_string(), agent.dir.path().join("trace"));
    let mut strace = Command::new("strace");
    let calls = "trace=fsync,fdatasync,rename,renameat,renameat2";
    strace.args(["-f", "-y", "-e", calls, "-o"]).arg(&trace).arg(assert_cmd::cargo::cargo_bin!("nv-ipam"));
    strace.env_clear().envs(environment("DEL")).env("PATH", std::env::var_os("PATH").unwrap()).timeout(PATIENCE);
    strace.write_stdin(config).assert().success().stdout("");
    let [note] = &spool.notes().unwrap()[..] else { panic!("no note") };
    let trace = std::fs::read_to_string(trace).unwrap();
    let line = |what: &dyn Fn(&str) -> bool| trace.lines().position(|line| what(line) && line.ends_with("= 0"));
    let (name, folder) = (note.path.file_name().unwrap().to_str().unwrap(), spool.path().to_str().unwrap());
    let named = line(&|line| line.contains(" rename") && line.contains(name));
    let of_file = line(&|line| line.contains("sync(") && line.contains(&format!("{folder}/")));
    let of_folder = line(&|line| line.contains("sync(") && line.contains(&format!("{folder}>")));
    assert!(of_file.is_some() && of_file < named && named < of_folder, "{trace}");
}

#[test]
fn an_error_stands_on_standard_output_and_the_exit_status_is_1() {
    let agent = Agent::away();
    let config = network("0.4.0", &ipam(&agent, "pool1")).to_string();
    let output = plugin(&environment("DEL")).write_stdin(config).assert().code(1).stderr("").get_output().clone();
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["cniVersion"], &error["code"]), (&json!("0.4.0"), &json!(11)));
}

#[test]
fn without_a_command_a_person_is_told_what_this_is() {
    for arguments in [&[][..], &["--version"], &["--help"]] {
        let run = plugin(&[]).args(arguments).write_stdin("").assert().success().stdout("");
        let text = String::from_utf8(run.get_output().stderr.clone()).unwrap();
        let first = format!("nv-ipam {}: CNI plugin", env!("CARGO_PKG_VERSION"));
        assert!(text.starts_with(&first) && text.contains("CNI versions: 0.1.0, "), "{text}");
    }
}

#[test]
fn standard_output_is_never_taken_for_the_log() {
    let agent = Agent::start(Script::default());
    let mut ipam = ipam(&agent, "pool1");
    ipam["logFile"] = json!("/proc/self/fd/1");
    ipam["logLevel"] = json!("verbose");
    let config = network("1.0.0", &ipam).to_string();
    let output = plugin(&environment("ADD")).write_stdin(config).assert().success().get_output().clone();
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("it is standard output, which belongs to the protocol"), "{stderr}");
}

#[test]
fn a_result_that_nobody_takes_is_no_success() {
    let agent = Agent::start(Script::default());
    let config = network("1.0.0", &ipam(&agent, "pool1")).to_string();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("nv-ipam"))
        .env_clear()
        .envs(environment("ADD"))
        .stdin(std::process::Stdio::piped())
        .stdout(full)
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.as_bytes()).unwrap();
    assert_eq!(ended(&mut child).code(), Some(1));
}
