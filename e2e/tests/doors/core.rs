//! The first door: `ipam-core`, as webhook, `validate` and reconcile ask it.

use std::collections::BTreeSet;

use ipam_core::overlap::{Contender, Contenders, settle, violation};
use ipam_core::spec::PoolSpec;
use ipam_core::{Claim, NodeRef, Pool, PoolKey, PoolKind, Usage, advise, advise_nodes, displaced, edit, plan};
use ipam_crds::read::{judge, read};
use ipam_e2e::cases::{Age, Case, POOL, fleet, load};

use crate::verdict::{Verdict, assert_none, disagreement, expected};

fn core(case: &Case) -> Verdict {
    let mut verdict = Verdict::default();
    match judge(case.kind(), POOL, &case.spec) {
        Err(violations) => verdict.refuse(&violations),
        Ok((spec, pool)) => {
            verdict.warn(&advise(&spec, &pool));
            if case.fleet {
                let fleet = fleet();
                let nodes: Vec<NodeRef<'_>> = fleet.iter().map(|(name, labels)| NodeRef { name, labels }).collect();
                verdict.warn(&advise_nodes(&pool, &nodes));
            }
            verdict.refuse(&in_use(case, &spec, &pool));
        }
    }
    let others: Contenders = others(case).into_iter().collect();
    if let Some(contender) = own(case, &case.spec, case.allow_overlap.as_deref()) {
        let old = case.old.as_ref().and_then(|old| own(case, old, case.old_allow_overlap.as_deref()));
        verdict.refuse(violation(&contender, &others.conflicts_made(old.as_ref(), &contender)).as_slice());
    }
    verdict
}

fn in_use(case: &Case, spec: &PoolSpec, pool: &Pool) -> Vec<ipam_core::Violation> {
    let Some(old) = &case.old else { return Vec::new() };
    let (old, _) = read(case.kind(), old);
    let usage = |node: &str| case.held_by(node).unwrap();
    edit::violations(&displaced(pool, Some(&old), spec, &case.claims().unwrap(), &usage), Some(&old), spec)
}

const fn created(age: Age) -> i64 {
    match age {
        Age::Oldest => 1,
        Age::Older => 2,
        Age::Same => 3,
        Age::Younger => 4,
    }
}

/// The case's pool beside others, if its network can be read.
fn own(case: &Case, spec: &serde_json::Value, annotation: Option<&str>) -> Option<Contender> {
    let network = read(case.kind(), spec).0.network()?;
    let key = PoolKey::new(case.kind(), POOL);
    Some(Contender { key, network, created: created(Age::Same), allows_overlap: Contender::allows(annotation) })
}

fn others(case: &Case) -> Vec<Contender> {
    let other = |other: &ipam_e2e::cases::Other| {
        let kind = PoolKind::from_kind(&other.kind).unwrap();
        let (_, pool) = judge(kind, &other.name, &other.spec).unwrap();
        let allows_overlap = Contender::allows(other.allow_overlap.as_deref());
        Contender { key: pool.key().clone(), network: pool.network(), created: created(other.age), allows_overlap }
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
fn of_pools_that_overlap_those_of_the_table_do_not_serve() {
    let wrong = load().unwrap().into_iter().filter_map(|case| {
        let mut all = others(&case);
        // A pool whose spec is invalid has no network to serve.
        if judge(case.kind(), POOL, &case.spec).is_ok() {
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
    for case in load().unwrap() {
        let Some(Ok((_, pool))) = case.old.as_ref().map(|old| judge(case.kind(), POOL, old)) else { continue };
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
