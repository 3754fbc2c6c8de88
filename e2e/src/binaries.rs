//! Our own three binaries, built by cargo when somebody first asks, so that tests and the demo need nothing beforehand.
//! cargo decides what is stale; the lock only keeps parallel tests from queueing up inside cargo without a word.
//!
//! `NV_IPAM_E2E_PROFILE=release` builds operator and agent as they are shipped, each by itself: the agent then has its own `agent`
//! profile, as the plugin always has its own `shim` profile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::lock::Lock;
use crate::progress::{Step, say};
use crate::{assets, child};

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
    let built = if profile == "release" {
        let operator = ["--package=ipam-operator", "--bins", "--profile=release"];
        let agent = ["--package=ipam-node-agent", "--bins", "--profile=agent"];
        let mut built = cargo("cargo build of the operator as it is shipped", &operator, None)?;
        built.extend(cargo("cargo build of the node agent as it is shipped", &agent, None)?);
        built
    } else {
        let daemons = [selection(), &["--profile", &profile]].concat();
        cargo("cargo build of operator and node agent", &daemons, None)?
    };
    let (target, flags) = static_target()?;
    let plugin = ["--package=ipam-cni", "--bins", "--profile=shim", "--target", &target];
    let built_plugin = cargo("cargo build of the CNI plugin", &plugin, flags)?;
    Ok(Binaries {
        controller: executable(&built, "ipam-controller")?,
        agent: executable(&built, "ipam-node")?,
        plugin: executable(&built_plugin, "nv-ipam")?,
    })
}

/// Where cargo builds to.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |folder| workspace().join(folder))
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

/// Where the workspace lies.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The plugin's target and compiler flags: musl where its standard library is installed or rustup can add it.
fn static_target() -> Result<(String, Option<&'static str>)> {
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if has_standard_library(&musl)? {
        return Ok((musl, None));
    }
    if assets::on_path("rustup").is_some() {
        let title = format!("rustup target add {musl}");
        let step = Step::start(&title);
        let output = child::output(rustc_side("rustup").args(["target", "add", &musl])).context(title)?;
        step.done();
        if output.status.success() {
            return Ok((musl, None));
        }
        say(String::from_utf8_lossy(&output.stderr).trim());
    }
    without_musl(&musl, assets::are_pinned())
}

/// The same where the target `musl` is not installed: glibc, linked statically.
///
/// # Errors
/// When the tools are pinned. CI must test the plugin that is shipped.
fn without_musl(musl: &str, are_pinned: bool) -> Result<(String, Option<&'static str>)> {
    ensure!(
        !are_pinned,
        "cannot build the CNI plugin as it is shipped, because the target {musl} is not installed: run `rustup target \
         add {musl}`"
    );
    say(&format!("no standard library for {musl}: linking the plugin statically against glibc instead"));
    Ok((host()?, Some("-C target-feature=+crt-static -C relocation-model=static")))
}

fn has_standard_library(target: &str) -> Result<bool> {
    let output = rustc_side("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("cannot start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let mut libraries = fs::read_dir(folder).into_iter().flatten().flatten();
    Ok(libraries.any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
}

fn host() -> Result<String> {
    let output = rustc_side("rustc").arg("-vV").output().context("cannot start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).context("rustc -vV names no host")
}

/// A command run where rust-toolchain.toml applies.
fn rustc_side(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace()).stdin(Stdio::null());
    command
}

/// The cargo that runs us, or the one on the path, as if nobody had run us by it.
pub(crate) fn cargo_command() -> Command {
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

/// Runs `cargo build` and answers its messages, one JSON object per line.
fn cargo(title: &str, arguments: &[&str], flags: Option<&str>) -> Result<Vec<Value>> {
    let mut command = cargo_command();
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

/// The path of a program among cargo's messages.
fn executable(messages: &[Value], name: &str) -> Result<PathBuf> {
    messages
        .iter()
        .filter(|message| {
            message["reason"] == "compiler-artifact"
                && message["target"]["name"] == name
                && message["profile"]["test"] == false
        })
        .find_map(|message| message["executable"].as_str())
        .map(PathBuf::from)
        .with_context(|| format!("cargo built no program {name}"))
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

    #[test]
    fn pinned_tools_require_the_musl_target() {
        let error = without_musl("m-linux-musl", true).unwrap_err().to_string();
        assert!(error.ends_with("run `rustup target add m-linux-musl`") && error.lines().count() == 1, "{error}");
        assert!(without_musl("m-linux-musl", false).unwrap().1.is_some(), "else glibc, with flags");
    }
}
