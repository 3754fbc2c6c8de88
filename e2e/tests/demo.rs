//! `cargo demo` tells its story to the end, and leaves nothing behind when it is interrupted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail the test")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ipam_e2e::binaries::OF_A_TEST;
use ipam_e2e::eventually_blocking;
use rustix::process::{Pid, Signal, kill_process};

/// With the default answer to Ctrl-C: who runs tests in the background may have handed down that it is ignored. `env` becomes
/// the demo, so that its pid is the demo's.
fn demo(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_demo")]).args(arguments);
    command.env("TMPDIR", temporary).env("NO_COLOR", "1").env(OF_A_TEST, "1");
    command
}

#[test]
fn the_story_is_told_to_its_end_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(&[], folder.path()).output().unwrap();
    let (told, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{complaints}");
    assert!(told.contains("What this has shown") && told.contains("10 steps in"), "{told}");
    assert_nothing_stays(folder.path());
}

#[test]
fn a_kept_cluster_goes_with_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(&["--keep"], folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let (kubeconfig, _listener) = await_line(&mut child, "export KUBECONFIG=");
    assert!(Path::new(kubeconfig.trim()).is_file(), "{kubeconfig}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2), "it had ended before");
    assert_nothing_stays(folder.path());
}

#[test]
fn a_demo_killed_halfway_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(&[], folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let (_, _listener) = await_line(&mut child, "4. ");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "it had ended before");
    assert_nothing_stays(folder.path());
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

/// Reads the demo's story up to a line that begins so; answers the rest of it. The reader has to be kept: a demo whose listener
/// is gone ends by itself, and would prove nothing about being killed.
fn await_line(child: &mut Child, beginning: &str) -> (String, Lines) {
    let mut told = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next() {
        let line = line.unwrap();
        if let Some(rest) = line.trim_start().strip_prefix(beginning) {
            return (rest.to_owned(), lines);
        }
        told.push_str(&line);
        told.push('\n');
    }
    panic!("no line {beginning:?} in:\n{told}");
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
