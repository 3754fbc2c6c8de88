//! `cargo demo` succeeds, prints next steps that work, and leaves no processes or folders behind.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ipam_e2e::binaries::{OF_A_TEST, workspace};
use ipam_e2e::{Watched, child, eventually_blocking};
use rustix::process::{Signal, kill_process};

/// The demo with the default action for Ctrl-C: a test run in the background can inherit that SIGINT is ignored. `env`
/// replaces itself with the demo, so that its pid is the demo's.
fn demo(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_demo")]).args(arguments);
    command.env("TMPDIR", temporary).env("NO_COLOR", "1").env(OF_A_TEST, "1");
    command
}

/// Ample for a machine on which the demo first builds its tools.
const PATIENCE: Duration = Duration::from_mins(30);

#[test]
fn demo_succeeds_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("stderr");
    let mut command = demo(&[], folder.path());
    command.stderr(std::fs::File::create(&errors).unwrap());
    let (status, stdout) = Watched::start(command, PATIENCE).unwrap().end().unwrap();
    assert!(status.success(), "{stdout}\n{}", std::fs::read_to_string(errors).unwrap());
    assert!(stdout.contains("This demo has shown") && stdout.contains("10 steps in"), "{stdout}");
    assert_next_steps(&stdout);
    assert_nothing_stays(folder.path());
}

/// Three next steps end the output. The files that they name exist, and the command of the second step succeeds.
fn assert_next_steps(stdout: &str) {
    let (_, steps) = stdout.split_once("Next steps").unwrap();
    for step in ["1. ", "2. ", "3. "] {
        let count = steps.lines().filter(|line| line.trim_start().starts_with(step)).count();
        assert_eq!(count, 1, "{step} in {steps}");
    }
    for file in ["e2e/demo/rdma.yaml", "docs/README.md", "charts/nv-ipam/README.md"] {
        assert!(steps.contains(file) && workspace().join(file).is_file(), "{file} in {steps}");
    }
    let validate = steps.lines().find(|line| line.contains(" validate ")).unwrap();
    // The shell replaces itself by the program, so that the program is what the deadline ends.
    let validate = format!("exec {}", validate.trim().replace("my-pool.yaml", "e2e/demo/rdma.yaml"));
    let output = child::output(Command::new("sh").args(["-c", &validate]).current_dir(workspace())).unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && answer.contains("1 valid") && !answer.contains("warning"), "{output:?}");
}

#[test]
fn kept_cluster_ends_with_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Watched::start(demo(&["--keep"], folder.path()), PATIENCE).unwrap();
    let kubeconfig = demo.line("export KUBECONFIG=").unwrap();
    assert!(Path::new(kubeconfig.trim()).is_file(), "{kubeconfig}");
    kill_process(demo.pid(), Signal::INT).unwrap();
    assert_eq!(demo.end().unwrap().0.signal(), Some(2), "the demo ended before");
    assert_nothing_stays(folder.path());
}

#[test]
fn killed_demo_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Watched::start(demo(&[], folder.path()), PATIENCE).unwrap();
    demo.line("4. ").unwrap();
    kill_process(demo.pid(), Signal::KILL).unwrap();
    assert_eq!(demo.end().unwrap().0.signal(), Some(9), "the demo ended before");
    assert_nothing_stays(folder.path());
}

/// Waits until no process and no folder of a demo is left. All its processes have `folder` in their arguments or
/// environment, and all its state is in `folder`. Mounts and namespaces end with the processes.
fn assert_nothing_stays(folder: &Path) {
    eventually_blocking("all processes and folders of the demo are gone", Duration::from_secs(20), || {
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
