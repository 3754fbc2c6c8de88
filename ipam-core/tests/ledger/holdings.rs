//! What a node tells of its pools: runs of held addresses, also of pools that are gone.

use ipam_core::ledger::{Holding, Ledger};

use crate::support::*;

fn told(ledger: &Ledger, most: usize) -> Vec<(String, u64, u128, Option<Vec<String>>)> {
    let texts = |holding: Holding| {
        let runs = holding.runs.map(|runs| runs.iter().map(ToString::to_string).collect());
        (format!("{} {}", holding.key.name, holding.range), holding.used, holding.capacity, runs)
    };
    ledger.holdings(most).into_iter().map(texts).collect()
}

fn runs(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn neighbours_are_told_as_one_run_and_others_apart() {
    let mut ledger = ledger(&[four()]);
    for (container, addr) in [("x", "192.168.0.1"), ("y", "192.168.0.2"), ("z", "192.168.9.9")] {
        take(&mut ledger, &asking(container, &["a"], &[addr])).unwrap();
    }
    let expected = runs(&["192.168.0.1-192.168.0.2", "192.168.9.9-192.168.9.9"]);
    assert_eq!(told(&ledger, 2), [("a 192.168.0.1-192.168.0.4".to_owned(), 3, 4, Some(expected))]);
}

#[test]
fn more_runs_than_asked_for_are_not_told_in_part() {
    let mut ledger = ledger(&[four()]);
    for (container, addr) in [("x", "192.168.0.1"), ("y", "192.168.0.3")] {
        take(&mut ledger, &asking(container, &["a"], &[addr])).unwrap();
    }
    assert_eq!(told(&ledger, 1), [("a 192.168.0.1-192.168.0.4".to_owned(), 2, 4, None)]);
}

#[test]
fn a_pool_that_is_gone_is_told_while_anything_of_it_is_held_and_no_longer() {
    let mut ledger = ledger(&[four()]);
    for container in ["x", "y"] {
        next(&mut ledger, container);
    }
    ledger.configure(Vec::new());
    let held = "192.168.0.1-192.168.0.2";
    assert_eq!(told(&ledger, 9), [(format!("a {held}"), 2, 0, Some(runs(&[held])))]);
    for container in ["x", "y"] {
        release_at(&mut ledger, container, &["a"], 0);
    }
    assert_eq!(told(&ledger, 9), []);
}

#[test]
fn a_pool_of_which_nothing_is_held_is_told_as_empty() {
    assert_eq!(told(&ledger(&[four()]), 9), [("a 192.168.0.1-192.168.0.4".to_owned(), 0, 4, Some(runs(&[])))]);
}
