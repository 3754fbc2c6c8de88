//! Parses YAML text into trees, one for each document. An invalid document does not hide the others. The size of a document,
//! with its aliases in full, is limited before its tree is built.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::scalar;
use super::tree::{Limits, MAX_DEPTH, Member, Node, Place, Unread, Value};

/// Parses all documents in `text`, in order. Empty ones are omitted.
pub(super) fn documents(text: &str, limits: Limits, mut each: impl FnMut(Result<Rc<Node>, Unread>)) {
    if let Some(unread) = directive(text) {
        each(Err(unread));
    }
    let mut options = granit_parser::options! {};
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(text, options);
    loop {
        match next_document(&mut parser, limits) {
            Ok(Some(node)) if node.value == Value::Null => {}
            Ok(Some(node)) => each(Ok(node)),
            Ok(None) => return,
            Err(unread) => {
                each(Err(unread));
                if !matches!(parser.proceed_next_document(), Ok(true)) {
                    return;
                }
            }
        }
    }
}

/// The error for a directive before the first document. It is valid YAML, but kubectl parses the text before the first `---`
/// as a document.
fn directive(text: &str) -> Option<Unread> {
    let is_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let (number, line) = text.lines().enumerate().find(|(_, line)| !is_nothing(line))?;
    line.starts_with('%').then(|| Unread {
        at: Place { line: number + 1, column: 1 },
        message: "is a directive, which kubectl does not read; leave the line out".to_owned(),
    })
}

type Source<'a> = Parser<'a, StrInput<'a>>;

fn next_document(parser: &mut Source<'_>, limits: Limits) -> Result<Option<Rc<Node>>, Unread> {
    loop {
        match next(parser)? {
            Some((Event::StreamEnd, _)) | None => return Ok(None),
            Some((Event::DocumentStart(..), _)) => break,
            Some(_) => {}
        }
    }
    let mut builder = Builder { most: limits.values, ..Builder::default() };
    loop {
        match next(parser)? {
            Some((Event::DocumentEnd, _)) | None => return Ok(builder.root),
            Some((event, span)) => builder.take(event, span)?,
        }
    }
}

fn next<'a>(parser: &mut Source<'a>) -> Result<Option<(Event<'a>, Span)>, Unread> {
    parser.next_event().transpose().map_err(|error: ScanError| Unread {
        at: place(error.marker()),
        message: format!("does not read as YAML: {}", error.info()),
    })
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

/// A list or object whose end has not been parsed yet.
struct Open {
    at: Place,
    anchor: usize,
    items: Vec<Rc<Node>>,
    /// For an object: its members so far, the name that waits for its value, and what `<<` merges.
    object: Option<Members>,
}

#[derive(Default)]
struct Members {
    own: Vec<Member>,
    waiting: Option<(Box<str>, Place, bool)>,
    merged: Vec<Rc<Node>>,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Rc<Node>>,
    anchors: HashMap<usize, Rc<Node>>,
    /// Number of values so far, with each alias counted in full.
    nodes: usize,
    most: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Unread> {
        let at = place(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, at)?;
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                if self.takes_name(&text, is_plain, at)? {
                    return Ok(());
                }
                self.put(Node::leaf(value(&text, is_plain, tag.as_deref()), at), anchor, at)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(at, anchor, None),
            Event::MappingStart(_, anchor, _) => self.begin(at, anchor, Some(Members::default())),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(unread(at, "an alias stands inside of what it names"));
                };
                self.count(node.weight, at)?;
                self.put(node, 0, at)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize, at: Place) -> Result<(), Unread> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > self.most {
            let most = self.most;
            let message = format!("the document has more than {most} values, aliases resolved; split it into several");
            return Err(Unread { at, message });
        }
        Ok(())
    }

    fn begin(&mut self, at: Place, anchor: usize, object: Option<Members>) -> Result<(), Unread> {
        self.count(1, at)?;
        if self.open.last().and_then(|open| open.object.as_ref()).is_some_and(|object| object.waiting.is_none()) {
            return Err(unread(at, "the name of a field is a list or object; write a text"));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.open.push(Open { at, anchor, items: Vec::new(), object });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Unread> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let node = match open.object {
            None => Node::list(open.items, open.at),
            Some(members) => Node::map(members.into_members(), open.at),
        };
        self.put(node, open.anchor, open.at)
    }

    /// Whether the scalar is the name of a member, which is then waiting for its value.
    fn takes_name(&mut self, text: &str, is_plain: bool, at: Place) -> Result<bool, Unread> {
        let Some(members) = self.open.last_mut().and_then(|open| open.object.as_mut()) else { return Ok(false) };
        if members.waiting.is_some() {
            return Ok(false);
        }
        let is_merge = is_plain && text == "<<";
        let name = match is_plain.then(|| scalar::resolve(text)) {
            Some(Value::Null) => return Err(unread(at, "the name of a field is missing; in quotes it may be empty")),
            Some(Value::Bool(value, _)) => value.to_string().into(),
            Some(Value::Int(number)) => number.to_string().into(),
            _ => text.into(),
        };
        members.waiting = Some((name, at, is_merge));
        Ok(true)
    }

    fn put(&mut self, node: Rc<Node>, anchor: usize, at: Place) -> Result<(), Unread> {
        // Each alias may be one level deeper than the one it is made of, without any nesting in the text.
        if self.open.len() + node.height > MAX_DEPTH {
            return Err(too_deep(at));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open { object: None, items, .. }) => items.push(node),
            Some(Open { object: Some(members), .. }) => match members.waiting.take() {
                Some((_, _, true)) => members.merge(&node, at)?,
                Some((name, at, false)) => members.own.push(Member { name, at, node }),
                None => return Err(unread(at, "the name of a field is an alias; write it out")),
            },
        }
        Ok(())
    }
}

