//! Our own three binaries, built by cargo when somebody first asks, so that tests and the demo need nothing beforehand.
//! cargo decides what is stale; the lock only keeps parallel tests from queueing up inside cargo without a word.
//!
//! `NV_IPAM_E2E_PROFILE=release` builds all three as they are in the images. The plugin is always built like that where Rust's target for
//! musl can be had.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ipam_images::cargo::{self, executable, rustc_side};
use ipam_images::platform::Platform;
use ipam_images::programs::Program;
pub use ipam_images::{target_folder, workspace};
use serde_json::Value;

use crate::assets;
use crate::lock::Lock;
use crate::progress::{Step, say};

/// Paths of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `ipam-controller`, the operator.
    pub controller: PathBuf,
    /// `ipam-node`, the node agent.
    pub agent: PathBuf,
    /// `nv-ipam`, the CNI plugin, statically linked.
    pub plugin: PathBuf,
}

/// The binaries, up to date with the sources; built once per process.
///
/// # Errors
/// With the compiler's words when they do not build; every later call gets the same message.
pub fn build() -> Result<&'static Binaries> {
    static BUILT: OnceLock<Result<Binaries, String>> = OnceLock::new();
    BUILT.get_or_init(|| build_now().map_err(|error| format!("{error:#}"))).as_ref().map_err(|error| anyhow!("{error}"))
}

fn build_now() -> Result<Binaries> {
    // One lock for each folder that is built into: another checkout's build is no reason to wait.
    let lock = target_folder().join("e2e-binaries.lock");
    let _lock = Lock::take(&lock, "building the binaries")?;
    let profile = std::env::var("NV_IPAM_E2E_PROFILE").unwrap_or_else(|_| "dev".to_owned());
    let platform = Platform::of_this_machine();
    if profile == "release" {
        let platform = platform?;
        return Ok(Binaries {
            controller: as_shipped(Program::Operator, platform)?,
            agent: as_shipped(Program::Agent, platform)?,
            plugin: as_shipped(Program::Plugin, platform)?,
        });
    }
    let daemons = [selection(), &["--profile", &profile]].concat();
    let built = cargo_build("cargo build of operator and node agent", &daemons, None)?;
    let plugin = match platform.and_then(|platform| platform.install().map(|()| platform)) {
        Ok(platform) => as_shipped(Program::Plugin, platform)?,
        Err(reason) => plugin_for_glibc(&reason, assets::are_pinned())?,
    };
    Ok(Binaries {
        controller: executable(&built, Program::Operator.name())?,
        agent: executable(&built, Program::Agent.name())?,
        plugin,
    })
}

/// Builds a program as it is in the images.
fn as_shipped(program: Program, platform: Platform) -> Result<PathBuf> {
    let step = Step::start(&format!("cargo build of {} as it is shipped", program.name()));
    let built = program.build(platform)?;
    step.done();
    Ok(built)
}

/// The plugin on a machine without the target for musl: linked statically against glibc.
///
/// # Errors
/// When the tools are pinned. CI must test the plugin that is shipped.
fn plugin_for_glibc(reason: &anyhow::Error, are_pinned: bool) -> Result<PathBuf> {
    ensure!(!are_pinned, "cannot build the CNI plugin as it is shipped: {reason:#}");
    say(&format!("{reason:#}; linking the plugin statically against glibc instead"));
    let host = host()?;
    let plugin = ["--package=ipam-cni", "--bins", "--profile=shim", "--target", &host];
    let built = cargo_build(
        "cargo build of the CNI plugin",
        &plugin,
        Some("-C target-feature=+crt-static -C relocation-model=static"),
    )?;
    executable(&built, Program::Plugin.name())
}

/// What cargo is asked to build, such that nothing is compiled twice: dependencies have the features that all chosen packages
/// and kinds of targets want together, and another choice means another build of them. Tests are mostly run over the whole
/// workspace, programs of this package alone (which depends on the daemons' packages and so has their features).
fn selection() -> &'static [&'static str] {
    if is_test() {
        &["--workspace", "--bins", "--tests"]
    } else {
        &["--package=ipam-e2e", "--package=ipam-operator", "--package=ipam-node-agent", "--bins"]
    }
}

/// A test that runs one of our programs sets this for it: what the program builds is then what the tests have built already.
pub const OF_A_TEST: &str = "NV_IPAM_E2E_OF_A_TEST";

/// Whether this process is a test, or runs on behalf of one: cargo keeps tests apart from programs, in a folder of their own.
fn is_test() -> bool {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().is_some_and(|folder| folder.ends_with("deps")) || std::env::var_os(OF_A_TEST).is_some()
}

fn host() -> Result<String> {
    let output = rustc_side("rustc").arg("-vV").output().context("cannot start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).context("rustc -vV names no host")
}

/// Runs `cargo build` and answers its messages, one JSON object per line.
fn cargo_build(title: &str, arguments: &[&str], flags: Option<&str>) -> Result<Vec<Value>> {
    let mut command = cargo::command();
    command.args(["build", "--quiet", "--message-format=json-render-diagnostics"]).args(arguments);
    if let Some(flags) = flags {
        command.env("RUSTFLAGS", flags);
    }
    let (errors, messages) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    let mut step = Step::start(title);
    let mut child =
        command.stdout(messages.reopen()?).stderr(errors.reopen()?).spawn().context("cannot start cargo")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        step.tick();
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        bail!("{title} failed:\n{}", fs::read_to_string(errors.path())?);
    }
    step.done();
    Ok(fs::read_to_string(messages.path())?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_tools_require_the_musl_target() {
        let error = plugin_for_glibc(&anyhow!("run `rustup target add it`"), true).unwrap_err().to_string();
        assert!(error.ends_with("as it is shipped: run `rustup target add it`"), "{error}");
    }
}
