//! Holds `behaviour.md` to its promise: each sentence names tests, and each test it names is there and runs by itself, or is marked
//! as run by hand. Whether a test really fails when its sentence is broken is for its reader to judge. Needs nothing but the sources.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One sentence of the table.
#[derive(PartialEq, Eq, Debug)]
struct Row {
    section: u32,
    number: u32,
    id: String,
    tests: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The rows of a page, and what is wrong with the form of it.
fn rows(page: &str) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut mistakes, mut section) = (Vec::new(), Vec::new(), None);
    for (at, line) in page.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.strip_prefix('§').and_then(|rest| rest.split(' ').next()?.parse().ok());
            if section.is_none() {
                mistakes.push(format!("line {at}: the heading names no section, write \"## §N Title\""));
            }
        }
        if !line.starts_with('|') || line.starts_with("| id |") || line.starts_with("| --- |") {
            continue;
        }
        match row(line, section) {
            Ok(row) => rows.push(row),
            Err(why) => mistakes.push(format!("line {at}: {why}")),
        }
    }
    (rows, mistakes)
}

fn row(line: &str, section: Option<u32>) -> Result<Row, String> {
    let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [id, sentence, tests] = cells[..] else {
        return Err(format!("has {} columns, want id, sentence and tests", cells.len()));
    };
    let ids = id.split_once('.').and_then(|(section, number)| Some((section.parse().ok()?, number.parse().ok()?)));
    let (of, number) = ids.ok_or_else(|| format!("{id:?} is no id, want SECTION.NUMBER"))?;
    if Some(of) != section {
        return Err(format!("{id} stands outside its section"));
    }
    if sentence.is_empty() {
        return Err(format!("{id} has no sentence"));
    }
    Ok(Row { section: of, number, id: id.to_owned(), tests: tests.to_owned() })
}

/// Ids that are missing, doubled or out of order.
fn misnumbered(rows: &[Row]) -> Vec<String> {
    let mut last = (0, 0);
    let mut mistakes = Vec::new();
    for Row { section, number, id, .. } in rows {
        let next = if *section == last.0 { last.1 + 1 } else { 1 };
        if *section < last.0 || *number != next {
            mistakes.push(format!("{id} follows {}.{}: ids are counted up, each once", last.0, last.1));
        }
        last = (*section, *number);
    }
    mistakes
}

/// Stands before a test that only a person runs.
const BY_HAND: &str = "by hand";

/// A test that a row names.
#[derive(PartialEq, Eq, Debug)]
struct Named<'a> {
    path: &'a str,
    function: &'a str,
    by_hand: bool,
}

/// Each `path::function` in backticks, some of them behind "by hand"; whatever else stands in the column is a mistake.
fn named(row: &Row) -> (Vec<Named<'_>>, Vec<String>) {
    let (mut tests, mut mistakes, mut by_hand) = (Vec::new(), Vec::new(), false);
    for (at, part) in row.tests.split('`').enumerate() {
        let between = part.trim_matches([',', ' ']);
        match part.split_once("::") {
            Some((path, function)) if at % 2 == 1 => tests.push(Named { path, function, by_hand }),
            _ if at % 2 == 0 && ["", BY_HAND].contains(&between) => by_hand = between == BY_HAND,
            _ => mistakes.push(format!("{}: {part:?} names no test, write `path/to/file.rs::function`", row.id)),
        }
    }
    if tests.is_empty() {
        mistakes.push(format!("{}: names no test", row.id));
    }
    (tests, mistakes)
}

/// The files of tests that no `cargo test` runs, by the manifest of the package in `folder`: each target with `test = false`.
/// What such a target's file includes lies beside it, in a folder of its own.
fn kept_out(folder: &str, manifest: &str) -> Vec<String> {
    let mut kept_out = Vec::new();
    for target in manifest.split("\n[").skip(1) {
        let value = |key: &str| {
            let values = target.lines().filter_map(|line| line.split_once('='));
            let mut of_key = values.filter(|(name, _)| name.trim() == key);
            of_key.next().map(|(_, value)| value.trim().trim_matches('"').to_owned())
        };
        if value("test").as_deref() == Some("false") {
            let path = value("path").or_else(|| value("name").map(|name| format!("tests/{name}.rs"))).unwrap();
            kept_out.push(format!("{folder}/{}", path.strip_suffix("main.rs").unwrap_or(&path)));
        }
    }
    kept_out
}

