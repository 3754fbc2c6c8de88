//! Parses bytes into documents: checks encoding and size, and detects YAML or JSON.

use std::rc::Rc;

use super::tree::{Limits, Node, Place, Unread};
use super::{json, yaml};

const START: Place = Place { line: 1, column: 1 };

/// Calls `each` with every document of a file, or with the error of an invalid one.
pub(super) fn read(file: &str, bytes: &[u8], limits: Limits, mut each: impl FnMut(Result<Rc<Node>, Unread>)) {
    let text = match text(bytes, limits) {
        Ok(text) => text,
        Err(unread) => return each(Err(unread)),
    };
    if !text.trim_start().starts_with('{') {
        return yaml::documents(text, limits, each);
    }
    // What begins like JSON may still be YAML in braces.
    let not_json = match json::documents(text, limits) {
        Ok(documents) => return documents.into_iter().for_each(|document| each(Ok(document))),
        Err(unread) => unread,
    };
    if is_json(file) { each(Err(not_json)) } else { yaml::documents(text, limits, each) }
}

fn is_json(file: &str) -> bool {
    std::path::Path::new(file).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

fn text(bytes: &[u8], limits: Limits) -> Result<&str, Unread> {
    let refuse = |at: usize, message: String| Err(Unread { at: place(bytes, at), message });
    if bytes.len() > limits.bytes {
        let message =
            format!("is larger than {} MiB, which is all that is read of a file; split it", limits.bytes >> 20);
        return Err(Unread { at: START, message });
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return refuse(0, "is UTF-16; write UTF-8".to_owned());
    }
    let bytes = bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Err(error) => refuse(error.valid_up_to(), "is no text: here is a byte that UTF-8 does not have".to_owned()),
        Ok(text) => match text.find(is_binary) {
            Some(at) => refuse(at, "is no text: here is a control character".to_owned()),
            None => Ok(text),
        },
    }
}

/// A character that YAML does not allow in a text (YAML 1.2, rule 1).
fn is_binary(c: char) -> bool {
    c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r' | '\x7f')
}

fn place(bytes: &[u8], at: usize) -> Place {
    let before = bytes.get(..at).unwrap_or(bytes);
    let lines = before.split(|byte| *byte == b'\n');
    Place { column: lines.clone().next_back().map_or(0, <[u8]>::len) + 1, line: lines.count() }
}
