//! The pages that list mutants: written by a run over all of them, read by later runs and by the tests.
//!
//! A page names the commit that was played. The first list's page also has the seed that finds each mutant, which later runs
//! try first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::law::is_name;
use super::{FAILS, Mutant, STEPS, SURVIVES};

/// How the simulator found a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The seed of the history.
    pub seed: u64,
    /// The name of the law that it broke; empty in a row that names none.
    pub law: String,
    /// What broke the law.
    pub what: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.shown())
    }
}

impl Found {
    /// Reads `seed SEED: LAW: what`, as it is displayed.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (seed, shown) = text.strip_prefix("seed ")?.split_once(": ")?;
        Self::of_row(seed, shown)
    }

    /// Reads the cells of a row.
    fn of_row(seed: &str, shown: &str) -> Option<Self> {
        let (law, what) = shown.split_once(": ").filter(|(law, _)| is_name(law)).unwrap_or(("", shown));
        Some(Self { seed: seed.parse().ok()?, law: law.to_owned(), what: what.to_owned() })
    }

    fn shown(&self) -> String {
        format!("{}: {}", self.law, self.what)
    }
}

/// The line that names the commit, up to the commit.
const COMMIT: &str = "Played on commit `";

/// The page of the simulator's list.
pub fn simulator_page(mutants: &[Mutant], found: &BTreeMap<String, Found>, commit: &str) -> String {
    let mut page = format!(
        "# Mutants for the simulator\n\n\
         Each patch here breaks one rule of the real code. The simulator must find each by a seed. Its history of {STEPS} steps\n\
         breaks one of the laws that the patch names, and breaks no law on the unpatched tree. An ID such as 3.22 is a row of\n\
         [the contract](../behaviour.md), `invariant-5` an item in [ARCHITECTURE.md](../../ARCHITECTURE.md#invariants).\n\n\
         A patch begins with two lines: `Rule: ID text` and `Law: NAME[, NAME]`. A law is named by its first argument to\n\
         `broken` in the [laws](../simulator/src/law/mod.rs). The search goes on where another law breaks, such as `no-panic`.\n\n\
         `cargo mutants --all` applies each patch to a copy of the tree, plays it and writes this page.\n\
         `cargo mutants NAME...` plays some and prints their rows. `cargo mutants --turn N` plays one of each list, another with each N.\n\
         `cargo mutants --check` says which rows are missing, and what has changed since the commit below.\n\n\
         To see the steps, apply `e2e/mutants/NAME.patch` in a copy of the tree. Then run\n\
         `cargo sim --seeds SEED --steps {STEPS}`, which prints the shortest history that breaks the law.\n\n\
         {COMMIT}{commit}`.\n\n\
         | mutant | rule | seed | what the seed shows |\n| --- | --- | --- | --- |\n"
    );
    for mutant in mutants {
        writeln!(page, "{}", simulator_row(mutant, found.get(&mutant.name))).unwrap_or_default();
    }
    page
}

/// The row of a mutant for the simulator.
pub(super) fn simulator_row(mutant: &Mutant, found: Option<&Found>) -> String {
    let (seed, shown) = match found {
        Some(found) => (found.seed.to_string(), found.shown()),
        None => ("–".to_owned(), SURVIVES.to_owned()),
    };
    // What breaks a law contains addresses and names, and none of these has a bar in it.
    let shown: String = shown.chars().take(160).collect();
    format!("{} {seed} | {shown} |", start_of_row(mutant))
}

/// The page of the tests' list.
pub fn tests_page(mutants: &[Mutant], found: &BTreeSet<String>, commit: &str) -> String {
    let mut page = format!(
        "# Mutants for the tests\n\n\
         Each patch here breaks one rule of the real code, and its header names the test that must fail.\n\
         An ID such as 3.22 is a row of [the contract](../../behaviour.md), `invariant-5` an item in\n\
         [ARCHITECTURE.md](../../../ARCHITECTURE.md#invariants).\n\n\
         `cargo mutants --tests --all` runs each test without a patch, where it must pass. Then it applies each patch to a copy of\n\
         the tree, where the test must fail, and writes this page. `cargo mutants --tests NAME...` plays some and prints their rows.\n\
         `cargo mutants --check` says which rows are missing, and what has changed since the commit below.\n\n\
         To run a test by hand: `cargo test -p PACKAGE TARGET -- --exact NAME`.\n\n\
         {COMMIT}{commit}`.\n\n\
         | mutant | rule | test | result |\n| --- | --- | --- | --- |\n"
    );
    for mutant in mutants {
        writeln!(page, "{}", tests_row(mutant, found.contains(&mutant.name))).unwrap_or_default();
    }
    page
}

