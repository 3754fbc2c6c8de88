//! Mutants: patches of the real code that each break one rule, and the proof that each is noticed.
//!
//! There are two lists. The simulator must find each mutant of the first, by a law that the patch names. Of the second, each patch
//! names an ordinary test, which must fail. Neither touches the sources: a patch is applied to a copy of the tree, which reuses the dependencies that are
//! compiled already.

mod history;
mod law;
mod list;
mod named_test;
mod progress;
mod rule;
mod scratch;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::binaries::workspace;
pub use law::laws;
pub use list::{Found, commit, seeds, simulator_page, stale, tests_page, unplayed};
use list::{simulator_row, tests_row};
pub use named_test::NamedTest;
use named_test::Outcome;
use progress::Progress;
pub use rule::{Rule, known, sections};
use scratch::Scratch;

/// Seeds played before a mutant counts as one that survives.
const SEEDS: u64 = 6_000;
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

Usage: cargo mutants [--tests] --all | --turn N | --check | NAME...

  --tests    the list for ordinary tests (e2e/mutants/tests) instead of the simulator's (e2e/mutants)
  --all      plays every mutant of the list and writes its page; on the same commit it continues an interrupted run
  --turn N   plays one mutant of each list, another with each N
  --check    plays nothing; says what of both pages is stale: rows, and files other than *.md that differ from the commit played
  NAME...    plays these, prints their rows and writes nothing

Exit status: 0 every mutant was noticed or no page is stale, 1 a mutant was not noticed or could not be played, or a page is stale.
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
        let mut header = content.lines();
        let mut line = |word: &str| header.next().and_then(|line| line.strip_prefix(word));
        let rule = Rule::read(line("Rule: ").context("the first line must be \"Rule: ID text\"")?)?;
        let (laws, test) = match self {
            Self::Simulator => {
                (law::read(line("Law: ").context("the second line must be \"Law: NAME[, NAME]\"")?)?, None)
            }
            Self::Tests => {
                let test = line("Test: ").context("the second line must be \"Test: PACKAGE TARGET NAME\"")?;
                (Vec::new(), Some(NamedTest::read(test)?))
            }
        };
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Mutant { name, rule, laws, test, patch: patch.to_owned() })
    }
}

/// A patch and the rule that it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// The patch's file name without its ending.
    pub name: String,
    /// The rule, as the patch's first line names it.
    pub rule: Rule,
    /// The laws that may find it; empty in the tests' list.
    pub laws: Vec<String>,
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
    if matches!(words[..], ["--check"]) {
        return check();
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

/// Says what of both pages is stale. The ordinary tests cannot: every change of the code makes a page
/// older than the code.
fn check() -> Result<ExitCode> {
    let (tree, mut wrong) = (workspace(), Vec::new());
    for list in List::BOTH {
        let (page, mutants) = (std::fs::read_to_string(list.page())?, list.mutants()?);
        let name = list.page();
        let name = name.strip_prefix(&tree).unwrap_or(&name).display().to_string();
        let rows = [stale(&page, &mutants), unplayed(&page, &mutants)].concat();
        let changes = commit(&page).map(|commit| history::changed_since(&tree, commit)).transpose()?;
        let found = rows.into_iter().chain(changes.into_iter().flatten()).map(|what| format!("{name}: {what}"));
        wrong.extend(found);
    }
    if !wrong.is_empty() {
        bail!("run `cargo mutants --all` and `cargo mutants --tests --all` on a clean tree:\n{}", wrong.join("\n"));
    }
    writeln!(
        std::io::stdout(),
        "both pages are complete, and only pages have changed since the commits that they name"
    )?;
    Ok(ExitCode::SUCCESS)
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
    let (page, rows, found): (_, Vec<String>, BTreeSet<String>) = match list {
        List::Simulator => {
            let found = play_in_simulator(&mut scratch, &chosen, &progress)?;
            let row = |mutant: &&Mutant| Some(simulator_row(mutant, Some(found.get(&mutant.name)?)));
            let rows = chosen.iter().filter_map(row).collect();
            (commit.map(|commit| simulator_page(&all, &found, &commit)), rows, found.into_keys().collect())
        }
        List::Tests => {
            let found = play_in_tests(&mut scratch, &chosen, &progress)?;
            let rows = chosen.iter().filter(|mutant| found.contains(&mutant.name));
            let rows = rows.map(|mutant| tests_row(mutant, true)).collect();
            (commit.map(|commit| tests_page(&all, &found, &commit)), rows, found)
        }
    };
    let mut out = std::io::stdout();
    if let Some(page) = page {
        std::fs::write(list.page(), page)?;
    } else {
        rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
    }
    writeln!(out, "{} mutants, {} noticed", chosen.len(), found.len())?;
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
                Ok(Ok(found)) => found.to_string(),
                Ok(Err(missed)) => missed.to_string(),
                Err(error) => format!("{NOT_PLAYED}: {error:#}"),
            },
        };
        report(mutant, began, &result, progress)?;
        found.extend(Found::read(&result).map(|one| (mutant.name.clone(), one)));
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
    history::git(&workspace(), arguments)
}