impl Members {
    fn merge(&mut self, node: &Rc<Node>, at: Place) -> Result<(), Unread> {
        let sources = if matches!(node.value, Value::List(_)) { node.items() } else { std::slice::from_ref(node) };
        if sources.iter().any(|source| !matches!(source.value, Value::Map(_))) {
            return Err(unread(at, "\"<<\" takes an object, or a list of objects"));
        }
        self.merged.extend(sources.iter().cloned());
        Ok(())
    }

    /// The members of the object. Its own take precedence over those that `<<` merges, and of these the first does.
    fn into_members(self) -> Vec<Member> {
        let mut all = self.own;
        if self.merged.is_empty() {
            return all;
        }
        let mut names: HashSet<Box<str>> = all.iter().map(|member| member.name.clone()).collect();
        for member in self.merged.iter().flat_map(|source| source.members()) {
            if names.insert(member.name.clone()) {
                all.push(member.clone());
            }
        }
        all
    }
}

fn value(text: &str, is_plain: bool, tag: Option<&Tag>) -> Value {
    let resolved = ["int", "float", "bool", "null"];
    if is_plain || tag.is_some_and(|tag| resolved.iter().any(|name| tag.is_yaml_core_schema_tag(name))) {
        scalar::resolve(text)
    } else {
        Value::Text(text.into())
    }
}

fn unread(at: Place, message: &str) -> Unread {
    Unread { at, message: message.to_owned() }
}

fn too_deep(at: Place) -> Unread {
    unread(at, &format!("more than {MAX_DEPTH} lists and objects stand in each other"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<serde_json::Value> {
        let mut read = Vec::new();
        documents(text, Limits::MANIFEST, |document| read.push(document.unwrap().json()));
        read
    }

    /// Another parser, for texts on which YAML 1.1 and 1.2 agree.
    fn second_opinion(text: &str) -> Vec<serde_json::Value> {
        serde_yaml::Deserializer::from_str(text)
            .map(|document| serde::Deserialize::deserialize(document).unwrap())
            .collect()
    }

    #[test]
    fn manifests_mean_what_another_parser_takes_them_for() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        let folders = [root.join("examples"), root];
        let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let files =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "yaml"));
        let mut seen = 0;
        for path in files {
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(read(&text), second_opinion(&text), "{}", path.display());
            seen += 1;
        }
        assert!(seen >= 13, "only {seen} files");
    }

    #[test]
    fn the_forms_of_yaml_mean_what_another_parser_takes_them_for() {
        for text in [
            "a: |\n  b\n   c\n\nd: >-\n  e\n  f\n",
            "? a\n: - b\n  - - c\n    - d\n",
            "{a: [1, 2.5, -3], 'b c': \"\\u00e4\\n\", d: , e: !!str 5, f: !!int \"6\"}",
            "a: &x {b: 1}\nc: *x\nd: [*x, *x]\n",
            "---\na: 1\n...\n---\nb: 2 # c\n",
            "a:\n- b\n-  c\nd: 'it''s'\n",
            "a: b\r\nc:\r\n  - d\r\n",
        ] {
            assert_eq!(read(text), second_opinion(text), "{text}");
        }
    }
}