/// The row of a mutant for the tests.
pub(super) fn tests_row(mutant: &Mutant, is_found: bool) -> String {
    format!("{} {} |", start_of_row(mutant), if is_found { FAILS } else { SURVIVES })
}

/// A row up to the result.
fn start_of_row(mutant: &Mutant) -> String {
    let test = mutant.test.as_ref().map(|test| format!(" `{test}` |")).unwrap_or_default();
    format!("| `{}` | {} |{test}", mutant.name, mutant.rule)
}

/// The rows of the simulator's page that have a seed, by mutant.
pub fn seeds(page: &str) -> BTreeMap<String, Found> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, seed, shown] = cells[..] else { return None };
        Some((name.trim_end_matches('`').to_owned(), Found::of_row(seed, shown)?))
    });
    rows.collect()
}

/// What is wrong with a page: no commit, a mutant that has not exactly one row, a row with another rule or test than the patch, a
/// row that says that a mutant survives, a row without a patch. Whether the mutants were played is for [`unplayed`].
pub fn stale(page: &str, mutants: &[Mutant]) -> Vec<String> {
    let mut wrong = Vec::new();
    if commit(page).is_none() {
        wrong.push("the page names no commit".to_owned());
    }
    for mutant in mutants {
        match &rows_of(page, mutant)[..] {
            [] => wrong.push(format!("{} has no row", mutant.name)),
            [row] => match row.strip_prefix(&start_of_row(mutant)) {
                None => wrong.push(format!("the row of {} has another rule or test than its patch", mutant.name)),
                Some(result) if result.contains(SURVIVES) => wrong.push(format!("{} survives", mutant.name)),
                Some(_) => {}
            },
            rows => wrong.push(format!("{} has {} rows", mutant.name, rows.len())),
        }
    }
    let names = page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
    let unknown = names.filter(|name| !mutants.iter().any(|mutant| mutant.name == **name));
    wrong.extend(unknown.map(|name| format!("{name} has a row and no patch")));
    wrong
}

/// The mutants whose row shows no result that counts. In the simulator's list that is a seed and a law that the patch names; in the
/// tests' list, that the test fails.
pub fn unplayed(page: &str, mutants: &[Mutant]) -> Vec<String> {
    let seeds = seeds(page);
    let is_played = |mutant: &&Mutant| match &mutant.test {
        None => seeds.get(&mutant.name).is_some_and(|found| mutant.laws.contains(&found.law)),
        Some(_) => rows_of(page, mutant).contains(&tests_row(mutant, true).as_str()),
    };
    let unplayed = mutants.iter().filter(|mutant| !is_played(mutant));
    unplayed
        .map(|mutant| format!("{} is not played yet, or its row shows a law that it does not name", mutant.name))
        .collect()
}

fn rows_of<'a>(page: &'a str, mutant: &Mutant) -> Vec<&'a str> {
    let start = format!("| `{}` |", mutant.name);
    page.lines().filter(|line| line.starts_with(&start)).collect()
}

