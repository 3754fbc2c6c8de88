//! What has changed since the commit that a page names.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};

/// Files that no mutant is made of.
const PAGE: &str = ".md";

/// Changed files that a message names.
const MOST_NAMED: usize = 5;

/// What makes the results of `commit` stale in `tree`: files other than pages that differ, or that the commit is no part of the
/// history. Empty if only pages have changed.
///
/// # Errors
/// Git cannot be started, or `tree` is no clone.
pub(super) fn changed_since(tree: &Path, commit: &str) -> Result<Vec<String>> {
    let is_shallow = git(tree, &["rev-parse", "--is-shallow-repository"])? == "true";
    let hint = if is_shallow { "; this clone is shallow: git fetch --unshallow" } else { "" };
    let is_there = succeeds(tree, &["cat-file", "-e", &format!("{commit}^{{commit}}")])?;
    if !is_there {
        return Ok(vec![format!("commit {commit} is not in this clone, so nothing is known of later changes{hint}")]);
    }
    if !succeeds(tree, &["merge-base", "--is-ancestor", commit, "HEAD"])? {
        return Ok(vec![format!("commit {commit} is no ancestor of HEAD{hint}")]);
    }
    // With the file system's names, whatever characters they have. Files that git does not track are new.
    let changed = git(tree, &["diff", "--name-only", "--no-renames", "-z", commit, "--"])?;
    let new = git(tree, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let files = changed.split('\0').chain(new.split('\0')).filter(|file| !file.is_empty() && !file.ends_with(PAGE));
    let files: Vec<&str> = files.collect();
    Ok((!files.is_empty()).then(|| format!("{} since commit {commit}", described(&files))).into_iter().collect())
}

/// How many files have changed, and the first.
fn described(files: &[&str]) -> String {
    let (first, rest) = files.split_at(files.len().min(MOST_NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("not only pages have changed ({}{more})", first.join(", "))
}

/// What git prints, without the line break.
///
/// # Errors
/// Git fails, in its words.
pub(super) fn git(tree: &Path, arguments: &[&str]) -> Result<String> {
    let output = run(tree, arguments)?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn succeeds(tree: &Path, arguments: &[&str]) -> Result<bool> {
    Ok(run(tree, arguments)?.status.success())
}

fn run(tree: &Path, arguments: &[&str]) -> Result<Output> {
    Command::new("git").args(arguments).current_dir(tree).output().context("cannot start git")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    struct Clone {
        _folder: tempfile::TempDir,
        tree: PathBuf,
    }

    impl Clone {
        /// A repository with one commit.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tree = folder.path().join("tree");
            fs::create_dir(&tree).unwrap();
            let clone = Self { _folder: folder, tree };
            clone.git(&["init", "--quiet"]);
            clone.commit("code.rs");
            clone
        }

        fn git(&self, arguments: &[&str]) -> String {
            let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            git(&self.tree, &[&author, arguments].concat()).unwrap()
        }

        /// Changes a file and commits it.
        fn commit(&self, file: &str) -> String {
            let path = self.tree.join(file);
            let before = fs::read_to_string(&path).unwrap_or_default();
            fs::write(&path, format!("{before}x\n")).unwrap();
            self.git(&["add", "."]);
            self.git(&["commit", "--quiet", "-m", file]);
            self.git(&["rev-parse", "HEAD"])
        }

        fn changed_since(&self, commit: &str) -> Vec<String> {
            changed_since(&self.tree, commit).unwrap()
        }
    }

    #[test]
    fn only_pages_may_follow_the_commit_of_a_page() {
        let clone = Clone::new();
        let played = clone.commit("code.rs");
        assert_eq!(clone.changed_since(&played), [""; 0]);
        clone.commit("README.md");
        assert_eq!(clone.changed_since(&played), [""; 0]);
        clone.commit("name with ä.rs");
        fs::write(clone.tree.join("new.json"), "").unwrap();
        fs::write(clone.tree.join("new.md"), "").unwrap();
        fs::write(clone.tree.join("code.rs"), "").unwrap();
        let changed = "not only pages have changed (code.rs, name with ä.rs, new.json)";
        assert_eq!(clone.changed_since(&played), [format!("{changed} since commit {played}")]);
    }

    #[test]
    fn a_file_that_becomes_a_page_has_changed() {
        let clone = Clone::new();
        let played = clone.commit("code.rs");
        clone.git(&["mv", "code.rs", "code.md"]);
        clone.git(&["commit", "--quiet", "-m", "moved"]);
        assert_eq!(
            clone.changed_since(&played),
            [format!("not only pages have changed (code.rs) since commit {played}")]
        );
    }

    #[test]
    fn of_many_files_the_first_are_named() {
        assert_eq!(described(&["a"; 5]), "not only pages have changed (a, a, a, a, a)");
        assert_eq!(described(&["a"; 9]), "not only pages have changed (a, a, a, a, a and 4 more)");
    }

    #[test]
    fn a_commit_of_another_branch_is_no_ancestor() {
        let clone = Clone::new();
        let base = clone.git(&["rev-parse", "HEAD"]);
        let played = clone.commit("README.md");
        clone.git(&["checkout", "--quiet", "-b", "other", &base]);
        assert_eq!(clone.changed_since(&played), [format!("commit {played} is no ancestor of HEAD")]);
    }

    #[test]
    fn in_a_shallow_clone_an_unknown_commit_is_reported_as_such() {
        let clone = Clone::new();
        let played = clone.commit("code.rs");
        clone.commit("README.md");
        let source = format!("file://{}", clone.tree.display());
        clone.git(&["clone", "--quiet", "--depth", "1", &source, "shallow"]);
        let wrong = changed_since(&clone.tree.join("shallow"), &played).unwrap();
        assert!(
            wrong.len() == 1 && wrong[0].starts_with(&format!("commit {played} is not in this clone")),
            "{wrong:?}"
        );
        assert!(wrong[0].ends_with("this clone is shallow: git fetch --unshallow"), "{wrong:?}");
        let unknown = clone.changed_since(&"0".repeat(40));
        assert!(unknown.len() == 1 && !unknown[0].contains("shallow"), "{unknown:?}");
    }
}
