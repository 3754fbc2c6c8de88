//! The benchmark table: what the project promises about speed and size, measured on real processes in one run.
//!
//! Decides which rows are measured, in which order, and how they are told. Every figure comes from a release build of the
//! programs, a real API server and a real disk; a row says plainly when it misses its aim. It must never judge a figure that was
//! not measured in this run.

mod agent;
mod calls;
mod churn;
mod fleet;
mod heartbeats;
mod joins;
mod judge;
mod large;
mod load;
mod meter;
mod plan;
mod pool;
mod relay;
mod reviews;
mod shim;
mod table;
mod traffic;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime::Runtime;

use crate::cluster;
use crate::control_plane::ControlPlane;
use crate::progress::say;
use agent::Agent;
use large::Large;
use table::{Finding, Table};

/// Size of the cluster that the aims speak of.
const NODES: u32 = 5_000;
/// Which build of operator and agent the harness takes.
const PROFILE: &str = "NV_IPAM_E2E_PROFILE";

/// What a row is measured on, and how.
enum Subject {
    /// Nothing but the rules.
    Rules(fn() -> Result<Vec<Finding>>),
    /// One agent, with the API server idle beside it.
    Agent(fn(&mut Lone<'_>) -> Result<Vec<Finding>>),
    /// The webhook, with operators of its own.
    Reviews(fn(&ControlPlane, &Runtime) -> Result<Vec<Finding>>),
    /// The operator of a large cluster. The rows follow each other on the same cluster.
    Operator(fn(&mut Large<'_>) -> Result<Vec<Finding>>),
}

struct Row {
    name: &'static str,
    subject: Subject,
}

/// In the order of the table.
const ROWS: [Row; 13] = [
    Row { name: "plan", subject: Subject::Rules(plan::measure) },
    Row { name: "judge", subject: Subject::Rules(judge::measure) },
    Row { name: "pool", subject: Subject::Operator(pool::measure) },
    Row { name: "join", subject: Subject::Operator(joins::measure) },
    Row { name: "bytes", subject: Subject::Operator(traffic::measure) },
    Row { name: "heartbeats", subject: Subject::Operator(heartbeats::measure) },
    Row { name: "operator-memory", subject: Subject::Operator(large::memory) },
    Row { name: "churn", subject: Subject::Operator(churn::measure) },
    Row { name: "shim", subject: Subject::Agent(shim::measure) },
    Row { name: "calls", subject: Subject::Agent(calls::measure) },
    Row { name: "agent-memory", subject: Subject::Agent(agent::memory) },
    Row { name: "reviews", subject: Subject::Reviews(reviews::measure) },
    Row { name: "stalled", subject: Subject::Reviews(reviews::stalled) },
];

/// An agent alone on its node.
struct Lone<'a> {
    runtime: &'a Runtime,
    agent: Agent,
    /// When nothing had been asked of it yet, in KiB.
    idle_memory: u64,
}

/// Measures the rows that the arguments name, all without any, and prints the table.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let result = options(arguments).and_then(|options| match options {
        Options::Help => Ok(write!(std::io::stdout(), "{}", usage())?),
        Options::Run { nodes, names } => run(nodes, &names),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Options {
    Help,
    Run { nodes: u32, names: BTreeSet<String> },
}

fn usage() -> String {
    let names = ROWS.map(|row| row.name).join(" ");
    format!(
        "usage: cargo run --release -p ipam-e2e --bin bench [-- [--nodes=N] ROW...]\n\n  ROW        {names}; all without any\n  \
         --nodes=N  size of the large cluster, {NODES} without; the aims are those for {NODES}\n"
    )
}

fn options(arguments: impl Iterator<Item = OsString>) -> Result<Options> {
    let (mut nodes, mut names) = (NODES, BTreeSet::new());
    for word in arguments {
        let word = word.to_str().map(str::to_owned).with_context(|| format!("unknown argument {}", word.display()))?;
        if word == "--help" || word == "-h" {
            return Ok(Options::Help);
        } else if let Some(count) = word.strip_prefix("--nodes=") {
            nodes = count
                .parse()
                .ok()
                .filter(|count| (1..=50_000).contains(count))
                .with_context(|| format!("--nodes={count}: a whole number from 1 to 50000 is wanted"))?;
        } else if ROWS.iter().any(|row| row.name == word) {
            names.insert(word);
        } else {
            bail!("no row is named {word:?}\n{}", usage());
        }
    }
    if names.is_empty() {
        names = ROWS.iter().map(|row| row.name.to_owned()).collect();
    }
    Ok(Options::Run { nodes, names })
}

fn run(nodes: u32, names: &BTreeSet<String>) -> Result<()> {
    ensure!(
        !cfg!(debug_assertions),
        "a debug build measures nothing of interest; say `cargo run --release -p ipam-e2e --bin bench`"
    );
    if std::env::var_os(PROFILE).is_none() {
        // The harness reads the variable; a program may not set its own while threads may run, so it begins anew with it.
        let error =
            Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(PROFILE, "release").exec();
        return Err(error).context("cannot start this program anew");
    }
    let mut table = Table::begin(nodes);
    let mut findings = Vec::new();
    let wanted = || ROWS.iter().enumerate().filter(|(_, row)| names.contains(row.name));
    for (place, row) in wanted() {
        if let Subject::Rules(measure) = &row.subject {
            findings.push((place, told(row, measure())?));
        }
    }
    if wanted().any(|(_, row)| !matches!(row.subject, Subject::Rules(_))) {
        on_processes(nodes, &wanted().collect::<Vec<_>>(), &mut findings)?;
    }
    findings.sort_by_key(|(place, _)| *place);
    for (_, found) in findings {
        table.extend(found);
    }
    table.print(&mut std::io::stdout())
}

fn on_processes(nodes: u32, wanted: &[(usize, &Row)], findings: &mut Vec<(usize, Vec<Finding>)>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    crate::binaries::build()?;
    let plane = ControlPlane::start()?;
    cluster::await_namespace(&plane, large::NAMESPACE)?;
    cluster::install_crds(&plane)?;
    for (place, row) in wanted {
        if let Subject::Reviews(measure) = &row.subject {
            findings.push((*place, told(row, measure(&plane, &runtime))?));
        }
    }
    if wanted.iter().any(|(_, row)| matches!(row.subject, Subject::Agent(_))) {
        let agent = agent::lone(&plane)?;
        let idle_memory = agent.meter().memory()?.now;
        agent.await_answers(&runtime)?;
        let mut lone = Lone { runtime: &runtime, agent, idle_memory };
        for (place, row) in wanted {
            if let Subject::Agent(measure) = &row.subject {
                findings.push((*place, told(row, measure(&mut lone))?));
            }
        }
    }
    if wanted.iter().any(|(_, row)| matches!(row.subject, Subject::Operator(_))) {
        let mut large = Large::build(&plane, &runtime, nodes)?;
        for (place, row) in wanted {
            if let Subject::Operator(measure) = &row.subject {
                findings.push((*place, told(row, measure(&mut large))?));
            }
        }
    }
    Ok(())
}

/// Tells a waiting person what was found, long before the table is complete.
fn told(row: &Row, found: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    let found = found.with_context(|| format!("row {}", row.name))?;
    for finding in &found {
        say(&format!("bench: {}", finding.line()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        options(words.iter().map(OsString::from))
    }

    #[test]
    fn without_names_every_row_is_measured_at_full_size() {
        let Options::Run { nodes, names } = parse(&[]).unwrap() else { panic!("no run") };
        assert_eq!((nodes, names.len()), (NODES, ROWS.len()));
    }

    #[test]
    fn rows_and_size_can_be_chosen_and_others_are_named() {
        let names = BTreeSet::from(["join".to_owned()]);
        assert_eq!(parse(&["join", "--nodes=7"]).unwrap(), Options::Run { nodes: 7, names });
        assert_eq!(parse(&["-h"]).unwrap(), Options::Help);
        for wrong in ["joins", "--nodes=0", "--nodes=x", "--nods"] {
            assert!(parse(&[wrong]).unwrap_err().to_string().contains(wrong.trim_start_matches("--nodes=")), "{wrong}");
        }
    }
}
