//! The mutants' patches fit the sources, name rules and tests that exist, and their pages are complete. That each mutant is
//! noticed is for `cargo mutants` to show.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::{BTreeMap, BTreeSet};

use ipam_e2e::binaries::workspace;
use ipam_e2e::mutants::{
    List, Mutant, applies, known, laws, sections, seeds, simulator_page, stale, tests_page, unplayed,
};

/// Whether each row of both pages must show a result. Make it `true` once `cargo mutants --check` finds no row that is not played.
const EVERY_ROW_IS_PLAYED: bool = true;

/// So many mutants each list has, at least. Who removes one says so here, with the reason in the commit.
const FEWEST: [(List, usize); 2] = [(List::Simulator, 84), (List::Tests, 325)];

/// Mutants by which the simulator shows that its laws of liveness are no words: an operator that assigns nothing, wakes no waiting
/// pool or ends no recovery, and an agent that refuses every ADD.
const LIVENESS: [&str; 4] =
    ["never-assigns", "never-wakes-a-waiting-pool", "recovery-never-ends", "agent-refuses-every-add"];

/// The laws of liveness: something that must happen does happen. The simulator checks them once no more faults happen.
const LIVENESS_LAWS: [&str; 10] = [
    "selected-node-has-a-block",
    "free-address-is-served",
    "ended-grant-is-replaced",
    "assignment-ends",
    "unused-block-is-released",
    "deleted-pool-goes",
    "ipam-node-goes",
    "agent-reports",
    "lost-records-end",
    "all-comes-to-rest",
];

/// A seed below this finds each mutant of [`LIVENESS`].
const LIVENESS_SEEDS: u64 = 2_000;

/// So many mutants a law of liveness finds, at least.
const FEWEST_OF_LIVENESS: usize = 12;

/// Rules that keep one address from two pods, at one time or soon after one another. Each has a mutant in one of the lists.
/// `invariant-8` is not here: it says what row 3.21 says.
const SAFETY: &str = "3.12 3.17 3.19 3.21 3.22 3.23 3.24 3.25 3.26 3.27 3.28 3.29 3.30 3.31 3.32 3.34 3.35 4.5 4.7 4.16 5.9 5.11 5.12 5.13 5.14 \
    5.15 5.17 6.14 7.1 7.2 7.5 7.6 7.7 9.7 invariant-2 invariant-3 invariant-5 invariant-7";

/// Every mutant of both lists.
fn mutants() -> Vec<Mutant> {
    List::BOTH.into_iter().flat_map(|list| list.mutants().unwrap()).collect()
}

#[test]
fn every_patch_fits_the_sources() {
    let broken: Vec<String> =
        mutants().iter().filter_map(|mutant| applies(mutant, &workspace()).err()).map(|why| why.to_string()).collect();
    assert!(broken.is_empty(), "the code around these patches has changed, adapt them:\n{}", broken.join("\n"));
}

#[test]
fn no_mutant_is_lost() {
    for (list, fewest) in FEWEST {
        let names: BTreeSet<String> = list.mutants().unwrap().into_iter().map(|mutant| mutant.name).collect();
        assert!(names.len() >= fewest, "{list:?} has {} mutants, and had {fewest}", names.len());
        if list == List::Simulator {
            assert_eq!(LIVENESS.into_iter().filter(|name| !names.contains(*name)).collect::<Vec<_>>(), [""; 0]);
        }
    }
}

#[test]
fn laws_of_liveness_find_mutants_and_find_some_early() {
    let known = laws(&workspace()).unwrap();
    assert_eq!(LIVENESS_LAWS.into_iter().filter(|law| !known.contains(*law)).collect::<Vec<_>>(), [""; 0]);
    let mut found = seeds(&std::fs::read_to_string(List::Simulator.page()).unwrap());
    found.retain(|_, found| LIVENESS_LAWS.contains(&found.law.as_str()));
    assert!(found.len() >= FEWEST_OF_LIVENESS, "laws of liveness find {} mutants: {:?}", found.len(), found.keys());
    let is_late = |name: &&str| found.get(*name).is_none_or(|found| found.seed >= LIVENESS_SEEDS);
    let late: Vec<&str> = LIVENESS.into_iter().filter(is_late).collect();
    assert!(late.is_empty(), "no law of liveness finds these below seed {LIVENESS_SEEDS}: {late:?}");
}

#[test]
fn every_mutant_names_a_rule_that_exists() {
    let known = known(&workspace()).unwrap();
    let wrong: Vec<String> = mutants()
        .into_iter()
        .filter(|mutant| !known.contains(&mutant.rule.id))
        .map(|mutant| format!("{}: {}", mutant.name, mutant.rule.id))
        .collect();
    assert!(wrong.is_empty(), "neither a row of e2e/behaviour.md nor an invariant:\n{}", wrong.join("\n"));
}

#[test]
fn every_named_test_exists() {
    let is_there = |mutant: &Mutant| mutant.test.as_ref().is_none_or(|test| test.exists(&workspace()).unwrap());
    let wrong: Vec<String> =
        mutants().into_iter().filter(|mutant| !is_there(mutant)).map(|mutant| mutant.name).collect();
    assert!(wrong.is_empty(), "the tests that these mutants name are not there:\n{}", wrong.join("\n"));
}

