//! Node selectors with the meaning and the validity rules of core/v1: terms are ORed, the expressions of a term ANDed.
//!
//! Validity follows `ValidateNodeSelector` of Kubernetes' core validation, matching its `nodeaffinity` package. Two things
//! surprise people and are kept: `NotIn` and `DoesNotExist` match a node without the label, and a term without any
//! expression matches no node.

use std::collections::BTreeMap;

use crate::names::{is_dns_subdomain, is_label_key, is_label_value};
use crate::quoted::Quoted;
use crate::spec::{NodeSelectorSpec, NodeSelectorTermSpec, RequirementSpec};
use crate::words::counted;
use crate::{Reason, Violation};

/// The only field that `matchFields` supports.
const NAME_FIELD: &str = "metadata.name";

/// A valid node selector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSelector {
    terms: Vec<Term>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Term {
    on_labels: Vec<Requirement>,
    on_name: Vec<NameRequirement>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct NameRequirement {
    name: String,
    /// `In` if true, `NotIn` otherwise.
    wanted: bool,
}

impl NodeSelector {
    /// Checks a selector. `field` is its full path, for example `spec.nodeSelector`.
    ///
    /// # Errors
    /// All violations, in the order of the fields.
    pub fn parse(spec: &NodeSelectorSpec, field: &str) -> Result<Self, Vec<Violation>> {
        let mut found = Vec::new();
        if spec.terms.is_empty() {
            let message = "needs at least one term; leave nodeSelector out to select every node";
            found.push(Violation::new(format!("{field}.nodeSelectorTerms"), Reason::Required, message));
        }
        let terms = spec
            .terms
            .iter()
            .enumerate()
            .map(|(i, term)| parse_term(term, &format!("{field}.nodeSelectorTerms[{i}]"), &mut found))
            .collect();
        if found.is_empty() { Ok(Self { terms }) } else { Err(found) }
    }

    /// Whether a node of this name and these labels is selected.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.terms.iter().any(|term| term.matches(name, labels))
    }
}

impl Term {
    fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let is_empty = self.on_labels.is_empty() && self.on_name.is_empty();
        !is_empty
            && self.on_name.iter().all(|requirement| (requirement.name == name) == requirement.wanted)
            && self.on_labels.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Gt(bound) => integer(value).is_some_and(|value| value > *bound),
            Test::Lt(bound) => integer(value).is_some_and(|value| value < *bound),
        }
    }
}

/// The integer value of a label. If the label is absent or not an integer, neither `Gt` nor `Lt` matches.
fn integer(value: Option<&String>) -> Option<i64> {
    value?.parse().ok()
}

/// Parses a term and adds its errors to `found`. The returned term is complete only if there are none.
fn parse_term(spec: &NodeSelectorTermSpec, field: &str, found: &mut Vec<Violation>) -> Term {
    let mut term = Term { on_labels: Vec::new(), on_name: Vec::new() };
    for (i, requirement) in spec.match_expressions.iter().enumerate() {
        term.on_labels.extend(parse_requirement(requirement, &format!("{field}.matchExpressions[{i}]"), found));
    }
    for (i, requirement) in spec.match_fields.iter().enumerate() {
        term.on_name.extend(parse_name_requirement(requirement, &format!("{field}.matchFields[{i}]"), found));
    }
    term
}

