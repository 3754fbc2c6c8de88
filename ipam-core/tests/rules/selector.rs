//! Node selectors: what is valid, and what matches.

use ipam_core::NodeSelector;
use ipam_core::spec::{NodeSelectorSpec, NodeSelectorTermSpec, RequirementSpec};
use rstest::rstest;

use super::support::{labels, requirement, selector};

fn fields(spec: RequirementSpec) -> NodeSelectorSpec {
    NodeSelectorSpec { terms: vec![NodeSelectorTermSpec { match_expressions: Vec::new(), match_fields: vec![spec] }] }
}

fn found(spec: &NodeSelectorSpec) -> Vec<String> {
    let violations = NodeSelector::parse(spec, "spec.nodeSelector").err().unwrap_or_default();
    violations.iter().map(|violation| format!("{} {}", violation.field, violation.reason)).collect()
}

fn matches(spec: &NodeSelectorSpec, name: &str, pairs: &[(&str, &str)]) -> bool {
    NodeSelector::parse(spec, "spec.nodeSelector").unwrap().matches(name, &labels(pairs))
}

#[rstest]
#[case("In", &["a", "b"], &[("k", "b")], true)]
#[case("In", &["a", "b"], &[("k", "c")], false)]
#[case("In", &["a"], &[], false)]
#[case("In", &[""], &[("k", "")], true)]
#[case("NotIn", &["a"], &[("k", "a")], false)]
#[case("NotIn", &["a"], &[("k", "b")], true)]
#[case("NotIn", &["a"], &[], true)]
#[case("Exists", &[], &[("k", "")], true)]
#[case("Exists", &[], &[("other", "")], false)]
#[case("DoesNotExist", &[], &[("k", "")], false)]
#[case("DoesNotExist", &[], &[], true)]
#[case("Gt", &["5"], &[("k", "6")], true)]
#[case("Gt", &["5"], &[("k", "5")], false)]
#[case("Gt", &["9"], &[("k", "10")], true)]
#[case("Gt", &["5"], &[("k", "many")], false)]
#[case("Gt", &["5"], &[], false)]
#[case("Lt", &["5"], &[("k", "4")], true)]
#[case("Lt", &["5"], &[("k", "5")], false)]
#[case("Lt", &["10"], &[("k", "9")], true)]
#[case("Lt", &["5"], &[], false)]
fn an_operator_matches_as_in_core_v1(
    #[case] operator: &str,
    #[case] values: &[&str],
    #[case] node: &[(&str, &str)],
    #[case] is_match: bool,
) {
    assert_eq!(matches(&selector(&[requirement("k", operator, values)]), "node1", node), is_match);
}

#[test]
fn expressions_of_a_term_are_anded() {
    let both = selector(&[requirement("a", "Exists", &[]), requirement("b", "Exists", &[])]);
    assert!(matches(&both, "node1", &[("a", ""), ("b", "")]));
    assert!(!matches(&both, "node1", &[("a", "")]));
}

#[test]
fn terms_are_ored() {
    let mut either = selector(&[requirement("a", "Exists", &[])]);
    either.terms.extend(selector(&[requirement("b", "Exists", &[])]).terms);
    assert!(matches(&either, "node1", &[("b", "")]));
    assert!(!matches(&either, "node1", &[("c", "")]));
}

#[test]
fn a_term_without_expressions_matches_no_node() {
    let empty = NodeSelectorSpec { terms: vec![NodeSelectorTermSpec::default()] };
    assert!(!matches(&empty, "node1", &[("a", "")]));
}

#[test]
fn match_fields_select_by_node_name() {
    let by_name = fields(requirement("metadata.name", "In", &["node1"]));
    assert!(matches(&by_name, "node1", &[]) && !matches(&by_name, "node2", &[]));
    let not_by_name = fields(requirement("metadata.name", "NotIn", &["node1"]));
    assert!(!matches(&not_by_name, "node1", &[]) && matches(&not_by_name, "node2", &[]));
}

#[test]
fn fields_and_labels_of_a_term_are_anded() {
    let mut spec = fields(requirement("metadata.name", "In", &["node1"]));
    spec.terms[0].match_expressions.push(requirement("a", "Exists", &[]));
    assert!(matches(&spec, "node1", &[("a", "")]));
    assert!(!matches(&spec, "node1", &[]) && !matches(&spec, "node2", &[("a", "")]));
}