/// What is wrong with the function as a test; `None` if it is one that runs.
fn not_a_test(source: &str, function: &str) -> Option<&'static str> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let opens = |line: &&str| {
        let after = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        after.and_then(|rest| rest.strip_prefix(function)).is_some_and(|rest| rest.starts_with('('))
    };
    let Some(at) = lines.iter().position(opens) else { return Some("has no such function") };
    let above: Vec<_> =
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//")).collect();
    let is = |name: &str| above.iter().any(|line| line.strip_prefix("#[").is_some_and(|rest| rest.starts_with(name)));
    if is("ignore") {
        return Some("ignores this test");
    }
    let runs = ["test]", "tokio::test]", "tokio::test(", "rstest]"].into_iter().any(is);
    (!runs).then_some("has this function, but not as a test")
}

/// All that is wrong with the page, the sources read through `read`. Tests in `kept_out` run by hand alone.
fn mistakes(page: &str, kept_out: &[String], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let (rows, mut mistakes) = rows(page);
    mistakes.extend(misnumbered(&rows));
    let mut sources: BTreeMap<String, Option<String>> = BTreeMap::new();
    for row in &rows {
        let (tests, wrong) = named(row);
        mistakes.extend(wrong);
        for Named { path, function, by_hand } in tests {
            let source = sources.entry(path.to_owned()).or_insert_with(|| read(path));
            let runs = !kept_out.iter().any(|folder| path.starts_with(folder.as_str()));
            let why = match source {
                None => Some("is no file of this repository"),
                Some(_) if by_hand && runs => Some("runs by itself"),
                Some(_) if !by_hand && !runs => Some("is kept out by `test = false`, write \"by hand\" before it"),
                Some(source) => not_a_test(source, function),
            };
            mistakes.extend(why.map(|why| format!("{}: {path} {why}: {function}", row.id)));
        }
    }
    mistakes
}

/// Of every package of the workspace.
fn all_kept_out() -> Vec<String> {
    let read = |folder: &str| fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap();
    let workspace = read(".");
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    members.split('"').skip(1).step_by(2).flat_map(|folder| kept_out(folder, &read(folder))).collect()
}

#[test]
fn every_sentence_of_the_contract_names_tests_that_exist() {
    let page = fs::read_to_string(repository().join("e2e/behaviour.md")).unwrap();
    let (rows, _) = rows(&page);
    let sections: Vec<_> = rows.chunk_by(|a, b| a.section == b.section).map(|rows| rows[0].section).collect();
    assert_eq!(sections, [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]);
    let found = mistakes(&page, &all_kept_out(), |path| fs::read_to_string(repository().join(path)).ok());
    assert!(found.is_empty(), "behaviour.md has {} mistakes:\n{}", found.len(), found.join("\n"));
}

