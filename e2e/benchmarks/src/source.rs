//! Which commit is measured, and whether the tree is that commit.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use ipam_e2e::binaries::workspace;

/// The commit that is checked out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Source {
    commit: String,
    /// Lines of `git status --porcelain`.
    changes: Vec<String>,
}

impl Source {
    /// What is checked out now.
    ///
    /// # Errors
    /// When git cannot tell.
    pub(super) fn now() -> Result<Self> {
        let commit = git(&["rev-parse", "HEAD"])?.trim().to_owned();
        Ok(Self { commit, changes: git(&["status", "--porcelain"])?.lines().map(str::to_owned).collect() })
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Refuses a tree that is not its commit, unless `allow_dirty`.
    ///
    /// # Errors
    /// As said; the message names a changed file.
    pub(super) fn check(&self, allow_dirty: bool) -> Result<()> {
        if let Some(change) = self.changes.first().filter(|_| !allow_dirty) {
            let count = self.changes.len();
            bail!(
                "the tree has {count} changes ({}); commit them, or use --allow-dirty for figures to throw away",
                change.trim()
            );
        }
        Ok(())
    }

    /// Refuses figures of a tree that changed while they were measured.
    ///
    /// # Errors
    /// As said.
    pub(super) fn ensure_same(&self, later: &Self) -> Result<()> {
        ensure!(self == later, "the tree changed during the run: {} became {}", self.show(), later.show());
        Ok(())
    }

    /// For the head of the table.
    pub(super) fn show(&self) -> String {
        let commit = self.commit.get(..12).unwrap_or(&self.commit);
        let changed = self.changes.len();
        if self.is_dirty() {
            format!("**DIRTY**: `{commit}` and {changed} changed files")
        } else {
            format!("`{commit}`")
        }
    }
}

fn git(words: &[&str]) -> Result<String> {
    let output = Command::new("git").args(words).current_dir(workspace()).output().context("cannot start git")?;
    ensure!(output.status.success(), "git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(changes: &[&str]) -> Source {
        Source { commit: "0123456789abcdef".into(), changes: changes.iter().map(|line| (*line).to_owned()).collect() }
    }

    #[test]
    fn a_dirty_tree_is_refused_unless_allowed() {
        let dirty = source(&[" M a.rs", "?? b.rs"]);
        assert!(dirty.check(false).unwrap_err().to_string().contains("2 changes (M a.rs)"));
        assert!(dirty.check(true).is_ok() && source(&[]).check(false).is_ok());
        assert_eq!(dirty.show(), "**DIRTY**: `0123456789ab` and 2 changed files");
        assert_eq!(source(&[]).show(), "`0123456789ab`");
    }

    #[test]
    fn a_tree_that_changes_during_a_run_is_refused() {
        assert!(source(&[]).ensure_same(&source(&[])).is_ok());
        assert!(source(&[]).ensure_same(&source(&[" M a.rs"])).is_err());
    }

    #[test]
    fn this_tree_has_a_commit() {
        assert_eq!(Source::now().unwrap().commit.len(), 40);
    }
}