/// The commit that was played.
pub fn commit(page: &str) -> Option<&str> {
    let (commit, _) = page.lines().find_map(|line| line.strip_prefix(COMMIT))?.split_once('`')?;
    (commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(commit)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{NamedTest, Rule};
    use super::*;

    const HEAD: &str = "0123456789abcdef0123456789abcdef01234567";

    fn mutant(name: &str, test: Option<&str>) -> Mutant {
        let rule = Rule { id: "3.22".to_owned(), text: format!("Rule of {name}.") };
        let test = test.map(|test| NamedTest::read(test).unwrap());
        let laws = if test.is_some() { vec![] } else { vec!["one-holder".to_owned(), "held-is-recorded".to_owned()] };
        Mutant { name: name.to_owned(), rule, laws, test, patch: PathBuf::new() }
    }

    fn found(seed: u64, law: &str) -> Found {
        let what = "10.0.0.1 of IPPool \"blue\" is held twice: by a".to_owned();
        Found { seed, law: law.to_owned(), what }
    }

    #[test]
    fn the_simulators_page_is_read_as_written() {
        let mutants = [mutant("a", None), mutant("b", None)];
        let found = BTreeMap::from([("a".to_owned(), found(7, "one-holder"))]);
        let page = simulator_page(&mutants, &found, HEAD);
        assert_eq!((seeds(&page), commit(&page)), (found, Some(HEAD)));
        assert_eq!(stale(&page, &mutants), ["b survives"]);
        assert_eq!(stale(&page, &[]), ["a has a row and no patch", "b has a row and no patch"]);
    }

    #[test]
    fn a_result_is_read_as_displayed() {
        let result = found(7, "one-holder");
        assert_eq!(Found::read(&result.to_string()), Some(result));
        assert_eq!(
            Found::read("seed 7: a b: c").map(|found| (found.law, found.what)),
            Some((String::new(), "a b: c".to_owned()))
        );
        assert!(Found::read(SURVIVES).is_none() && Found::read("not played: seed 7: x").is_none());
    }

    #[test]
    fn a_seed_counts_as_played_with_a_law_that_the_patch_names() {
        let mutants = [mutant("a", None)];
        let page = |law: &str| simulator_page(&mutants, &BTreeMap::from([("a".to_owned(), found(7, law))]), HEAD);
        assert_eq!(unplayed(&page("held-is-recorded"), &mutants), [""; 0]);
        for unnamed in ["no-panic", ""] {
            assert_eq!(unplayed(&page(unnamed), &mutants).len(), 1, "{unnamed:?}");
        }
        let row = format!("{} 7 | not played yet |", start_of_row(&mutants[0]));
        let page = format!("{COMMIT}{HEAD}`.\n{row}\n");
        assert_eq!((stale(&page, &mutants), unplayed(&page, &mutants).len()), (vec![], 1));
    }

    #[test]
    fn a_mutant_for_the_tests_counts_as_played_when_its_test_fails() {
        let mutants = [mutant("a", Some("ipam-core --test rules plan::a"))];
        let page = tests_page(&mutants, &BTreeSet::from(["a".to_owned()]), HEAD);
        assert_eq!(unplayed(&page, &mutants), [""; 0]);
        for other in [page.replace(FAILS, "not played yet"), page.replace(FAILS, "test fails once")] {
            assert_eq!((stale(&other, &mutants), unplayed(&other, &mutants).len()), (vec![], 1), "{other}");
        }
    }

    #[test]
    fn another_rule_test_or_commit_makes_a_page_stale() {
        let (one, other) = ("ipam-core --test rules plan::a", "ipam-core --test rules plan::b");
        let played = [mutant("a", Some(one))];
        let page = tests_page(&played, &BTreeSet::from(["a".to_owned()]), HEAD);
        assert_eq!(stale(&page, &played), [""; 0]);
        let rule = |id: &str, text: &str| Rule { id: id.to_owned(), text: text.to_owned() };
        let reworded = |rule| Mutant { rule, ..played[0].clone() };
        let rules = [rule("3.23", "Rule of a."), rule("3.22", "Rule of a"), rule("3.22", "Rule of a. Or b.")];
        for changed in rules.map(reworded).into_iter().chain([mutant("a", Some(other))]) {
            assert_eq!(stale(&page, &[changed]), ["the row of a has another rule or test than its patch"]);
        }
        assert_eq!(stale(&tests_page(&played, &BTreeSet::new(), HEAD), &played), ["a survives"]);
        assert_eq!(stale(&page.replace(HEAD, "HEAD"), &played), ["the page names no commit"]);
        let row = tests_row(&played[0], true);
        assert_eq!(stale(&format!("{page}{row}\n"), &played), ["a has 2 rows"]);
        assert_eq!(stale(&page.replace(&row, ""), &played), ["a has no row"]);
    }
}
