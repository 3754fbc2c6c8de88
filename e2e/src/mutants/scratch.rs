//! A copy of the tree that mutants are applied to, built and played in. A file of it is written only when it differs, so that
//! cargo compiles nothing that is as it was.
//!
//! Dependencies are taken as the tree itself has compiled them, from its own folder. Nothing of a mutant is ever taken for
//! anything of the tree: its programs go to a folder apart, and the copy's packages are of another version, by which cargo
//! tells what it compiles from them from what it compiles from the tree's.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Found, Mutant};
use crate::binaries::cargo_command;
use crate::lock::Lock;

/// What of a tree is no source.
const NOT_COPIED: [&str; 2] = [".git", "target"];

/// Builds the simulator alone, with dependencies as tests of the whole workspace have them: those are compiled already wherever
/// tests were run. That examples are asked for too, of which there are none, is what makes cargo count what tests depend on.
const AS_FOR_TESTS: [&str; 5] = ["build", "--quiet", "--workspace", "--bin=simulate", "--examples"];

/// The copy.
pub(super) struct Scratch {
    folder: PathBuf,
    from: PathBuf,
    tree: PathBuf,
    /// Where programs go.
    target: PathBuf,
    /// Where all that they are made of is, for the tree as for its copy.
    shared: PathBuf,
    _lock: Lock,
}

impl Scratch {
    /// A copy of the workspace at `from`, in its target folder.
    pub(super) fn new(from: &Path) -> Result<Self> {
        let shared = crate::binaries::target_folder();
        let folder = shared.join("mutants");
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let lock = Lock::take(&folder.join("lock"), "playing mutants")?;
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        Ok(Self { folder, from: from.to_owned(), tree, target, shared, _lock: lock })
    }

    /// The folder of the copy and of what is kept between runs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// How the simulator finds the mutant: by `first`, a seed that found it before, or else by one of `seeds`. `None` if it
    /// does not.
    pub(super) fn play(
        &mut self,
        mutant: &Mutant,
        first: Option<u64>,
        seeds: u64,
        steps: usize,
    ) -> Result<Option<Found>> {
        self.patched(mutant)?;
        let built = self.cargo(&AS_FOR_TESTS);
        built.with_context(|| format!("{} does not build", mutant.name))?;
        let program = self.target.join("debug/simulate");
        if let Some(seed) = first
            && let Some(found) = simulate(&program, seed, seed + 1, steps)?
        {
            return Ok(Some(found));
        }
        simulate(&program, 0, seeds, steps)
    }

    /// Makes the copy the same as the workspace, with the patch applied.
    pub(super) fn patched(&mut self, mutant: &Mutant) -> Result<()> {
        self.unpatched()?;
        git_apply(&mutant.patch, &self.tree, &[])
    }

    /// Makes the copy the same as the workspace.
    pub(super) fn unpatched(&mut self) -> Result<()> {
        mirror(&self.from, &self.tree)
    }

    /// The copy's folder.
    pub(super) fn tree(&self) -> &Path {
        &self.tree
    }

