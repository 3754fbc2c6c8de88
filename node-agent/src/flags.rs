//! The flags of ipam-node (behaviour.md §9): raw as typed, then one conversion into [`Config`].
//!
//! Decides what the command line means; [`Config::check_paths`] alone looks at the file system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use ipam_daemon::{Common, CommonFlags, Mistakes, gosyntax};
use ipam_node_api::AgentAddress;

use crate::identity::{BOOT_ID, SYSTEM_UUID};

/// Default of `--store-file`.
pub const STORE_FILE: &str = "/var/lib/cni/nv-ipam/store";
pub(crate) const SOCKET: &str = "unix:///var/lib/cni/nv-ipam/daemon.sock";

/// The node agent of NVIDIA-compatible IPAM: gives addresses of its node's blocks to pods.
#[derive(Parser, Debug)]
#[command(name = "ipam-node", max_term_width = 120)]
#[command(
    after_help = "Commands: ipam-node store shows, checks and exports the store of the agent on this node. See ipam-node store --help"
)]
pub struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Name of the Node on which the agent runs (required)
    #[arg(long, default_value = "", value_name = "NAME")]
    node_name: String,
    /// Where the CNI plugin reaches the agent: unix:///path or tcp://ip:port
    #[arg(long, default_value = SOCKET, value_name = "ADDRESS")]
    bind_address: String,
    /// The reference's store file. The journal is kept beside it, in the directory of this name with ".d" appended
    #[arg(long, default_value = STORE_FILE, value_name = "PATH")]
    store_file: String,
    /// Time between two checks for addresses whose pod is gone
    #[arg(long, default_value = "1m", value_name = "DURATION")]
    stale_ip_check_interval: String,
    /// Such an address is given back by the first check after this many have found its pod gone
    #[arg(long, default_value = "3", value_name = "COUNT")]
    stale_ip_check_count_before_release: String,
    /// An address given back is not given out again for this time, unless asked for by name
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    released_ip_cooldown: String,
    /// Without the API server for longer than this, no new addresses are given; what is held is checked and released all the
    /// same. 0 means without limit: blocks cannot be taken away before this agent says that they are empty
    #[arg(long, default_value = "0", value_name = "DURATION")]
    offline_limit: String,
    /// After another machine has reported under this node's name, the addresses of its pods are unavailable for this time; 0 means until an
    /// admin discards that report
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    replaced_machine_grace: String,
    /// CRI socket of the container runtime: unix:///path. Without it, the API server alone shows which pods are gone
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    container_runtime_endpoint: String,
    /// File with the ID of this boot
    #[arg(long, default_value = BOOT_ID, value_name = "PATH")]
    boot_id_file: String,
    /// File with the UUID of this machine. Without it, the places where Linux shows the UUID of the firmware
    #[arg(long, default_value = "", value_name = "PATH")]
    system_uuid_file: String,
    #[command(flatten)]
    cni: CniFlags,
}

/// The flags about the CNI plugin that the agent installs.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_field_names, reason = "a field's name is the flag's")]
#[command(next_help_heading = "CNI plugin")]
struct CniFlags {
    /// Directory of CNI binaries
    #[arg(long, default_value = "/opt/cni/bin", value_name = "PATH")]
    cni_bin_dir: String,
    /// Directory of the plugin's configuration file
    #[arg(long, default_value = "/etc/cni/net.d/nv-ipam.d", value_name = "PATH")]
    cni_conf_dir: String,
    /// Timeout of the plugin's calls to the agent, in seconds; 0 means 5
    #[arg(long, default_value = "5", value_name = "SECONDS")]
    cni_daemon_call_timeout: String,
    /// Where the plugin reaches the agent
    #[arg(long, default_value = SOCKET, value_name = "ADDRESS")]
    cni_daemon_socket: String,
    /// Log file of the plugin
    #[arg(long, default_value = "/var/log/nv-ipam-cni.log", value_name = "PATH")]
    cni_log_file: String,
    /// Log level of the plugin: verbose, debug, info, warning, error or panic; any other means info
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    cni_log_level: String,
    /// The plugin's binary, to be copied
    #[arg(long, default_value = "/nv-ipam", value_name = "PATH")]
    cni_nv_ipam_bin_file: String,
    /// Do not copy the plugin's binary
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL")]
    cni_skip_nv_ipam_binary_copy: String,
    /// Do not write the plugin's configuration file
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL")]
    cni_skip_nv_ipam_config_creation: String,
    /// Networks without a pool name are an error, instead of drawing from the pool named as the network
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL")]
    cni_force_pool_name: String,
}