#[test]
fn a_selector_needs_a_term() {
    assert_eq!(found(&NodeSelectorSpec::default()), ["spec.nodeSelector.nodeSelectorTerms Required"]);
}

#[rstest]
#[case(requirement("k", "In", &[]), &["values Required"])]
#[case(requirement("k", "NotIn", &[]), &["values Required"])]
#[case(requirement("k", "Exists", &["a"]), &["values Conflict"])]
#[case(requirement("k", "DoesNotExist", &["a"]), &["values Conflict"])]
#[case(requirement("k", "Gt", &[]), &["values Required"])]
#[case(requirement("k", "Gt", &["1", "2"]), &["values Conflict"])]
#[case(requirement("k", "Lt", &["many"]), &["values[0] Malformed"])]
#[case(requirement("k", "Lt", &["9223372036854775808"]), &["values[0] Malformed"])]
#[case(requirement("k", "in", &["a"]), &["operator Unsupported"])]
#[case(requirement("k", "", &["a"]), &["operator Required"])]
#[case(requirement("", "Exists", &[]), &["key Required"])]
#[case(requirement("-k", "Exists", &[]), &["key Malformed"])]
#[case(requirement("a/b/c", "Exists", &[]), &["key Malformed"])]
#[case(requirement("/k", "Exists", &[]), &["key Malformed"])]
#[case(requirement("Upper.case/k", "Exists", &[]), &["key Malformed"])]
#[case(requirement("k", "In", &["ok", "not ok"]), &["values[1] Malformed"])]
#[case(requirement("k", "In", &["ends-with-"]), &["values[0] Malformed"])]
#[case(requirement("k k", "maybe", &["no no"]), &["key Malformed", "operator Unsupported", "values[0] Malformed"])]
fn an_expression_that_core_v1_refuses_is_refused(#[case] spec: RequirementSpec, #[case] expected: &[&str]) {
    let expected: Vec<String> = expected
        .iter()
        .map(|end| format!("spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].{end}"))
        .collect();
    assert_eq!(found(&selector(&[spec])), expected);
}

#[rstest]
#[case("node-role.kubernetes.io/worker")]
#[case("kubernetes.io/role")]
#[case("A_b.c-D")]
#[case("1")]
fn label_keys_of_kubernetes_are_taken(#[case] key: &str) {
    assert_eq!(found(&selector(&[requirement(key, "Exists", &[])])), [""; 0]);
}

#[test]
fn names_are_bounded_as_in_kubernetes() {
    let (longest, too_long) = ("a".repeat(63), "a".repeat(64));
    assert_eq!(found(&selector(&[requirement(&longest, "In", &[&longest])])), [""; 0]);
    assert_eq!(found(&selector(&[requirement(&too_long, "In", &[&too_long])])).len(), 2);
    let (longest, too_long) = ("a".repeat(253), "a".repeat(254));
    assert_eq!(found(&fields(requirement("metadata.name", "In", &[&longest]))), [""; 0]);
    assert_eq!(found(&fields(requirement("metadata.name", "In", &[&too_long]))).len(), 1);
}

#[rstest]
#[case(requirement("metadata.namespace", "In", &["a"]), &["key Unsupported"])]
#[case(requirement("metadata.name", "Exists", &["a"]), &["operator Unsupported"])]
#[case(requirement("metadata.name", "In", &[]), &["values Required"])]
#[case(requirement("metadata.name", "In", &["a", "b"]), &["values Conflict"])]
#[case(requirement("metadata.name", "In", &["Node_1"]), &["values[0] Malformed"])]
#[case(requirement("metadata.name", "In", &[""]), &["values[0] Required"])]
#[case(requirement("metadata.name", "In", &["a..b"]), &["values[0] Malformed"])]
fn a_field_that_core_v1_refuses_is_refused(#[case] spec: RequirementSpec, #[case] expected: &[&str]) {
    let expected: Vec<String> =
        expected.iter().map(|end| format!("spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].{end}")).collect();
    assert_eq!(found(&fields(spec)), expected);
}
