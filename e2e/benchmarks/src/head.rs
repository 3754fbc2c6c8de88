//! What stands above the table: the commit, the machine, how busy it was, the servers and the flags of the daemons.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};

use super::flags::Flags;
use super::source::Source;
use ipam_e2e::assets::{Tool, printed_version};

/// File systems without a disk, on which a sync costs nothing.
const WITHOUT_DISK: [&str; 2] = ["tmpfs", "ramfs"];

/// What a run says of itself before the first figure.
pub(super) struct Head {
    source: Source,
    date: String,
    machine: String,
    disk: String,
    load_at_start: String,
    /// Sizes of the clusters, if they are not those that the aims speak of.
    size: Option<String>,
}

impl Head {
    /// Looks at the tree and the machine before anything is measured.
    ///
    /// # Errors
    /// When the disk cannot be told.
    pub(super) fn begin(source: Source, nodes: u32) -> Result<Self> {
        let cores = available_parallelism().map_or(0, usize::from);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let size = (nodes != super::NODES).then(|| format!("clusters of {nodes} and {} nodes", nodes * super::HUGE));
        Ok(Self {
            source,
            date: today(),
            machine: format!("{cores} cores, {}, Linux {}", memory(&proc("meminfo")), kernel.trim()),
            disk: disk(&std::env::temp_dir())?,
            load_at_start: load_average(&proc("loadavg")),
            size,
        })
    }

    /// The lines above the table. Call this when everything is measured.
    ///
    /// # Errors
    /// When a server does not tell its version.
    pub(super) fn lines(&self, flags: Option<&Flags>) -> Result<Vec<String>> {
        let mut lines = vec![
            format!("* Commit: {}.", self.source.show()),
            format!(
                "* Date: {}. Load average at the start {}, at the end {}.",
                self.date,
                self.load_at_start,
                load_average(&proc("loadavg"))
            ),
            format!("* Machine: {}. State on {}.", self.machine, self.disk),
        ];
        if cfg!(debug_assertions) {
            lines.push("* **DEBUG BUILD** of this program, the operator and the agents.".to_owned());
        }
        lines.extend(self.size.as_ref().map(|size| format!("* **Other sizes than the aims are for**: {size}.")));
        if let Some(flags) = flags {
            let (etcd, apiserver) = (printed_version(Tool::Etcd)?, printed_version(Tool::KubeApiserver)?);
            lines.push(format!("* Servers: {etcd} with fsync, kube-apiserver {apiserver} with its default limits."));
            lines.push(format!("* Operator: `{}`", flags.operator));
            lines.push(format!("* Agents: `{}`", flags.agent));
        }
        Ok(lines)
    }
}

fn today() -> String {
    let output = Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn proc(name: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(name)).unwrap_or_default()
}

fn memory(meminfo: &str) -> String {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    total.map_or_else(|| "memory unknown".to_owned(), |kib| format!("{} GiB", (kib + (1 << 19)) >> 20))
}

/// Over 1, 5 and 15 minutes.
fn load_average(loadavg: &str) -> String {
    loadavg.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The file system that holds `folder`.
///
/// # Errors
/// When there is no disk below it: a sync would cost nothing.
fn disk(folder: &Path) -> Result<String> {
    let kind = file_system(&proc("mounts"), folder).context("no file system for the run's folder")?;
    ensure!(
        !WITHOUT_DISK.contains(&kind.as_str()),
        "{} is on {kind}; set TMPDIR to a folder on a disk",
        folder.display()
    );
    Ok(kind)
}

/// The type of the mount that `folder` lies in: of those with the longest path, the last.
fn file_system(mounts: &str, folder: &Path) -> Option<String> {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let around = mounted.filter(|(path, _)| folder.starts_with(path));
    around.max_by_key(|(path, _)| path.len()).map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
/dev/vda / ext4 rw 0 0
/dev/vdb /tmp/disk xfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
proc /proc proc rw 0 0
";

    #[test]
    fn a_folder_is_on_its_innermost_mount() {
        let kind = |folder: &str| file_system(MOUNTS, Path::new(folder)).unwrap();
        assert_eq!(
            (kind("/var/tmp"), kind("/tmp/a"), kind("/tmp/disk/a")),
            ("ext4".into(), "tmpfs".into(), "xfs".into())
        );
        assert_eq!(kind("/tmpfs"), "ext4");
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:       24680000 kB\n"), "24 GiB");
        assert_eq!(load_average("0.10 0.20 0.30 1/99 1234\n"), "0.10 0.20 0.30");
    }

    #[test]
    fn a_dirty_tree_and_other_sizes_stand_in_the_head() {
        let source = Source::now().unwrap();
        let head = Head { size: Some("7 nodes".into()), ..Head::begin(source, crate::NODES).unwrap() };
        let lines = head.lines(None).unwrap().join("\n");
        assert!(lines.contains("7 nodes") && lines.contains("Load average at the start"), "{lines}");
    }
}
