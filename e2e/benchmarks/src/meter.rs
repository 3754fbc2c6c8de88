//! What a process has used, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use ipam_e2e::eventually::Late;
use ipam_e2e::process::{Process, memory_of};

/// The kernel's unit in /proc/PID/stat.
const TICKS_PER_SECOND: u64 = 100;
/// A process that uses no more than this in a while is at rest.
const AT_REST: Duration = Duration::from_millis(1);
/// Or no more than this part of one processor: an agent at rest used a 550th of one on an idle machine.
const PART_AT_REST: u32 = 200;
/// How long a process may take to come to rest.
const COMES_TO_REST: Duration = Duration::from_mins(2);

/// Looks at one process.
#[derive(Clone, Copy)]
pub(super) struct Meter {
    pid: i32,
}

/// Resident memory in KiB.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) now: u64,
    /// The most since the process began.
    pub(super) most: u64,
}

/// Processor time used so far, user and system.
pub(super) struct Cpu {
    /// Of the whole process, threads that have ended included, to 10 ms.
    total: Duration,
    /// Of each living thread, to the nanosecond.
    threads: BTreeMap<String, Duration>,
}

impl Cpu {
    /// What was used since `before`: exact while no thread ends, else to 10 ms.
    pub(super) fn since(&self, before: &Self) -> Duration {
        if before.threads.keys().any(|thread| !self.threads.contains_key(thread)) {
            return self.total.saturating_sub(before.total);
        }
        let sum = |cpu: &Self| cpu.threads.values().sum::<Duration>();
        sum(self).saturating_sub(sum(before))
    }
}

impl Meter {
    pub(super) fn of(process: &Process) -> Self {
        Self { pid: process.pid().as_raw_nonzero().get() }
    }

    pub(super) fn memory(self) -> Result<Memory> {
        let (now, most) = memory_of(self.pid)?;
        Ok(Memory { now, most })
    }

    pub(super) fn cpu(self) -> Result<Cpu> {
        let gone = || format!("process {} is gone", self.pid);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).with_context(gone)?;
        // The program's name stands in parentheses and may hold anything; utime and stime are the 12th and 13th after it.
        let (_, fields) = stat.rsplit_once(')').context("no name in /proc/PID/stat")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid)).with_context(gone)?.flatten() {
            // A thread may end between the listing and the look at it.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanoseconds = text.split(' ').next().unwrap_or_default().parse().context("no number in schedstat")?;
            threads.insert(task.file_name().to_string_lossy().into_owned(), Duration::from_nanos(nanoseconds));
        }
        Ok(Cpu { total: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND), threads })
    }

    /// Waits until the process has been at rest for `still`.
    pub(super) fn settle(self, still: Duration) -> Result<()> {
        let (began, first) = (Instant::now(), self.cpu()?);
        while began.elapsed() < COMES_TO_REST {
            let before = self.cpu()?;
            std::thread::sleep(still);
            if self.cpu()?.since(&before) <= AT_REST.max(still / PART_AT_REST) {
                return Ok(());
            }
        }
        let reached = format!("it used {:?} of CPU since then", self.cpu()?.since(&first));
        Err(Late { what: format!("process {} comes to rest", self.pid), within: COMES_TO_REST, reached }.into())
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn processor_time_of_threads_counts_unless_one_has_ended() {
        let cpu = |total, threads: &[(&str, u64)]| Cpu {
            total: Duration::from_millis(total),
            threads: threads.iter().map(|(id, ms)| ((*id).to_owned(), Duration::from_millis(*ms))).collect(),
        };
        let before = cpu(10, &[("1", 3), ("2", 4)]);
        assert_eq!(cpu(20, &[("1", 5), ("2", 4), ("3", 1)]).since(&before), Duration::from_millis(3));
        assert_eq!(cpu(20, &[("1", 5)]).since(&before), Duration::from_millis(10));
    }

    #[test]
    fn this_process_has_memory_and_uses_processor_time() {
        let meter = Meter { pid: i32::try_from(std::process::id()).unwrap() };
        let memory = meter.memory().unwrap();
        assert!(memory.now > 0 && memory.most >= memory.now);
        // This thread's own clock: on a busy machine other processes have the processors while ours goes on.
        let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let (before, until) = (meter.cpu().unwrap(), used() + Duration::from_millis(100));
        while used() < until {}
        // The kernel books at its ticks, and when a thread ends meanwhile this is exact to 10 ms only, at either end.
        assert!(meter.cpu().unwrap().since(&before) >= Duration::from_millis(50));
    }
}