const SOURCE: &str = concat!(
    "
    #[test]
    fn plain() {}
    /// Said of it.
    #[tokio::test(start_paused = true)]
    // And this.
    async fn awaited() {}
    #[rstest]
    #[case(1)]
    fn cases(#[case] n: u32) {}
    fn helper() {}
    #[test]
",
    "    #[",
    "ignore",
    "]\n",
    "    fn ignored() {}
"
);

fn mistakes_of(rows: &str) -> Vec<String> {
    let page = format!("# Page\n\n## §1 Names\n| id | sentence | tests |\n| --- | --- | --- |\n{rows}\n");
    mistakes(&page, &["by/hand/".to_owned()], |path| {
        ["a.rs", "by/hand/main.rs"].contains(&path).then(|| SOURCE.to_owned())
    })
}

#[test]
fn a_row_that_names_tests_is_right() {
    assert_eq!(mistakes_of("| 1.1 | s | `a.rs::plain`, `a.rs::awaited` |\n| 1.2 | s | `a.rs::cases` |"), [""; 0]);
    assert_eq!(mistakes_of("| 1.1 | s | `a.rs::plain`, by hand `by/hand/main.rs::plain`, `a.rs::cases` |"), [""; 0]);
    assert_eq!(mistakes_of("| 1.1 | s | by hand `by/hand/main.rs::plain` |"), [""; 0]);
}

#[test]
fn every_mistake_of_a_table_is_told() {
    for (rows, mistake) in [
        ("| 1.1 | s | |", "1.1: names no test"),
        ("| 1.1 | s | soon |", "1.1: \"soon\" names no test"),
        ("| 1.1 | s | `a.rs` |", "1.1: \"a.rs\" names no test"),
        ("| 1.1 | s | `b.rs::plain` |", "1.1: b.rs is no file of this repository"),
        ("| 1.1 | s | `by/hand/main.rs::plain` |", "1.1: by/hand/main.rs is kept out by `test = false`"),
        ("| 1.1 | s | by hand `a.rs::plain` |", "1.1: a.rs runs by itself"),
        ("| 1.1 | s | by foot `a.rs::plain` |", "1.1: \"by foot \" names no test"),
        ("| 1.1 | s | `a.rs::plai` |", "1.1: a.rs has no such function: plai"),
        ("| 1.1 | s | `a.rs::helper` |", "1.1: a.rs has this function, but not as a test: helper"),
        ("| 1.1 | s | `a.rs::ignored` |", "1.1: a.rs ignores this test: ignored"),
        ("| 1.1 | | `a.rs::plain` |", "line 6: 1.1 has no sentence"),
        ("| 1.1 | s |", "line 6: has 2 columns"),
        ("| 2.1 | s | `a.rs::plain` |", "line 6: 2.1 stands outside its section"),
        ("| x | s | `a.rs::plain` |", "line 6: \"x\" is no id"),
        ("| 1.2 | s | `a.rs::plain` |", "1.2 follows 0.0"),
        ("| 1.1 | s | `a.rs::plain` |\n| 1.1 | s | `a.rs::plain` |", "1.1 follows 1.1"),
        ("| 1.1 | s | `a.rs::plain` |\n| 1.3 | s | `a.rs::plain` |", "1.3 follows 1.1"),
        ("## Names", "line 6: the heading names no section"),
    ] {
        let found = mistakes_of(rows);
        assert!(found.iter().any(|one| one.starts_with(mistake)), "{rows}: {found:?} lacks {mistake:?}");
    }
    assert_eq!(mistakes_of("| 1.1 | s | |\n| 1.2 | s | `b.rs::x` |").len(), 2, "all at once");
}

#[test]
fn targets_without_tests_are_read_from_manifests() {
    let manifest = "[package]\nname = \"p\"\n\n[[test]]\nname = \"slow\"\npath = \"tests/slow/main.rs\"\ntest = false\n\n\
        [[test]]\nname = \"dear\"\ntest = false\n\n[[test]]\nname = \"quick\"\npath = \"tests/quick.rs\"\n";
    assert_eq!(kept_out("p", manifest), ["p/tests/slow/", "p/tests/dear.rs"]);
    assert!(all_kept_out().contains(&"e2e/tests/cert_manager/".to_owned()), "{:?}", all_kept_out());
}

/// The Rust files below `folder`, by their paths in the repository.
fn sources(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let is_of_it = !name.to_string_lossy().starts_with('.') && name != "target";
        if path.is_dir() && is_of_it {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(repository()).unwrap().display().to_string();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// The files and tests in backticks that do not exist. A name alone is of the file before it in the line.
fn unknown_names(page: &str, sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut unknown = Vec::new();
    for (at, line) in page.lines().enumerate() {
        let mut files: Vec<&String> = Vec::new();
        for text in line.split('`').skip(1).step_by(2).filter(|text| !text.contains([' ', '{', '*'])) {
            let (file, name) = text.split_once("::").map_or((text, None), |(file, name)| (file, Some(name)));
            let is_file = Path::new(file).extension().is_some_and(|extension| extension == "rs");
            if is_file {
                let ends =
                    |path: &&String| path.strip_suffix(file).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
                files = sources.keys().filter(ends).collect();
            }
            // A test is a sentence.
            let is_test = |name: &str| {
                name.matches('_').count() >= 4 && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
            };
            let name = if is_file { name } else { Some(text).filter(|text| is_test(text)) };
            let has = |name: &str| files.iter().any(|file| sources[*file].contains(&format!(" {name}")));
            if (is_file && files.is_empty()) || !name.is_none_or(has) {
                unknown.push(format!("line {}: {text}", at + 1));
            }
        }
    }
    unknown
}

#[test]
fn every_file_and_test_that_architecture_names_exists() {
    let mut found = BTreeMap::new();
    sources(&repository(), &mut found);
    let page = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    assert_eq!(unknown_names(&page, &found), Vec::<String>::new());
}

#[test]
fn a_file_or_test_that_does_not_exist_is_found() {
    let sources = BTreeMap::from([("a/src/b.rs".to_owned(), "fn it_has_a_name_of_words() {}".to_owned())]);
    let page =
        "`b.rs::it_has_a_name_of_words` and `it_has_another_name_of_words`\n`src/c.rs`, `a_field`\n`b.rs::it_has_none`";
    let expected = ["line 1: it_has_another_name_of_words", "line 2: src/c.rs", "line 3: b.rs::it_has_none"];
    assert_eq!(unknown_names(page, &sources), expected);
}
