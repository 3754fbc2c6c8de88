//! Specs as the API server hands them over: parsing, advice, and the plan for a few nodes with records that may be spoilt.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::plan::{BlockPhase, Claim, ClaimSource, NodeRef, Plan, Usage, plan};
use ipam_core::spec::PoolSpec;
use ipam_core::{AddrRange, Pool, PoolKind, advise, advise_nodes};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde::Deserialize as _;
use serde_json::Value as Json;

/// Longest message about one mistake, in bytes.
const LONGEST: usize = 2_000;
/// Nodes that are planned for at most.
const MOST_NODES: usize = 16;
/// Addresses in use of a block at most; blocks of fuzzed pools may be smaller.
const MOST_HELD: u64 = 5;

/// The input is an object like a pool's manifest in JSON, with `nodes` beside it: a list of names. All its bytes together say
/// what the agent of each node reports.
pub(super) fn run(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Json>(data) else { return };
    let kind = if object["kind"] == "CIDRPool" { PoolKind::CidrPool } else { PoolKind::IpPool };
    let Some(spec) = spec(kind, &object["spec"]) else { return };
    let name = object["metadata"]["name"].as_str().unwrap_or("p");
    let pool = match Pool::parse(name, &spec) {
        Ok(pool) => pool,
        Err(violations) => {
            assert!(!violations.is_empty(), "refused without a reason");
            for violation in violations {
                assert!(violation.field.starts_with("spec") || violation.field == "metadata.name", "{violation:?}");
                assert!(!violation.message.is_empty() && violation.message.len() < LONGEST, "{violation:?}");
            }
            return;
        }
    };
    assert!(advise(&spec, &pool).iter().all(|advice| advice.message.len() < LONGEST));
    let labels = BTreeMap::new();
    let names = names(&object["nodes"]);
    let nodes: Vec<NodeRef<'_>> = names.iter().map(|name| NodeRef { name, labels: &labels }).collect();
    assert!(advise_nodes(&pool, &nodes).iter().all(|advice| advice.message.len() < LONGEST));
    let claims = claims(kind, &object["status"]["allocations"]);
    let usage = |node: &str| usage(data, node);
    let made = plan(&pool, &nodes, &claims, &usage);
    check(&pool, &nodes, &made);
    check_kept(&claims, &usage, &made);
    check_again(&pool, &nodes, &usage, &made);
}

/// What the node's agent reports, by a hash (FNV-1a) of the input and the node's name: no report, none in use, or some.
fn usage(data: &[u8], node: &str) -> Usage {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = data.iter().chain(node.as_bytes()).fold(0xcbf2_9ce4_8422_2325, step);
    // The upper bits depend on all bytes, the lowest on the lowest alone.
    match (hash >> 32) % 3 {
        0 => Usage::Unknown,
        1 => Usage::Empty,
        _ => Usage::Held(1 + (hash >> 40) % MOST_HELD),
    }
}

fn spec(kind: PoolKind, value: &Json) -> Option<PoolSpec> {
    match kind {
        PoolKind::IpPool => IPPoolSpec::deserialize(value).ok().map(|spec| PoolSpec::from(&spec)),
        PoolKind::CidrPool => CIDRPoolSpec::deserialize(value).ok().map(|spec| PoolSpec::from(&spec)),
    }
}

fn names(value: &Json) -> BTreeSet<&str> {
    let names: BTreeSet<&str> =
        value.as_array().into_iter().flatten().filter_map(Json::as_str).take(MOST_NODES).collect();
    if names.is_empty() { ["a", "b", "c"].into() } else { names }
}

fn claims(kind: PoolKind, value: &Json) -> Vec<Claim> {
    let claim = |entry: &Json| {
        let text = |name: &str| entry[name].as_str();
        match kind {
            PoolKind::IpPool => {
                Claim::from_ip_range(text("nodeName")?, text("startIP")?, text("endIP")?, ClaimSource::Status)
            }
            PoolKind::CidrPool => {
                Claim::from_prefix(text("nodeName")?, text("prefix")?, text("gateway"), ClaimSource::Status)
            }
        }
    };
    value.as_array().into_iter().flatten().filter_map(claim).take(MOST_NODES).collect()
}

