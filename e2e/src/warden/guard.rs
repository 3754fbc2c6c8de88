//! Runs one program and makes sure that it does not outlive the harness; removes a run's directory after the harness.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::wait_for_harness;
use crate::eventually::eventually_blocking;

/// Runs `program` until it ends or the harness goes; answers its exit code, or 128 + signal as shells do.
/// Where `setpriv` is at hand, the program also dies with this very process, should somebody SIGKILL it.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<ExitCode> {
    let mut command = match crate::assets::on_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--", program]);
            command
        }
        None => Command::new(program),
    };
    // The main thread spawns and stays: the parent-death signal follows the thread, not the process.
    let mut child =
        command.args(arguments).stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {program}"))?;
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || {
        wait_for_harness();
        let _ = kill_process(pid, Signal::KILL);
    });
    let status = child.wait().with_context(|| format!("cannot wait for {program}"))?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Removes the cgroups of this name from all hierarchies once the harness has gone. Those of dying processes stay for a moment.
pub(super) fn sweep_cgroups(name: &str) -> Result<ExitCode> {
    wait_for_harness();
    eventually_blocking("removing the cgroups", Duration::from_mins(1), || crate::cgroups::remove(name))?;
    Ok(ExitCode::SUCCESS)
}

/// Removes `directory` once the harness has gone. Processes that are still dying may write into it for a moment.
pub(super) fn sweep(directory: &str) -> Result<ExitCode> {
    wait_for_harness();
    let directory = Path::new(directory);
    eventually_blocking("removing the state directory", Duration::from_secs(10), || {
        match std::fs::remove_dir_all(directory) {
            Err(error) if directory.exists() => Err(error),
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
