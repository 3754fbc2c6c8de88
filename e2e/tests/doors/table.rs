//! The table itself: large enough, of the right form, and with something for every word.

use std::collections::BTreeSet;
use std::path::Path;

use ipam_core::{AdviceCode, Family, PoolKind, Reason};
use ipam_e2e::cases::{Case, load, read};

fn count(cases: &[Case], holds: impl Fn(&Case) -> bool) -> usize {
    cases.iter().filter(|case| holds(case)).count()
}

#[test]
fn the_table_has_hundreds_of_cases_of_both_kinds_and_families() {
    let cases = load().unwrap();
    // As many as there are: a case that is deleted is missed.
    assert!(cases.len() >= 510, "{}", cases.len());
    for (kind, family, least) in [
        (PoolKind::IpPool, Family::V4, 232),
        (PoolKind::IpPool, Family::V6, 45),
        (PoolKind::CidrPool, Family::V4, 148),
        (PoolKind::CidrPool, Family::V6, 47),
    ] {
        let of_both = count(&cases, |case| {
            let network = ipam_crds::read::read(kind, &case.spec).0.network();
            case.kind() == kind && network.is_some_and(|network| network.family() == family)
        });
        assert!(of_both >= least, "{kind} {family}: {of_both}");
    }
    assert!(count(&cases, |case| case.refused.len() > 1) >= 40, "cases with several mistakes");
    assert!(count(&cases, |case| case.old.is_some()) >= 102, "edits");
    assert!(count(&cases, |case| !case.others.is_empty()) >= 45, "other pools");
    assert!(count(&cases, |case| case.refused.is_empty()) >= 198, "cases in which all is well");
    assert!(count(&cases, |case| !case.texts.is_empty()) >= 10, "texts by hand");
}

#[test]
fn every_reason_and_every_kind_of_advice_has_a_case() {
    let cases = load().unwrap();
    let reasons: BTreeSet<&str> = cases.iter().flat_map(|case| &case.refused).map(|one| one.reason.as_str()).collect();
    let codes: BTreeSet<&str> = cases.iter().flat_map(|case| &case.warned).map(|one| one.code.as_str()).collect();
    let silent = Reason::ALL.iter().map(|reason| reason.as_str()).filter(|word| !reasons.contains(word));
    let unadvised = AdviceCode::ALL.iter().map(|code| code.as_str()).filter(|word| !codes.contains(word));
    assert_eq!(silent.chain(unadvised).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_table_that_says_what_nobody_reads_is_refused() {
    let cases = |text: &str| read(Path::new("x.yaml"), &format!("kind: IPPool\ncases:\n- {text}"));
    let good = "{name: a, spec: {}, refused: [{field: spec.subnet, reason: Required}]}";
    assert_eq!(cases(good).unwrap().len(), 1);
    for (bad, why) in [
        ("{name: a, spec: {}, refusd: []}", "unknown field `refusd`"),
        ("{name: a}", "missing field `spec`"),
        ("{name: a, spec: {}, refused: [{field: f, reason: Wrong}]}", "\"Wrong\" is no reason"),
        ("{name: a, spec: {}, warned: [{field: f, code: Odd}]}", "\"Odd\" is no code"),
        ("{name: a, spec: {}, refused: [{field: f, reason: Required, message: m}]}", "unknown field `message`"),
        ("{name: a, spec: {}, blocks: {n1: 10.0.0.1-10.0.0.2}}", "a pool that is new has no blocks"),
        ("{name: a, spec: {}, old: {}, blocks: {n1: 10.0.0.1}}", "a block is FIRST-LAST"),
        ("{name: a, spec: {}, old: {}, blocks: {n1: 10.0.0.2-10.0.0.1}}", "is no block"),
        ("{name: a, spec: {}, old: {}, held: {n1: []}}", "a node without a block holds nothing"),
        ("{name: a, spec: {}, yields: [other]}", "who yields is not there"),
        ("{name: a, spec: {}, texts: ['spec.subnet: no']}", "a text is of no field that is refused or warned of"),
        ("{name: a, spec: {}, others: [{name: o, kind: Pool, spec: {}}]}", "has no kind of ours"),
    ] {
        let error = format!("{:#}", cases(bad).unwrap_err());
        assert!(error.contains(why), "{bad}: {error}");
    }
}
