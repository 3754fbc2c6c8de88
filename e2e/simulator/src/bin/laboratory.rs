//! The crash laboratory: `cargo laboratory [--first N] [--cuts N]`. It plays seeds until one shows a fault, which it prints. Then the status is 1.

use std::io::Write as _;
use std::process::ExitCode;

use ipam_simulator::laboratory::{Played, play};

/// Plays histories of an agent whose disk loses power at each step. Ends with status 1 at the first that shows a fault.
#[derive(clap::Parser)]
#[command(name = "laboratory")]
struct Flags {
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Cuts to play, at least.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    cuts: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let flags = <Flags as clap::Parser>::parse();
    let mut all = Played::default();
    let mut out = std::io::stdout().lock();
    let mut seed = flags.first;
    while all.cuts < flags.cuts {
        match play(seed) {
            Ok(played) => all.join(played),
            Err(finding) => {
                writeln!(out, "{finding}")?;
                return Ok(ExitCode::FAILURE);
            }
        }
        seed += 1;
        if seed % 1_000 == 0 {
            writeln!(out, "next seed {seed}: {all}")?;
        }
    }
    writeln!(out, "seeds {}..{seed}: {all}", flags.first)?;
    Ok(ExitCode::SUCCESS)
}
