//! Simulates clusters: `cargo run -p ipam-e2e --bin simulate -- [--seeds FIRST..LAST] [--steps N] [--brief]`. A failure
//! prints its seed and, unless brief, the shortest history that breaks the law; the status is then 1.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use ipam_e2e::sim::{Failure, Simulator, play_many, shrink};

fn main() -> anyhow::Result<ExitCode> {
    let (mut seeds, mut steps, mut brief) = (0..1000_u64, 100_usize, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--brief" {
            brief = true;
            continue;
        }
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--seeds" => {
                let (first, last) = value.split_once("..").unwrap_or((&value, &value));
                seeds = first.parse()?..last.parse::<u64>()?.saturating_add(u64::from(first == last));
            }
            "--steps" => steps = value.parse()?,
            _ => anyhow::bail!("unknown flag {word}: there are --seeds FIRST..LAST (or one), --steps N and --brief"),
        }
    }
    let began = std::time::Instant::now();
    let played = play_many(seeds, steps)?;
    if let Some((seed, failure)) = played.failure {
        tell(seed, failure, brief)?;
        return Ok(ExitCode::FAILURE);
    }
    let seconds = began.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "{} seeds, {} steps in {seconds:.1} s: no law was broken", played.seeds, played.steps)?;
    Ok(ExitCode::SUCCESS)
}

fn tell(seed: u64, failure: Failure, brief: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "seed {seed}: {}", failure.law)?;
    if brief {
        return Ok(());
    }
    let shortest = shrink(&Simulator::new()?, failure);
    for action in &shortest.history {
        writeln!(out, "    {action:?}")?;
    }
    writeln!(out, "{}{}", if shortest.settling { "then, at rest: " } else { "" }, shortest.law)?;
    Ok(())
}
