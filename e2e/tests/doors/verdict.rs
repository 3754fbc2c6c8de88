//! What a door says of a case, and how that is held against the table.

use std::collections::BTreeSet;

use ipam_core::{Advice, Violation};
use ipam_e2e::cases::{Case, Refusal, Warning};

/// What a door says, in any order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Verdict {
    pub(crate) refused: Vec<Refusal>,
    pub(crate) warned: Vec<Warning>,
}

impl Verdict {
    pub(crate) fn refuse(&mut self, violations: &[Violation]) {
        self.refused.extend(
            violations
                .iter()
                .map(|violation| Refusal { field: violation.field.clone(), reason: violation.reason.to_string() }),
        );
    }

    pub(crate) fn warn(&mut self, advice: &[Advice]) {
        self.warned.extend(advice.iter().map(|one| Warning { field: one.field.clone(), code: one.code.to_string() }));
    }
}

/// What was expected and not said, and what was said and not expected; `None` if the door agrees with the table.
pub(crate) fn disagreement(case: &Case, expected: Verdict, said: Verdict) -> Option<String> {
    let refused = difference(expected.refused, said.refused);
    let warned = difference(expected.warned, said.warned);
    let differences: Vec<String> = refused.into_iter().chain(warned).collect();
    (!differences.is_empty()).then(|| format!("{}: {}", case.title(), differences.join("; ")))
}

/// Both lists as sets with repetitions.
fn difference<T: PartialEq + std::fmt::Debug>(expected: Vec<T>, mut said: Vec<T>) -> Option<String> {
    let mut missing = Vec::new();
    for one in expected {
        match said.iter().position(|other| *other == one) {
            Some(at) => drop(said.swap_remove(at)),
            None => missing.push(one),
        }
    }
    (!missing.is_empty() || !said.is_empty()).then(|| format!("missing {missing:?}, not expected {said:?}"))
}

/// The table's texts that are not among `said`; `None` if all are.
pub(crate) fn lacking(case: &Case, said: &BTreeSet<String>) -> Option<String> {
    let lacking: Vec<&String> = case.texts.difference(said).collect();
    (!lacking.is_empty()).then(|| format!("{}: {lacking:?} are not among {said:?}", case.title()))
}

/// What the table says of a case.
pub(crate) fn expected(case: &Case) -> Verdict {
    Verdict { refused: case.refused.clone(), warned: case.warned.clone() }
}

/// Fails with all disagreements at once.
pub(crate) fn assert_none(disagreements: &[String]) {
    assert!(disagreements.is_empty(), "{} cases:\n{}", disagreements.len(), disagreements.join("\n"));
}

#[test]
fn a_verdict_that_lacks_or_adds_or_doubles_something_disagrees() {
    assert_eq!(difference(vec![1, 2], vec![2, 1]), None);
    for (expected, said) in [(vec![1], vec![]), (vec![], vec![1]), (vec![1], vec![1, 1]), (vec![1], vec![2])] {
        assert!(difference(expected, said).is_some());
    }
}
