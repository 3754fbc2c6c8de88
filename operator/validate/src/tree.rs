//! A manifest as a tree of values with their places in the file, for YAML and JSON. Nothing is validated here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use serde::Serialize;

/// Deepest nesting that is accepted. A pool needs 8 levels. The limit keeps recursion over a tree from overflowing the stack.
pub(super) const MAX_DEPTH: usize = 64;

/// How much of a file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Largest file, in bytes.
    pub(super) bytes: usize,
    /// Most values in one document, with each alias counted in full. It stops a document with aliases of aliases.
    pub(super) values: usize,
}

impl Limits {
    /// For manifests. 10,000 pools in one List need some 600,000 values.
    pub(super) const MANIFEST: Self = Self { bytes: super::MAX_BYTES, values: 1_000_000 };
    /// For what kubectl prints of a cluster. 5,000 nodes with 8 pools need about a million values.
    pub(super) const CLUSTER: Self = Self { bytes: 256 << 20, values: 10_000_000 };
}

/// A place in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Place {
    /// Line number, from 1.
    pub line: usize,
    /// Column number, from 1: in characters for YAML, in bytes for JSON.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a text cannot be parsed, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unread {
    pub(super) at: Place,
    pub(super) message: String,
}

/// A value and where it begins.
#[derive(PartialEq, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) at: Place,
    /// Number of values in this tree, including itself. Saturates.
    pub(super) weight: usize,
    /// Levels of lists and objects in it; 0 for a scalar.
    pub(super) height: usize,
}

#[derive(PartialEq, Debug)]
pub(super) enum Value {
    Null,
    /// A boolean with its original text: `on` is one in YAML 1.1.
    Bool(bool, Box<str>),
    Int(i128),
    /// A number with its original text.
    Float(f64, Box<str>),
    Text(Box<str>),
    List(Vec<Rc<Node>>),
    /// The members in the order of the file, including duplicate names.
    Map(Vec<Member>),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Member {
    pub(super) name: Box<str>,
    /// The place of the name.
    pub(super) at: Place,
    pub(super) node: Rc<Node>,
}

impl Node {
    pub(super) fn leaf(value: Value, at: Place) -> Rc<Self> {
        Rc::new(Self { value, at, weight: 1, height: 0 })
    }

    pub(super) fn list(items: Vec<Rc<Self>>, at: Place) -> Rc<Self> {
        let (weight, height) = measure(items.iter());
        Rc::new(Self { value: Value::List(items), at, weight, height })
    }

    pub(super) fn map(members: Vec<Member>, at: Place) -> Rc<Self> {
        let (weight, height) = measure(members.iter().map(|member| &member.node));
        Rc::new(Self { value: Value::Map(members), at, weight, height })
    }

    pub(super) fn members(&self) -> &[Member] {
        if let Value::Map(members) = &self.value { members } else { &[] }
    }

    pub(super) fn items(&self) -> &[Rc<Self>] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// The member of this name. Of duplicates the last one counts, as in kubectl.
    pub(super) fn member(&self, name: &str) -> Option<&Member> {
        self.members().iter().rfind(|member| &*member.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.member(name).map(|member| &*member.node)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The value as JSON. A number that JSON cannot have becomes null.
    pub(super) fn json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value, _) => (*value).into(),
            Value::Int(number) => match i64::try_from(*number) {
                Ok(number) => number.into(),
                Err(_) => serde_json::Number::from_i128(*number).map_or(serde_json::Value::Null, Into::into),
            },
            Value::Float(number, _) => (*number).into(),
            Value::Text(text) => text.as_ref().into(),
            Value::List(items) => items.iter().map(|item| item.json()).collect(),
            Value::Map(members) => members.iter().map(|member| (member.name.to_string(), member.node.json())).collect(),
        }
    }

    /// The place of the value at a path such as `exclusions[2].endIP`. For a missing value it is the place of its nearest
    /// existing parent.
    pub(super) fn locate(&self, path: &str) -> Place {
        let mut node = self;
        let mut at = self.at;
        for step in steps(path) {
            match step {
                Step::Name(name) => {
                    let Some(member) = node.member(name) else { return at };
                    node = &member.node;
                    at = member.place();
                }
                Step::Index(index) => {
                    let Some(item) = node.items().get(index) else { return at };
                    node = item;
                    at = item.at;
                }
            }
        }
        at
    }
}

fn measure<'a>(children: impl Iterator<Item = &'a Rc<Node>>) -> (usize, usize) {
    let grow = |(weight, height): (usize, usize), child: &Rc<Node>| {
        (weight.saturating_add(child.weight), height.max(child.height + 1))
    };
    children.fold((1, 1), grow)
}

impl Member {
    /// The place where an error in the member's value is reported: the value itself, or the name of a list, object or null.
    pub(super) fn place(&self) -> Place {
        match self.node.value {
            Value::List(_) | Value::Map(_) | Value::Null => self.at,
            _ => self.node.at,
        }
    }
}

impl Value {
    /// A description of the value for messages: `"a" is a text`.
    pub(super) fn described(&self) -> String {
        match self {
            Self::Null => "null is no value".to_owned(),
            Self::Bool(_, text) => format!("{text} is a boolean"),
            Self::Int(number) => format!("{number} is a number"),
            Self::Float(_, text) => format!("{} is a number", shortened(text)),
            Self::Text(text) => format!("{:?} is a text", shortened(text)),
            Self::List(_) => "this is a list".to_owned(),
            Self::Map(_) => "this is an object".to_owned(),
        }
    }
}

/// `text`, truncated to 100 characters.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 100;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| {
        let index = part.strip_suffix(']').and_then(|digits| digits.parse().ok());
        index.map_or(Step::Name(part), Step::Index)
    })
}

/// Finds duplicate names within each object. Calls `found` with the full path, the previous place, and the new place.
pub(super) fn doubled(node: &Node, path: &str, found: &mut impl FnMut(String, Place, Place)) {
    for (index, item) in node.items().iter().enumerate() {
        doubled(item, &format!("{path}[{index}]"), found);
    }
    let mut seen: HashMap<&str, Place> = HashMap::new();
    for member in node.members() {
        let field = below(path, &member.name);
        if let Some(first) = seen.insert(&member.name, member.at) {
            found(field.clone(), first, member.at);
        }
        doubled(&member.node, &field, found);
    }
}

/// The path of the field `name` of the object at `path`. An empty name is written as `""`.
pub(super) fn below(path: &str, name: &str) -> String {
    let name = if name.is_empty() { "\"\"".into() } else { shortened(name) };
    if path.is_empty() { name.into_owned() } else { format!("{path}.{name}") }
}
