//! The benchmark table: what the project promises about speed and size, measured on real processes in one run.
//!
//! Decides which rows are measured, in which order, and how they are told. Every figure comes from a release build of the
//! programs, the chart's flags, a real API server, and an etcd that syncs to a real disk. A row says plainly when it misses its
//! aim. It must never judge a figure that was not measured in this run.

mod agent;
mod agents;
mod bound;
mod burst;
mod calls;
mod churn;
mod finding;
mod flags;
mod fleet;
mod head;
mod heartbeats;
mod held;
mod huge;
mod joins;
mod judge;
mod large;
mod load;
mod lone;
mod meter;
mod minute;
mod options;
mod outside;
mod page;
mod plan;
mod pool;
mod rails;
mod recovery;
mod relay;
mod reports;
mod requests;
mod restart;
mod reviews;
mod shards;
mod shim;
mod source;
mod stage;
mod stats;
mod table;
mod traffic;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use finding::Finding;
use flags::Flags;
use head::Head;
use ipam_e2e::binaries::workspace;
use ipam_e2e::progress::say;
use large::{Applied, DEADLINE, Large, one_pool};
use lone::Lone;
use options::{Options, Run};
use source::Source;
use stage::{Stage, on_stage};

/// Size of the large clusters that the aims speak of.
const NODES: u32 = 5_000;
/// So many times larger is the largest cluster.
const HUGE: u32 = 3;
/// The page with the table.
const PAGE: &str = "e2e/benchmarks.md";
/// Which build of operator and agent the harness takes.
const PROFILE: &str = "NV_IPAM_E2E_PROFILE";

