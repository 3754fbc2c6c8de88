//! The ID of the rule that a mutant breaks: a row of the contract, or an invariant of the architecture page.
//!
//! A rule outlives the code that keeps it, so a mutant names the rule and not the function.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// A rule as the first line of a patch names it: `Rule: ID text`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// `3.22` is a row of `e2e/behaviour.md`, `invariant-5` an item under "Invariants" in `ARCHITECTURE.md`.
    pub id: String,
    /// The part of the rule that the patch breaks, in one sentence.
    pub text: String,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.text)
    }
}

impl Rule {
    /// Reads what follows `Rule: `.
    ///
    /// # Errors
    /// The text has no ID, no sentence, or a character that a table cell cannot hold.
    pub(super) fn read(line: &str) -> Result<Self> {
        let (id, text) = line.trim().split_once(' ').context("must be \"Rule: ID text\"")?;
        ensure!(is_row(id) || invariant(id).is_some(), "{id:?} must be like 3.22 or invariant-5");
        ensure!(!text.is_empty() && !text.contains('|'), "the text must not be empty and must not contain \"|\"");
        Ok(Self { id: id.to_owned(), text: text.to_owned() })
    }
}

fn is_row(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    id.split_once('.').is_some_and(|(section, number)| is_number(section) && is_number(number))
}

fn invariant(id: &str) -> Option<u32> {
    id.strip_prefix("invariant-")?.parse().ok()
}

/// Every ID that a mutant may name.
///
/// # Errors
/// A page cannot be read.
pub fn known(tree: &Path) -> Result<BTreeSet<String>> {
    let read = |page: &str| std::fs::read_to_string(tree.join(page)).with_context(|| format!("{page} cannot be read"));
    let (contract, architecture) = (read("e2e/behaviour.md")?, read("ARCHITECTURE.md")?);
    Ok(rows(&contract).map(str::to_owned).chain(invariants(&architecture)).collect())
}

/// The sections of the contract that have rows.
///
/// # Errors
/// The page cannot be read.
pub fn sections(tree: &Path) -> Result<BTreeSet<String>> {
    Ok(known(tree)?.iter().filter_map(|id| Some(id.split_once('.')?.0.to_owned())).collect())
}

fn rows(contract: &str) -> impl Iterator<Item = &str> {
    contract.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next().filter(|id| is_row(id)))
}

fn invariants(architecture: &str) -> impl Iterator<Item = String> {
    let section = architecture.lines().skip_while(|line| *line != "## Invariants").skip(1);
    let items = section.take_while(|line| !line.starts_with("## "));
    items.filter_map(|line| Some(format!("invariant-{}", line.split_once(". ")?.0.parse::<u32>().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_an_id_and_a_sentence() {
        let rule = Rule::read(" 3.22 A block stays. ").unwrap();
        assert_eq!((rule.id.as_str(), rule.text.as_str()), ("3.22", "A block stays."));
        assert_eq!(Rule::read("invariant-5 A block stays.").unwrap().to_string(), "invariant-5 A block stays.");
        for wrong in ["", "3.22", "3. A", "A block stays.", "invariant-x A", "3.22 a | b", "3.22 "] {
            assert!(Rule::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ids_are_rows_and_invariants_of_the_pages() {
        let contract = "## §1 A\n| id | sentence | tests |\n| --- | --- | --- |\n| 1.1 | s | t |\n| 2.10 | s | t |\n";
        assert_eq!(rows(contract).collect::<Vec<_>>(), ["1.1", "2.10"]);
        let architecture = "1. no\n## Invariants\n\n1. One.\n   more. 7. x\n2. Two.\n## Next\n3. No.\n";
        assert_eq!(invariants(architecture).collect::<Vec<_>>(), ["invariant-1", "invariant-2"]);
    }
}