/// What the command line means.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Logging, probes, namespace, cluster.
    pub common: Common,
    /// `--node-name`.
    pub node: String,
    /// `--bind-address`.
    pub bind: AgentAddress,
    /// `--store-file`: the store of NVIDIA's agent, which this agent imports and puts away.
    pub store_file: PathBuf,
    /// How addresses of pods that are gone are given back.
    pub stale: StaleConfig,
    /// `--released-ip-cooldown`, in whole seconds, rounded up.
    pub cooldown_seconds: i64,
    /// `--offline-limit`; `None` for 0, which means no limit.
    pub offline_limit: Option<Duration>,
    /// `--replaced-machine-grace`; `None` for 0, which means without end.
    pub replaced_machine_grace: Option<Duration>,
    /// `--container-runtime-endpoint`, a Unix socket; `None` if empty.
    pub runtime: Option<AgentAddress>,
    /// `--boot-id-file`.
    pub boot_id_file: PathBuf,
    /// `--system-uuid-file`, or the places where Linux shows the UUID of the firmware.
    pub system_uuid_files: Vec<PathBuf>,
    /// What to install.
    pub cni: CniConfig,
}

/// How addresses of pods that are gone are given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleConfig {
    /// `--stale-ip-check-interval`.
    pub interval: Duration,
    /// `--stale-ip-check-count-before-release`: checks that find the pod gone before the one that releases; at least 1.
    pub checks_before: u32,
}

/// The CNI plugin to install.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CniConfig {
    /// `--cni-nv-ipam-bin-file` and `--cni-bin-dir`, unless `--cni-skip-nv-ipam-binary-copy`.
    pub binary: Option<(PathBuf, PathBuf)>,
    /// `--cni-conf-dir`, unless `--cni-skip-nv-ipam-config-creation`.
    pub conf_dir: Option<PathBuf>,
    /// `--cni-daemon-socket`.
    pub socket: AgentAddress,
    /// `--cni-daemon-call-timeout`.
    pub call_timeout_seconds: u32,
    /// `--cni-log-file`.
    pub log_file: String,
    /// `--cni-log-level`.
    pub log_level: String,
    /// `--cni-force-pool-name`.
    pub force_pool_name: bool,
}

impl Flags {
    /// What the flags mean, or all mistakes at once, those that were found before among them.
    pub fn read(&self, mut mistakes: Mistakes) -> Result<Config, Mistakes> {
        let m = &mut mistakes;
        let config = Config {
            common: self.common.read(m),
            node: m.take("node-name", &self.node_name, node_name(&self.node_name), String::new()),
            bind: address(m, "bind-address", &self.bind_address),
            store_file: absolute(m, "store-file", &self.store_file),
            stale: self.stale(m),
            cooldown_seconds: self.cooldown(m),
            offline_limit: self.offline_limit(m),
            replaced_machine_grace: self.replaced_machine_grace(m),
            runtime: self.runtime(m),
            boot_id_file: absolute(m, "boot-id-file", &self.boot_id_file),
            system_uuid_files: match self.system_uuid_file.as_str() {
                "" => SYSTEM_UUID.map(PathBuf::from).into(),
                path => vec![absolute(m, "system-uuid-file", path)],
            },
            cni: self.cni.read(m),
        };
        mistakes.into_result(config)
    }

    fn stale(&self, m: &mut Mistakes) -> StaleConfig {
        let interval = gosyntax::duration(&self.stale_ip_check_interval).and_then(|interval| {
            if interval < Duration::from_secs(1) {
                Err("is too short; write \"1s\" or more".to_owned())
            } else {
                Ok(interval)
            }
        });
        let count = &self.stale_ip_check_count_before_release;
        let checks = gosyntax::integer(count, 1, i64::from(u32::MAX)).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        StaleConfig {
            interval: m.take(
                "stale-ip-check-interval",
                &self.stale_ip_check_interval,
                interval,
                Duration::from_mins(1),
            ),
            checks_before: m.take("stale-ip-check-count-before-release", count, checks, 3),
        }
    }

