//! Occupancy, compared with a list that is searched from end to end.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::occupancy::{Evidence, Fact, Occupancy, Source, Touched};
use ipam_core::{AddrRange, Family, PoolKey, PoolKind};
use proptest::collection::vec;
use proptest::prelude::*;

const POOLS: [&str; 3] = ["blue", "green", "red"];
const EVIDENCE: [Evidence; 7] = [
    Evidence::Recorded,
    Evidence::Entry,
    Evidence::StoppedEntry,
    Evidence::InUse,
    Evidence::Gateway,
    Evidence::OutsideBlock,
    Evidence::Reserved,
];

/// A fact as the test makes it: pool, node, range, evidence.
type Plain = (usize, u8, AddrRange, Evidence);

/// What the test expects, without an index.
#[derive(Default)]
struct Naive {
    facts: Vec<(Source, Plain)>,
}

impl Naive {
    fn replace(&mut self, source: &Source, facts: &[Plain]) -> BTreeSet<(usize, AddrRange, Evidence)> {
        let unique: BTreeSet<Plain> = facts.iter().copied().collect();
        let before: BTreeSet<Plain> = self.of(source);
        self.facts.retain(|(of, _)| of != source);
        self.facts.extend(unique.iter().map(|fact| (source.clone(), *fact)));
        before.symmetric_difference(&unique).map(|(pool, _, range, evidence)| (*pool, *range, *evidence)).collect()
    }

    fn of(&self, source: &Source) -> BTreeSet<Plain> {
        self.facts.iter().filter(|(of, _)| of == source).map(|(_, fact)| *fact).collect()
    }

    /// Facts and how often each is there.
    fn count(&self, filter: impl Fn(&Plain) -> bool) -> BTreeMap<Plain, usize> {
        count(self.facts.iter().map(|(_, fact)| *fact).filter(filter))
    }
}

fn count(facts: impl Iterator<Item = Plain>) -> BTreeMap<Plain, usize> {
    let mut counts = BTreeMap::new();
    facts.for_each(|fact| *counts.entry(fact).or_default() += 1);
    counts
}

fn key(pool: usize) -> PoolKey {
    PoolKey::new(PoolKind::IpPool, POOLS[pool])
}

fn plain(fact: &Fact) -> Plain {
    let pool = POOLS.iter().position(|name| *name == fact.pool.name).unwrap();
    (pool, fact.node.parse().unwrap(), fact.range, fact.evidence)
}

/// Ranges near one another, single addresses and whole families among them.
fn range() -> impl Strategy<Value = AddrRange> {
    let small = (0_u128..300, 0_u128..40).prop_map(|(first, more)| (first, first + more));
    let wide = (0_u128..64, 0_u128..5000).prop_map(|(first, more)| (first, first + more));
    let v4 = prop_oneof![8 => small, 2 => wide].prop_map(|(first, last)| (Family::V4, first, last));
    let v6 = (0_u128..200, prop_oneof![Just(0), Just(1), 0..u128::from(u64::MAX)])
        .prop_map(|(first, more)| (Family::V6, first, first + more));
    let all = prop_oneof![Just((Family::V6, 0, u128::MAX)), Just((Family::V4, 0, u128::from(u32::MAX)))];
    prop_oneof![8 => v4, 2 => v6, 1 => all]
        .prop_map(|(family, first, last)| AddrRange::from_numbers(family, first, last).unwrap())
}

fn fact() -> impl Strategy<Value = Plain> {
    (0..POOLS.len(), 0_u8..4, range(), prop::sample::select(EVIDENCE.to_vec()))
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        (0..POOLS.len()).prop_map(|pool| Source::Status(key(pool))),
        (0_u8..4).prop_map(|node| Source::IpamNode(node.to_string())),
        (0_u8..4).prop_map(|node| Source::Reservations(node.to_string())),
    ]
}

