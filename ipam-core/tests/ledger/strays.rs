//! A pool that left the node, or came back with another subnet, while pods hold its addresses: no other pool gives these.

use ipam_core::ledger::{Change, Ledger};

use crate::support::*;

/// Pool "old" gave .1 and .2 of the network that pool "a" has now; "old" is gone.
fn after_a_rename() -> Ledger {
    let old = pool("old", "192.168.0.1", "192.168.0.4", "192.168.0.0/16");
    let mut ledger = ledger(&[old]);
    for container in ["x", "y"] {
        take(&mut ledger, &request(container, &["old"])).unwrap();
    }
    ledger.configure(vec![four()]);
    ledger
}

#[test]
fn a_pool_does_not_give_what_is_held_of_a_pool_that_is_gone() {
    let mut ledger = after_a_rename();
    let given: Vec<_> = ["1", "2", "3"].map(|container| next(&mut ledger, container)).into();
    assert_eq!(given, ["192.168.0.3", "192.168.0.4", "Exhausted"]);
    let refusal = ledger.allocate(&request("3", &["a"]), 0).unwrap_err();
    assert!(refusal.to_string().contains("4 held"), "{refusal}");
    let asked = ledger.allocate(&asking("3", &["a"], &["192.168.0.1"]), 0).unwrap_err();
    assert!(asked.to_string().contains("held by pod ns/x"), "{asked}");
}

#[test]
fn it_is_the_same_after_a_restart_whatever_is_read_first() {
    let ledger = after_a_rename();
    assert_eq!(next(&mut restarted(&ledger, &[four()]), "1"), "192.168.0.3");
    let mut configured_first = Ledger::new(0);
    configured_first.configure(vec![four()]);
    apply(&mut configured_first, &snapshot(&ledger));
    assert_eq!(next(&mut configured_first, "1"), "192.168.0.3");
}

#[test]
fn once_its_holder_is_gone_an_address_is_given() {
    let mut ledger = after_a_rename();
    assert_eq!(release_at(&mut ledger, "x", &["old"], 0), 1);
    let given: Vec<_> = ["1", "2", "3", "4"].map(|container| next(&mut ledger, container)).into();
    assert_eq!(given, ["192.168.0.1", "192.168.0.3", "192.168.0.4", "Exhausted"]);
}

#[test]
fn a_pool_that_returns_keeps_its_own_and_pools_that_overlap_on_purpose_do_not_hinder_each_other() {
    let mut ledger = after_a_rename();
    let old = pool("old", "192.168.0.1", "192.168.0.4", "192.168.0.0/16");
    ledger.configure(vec![four(), old]);
    assert_eq!(next(&mut ledger, "1"), "192.168.0.1");
    assert_eq!(take(&mut ledger, &request("2", &["old"])).unwrap(), [ip("192.168.0.3")]);
}

#[test]
fn what_is_held_of_a_pool_that_came_back_with_another_subnet_is_given_by_no_other() {
    let mut ledger = after_a_rename();
    let moved = pool("old", "10.0.0.1", "10.0.0.4", "10.0.0.0/24");
    ledger.configure(vec![four(), moved]);
    assert_eq!(next(&mut ledger, "1"), "192.168.0.3");
    let owner = owner("y");
    ledger.apply(&Change::Release { pool: key("old"), owner, at: 0 });
    assert_eq!(ledger.allocate(&asking("2", &["a"], &["192.168.0.2"]), 0).unwrap().grants[0].addr, ip("192.168.0.2"));
}
