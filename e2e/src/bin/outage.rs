//! A long outage under load: `cargo run -p ipam-e2e --bin outage -- [--away SECONDS] [--rate CALLS]`; see the module `outage`.
//! Prints what came of it, and ends with an error if a call failed or an address was held twice.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use ipam_e2e::cluster::install_crds;
use ipam_e2e::outage::{Campaign, Report, run};
use ipam_e2e::{ControlPlane, warden};

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|word| word == warden::AS_WARDEN).is_some() {
        return Ok(warden::main(arguments));
    }
    let campaign = campaign(std::env::args().skip(1))?;
    let plane = ControlPlane::start()?;
    install_crds(&plane)?;
    let namespace = plane.namespace("outage")?;
    let report = run(&plane, &namespace, campaign)?;
    tell(campaign, &report)?;
    let good = report.failed.is_empty() && report.doubled.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn campaign(mut words: impl Iterator<Item = String>) -> anyhow::Result<Campaign> {
    let mut campaign = Campaign { rate: 50, away: Duration::from_mins(1), compact: true };
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        let number = value.parse::<u32>().ok().filter(|number| *number > 0);
        let number = number.with_context(|| format!("{word} {value}: write a whole number above 0"))?;
        match word.as_str() {
            "--away" => campaign.away = Duration::from_secs(number.into()),
            "--rate" => campaign.rate = number,
            _ => anyhow::bail!("unknown flag {word}: there are --away SECONDS and --rate CALLS"),
        }
    }
    Ok(campaign)
}

fn tell(campaign: Campaign, report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let share = |percent: usize| {
        let place = (report.latencies.len() * percent / 100).min(report.latencies.len().saturating_sub(1));
        report.latencies.get(place).copied().unwrap_or_default()
    };
    let Report { calls, calls_away, failed, doubled, takeover, led, settled, .. } = report;
    writeln!(out, "{calls} ADDs and DELs on three agents at {} a second", campaign.rate)?;
    writeln!(
        out,
        "{calls_away} of them while the API server was away or starting, which was {:?} and more",
        campaign.away
    )?;
    writeln!(out, "a call took {:.1?}, at the 99th percentile {:.1?}", share(50), share(99))?;
    writeln!(out, "a leader stood still: a node that joined then was served {takeover:.1?} after that")?;
    writeln!(
        out,
        "somebody led {led:.1?} after the API server served our kinds again, all statuses were right {settled:.1?} after that"
    )?;
    writeln!(out, "{} calls failed, {} addresses were held twice", failed.len(), doubled.len())?;
    for line in failed.iter().chain(doubled).take(20) {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}
