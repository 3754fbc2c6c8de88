//! Pid 1 of a pid namespace: reaps what is orphaned, and ends when the harness does. The kernel then kills everything else inside.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, wait};

use super::{shade, wait_for_harness};

/// Prepares the mount namespace (`arguments`: nothing, or a directory for the originals and the shades), tells `ready` on stdout,
/// then waits for the harness to go.
pub(super) fn run(arguments: &[&str]) -> Result<ExitCode> {
    if let [originals, shades @ ..] = arguments {
        shade::apply(&shade::parse(shades)?, Path::new(originals))?;
    }
    let mut stdout = std::io::stdout();
    writeln!(stdout, "ready").and_then(|()| stdout.flush()).context("the harness has gone")?;
    std::thread::spawn(reap);
    wait_for_harness();
    Ok(ExitCode::SUCCESS)
}

/// Collects orphans for ever. Without any child `wait` fails at once; there is no event for the birth of one, hence the pause.
fn reap() {
    loop {
        if wait(WaitOptions::empty()).is_err() {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