    /// Counted from the moment that the API server is missed, so a limit of less than a second would cut off by chance.
    fn offline_limit(&self, m: &mut Mistakes) -> Option<Duration> {
        let limit = gosyntax::duration(&self.offline_limit).and_then(|limit| match limit {
            Duration::ZERO => Ok(None),
            limit if limit < Duration::from_secs(1) => {
                Err("is too short; write \"1s\" or more, or \"0\" for no limit".to_owned())
            }
            limit => Ok(Some(limit)),
        });
        m.take("offline-limit", &self.offline_limit, limit, None)
    }

    fn replaced_machine_grace(&self, m: &mut Mistakes) -> Option<Duration> {
        let text = &self.replaced_machine_grace;
        let grace = m.take("replaced-machine-grace", text, gosyntax::duration(text), Duration::ZERO);
        Some(grace).filter(|grace| !grace.is_zero())
    }

    fn runtime(&self, m: &mut Mistakes) -> Option<AgentAddress> {
        let typed = self.container_runtime_endpoint.as_str();
        let read = match typed.parse() {
            _ if typed.is_empty() => return None,
            Ok(AgentAddress::Tcp(_)) => {
                Err("must be a Unix socket, as in unix:///run/containerd/containerd.sock".to_owned())
            }
            read => read.map_err(|why| format!("cannot be used: {why}")),
        };
        read.map_err(|why| m.add("container-runtime-endpoint", typed, &why)).ok()
    }

    fn cooldown(&self, m: &mut Mistakes) -> i64 {
        let cooldown = gosyntax::duration(&self.released_ip_cooldown);
        let cooldown = m.take("released-ip-cooldown", &self.released_ip_cooldown, cooldown, Duration::ZERO);
        let partial = u64::from(cooldown.subsec_nanos() > 0);
        i64::try_from(cooldown.as_secs().saturating_add(partial)).unwrap_or(i64::MAX)
    }
}

impl CniFlags {
    fn read(&self, m: &mut Mistakes) -> CniConfig {
        let skip_binary = boolean(m, "cni-skip-nv-ipam-binary-copy", &self.cni_skip_nv_ipam_binary_copy);
        let skip_conf = boolean(m, "cni-skip-nv-ipam-config-creation", &self.cni_skip_nv_ipam_config_creation);
        // The plugin takes 0 for its default, and an unknown level for info.
        let timeout = gosyntax::integer(&self.cni_daemon_call_timeout, 0, 3600);
        let binary = absolute(m, "cni-nv-ipam-bin-file", &self.cni_nv_ipam_bin_file);
        let bin_dir = absolute(m, "cni-bin-dir", &self.cni_bin_dir);
        let conf_dir = absolute(m, "cni-conf-dir", &self.cni_conf_dir);
        let timeout = m.take("cni-daemon-call-timeout", &self.cni_daemon_call_timeout, timeout, 5);
        CniConfig {
            binary: (!skip_binary).then_some((binary, bin_dir)),
            conf_dir: (!skip_conf).then_some(conf_dir),
            socket: address(m, "cni-daemon-socket", &self.cni_daemon_socket),
            call_timeout_seconds: u32::try_from(timeout).unwrap_or(5),
            log_file: self.cni_log_file.clone(),
            log_level: self.cni_log_level.clone(),
            force_pool_name: boolean(m, "cni-force-pool-name", &self.cni_force_pool_name),
        }
    }
}

/// The folder of the journal that belongs to a `--store-file`.
pub fn directory_of(store_file: &Path) -> PathBuf {
    let mut name = store_file.to_owned().into_os_string();
    name.push(".d");
    name.into()
}

impl Config {
    /// Where the journal is kept: the name of the store file with ".d" appended.
    pub fn store_directory(&self) -> PathBuf {
        directory_of(&self.store_file)
    }

    /// Checks that what the flags name is there, as the reference does; all that is missing at once.
    pub fn check_paths(&self) -> Result<(), Mistakes> {
        let mut mistakes = Mistakes::default();
        let mut want = |flag: &str, named: &Path, path: &Path, right: &dyn Fn(&Path) -> bool, what: &str| {
            if !right(path) {
                let why = format!("cannot be used: {} is no {what}; mount or create it", path.display());
                mistakes.add(flag, &named.display().to_string(), &why);
            }
        };
        if let Some(parent) = self.store_file.parent() {
            want("store-file", &self.store_file, parent, &Path::is_dir, "directory");
        }
        if let Some((file, directory)) = &self.cni.binary {
            want("cni-nv-ipam-bin-file", file, file, &Path::is_file, "file");
            want("cni-bin-dir", directory, directory, &Path::is_dir, "directory");
        }
        if let Some(directory) = &self.cni.conf_dir {
            want("cni-conf-dir", directory, directory, &Path::is_dir, "directory");
        }
        mistakes.into_result(())
    }
}

