//! The command line of behaviour.md §9: raw as typed, then one conversion into a configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use ipam_daemon::{Common, CommonFlags, Mistakes, gosyntax};

use crate::release_pools;
use ipam_reconciler::reconcile::{STATUS_BYTES_PER_MINUTE, Settings};
use ipam_webhook::flags::{WebhookConfig, WebhookFlags};

/// nv-ipam operator: assigns blocks of IPPools and CIDRPools to nodes
#[derive(Parser, Debug)]
#[command(name = "ipam-controller")]
#[command(
    after_help = "Commands: ipam-controller validate FILE... checks manifests without a cluster. ipam-controller release-pools removes \
        the finalizers of pools when no operator runs. Each has its own --help."
)]
struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    /// Elect a leader, so that one of several replicas is active at a time
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL")]
    leader_elect: String,
    /// Namespace of the leader election's Lease
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    leader_elect_namespace: String,
    /// Time after which the block of a deleted Node is released without a report of its agent; 0 = never
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    released_block_grace: String,
    /// Labels of the nodes that run an agent, as KEY=VALUE,...; a recovery awaits reports of these nodes alone. By default, all nodes
    #[arg(long, default_value = "", value_name = "LABELS")]
    agent_node_selector: String,
    /// Keep pools and IPAMNodes by finalizers while pods may use their addresses. If not, a deleted pool is gone at once
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
        value_name = "BOOL")]
    finalizers: String,
    /// Most bytes of pool statuses that the operator writes in a minute, for all pools together; at 5,000 nodes a status has 390 kB
    #[arg(long, default_value_t = STATUS_BYTES_PER_MINUTE.to_string(), value_name = "BYTES")]
    status_bytes_per_minute: String,
    #[command(flatten)]
    webhook: WebhookFlags,
}

/// The configuration from the flags.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The flags that both daemons have.
    pub common: Common,
    /// The namespace of the election's Lease; `None` to work without an election.
    pub elect_in: Option<String>,
    /// The settings of the reconciler.
    pub settings: Settings,
    /// The webhook; `None` if it is off.
    pub webhook: Option<WebhookConfig>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// Another error of clap, or the text of `--help` or `--version`, which is not a failure.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// An unknown word in the place of a command or the first flag.
    #[error("there is no command {0:?}; want {validate} or {release_pools}, or flags alone to run the operator",
        validate = ipam_validate::command::NAME, release_pools = release_pools::NAME)]
    NoCommand(String),
    /// All invalid flags and values.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
}

impl Config {
    /// Reads a command line, program name first.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, FlagError> {
        let args: Vec<OsString> = args.into_iter().collect();
        // The arguments after the word are meant for that command, so they are not checked.
        if let Some(word) = args.get(1).filter(|word| !word.as_encoded_bytes().starts_with(b"-")) {
            return Err(FlagError::NoCommand(word.to_string_lossy().into_owned()));
        }
        let mut mistakes = Mistakes::default();
        let flags: Flags = ipam_daemon::flags::parse_known(args, &mut mistakes)?;
        let common = flags.common.read(&mut mistakes);
        let boolean = gosyntax::boolean(&flags.leader_elect);
        let elects = mistakes.take("leader-elect", &flags.leader_elect, boolean, false);
        let webhook = flags.webhook.read(&common.namespace, &mut mistakes);
        let grace = gosyntax::duration(&flags.released_block_grace);
        let grace = mistakes.take("released-block-grace", &flags.released_block_grace, grace, Duration::ZERO);
        let released_block_grace = Some(grace).filter(|grace| !grace.is_zero());
        let selector = &flags.agent_node_selector;
        let agent_nodes = mistakes.take("agent-node-selector", selector, labels(selector), BTreeMap::new());
        let finalizers = gosyntax::boolean(&flags.finalizers);
        let finalizers = mistakes.take("finalizers", &flags.finalizers, finalizers, true);
        let bytes = status_bytes(&flags.status_bytes_per_minute);
        let bytes = mistakes.take("status-bytes-per-minute", &flags.status_bytes_per_minute, bytes, 0);
        let settings = Settings {
            released_block_grace,
            agent_nodes,
            finalizers,
            status_bytes_per_minute: bytes,
            ..Settings::default()
        };
        let namespace = flags.leader_elect_namespace;
        if let Err(why) = ipam_daemon::flags::namespace(&namespace) {
            mistakes.add("leader-elect-namespace", &namespace, &why);
        }
        Ok(mistakes.into_result(Self { common, elect_in: elects.then_some(namespace), settings, webhook })?)
    }
}

/// Fewer bytes than one status of a large pool in a minute would stop the operator.
const LEAST_STATUS_BYTES: u64 = 3_000_000;

fn status_bytes(text: &str) -> Result<u64, String> {
    let wanted = || format!("want a number of bytes, {LEAST_STATUS_BYTES} or more");
    text.parse().ok().filter(|bytes| *bytes >= LEAST_STATUS_BYTES).ok_or_else(wanted)
}