/// The laws of a plan (behaviour.md §3).
fn check(pool: &Pool, nodes: &[NodeRef<'_>], made: &Plan) {
    assert!(
        made.assignments.is_sorted_by(|one, next| one.node < next.node),
        "a node has two blocks, or they are unsorted"
    );
    let mut ranges: Vec<AddrRange> = made.assignments.iter().map(|assignment| assignment.block.range).collect();
    ranges.sort_unstable();
    assert!(ranges.is_sorted_by(|one, next| !one.overlaps(next)), "two nodes have one address: {ranges:?}");
    let mut capacity: u128 = 0;
    for assignment in made.assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Active) {
        let block = &assignment.block;
        assert!(pool.network().range().contains_range(&block.range), "{block:?} lies outside of the pool");
        assert_eq!(pool.capacity(block), pool.node_pool(block).capacity(), "{block:?} is counted in two ways");
        capacity = capacity.saturating_add(pool.capacity(block));
    }
    // A node allocates from a block of an earlier spec, too.
    for stale in made.assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Stale) {
        capacity = capacity.saturating_add(pool.capacity(&stale.block));
    }
    assert_eq!(made.capacity, capacity);
    for node in nodes.iter().filter(|node| pool.selects(node.name, node.labels)) {
        let has_block = made.assignments.iter().any(|assignment| assignment.node == node.name);
        let is_unserved = made.unserved.iter().any(|name| name == node.name);
        assert!(has_block != is_unserved, "{} is told neither or both", node.name);
    }
}

/// A record of a block whose addresses may be in use counts, unless its node has a block or another node has a part of this
/// one. A block that is known to be empty stays only where the spec wants it.
fn check_kept(claims: &[Claim], usage: &dyn Fn(&str) -> Usage, made: &Plan) {
    for claim in claims.iter().filter(|claim| usage(&claim.node) != Usage::Empty) {
        let is_kept =
            made.assignments.iter().any(|one| one.node == claim.node || one.block.range.overlaps(&claim.range));
        assert!(is_kept, "{claim:?} is dropped, though pods may use it");
    }
    for assignment in made.assignments.iter().filter(|one| usage(&one.node) == Usage::Empty) {
        assert_eq!(assignment.phase, BlockPhase::Active, "{assignment:?} is empty and stays");
    }
}

/// What was planned is a record of the next plan, which changes nothing.
fn check_again(pool: &Pool, nodes: &[NodeRef<'_>], usage: &dyn Fn(&str) -> Usage, made: &Plan) {
    let claims: Vec<Claim> = made
        .assignments
        .iter()
        .map(|assignment| Claim {
            node: assignment.node.clone(),
            range: assignment.block.range,
            gateway: assignment.block.gateway,
            source: ClaimSource::Status,
        })
        .collect();
    let again = plan(pool, nodes, &claims, usage);
    assert_eq!(again.assignments, made.assignments, "a plan changes what it planned");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::seeds::corpus;

    #[test]
    fn nodes_of_the_corpus_report_nothing_none_and_some() {
        let mut counts = [0_usize; 3];
        for input in corpus("spec").expect("the corpus is in the repository") {
            for node in ["a", "b", "c"] {
                let kind = match usage(&input, node) {
                    Usage::Unknown => 0,
                    Usage::Empty => 1,
                    Usage::Held(count) => {
                        assert!((1..=MOST_HELD).contains(&count), "{count}");
                        2
                    }
                };
                counts[kind] += 1;
            }
        }
        let all: usize = counts.iter().sum();
        assert!(all > 1_000 && counts.iter().all(|count| *count > all / 4), "{counts:?}");
    }
}
