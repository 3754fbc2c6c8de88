//! Findings and the table of them, in Markdown: what was measured, what was aimed at, and whether it was reached.

use std::io::Write;
use std::process::Command;

use anyhow::Result;

/// One line of the table.
pub(super) struct Finding {
    pub(super) what: String,
    /// The figures of the reference implementation on two cores; not measured here.
    pub(super) reference: &'static str,
    pub(super) aim: &'static str,
    pub(super) measured: String,
    pub(super) met: bool,
}

impl Finding {
    /// In one line, for progress.
    pub(super) fn line(&self) -> String {
        format!("{}: {} (aim {}: {})", self.what, self.measured, self.aim, self.verdict())
    }

    fn verdict(&self) -> &'static str {
        if self.met { "met" } else { "**missed**" }
    }
}

/// The table of one run.
pub(super) struct Table {
    head: String,
    findings: Vec<Finding>,
}

impl Table {
    /// Notes the machine, the day and how busy it is before anything is measured.
    pub(super) fn begin(nodes: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let mut head =
            format!("{}, {cores} cores, {}; load average at the start {}", today(), memory(), load_average());
        if nodes != super::NODES {
            head = format!("{head}; the large cluster had {nodes} nodes, not the 5,000 that the table speaks of");
        }
        Self { head, findings: Vec::new() }
    }

    pub(super) fn extend(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
    }

    pub(super) fn print(&self, to: &mut impl Write) -> Result<()> {
        writeln!(to, "{}; at the end {}\n", self.head, load_average())?;
        writeln!(to, "| what | reference | aim | measured | verdict |\n| --- | --- | --- | --- | --- |")?;
        for finding in &self.findings {
            let Finding { what, reference, aim, measured, .. } = finding;
            writeln!(to, "| {what} | {reference} | {aim} | {measured} | {} |", finding.verdict())?;
        }
        Ok(())
    }
}

fn today() -> String {
    let output = Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]).output();
    output
        .map_or_else(|_| "date unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn memory() -> String {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    total.map_or_else(|| "memory unknown".to_owned(), |kib| format!("{} GiB", (kib + (1 << 19)) >> 20))
}

/// Over 1, 5 and 15 minutes.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_aim_stands_out_in_the_table() {
        let finding = |met| Finding { what: "a".into(), reference: "r", aim: "< 1", measured: "2".into(), met };
        let mut table = Table::begin(3);
        table.extend(vec![finding(true), finding(false)]);
        let mut text = Vec::new();
        table.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("| a | r | < 1 | 2 | met |\n| a | r | < 1 | 2 | **missed** |"), "{text}");
    }
}