fn choose<'a>(all: &'a [Mutant], words: &[&str]) -> Result<Vec<&'a Mutant>> {
    match words {
        [] => bail!("which mutants? --all, --turn N, or names, behind --tests those of the tests: {}", names(all)),
        ["--all"] => Ok(all.iter().collect()),
        ["--turn", turn] => {
            let turn: usize = turn.parse().with_context(|| format!("--turn {turn:?}: must be a number"))?;
            Ok(all.get(turn % all.len().max(1)).into_iter().collect())
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
        let mutant = |name: &&str| Mutant {
            name: (*name).to_owned(),
            rule: rule(),
            laws: Vec::new(),
            test: None,
            patch: PathBuf::new(),
        };
        names.iter().map(mutant).collect()
    }

    fn chosen(all: &[Mutant], words: &[&str]) -> Result<Vec<String>> {
        Ok(choose(all, words)?.into_iter().map(|mutant| mutant.name.clone()).collect())
    }

    #[test]
    fn turns_come_to_every_mutant_and_round_again() {
        let all = mutants(&["a", "b", "c", "d", "e"]);
        assert_eq!(chosen(&all, &["--turn", "0"]).unwrap(), ["a"]);
        assert_eq!(chosen(&all, &["--turn", "4"]).unwrap(), ["e"]);
        assert_eq!(chosen(&all, &["--turn", "5"]).unwrap(), ["a"]);
        assert_eq!(chosen(&mutants(&[]), &["--turn", "7"]).unwrap(), [""; 0]);
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
    fn a_patch_names_laws_in_the_first_list_and_a_test_in_the_second() {
        let folder = tempfile::tempdir().unwrap();
        let patch = folder.path().join("a.patch");
        let read = |list: List, text: &str| {
            std::fs::write(&patch, text).unwrap();
            list.read(&patch)
        };
        let (rule, test) = ("Rule: 3.22 A block stays.\n", "Test: ipam-core --lib a::b\n");
        let (law, change) = ("Law: one-holder, held-is-recorded\n", "\n--- a/x\n");
        let mutant = read(List::Tests, &format!("{rule}{test}{change}")).unwrap();
        assert_eq!((mutant.name.as_str(), mutant.rule.id.as_str(), mutant.laws.len()), ("a", "3.22", 0));
        let mutant = read(List::Simulator, &format!("{rule}{law}{change}")).unwrap();
        assert_eq!((mutant.test, mutant.laws), (None, vec!["one-holder".to_owned(), "held-is-recorded".to_owned()]));
        for (list, second) in [(List::Tests, law), (List::Simulator, test)] {
            for wrong in [format!("{rule}{second}"), rule.to_owned(), second.to_owned(), format!("{rule}\n{law}{test}")]
            {
                assert!(read(list, &wrong).is_err(), "{list:?} {wrong:?}");
            }
        }
    }
}
