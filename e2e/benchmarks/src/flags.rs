//! The command lines of operator and agents: the chart's, with only ports, folders and credentials put elsewhere.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

/// Flags whose values belong to one run: ports, folders, names and credentials. All others are the chart's.
pub(super) const PLACED: [&str; 12] = [
    "--kubeconfig",
    "--node-name",
    "--webhook-bind-address",
    "--health-probe-bind-address",
    "--metrics-bind-address",
    "--bind-address",
    "--store-file",
    "--cni-bin-dir",
    "--cni-conf-dir",
    "--cni-daemon-socket",
    "--cni-log-file",
    "--cni-nv-ipam-bin-file",
];

/// What the chart must turn on, else a row would measure less than users run.
const OPERATOR: [(&str, &str); 2] = [("--leader-elect", "true"), ("--webhook", "true")];
const AGENT: [(&str, &str); 2] =
    [("--cni-skip-nv-ipam-binary-copy", "false"), ("--cni-skip-nv-ipam-config-creation", "false")];
const SERVED: [&str; 2] = ["--metrics-bind-address", "--health-probe-bind-address"];

/// The command lines of both daemons, as the head of the table prints them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flags {
    pub(super) operator: String,
    pub(super) agent: String,
}

impl Flags {
    /// Reads the command lines that a run uses.
    ///
    /// # Errors
    /// When webhook, leader election, metrics, probes or the installation of the plugin are off.
    pub(super) fn read(operator: &[String], agent: &[String]) -> Result<Self> {
        check(operator, &OPERATOR)?;
        check(agent, &AGENT)?;
        Ok(Self { operator: shown(operator), agent: shown(agent) })
    }
}

fn check(arguments: &[String], wanted: &[(&str, &str)]) -> Result<()> {
    let values: BTreeMap<&str, &str> = arguments.iter().map(|argument| split(argument)).collect();
    for (flag, value) in wanted {
        ensure!(values.get(flag) == Some(value), "{flag} must be {value}, got {:?}", values.get(flag));
    }
    for flag in SERVED {
        ensure!(values.get(flag).is_some_and(|value| *value != "0"), "{flag} must be on, got {:?}", values.get(flag));
    }
    Ok(())
}

/// Of a flag given twice the last value counts. The values of [`PLACED`] flags say nothing to a reader.
fn shown(arguments: &[String]) -> String {
    let mut order: Vec<&str> = Vec::new();
    let mut values: BTreeMap<&str, &str> = BTreeMap::new();
    for (flag, value) in arguments.iter().map(|argument| split(argument)) {
        if values.insert(flag, value).is_none() {
            order.push(flag);
        }
    }
    let words = order.iter().map(|flag| {
        let value = if PLACED.contains(flag) { "…" } else { values.get(flag).copied().unwrap_or_default() };
        format!("{flag}={value}")
    });
    words.collect::<Vec<_>>().join(" ")
}

fn split(argument: &str) -> (&str, &str) {
    argument.split_once('=').unwrap_or((argument, "true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_e2e::chart;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn placed_values_are_hidden_and_the_last_value_counts() {
        let arguments = words("--metrics-bind-address=:8080 --v=0 --metrics-bind-address=127.0.0.1:9 --v=2 --webhook");
        assert_eq!(shown(&arguments), "--metrics-bind-address=… --v=2 --webhook=true");
    }

    #[test]
    fn a_daemon_with_something_turned_off_is_refused() {
        let operator = "--leader-elect=true --webhook=true --metrics-bind-address=:1 --health-probe-bind-address=:2";
        assert!(check(&words(operator), &OPERATOR).is_ok());
        for (on, off) in
            [("elect=true", "elect=false"), ("webhook=true", "webhook=false"), ("=:1", "=0"), ("=:2", "=0")]
        {
            assert!(check(&words(&operator.replace(on, off)), &OPERATOR).is_err(), "{off}");
        }
    }

    #[test]
    fn the_chart_turns_everything_on_by_default() {
        let rendered = |kind: &str| chart::default_arguments(kind).unwrap();
        let flags = Flags::read(&rendered("Deployment"), &rendered("DaemonSet")).unwrap();
        assert!(flags.operator.contains("--webhook-certificates=self-managed"), "{}", flags.operator);
        assert!(flags.agent.contains("--stale-ip-check-interval=1m"), "{}", flags.agent);
    }
}
