//! Generates the table of the chart's values from the comments in `values.yaml`.
//!
//! A line `# -- …` above a key is its description. It goes on until a line `#`; what follows that line is a note for readers of the
//! file. A key with a description and nested keys is one row, if its nested keys have no description.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use ipam_e2e::binaries::workspace;
use serde_json::Value;

use crate::pages::read;

const VALUES: &str = "charts/nv-ipam/values.yaml";
const SCHEMA: &str = "charts/nv-ipam/values.schema.json";
const PAGE: &str = "charts/nv-ipam/README.md";
const START: &str = "<!-- The next table is generated from values.yaml by a test. -->\n\n";
const END: &str = "\n<!-- End of the generated table. -->\n";

/// A key of `values.yaml`.
#[derive(Default)]
struct Key {
    /// Its path, as `--set` takes it.
    path: String,
    indent: usize,
    /// Its value as written, if it stands on the same line.
    value: String,
    /// Its items, if it is a list of one item a line.
    items: Vec<String>,
    description: Option<String>,
    /// Index of the key around it.
    parent: Option<usize>,
    has_children: bool,
}

/// The description above the next key.
#[derive(Default)]
struct Comment {
    text: Option<String>,
    has_ended: bool,
}

impl Comment {
    fn read(&mut self, line: &str) {
        if let Some(first) = line.strip_prefix("# -- ") {
            *self = Self { text: Some(first.to_owned()), has_ended: false };
        } else if line == "#" {
            self.has_ended = true;
        } else if let Some(text) = self.text.as_mut().filter(|_| !self.has_ended) {
            text.push_str(line.trim_start_matches('#'));
        }
    }
}

fn keys(text: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let mut comment = Comment::default();
    for line in text.lines() {
        let (trimmed, indent) = (line.trim(), line.len() - line.trim_start().len());
        if trimmed.is_empty() {
            comment = Comment::default();
        } else if trimmed.starts_with('#') {
            comment.read(trimmed);
        } else if let Some(item) = trimmed.strip_prefix("- ") {
            keys.last_mut().unwrap().items.push(item.to_owned());
        } else {
            let (key, value) = trimmed.split_once(':').unwrap_or_else(|| panic!("no key in {line}"));
            let parent = parent(&keys, indent);
            let path = parent.map_or_else(String::new, |parent| format!("{}.", keys[parent].path)) + key;
            if let Some(parent) = parent {
                keys[parent].has_children = true;
            }
            let description = std::mem::take(&mut comment).text;
            let value = value.trim().to_owned();
            keys.push(Key { path, indent, value, description, parent, ..Key::default() });
        }
    }
    keys
}

/// The key that a key with this indentation is nested in: the last one that is less indented.
fn parent(keys: &[Key], indent: usize) -> Option<usize> {
    keys.iter().rposition(|key| key.indent < indent)
}

/// Keys that have a row: all with a description, and those that lack one and are not part of such a row.
fn rows(keys: &[Key]) -> impl Iterator<Item = &Key> {
    keys.iter().filter(|key| {
        let is_part = key.parent.is_some_and(|parent| keys[parent].description.is_some());
        key.description.is_some() || !(key.has_children || is_part)
    })
}

fn table(keys: &[Key]) -> String {
    let mut table = "| value | default | meaning |\n| --- | --- | --- |\n".to_owned();
    let cell = |text: &str| text.replace('|', "\\|");
    for key in rows(keys) {
        let value = if key.items.is_empty() { key.value.clone() } else { format!("[{}]", key.items.join(", ")) };
        let default =
            if key.has_children { "see [values.yaml](values.yaml)".to_owned() } else { format!("`{}`", cell(&value)) };
        let description = key.description.as_deref().unwrap_or_else(|| panic!("{VALUES}: {} has no comment", key.path));
        writeln!(table, "| `{}` | {default} | {} |", key.path, cell(description)).unwrap();
    }
    table
}

fn of_chart() -> Vec<Key> {
    keys(&fs::read_to_string(workspace().join(VALUES)).unwrap())
}

#[test]
fn table_of_values_is_that_of_the_comments() {
    let page = read(PAGE).text;
    let (before, rest) = page.split_once(START).unwrap_or_else(|| panic!("{PAGE} lacks {START}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{PAGE} lacks {END}"));
    let wanted = format!("{before}{START}{}{END}{after}", table(&of_chart()));
    if page != wanted {
        fs::write(workspace().join(PAGE), wanted).unwrap();
        panic!("the table of values in {PAGE} was stale and is now rewritten: look at it and commit it");
    }
}

#[test]
fn each_value_has_a_type_in_the_schema() {
    let schema: Value = serde_json::from_str(&fs::read_to_string(workspace().join(SCHEMA)).unwrap()).unwrap();
    let mut known = BTreeSet::new();
    collect(&schema, &schema, "", &mut known);
    for key in of_chart().iter().filter(|key| !key.has_children) {
        assert!(known.contains(&key.path), "{SCHEMA} does not name {}", key.path);
    }
}

/// The paths of all properties.
fn collect(root: &Value, schema: &Value, path: &str, known: &mut BTreeSet<String>) {
    let target = schema["$ref"].as_str().map(|target| root.pointer(&target[1..]).unwrap());
    for (name, property) in target.unwrap_or(schema)["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        known.insert(path.clone());
        collect(root, property, &path, known);
    }
}

#[test]
fn each_value_is_set_in_a_ci_file() {
    let mut set = BTreeSet::new();
    for entry in fs::read_dir(workspace().join("charts/nv-ipam/ci")).unwrap() {
        let values: Value = serde_yaml::from_str(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        paths(&values, "", &mut set);
    }
    let unset: Vec<String> =
        rows(&of_chart()).filter(|key| !set.contains(&key.path)).map(|key| key.path.clone()).collect();
    assert!(unset.is_empty(), "no file in charts/nv-ipam/ci sets {unset:?}");
}

/// The paths of all fields.
fn paths(values: &Value, path: &str, set: &mut BTreeSet<String>) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        set.insert(path.clone());
        paths(value, &path, set);
    }
}

#[test]
fn comments_become_rows() {
    let text = "# Head.\n\n# -- First\n# line.\n#\n# Note.\na: \"\"\nb:\n  # -- A | B.\n  c: 1\n  d:\n  - {x: y}\n# -- All.\ne:\n  f: g\n";
    let read = keys(text);
    let found: Vec<(&str, Option<&str>)> =
        rows(&read).map(|key| (key.path.as_str(), key.description.as_deref())).collect();
    assert_eq!(found, [("a", Some("First line.")), ("b.c", Some("A | B.")), ("b.d", None), ("e", Some("All."))]);
    let described = keys(&text.replace("  d:\n  - {x: y}\n", ""));
    let wanted =
        "| `a` | `\"\"` | First line. |\n| `b.c` | `1` | A \\| B. |\n| `e` | see [values.yaml](values.yaml) | All. |\n";
    assert!(table(&described).ends_with(wanted), "{}", table(&described));
}
