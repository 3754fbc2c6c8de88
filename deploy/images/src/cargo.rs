//! Calls of cargo and of what belongs to it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// A command that runs in the workspace, where rust-toolchain.toml applies.
pub fn rustc_side(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace()).stdin(Stdio::null());
    command
}

/// The cargo that runs us, or the one in PATH, as if no cargo had run us.
pub fn command() -> Command {
    let mut command = rustc_side(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    for (name, _) in std::env::vars_os() {
        // What cargo tells the program it runs (us) is not for another cargo: some build scripts would take it for a change.
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
            .iter()
            .any(|own| name.starts_with(own))
        {
            command.env_remove(name);
        }
    }
    command
}

/// The folder in which cargo keeps the sources of packages.
pub(crate) fn home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))
}

/// Runs `cargo build` with these settings. cargo writes its progress to stderr.
///
/// # Errors
/// If the build fails, or makes no program of this name.
pub(crate) fn build(build: &mut Command, program: &str) -> Result<PathBuf> {
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = build.output().with_context(|| format!("cannot start {build:?}"))?;
    if !output.status.success() {
        bail!("cargo cannot build {program}: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    executable(&messages, program)
}

/// The path of a program in the messages of `cargo build`.
///
/// # Errors
/// If cargo has built no such program.
pub fn executable(messages: &[Value], name: &str) -> Result<PathBuf> {
    let is_it = |message: &&Value| {
        message["reason"] == "compiler-artifact"
            && message["target"]["name"] == name
            && message["profile"]["test"] == false
    };
    let paths = messages.iter().filter(is_it).find_map(|message| message["executable"].as_str());
    paths.map(PathBuf::from).with_context(|| format!("cargo built no program {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"nv-ipam"},"profile":{"test":false},"executable":"/t/nv-ipam"}"#;
        let test = line.replace("false", "true").replace("/t/", "/t/deps/");
        let messages = ["{\"reason\":\"build-finished\"}", &test, line].map(|line| serde_json::from_str(line).unwrap());
        assert_eq!(executable(&messages, "nv-ipam").unwrap(), PathBuf::from("/t/nv-ipam"));
        assert!(executable(&messages, "other").is_err());
    }
}