fn boolean(m: &mut Mistakes, flag: &str, typed: &str) -> bool {
    m.take(flag, typed, gosyntax::boolean(typed), false)
}

fn address(m: &mut Mistakes, flag: &str, typed: &str) -> AgentAddress {
    let read = typed.parse::<AgentAddress>();
    read.unwrap_or_else(|why| {
        m.add(flag, typed, &format!("cannot be used: {why}"));
        AgentAddress::Unix(PathBuf::from("/"))
    })
}

fn absolute(m: &mut Mistakes, flag: &str, typed: &str) -> PathBuf {
    let path = PathBuf::from(typed);
    if !path.is_absolute() || path.file_name().is_none() {
        m.add(flag, typed, "is no absolute path; write it from the root, as in \"/var/lib/cni\"");
    }
    path
}

/// A Node's name is a DNS subdomain.
fn node_name(typed: &str) -> Result<String, String> {
    if typed.is_empty() {
        return Err("is required; give the node's name, in a DaemonSet from spec.nodeName".to_owned());
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if typed.len() > 253 || !typed.bytes().all(allowed) {
        return Err("is no name of a Node; it takes up to 253 of a-z, 0-9, '-' and '.'".to_owned());
    }
    Ok(typed.to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn read(args: &[&str]) -> Result<Config, String> {
        let args = ["ipam-node", "--node-name=node1"].into_iter().chain(args.iter().copied()).map(OsString::from);
        let mut mistakes = Mistakes::default();
        let flags: Flags = ipam_daemon::flags::parse_known(args, &mut mistakes).map_err(|error| error.to_string())?;
        flags.read(mistakes).map_err(|mistakes| mistakes.to_string())
    }

    fn refused(args: &[&str], parts: &[&str]) {
        let message = read(args).unwrap_err();
        for part in parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn without_flags_the_defaults_of_the_reference_hold() {
        let config = read(&[]).unwrap();
        assert_eq!(config.bind.to_string(), SOCKET);
        assert_eq!(config.store_file, Path::new("/var/lib/cni/nv-ipam/store"));
        assert_eq!(config.store_directory(), Path::new("/var/lib/cni/nv-ipam/store.d"));
        assert_eq!(config.stale, StaleConfig { interval: Duration::from_mins(1), checks_before: 3 });
        assert_eq!(config.cooldown_seconds, 0);
        assert_eq!(config.cni.binary, Some((PathBuf::from("/nv-ipam"), PathBuf::from("/opt/cni/bin"))));
        assert_eq!(config.cni.conf_dir, Some(PathBuf::from("/etc/cni/net.d/nv-ipam.d")));
        assert_eq!((config.cni.call_timeout_seconds, config.cni.socket.to_string().as_str()), (5, SOCKET));
        assert_eq!((config.cni.log_file.as_str(), config.cni.log_level.as_str()), ("/var/log/nv-ipam-cni.log", "info"));
        assert!(!config.cni.force_pool_name);
    }

    #[test]
    fn node_name_is_required_and_must_be_a_name() {
        refused(&["--node-name="], &["--node-name \"\" is required"]);
        refused(&["--node-name=Node_1"], &["--node-name \"Node_1\" is no name of a Node"]);
    }

    #[test]
    fn bind_address_is_a_unix_socket_or_a_tcp_address() {
        assert_eq!(read(&["--bind-address=tcp://127.0.0.1:9092"]).unwrap().bind.to_string(), "tcp://127.0.0.1:9092");
        refused(&["--bind-address=/run/x.sock"], &["--bind-address \"/run/x.sock\"", "unix:///"]);
        refused(&["--bind-address=http://x"], &["--bind-address \"http://x\"", "tcp://"]);
    }

    #[test]
    fn store_file_must_be_an_absolute_path() {
        assert_eq!(read(&["--store-file", "/x/store"]).unwrap().store_directory(), Path::new("/x/store.d"));
        refused(&["--store-file=store"], &["--store-file \"store\" is no absolute path"]);
    }

    #[test]
    fn stale_ip_flags_take_a_duration_and_a_count_of_one_or_more() {
        let stale = read(&["--stale-ip-check-interval=30s", "--stale-ip-check-count-before-release=1"]).unwrap().stale;
        assert_eq!(stale, StaleConfig { interval: Duration::from_secs(30), checks_before: 1 });
        refused(&["--stale-ip-check-interval=1ms"], &["--stale-ip-check-interval \"1ms\" is too short"]);
        refused(&["--stale-ip-check-count-before-release=0"], &["whole number from 1"]);
    }

    #[test]
    fn released_ip_cooldown_is_rounded_up_to_seconds() {
        assert_eq!(read(&["--released-ip-cooldown=1500ms"]).unwrap().cooldown_seconds, 2);
        refused(&["--released-ip-cooldown=x"], &["--released-ip-cooldown \"x\" is no duration"]);
    }

    #[test]
    fn offline_limit_is_a_duration_of_a_second_or_more_and_0_means_none() {
        for none in [&[][..], &["--offline-limit=0"], &["--offline-limit=0s"]] {
            assert_eq!(read(none).unwrap().offline_limit, None);
        }
        assert_eq!(read(&["--offline-limit=1h30m"]).unwrap().offline_limit, Some(Duration::from_mins(90)));
        refused(&["--offline-limit=10ms"], &["--offline-limit \"10ms\" is too short", "\"0\""]);
        refused(&["--offline-limit=-1s"], &["--offline-limit \"-1s\""]);
        refused(&["--offline-limit=1"], &["--offline-limit \"1\" is no duration"]);
    }

    #[test]
    fn a_runtime_endpoint_is_a_unix_socket() {
        let runtime =
            |typed: &str| read(&[&format!("--container-runtime-endpoint={typed}")]).map(|config| config.runtime);
        assert_eq!(runtime("unix:///run/crio/crio.sock").unwrap().unwrap().to_string(), "unix:///run/crio/crio.sock");
        assert_eq!(runtime("").unwrap(), None);
        for (typed, right) in [("tcp://127.0.0.1:3735", "unix:///run"), ("/run/crio/crio.sock", "unix:///path")] {
            let refused = runtime(typed).unwrap_err();
            assert!(refused.contains("container-runtime-endpoint") && refused.contains(right), "{refused}");
        }
    }

    #[test]
    fn cni_flags_say_what_is_installed() {
        let config = read(&["--cni-skip-nv-ipam-binary-copy", "--cni-skip-nv-ipam-config-creation=true"]).unwrap();
        assert_eq!((config.cni.binary, config.cni.conf_dir), (None, None));
        let args = ["--cni-bin-dir=/b", "--cni-nv-ipam-bin-file=/f", "--cni-conf-dir=/c", "--cni-force-pool-name"];
        let config = read(&args).unwrap();
        assert_eq!(config.cni.binary, Some((PathBuf::from("/f"), PathBuf::from("/b"))));
        assert_eq!(config.cni.conf_dir, Some(PathBuf::from("/c")));
        assert!(config.cni.force_pool_name);
        let args = [
            "--cni-daemon-call-timeout=9",
            "--cni-daemon-socket=tcp://127.0.0.1:1",
            "--cni-log-file=/l",
            "--cni-log-level=debug",
        ];
        let cni = read(&args).unwrap().cni;
        assert_eq!((cni.call_timeout_seconds, cni.socket.to_string().as_str()), (9, "tcp://127.0.0.1:1"));
        assert_eq!((cni.log_file.as_str(), cni.log_level.as_str()), ("/l", "debug"));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        refused(
            &["--cni-daemon-call-timeout=-1", "--cni-force-pool-name=maybe", "--v=x", "--bind-address=x"],
            &["--cni-daemon-call-timeout \"-1\"", "\"maybe\"", "--v \"x\"", "--bind-address"],
        );
    }

    #[test]
    fn paths_that_are_missing_are_all_named_before_anything_is_done() {
        let message = read(&["--store-file=/nowhere/store"]).unwrap().check_paths().unwrap_err().to_string();
        assert!(message.contains("/nowhere is no directory") && message.contains("/nv-ipam is no file"), "{message}");
    }
}
