//! Simulates clusters: `cargo run -p ipam-e2e --bin simulate -- [--seeds FIRST..LAST] [--steps N] [--brief] [--long FILE]`, or
//! `-- --history FILE`. A failure prints its seed and, unless brief, the shortest history that breaks the law; the status is then 1.
//! With `--long` every seed is played whatever fails, and FILE keeps what was found, so that a run that was ended goes on with it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use ipam_e2e::sim::long::Long;
use ipam_e2e::sim::{End, Found, Simulator, play_many, recorded};

struct Flags {
    seeds: std::ops::Range<u64>,
    steps: usize,
    brief: bool,
    long: Option<PathBuf>,
    history: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let flags = flags(std::env::args().skip(1))?;
    if let Some(file) = &flags.history {
        return replay(file);
    }
    if let Some(file) = &flags.long {
        return long(file, &flags);
    }
    let began = Instant::now();
    let played = play_many(flags.seeds, flags.steps, End::AtFirstFailure)?;
    if let Some(found) = played.failure() {
        tell(found, flags.brief)?;
        return Ok(ExitCode::FAILURE);
    }
    let (seconds, mut out) = (began.elapsed().as_secs_f64(), std::io::stdout());
    writeln!(out, "{} seeds, {} steps in {seconds:.1} s: no law was broken", played.seeds, played.steps)?;
    for found in &played.found {
        writeln!(out, "seed {} shows the known fault {}", found.seed, found.known.map_or("", |it| it.name))?;
    }
    write!(out, "{}{}", played.activity, played.shares())?;
    Ok(ExitCode::SUCCESS)
}

fn flags(mut words: impl Iterator<Item = String>) -> anyhow::Result<Flags> {
    let mut flags = Flags { seeds: 0..1000, steps: 100, brief: false, long: None, history: None };
    while let Some(word) = words.next() {
        if word == "--brief" {
            flags.brief = true;
            continue;
        }
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--seeds" => {
                let (first, last) = value.split_once("..").unwrap_or((&value, &value));
                flags.seeds = first.parse()?..last.parse::<u64>()?.saturating_add(u64::from(first == last));
            }
            "--steps" => flags.steps = value.parse()?,
            "--long" => flags.long = Some(value.into()),
            "--history" => flags.history = Some(value.into()),
            _ => anyhow::bail!(
                "unknown flag {word}: there are --seeds FIRST..LAST (or one), --steps N, --brief, --long FILE and --history FILE"
            ),
        }
    }
    Ok(flags)
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
            Ok(ExitCode::FAILURE)
        }
    }
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
    Ok(if long.found.iter().any(|found| found.known.is_none()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