/// What a row is measured on, and how.
enum Subject {
    /// Nothing but the rules.
    Rules(fn() -> Result<Vec<Finding>>),
    /// One large cluster with one pool. The rows follow each other on it.
    Large(fn(&mut Large<'_>, Applied) -> Result<Vec<Finding>>),
    /// One agent, with the API server idle beside it. The rows follow each other on it.
    Lone(fn(&mut Lone<'_>) -> Result<Vec<Finding>>),
    /// A control plane of its own. The number is that of the nodes of a large cluster.
    Own(fn(&Stage<'_>, u32) -> Result<Vec<Finding>>),
}

struct Row {
    name: &'static str,
    subject: Subject,
}

/// In the order of the table.
const ROWS: [Row; 20] = [
    Row { name: "plan", subject: Subject::Rules(plan::measure) },
    Row { name: "judge", subject: Subject::Rules(judge::measure) },
    Row { name: "pool", subject: Subject::Large(pool::measure) },
    Row { name: "join", subject: Subject::Large(|large, _| joins::measure(large)) },
    Row { name: "bytes", subject: Subject::Large(|large, _| traffic::measure(large)) },
    Row { name: "heartbeats", subject: Subject::Large(|large, _| heartbeats::measure(large)) },
    Row { name: "operator-memory", subject: Subject::Large(|large, _| pool::memory(large)) },
    Row { name: "churn", subject: Subject::Large(|large, _| churn::measure(large)) },
    Row { name: "rails", subject: Subject::Own(rails::measure) },
    Row { name: "recovery", subject: Subject::Own(recovery::measure) },
    Row { name: "outside", subject: Subject::Own(outside::measure) },
    Row { name: "huge", subject: Subject::Own(|stage, nodes| huge::measure(stage, nodes * HUGE)) },
    Row { name: "shards", subject: Subject::Own(shards::measure) },
    Row { name: "agents", subject: Subject::Own(|stage, _| agents::measure(stage)) },
    Row { name: "shim", subject: Subject::Lone(shim::measure) },
    Row { name: "calls", subject: Subject::Lone(calls::measure) },
    Row { name: "agent-memory", subject: Subject::Lone(lone::memory) },
    Row { name: "held", subject: Subject::Own(|stage, _| held::measure(stage)) },
    Row { name: "reviews", subject: Subject::Own(|stage, _| reviews::measure(stage)) },
    Row { name: "stalled", subject: Subject::Own(|stage, _| reviews::stalled(stage)) },
];

/// Measures the rows that the arguments name, all without any, and prints the table.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let names = ROWS.map(|row| row.name);
    let result = options::read(arguments, &names).and_then(|options| match options {
        Options::Help => Ok(write!(std::io::stdout(), "{}", options::usage(&names))?),
        Options::Run(options) => run(&options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Run) -> Result<()> {
    ensure!(
        !cfg!(debug_assertions) || options.allow_dirty,
        "a debug build measures nothing of interest; use `cargo benchmarks`"
    );
    if std::env::var_os(PROFILE).is_none() {
        // The harness reads the variable; a program may not set its own while threads may run, so it begins again with it.
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let error =
            Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(PROFILE, profile).exec();
        return Err(error).context("cannot start this program again");
    }
    let source = Source::now()?;
    source.check(options.allow_dirty)?;
    let bench = Context { nodes: options.nodes, flags: OnceCell::new() };
    let head = Head::begin(source.clone(), options.nodes)?;
    let (findings, failed) = bench.measure(&options.names);
    if !options.allow_dirty {
        source.ensure_same(&Source::now()?)?;
    }
    let text = table::render(&head.lines(bench.flags.get())?, &findings);
    std::io::stdout().write_all(text.as_bytes())?;
    ensure!(failed.is_empty(), "rows failed:\n{}", failed.join("\n"));
    if options.write {
        let page = workspace().join(PAGE);
        let old = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
        std::fs::write(&page, page::with_table(&old, &text)?).with_context(|| format!("cannot write {PAGE}"))?;
    }
    Ok(())
}

/// One run.
struct Context {
    nodes: u32,
    flags: OnceCell<Flags>,
}

/// A row that is to be measured, with its place in the table.
type Wanted<'a> = (usize, &'a Row);
/// What was found, by place.
type Found = Vec<(usize, Vec<Finding>)>;

impl Context {
    /// The flags are those of the chart on every stage.
    fn note_flags(&self, flags: Flags) {
        self.flags.get_or_init(|| flags);
    }

    /// The findings of the named rows in the order of the table, and the errors of rows that could not be measured.
    fn measure(&self, names: &BTreeSet<String>) -> (Vec<Finding>, Vec<String>) {
        let wanted: Vec<Wanted<'_>> = ROWS.iter().enumerate().filter(|(_, row)| names.contains(row.name)).collect();
        let (mut found, mut failed) = (Found::new(), Vec::new());
        for (place, row) in &wanted {
            let done = match &row.subject {
                Subject::Rules(measure) => measure(),
                Subject::Own(measure) => on_stage(self, |stage| measure(stage, self.nodes)),
                Subject::Large(_) | Subject::Lone(_) => continue,
            };
            match told(row, done) {
                Ok(rows) => found.push((*place, rows)),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        // A row that fails leaves its cluster in no state for those after it.
        let shared = [self.on_large(&wanted, &mut found), self.on_lone(&wanted, &mut found)];
        failed.extend(shared.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")));
        found.sort_by_key(|(place, _)| *place);
        (found.into_iter().flat_map(|(_, rows)| rows).collect(), failed)
    }

    fn on_large(&self, wanted: &[Wanted<'_>], found: &mut Found) -> Result<()> {
        if !wanted.iter().any(|(_, row)| matches!(row.subject, Subject::Large(_))) {
            return Ok(());
        }
        on_stage(self, |stage| {
            let mut large = Large::begin(stage, self.nodes, one_pool())?;
            let applied = large.apply(DEADLINE)?;
            for (place, row) in wanted {
                if let Subject::Large(measure) = &row.subject {
                    found.push((*place, told(row, measure(&mut large, applied))?));
                }
            }
            Ok(())
        })
    }

    fn on_lone(&self, wanted: &[Wanted<'_>], found: &mut Found) -> Result<()> {
        if !wanted.iter().any(|(_, row)| matches!(row.subject, Subject::Lone(_))) {
            return Ok(());
        }
        on_stage(self, |stage| {
            let mut lone = Lone::start(stage)?;
            for (place, row) in wanted {
                if let Subject::Lone(measure) = &row.subject {
                    found.push((*place, told(row, measure(&mut lone))?));
                }
            }
            Ok(())
        })
    }
}

/// Prints what was found, long before the table is complete.
fn told(row: &Row, found: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    let found =
        found.with_context(|| format!("row {}", row.name)).inspect_err(|error| say(&format!("bench: {error:#}")))?;
    for finding in &found {
        say(&format!("bench: {}", finding.line()));
    }
    Ok(found)
}
