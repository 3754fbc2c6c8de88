//! Programs that the harness runs: started with a log file, watched, signalled, and surely ended.
//!
//! A program has a *launcher* between itself and us: a warden (`guard`) or, for programs in a node, `nsenter`. The launcher is our
//! child, the program the launcher's only child; signals go to the program itself.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually::eventually_blocking;
use crate::{child, warden};

/// How long a started program may take to appear below its launcher.
const APPEARS: Duration = Duration::from_secs(20);
/// How long a launcher may take to end after its program was killed.
const ENDS: Duration = Duration::from_mins(1);
/// Lines of log that an error message carries.
const TAIL: usize = 25;

/// A running program; ended with SIGKILL when dropped.
pub struct Process {
    name: String,
    launcher: Child,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts `program` on the host, under a guard; its stdout and stderr are appended to `log`.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once; the message then carries the end of its log.
    pub fn start<A: AsRef<OsStr>>(name: &str, program: &Path, arguments: &[A], log: &Path) -> Result<Self> {
        let mut command = warden::command()?;
        command.args(["guard", "--"]).arg(program).args(arguments);
        Self::launch(name, command, log)
    }

    /// Starts a launcher, given as a command whose only child will be the program.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once; the message then carries the end of its log.
    pub fn launch(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        // A group of its own: Ctrl-C is for the harness, whose end the launcher then sees.
        let mut launcher = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        match program_below(&mut launcher) {
            Ok(pid) => Ok(Self { name: name.to_owned(), launcher, pid, log: log.to_owned() }),
            Err(error) => {
                let _ = launcher.kill();
                let _ = launcher.wait();
                Err(anyhow!("{name} did not start: {error:#}\n{}", tail(log)))
            }
        }
    }

    /// The name it was started under, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's process id as the harness sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// All that it has written so far.
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Resident memory: what it is now and the most that it ever was, in KiB.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn memory(&self) -> Result<(u64, u64)> {
        memory_of(self.pid().as_raw_nonzero().get()).with_context(|| self.name.clone())
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    /// When it has gone already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot signal {}", self.name))?;
        if signal == Signal::CONT {
            // nsenter stops itself when its child stops, and does not notice when somebody else wakes the child.
            let _ = kill_process(Pid::from_child(&self.launcher), Signal::CONT);
        }
        Ok(())
    }

    /// `None` while it runs, else how it ended (128 + signal number when a signal ended it).
    ///
    /// # Errors
    /// When the launcher cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.launcher.try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// An error with the end of its log when it does not run any more.
    ///
    /// # Errors
    /// As said: when it has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("{} has ended ({status}):\n{}", self.name, tail(&self.log)),
        }
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// When it still runs after `within`.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        eventually_blocking(&what, within, || self.ended()?.context("it still runs"))
    }

    /// SIGTERM, then waits.
    ///
    /// # Errors
    /// When it still runs after `within`.
    pub fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(within)
    }

    /// SIGKILL, and waits until the kernel has taken it away.
    ///
    /// # Errors
    /// When the launcher still runs after a minute, and is killed then.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        let _ = kill_process(self.pid, Signal::KILL);
        // A launcher that stopped together with its program would never report the end.
        let _ = kill_process(Pid::from_child(&self.launcher), Signal::CONT);
        // A warden also ends its program when its standard input closes.
        drop(self.launcher.stdin.take());
        child::ended(&mut self.launcher, ENDS).with_context(|| format!("the launcher of {}", self.name))
    }

    /// Waits until `look` is content, or fails as soon as the program ends.
    ///
    /// # Errors
    /// When the program ends or the deadline passes; the message carries the end of the log.
    pub fn ready<T, E, Look>(&mut self, what: &str, within: Duration, mut look: Look) -> Result<T>
    where
        E: std::fmt::Display,
        Look: FnMut() -> Result<T, E>,
    {
        let what = format!("{}: {what}", self.name);
        let answer = eventually_blocking(&what, within, || match self.ensure_running() {
            Ok(()) => look().map(Ok).map_err(|error| error.to_string()),
            Err(ended) => Ok(Err(ended)),
        });
        answer.with_context(|| format!("the end of its log:\n{}", tail(&self.log)))?
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.launcher.try_wait(), Ok(Some(_))) {
            let _ = self.kill();
        }
    }
}

/// The program is there once the launcher has a child.
fn program_below(launcher: &mut Child) -> Result<Pid> {
    let parent = Pid::from_child(launcher);
    eventually_blocking("the program appears", APPEARS, || {
        if let Some(child) = children_of(parent).into_iter().next() {
            return Ok(Ok(child));
        }
        match launcher.try_wait() {
            Ok(Some(status)) => Ok(Err(anyhow!("it ended at once ({status})"))),
            _ => Err("not yet"),
        }
    })?
}

/// Process ids whose parent is `parent`, in order.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut children: Vec<Pid> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| status_field(*pid, "PPid").is_some_and(|value| value == parent.as_raw_nonzero().to_string()))
        .filter_map(Pid::from_raw)
        .collect();
    children.sort_by_key(|pid| pid.as_raw_nonzero());
    children
}

/// Resident memory of a process, now and at most, in KiB.
pub fn memory_of(pid: i32) -> Result<(u64, u64)> {
    let read = |name: &str| {
        let value = status_field(pid, name).with_context(|| format!("no {name} of process {pid}"))?;
        value.trim_end_matches(" kB").parse::<u64>().with_context(|| format!("{name} is {value:?}"))
    };
    Ok((read("VmRSS")?, read("VmHWM")?))
}

/// A line of /proc/PID/status.
pub(crate) fn status_field(pid: i32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
