//! The first door: `ipam-core`, as webhook, `validate` and reconcile ask it.

use std::collections::BTreeSet;

use ipam_core::overlap::{OverlapCandidate, OverlapCandidates, settle, violation};
use ipam_core::spec::PoolSpec;
use ipam_core::{
    Advice, Claim, NodeRef, Pool, PoolKey, PoolKind, Usage, Violation, advise, advise_annotation, advise_nodes,
    displaced, edit, plan,
};
use ipam_crds::read::{judge, read};
use ipam_e2e::cases::{Age, Case, Other, fleet, load};

use crate::verdict::{Verdict, assert_none, disagreement, expected, lacking};

/// All that `ipam-core` says of a case, in its own words.
pub(crate) struct Said {
    pub(crate) violations: Vec<Violation>,
    /// Of the spec alone.
    pub(crate) advice: Vec<Advice>,
    /// Of the spec among the nodes of the table.
    pub(crate) of_nodes: Vec<Advice>,
}

/// Asks `ipam-core`; `created` says when another pool was made.
pub(crate) fn say(case: &Case, created: &dyn Fn(&Other) -> i64) -> Said {
    let mut said = Said { violations: Vec::new(), advice: Vec::new(), of_nodes: Vec::new() };
    // Whoever leaves the spec as it is hears nothing of it.
    if case.old.as_ref() != Some(&case.spec) {
        match judge(case.kind(), &case.pool, &case.spec) {
            Err(violations) => said.violations = violations,
            Ok((spec, pool)) => {
                said.advice = advise(&spec, &pool);
                let fleet = fleet();
                let nodes: Vec<NodeRef<'_>> = fleet.iter().map(|(name, labels)| NodeRef { name, labels }).collect();
                said.of_nodes = advise_nodes(&pool, &nodes);
                said.violations = in_use(case, &spec, &pool);
                said.advice.extend(left_out(case, &spec, &pool));
            }
        }
    }
    let is_untouched = case.old.as_ref() == Some(&case.spec) && case.old_allow_overlap == case.allow_overlap;
    if !is_untouched && judge(case.kind(), &case.pool, &case.spec).is_ok() {
        said.advice.extend(advise_annotation(case.allow_overlap.as_deref()));
    }
    let others: OverlapCandidates = others(case, created).into_iter().collect();
    if let Some(contender) = own(case, &case.spec, case.allow_overlap.as_deref()) {
        let old = case.old.as_ref().and_then(|old| own(case, old, case.old_allow_overlap.as_deref()));
        said.violations.extend(violation(&contender, &others.conflicts_made(old.as_ref(), &contender)));
    }
    said
}

fn core(case: &Case) -> Verdict {
    let said = say(case, &|other| created(other.age));
    let mut verdict = Verdict::default();
    verdict.refuse(&said.violations);
    verdict.warn(&said.advice);
    if case.fleet {
        verdict.warn(&said.of_nodes);
    }
    verdict
}

fn in_use(case: &Case, spec: &PoolSpec, pool: &Pool) -> Vec<Violation> {
    let Some(old) = &case.old else { return Vec::new() };
    let (old, _) = read(case.kind(), old);
    let usage = |node: &str| case.held_by(node).unwrap();
    // A block that is being taken back matters if the spec would let its node keep it.
    let is_selected = |node: &str| fleet().iter().any(|(name, labels)| name == node && pool.selects(name, labels));
    let counts = |claim: &Claim| !case.leaving.contains(&claim.node) || is_selected(&claim.node);
    let claims: Vec<Claim> = case.claims().unwrap().into_iter().filter(counts).collect();
    edit::violations(&displaced(pool, Some(&old), spec, &claims, &usage), Some(&old), spec)
}

