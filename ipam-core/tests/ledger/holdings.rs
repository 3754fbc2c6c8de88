//! What a node tells of its pools: runs of held addresses, also of pools that are gone.

use std::net::Ipv4Addr;

use ipam_core::AddrRange;
use ipam_core::ledger::{Holding, Ledger};
use proptest::prelude::*;

use crate::support::*;

fn told(ledger: &Ledger, most: usize) -> Vec<(String, u64, u128, Vec<String>)> {
    let texts = |holding: Holding| {
        let runs = holding.runs.iter().map(ToString::to_string).collect();
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
    assert_eq!(told(&ledger, 2), [("a 192.168.0.1-192.168.0.4".to_owned(), 3, 4, expected)]);
}

#[test]
fn what_is_held_without_a_record_is_told_beside_what_has_one() {
    let mut ledger = ledger(&[four()]);
    take(&mut ledger, &asking("x", &["a"], &["192.168.0.2"])).unwrap();
    let range = |first: [u8; 4], last: [u8; 4]| AddrRange::new(first.into(), last.into()).unwrap();
    let lost = [range([192, 168, 9, 9], [192, 168, 9, 9]), range([192, 168, 0, 3], [192, 168, 0, 4])];
    let mut holding = ledger.holdings(2).remove(0);
    holding.capacity = 2; // Without those that the pool is barred from giving.
    holding.join(&lost, 2);
    let runs = vec![range([192, 168, 0, 2], [192, 168, 0, 4]), range([192, 168, 9, 9], [192, 168, 9, 9])];
    assert_eq!((holding.used, holding.capacity, holding.runs), (4, 4, runs));
    let gone = Holding::unconfigured(holding.key, &lost, 2).unwrap();
    assert_eq!((gone.used, gone.capacity, gone.runs.len()), (3, 0, 2));
    assert_eq!(gone.range, range([192, 168, 0, 3], [192, 168, 9, 9]));
    assert_eq!(Holding::unconfigured(gone.key, &[], 2), None);
}

#[test]
fn more_runs_than_asked_for_are_covered_by_fewer_that_leave_nothing_out_and_tell_strays_exactly() {
    let mut ledger = ledger(&[pool("a", "192.168.1.0", "192.168.1.255", "192.168.0.0/16")]);
    let held =
        ["192.168.0.3", "192.168.0.5", "192.168.1.1", "192.168.1.3", "192.168.1.9", "192.168.1.255", "192.168.2.1"];
    for addr in held {
        take(&mut ledger, &asking(addr, &["a"], &[addr])).unwrap();
    }
    let exact = held.map(|addr| format!("{addr}-{addr}"));
    let of = |most| told(&ledger, most).remove(0).3;
    assert_eq!(of(7), exact);
    let (low, high) = (&exact[..2], &exact[6..]);
    let within = |inside: &[&str]| [low, &runs(inside), high].concat();
    assert_eq!(of(6), within(&["192.168.1.1-192.168.1.3", "192.168.1.9-192.168.1.9", "192.168.1.255-192.168.1.255"]));
    assert_eq!(of(5), within(&["192.168.1.1-192.168.1.9", "192.168.1.255-192.168.1.255"]));
    assert_eq!(of(4), within(&["192.168.1.1-192.168.1.255"]));
    let closed = ["192.168.0.3-192.168.0.5", "192.168.1.1-192.168.1.255", "192.168.2.1-192.168.2.1"];
    assert_eq!(of(3), runs(&closed), "strays only when there is no other room");
    assert_eq!(of(2), runs(&["192.168.0.3-192.168.0.5", "192.168.1.1-192.168.2.1"]));
}

proptest! {
    #[test]
    fn no_address_is_left_out_and_no_more_runs_are_told_than_asked_for(
        places in prop::collection::btree_set(0_u32..600, 0..80), most in 2_usize..12,
    ) {
        let mut ledger = ledger(&[pool("a", "192.168.1.0", "192.168.1.255", "192.168.0.0/16")]);
        let addrs: Vec<_> = places.iter().map(|place| Ipv4Addr::from_bits(0xc0a8_0080 + place).to_string()).collect();
        for addr in &addrs {
            take(&mut ledger, &asking(addr, &["a"], &[addr])).unwrap();
        }
        let holding = ledger.holdings(most).remove(0);
        prop_assert!(holding.runs.len() <= most);
        prop_assert!(holding.runs.is_sorted());
        prop_assert!(addrs.iter().all(|addr| holding.runs.iter().any(|run| run.contains(ip(addr)))));
        let told: u128 = holding.runs.iter().map(AddrRange::size).sum();
        prop_assert!(told >= u128::from(holding.used));
    }
}

#[test]
fn a_pool_that_is_gone_is_told_while_anything_of_it_is_held_and_no_longer() {
    let mut ledger = ledger(&[four()]);
    for container in ["x", "y"] {
        next(&mut ledger, container);
    }
    ledger.configure(Vec::new());
    let held = "192.168.0.1-192.168.0.2";
    assert_eq!(told(&ledger, 9), [(format!("a {held}"), 2, 0, runs(&[held]))]);
    for container in ["x", "y"] {
        release_at(&mut ledger, container, &["a"], 0);
    }
    assert_eq!(told(&ledger, 9), []);
}

#[test]
fn a_pool_of_which_nothing_is_held_is_told_as_empty() {
    assert_eq!(told(&ledger(&[four()]), 9), [("a 192.168.0.1-192.168.0.4".to_owned(), 0, 4, runs(&[]))]);
}
