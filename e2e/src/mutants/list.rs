//! The pages that list mutants: written by a run over all of them, read by later runs and by the tests.
//!
//! A page names the commit that was played. The first list's page also has the seed that finds each mutant, which later runs
//! try first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{FAILS, Mutant, STEPS, SURVIVES};

/// How the simulator found a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The seed of the history.
    pub seed: u64,
    /// The law that it broke, in words.
    pub law: String,
}

/// The line that names the commit, up to the commit.
const COMMIT: &str = "Played on commit `";

/// The page of the simulator's list.
pub fn simulator_page(mutants: &[Mutant], found: &BTreeMap<String, Found>, commit: &str) -> String {
    let mut page = format!(
        "# Mutants for the simulator\n\n\
         Each patch here breaks one rule of the real code. The simulator must find each: a seed whose history of {STEPS} steps\n\
         breaks a law. An ID such as 3.22 is a row of [the contract](../behaviour.md), `invariant-5` an item in\n\
         [ARCHITECTURE.md](../../ARCHITECTURE.md#invariants).\n\n\
         `cargo mutants --all` applies each patch to a copy of the tree, plays it and writes this page.\n\
         `cargo mutants NAME...` plays some and writes nothing. `cargo mutants --turn N` plays two of each list, others with each N.\n\n\
         To see the steps, apply `e2e/mutants/NAME.patch` in a copy of the tree. Then run\n\
         `cargo sim --seeds SEED --steps {STEPS}`, which prints the shortest history that breaks the law.\n\n\
         {COMMIT}{commit}`.\n\n\
         | mutant | rule | seed | what the seed shows |\n| --- | --- | --- | --- |\n"
    );
    for mutant in mutants {
        let (seed, law) = match found.get(&mutant.name) {
            Some(Found { seed, law }) => (seed.to_string(), law.as_str()),
            None => ("–".to_owned(), SURVIVES),
        };
        // A law contains addresses and names, and none of these has a bar in it.
        let law: String = law.chars().take(160).collect();
        writeln!(page, "{} {seed} | {law} |", start_of_row(mutant)).unwrap_or_default();
    }
    page
}

/// The page of the tests' list.
pub fn tests_page(mutants: &[Mutant], found: &BTreeSet<String>, commit: &str) -> String {
    let mut page = format!(
        "# Mutants for the tests\n\n\
         Each patch here breaks one rule of the real code, and its header names the test that must fail. No simulator takes part.\n\
         An ID such as 3.22 is a row of [the contract](../../behaviour.md), `invariant-5` an item in\n\
         [ARCHITECTURE.md](../../../ARCHITECTURE.md#invariants).\n\n\
         `cargo mutants --tests --all` runs each test without a patch, where it must pass. Then it applies each patch to a copy of\n\
         the tree, where the test must fail, and writes this page. `cargo mutants --tests NAME...` plays some and writes nothing.\n\n\
         To run a test by hand: `cargo test -p PACKAGE TARGET -- --exact NAME`.\n\n\
         {COMMIT}{commit}`.\n\n\
         | mutant | rule | test | result |\n| --- | --- | --- | --- |\n"
    );
    for mutant in mutants {
        let result = if found.contains(&mutant.name) { FAILS } else { SURVIVES };
        writeln!(page, "{} {result} |", start_of_row(mutant)).unwrap_or_default();
    }
    page
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
        let [name, _, seed, law] = cells[..] else { return None };
        let found = Found { seed: seed.parse().ok()?, law: law.to_owned() };
        Some((name.trim_end_matches('`').to_owned(), found))
    });
    rows.collect()
}

/// What is wrong with a page: no commit, a mutant without a row that has its header, a row that says that a mutant survives, a row
/// without a patch. A row may say that its mutant has not been played yet.
pub fn stale(page: &str, mutants: &[Mutant]) -> Vec<String> {
    let mut wrong = Vec::new();
    if commit(page).is_none() {
        wrong.push("the page names no commit".to_owned());
    }
    for mutant in mutants {
        let start = format!("{} ", start_of_row(mutant));
        let result = page.lines().find_map(|line| line.strip_prefix(&start));
        if result.is_none_or(|result| result.contains(SURVIVES)) {
            wrong.push(format!("{} has no row with its header, or survives", mutant.name));
        }
    }
    let rows = page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
    let unknown = rows.filter(|name| !mutants.iter().any(|mutant| mutant.name == **name));
    wrong.extend(unknown.map(|name| format!("{name} has a row and no patch")));
    wrong
}

/// The commit that was played.
fn commit(page: &str) -> Option<&str> {
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
        Mutant { name: name.to_owned(), rule, test, patch: PathBuf::new() }
    }

    #[test]
    fn the_simulators_page_is_read_as_written() {
        let mutants = [mutant("a", None), mutant("b", None)];
        let law = "10.0.0.1 of IPPool \"blue\" is held twice".to_owned();
        let found = BTreeMap::from([("a".to_owned(), Found { seed: 7, law })]);
        let page = simulator_page(&mutants, &found, HEAD);
        assert_eq!((seeds(&page), commit(&page)), (found, Some(HEAD)));
        let wrong = stale(&page, &mutants);
        assert!(wrong.len() == 1 && wrong[0].starts_with("b has no row"), "{wrong:?}");
        assert_eq!(stale(&page, &[]), ["a has a row and no patch", "b has a row and no patch"]);
    }

    #[test]
    fn another_rule_test_or_commit_makes_a_page_stale() {
        let (one, other) = ("ipam-core --test rules plan::a", "ipam-core --test rules plan::b");
        let played = [mutant("a", Some(one))];
        let page = tests_page(&played, &BTreeSet::from(["a".to_owned()]), HEAD);
        assert_eq!(stale(&page, &played), [""; 0]);
        let reworded = Mutant { rule: Rule { id: "3.23".to_owned(), ..played[0].rule.clone() }, ..played[0].clone() };
        for changed in [mutant("a", Some(other)), reworded] {
            assert_eq!(stale(&page, &[changed]).len(), 1);
        }
        let survives = tests_page(&played, &BTreeSet::new(), HEAD);
        assert_eq!(stale(&survives, &played).len(), 1);
        assert_eq!(stale(&page.replace(HEAD, "HEAD"), &played), ["the page names no commit"]);
    }
}
