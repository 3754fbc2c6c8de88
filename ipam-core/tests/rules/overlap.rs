//! Which pools stand in each other's way: by example, and against a comparison of each with each.

use std::collections::BTreeMap;

use ipam_core::overlap::violation;
use ipam_core::{Cidr, OverlapCandidate, OverlapCandidates, PoolKey, PoolKind, Reason, settle};
use proptest::prelude::*;

use crate::support::{cidr_pool, cidr_spec};

fn network(text: &str) -> Cidr {
    Cidr::parse(text).unwrap().0
}

fn contender(kind: PoolKind, name: &str, text: &str, created: i64) -> OverlapCandidate {
    OverlapCandidate { key: PoolKey::new(kind, name), network: network(text), created, allows_overlap: false }
}

fn flat(name: &str, text: &str, created: i64) -> OverlapCandidate {
    contender(PoolKind::IpPool, name, text, created)
}

fn isolated(contender: OverlapCandidate) -> OverlapCandidate {
    OverlapCandidate { allows_overlap: true, ..contender }
}

fn names(found: &[&OverlapCandidate]) -> Vec<String> {
    found.iter().map(|contender| contender.key.name.clone()).collect()
}

#[test]
fn pools_overlap_if_their_networks_share_an_address() {
    let pool = |cidr: &str, len| cidr_pool(cidr_spec(cidr, len));
    assert!(pool("10.0.0.0/8", 24).overlaps(&pool("10.200.0.0/16", 24)));
    assert!(pool("10.200.0.0/16", 24).overlaps(&pool("10.0.0.0/8", 24)));
    assert!(!pool("10.0.0.0/16", 24).overlaps(&pool("10.1.0.0/16", 24)));
    assert!(!pool("::/0", 64).overlaps(&pool("0.0.0.0/0", 24)));
}

#[test]
fn wider_equal_and_narrower_networks_conflict_and_the_oldest_is_told_first() {
    let known: OverlapCandidates = [
        flat("wide", "10.0.0.0/8", 30),
        flat("same", "10.1.0.0/16", 20),
        flat("narrow", "10.1.2.0/24", 10),
        flat("beside", "10.2.0.0/16", 1),
        flat("six", "fd00::/8", 1),
    ]
    .into_iter()
    .collect();
    let asked = contender(PoolKind::CidrPool, "new", "10.1.0.0/16", 40);
    assert_eq!(names(&known.conflicts(&asked)), ["narrow", "same", "wide"]);
    let all = flat("all", "::/0", 0);
    assert_eq!(names(&known.conflicts(&all)), ["six"]);
}

#[test]
fn an_edit_is_blamed_for_the_conflicts_that_it_makes_and_for_no_other() {
    let known: OverlapCandidates =
        [flat("a", "10.0.0.0/24", 1), isolated(flat("b", "10.0.1.0/24", 2))].into_iter().collect();
    let made = |old: &OverlapCandidate, new: &OverlapCandidate| names(&known.conflicts_made(Some(old), new));
    let (narrow, wide) = (flat("me", "10.0.0.0/24", 3), flat("me", "10.0.0.0/16", 3));
    assert_eq!(made(&narrow, &narrow), [""; 0]);
    assert_eq!(made(&narrow, &wide), ["b"]);
    assert_eq!(made(&wide, &narrow), [""; 0]);
    assert_eq!(made(&isolated(wide.clone()), &wide), ["b"], "the allowance is taken away");
    assert_eq!(names(&known.conflicts_made(None, &wide)), ["a", "b"]);
}

#[test]
fn an_ippool_and_a_cidrpool_of_one_name_are_two_pools_and_a_pool_is_not_in_its_own_way() {
    let known: OverlapCandidates = [flat("a", "10.0.0.0/8", 1)].into_iter().collect();
    assert_eq!(known.conflicts(&flat("a", "10.0.0.0/16", 2)), Vec::<&OverlapCandidate>::new());
    assert_eq!(names(&known.conflicts(&contender(PoolKind::CidrPool, "a", "10.0.0.0/16", 2))), ["a"]);
}

#[test]
fn only_two_pools_that_both_allow_it_may_overlap() {
    let plain = flat("a", "10.0.0.0/8", 1);
    for (known, asked, conflict) in [
        (plain.clone(), flat("b", "10.0.0.0/8", 2), true),
        (isolated(plain.clone()), flat("b", "10.0.0.0/8", 2), true),
        (plain.clone(), isolated(flat("b", "10.0.0.0/8", 2)), true),
        (isolated(plain), isolated(flat("b", "10.0.0.0/8", 2)), false),
    ] {
        let known: OverlapCandidates = [known].into_iter().collect();
        assert_eq!(!known.conflicts(&asked).is_empty(), conflict, "{asked:?}");
    }
    let spellings =
        [Some("true"), Some("True"), Some("yes"), Some(" true"), Some(""), None].map(OverlapCandidate::allows);
    assert_eq!(spellings, [true, false, false, false, false, false]);
}

#[test]
fn a_pool_that_changes_or_goes_leaves_nothing_behind() {
    let mut known = OverlapCandidates::new();
    known.insert(flat("a", "10.0.0.0/8", 1));
    known.insert(flat("a", "11.0.0.0/8", 1));
    assert_eq!((known.len(), known.conflicts(&flat("b", "10.0.0.0/8", 2)).len()), (1, 0));
    known.remove(&PoolKey::new(PoolKind::IpPool, "a"));
    known.remove(&PoolKey::new(PoolKind::IpPool, "a"));
    assert_eq!(known, OverlapCandidates::new());
    assert!(known.is_empty());
}