    /// Runs cargo in the copy and returns what it prints on standard output.
    pub(super) fn cargo(&self, arguments: &[&str]) -> Result<String> {
        let output = cargo_command()
            .args(arguments)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_BUILD_BUILD_DIR", &self.shared)
            .output()
            .context("cannot start cargo")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn simulate(program: &Path, first: u64, last: u64, steps: usize) -> Result<Option<Found>> {
    let output = Command::new(program)
        .args(["--brief", "--seeds", &format!("{first}..{last}"), "--steps", &steps.to_string()])
        .output()
        .context("cannot start the simulator")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(None),
        Some(1) => Ok(Some(found(&said).with_context(|| format!("the simulator says {said:?}"))?)),
        // A mutant may also run into an assertion of the code itself, which counts: it does not go unseen.
        _ => bail!("the simulator ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

/// Reads `seed N: law`.
pub(super) fn found(said: &str) -> Option<Found> {
    let (seed, law) = said.lines().next()?.strip_prefix("seed ")?.split_once(": ")?;
    Some(Found { seed: seed.parse().ok()?, law: law.to_owned() })
}

/// Applies a patch within `tree`, with git's words if it does not fit.
pub(super) fn git_apply(patch: &Path, tree: &Path, how: &[&str]) -> Result<()> {
    let mut git = Command::new("git");
    git.arg("apply").args(how).arg(patch).current_dir(tree).stdin(Stdio::null());
    // The tree may lie in a folder that git knows, where it would take the patch's paths for others.
    git.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree)).env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    let output = git.output().context("cannot start git")?;
    ensure!(output.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Makes `to` the same as `from`.
fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{} cannot be made", to.display()))?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if NOT_COPIED.iter().any(|no_source| name == OsStr::new(no_source)) {
            continue;
        }
        let there = to.join(&name);
        if kind.is_dir() {
            mirror(&entry.path(), &there)?;
        } else if kind.is_file() {
            copy_if_other(&entry.path(), &there)?;
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn copy_if_other(from: &Path, to: &Path) -> Result<()> {
    let mut text = fs::read(from).with_context(|| format!("{} cannot be read", from.display()))?;
    match from.file_name().and_then(OsStr::to_str) {
        Some("Cargo.toml") => text = renumbered(text, "[workspace.package]")?,
        Some("Cargo.lock") => text = renumbered(text, "[[package]]")?,
        _ => {}
    }
    if fs::read(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    // Written, not copied: cargo goes by the time of the last change.
    fs::write(to, text).with_context(|| format!("{} cannot be written", to.display()))
}

/// The text with another version in each paragraph under `heading`, unless that is of a package from elsewhere.
fn renumbered(text: Vec<u8>, heading: &str) -> Result<Vec<u8>> {
    let text = String::from_utf8(text)?;
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let is_ours = paragraph.starts_with(heading) && !paragraph.contains("\nsource = ");
        let version = paragraph.lines().find(|line| is_ours && line.starts_with("version = "));
        match version.and_then(|line| Some((line, line.strip_suffix('"')?))) {
            Some((line, open)) => paragraph.replacen(line, &format!("{open}-mutant\""), 1),
            None => paragraph.to_owned(),
        }
    });
    Ok(paragraphs.collect::<Vec<_>>().join("\n\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copys_own_packages_are_of_another_version_and_no_others() {
        let renumbered = |text: &str, heading| String::from_utf8(renumbered(text.into(), heading).unwrap()).unwrap();
        let manifest = "[workspace]\nmembers = []\n\n[workspace.package]\nversion = \"1.2.0\"\nedition = \"2024\"\n\n[profile.dev]\n";
        assert_eq!(renumbered(manifest, "[workspace.package]"), manifest.replace("1.2.0", "1.2.0-mutant"));
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.2.0\"\n\n[[package]]\nname = \"b\"\nversion = \"1.2.1\"\nsource = \"x\"\n";
        assert_eq!(renumbered(lock, "[[package]]"), lock.replace("1.2.0", "1.2.0-mutant"));
    }

    #[test]
    fn every_package_of_the_tree_is_renumbered_with_it() {
        let ours = crate::binaries::workspace();
        let lock = fs::read_to_string(ours.join("Cargo.lock")).unwrap();
        let own = lock.split("\n\n").filter(|it| it.starts_with("[[package]]") && !it.contains("\nsource = "));
        let own: Vec<&str> = own.map(|it| it.lines().nth(2).unwrap()).collect();
        let manifest = fs::read_to_string(ours.join("Cargo.toml")).unwrap();
        assert!(own.len() > 5 && own.iter().all(|version| manifest.contains(&format!("\n{version}\n"))), "{own:?}");
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_mirror_is_the_same_without_what_is_no_source_and_keeps_the_times_of_files_that_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir_all(from.join("target")).unwrap();
        fs::write(from.join("a/b/c"), "1").unwrap();
        fs::write(from.join("d"), "2").unwrap();
        mirror(&from, &to).unwrap();
        let written = |name: &str| fs::metadata(to.join(name)).unwrap().modified().unwrap();
        let before = written("d");
        fs::write(to.join("a/b/c"), "patched").unwrap();
        fs::write(to.join("a/b/new"), "").unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!((names(&to), names(&to.join("a/b"))), (vec!["a".to_owned(), "d".to_owned()], vec!["c".to_owned()]));
        assert_eq!(fs::read_to_string(to.join("a/b/c")).unwrap(), "1");
        assert_eq!(written("d"), before);
    }

    #[test]
    fn what_the_simulator_says_is_understood() {
        let law = "10.0.0.1 of IPPool \"blue\" is held twice: by a on b".to_owned();
        assert_eq!(found(&format!("seed 17: {law}\n")), Some(Found { seed: 17, law }));
        assert_eq!(found("error: no such flag"), None);
    }
}
