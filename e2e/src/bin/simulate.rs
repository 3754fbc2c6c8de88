//! Simulates clusters: `cargo run -p ipam-e2e --bin simulate -- [--seeds FIRST..LAST] [--steps N]`. A failure prints its seed
//! and the shortest history that breaks the law.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use ipam_e2e::sim::{Simulator, history, shrink};

fn main() -> anyhow::Result<ExitCode> {
    let (mut seeds, mut steps) = (0..1000_u64, 100_usize);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--seeds" => {
                let (first, last) = value.split_once("..").unwrap_or((&value, &value));
                seeds = first.parse()?..last.parse::<u64>()?.saturating_add(u64::from(first == last));
            }
            "--steps" => steps = value.parse()?,
            _ => anyhow::bail!("unknown flag {word}: there are --seeds FIRST..LAST (or one) and --steps N"),
        }
    }
    let (mut out, simulator) = (std::io::stdout(), Simulator::new()?);
    let began = std::time::Instant::now();
    for seed in seeds.clone() {
        let played = simulator.play(&history(seed, steps));
        if let Err(failure) = played {
            writeln!(out, "seed {seed}: {}", failure.law)?;
            let shortest = shrink(&simulator, failure);
            for action in &shortest.history {
                writeln!(out, "    {action:?}")?;
            }
            writeln!(out, "{}{}", if shortest.settling { "then, at rest: " } else { "" }, shortest.law)?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let count = seeds.end - seeds.start;
    writeln!(out, "{count} seeds of {steps} steps in {:.1} s: no law was broken", began.elapsed().as_secs_f64())?;
    Ok(ExitCode::SUCCESS)
}
