//! Standard input of the CNI plugin, for each command, with an agent that is away.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ipam_cni::{Defaults, Invocation, run as plugin};
use serde_json::{Value, json};

const COMMANDS: [&str; 6] = ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"];
/// Longest answer beyond the input that it quotes.
const LONGEST: usize = 10_000;
/// A folder that does not exist.
const NOWHERE: &str = "/proc/nowhere/at/all";

pub(super) fn run(data: &[u8]) {
    let Some((first, stdin)) = data.split_first() else { return };
    let command = COMMANDS[usize::from(*first) % COMMANDS.len()];
    let stdin = harmless(stdin);
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c0ffee"),
        ("CNI_IFNAME", "net1"),
        ("CNI_NETNS", "/var/run/netns/x"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", "IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=uid"),
    ];
    let defaults = Defaults {
        conf_dir: PathBuf::from(NOWHERE),
        log_file: PathBuf::from(NOWHERE).join("log"),
        daemon_socket: format!("unix://{NOWHERE}/daemon.sock"),
        call_timeout: Duration::from_secs(5),
    };
    let environment = environment.map(|(name, value)| (OsString::from(name), OsString::from(value))).to_vec();
    let outcome = plugin(Invocation { environment, stdin: &stdin[..] }, &defaults);

    assert!(outcome.stdout.ends_with('\n') && outcome.stdout.lines().count() == 1 || outcome.stdout.is_empty());
    assert!(outcome.stdout.len() < LONGEST + 6 * stdin.len(), "an answer of {} bytes", outcome.stdout.len());
    if outcome.stdout.is_empty() {
        return assert_eq!(outcome.status, 0, "a failure without a word");
    }
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert!(answer["cniVersion"].is_string(), "{answer}");
    if outcome.status == 0 {
        return assert_eq!(command, "VERSION", "{answer}");
    }
    let code = answer["code"].as_u64().unwrap_or_default();
    assert!([1, 4, 5, 6, 7, 11, 50, 100].contains(&code), "{answer}");
    assert!(answer["msg"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
}

/// The same input where it names no socket, folder or file of this machine: whatever it says, nothing is asked or written.
fn harmless(stdin: &[u8]) -> Vec<u8> {
    let Ok(mut config) = serde_json::from_slice::<Value>(stdin) else { return stdin.to_vec() };
    let places = [
        ("daemonSocket", format!("unix://{NOWHERE}/daemon.sock")),
        ("confDir", NOWHERE.to_owned()),
        ("logFile", format!("{NOWHERE}/log")),
    ];
    // The plugin reads keys in any case.
    let sections = config.as_object_mut().into_iter().flatten().filter(|(key, _)| key.eq_ignore_ascii_case("ipam"));
    for (key, value) in sections.filter_map(|(_, ipam)| ipam.as_object_mut()).flatten() {
        let place = places.iter().find(|(name, _)| key.eq_ignore_ascii_case(name));
        if let Some((_, nowhere)) = place.filter(|_| value.is_string()) {
            *value = nowhere.clone().into();
        }
    }
    config.to_string().into_bytes()
}

/// Configurations with all keys that there are, for each command.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let attachment = json!({"containerID": "c0ffee", "ifname": "net1"});
    let full = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "eth0",
        "ipam": {"type": "nv-ipam", "poolName": "p,q", "poolType": "cidrpool", "forcePoolName": true,
            "daemonSocket": "unix:///x", "daemonCallTimeoutSeconds": 3, "confDir": "/x", "logFile": "/x", "logLevel": "debug"},
        "args": {"cni": {"ips": ["10.0.0.5"], "poolNames": ["p"], "poolType": "ippool", "allocateDefaultGateway": true,
            "allocateIPWithIndex": 3}},
        "runtimeConfig": {"ips": ["10.0.0.5/24"], "deviceID": "0000:3b:02.1"},
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 0}],
            "interfaces": [{"name": "net1", "sandbox": "/x"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {}},
        "cni.dev/valid-attachments": [attachment], "cni.dev/attachments": [attachment],
    });
    let plain = json!({"cniVersion": "0.3.1", "name": "net", "ipam": {"type": "nv-ipam"}});
    let commands = 0..u8::try_from(COMMANDS.len()).unwrap_or_default();
    let with = |command: u8| [&full, &plain].map(|config| [&[command], config.to_string().as_bytes()].concat());
    commands.flat_map(with).collect()
}
