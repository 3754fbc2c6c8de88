//! Mutants: patches of the real code that each break one rule, and the proof that each is noticed.
//!
//! There are two lists. The simulator must find each mutant of the first. Of the second, each patch names an ordinary test, which
//! must fail. Neither touches the sources: a patch is applied to a copy of the tree, which reuses the dependencies that are
//! compiled already.

mod list;
mod named_test;
mod progress;
mod rule;
mod scratch;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::binaries::workspace;
pub use list::{Found, seeds, simulator_page, stale, tests_page};
pub use named_test::NamedTest;
use named_test::Outcome;
use progress::Progress;
pub use rule::{Rule, known, sections};
use scratch::Scratch;

/// Mutants of each list that one turn plays.
const AT_A_TURN: usize = 2;
/// Seeds played before a mutant counts as one that survives.
const SEEDS: u64 = 5_000;
/// Steps of each.
pub(crate) const STEPS: usize = 100;
/// The result of a mutant whose test notices it.
const FAILS: &str = "test fails";
/// The result of a mutant that nothing notices.
const SURVIVES: &str = "survives";
/// How the result of a mutant begins that does not build, or whose test hangs.
const NOT_PLAYED: &str = "not played";

const USAGE: &str =
    "Applies patches that each break one rule to a copy of the tree, and checks that the breach is noticed.

Usage: cargo mutants [--tests] --all | --turn N | NAME...

  --tests    the list for ordinary tests (e2e/mutants/tests) instead of the simulator's (e2e/mutants)
  --all      plays every mutant of the list and writes its page; on the same commit it continues an interrupted run
  --turn N   plays two mutants of each list, others with each N
  NAME...    plays these and writes nothing

Exit status: 0 every mutant was noticed, 1 one was not or could not be played.
";

/// A list of mutants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// Those that the simulator must find.
    Simulator,
    /// Those on which a named test must fail.
    Tests,
}

impl List {
    /// Both lists.
    pub const BOTH: [Self; 2] = [Self::Simulator, Self::Tests];

    /// A word for files.
    const fn name(self) -> &'static str {
        match self {
            Self::Simulator => "simulator",
            Self::Tests => "tests",
        }
    }

    /// The folder of the patches and of their page.
    pub fn folder(self) -> PathBuf {
        workspace().join("e2e/mutants").join(if self == Self::Tests { "tests" } else { "" })
    }

    /// The page.
    pub fn page(self) -> PathBuf {
        self.folder().join("README.md")
    }

    /// The arguments that play all and write the page.
    pub fn all_arguments(self) -> &'static str {
        match self {
            Self::Simulator => "--all",
            Self::Tests => "--tests --all",
        }
    }

    /// Every mutant of the list, by name.
    ///
    /// # Errors
    /// The folder cannot be read, or the header of a patch has another form than the list's.
    pub fn mutants(self) -> Result<Vec<Mutant>> {
        let folder = self.folder();
        let mut mutants = Vec::new();
        for entry in std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let patch = entry?.path();
            if patch.extension().is_some_and(|ending| ending == "patch") {
                let read = self.read(&patch);
                mutants.push(read.with_context(|| format!("the header of {} is wrong", patch.display()))?);
            }
        }
        mutants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(mutants)
    }

    fn read(self, patch: &Path) -> Result<Mutant> {
        let content = std::fs::read_to_string(patch)?;
        let header = |word: &str| content.lines().take(2).find_map(|line| line.strip_prefix(word));
        let rule = Rule::read(header("Rule: ").context("the first line must be \"Rule: ID text\"")?)?;
        let test = header("Test: ").map(NamedTest::read).transpose()?;
        ensure!(test.is_some() == (self == Self::Tests), "\"Test: …\" belongs into the second list, and there alone");
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Mutant { name, rule, test, patch: patch.to_owned() })
    }
}

