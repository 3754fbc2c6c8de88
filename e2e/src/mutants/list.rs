//! The list of mutants with the seed that finds each: written by a run over all of them, read by later runs, which try that
//! seed first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Mutant, STEPS};

/// How a mutant was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The seed of the history.
    pub seed: u64,
    /// The law that it broke, in words.
    pub law: String,
}

/// The page.
pub fn write(mutants: &[Mutant], found: &BTreeMap<String, Found>) -> String {
    let mut page = format!(
        "# Mutants\n\n\
         Each patch here breaks one rule of the real code. None of them may survive the simulator: for each there is a seed whose\n\
         history, {STEPS} steps long, breaks a law. `cargo run -p ipam-e2e --bin mutants -- --all` applies each to a copy of the\n\
         tree, plays it and writes this page; `-- NAME…` does so for some without writing, `-- --turn N` for a few, others with each N.\n\n\
         To see one die step by step, `git apply e2e/mutants/NAME.patch` in a copy and\n\
         `cargo run -p ipam-e2e --bin simulate -- --seeds SEED --steps {STEPS}`: it prints the shortest history that shows it.\n\n\
         | mutant | the rule that it breaks | seed | what the seed shows |\n| --- | --- | --- | --- |\n"
    );
    for mutant in mutants {
        let (seed, law) = match found.get(&mutant.name) {
            Some(Found { seed, law }) => (seed.to_string(), law.as_str()),
            None => ("–".to_owned(), "survives"),
        };
        // The law speaks of addresses and names, none of which has a bar in it.
        let law: String = law.chars().take(160).collect();
        writeln!(page, "| `{}` | {} | {seed} | {law} |", mutant.name, mutant.rule).unwrap_or_default();
    }
    page
}

/// The rows of the page that tell a seed, by mutant.
pub fn read(page: &str) -> BTreeMap<String, Found> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, seed, law] = cells[..] else { return None };
        let found = Found { seed: seed.parse().ok()?, law: law.to_owned() };
        Some((name.trim_end_matches('`').to_owned(), found))
    });
    rows.collect()
}

/// What is wrong with the page: mutants that it does not list as found by their rule, and rows without a mutant.
pub fn stale(page: &str, mutants: &[Mutant]) -> Vec<String> {
    let found = read(page);
    let missing = mutants.iter().filter(|mutant| {
        let row = format!("| `{}` | {} | ", mutant.name, mutant.rule);
        !found.contains_key(&mutant.name) || !page.lines().any(|line| line.starts_with(&row))
    });
    let unknown = found.keys().filter(|name| !mutants.iter().any(|mutant| mutant.name == **name));
    missing
        .map(|mutant| format!("{} has no row with its rule and a seed", mutant.name))
        .chain(unknown.map(|name| format!("{name} has a row and no patch")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_does_not_agree_is_said() {
        let mutant =
            |name: &str| Mutant { name: name.to_owned(), rule: format!("Rule of {name}."), patch: PathBuf::new() };
        let mutants = [mutant("a"), mutant("b")];
        let law = "10.0.0.1 of IPPool \"blue\" is held twice".to_owned();
        let found = BTreeMap::from([("a".to_owned(), Found { seed: 7, law })]);
        let page = write(&mutants, &found);
        assert_eq!(read(&page), found);
        assert_eq!(stale(&page, &mutants), ["b has no row with its rule and a seed"]);
        assert_eq!(stale(&page, &[]), ["a has a row and no patch"]);
        let renamed = Mutant { rule: "Another.".to_owned(), ..mutant("a") };
        assert_eq!(stale(&page, &[renamed]).len(), 1);
    }
}
