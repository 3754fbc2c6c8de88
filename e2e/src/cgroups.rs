//! Control groups of a run, in version 2 or in all hierarchies of version 1.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

const ROOT: &str = "/sys/fs/cgroup";

/// The root folder of version 2, or those of all hierarchies of version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let entries = fs::read_dir(root).context("there are no cgroups here")?;
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect();
    found.sort();
    Ok(found)
}

/// Makes cgroups in all hierarchies, each below the one before.
///
/// # Errors
/// If this is not allowed here.
pub(crate) fn create(names: &[&str]) -> Result<()> {
    for hierarchy in hierarchies()? {
        make(&hierarchy, names).with_context(|| format!("cannot make a cgroup below {}", hierarchy.display()))?;
    }
    Ok(())
}

/// Makes cgroups in one hierarchy. Those of `cpuset` begin without processors, and those of version 2 without controllers.
fn make(hierarchy: &Path, names: &[&str]) -> Result<()> {
    let mut at = hierarchy.to_owned();
    for name in names {
        let parent = at.clone();
        at.push(name);
        // Empty for version 1, and for a hierarchy of version 2 beside it.
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
    ensure!(name.starts_with("nv-ipam-e2e.") && !name.contains('/'), "{name:?} is no cgroup of a run");
    let left: Vec<PathBuf> = hierarchies()?.into_iter().map(|hierarchy| hierarchy.join(name)).collect();
    for folder in &left {
        remove_below(folder);
    }
    match left.into_iter().find(|folder| folder.exists()) {
        None => Ok(()),
        Some(folder) => Err(anyhow!("{} is in use", folder.display())),
    }
}

/// Removes the cgroups below this one, which is a path such as `/nv-ipam-e2e.abc/node-1`.
///
/// # Errors
/// While one of them has a process.
pub(crate) fn clear(root: &str) -> Result<()> {
    ensure!(root.starts_with("/nv-ipam-e2e."), "{root:?} is no cgroup of a run");
    for hierarchy in hierarchies()? {
        for entry in fs::read_dir(hierarchy.join(root.trim_start_matches('/'))).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_below(&entry.path());
                ensure!(!entry.path().exists(), "{} is in use", entry.path().display());
            }
        }
    }
    Ok(())
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