/// Reads labels as `--agent-node-selector` has them.
fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.starts_with('=') && !key.ends_with('!') => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("{pair:?} is no label; want KEY=VALUE, such as kubernetes.io/os=linux")),
    };
    pairs.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_statuses_are_a_number_that_is_large_enough() {
        let of = |text: &str| {
            read(&[&format!("--status-bytes-per-minute={text}")]).map(|config| config.settings.status_bytes_per_minute)
        };
        assert_eq!(of("3000000").unwrap(), 3_000_000);
        assert_eq!(read(&[]).unwrap().settings.status_bytes_per_minute, STATUS_BYTES_PER_MINUTE);
        for wrong in ["2999999", "0", "-1", "36M", ""] {
            let text = of(wrong).unwrap_err().to_string();
            assert!(text.contains("status-bytes-per-minute") && text.contains("3000000 or more"), "{wrong}: {text}");
        }
    }

    #[test]
    fn labels_of_agents_are_pairs_and_anything_else_is_named() {
        let of =
            |text: &str| read(&[&format!("--agent-node-selector={text}")]).map(|config| config.settings.agent_nodes);
        assert!(of("").unwrap().is_empty());
        let two = of("kubernetes.io/os=linux, gpu=").unwrap();
        assert_eq!(two, [("kubernetes.io/os", "linux"), ("gpu", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        for wrong in ["gpu", "=linux", "os==linux", "os!=linux"] {
            let text = of(wrong).unwrap_err().to_string();
            assert!(text.contains("agent-node-selector") && text.contains("KEY=VALUE"), "{wrong}: {text}");
        }
    }

    fn read(args: &[&str]) -> Result<Config, FlagError> {
        Config::parse(std::iter::once("ipam-controller").chain(args.iter().copied()).map(OsString::from))
    }

    #[test]
    fn without_flags_the_defaults_of_the_reference_hold() {
        let config = read(&[]).unwrap();
        assert_eq!((config.elect_in, config.webhook), (None, None));
        assert_eq!(config.common.namespace, "kube-system");
        assert_eq!(
            (config.common.probes.to_string(), config.common.metrics.to_string()),
            (":8081".into(), ":8080".into())
        );
    }

    #[test]
    fn leader_elect_is_a_go_boolean() {
        for on in ["--leader-elect", "--leader-elect=true", "--leader-elect=1", "--leader-elect=T"] {
            assert_eq!(read(&[on]).unwrap().elect_in.as_deref(), Some("kube-system"), "{on}");
        }
        for off in ["--leader-elect=false", "--leader-elect=0"] {
            assert_eq!(read(&[off]).unwrap().elect_in, None, "{off}");
        }
    }

    #[test]
    fn leader_elect_namespace_says_where_the_lease_is() {
        let config = read(&["--leader-elect", "--leader-elect-namespace=net"]).unwrap();
        assert_eq!(config.elect_in.as_deref(), Some("net"));
        assert_eq!(read(&["--leader-elect-namespace", "net"]).unwrap().elect_in, None);
    }

    #[test]
    fn released_block_grace_is_a_go_duration_and_zero_means_never() {
        let grace = |args: &[&str]| read(args).unwrap().settings.released_block_grace;
        assert_eq!(grace(&[]), Some(Duration::from_hours(24)));
        assert_eq!(grace(&[]), Settings::default().released_block_grace);
        assert_eq!(grace(&["--released-block-grace=90m"]), Some(Duration::from_mins(90)));
        assert_eq!(grace(&["--released-block-grace=0"]), None);
        for wrong in ["-1h", "soon", "5"] {
            let message = read(&[&format!("--released-block-grace={wrong}")]).unwrap_err().to_string();
            assert!(message.contains(&format!("released-block-grace \"{wrong}\"")), "{message}");
        }
    }

    #[test]
    fn webhook_is_a_go_boolean() {
        assert!(read(&["--webhook"]).unwrap().webhook.is_some());
        assert!(read(&["--webhook=false"]).unwrap().webhook.is_none());
    }

    #[test]
    fn the_flags_of_existing_manifests_are_taken_as_they_stand() {
        let config = read(&[
            "--v=1",
            "--logging-format=json",
            "--leader-elect=true",
            "--leader-elect-namespace=$(POD_NAMESPACE)".replace("$(POD_NAMESPACE)", "kube-system").as_str(),
            "--ippools-namespace=kube-system",
            "--webhook=true",
        ])
        .unwrap();
        assert!(config.webhook.is_some() && config.elect_in.is_some());
    }

    #[test]
    fn all_mistakes_are_named_at_once() {
        let args = [
            "--no-such-flag",
            "--leader-elect=maybe",
            "--webhook=7",
            "--leader-elect-namespace=A",
            "--metrics-bind-address=x",
        ];
        let message = read(&args).unwrap_err().to_string();
        for flag in [
            "--no-such-flag",
            "leader-elect \"maybe\"",
            "webhook \"7\"",
            "leader-elect-namespace \"A\"",
            "metrics-bind-address \"x\"",
        ] {
            assert!(message.contains(flag), "{message:?} lacks {flag:?}");
        }
    }

    #[test]
    fn a_command_that_does_not_exist_is_told_with_those_that_do() {
        for args in [&["vaildate", "x", "--strict"][..], &["Validate"], &["", "--v=x"]] {
            let expected = format!(
                "there is no command {:?}; want validate or release-pools, or flags alone to run the operator",
                args[0]
            );
            assert_eq!(read(args).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_value_that_starts_with_a_dash_or_is_missing_is_a_mistake_among_the_others() {
        let args = ["--released-block-grace", "-5s", "--leader-elect=maybe", "--webhook-drain", "-1s", "--kubeconfig"];
        let Err(FlagError::Mistakes(mistakes)) = read(&args) else { panic!("not our own words") };
        let message = mistakes.to_string();
        for part in [
            "--released-block-grace \"-5s\"",
            "--leader-elect \"maybe\"",
            "--webhook-drain \"-1s\"",
            "--kubeconfig is the last word, want a value behind it",
        ] {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn version_is_no_failure() {
        let code = |args: &[&str]| match read(args) {
            Err(FlagError::Usage(usage)) => usage.exit_code(),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(&["--version"]), 0);
        assert_eq!(code(&["--help"]), 0);
    }
}
