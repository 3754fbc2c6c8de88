//! The laws of the simulator that may find a mutant, and the laws that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Reads what follows `Law: ` in the header of a patch: names of laws, separated by commas.
///
/// # Errors
/// A name is missing, is named twice, or has another form than the names of laws.
pub(super) fn read(line: &str) -> Result<Vec<String>> {
    let names: Vec<String> = line.split(',').map(|name| name.trim().to_owned()).collect();
    ensure!(names.iter().all(|name| is_name(name)), "must be \"Law: NAME[, NAME]\", where a NAME is like one-holder");
    let different: BTreeSet<&String> = names.iter().collect();
    ensure!(different.len() == names.len(), "a law is named twice");
    Ok(names)
}

/// Whether the text can be the name of a law: lowercase words joined by hyphens.
pub(super) fn is_name(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    text.contains('-') && text.split('-').all(is_word)
}

/// Every law that the simulator's sources in `tree` can report as broken.
///
/// # Errors
/// The sources cannot be read.
pub fn laws(tree: &Path) -> Result<BTreeSet<String>> {
    let mut laws = BTreeSet::new();
    collect(&tree.join("e2e/simulator/src"), &mut laws)?;
    Ok(laws)
}

fn collect(place: &Path, laws: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(place).with_context(|| format!("{} cannot be read", place.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, laws)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            laws.extend(reported(&fs::read_to_string(&path)?).map(str::to_owned));
        }
    }
    Ok(())
}

/// The laws that a source reports: the first argument of `broken(…)`, or the field `law` of a `Broken`.
fn reported(source: &str) -> impl Iterator<Item = &str> {
    ["broken(", "Broken { law: "].into_iter().flat_map(move |start| {
        let calls = source.split(start).skip(1);
        calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next()).filter(|name| is_name(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_laws_once_each() {
        assert_eq!(read(" one-holder, held-is-recorded ").unwrap(), ["one-holder", "held-is-recorded"]);
        for wrong in ["", "one-holder,", "one-holder held-is-recorded", "One-Holder", "twice", "a-b, a-b", "a--b"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn laws_are_those_that_the_sources_report() {
        let source = "fn broken<T>(law: &str) {}\nreturn broken(\"a-b\", what);\nbroken(\n    \"c-d\",\n  format!(\"e-f\"));\n\
            let law = law::Broken { law: \"no-panic\", what };\nbroken(name, what)\n";
        assert_eq!(reported(source).collect::<Vec<_>>(), ["a-b", "c-d", "no-panic"]);
    }
}
