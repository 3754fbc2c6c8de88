//! The demo: from `kubectl apply` of a pool to addresses of pods, on a real API server, with the three programs of
//! nv-ipam.
//!
//! Each step checks what it prints. The first failed check ends the demo with an error. All addresses and blocks in the
//! output come from the cluster.

mod ending;
mod network;
mod outage;
mod pods;
mod pools;
mod rejections;
mod scene;
mod story;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::progress::say;
use scene::Scene;

const USAGE: &str = "usage: cargo demo [-- --keep]

  --keep   keep the cluster at the end until Ctrl-C, and print how to use kubectl on it";

/// Runs the demo. The exit code is 0 if all checks succeed.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let answer = options(arguments).and_then(|options| match options {
        Options::Help => Ok(writeln!(std::io::stdout(), "{USAGE}")?),
        Options::Run { keep } => run(keep),
    });
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("demo failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Options {
    Help,
    Run { keep: bool },
}

fn options(arguments: impl Iterator<Item = OsString>) -> Result<Options> {
    let mut keep = false;
    for word in arguments {
        match word.to_str() {
            Some("--keep") => keep = true,
            // Cargo passes on `--` itself, so that `cargo demo --keep` and `cargo demo -- --keep` both work.
            Some("--") => {}
            Some("--help" | "-h") => return Ok(Options::Help),
            _ => bail!("unknown argument {}\n{USAGE}", word.display()),
        }
    }
    Ok(Options::Run { keep })
}

fn run(keep: bool) -> Result<()> {
    let mut scene = Scene::prepare()?;
    scene.install()?;
    scene.create_pools()?;
    scene.start_agents()?;
    scene.start_pods()?;
    scene.ping_all_pods()?;
    scene.reuse_an_address()?;
    scene.stop_the_api_server()?;
    scene.reject_invalid_pools()?;
    scene.finish(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        options(words.iter().map(OsString::from))
    }

    #[test]
    fn unknown_arguments_are_rejected_by_name() {
        assert_eq!(parse(&[]).unwrap(), Options::Run { keep: false });
        assert_eq!(parse(&["--keep"]).unwrap(), Options::Run { keep: true });
        assert_eq!(parse(&["--", "--keep"]).unwrap(), Options::Run { keep: true });
        assert_eq!(parse(&["--keep", "-h"]).unwrap(), Options::Help);
        assert!(parse(&["--kep"]).unwrap_err().to_string().contains("--kep"));
    }
}
