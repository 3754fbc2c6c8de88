//! The way into a set of namespaces: their pid 1, and commands that run beside it.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::child;
use crate::eventually::eventually_blocking;
use crate::process::{children_of, status_field};

/// Names a set of namespaces by their pid 1. Cheap to clone; it does not keep them alive.
#[derive(Clone, Debug)]
pub struct Entrance {
    pid: Pid,
    rootless: bool,
}

impl Entrance {
    /// A command that runs `program` inside, as root there, with the caller's environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.pid.as_raw_nonzero()));
        if self.rootless {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--mount", "--net", "--pid", "--"]).arg(program);
        command
    }

    /// Runs a command line inside and answers its stdout.
    ///
    /// # Errors
    /// When it fails; the message is what it said on stderr.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("an empty command line")?;
        let output = child::output(self.command(program).args(arguments)).context("nsenter")?;
        if !output.status.success() {
            bail!("{}: {} ({})", words.join(" "), String::from_utf8_lossy(&output.stderr).trim(), output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a shell script inside; it stops at the first command that fails.
    ///
    /// # Errors
    /// When a command fails; the message is what it said on stderr.
    pub fn script(&self, script: &str) -> Result<String> {
        self.run(&["sh", "-euc", script])
    }

    /// The line that a person types to get a shell inside.
    pub fn shell_line(&self) -> String {
        let user = if self.rootless { "--user --preserve-credentials " } else { "" };
        format!("nsenter --target={} {user}--mount --net --pid", self.pid.as_raw_nonzero())
    }

    /// Process id of pid 1 as the harness sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Process id of pid 1 as seen one pid namespace above its own.
    pub(crate) fn pid_above(&self) -> Result<String> {
        let ids = status_field(self.pid.as_raw_nonzero().get(), "NSpid").context("pid 1 of the namespaces has gone")?;
        ids.split_whitespace()
            .rev()
            .nth(1)
            .map(str::to_owned)
            .with_context(|| format!("NSpid {ids}: not in a namespace below"))
    }

    pub(crate) fn is_rootless(&self) -> bool {
        self.rootless
    }
}

/// The processes that hold namespaces open. Dropping it ends everything inside.
pub(crate) struct Holder {
    outermost: Child,
    entrance: Entrance,
}

impl Holder {
    /// Starts `command`, which ends in `warden init`, `depth` processes below the one that we start.
    pub(crate) fn start(mut command: Command, depth: usize, rootless: bool) -> Result<Self> {
        let mut outermost = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let line = outermost.stdout.take().map(|stdout| child::first_line(stdout, child::AMPLE));
        if !line.is_some_and(|line| line.is_ok_and(|line| line.trim() == "ready")) {
            drop(outermost.stdin.take());
            let output = child::finish(outermost, child::AMPLE)?;
            bail!("cannot make namespaces: {} ({})", String::from_utf8_lossy(&output.stderr).trim(), output.status);
        }
        let pid = descend(Pid::from_child(&outermost), depth)?;
        Ok(Self { outermost, entrance: Entrance { pid, rootless } })
    }

    pub(crate) fn entrance(&self) -> &Entrance {
        &self.entrance
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = kill_process(self.entrance.pid, Signal::KILL);
        drop(self.outermost.stdin.take());
        let _ = child::ended(&mut self.outermost, child::AMPLE);
    }
}

/// The descendant `depth` generations below, each the only child of its parent.
fn descend(from: Pid, depth: usize) -> Result<Pid> {
    let mut pid = from;
    for _ in 0..depth {
        let children = children_of(pid);
        ensure!(children.len() == 1, "process {} should have one child, has {}", pid.as_raw_nonzero(), children.len());
        pid = children.into_iter().next().context("no child")?;
    }
    Ok(pid)
}

/// Fails with one line when a program that we need is not installed.
pub(crate) fn need(programs: &[(&str, &str)]) -> Result<()> {
    for (program, package) in programs {
        // Administrators' folders are not always in a user's PATH.
        let there = crate::assets::on_path(program).is_some();
        ensure!(there, "`{program}` is not in PATH: install {package} (and see that PATH has /usr/sbin)");
    }
    Ok(())
}

/// Waits for a file of a node to appear, seen from inside.
pub(crate) fn await_file(entrance: &Entrance, path: &str, within: Duration) -> Result<()> {
    eventually_blocking(path, within, || match entrance.run(&["test", "-e", path]) {
        Ok(_) => Ok(()),
        Err(_) => Err(anyhow!("it is not there")),
    })
}
