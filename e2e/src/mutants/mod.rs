//! Mutants: patches of the real code that each break one rule, and the proof that the simulator finds each of them.
//!
//! `cargo run -p ipam-e2e --bin mutants -- --all` builds and plays every mutant and writes the list in `mutants/README.md` anew;
//! `--turn N` takes a few, others with each N; names take those. Never touches the sources: a patch is applied to a copy of
//! the tree, whose dependencies are those that are compiled already, so that one mutant costs little more than what it changes.

mod list;
mod scratch;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::binaries::workspace;
pub use list::{Found, read, stale, write};
use scratch::Scratch;

/// Mutants that one turn takes.
const AT_A_TURN: usize = 2;
/// Seeds played before a mutant counts as one that survives.
const SEEDS: u64 = 5_000;
/// Steps of each.
pub(crate) const STEPS: usize = 100;

/// A patch and the rule that it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// The patch's file name without its ending.
    pub name: String,
    /// The rule, as the patch's first line says it.
    pub rule: String,
    /// Where the patch is.
    pub patch: PathBuf,
}

/// The folder of the patches and of their list.
pub fn folder() -> PathBuf {
    workspace().join("e2e/mutants")
}

/// Every mutant, by name.
///
/// # Errors
/// The folder cannot be read, or a patch does not say which rule it breaks.
pub fn all() -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in std::fs::read_dir(folder()).context("e2e/mutants cannot be read")? {
        let patch = entry?.path();
        if patch.extension().is_some_and(|ending| ending == "patch") {
            mutants.push(mutant(patch)?);
        }
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

fn mutant(patch: PathBuf) -> Result<Mutant> {
    let text = std::fs::read_to_string(&patch)?;
    let rule = text.lines().next().and_then(|line| line.strip_prefix("Rule: ")).unwrap_or_default().trim();
    ensure!(
        !rule.is_empty(),
        "{}: the first line must be \"Rule: …\", the rule that the patch breaks",
        patch.display()
    );
    let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Mutant { name, rule: rule.to_owned(), patch })
}

/// Whether the patch fits the sources as they are; if not, in git's words.
///
/// # Errors
/// It does not, or git cannot be started.
pub fn applies(mutant: &Mutant, tree: &Path) -> Result<()> {
    scratch::git_apply(&mutant.patch, tree, &["--check"])
}

/// The program: builds and plays the mutants that the arguments choose, and prints what became of each.
///
/// # Errors
/// Arguments that are none, a patch that does not apply or build, or a mutant that survives.
pub fn main(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let all = all()?;
    let arguments: Vec<String> = arguments.collect();
    let chosen = choose(&all, &arguments)?;
    let known = read(&std::fs::read_to_string(folder().join("README.md")).unwrap_or_default());
    let mut out = std::io::stdout();
    let mut scratch = Scratch::new(&workspace())?;
    let (mut found, mut survivors) = (BTreeMap::new(), Vec::new());
    for mutant in chosen {
        let began = Instant::now();
        let seed = known.get(&mutant.name).map(|known| known.seed);
        let ended = scratch.play(mutant, seed, SEEDS, STEPS)?;
        let said =
            ended.as_ref().map_or_else(|| "SURVIVES".to_owned(), |found| format!("seed {}: {}", found.seed, found.law));
        writeln!(out, "{:<44} {:>4.0} s  {said}", mutant.name, began.elapsed().as_secs_f64())?;
        match ended {
            Some(one) => drop(found.insert(mutant.name.clone(), one)),
            None => survivors.push(mutant.name.as_str()),
        }
    }
    if arguments == ["--all"] {
        std::fs::write(folder().join("README.md"), write(&all, &found))?;
    }
    writeln!(out, "{} mutants, {} found by the simulator", found.len() + survivors.len(), found.len())?;
    if survivors.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("no law is broken by {}: the simulator has a gap, or the rule is one too many", survivors.join(", "))
}

fn choose<'a>(all: &'a [Mutant], arguments: &[String]) -> Result<Vec<&'a Mutant>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        [] => bail!("which mutants? --all, --turn N, or names: {}", names(all)),
        ["--all"] => Ok(all.iter().collect()),
        ["--turn", turn] => {
            let turn: usize = turn.parse().with_context(|| format!("--turn {turn:?}: write a number"))?;
            Ok((0..AT_A_TURN.min(all.len()))
                .map(|place| &all[turn.wrapping_mul(AT_A_TURN).wrapping_add(place) % all.len()])
                .collect())
        }
        names_given => names_given
            .iter()
            .map(|name| {
                let known = all.iter().find(|mutant| mutant.name == *name);
                known.with_context(|| format!("there is no mutant {name:?}: there are {}", names(all)))
            })
            .collect(),
    }
}

fn names(all: &[Mutant]) -> String {
    all.iter().map(|mutant| mutant.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(names: &[&str]) -> Vec<Mutant> {
        let mutant = |name: &&str| Mutant { name: (*name).to_owned(), rule: "r".to_owned(), patch: PathBuf::new() };
        names.iter().map(mutant).collect()
    }

    fn chosen(all: &[Mutant], words: &[&str]) -> Result<Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(choose(all, &words)?.into_iter().map(|mutant| mutant.name.clone()).collect())
    }

    #[test]
    fn turns_come_to_every_mutant_and_round_again() {
        let all = mutants(&["a", "b", "c", "d", "e"]);
        assert_eq!(chosen(&all, &["--turn", "0"]).unwrap(), ["a", "b"]);
        assert_eq!(chosen(&all, &["--turn", "2"]).unwrap(), ["e", "a"]);
        assert_eq!(chosen(&all, &["--turn", "5"]).unwrap(), chosen(&all, &["--turn", "0"]).unwrap());
        assert_eq!(chosen(&mutants(&["a"]), &["--turn", "7"]).unwrap(), ["a"]);
    }

    #[test]
    fn what_is_no_mutant_is_refused_with_the_names_there_are() {
        let all = mutants(&["a", "b"]);
        for words in [&[][..], &["c"], &["--turn", "x"]] {
            assert!(chosen(&all, words).is_err(), "{words:?}");
        }
        assert!(chosen(&all, &["c"]).unwrap_err().to_string().contains("a, b"));
        assert_eq!(chosen(&all, &["b"]).unwrap(), ["b"]);
    }
}