fn left_out(case: &Case, spec: &PoolSpec, pool: &Pool) -> Option<Advice> {
    let (old, _) = read(case.kind(), case.old.as_ref()?);
    let is_selected = |node: &str| fleet().iter().any(|(name, labels)| name == node && pool.selects(name, labels));
    let is_given = |claim: &Claim| !case.leaving.contains(&claim.node);
    let claims: Vec<Claim> = case.claims().unwrap().into_iter().filter(is_given).collect();
    edit::left_out(&old, spec, &claims, &is_selected, &|node| case.held_by(node).unwrap())
}

pub(crate) const fn created(age: Age) -> i64 {
    match age {
        Age::Oldest => 1,
        Age::Older => 2,
        Age::Same => 3,
        Age::Younger => 4,
    }
}

/// The case's pool beside others, if its network can be read.
fn own(case: &Case, spec: &serde_json::Value, annotation: Option<&str>) -> Option<OverlapCandidate> {
    let network = read(case.kind(), spec).0.network()?;
    let key = PoolKey::new(case.kind(), &case.pool);
    Some(OverlapCandidate {
        key,
        network,
        created: created(Age::Same),
        allows_overlap: OverlapCandidate::allows(annotation),
    })
}

fn others(case: &Case, created: &dyn Fn(&Other) -> i64) -> Vec<OverlapCandidate> {
    let other = |other: &Other| {
        let kind = PoolKind::from_kind(&other.kind).unwrap();
        let (_, pool) = judge(kind, &other.name, &other.spec).unwrap();
        let allows_overlap = OverlapCandidate::allows(other.allow_overlap.as_deref());
        OverlapCandidate { key: pool.key().clone(), network: pool.network(), created: created(other), allows_overlap }
    };
    case.others.iter().map(other).collect()
}

#[test]
fn the_core_gives_every_case_its_verdict() {
    let cases = load().unwrap();
    let wrong: Vec<String> = cases.iter().filter_map(|case| disagreement(case, expected(case), core(case))).collect();
    assert_none(&wrong);
}

#[test]
fn the_core_says_the_texts_of_the_table_word_for_word() {
    let wrong = load().unwrap().into_iter().filter_map(|case| {
        let said = say(&case, &|other| created(other.age));
        let violations = said.violations.iter().map(ToString::to_string);
        let advice = said.advice.iter().chain(&said.of_nodes).map(ToString::to_string);
        lacking(&case, &violations.chain(advice).collect())
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn of_pools_that_overlap_those_of_the_table_do_not_serve() {
    let wrong = load().unwrap().into_iter().filter_map(|case| {
        let mut all = others(&case, &|other| created(other.age));
        // A pool whose spec is invalid has no network to serve.
        if judge(case.kind(), &case.pool, &case.spec).is_ok() {
            all.extend(own(&case, &case.spec, case.allow_overlap.as_deref()));
        }
        let yields: BTreeSet<String> = settle(&all).into_keys().map(|key| key.name).collect();
        (yields != case.yields).then(|| format!("{}: {yields:?}", case.title()))
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn the_blocks_of_the_table_are_those_that_its_nodes_would_be_given() {
    let none = std::collections::BTreeMap::new();
    let mut planned = 0;
    for case in load().unwrap().into_iter().filter(|case| case.leaving.is_empty()) {
        let Some(Ok((_, pool))) = case.old.as_ref().map(|old| judge(case.kind(), &case.pool, old)) else { continue };
        let nodes: Vec<NodeRef<'_>> = case.blocks.keys().map(|name| NodeRef { name, labels: &none }).collect();
        let plan = plan(&pool, &nodes, &[], &|_| Usage::Unknown);
        let ranges =
            |claims: &[Claim]| claims.iter().map(|claim| (claim.node.clone(), claim.range)).collect::<Vec<_>>();
        let given: Vec<_> = plan.assignments.iter().map(|one| (one.node.clone(), one.block.range)).collect();
        assert_eq!(given, ranges(&case.claims().unwrap()), "{}", case.title());
        planned += usize::from(!given.is_empty());
    }
    assert!(planned > 60, "{planned}");
}
