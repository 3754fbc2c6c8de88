//! The descriptions of the API that `kubectl explain` shows. Every field has one. It is plain English for users,
//! without links and notes for maintainers, and it says what an absent field means.

use serde_json::{Value, json};

use crate::support::{each_schema, schemas};

/// Sentences may have at most this many words.
const MOST_WORDS: usize = 30;

/// Marks of rustdoc, which only maintainers can follow.
const RUSTDOC: [&str; 5] = ["[`", "`]", "](", "crate::", "super::"];

/// Words that do not name the actor, the field or the state.
const BANNED: [&str; 17] = [
    "anew",
    "whoever",
    "nobody",
    "barred",
    "let go of",
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
];

/// Phrases that say what an absent field means.
const ABSENCE: [&str; 2] = ["If not set", "Must not be set"];

/// Problems of all descriptions of a kind, each with the path of its field.
fn problems(kind: &str, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    each_schema(schema, kind, &mut |path, at| {
        let is_element = path.ends_with("[]") && at["type"] != "object";
        let text = at["description"].as_str().unwrap_or_default();
        if text.is_empty() && !is_element {
            found.push(format!("{path}: no description"));
        }
        found.extend(problems_of_text(text).into_iter().map(|problem| format!("{path}: {problem}")));
        if path.starts_with(&format!("{kind}.spec")) {
            let fields = at["properties"].as_object().into_iter().flatten();
            found.extend(fields.filter_map(|(name, field)| {
                let is_required = at["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
                problem_of_spec(field, is_required).map(|problem| format!("{path}.{name}: {problem}"))
            }));
        }
    });
    found
}

fn problems_of_text(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(RUSTDOC.iter().filter(|mark| text.contains(**mark)).map(|mark| format!("has {mark:?} of rustdoc")));
    if text.contains('\n') {
        found.push("has a line break".to_owned());
    }
    let words =
        format!(" {} ", text.to_lowercase().split(|c: char| !c.is_alphanumeric()).collect::<Vec<_>>().join(" "));
    found
        .extend(BANNED.iter().filter(|word| words.contains(&format!(" {word} "))).map(|word| format!("says {word:?}")));
    for sentence in text.split(". ") {
        let count = sentence.split_whitespace().count();
        if count > MOST_WORDS {
            found.push(format!("a sentence has {count} words: {sentence}"));
        }
    }
    found
}

/// What the description of a field that users write lacks.
fn problem_of_spec(field: &Value, is_required: bool) -> Option<&'static str> {
    let text = field["description"].as_str().unwrap_or_default();
    if is_required {
        // `ipam-controller validate` shows a missing field's description up to the first full stop.
        let first = text.split('.').next().unwrap_or_default();
        let is_whole = text.strip_prefix(first).is_some_and(|rest| rest.starts_with(". ") || rest == ".");
        return (!is_whole).then_some("the first sentence has a full stop inside");
    }
    // An absent list is an empty list.
    let explains_absence =
        field["type"] == "array" || !field["default"].is_null() || ABSENCE.iter().any(|phrase| text.contains(phrase));
    (!explains_absence).then_some("neither a default nor a sentence on what absence means")
}

#[test]
fn every_description_is_plain_and_complete() {
    for (kind, schema) in schemas() {
        let problems = problems(&kind, &schema);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

#[test]
fn fields_at_every_depth_are_checked() {
    for (kind, schema) in schemas() {
        let mut paths = Vec::new();
        each_schema(&schema, &kind, &mut |path, _| paths.push(path.to_owned()));
        let deep = match kind.as_str() {
            "IPAMNode" => "IPAMNode.spec.pools[].exclusions[].endIP".to_owned(),
            _ => format!("{kind}.spec.nodeSelector.nodeSelectorTerms[].matchExpressions[].operator"),
        };
        assert!(paths.contains(&deep), "{deep} is not among {paths:?}");
    }
}

/// The problems of a kind whose spec has one field, with this schema.
fn found_in(field: &Value, required: &[&str]) -> Vec<String> {
    let entry =
        json!({"type": "object", "description": "An entry.", "properties": {"field": field}, "required": required});
    let list = json!({"type": "array", "description": "Entries.", "items": entry});
    let spec = json!({"type": "object", "description": "The spec.", "properties": {"list": list}});
    problems("Kind", &json!({"type": "object", "description": "A kind.", "properties": {"spec": spec}}))
}

#[test]
fn each_fault_of_a_description_is_named() {
    let long = format!("If not set,{}.", " word".repeat(MOST_WORDS - 2));
    for (text, problem) in [
        ("", "no description"),
        ("If not set, see [`crate::Route`].", "has \"crate::\" of rustdoc"),
        ("If not set, see [the page](https://example.com).", "has \"](\" of rustdoc"),
        ("If not set, two\nlines.", "has a line break"),
        ("If not set, nobody gets it.", "says \"nobody\""),
        ("If not set, the block is Let Go of.", "says \"let go of\""),
        (&long, "a sentence has 31 words"),
        ("The gateway.", "neither a default nor a sentence on what absence means"),
    ] {
        let found = found_in(&json!({"type": "string", "description": text}), &[]);
        let at = format!("Kind.spec.list[].field: {problem}");
        assert!(found.iter().any(|one| one.starts_with(&at)), "{text:?} gives {found:?}");
    }
    let found = found_in(&json!({"type": "string", "description": "As 10.0.0.1 is. More."}), &["field"]);
    assert_eq!(found, ["Kind.spec.list[].field: the first sentence has a full stop inside"]);
}

#[test]
fn good_descriptions_have_no_problems() {
    let fields = [
        json!({"type": "string", "description": "The gateway. If not set, there is none."}),
        json!({"type": "boolean", "description": "The flag.", "default": false}),
        json!({"type": "array", "description": "The list.", "items": {"type": "string"}}),
    ];
    for field in fields {
        assert_eq!(found_in(&field, &[]), [""; 0], "{field}");
    }
    assert_eq!(found_in(&json!({"type": "string", "description": "The gateway."}), &["field"]), [""; 0]);
}
