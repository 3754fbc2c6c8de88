//! `RangeSet` against a plain set of small numbers.

use std::collections::BTreeSet;

use ipam_core::RangeSet;
use proptest::prelude::*;

const SMALL: u128 = 40;

#[test]
fn runs_that_touch_become_one() {
    let set: RangeSet = [(1, 2), (5, 6), (3, 4)].into_iter().collect();
    assert_eq!(set.runs().collect::<Vec<_>>(), [(1, 6)]);
}

#[test]
fn the_ends_of_all_numbers_are_members_like_others() {
    let mut set = RangeSet::new();
    set.insert(u128::MAX, u128::MAX);
    set.insert(0, 0);
    assert!(set.contains(u128::MAX) && set.contains(0) && !set.contains(1));
    assert_eq!(set.first_gap(0, u128::MAX), Some(1));
    assert_eq!(set.last_gap(0, u128::MAX), Some(u128::MAX - 1));
    set.insert(1, u128::MAX - 1);
    assert_eq!((set.run_count(), set.size()), (1, u128::MAX));
    assert_eq!(set.first_gap(0, u128::MAX), None);
    assert_eq!(set.last_gap(0, u128::MAX), None);
    set.remove(u128::MAX);
    assert_eq!(set.gaps_in(0, u128::MAX), 1, "one number is open");
}

#[test]
fn bounds_in_the_wrong_order_are_an_empty_question() {
    let mut set: RangeSet = [(3, 20)].into_iter().collect();
    set.insert(9, 2);
    assert_eq!(set.runs().collect::<Vec<_>>(), [(3, 20)]);
    assert!(!set.intersects(10, 5));
    assert!(set.clipped(10, 5).is_empty());
    assert_eq!((set.gaps_in(10, 5), set.first_gap(10, 5), set.last_gap(10, 5)), (0, None, None));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u128, u128),
    Remove(u128),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0..SMALL, 0..SMALL).prop_map(|(a, b)| Step::Insert(a.min(b), a.max(b)));
    prop::collection::vec(prop_oneof![insert, (0..SMALL).prop_map(Step::Remove)], 0..24)
}

fn built(steps: &[Step]) -> (RangeSet, BTreeSet<u128>) {
    let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
    for step in steps {
        match *step {
            Step::Insert(first, last) => {
                set.insert(first, last);
                model.extend(first..=last);
            }
            Step::Remove(value) => {
                set.remove(value);
                model.remove(&value);
            }
        }
    }
    (set, model)
}

proptest! {
    #[test]
    fn a_run_set_answers_as_a_plain_set_does(steps in steps(), a in 0..SMALL, b in 0..SMALL) {
        let (set, model) = built(&steps);
        let (from, to) = (a.min(b), a.max(b));
        let inside: BTreeSet<u128> = model.range(from..=to).copied().collect();
        prop_assert_eq!(set.size(), model.len() as u128);
        prop_assert_eq!(set.is_empty(), model.is_empty());
        prop_assert_eq!(set.contains(a), model.contains(&a));
        prop_assert_eq!(set.covers(from, to), (from..=to).all(|value| model.contains(&value)));
        prop_assert_eq!(set.intersects(from, to), !inside.is_empty());
        prop_assert_eq!(set.first_gap(from, to), (from..=to).find(|value| !model.contains(value)));
        prop_assert_eq!(set.last_gap(from, to), (from..=to).rev().find(|value| !model.contains(value)));
        prop_assert_eq!(set.gaps_in(from, to), (to - from + 1) - inside.len() as u128);
        let clipped: BTreeSet<u128> = set.clipped(from, to).runs().flat_map(|(first, last)| first..=last).collect();
        prop_assert_eq!(clipped, inside);
    }

    #[test]
    fn runs_are_apart_and_rising(steps in steps()) {
        let (set, _) = built(&steps);
        let runs: Vec<_> = set.runs().collect();
        prop_assert!(runs.iter().all(|(first, last)| first <= last));
        prop_assert!(runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
    }
}
