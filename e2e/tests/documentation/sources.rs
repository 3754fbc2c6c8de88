//! Collects string literals from the sources by a simple scan, without a Rust parser.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ipam_e2e::binaries::workspace;

/// The string literals of the sources at `places` (files or folders, from the root of the repository), tests left out.
pub(crate) fn literals(places: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for place in places {
        let before = found.len();
        collect(&workspace().join(place), &mut found);
        assert!(found.len() > before, "no new string literal in {place}");
    }
    found
}

/// The literals that look like a reason: one word in camel case with a leading capital letter.
pub(crate) fn reasons(places: &[&str]) -> BTreeSet<String> {
    literals(places).into_iter().filter(|text| is_reason(text)).collect()
}

/// Whether a text looks like a reason.
pub(crate) fn is_reason(text: &str) -> bool {
    text.len() > 3
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphabetic())
        && text.contains(|c: char| c.is_ascii_lowercase())
}

fn collect(path: &Path, found: &mut BTreeSet<String>) {
    let name = path.file_name().unwrap().to_string_lossy();
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|entry| !entry.ends_with("tests")).for_each(|entry| collect(&entry, found));
    } else if name.ends_with(".rs") && name != "tests.rs" {
        let source = fs::read_to_string(path).unwrap();
        found.extend(of_source(&source));
    }
}

/// The literals of one source up to its tests, which stand last in a file.
fn of_source(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code = source.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    // A quote that is a character or escaped does not delimit a literal.
    let code = code.replace("'\"'", "").replace("\\\\", "").replace("\\\"", "");
    code.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn literals_of_comments_and_tests_do_not_count() {
    let source = "/// \"Doc\"\nlet a = ('\"', \"Good\\\"\", \"Better\");\n#[cfg(test)]\nmod tests { \"Test\" }\n";
    assert_eq!(of_source(source), ["Good", "Better"]);
}

#[test]
fn a_reason_is_one_word_in_camel_case() {
    for (text, expected) in [("NoFreeRanges", true), ("Valid", true), ("n1", false), ("GET", false), ("A b", false)] {
        assert_eq!(is_reason(text), expected, "{text}");
    }
}
