//! The demo: from `kubectl apply` to an address in a network namespace, on a real API server, with our three programs.
//!
//! Every step checks what it tells; the first thing that is not as told ends the demo with an error. Nothing it shows is written
//! down here beforehand: addresses and blocks come from the cluster.

mod blocks;
mod network;
mod pods;
mod refusals;
mod scene;
mod story;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::progress::say;
use scene::Scene;

const USAGE: &str = "usage: cargo demo [-- --keep]

  --keep   leave the cluster up at the end, with the lines to paste, until Ctrl-C";

/// Tells the whole story. The exit code is 0 when every step went as told.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let answer = options(arguments).and_then(|options| match options {
        Options::Help => Ok(writeln!(std::io::stdout(), "{USAGE}")?),
        Options::Run { keep } => run(keep),
    });
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("demo: {error:#}"));
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
            // `cargo demo` hands on all that follows it, so that it may be written both ways: `cargo demo --keep`, `cargo demo -- --keep`.
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
    scene.give_blocks()?;
    scene.start_agents()?;
    scene.start_pods()?;
    scene.ping_everywhere()?;
    scene.give_back()?;
    scene.lose_the_api_server()?;
    scene.refuse()?;
    scene.finish(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        options(words.iter().map(OsString::from))
    }

    #[test]
    fn keep_is_the_only_option_and_others_are_named() {
        assert_eq!(parse(&[]).unwrap(), Options::Run { keep: false });
        assert_eq!(parse(&["--keep"]).unwrap(), Options::Run { keep: true });
        assert_eq!(parse(&["--", "--keep"]).unwrap(), Options::Run { keep: true });
        assert_eq!(parse(&["--keep", "-h"]).unwrap(), Options::Help);
        assert!(parse(&["--kep"]).unwrap_err().to_string().contains("--kep"));
    }
}
