//! Builds the shipped programs, and container images of them.
//!
//! The programs are static files for musl, so an image has no base. No time and no path of the machine gets into them.

pub mod archive;
pub mod cargo;
pub mod image;
pub mod packages;
pub mod platform;
pub mod programs;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where cargo builds to.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |folder| workspace().join(folder))
}

/// The text that a command writes to stdout.
///
/// # Errors
/// If the command does not start or fails, with what it writes to stderr.
pub(crate) fn text_of(command: &mut std::process::Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, stderr.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} does not write UTF-8"))
}