/// A row of the contract names every test that a mutant of its rule must turn red.
#[test]
fn the_test_of_a_mutant_is_in_the_row_of_its_rule() {
    let contract = std::fs::read_to_string(workspace().join("e2e/behaviour.md")).unwrap();
    let row = |id: &str| contract.lines().find(|line| line.starts_with(&format!("| {id} |"))).unwrap_or_default();
    let mut wrong = Vec::new();
    for mutant in List::Tests.mutants().unwrap() {
        let test = mutant.test.as_ref().unwrap().to_string();
        let name = test.rsplit([':', ' ']).next().unwrap();
        let is_named = row(&mutant.rule.id).contains(&format!("::{name}`"));
        if !mutant.rule.id.starts_with("invariant-") && !is_named {
            wrong.push(format!("{}: {name} is not in row {}", mutant.name, mutant.rule.id));
        }
    }
    assert!(wrong.is_empty(), "add the tests to e2e/behaviour.md:\n{}", wrong.join("\n"));
}

/// A law that finds no mutant could be removed, and nothing would show it.
#[test]
fn every_law_finds_a_mutant() {
    let found = seeds(&std::fs::read_to_string(List::Simulator.page()).unwrap());
    let mut bare = laws(&workspace()).unwrap();
    bare.retain(|law| law != "no-panic" && found.values().all(|found| found.law != *law));
    assert!(bare.is_empty(), "the page of the simulator's mutants names no mutant that these laws find: {bare:?}");
}

#[test]
fn every_rule_of_safety_has_a_mutant() {
    let mutants = mutants();
    let bare = SAFETY.split_whitespace().filter(|id| !mutants.iter().any(|mutant| mutant.rule.id == *id));
    let bare: Vec<&str> = bare.collect();
    assert!(bare.is_empty(), "rules without a mutant: {}", bare.join(", "));
}

#[test]
fn contributing_counts_the_rules_that_have_a_mutant() {
    let known = known(&workspace()).unwrap();
    let broken: BTreeSet<String> = mutants().into_iter().map(|mutant| mutant.rule.id).collect();
    let count = |ids: &BTreeSet<String>| {
        let invariants = ids.iter().filter(|id| id.starts_with("invariant-")).count();
        (ids.len() - invariants, invariants)
    };
    let ((rows, invariants), (all_rows, all_invariants)) = (count(&broken), count(&known));
    let sentence = format!(
        "break {rows} of the {all_rows} rows of the contract and {invariants} of the {all_invariants} invariants"
    );
    let page = std::fs::read_to_string(workspace().join("CONTRIBUTING.md")).unwrap();
    assert!(page.contains(&sentence), "write into CONTRIBUTING.md that the two lists {sentence}");
}

#[test]
fn every_section_of_the_contract_has_a_mutant_for_the_tests() {
    let played = List::Tests.mutants().unwrap();
    let has_mutant = |section: &str| played.iter().any(|mutant| mutant.rule.id.starts_with(&format!("{section}.")));
    let bare: Vec<String> =
        sections(&workspace()).unwrap().into_iter().filter(|section| !has_mutant(section)).collect();
    assert!(bare.is_empty(), "sections without a mutant: {}", bare.join(", "));
}

#[test]
fn every_mutant_for_the_simulator_names_laws_that_exist() {
    let known = laws(&workspace()).unwrap();
    assert!(known.contains("one-holder") && known.contains("no-panic"), "{known:?}");
    let mutants = List::Simulator.mutants().unwrap();
    let wrong: Vec<String> = mutants
        .iter()
        .flat_map(|mutant| mutant.laws.iter().map(|law| (&mutant.name, law)))
        .filter(|(_, law)| !known.contains(*law))
        .map(|(name, law)| format!("{name}: {law}"))
        .collect();
    assert!(wrong.is_empty(), "no law of the simulator has this name:\n{}", wrong.join("\n"));
    let bare: Vec<&str> = mutants.iter().filter(|it| it.laws.is_empty()).map(|it| it.name.as_str()).collect();
    assert!(bare.is_empty(), "these name no law: {bare:?}");
}

#[test]
fn no_mutant_is_found_by_a_panic() {
    let mutants = List::Simulator.mutants().unwrap();
    let wrong: Vec<String> =
        mutants.into_iter().filter(|it| it.laws.iter().any(|law| law == "no-panic")).map(|it| it.name).collect();
    assert!(wrong.is_empty(), "a panic shows no broken rule: {wrong:?}");
}

/// Each page begins as the program writes it, up to the commit. So a page that is written again keeps its words.
#[test]
fn each_page_begins_as_the_program_writes_it() {
    let written = [simulator_page(&[], &BTreeMap::new(), "0"), tests_page(&[], &BTreeSet::new(), "0")];
    for (list, written) in List::BOTH.into_iter().zip(written) {
        let (head, _) = written.split_once("`0`").unwrap();
        assert!(std::fs::read_to_string(list.page()).unwrap().starts_with(head), "{}", list.page().display());
    }
}

/// Whether files have changed since the pages' commits is for `cargo mutants --check`: every change of the code makes pages older
/// than the code.
#[test]
fn each_mutant_has_a_row_and_none_survives() {
    for list in List::BOTH {
        let (page, mutants) = (std::fs::read_to_string(list.page()).unwrap(), list.mutants().unwrap());
        let mut wrong = stale(&page, &mutants);
        if EVERY_ROW_IS_PLAYED {
            wrong.extend(unplayed(&page, &mutants));
        }
        let arguments = list.all_arguments();
        assert!(
            wrong.is_empty(),
            "run `cargo mutants {arguments}`, or put in the rows that `cargo mutants {}NAME...` prints:\n{}",
            arguments.trim_end_matches("--all"),
            wrong.join("\n")
        );
    }
}
