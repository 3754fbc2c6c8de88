//! Plain language: short sentences, short table cells, no word of the project's earlier dialect.
//!
//! Code spans and code blocks are not prose: a span counts as one word, a block is left out.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages::{self, Page};

/// Pages whose tables have no longest cell. A test compares the cells of the contract with the code, and `cargo mutants` writes the others
/// with texts of the product. Banned words count in these cells, too.
const TABLES: [&str; 3] = ["e2e/behaviour.md", "e2e/mutants/README.md", "e2e/mutants/tests/README.md"];
/// Longest sentence, in words.
const SENTENCE: usize = 25;
/// The same for a description in a CRD. Kubernetes itself describes the fields of a condition, in up to 27 words.
const DESCRIPTION: usize = 30;
/// Longest table cell, in words.
const CELL: usize = 20;
/// Words on the front page, code blocks and links' targets not counted.
const FRONT_PAGE: usize = 900;

/// Words that only this project used in this sense, where Kubernetes has others.
const BANNED: [&str; 19] = [
    "anew",
    "whoever",
    "nobody",
    "barred",
    "let go of",
    "lets go of",
    "is told",
    "are told",
    "was told",
    "speaks",
    "spoken",
    "silent",
    "silence",
    "who leads",
    "of before",
    "in the way",
    "no news",
    "goes on giving",
    "given back",
];

/// What a piece of prose is, which decides how long it may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Text,
    Cell,
}

/// The prose of a page in pieces: a paragraph, heading, list item or table cell each.
fn prose(markdown: &str) -> Vec<(Kind, String)> {
    let mut pieces: Vec<(Kind, String)> = Vec::new();
    let (mut kind, mut text, mut in_code) = (Kind::Text, String::new(), false);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(words) if !in_code => text.push_str(&words),
            Event::Code(_) => text.push_str("`code`"),
            Event::Html(html) | Event::InlineHtml(html) => text.push_str(&html.replace(['<', '>'], " ")),
            Event::SoftBreak | Event::HardBreak => text.push(' '),
            Event::Start(Tag::TableCell) => {
                finish(&mut pieces, kind, &mut text);
                kind = Kind::Cell;
            }
            Event::End(TagEnd::TableCell) => {
                finish(&mut pieces, kind, &mut text);
                kind = Kind::Text;
            }
            Event::Start(Tag::Item | Tag::Paragraph | Tag::Heading { .. } | Tag::List(_))
            | Event::End(TagEnd::Item | TagEnd::Paragraph | TagEnd::Heading(_)) => finish(&mut pieces, kind, &mut text),
            _ => {}
        }
    }
    finish(&mut pieces, kind, &mut text);
    pieces
}

fn finish(pieces: &mut Vec<(Kind, String)>, kind: Kind, text: &mut String) {
    let piece = std::mem::take(text);
    if !piece.trim().is_empty() {
        pieces.push((kind, piece));
    }
}

/// Sentences end with a full stop, question mark or exclamation mark before a blank, and with their piece.
fn sentences(piece: &str) -> impl Iterator<Item = &str> {
    const NO_END: [&str; 4] = ["e.g.", "i.e.", "etc.", "vs."];
    let mut from = 0;
    let mut ends: Vec<(usize, usize)> = Vec::new();
    for (at, _) in piece.match_indices(['.', '?', '!']) {
        let end = at + 1;
        let is_last = piece[end..].chars().next().is_none_or(char::is_whitespace);
        if is_last && !NO_END.iter().any(|word| piece[..end].ends_with(word)) {
            ends.push((from, end));
            from = end;
        }
    }
    ends.push((from, piece.len()));
    ends.into_iter().map(|(from, end)| piece[from..end].trim()).filter(|sentence| !sentence.is_empty())
}

/// A word has a letter or digit.
fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

fn banned(text: &str) -> Option<&'static str> {
    let plain: String = text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
    let spaced = format!(" {} ", plain.split_whitespace().collect::<Vec<_>>().join(" "));
    BANNED.into_iter().find(|word| spaced.contains(&format!(" {word} ")))
}

/// Every violation of a page with sentences of at most `longest` words, each with its place.
fn violations(page: &Page, longest: usize) -> Vec<String> {
    let mut found = Vec::new();
    for (kind, piece) in prose(&page.text) {
        if let Some(word) = banned(&piece) {
            found.push(format!("{}: the word {word:?} in: {piece}", page.place));
        }
        if kind == Kind::Cell && TABLES.contains(&page.place.as_str()) {
            continue;
        }
        if kind == Kind::Cell && words(&piece) > CELL {
            found.push(format!("{}: a table cell of {} words (most: {CELL}): {piece}", page.place, words(&piece)));
        }
        for sentence in sentences(&piece).filter(|sentence| words(sentence) > longest) {
            let count = words(sentence);
            found.push(format!("{}: a sentence of {count} words (most: {longest}): {sentence}", page.place));
        }
    }
    found
}

fn assert_plain(pages: &[Page], longest: usize) {
    assert!(pages.len() > 3, "no pages found");
    let found: Vec<String> = pages.iter().flat_map(|page| violations(page, longest)).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn pages_are_in_plain_language() {
    assert_plain(&pages::markdown(), SENTENCE);
}

#[test]
fn crd_descriptions_are_in_plain_language() {
    assert_plain(&pages::crd_descriptions(), DESCRIPTION);
}

#[test]
fn front_page_is_at_most_900_words() {
    let pages = pages::markdown();
    let front = pages.iter().find(|page| page.place == "README.md").unwrap();
    let count: usize = prose(&front.text).iter().map(|(_, piece)| words(piece)).sum();
    assert!(count <= FRONT_PAGE, "README.md has {count} words");
}

#[test]
fn checker_finds_each_kind_of_violation() {
    let page = |text: &str| Page { place: "page".to_owned(), text: text.to_owned() };
    let found = |page: &Page| violations(page, SENTENCE);
    let long = |count: usize| vec!["word"; count].join(" ");
    assert_eq!(found(&page("Nobody assigns `a block that is told` here.")).len(), 1);
    assert_eq!(found(&page("The agent\nis *told* of a block.")).len(), 1);
    assert_eq!(found(&page(&format!("{}. {}.", long(25), long(25)))).len(), 0);
    assert_eq!(found(&page(&format!("- {} `x`, e.g. {}", long(15), long(10)))).len(), 1);
    assert_eq!(found(&page(&format!("| a | b |\n| - | - |\n| {} | {} |", long(20), long(21)))).len(), 1);
    let list = |cell: &str| Page { place: TABLES[0].to_owned(), text: format!("| a |\n| - |\n| {cell} |") };
    assert_eq!(found(&list(&long(40))).len(), 0);
    assert_eq!(found(&list("nobody")).len(), 1);
    assert_eq!(found(&page("<details>\nNobody assigns it.\n</details>")).len(), 1);
    assert_eq!(found(&page(&format!("```\nnobody is told {}\n```", long(40)))).len(), 0);
}
