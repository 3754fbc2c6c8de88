//! Simulates clusters: `cargo sim [--seeds FIRST..LAST] [--steps N] [--brief | --json] [--long FILE]`, or `-- --history
//! FILE [--trace]`, or `-- --again FILE`. A failure prints its seed and, unless brief, the shortest history that breaks
//! the law; the status is then 1. With `--long` every seed is played despite failures, and FILE keeps the result, so that
//! an interrupted run can continue.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use ipam_simulator::known::class;
use ipam_simulator::long::Long;
use ipam_simulator::many::ENOUGH;
use ipam_simulator::{End, Found, Played, Simulator, Totals, play_many, recorded};

/// Simulates clusters from seeds and checks the laws. Ends with status 1 at the first seed that breaks one by an unknown fault.
#[derive(clap::Parser)]
#[command(name = "simulate")]
struct Flags {
    /// Seeds, the last excluded; or one seed.
    #[arg(long, value_name = "FIRST..LAST", default_value = "0..1000", value_parser = range)]
    seeds: std::ops::Range<u64>,
    /// Steps of each history.
    #[arg(long, value_name = "N", default_value_t = 100)]
    steps: usize,
    /// Print the seed and the law, not the shortest history.
    #[arg(long)]
    brief: bool,
    /// Print a line of JSON for each seed that breaks a law, and nothing else.
    #[arg(long, conflicts_with_all = ["brief", "long", "history"])]
    json: bool,
    /// Play every seed despite failures, and keep the state of the run in FILE. The same command continues an interrupted run.
    #[arg(long, value_name = "FILE")]
    long: Option<PathBuf>,
    /// Play the history in FILE instead of seeds.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "long"])]
    history: Option<PathBuf>,
    /// Print to stderr each action of the history, what the operator and the agents log, the calls, and what the API server changes.
    #[arg(long, requires = "history")]
    trace: bool,
    /// Play again the failures that a long run has kept in FILE, and print what each shows now.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "long", "history", "brief", "json"])]
    again: Option<PathBuf>,
}

fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} must be a whole number"));
    match text.split_once("..") {
        Some((first, last)) => Ok(number(first)?..number(last)?),
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let flags = <Flags as clap::Parser>::parse();
    if let Some(file) = &flags.history {
        if flags.trace {
            let format = tracing_subscriber::fmt().without_time().with_writer(std::io::stderr);
            let ours = "ipam_simulator=debug,ipam_operator=debug,ipam_reconciler=debug,ipam_node_agent=debug";
            format.with_env_filter(ours).init();
        }
        return replay(file);
    }
    if let Some(file) = &flags.again {
        return again(file);
    }
    if let Some(file) = &flags.long {
        return long(file, &flags);
    }
    let began = Instant::now();
    let played = play_many(flags.seeds, flags.steps, End::AtFirstFailure)?;
    if flags.json {
        return lines(&played);
    }
    if let Some(found) = played.failure() {
        tell(found, flags.brief)?;
        return Ok(ExitCode::FAILURE);
    }
    let (seconds, mut out) = (began.elapsed().as_secs_f64(), std::io::stdout());
    let Totals { seeds, steps, .. } = played.totals;
    writeln!(out, "{seeds} seeds, {steps} steps in {seconds:.1} s: no law was broken by an unknown fault")?;
    for found in &played.found {
        writeln!(out, "seed {} shows the known fault {}", found.seed, found.known.map_or("", |it| it.name))?;
    }
    write!(out, "{}", played.totals)?;
    if seeds < ENOUGH {
        writeln!(
            out,
            "{seeds} histories are too few: from {ENOUGH} on, what never happened and what a reason left out too often are errors"
        )?;
    }
    verdict(&played.wrong())
}

/// Prints the errors of a run. Returns status 1 if there are any.
fn verdict(wrong: &[String]) -> anyhow::Result<ExitCode> {
    for what in wrong {
        writeln!(std::io::stderr(), "error: {what}")?;
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line for each seed that breaks a law. `known` is the name of the known fault, or null.
fn lines(played: &Played) -> anyhow::Result<ExitCode> {
    for Found { seed, shortest, known } in &played.found {
        let (law, what) = (shortest.law.law, &shortest.law.what);
        let line = serde_json::json!({"seed": seed, "law": law, "what": what, "known": known.map(|it| it.name)});
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(if played.failure().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tell(found: &Found, brief: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "seed {}: {}", found.seed, found.shortest.law)?;
    if brief {
        return Ok(());
    }
    for action in &found.shortest.history {
        writeln!(out, "    {action:?}")?;
    }
    writeln!(out, "{}{}", if found.shortest.settling { "then, at rest: " } else { "" }, found.shortest.law)?;
    writeln!(out, "{}", serde_json::to_string(&found.shortest.history)?)?;
    Ok(())
}

fn replay(file: &std::path::Path) -> anyhow::Result<ExitCode> {
    let recorded = recorded::read(file)?;
    let mut out = std::io::stdout();
    match Simulator::new()?.play(&recorded.history) {
        Ok(world) => {
            writeln!(out, "no law is broken")?;
            write!(out, "{}", world.activity())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            writeln!(out, "{}{}", if failure.settling { "at rest: " } else { "" }, failure.law)?;
            writeln!(out, "known fault: {}", class(&failure).map_or("none", |fault| fault.name))?;
            for it in &failure.evidence.early {
                let (late, seconds) =
                    (it.unreported.iter().map(String::as_str).collect::<Vec<_>>(), it.since.as_secs());
                let late = late.join(", ");
                let (node, range) = (&it.node, it.range);
                writeln!(
                    out,
                    "{node} was assigned {range} {seconds} s after a loss of records, before {late} reported"
                )?;
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Plays the failures of a long run again. Returns status 1 if a history still breaks a law by an unknown fault.
fn again(file: &std::path::Path) -> anyhow::Result<ExitCode> {
    let (long, simulator, mut out) = (Long::read(file)?, Simulator::new()?, std::io::stdout());
    let mut unknown = 0_u32;
    for entry in &long.found {
        let failure = simulator.play(&entry.history).err();
        let known = failure.as_ref().and_then(class);
        let now = match (failure, known) {
            (None, _) => "breaks no law".to_owned(),
            (Some(_), Some(fault)) => fault.name.to_owned(),
            (Some(failure), None) => {
                unknown += 1;
                format!("NOT KNOWN: {}", failure.law)
            }
        };
        let before = entry.known.as_deref().unwrap_or("NOT KNOWN");
        writeln!(out, "seed {}: {before} -> {now}", entry.seed)?;
    }
    writeln!(out, "{} failures, {unknown} by an unknown fault", long.found.len())?;
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn long(file: &std::path::Path, flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut long = Long::open(file, flags.seeds.clone(), flags.steps)?;
    let mut out = std::io::stdout();
    let began = Instant::now();
    while let Some(batch) = long.play_batch(file)? {
        let rate = f64::from(batch.seeds) / batch.seconds;
        let (next, found) = (long.next, long.found.len());
        writeln!(
            out,
            "{:.0} s: next seed {next}, {rate:.0} histories/s, {found} found",
            began.elapsed().as_secs_f64()
        )?;
        for found in &batch.found {
            writeln!(out, "    {}", found.line())?;
        }
    }
    writeln!(out, "{}", long.summary())?;
    verdict(&long.wrong())
}
