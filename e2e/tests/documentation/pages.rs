//! Finds the Markdown files of the repository and splits pages into prose, tables and code spans.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ipam_e2e::binaries::workspace;

/// One Markdown file.
pub(crate) struct Page {
    /// Path from the root of the repository.
    pub(crate) path: PathBuf,
    /// Content.
    pub(crate) text: String,
}

impl Page {
    /// The page at `path`, counted from the root of the repository.
    pub(crate) fn read(path: &str) -> Self {
        let text = fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.into(), text }
    }

    /// The lines outside fenced code blocks, each with its number from 1.
    pub(crate) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fence = None;
        self.text.lines().enumerate().filter_map(move |(at, line)| {
            let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
            match (fence, mark) {
                (None, Some(_)) => fence = mark,
                (Some(open), Some(mark)) if open == mark => fence = None,
                (Some(_), _) => {}
                (None, None) => return Some((at + 1, line)),
            }
            None
        })
    }

    /// The rows of all tables, each with the heading that it stands below and its cells.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let (mut rows, mut heading) = (Vec::new(), String::new());
        for (line, text) in self.prose() {
            if text.starts_with('#') {
                text.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            let is_rule = text.contains("---") && text.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
            if text.starts_with('|') && !is_rule {
                rows.push(Row { line, heading: heading.clone(), cells: cells(text) });
            }
        }
        rows
    }

    /// The texts of all code spans outside fenced code blocks.
    pub(crate) fn code_spans(&self) -> Vec<String> {
        self.prose().flat_map(|(_, line)| code_spans(line)).collect()
    }

    /// The words of all code spans: runs of letters, digits, `-`, `_`, `.` and `/`, without a full stop at the end.
    pub(crate) fn code_words(&self) -> BTreeSet<String> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        let spans = self.code_spans();
        let words = spans.iter().flat_map(|span| span.split(|c| !is_word(c)));
        words.map(|word| word.trim_end_matches('.').to_owned()).filter(|word| !word.is_empty()).collect()
    }
}

/// One row of a table.
pub(crate) struct Row {
    /// Line number from 1.
    pub(crate) line: usize,
    /// Text of the heading above.
    pub(crate) heading: String,
    /// Text of each cell.
    pub(crate) cells: Vec<String>,
}

/// The Markdown files of the repository, sorted by path, without hidden folders and folders named `target`.
pub(crate) fn all() -> Vec<Page> {
    let mut paths = Vec::new();
    collect(&workspace(), &mut paths);
    paths.sort();
    let relative = |path: PathBuf| path.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned();
    paths.into_iter().map(|path| Page::read(&relative(path))).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_folder = entry.file_type().unwrap().is_dir();
        if is_folder && !name.starts_with('.') && name != "target" {
            collect(&path, paths);
        } else if !is_folder && path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
}

/// The texts between backticks in one line.
pub(crate) fn code_spans(line: &str) -> Vec<String> {
    line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The cells of a table's row. `\|` is a bar within a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    line.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

#[test]
fn a_page_is_read_without_code_blocks() {
    let text = "# Flags\n\n| a | `b|` |\n| --- | --- |\n| `--x` \\| y | z |\n```\n`--no` | not\n```\n`--yes`, and\n";
    let page = Page { path: "p.md".into(), text: text.replace("`b|`", "b") };
    let rows: Vec<_> = page.rows().into_iter().map(|row| (row.line, row.heading, row.cells)).collect();
    let row = |line, cells: [&str; 2]| (line, "Flags".to_owned(), cells.map(str::to_owned).to_vec());
    assert_eq!(rows, [row(3, ["a", "b"]), row(5, ["`--x` | y", "z"])]);
    assert_eq!(page.code_spans(), ["--x", "--yes"]);
}

#[test]
fn the_pages_of_all_folders_are_found() {
    let found: Vec<_> = all().into_iter().map(|page| page.path.to_str().unwrap().to_owned()).collect();
    for page in ["README.md", "ARCHITECTURE.md", "charts/nv-ipam/README.md", "docs/README.md", "e2e/behaviour.md"] {
        assert!(found.iter().any(|path| path == page), "{page} is not among {found:?}");
    }
}