/// A patch and the rule that it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// The patch's file name without its ending.
    pub name: String,
    /// The rule, as the patch's first line names it.
    pub rule: Rule,
    /// The test that must fail; `None` in the simulator's list.
    pub test: Option<NamedTest>,
    /// The file of the patch.
    pub patch: PathBuf,
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
/// Unknown arguments, a patch that does not apply or build, or a mutant that survives.
pub fn main(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if matches!(words[..], ["--help" | "-h"]) {
        write!(std::io::stdout(), "{USAGE}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut survivors = match &words[..] {
        ["--turn", _] => [play(List::Simulator, &words)?, play(List::Tests, &words)?].concat(),
        ["--tests", rest @ ..] => play(List::Tests, rest)?,
        rest => play(List::Simulator, rest)?,
    };
    survivors.sort();
    if survivors.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("nothing notices {}: a law or a test is missing, or the patch breaks no rule", survivors.join(", "))
}

/// Plays mutants of one list; the names of those that survive.
fn play(list: List, words: &[&str]) -> Result<Vec<String>> {
    let all = list.mutants()?;
    let chosen = choose(&all, words)?;
    let commit = if words == ["--all"] { Some(clean_commit()?) } else { None };
    let mut scratch = Scratch::new(&workspace())?;
    let progress = match &commit {
        Some(commit) => Progress::open(scratch.folder(), list.name(), commit)?,
        None => Progress::none(),
    };
    let (page, found) = match list {
        List::Simulator => {
            let found = play_in_simulator(&mut scratch, &chosen, &progress)?;
            let page = commit.map(|commit| simulator_page(&all, &found, &commit));
            (page, found.into_keys().collect())
        }
        List::Tests => {
            let found = play_in_tests(&mut scratch, &chosen, &progress)?;
            (commit.map(|commit| tests_page(&all, &found, &commit)), found)
        }
    };
    if let Some(page) = page {
        std::fs::write(list.page(), page)?;
    }
    writeln!(std::io::stdout(), "{} mutants, {} noticed", chosen.len(), found.len())?;
    Ok(chosen.iter().map(|mutant| mutant.name.clone()).filter(|name| !found.contains(name)).collect())
}

fn play_in_simulator(
    scratch: &mut Scratch,
    chosen: &[&Mutant],
    progress: &Progress,
) -> Result<BTreeMap<String, Found>> {
    let known = seeds(&std::fs::read_to_string(List::Simulator.page()).unwrap_or_default());
    let mut found = BTreeMap::new();
    for mutant in chosen {
        let began = Instant::now();
        let seed = known.get(&mutant.name).map(|known| known.seed);
        let result = match progress.of(&mutant.name) {
            Some(before) => before.to_owned(),
            None => match scratch.play(mutant, seed, SEEDS, STEPS) {
                Ok(Some(found)) => format!("seed {}: {}", found.seed, found.law),
                Ok(None) => SURVIVES.to_owned(),
                Err(error) => format!("{NOT_PLAYED}: {error:#}"),
            },
        };
        report(mutant, began, &result, progress)?;
        found.extend(scratch::found(&result).map(|one| (mutant.name.clone(), one)));
    }
    Ok(found)
}

/// Tests of one executable follow one another, so that each build changes little.
fn play_in_tests(scratch: &mut Scratch, chosen: &[&Mutant], progress: &Progress) -> Result<BTreeSet<String>> {
    let mut named: Vec<(&NamedTest, &Mutant)> =
        chosen.iter().filter_map(|mutant| Some((mutant.test.as_ref()?, *mutant))).collect();
    named.sort_by_key(|(test, mutant)| (*test, &mutant.name));
    let mut found = BTreeSet::new();
    for group in named.chunk_by(|(one, _), (other, _)| one.is_beside(other)) {
        let open: Vec<_> = group.iter().filter(|(_, mutant)| progress.of(&mutant.name).is_none()).copied().collect();
        let unsound = unsound(scratch, &open)?;
        for (test, mutant) in group {
            let began = Instant::now();
            let result = match (progress.of(&mutant.name), unsound.get(test)) {
                (Some(before), _) => before.to_owned(),
                (None, Some(why)) => format!("{NOT_PLAYED}: without a patch, {why}"),
                (None, None) => match play_in_test(scratch, test, mutant) {
                    Ok(Outcome::Failed) => FAILS.to_owned(),
                    Ok(Outcome::Passed) => SURVIVES.to_owned(),
                    Err(error) => format!("{NOT_PLAYED}: {error:#}"),
                },
            };
            report(mutant, began, &result, progress)?;
            if result == FAILS {
                found.insert(mutant.name.clone());
            }
        }
    }
    Ok(found)
}

/// The tests that do not pass without a patch, and why. Such a test proves nothing.
fn unsound<'a>(scratch: &mut Scratch, group: &[(&'a NamedTest, &Mutant)]) -> Result<BTreeMap<&'a NamedTest, String>> {
    let Some((first, _)) = group.first() else { return Ok(BTreeMap::new()) };
    scratch.unpatched()?;
    let executable = first.build(scratch)?;
    let tests: BTreeSet<&NamedTest> = group.iter().map(|(test, _)| *test).collect();
    let why = |test: &NamedTest| match test.run(&executable, scratch.tree()) {
        Ok(Outcome::Passed) => None,
        Ok(Outcome::Failed) => Some("the test fails".to_owned()),
        Err(error) => Some(format!("{error:#}")),
    };
    Ok(tests.into_iter().filter_map(|test| Some((test, why(test)?))).collect())
}

