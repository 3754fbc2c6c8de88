//! The cgroups below which kubelets make those of pods. They are this run's own, and go with it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow};

use crate::progress::say;
use crate::{child, warden};

const ROOT: &str = "/sys/fs/cgroup";

/// The cgroups of a run. A helper process removes them after the run, also if the harness is killed.
pub(super) struct Cgroups {
    name: String,
    janitor: Child,
}

impl Cgroups {
    /// Makes cgroups of this name for these nodes.
    ///
    /// # Errors
    /// If this is not allowed here.
    pub(super) fn create(name: &str, nodes: &[String]) -> Result<Self> {
        let mut janitor: Command = warden::command()?;
        janitor.args(["sweep-cgroups", name]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let janitor = janitor.spawn().context("cannot start the janitor of the cgroups")?;
        let made = Self { name: name.to_owned(), janitor };
        for hierarchy in hierarchies()? {
            for node in nodes {
                make(&hierarchy, &[name, node]).with_context(|| format!("no cgroup below {}", hierarchy.display()))?;
            }
        }
        Ok(made)
    }

    /// The `cgroupRoot` of a node's kubelet.
    pub(super) fn root(&self, node: &str) -> String {
        format!("/{}/{node}", self.name)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        if let Err(error) = child::ended(&mut self.janitor, child::AMPLE) {
            say(&format!("the janitor of the cgroups {}: {error}", self.name));
        }
    }
}

/// The root folder of version 2, or those of all hierarchies of version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let entries = fs::read_dir(root).context("there are no cgroups here")?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.is_symlink() && !path.ends_with("unified"))
        .collect();
    found.sort();
    Ok(found)
}

/// Makes a cgroup below each other. Those of `cpuset` begin without processors, and those of version 2 without controllers.
fn make(hierarchy: &Path, names: &[&str]) -> Result<()> {
    let mut at = hierarchy.to_owned();
    for name in names {
        let parent = at.clone();
        at.push(name);
        let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        for controller in controllers.split_whitespace() {
            // Some controllers cannot be used here; kubelet says which one it needs.
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        fs::create_dir_all(&at)?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if at.join("cgroup.controllers").exists() || !at.join(file).exists() {
                continue;
            }
            fs::write(at.join(file), fs::read(parent.join(file))?)?;
        }
    }
    Ok(())
}

/// Removes the cgroups of this name and all below them.
///
/// # Errors
/// While one of them has a process.
pub(crate) fn remove(name: &str) -> Result<()> {
    let left: Vec<PathBuf> = hierarchies()?.into_iter().map(|hierarchy| hierarchy.join(name)).collect();
    for folder in &left {
        remove_below(folder);
    }
    match left.into_iter().find(|folder| folder.exists()) {
        None => Ok(()),
        Some(folder) => Err(anyhow!("{} is in use", folder.display())),
    }
}

/// A cgroup's files are no obstacle to removing it; a cgroup inside is one.
fn remove_below(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    // What is in use is tried again by the caller.
    let _ = fs::remove_dir(folder);
}