fn parse_requirement(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> Option<Requirement> {
    if !is_label_key(&spec.key) {
        let message = format!(
            "{} is no label key: write up to 63 letters, digits, \"-\", \"_\" and \".\", a letter or digit first and \
             last, with a DNS name and \"/\" before it if wanted",
            Quoted(&spec.key)
        );
        found.push(Violation::new(format!("{field}.key"), reason_of(&spec.key), message));
    }
    let test = parse_test(spec, field, found);
    for (i, value) in spec.values.iter().enumerate().filter(|(_, value)| !is_label_value(value)) {
        let message = format!(
            "{} is no label value: write up to 63 letters, digits, \"-\", \"_\" and \".\", a letter or digit first \
             and last",
            Quoted(value)
        );
        found.push(Violation::new(format!("{field}.values[{i}]"), Reason::Malformed, message));
    }
    Some(Requirement { key: spec.key.clone(), test: test? })
}

fn parse_test(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> Option<Test> {
    match spec.operator.as_str() {
        "In" => some_values(spec, field, found).map(Test::In),
        "NotIn" => some_values(spec, field, found).map(Test::NotIn),
        "Exists" => no_values(spec, field, found).then_some(Test::Exists),
        "DoesNotExist" => no_values(spec, field, found).then_some(Test::DoesNotExist),
        "Gt" => one_integer(spec, field, found).map(Test::Gt),
        "Lt" => one_integer(spec, field, found).map(Test::Lt),
        operator => {
            let message = format!("{} is none of In, NotIn, Exists, DoesNotExist, Gt and Lt", Quoted(operator));
            found.push(Violation::new(format!("{field}.operator"), unsupported(operator), message));
            None
        }
    }
}

fn some_values(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> Option<Vec<String>> {
    if spec.values.is_empty() {
        let message = format!("{} needs at least one value", spec.operator);
        found.push(Violation::new(format!("{field}.values"), Reason::Required, message));
        return None;
    }
    Some(spec.values.clone())
}

fn no_values(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> bool {
    if !spec.values.is_empty() {
        let message =
            format!("{} takes no values, but {} given", spec.operator, counted(spec.values.len(), "is", "are"));
        found.push(Violation::new(format!("{field}.values"), Reason::Conflict, message));
    }
    spec.values.is_empty()
}

fn one_integer(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> Option<i64> {
    let [value] = spec.values.as_slice() else {
        let reason = if spec.values.is_empty() { Reason::Required } else { Reason::Conflict };
        let message =
            format!("{} takes exactly one integer, but {} values are given", spec.operator, spec.values.len());
        found.push(Violation::new(format!("{field}.values"), reason, message));
        return None;
    };
    let number = value.parse().ok();
    if number.is_none() {
        let message = format!("{} is no integer, but {} takes one", Quoted(value), spec.operator);
        found.push(Violation::new(format!("{field}.values[0]"), Reason::Malformed, message));
    }
    number
}

fn parse_name_requirement(spec: &RequirementSpec, field: &str, found: &mut Vec<Violation>) -> Option<NameRequirement> {
    if spec.key != NAME_FIELD {
        let message = format!("{} is no field to select by; the only one is {NAME_FIELD}", Quoted(&spec.key));
        found.push(Violation::new(format!("{field}.key"), unsupported(&spec.key), message));
    }
    let wanted = match spec.operator.as_str() {
        "In" => Some(true),
        "NotIn" => Some(false),
        operator => {
            let message = format!("{} is none of In and NotIn, which are all that matchFields takes", Quoted(operator));
            found.push(Violation::new(format!("{field}.operator"), unsupported(operator), message));
            None
        }
    };
    for (i, value) in spec.values.iter().enumerate().filter(|(_, value)| !is_dns_subdomain(value)) {
        let message = format!("{} is no node name: write lower case letters, digits, \"-\" and \".\"", Quoted(value));
        found.push(Violation::new(format!("{field}.values[{i}]"), reason_of(value), message));
    }
    let [name] = spec.values.as_slice() else {
        let reason = if spec.values.is_empty() { Reason::Required } else { Reason::Conflict };
        let message = format!("matchFields takes exactly one value, but {} are given", spec.values.len());
        found.push(Violation::new(format!("{field}.values"), reason, message));
        return None;
    };
    Some(NameRequirement { name: name.clone(), wanted: wanted? })
}

const fn reason_of(text: &str) -> Reason {
    if text.is_empty() { Reason::Required } else { Reason::Malformed }
}

const fn unsupported(text: &str) -> Reason {
    if text.is_empty() { Reason::Required } else { Reason::Unsupported }
}