/// Whether the pool has to be looked at, by what has changed.
fn concerns(
    changes: &BTreeSet<(usize, AddrRange, Evidence)>,
    pool: usize,
    network: &AddrRange,
    shares: &[usize],
) -> bool {
    changes.iter().any(|(of, range, evidence)| {
        if *of == pool {
            matches!(evidence, Evidence::OutsideBlock | Evidence::Reserved | Evidence::Gateway)
                || !network.contains_range(range)
        } else {
            range.overlaps(network) && !shares.contains(of)
        }
    })
}

proptest! {
    #[test]
    fn the_index_answers_as_a_list_does(
        steps in vec((source(), vec(fact(), 0..12)), 1..24),
        asked in vec(range(), 1..8),
        shares in prop::sample::subsequence(vec![0, 1, 2], 0..3),
    ) {
        let (mut occupancy, mut naive) = (Occupancy::new(), Naive::default());
        let may_share = |pool: &PoolKey| shares.iter().any(|of| key(*of) == *pool);
        let mut all = Touched::default();
        let mut all_changes = BTreeSet::new();
        for (source, facts) in &steps {
            let made = facts.iter().map(|(pool, node, range, evidence)| {
                occupancy.fact(&key(*pool), &node.to_string(), *range, *evidence)
            }).collect();
            let touched = occupancy.replace(source, made);
            let changes = naive.replace(source, facts);
            prop_assert_eq!(touched.is_empty(), changes.is_empty());
            for pool in 0..POOLS.len() {
                for network in &asked {
                    let is_concerned = touched.concerns(&key(pool), Some(network), &may_share);
                    prop_assert_eq!(is_concerned, concerns(&changes, pool, network, &shares));
                }
            }
            all.extend(touched);
            all_changes.extend(changes);
            prop_assert_eq!(occupancy.of(source).map(plain).collect::<BTreeSet<_>>(), naive.of(source));
        }
        for network in &asked {
            let overlapping = count(occupancy.overlapping(network).map(plain));
            prop_assert_eq!(overlapping, naive.count(|(_, _, range, _)| range.overlaps(network)));
            for pool in 0..POOLS.len() {
                let of_pool = key(pool);
                let unavailable = count(occupancy.unavailable(&of_pool, network, &may_share).map(plain));
                let expected = naive.count(|(of, _, range, evidence)| {
                    let is_beyond = match evidence {
                        Evidence::OutsideBlock | Evidence::Reserved | Evidence::Gateway => true,
                        Evidence::Recorded => false,
                        _ => !network.contains_range(range),
                    };
                    range.overlaps(network) && if *of == pool { is_beyond } else { !shares.contains(of) }
                });
                prop_assert_eq!(unavailable, expected);
                prop_assert_eq!(all.concerns(&of_pool, Some(network), &may_share), concerns(&all_changes, pool, network, &shares));
            }
        }
        for pool in 0..POOLS.len() {
            let outside = count(occupancy.outside_blocks(&key(pool)).map(plain));
            prop_assert_eq!(outside, naive.count(|(of, _, _, evidence)| *of == pool && *evidence == Evidence::OutsideBlock));
        }
        for (source, _) in &steps {
            occupancy.replace(source, Vec::new());
        }
        let whole = AddrRange::from_numbers(Family::V4, 0, u128::from(u32::MAX)).unwrap();
        prop_assert_eq!(occupancy.overlapping(&whole).count(), 0);
        prop_assert!(!occupancy.has_outside_blocks());
    }
}

#[test]
fn names_of_nodes_that_are_gone_are_dropped() {
    let mut occupancy = Occupancy::new();
    let range = AddrRange::from_numbers(Family::V4, 1, 4).unwrap();
    for number in 0..100_000_u32 {
        let source = Source::IpamNode("n".to_owned());
        let fact = occupancy.fact(&key(0), &number.to_string(), range, Evidence::Entry);
        occupancy.replace(&source, vec![fact]);
    }
    assert!(occupancy.names() < 4096, "{} names", occupancy.names());
}
