//! Reading JSON of unknown shape without giving up at the first mistake.
//!
//! Decides how a field is named in a message and how a wrong type is described. A JSON `null` counts as absent
//! everywhere, because that is how Go programs write what they do not have.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::Value;

/// Values longer than this are cut in messages: a runtime logs the message, and a value can be a whole document.
const SHOWN_CHARS: usize = 80;

/// What is wrong with an input, in the order it was found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Mistakes(Vec<String>);

impl Mistakes {
    /// `field` is wrong; `problem` says how and what would be right.
    pub(crate) fn add(&mut self, field: impl fmt::Display, problem: impl fmt::Display) {
        self.0.push(format!("{field}: {problem}"));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl IntoIterator for Mistakes {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

/// A place in a JSON document and what stands there, if anything.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    /// The document itself. `label` goes in front of all paths below it: empty for the network configuration, the name of
    /// a file with ": " for others.
    pub(crate) fn document(label: &str, value: &'a Value) -> Self {
        Self { path: label.to_owned(), value: Some(value) }
    }

    /// The full path, as it stands in messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether the key is written down at all, `null` included.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.value.is_some_and(|value| member(value, key).is_some())
    }

    /// The member `key`; absent when this is not an object.
    pub(crate) fn get(&self, key: &str) -> Self {
        let separator = if self.path.is_empty() || self.path.ends_with(' ') { "" } else { "." };
        let path = format!("{}{separator}{key}", self.path);
        let value = self.value.and_then(|value| member(value, key)).filter(|value| !value.is_null());
        Self { path, value }
    }

    /// The member `key`, which must be an object when it is there. Absent otherwise, so that its members read as absent.
    pub(crate) fn object(&self, key: &str, mistakes: &mut Mistakes) -> Self {
        let mut field = self.get(key);
        field.value = field.typed("an object", Value::as_object, mistakes).and(field.value);
        field
    }

    pub(crate) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// The text that stands here; an empty one counts as absent, as it does in configurations written by Go programs.
    pub(crate) fn text(&self, mistakes: &mut Mistakes) -> Option<&'a str> {
        self.typed("a string", Value::as_str, mistakes).filter(|text| !text.is_empty())
    }

    pub(crate) fn flag(&self, mistakes: &mut Mistakes) -> Option<bool> {
        self.typed("true or false", Value::as_bool, mistakes)
    }

    /// The whole number that stands here, when it lies in `range`.
    pub(crate) fn whole(&self, range: RangeInclusive<i64>, mistakes: &mut Mistakes) -> Option<i64> {
        let want = format!("a whole number from {} to {}", range.start(), range.end());
        self.typed(&want, |value| value.as_i64().filter(|number| range.contains(number)), mistakes)
    }

    /// The elements of the list that stands here; none when there is no list.
    pub(crate) fn list(&self, mistakes: &mut Mistakes) -> Vec<Self> {
        let elements = self.typed("a list", Value::as_array, mistakes).map(Vec::as_slice).unwrap_or_default();
        let element = |(index, value)| Self { path: format!("{}[{index}]", self.path), value: Some(value) };
        elements.iter().enumerate().map(element).collect()
    }

    /// The non-empty strings of the list that stands here, each with its own field.
    pub(crate) fn texts(&self, mistakes: &mut Mistakes) -> Vec<(Self, &'a str)> {
        let mut texts = Vec::new();
        for element in self.list(mistakes) {
            let text = element.typed("a non-empty string", |value| value.as_str().filter(|t| !t.is_empty()), mistakes);
            texts.extend(text.map(|text| (element, text)));
        }
        texts
    }

    /// The text that stands here; its absence is a mistake as well.
    pub(crate) fn required_text(&self, mistakes: &mut Mistakes) -> Option<&'a str> {
        if self.value.is_none_or(|value| value.as_str() == Some("")) {
            mistakes.add(&self.path, "missing, want a non-empty string");
        }
        self.text(mistakes)
    }

    fn typed<T>(&self, want: &str, read: impl Fn(&'a Value) -> Option<T>, mistakes: &mut Mistakes) -> Option<T> {
        let value = self.value?;
        let read = read(value);
        if read.is_none() {
            mistakes.add(&self.path, format_args!("{} is not what belongs here, want {want}", shown(value)));
        }
        read
    }
}

/// The member `key` of an object. Go programs read a key in any case, so the plugin does; the exact spelling wins.
pub fn member<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    object.get(key).or_else(|| object.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value))
}

/// A value as it stands in a message: JSON on one line, cut when long.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_type_is_named_with_path_value_and_what_is_wanted() {
        let document = json!({"a": {"b": 5, "c": "x", "d": [1, ""], "e": 1.5}, "f": []});
        let root = Field::document("", &document);
        let mut mistakes = Mistakes::default();
        let a = root.object("a", &mut mistakes);
        assert_eq!(a.get("b").text(&mut mistakes), None);
        assert_eq!(a.get("c").flag(&mut mistakes), None);
        assert!(a.get("d").texts(&mut mistakes).is_empty());
        assert_eq!(a.get("e").whole(0..=9, &mut mistakes), None);
        assert!(!root.object("f", &mut mistakes).is_present());
        assert_eq!(
            mistakes.to_string(),
            "a.b: 5 is not what belongs here, want a string; \
             a.c: \"x\" is not what belongs here, want true or false; \
             a.d[0]: 1 is not what belongs here, want a non-empty string; \
             a.d[1]: \"\" is not what belongs here, want a non-empty string; \
             a.e: 1.5 is not what belongs here, want a whole number from 0 to 9; \
             f: [] is not what belongs here, want an object"
        );
    }

    #[test]
    fn null_and_absent_are_no_mistake_and_read_as_nothing() {
        let document = json!({"a": null});
        let root = Field::document("", &document);
        let mut mistakes = Mistakes::default();
        for key in ["a", "b"] {
            assert_eq!(root.get(key).text(&mut mistakes), None);
            assert!(root.get(key).list(&mut mistakes).is_empty());
            assert_eq!(root.object(key, &mut mistakes).get("c").flag(&mut mistakes), None);
        }
        assert!(mistakes.is_empty(), "{mistakes}");
        assert!(root.has("a") && !root.has("b"));
    }

    #[test]
    fn keys_are_read_in_any_case_and_the_exact_one_wins() {
        let document = json!({"poolname": "a", "PoolType": "b", "LOGFILE": null, "logLevel": "c", "loglevel": "d"});
        let root = Field::document("", &document);
        let mut mistakes = Mistakes::default();
        let mut text = |key| root.get(key).text(&mut mistakes);
        assert_eq!([text("poolName"), text("poolType"), text("logFile")], [Some("a"), Some("b"), None]);
        assert_eq!(text("logLevel"), Some("c"));
        assert!(root.has("logFile") && !root.has("confDir"));
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = shown(&json!("ü".repeat(500)));
        assert_eq!(text.chars().count(), SHOWN_CHARS + 1);
        assert!(text.ends_with('…'));
    }
}
