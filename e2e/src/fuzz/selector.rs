//! Node selectors: what is valid and what matches, beside a model that is written straight from core/v1's validation and
//! Kubernetes' `nodeaffinity` package, without a thought of speed.

use std::collections::BTreeMap;

use ipam_core::NodeSelector;
use ipam_core::spec::{NodeSelectorSpec, NodeSelectorTermSpec, RequirementSpec};

/// Words of which selectors and labels are made: right ones, and such as are nearly right.
const KEYS: [&str; 10] =
    ["a", "b", "metadata.name", "x.io/a", "x.io/", "/a", "a/b/c", "-a", "node-role.kubernetes.io/worker", ""];
const OPERATORS: [&str; 9] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "in", "", "Equals"];
const VALUES: [&str; 12] = ["", "1", "2", "-5", "+7", "x", "n1", "a_b", "n1.x", "-", "99999999999999999999", "a b"];

pub(super) fn run(data: &[u8]) {
    let mut dice = Dice { data };
    let spec = NodeSelectorSpec { terms: (0..dice.below(4)).map(|_| term(&mut dice)).collect() };
    let name = dice.word(&VALUES);
    let labels: BTreeMap<String, String> = (0..dice.below(4)).map(|_| (dice.word(&KEYS), dice.word(&VALUES))).collect();
    match NodeSelector::parse(&spec, "spec.nodeSelector") {
        Ok(selector) => {
            assert!(is_valid(&spec), "{spec:?} is taken");
            assert_eq!(
                selector.matches(&name, &labels),
                matches(&spec, &name, &labels),
                "{spec:?}, {name:?}, {labels:?}"
            );
        }
        Err(violations) => {
            assert!(!is_valid(&spec), "{spec:?} is refused: {violations:?}");
            assert!(violations.iter().all(|v| v.field.starts_with("spec.nodeSelector") && v.message.len() < 2_000));
        }
    }
}

/// Reads decisions from bytes; behind their end everything is the first choice.
struct Dice<'a> {
    data: &'a [u8],
}

impl Dice<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        *first
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// One of `words`, or now and then a text out of the bytes themselves.
    fn word(&mut self, words: &[&str]) -> String {
        let choice = usize::from(self.byte());
        if choice < 0xe0 {
            return words[choice % words.len()].to_owned();
        }
        let length = (choice - 0xe0) * 3;
        let (text, rest) = self.data.split_at(length.min(self.data.len()));
        self.data = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}

fn term(dice: &mut Dice<'_>) -> NodeSelectorTermSpec {
    let match_expressions = (0..dice.below(3)).map(|_| requirement(dice)).collect();
    let match_fields = (0..dice.below(3)).map(|_| requirement(dice)).collect();
    NodeSelectorTermSpec { match_expressions, match_fields }
}

fn requirement(dice: &mut Dice<'_>) -> RequirementSpec {
    let (key, operator) = (dice.word(&KEYS), dice.word(&OPERATORS));
    RequirementSpec { key, operator, values: (0..dice.below(4)).map(|_| dice.word(&VALUES)).collect() }
}

fn is_valid(spec: &NodeSelectorSpec) -> bool {
    let expression = |requirement: &RequirementSpec| {
        let RequirementSpec { key, operator, values } = requirement;
        let fits = match operator.as_str() {
            "In" | "NotIn" => !values.is_empty(),
            "Exists" | "DoesNotExist" => values.is_empty(),
            "Gt" | "Lt" => matches!(values.as_slice(), [one] if one.parse::<i64>().is_ok()),
            _ => false,
        };
        fits && is_qualified(key) && values.iter().all(|value| value.is_empty() || is_name(value))
    };
    let field = |requirement: &RequirementSpec| {
        let fits = matches!(requirement.operator.as_str(), "In" | "NotIn") && requirement.values.len() == 1;
        fits && requirement.key == "metadata.name" && requirement.values.iter().all(|value| is_subdomain(value))
    };
    let term = |term: &NodeSelectorTermSpec| {
        term.match_expressions.iter().all(expression) && term.match_fields.iter().all(field)
    };
    !spec.terms.is_empty() && spec.terms.iter().all(term)
}

/// `IsQualifiedName`: `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`, at most 63, with an optional DNS subdomain before a slash.
fn is_qualified(key: &str) -> bool {
    match key.split('/').collect::<Vec<_>>().as_slice() {
        [name] => is_name(name),
        [prefix, name] => is_subdomain(prefix) && is_name(name),
        _ => false,
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric));
    ends && bytes.len() <= 63 && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// `IsDNS1123Subdomain`: `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`, at most 253.
fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let ends = !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
        ends && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn matches(spec: &NodeSelectorSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let number = |text: &String| text.parse::<i64>().ok();
    let expression = |requirement: &RequirementSpec| {
        let RequirementSpec { key, operator, values } = requirement;
        match (operator.as_str(), labels.get(key)) {
            ("In", Some(value)) => values.contains(value),
            ("NotIn", Some(value)) => !values.contains(value),
            ("NotIn" | "DoesNotExist", None) | ("Exists", Some(_)) => true,
            ("Gt", Some(value)) => number(value).zip(number(&values[0])).is_some_and(|(value, bound)| value > bound),
            ("Lt", Some(value)) => number(value).zip(number(&values[0])).is_some_and(|(value, bound)| value < bound),
            _ => false,
        }
    };
    let field = |requirement: &RequirementSpec| (requirement.operator == "In") == (requirement.values[0] == name);
    let term = |term: &NodeSelectorTermSpec| {
        let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
        !is_empty && term.match_expressions.iter().all(expression) && term.match_fields.iter().all(field)
    };
    spec.terms.iter().any(term)
}