#[test]
fn the_older_serves_and_of_two_as_old_the_first_by_kind_and_name() {
    let losers = |contenders: &[OverlapCandidate]| -> Vec<String> {
        settle(contenders).iter().map(|(loser, winner)| format!("{loser} < {winner}")).collect()
    };
    let (a, b) = (flat("a", "10.0.0.0/8", 2), flat("b", "10.0.0.0/16", 1));
    assert_eq!(losers(&[a.clone(), b.clone()]), [r#"IPPool "a" < IPPool "b""#]);
    assert_eq!(losers(&[b, a]), [r#"IPPool "a" < IPPool "b""#]);
    let (one, two) = (flat("z", "10.0.0.0/8", 1), contender(PoolKind::CidrPool, "a", "10.0.0.0/16", 1));
    assert_eq!(losers(&[two, one]), [r#"CIDRPool "a" < IPPool "z""#]);
}

#[test]
fn a_pool_that_does_not_serve_stands_in_nobody_s_way() {
    let chain = [flat("a", "10.0.0.0/16", 1), flat("b", "10.0.0.0/8", 2), flat("c", "10.1.0.0/16", 3)];
    let losers = settle(&chain);
    assert_eq!(losers.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["b"], "c overlaps b alone, and serves");
}

#[test]
fn a_violation_names_the_field_the_others_and_the_way_out() {
    let others: Vec<OverlapCandidate> = (0..5).map(|i| flat(&format!("p{i}"), "10.0.0.0/8", i)).collect();
    let all: Vec<&OverlapCandidate> = others.iter().collect();
    let found = violation(&contender(PoolKind::CidrPool, "new", "10.1.0.0/16", 9), &all).unwrap();
    assert_eq!((found.field.as_str(), found.reason), ("spec.cidr", Reason::Overlap));
    assert_eq!(
        found.message,
        "\"10.1.0.0/16\" shares addresses with IPPool \"p0\" (10.0.0.0/8), IPPool \"p1\" (10.0.0.0/8), IPPool \"p2\" \
         (10.0.0.0/8) and 2 more; write a network of its own, or, if the two are isolated L2 networks, set the annotation \
         nv-ipam.nvidia.com/allow-overlap: \"true\" on both"
    );
    let found = violation(&isolated(flat("new", "10.1.0.0/16", 9)), &all[..1]).unwrap();
    assert_eq!(found.field, "spec.subnet");
    assert!(found.message.ends_with("(10.0.0.0/8), which lack the annotation nv-ipam.nvidia.com/allow-overlap: \"true\" that this pool has; both must have it"), "{}", found.message);
    assert_eq!(violation(&flat("new", "10.1.0.0/16", 9), &[]), None);
}

/// Pools of a small world in which most meet another.
fn contenders() -> impl Strategy<Value = Vec<OverlapCandidate>> {
    let one = (any::<bool>(), 0..12_u8, any::<bool>(), 0..6_u8, any::<u8>(), 0..4_i64, any::<bool>());
    proptest::collection::vec(one, 0..24).prop_map(|drawn| {
        let each = drawn.into_iter().map(|(flat, name, v4, len, bits, created, allows_overlap)| {
            let kind = if flat { PoolKind::IpPool } else { PoolKind::CidrPool };
            let text = if v4 { format!("{bits}.0.0.0/{len}") } else { format!("{bits:x}00::/{len}") };
            let key = PoolKey::new(kind, format!("p{name}"));
            (key.clone(), OverlapCandidate { key, network: network(&text), created, allows_overlap })
        });
        each.collect::<BTreeMap<_, _>>().into_values().collect()
    })
}

proptest! {
    #[test]
    fn the_index_finds_what_a_comparison_with_each_finds(all in contenders(), gone in any::<prop::sample::Index>()) {
        let mut known: OverlapCandidates = all.iter().cloned().collect();
        let mut left = all.clone();
        if !all.is_empty() {
            known.remove(&left.remove(gone.index(all.len())).key);
        }
        for asked in &all {
            let mut naive: Vec<&OverlapCandidate> = left.iter().filter(|other| asked.conflicts_with(other)).collect();
            naive.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
            prop_assert_eq!(known.conflicts(asked), naive);
        }
    }

    #[test]
    fn who_serves_never_conflicts_and_who_does_not_has_an_older_one_in_the_way(all in contenders()) {
        let losers = settle(&all);
        let serving: Vec<&OverlapCandidate> = all.iter().filter(|one| !losers.contains_key(&one.key)).collect();
        for (i, one) in serving.iter().enumerate() {
            prop_assert!(serving[i + 1..].iter().all(|two| !one.conflicts_with(two)));
        }
        for (loser, winner) in &losers {
            let find = |key: &PoolKey| all.iter().find(|one| one.key == *key).unwrap();
            let (loser, winner) = (find(loser), find(winner));
            prop_assert!(loser.conflicts_with(winner) && !losers.contains_key(&winner.key));
            prop_assert!((winner.created, &winner.key) < (loser.created, &loser.key));
        }
        let mut reversed = all.clone();
        reversed.reverse();
        prop_assert_eq!(settle(&reversed), losers, "the order of telling has a say");
    }
}
