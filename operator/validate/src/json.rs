//! Parses JSON text into trees. Each value is a slice of the text, so that its place is known.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::tree::{Limits, MAX_DEPTH, Member, Node, Place, Unread, Value};

/// Parses all values in `text`, which may follow each other as for `kubectl`.
pub(super) fn documents(text: &str, limits: Limits) -> Result<Vec<Rc<Node>>, Unread> {
    let mut reader = Reader { lines: Lines::new(text), nodes: 0, most: limits.values };
    let values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    values.map(|value| reader.tree(value.map_err(|error| unread(&error))?, 0)).collect()
}

struct Reader<'a> {
    lines: Lines<'a>,
    nodes: usize,
    most: usize,
}

impl Reader<'_> {
    fn tree(&mut self, raw: &RawValue, depth: usize) -> Result<Rc<Node>, Unread> {
        let text = raw.get();
        let at = self.lines.place(text);
        self.nodes += 1;
        if self.nodes > self.most {
            return Err(Unread { at, message: format!("the file has more than {} values; split it", self.most) });
        }
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} lists and objects stand in each other");
            return Err(Unread { at, message });
        }
        let unread = |error: serde_json::Error| Unread { at, message: format!("does not read as JSON: {error}") };
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let members: Members<'_> = serde_json::from_str(text).map_err(unread)?;
                Node::map(self.members(members, depth)?, at)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(unread)?;
                let items = items.into_iter().map(|item| self.tree(item, depth + 1));
                Node::list(items.collect::<Result<_, _>>()?, at)
            }
            Some(b'"') => Node::leaf(Value::Text(serde_json::from_str::<String>(text).map_err(unread)?.into()), at),
            _ => Node::leaf(scalar(text), at),
        })
    }

    fn members(&mut self, members: Members<'_>, depth: usize) -> Result<Vec<Member>, Unread> {
        let member = |(name, raw): (Cow<'_, str>, &RawValue)| {
            let node = self.tree(raw, depth + 1)?;
            Ok(Member { name: name.into(), at: node.at, node })
        };
        members.0.into_iter().map(member).collect()
    }
}

fn scalar(text: &str) -> Value {
    match text {
        "null" => Value::Null,
        "true" => Value::Bool(true, text.into()),
        "false" => Value::Bool(false, text.into()),
        number => match number.parse() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::Float(number.parse().unwrap_or(f64::INFINITY), number.into()),
        },
    }
}

/// The members of an object in the order of the text, including duplicate names.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, raw)) = map.next_entry::<String, &RawValue>()? {
                    members.push((Cow::Owned(name), raw));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(InOrder).map(Members)
    }
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(breaks).collect() }
    }

    /// The place of `piece`, which must be a slice of the text itself and not a copy.
    fn place(&self, piece: &str) -> Place {
        let offset = piece.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or_default();
        Place { line, column: offset - start + 1 }
    }
}

fn unread(error: &serde_json::Error) -> Unread {
    let at = Place { line: error.line().max(1), column: error.column().max(1) };
    // The error ends with the place, which is reported separately.
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    Unread { at, message: format!("does not read as JSON: {what}") }
}
