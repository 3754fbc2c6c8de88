//! A program of our own that is awaited for a bounded time, and killed by its handle when that is over or the test ends.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use crate::eventually::eventually_blocking;

/// Longer than any single call of a program takes, also on a machine that is busy with builds.
pub(crate) const AMPLE: Duration = Duration::from_mins(10);

/// Runs a program to its end, without input.
///
/// # Errors
/// When it cannot be started; when it still runs after [`AMPLE`], and is killed then.
pub fn output(command: &mut Command) -> io::Result<Output> {
    finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?, AMPLE)
}

/// All that a program of our own says from now on, and how it ends.
///
/// # Errors
/// When it still runs, or still says something, after `within`; it is killed then.
pub(crate) fn finish(child: Child, within: Duration) -> io::Result<Output> {
    let mut child = Killed(child);
    let until = Instant::now() + within;
    let [stdout, stderr] = [child.0.stdout.take().map(all), child.0.stderr.take().map(all)];
    let left = || until.saturating_duration_since(Instant::now());
    let said = |bytes: Option<Receiver<Vec<u8>>>| match bytes {
        Some(bytes) => bytes.recv_timeout(left()).map_err(|_| late(within)),
        None => Ok(Vec::new()),
    };
    // A program mostly closes both by its end.
    let (stdout, stderr) = (said(stdout)?, said(stderr)?);
    let status = ended_by(&mut child.0, until)?.ok_or_else(|| late(within))?;
    Ok(Output { status, stdout, stderr })
}

/// Waits until a child ends.
///
/// # Errors
/// When it still runs after `within`; it is killed then.
pub(crate) fn ended(child: &mut Child, within: Duration) -> io::Result<ExitStatus> {
    if let Some(status) = ended_by(child, Instant::now() + within)? {
        return Ok(status);
    }
    child.kill()?;
    child.wait()?;
    Err(late(within))
}

/// How a child ended; `None` if it still runs at the time `until`.
fn ended_by(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn late(within: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it still runs after {within:?}, and is killed"))
}

/// All bytes up to the end, read by a thread that ends with the program.
fn all(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error counts.
        let _ = from.read_to_end(&mut bytes);
        sender.send(bytes)
    });
    receiver
}

/// The first line that a program says, within a time.
///
/// # Errors
/// When none comes.
pub(crate) fn first_line(from: impl Read + Send + 'static, within: Duration) -> Result<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        sender.send(BufReader::new(from).read_line(&mut line).map(|_| line))
    });
    Ok(receiver.recv_timeout(within).context("it says nothing")??)
}

/// A child that is killed when dropped; one that was waited for is not signalled again.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running program whose standard output is read, so that it never waits for a reader.
pub struct Watched {
    child: Killed,
    lines: Receiver<String>,
    /// What it has printed and was read here.
    printed: String,
    until: Instant,
    within: Duration,
}

impl Watched {
    /// Starts it. All waits together may last for `within`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, within: Duration) -> Result<Self> {
        let program = command.get_program().display().to_string();
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {program}"))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let (sender, lines) = channel();
        // Ends with the program, which is killed when this is dropped.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Ok(Self { child: Killed(child), lines, printed: String::new(), until: Instant::now() + within, within })
    }

    /// Reads on to a line that begins so, blanks apart; the rest of that line.
    ///
    /// # Errors
    /// When the program ends without one, or the time is over; the message carries what it printed.
    pub fn line(&mut self, beginning: &str) -> Result<String> {
        loop {
            let line = match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => bail!("no line {beginning:?} in:\n{}", self.printed),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no line {beginning:?} within {:?} in:\n{}", self.within, self.printed)
                }
            };
            if let Some(rest) = line.trim_start().strip_prefix(beginning) {
                return Ok(rest.to_owned());
            }
            self.printed.push_str(&line);
            self.printed.push('\n');
        }
    }

    /// Its process id, for signals. It is not used again while this lives.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }

    /// Waits for its end; how it ended, and all that it printed and was not read before.
    ///
    /// # Errors
    /// When it still runs once the time is over.
    pub fn end(&mut self) -> Result<(ExitStatus, String)> {
        let left = self.until.saturating_duration_since(Instant::now());
        let status =
            eventually_blocking("the program ends", left, || self.child.0.try_wait()?.context("it still runs"))?;
        // A grandchild may hold the pipe for longer than the program lives; what the program wrote is there.
        let last = Duration::from_secs(1);
        while let Ok(line) = self.lines.recv_timeout(last) {
            self.printed.push_str(&line);
            self.printed.push('\n');
        }
        Ok((status, std::mem::take(&mut self.printed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, within: Duration) -> Watched {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Watched::start(command, within).unwrap()
    }

    #[test]
    fn lines_and_the_end_are_read() {
        let mut child = shell("echo a; echo ' go 1'; echo b; exit 3", Duration::from_secs(20));
        assert_eq!(child.line("go ").unwrap(), "1");
        let (status, printed) = child.end().unwrap();
        assert_eq!((status.code(), printed.as_str()), (Some(3), "a\nb\n"));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_in_time() {
        let mut child = shell("echo a; exec sleep 60", Duration::from_millis(300));
        let error = child.line("go").unwrap_err().to_string();
        assert!(error.contains("\"go\" within") && error.ends_with("a\n"), "{error}");
        assert!(child.end().unwrap_err().to_string().contains("it still runs"));
        let pid = child.pid();
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it goes on");
    }

    #[test]
    fn a_call_that_does_not_end_is_killed() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let ended = finish(start("echo out; echo err >&2; exit 4"), Duration::from_secs(20)).unwrap();
        assert_eq!(
            (ended.status.code(), &ended.stdout[..], &ended.stderr[..]),
            (Some(4), &b"out\n"[..], &b"err\n"[..])
        );
        let closed = start("exec >&- 2>&-; exec sleep 60");
        let pid = Pid::from_child(&closed);
        assert_eq!(finish(closed, Duration::from_millis(300)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it goes on");
        let open = finish(start("exec sleep 60"), Duration::from_millis(300));
        assert_eq!(open.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_child_that_does_not_end_is_killed() {
        let mut quick = Command::new("sh").args(["-c", "exit 5"]).spawn().unwrap();
        assert_eq!(ended(&mut quick, Duration::from_secs(20)).unwrap().code(), Some(5));
        let mut slow = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&slow);
        assert_eq!(ended(&mut slow, Duration::from_millis(300)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it goes on");
    }

    #[test]
    fn an_early_end_is_an_error() {
        let error = shell("echo a", Duration::from_secs(20)).line("go").unwrap_err().to_string();
        assert!(error.contains("no line \"go\" in:\na"), "{error}");
    }
}
