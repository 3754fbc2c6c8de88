//! The parts of a page that the tests compare with the code: table rows, code spans, headings and links.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages::Page;

/// A page in parts.
#[derive(Default)]
pub(crate) struct Parts {
    /// Rows of all tables, the head included.
    pub(crate) rows: Vec<Row>,
    /// Texts of all code spans.
    pub(crate) spans: Vec<String>,
    /// Texts of all headings.
    pub(crate) headings: Vec<String>,
    /// Targets of all links and images.
    pub(crate) links: Vec<String>,
}

/// One row of a table.
pub(crate) struct Row {
    /// Text of the heading above.
    pub(crate) heading: String,
    /// The cells.
    pub(crate) cells: Vec<Cell>,
}

/// One cell of a table.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cell {
    /// Text, code spans included.
    pub(crate) text: String,
    /// Texts of the code spans.
    pub(crate) spans: Vec<String>,
}

impl Parts {
    /// The parts of `page`.
    pub(crate) fn of(page: &Page) -> Self {
        let (mut parts, mut cell, mut in_code) = (Self::default(), Cell::default(), false);
        for event in Parser::new_ext(&page.text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::CodeBlock(_)) => in_code = true,
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    parts.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. } | Tag::TableCell) => cell = Cell::default(),
                Event::End(TagEnd::Heading(_)) => parts.headings.push(std::mem::take(&mut cell.text)),
                Event::Start(Tag::TableHead | Tag::TableRow) => {
                    let heading = parts.headings.last().cloned().unwrap_or_default();
                    parts.rows.push(Row { heading, cells: Vec::new() });
                }
                Event::End(TagEnd::TableCell) => {
                    parts.rows.last_mut().unwrap().cells.push(std::mem::take(&mut cell));
                }
                Event::Text(text) if !in_code => cell.text.push_str(&text),
                Event::Code(text) => {
                    cell.text.push_str(&text);
                    cell.spans.push(text.to_string());
                    parts.spans.push(text.into_string());
                }
                _ => {}
            }
        }
        parts
    }

    /// The words of all code spans: runs of letters, digits, `-`, `_`, `.` and `/`, and the parts of those between `/`.
    pub(crate) fn code_words(&self) -> BTreeSet<&str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        let words = self.spans.iter().flat_map(|span| span.split(move |c| !is_word(c)));
        words.flat_map(|word| std::iter::once(word).chain(word.split('/'))).collect()
    }
}

#[test]
fn page_is_split_into_its_parts() {
    let text =
        "# `Flags` [of](x.md)\n\n| a | `b` |\n| --- | --- |\n| `--x`, `y/z` | \\| |\n\n```\n`no` [no](no.md)\n```\n";
    let parts = Parts::of(&Page { place: "page".to_owned(), text: text.to_owned() });
    let cell = |text: &str, spans: &[&str]| Cell {
        text: text.to_owned(),
        spans: spans.iter().map(|span| (*span).to_owned()).collect(),
    };
    assert_eq!(
        (parts.headings.as_slice(), parts.links.as_slice()),
        (&["Flags of".to_owned()][..], &["x.md".to_owned()][..])
    );
    let rows: Vec<_> = parts.rows.iter().map(|row| (row.heading.as_str(), row.cells.clone())).collect();
    let head = vec![cell("a", &[]), cell("b", &["b"])];
    assert_eq!(rows, [("Flags of", head), ("Flags of", vec![cell("--x, y/z", &["--x", "y/z"]), cell("|", &[])])]);
    assert_eq!(parts.code_words(), ["--x", "Flags", "b", "y", "y/z", "z"].into());
}