fn play_in_test(scratch: &mut Scratch, test: &NamedTest, mutant: &Mutant) -> Result<Outcome> {
    scratch.patched(mutant)?;
    let executable = test.build(scratch).context("it does not build")?;
    test.run(&executable, scratch.tree())
}

/// Prints what became of a mutant. The run goes on whatever it is, so that it shows all that is wrong at once.
fn report(mutant: &Mutant, began: Instant, result: &str, progress: &Progress) -> Result<()> {
    if progress.of(&mutant.name).is_none() && !result.starts_with(NOT_PLAYED) {
        progress.keep(&mutant.name, result)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(writeln!(std::io::stdout(), "{:<44} {seconds:>4.0} s  {result}", mutant.name)?)
}

/// The commit of the workspace. A page names a commit, so every difference from it but the pages themselves is refused.
fn clean_commit() -> Result<String> {
    let pages = List::BOTH
        .map(|list| format!(":!{}", list.page().strip_prefix(workspace()).unwrap_or(Path::new("")).display()));
    let status = ["status", "--porcelain", "--", ".", &pages[0], &pages[1]];
    let dirty = git(&status)?;
    ensure!(dirty.is_empty(), "commit first: the page names the commit that was played\n{dirty}");
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(workspace()).output().context("cannot start git")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn choose<'a>(all: &'a [Mutant], words: &[&str]) -> Result<Vec<&'a Mutant>> {
    match words {
        [] => bail!("which mutants? --all, --turn N, or names, behind --tests those of the tests: {}", names(all)),
        ["--all"] => Ok(all.iter().collect()),
        ["--turn", turn] => {
            let turn: usize = turn.parse().with_context(|| format!("--turn {turn:?}: must be a number"))?;
            Ok((0..AT_A_TURN.min(all.len()))
                .map(|place| &all[turn.wrapping_mul(AT_A_TURN).wrapping_add(place) % all.len()])
                .collect())
        }
        given => given
            .iter()
            .map(|name| {
                let known = all.iter().find(|mutant| mutant.name == *name);
                known.with_context(|| format!("there is no mutant {name:?} in this list: {}", names(all)))
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
        let rule = || Rule { id: "1.1".to_owned(), text: "r".to_owned() };
        let mutant = |name: &&str| Mutant { name: (*name).to_owned(), rule: rule(), test: None, patch: PathBuf::new() };
        names.iter().map(mutant).collect()
    }

    fn chosen(all: &[Mutant], words: &[&str]) -> Result<Vec<String>> {
        Ok(choose(all, words)?.into_iter().map(|mutant| mutant.name.clone()).collect())
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
    fn an_unknown_mutant_is_refused_with_the_names() {
        let all = mutants(&["a", "b"]);
        for words in [&[][..], &["c"], &["--turn", "x"], &["--all", "a"]] {
            assert!(choose(&all, words).is_err(), "{words:?}");
        }
        assert!(choose(&all, &["c"]).unwrap_err().to_string().contains("a, b"));
        assert_eq!(chosen(&all, &["b"]).unwrap(), ["b"]);
    }

    #[test]
    fn a_test_is_named_in_the_second_list_alone() {
        let folder = tempfile::tempdir().unwrap();
        let patch = folder.path().join("a.patch");
        let read = |list: List, text: &str| {
            std::fs::write(&patch, text).unwrap();
            list.read(&patch)
        };
        let (rule, test) = ("Rule: 3.22 A block stays.\n", "Test: ipam-core --lib a::b\n");
        let mutant = read(List::Tests, &format!("{rule}{test}\n--- a/x\n")).unwrap();
        assert_eq!((mutant.name.as_str(), mutant.rule.id.as_str()), ("a", "3.22"));
        assert_eq!(read(List::Simulator, rule).unwrap().test, None);
        assert!(read(List::Tests, rule).is_err() && read(List::Simulator, &format!("{rule}{test}")).is_err());
        assert!(read(List::Simulator, "\n").is_err() && read(List::Tests, test).is_err());
    }
}
