//! `cargo demo` tells its story to the end, and leaves nothing behind when it is interrupted.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ipam_e2e::binaries::OF_A_TEST;
use ipam_e2e::{Watched, eventually_blocking};
use rustix::process::{Signal, kill_process};

/// With the default answer to Ctrl-C: who runs tests in the background may have handed down that it is ignored. `env` becomes
/// the demo, so that its pid is the demo's.
fn demo(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_demo")]).args(arguments);
    command.env("TMPDIR", temporary).env("NO_COLOR", "1").env(OF_A_TEST, "1");
    command
}

/// Ample for a machine on which the demo first builds its tools.
const PATIENCE: Duration = Duration::from_mins(30);

#[test]
fn the_story_is_told_to_its_end_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let complaints = folder.path().join("stderr");
    let mut command = demo(&[], folder.path());
    command.stderr(std::fs::File::create(&complaints).unwrap());
    let (status, told) = Watched::start(command, PATIENCE).unwrap().end().unwrap();
    assert!(status.success(), "{told}\n{}", std::fs::read_to_string(complaints).unwrap());
    assert!(told.contains("What this has shown") && told.contains("10 steps in"), "{told}");
    assert_nothing_stays(folder.path());
}

#[test]
fn a_kept_cluster_goes_with_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Watched::start(demo(&["--keep"], folder.path()), PATIENCE).unwrap();
    let kubeconfig = demo.line("export KUBECONFIG=").unwrap();
    assert!(Path::new(kubeconfig.trim()).is_file(), "{kubeconfig}");
    kill_process(demo.pid(), Signal::INT).unwrap();
    assert_eq!(demo.end().unwrap().0.signal(), Some(2), "it had ended before");
    assert_nothing_stays(folder.path());
}

#[test]
fn a_demo_killed_halfway_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Watched::start(demo(&[], folder.path()), PATIENCE).unwrap();
    demo.line("4. ").unwrap();
    kill_process(demo.pid(), Signal::KILL).unwrap();
    assert_eq!(demo.end().unwrap().0.signal(), Some(9), "it had ended before");
    assert_nothing_stays(folder.path());
}

/// Every process of a demo has the demo's folder among its arguments or its environment, every state folder lies in it, and
/// mounts and namespaces live and die with processes.
fn assert_nothing_stays(folder: &Path) {
    eventually_blocking("everything goes", Duration::from_secs(20), || {
        let folders: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("nv-ipam-e2e."))
            .collect();
        let processes = processes_of(folder);
        if folders.is_empty() && processes.is_empty() { Ok(()) } else { Err(format!("{folders:?} {processes:?}")) }
    })
    .unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
}

fn processes_of(folder: &Path) -> Vec<String> {
    let mark = folder.to_str().unwrap();
    let named = |path: PathBuf| {
        let read = |name: &str| {
            std::fs::read(path.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let line = read("cmdline");
        (line.contains(mark) || read("environ").contains(mark)).then(|| line.replace('\0', " "))
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| named(entry.path())).collect()
}
