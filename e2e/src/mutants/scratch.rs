//! A copy of the tree that mutants are applied to, built and played in. A file of it is written only when it differs, so that
//! cargo compiles nothing that is as it was.
//!
//! Dependencies are taken as the tree itself has compiled them, from its own folder. Nothing of a mutant is ever taken for
//! anything of the tree: its programs go to a folder apart, and the copy's packages are of another version, by which cargo
//! tells what it compiles from them from what it compiles from the tree's.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::search::{Missed, Player, search};
use super::{Found, Mutant};
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
    /// The simulator of the unpatched tree, once it was asked for.
    simulator: Option<PathBuf>,
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
        Ok(Self { folder, from: from.to_owned(), tree, target, shared, simulator: None, _lock: lock })
    }

    /// The folder of the copy and of what is kept between runs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The seed by which the simulator finds the mutant: `first`, which found it before, or else one of `seeds`.
    pub(super) fn play(
        &mut self,
        mutant: &Mutant,
        first: Option<u64>,
        seeds: u64,
        steps: usize,
    ) -> Result<Result<Found, Missed>> {
        self.patched(mutant)?;
        let built = self.cargo(&AS_FOR_TESTS);
        built.with_context(|| format!("{} does not build", mutant.name))?;
        let patched = self.target.join("debug/simulate");
        search(&mut Programs { scratch: self, patched, steps }, &mutant.laws, first, 0..seeds)
    }

    /// The simulator of the unpatched tree: a copy, so that no build replaces it during the run.
    fn unpatched_simulator(&mut self) -> Result<PathBuf> {
        if let Some(program) = &self.simulator {
            return Ok(program.clone());
        }
        cargo(&self.from, &AS_FOR_TESTS, &[]).context("the unpatched simulator does not build")?;
        let program = self.folder.join("simulate-unpatched");
        let built = self.shared.join("debug/simulate");
        fs::copy(&built, &program).with_context(|| format!("{} cannot be copied", built.display()))?;
        Ok(self.simulator.insert(program).clone())
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
        let folders = [("CARGO_TARGET_DIR", &*self.target), ("CARGO_BUILD_BUILD_DIR", &*self.shared)];
        cargo(&self.tree, arguments, &folders)
    }
}

/// Runs cargo in a folder and returns what it prints on standard output.
fn cargo(folder: &Path, arguments: &[&str], variables: &[(&str, &Path)]) -> Result<String> {
    let mut command = ipam_images::cargo::command();
    command.args(arguments).current_dir(folder).envs(variables.iter().copied());
    let output = command.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The simulator of the patched tree and of the unpatched one.
struct Programs<'a> {
    scratch: &'a mut Scratch,
    patched: PathBuf,
    steps: usize,
}

impl Player for Programs<'_> {
    fn patched(&mut self, seeds: Range<u64>) -> Result<Option<Found>> {
        Ok(unknown(simulate(&self.patched, seeds, self.steps)?))
    }

    fn unpatched_breaks(&mut self, seed: u64) -> Result<bool> {
        let program = self.scratch.unpatched_simulator()?;
        Ok(!simulate(&program, seed..seed.saturating_add(1), self.steps)?.is_empty())
    }
}

/// A seed that breaks a law.
#[derive(PartialEq, Eq, Debug)]
struct Broken {
    found: Found,
    /// Whether it shows a known fault of the product.
    is_known: bool,
}

/// The seeds that break a law, in rising order. The simulator ends at the first that shows no known fault.
fn simulate(program: &Path, seeds: Range<u64>, steps: usize) -> Result<Vec<Broken>> {
    let output = Command::new(program)
        .args(["--json", "--seeds", &format!("{}..{}", seeds.start, seeds.end), "--steps", &steps.to_string()])
        .output()
        .context("cannot start the simulator")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // A panic of the code is a broken law. Whatever else ends the simulator proves nothing.
    understood(output.status.code(), &said).with_context(|| {
        format!("the simulator ended with {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr))
    })
}

/// Reads what `simulate --json` prints. `None` if that does not fit its status.
fn understood(code: Option<i32>, said: &str) -> Option<Vec<Broken>> {
    let broken: Vec<Broken> = said.lines().map(broken).collect::<Option<_>>()?;
    let is_new = broken.iter().any(|broken| !broken.is_known);
    (code == Some(i32::from(is_new))).then_some(broken)
}

fn broken(line: &str) -> Option<Broken> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |field: &str| Some(value[field].as_str()?.replace('\n', " "));
    let is_known = !value.get("known")?.is_null();
    Some(Broken { found: Found { seed: value["seed"].as_u64()?, law: text("law")?, what: text("what")? }, is_known })
}

/// The lowest seed that shows no known fault.
fn unknown(broken: Vec<Broken>) -> Option<Found> {
    broken.into_iter().find(|broken| !broken.is_known).map(|broken| broken.found)
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

    const KNOWN: &str = r#"{"seed":3,"law":"one-holder","what":"a","known":"watch-lags"}"#;
    const NEW: &str = r#"{"seed":17,"law":"no-panic","what":"b\nc \"d\"","known":null}"#;

    fn seeds(code: i32, lines: &[&str]) -> Option<Vec<u64>> {
        let broken = understood(Some(code), &lines.join("\n"))?;
        Some(broken.iter().map(|broken| broken.found.seed).collect())
    }

    #[test]
    fn the_lines_of_the_simulator_are_understood() {
        let found = Found { seed: 17, law: "no-panic".to_owned(), what: "b c \"d\"".to_owned() };
        assert_eq!(broken(NEW), Some(Broken { found, is_known: false }));
        assert_eq!((seeds(1, &[KNOWN, NEW]), seeds(0, &[KNOWN])), (Some(vec![3, 17]), Some(vec![3])));
        assert_eq!(seeds(0, &[]), Some(vec![]));
        for wrong in ["", "seed 17: a", "{}", r#"{"seed":17,"law":"no-panic","what":"b"}"#] {
            assert_eq!(broken(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_status_that_does_not_fit_the_lines_is_no_result() {
        for (code, lines) in [(1, &[KNOWN][..]), (0, &[NEW]), (2, &[NEW]), (1, &[]), (1, &["error", NEW])] {
            assert_eq!(seeds(code, lines), None, "{code} {lines:?}");
        }
        assert_eq!(understood(None, NEW), None);
    }

    #[test]
    fn a_known_fault_finds_no_mutant() {
        let broken = |lines: &[&str]| lines.iter().filter_map(|line| broken(line)).collect::<Vec<_>>();
        assert_eq!(unknown(broken(&[KNOWN])), None);
        assert_eq!(unknown(broken(&[KNOWN, NEW])).map(|found| found.seed), Some(17));
    }
}
