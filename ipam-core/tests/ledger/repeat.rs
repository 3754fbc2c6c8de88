//! Asking again, checking, and giving back.

use ipam_core::NodePool;
use ipam_core::ledger::{Owner, Pick, Refusal};
use ipam_core::node_pool::{Pause, PoolState};

use crate::support::*;

#[test]
fn a_repeat_gets_the_same_answer_and_changes_nothing() {
    let mut ledger = ledger(&[with_gateway(four(), "192.168.0.1"), three()]);
    let requests = [
        request("x", &["a", "b"]),
        asking("s", &["a"], &["192.168.8.8"]),
        picking("g", &["a"], Pick::Gateway),
        picking("i", &["a"], Pick::Index(3)),
    ];
    for request in requests {
        let first = take_at(&mut ledger, &request, 1).unwrap();
        let again = ledger.allocate(&request, 99).unwrap();
        assert_eq!(again.grants, first.grants);
        assert!(!first.changes.is_empty() && again.changes.is_empty());
    }
}

#[test]
fn a_repeat_that_asks_for_another_address_is_already_held() {
    let mut ledger = ledger(&[with_gateway(four(), "192.168.0.1")]);
    next(&mut ledger, "x");
    let others = [
        asking("x", &["a"], &["192.168.0.3"]),
        picking("x", &["a"], Pick::Gateway),
        picking("x", &["a"], Pick::Index(2)),
    ];
    for other in others {
        assert_eq!(take(&mut ledger, &other).unwrap_err().reason(), "AlreadyHeld", "{other:?}");
    }
    let refusal = take(&mut ledger, &asking("x", &["a"], &["192.168.0.3"])).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "this container and interface already hold 192.168.0.2 of IPPool \"a\", but 192.168.0.3 is asked for; \
         delete the attachment first"
    );
}

#[test]
fn a_repeat_that_asks_for_what_is_held_by_another_way_is_granted() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    assert_eq!(take(&mut ledger, &asking("x", &["a"], &["192.168.0.1"])).unwrap(), [ip("192.168.0.1")]);
    assert_eq!(take(&mut ledger, &picking("x", &["a"], Pick::Index(0))).unwrap(), [ip("192.168.0.1")]);
}

#[test]
fn one_of_two_pools_held_before_is_kept_and_the_other_is_added() {
    let mut ledger = ledger(&[four(), three()]);
    next(&mut ledger, "x");
    let allocation = take_at(&mut ledger, &request("x", &["b", "a"]), 0).unwrap();
    assert_eq!(
        allocation.grants.iter().map(|grant| grant.addr).collect::<Vec<_>>(),
        [ip("fd00::1"), ip("192.168.0.1")]
    );
    assert_eq!(allocation.changes.len(), 1);
}

#[test]
fn a_repeat_is_served_while_the_block_is_being_released_paused_or_moved_within_the_subnet() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    for state in [PoolState::Releasing, PoolState::Paused(Pause::Unconfirmed)] {
        ledger.configure(vec![NodePool { state, ..four() }]);
        assert_eq!(next(&mut ledger, "x"), "192.168.0.1");
    }
    ledger.configure(vec![pool("a", "192.168.7.1", "192.168.7.4", "192.168.0.0/16")]);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.1");
}

#[test]
fn a_held_address_outside_a_new_subnet_is_not_answered_with_a_foreign_mask() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    ledger.configure(vec![pool("a", "10.0.0.1", "10.0.0.4", "10.0.0.0/24")]);
    let refusal = take(&mut ledger, &request("x", &["a"])).unwrap_err();
    assert!(refusal.to_string().contains("the pool's subnet is now 10.0.0.0/24"), "{refusal}");
    assert_eq!(refusal.reason(), "AlreadyHeld");
}

#[test]
fn a_repeat_of_a_pool_no_longer_configured_is_unknown_and_its_reservation_survives() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    ledger.configure(Vec::new());
    assert!(matches!(take(&mut ledger, &request("x", &["a"])), Err(Refusal::UnknownPool { .. })));
    assert_eq!(ledger.check(&[key("a")], &owner("x"), &[]), Ok(()));
    assert_eq!(release_at(&mut ledger, "x", &["a"], 0), 1);
}

#[test]
fn container_and_interface_are_a_pair_and_never_one_text() {
    let mut ledger = ledger(&[four()]);
    for (owner, addr) in [(Owner::new("a_b", "c"), "192.168.0.1"), (Owner::new("a", "b_c"), "192.168.0.2")] {
        let mut request = request("p", &["a"]);
        request.owner = owner;
        assert_eq!(take(&mut ledger, &request).unwrap(), [ip(addr)]);
    }
}

#[test]
fn two_interfaces_of_one_container_hold_two_addresses() {
    let mut ledger = ledger(&[four()]);
    for (interface, addr) in [("net1", "192.168.0.1"), ("net2", "192.168.0.2")] {
        let mut request = request("x", &["a"]);
        request.owner = Owner::new("x", interface);
        assert_eq!(take(&mut ledger, &request).unwrap(), [ip(addr)]);
    }
}

#[test]
fn check_wants_a_reservation_in_each_pool() {
    let mut ledger = ledger(&[four(), three()]);
    next(&mut ledger, "x");
    assert_eq!(ledger.check(&[key("a")], &owner("x"), &[]), Ok(()));
    let refusal = ledger.check(&[key("a"), key("b")], &owner("x"), &[]).unwrap_err();
    assert_eq!(refusal.to_string(), "container \"x\" interface \"net1\" holds no address of IPPool \"b\"");
    assert_eq!(ledger.check(&[key("nope")], &owner("x"), &[]).unwrap_err().reason(), "UnknownPool");
    assert_eq!(ledger.check(&[], &Owner::new("", "net1"), &[]).unwrap_err().reason(), "Invalid");
}

#[test]
fn check_wants_each_reserved_address_among_the_expected_ones_and_ignores_foreign_ones() {
    let mut ledger = ledger(&[four(), three()]);
    take(&mut ledger, &request("x", &["a", "b"])).unwrap();
    let pools = [key("a"), key("b")];
    let all = ["10.9.9.9", "fd00::1", "192.168.0.1"].map(ip);
    assert_eq!(ledger.check(&pools, &owner("x"), &all), Ok(()));
    let refusal = ledger.check(&pools, &owner("x"), &all[..2]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "192.168.0.1 of IPPool \"a\" is reserved, which is not among the expected addresses (10.9.9.9, fd00::1)"
    );
}

#[test]
fn a_released_address_can_be_given_to_another() {
    let mut ledger = ledger(&[four()]);
    for n in 0..4 {
        next(&mut ledger, &n.to_string());
    }
    assert_eq!(release_at(&mut ledger, "2", &["a"], 0), 1);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.3");
}

#[test]
fn releasing_something_unknown_is_no_change_and_needs_no_configured_pool() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    assert_eq!(release_at(&mut ledger, "y", &["a", "nope"], 0), 0);
    assert_eq!(release_at(&mut ledger, "x", &["a", "a"], 0), 1, "a pool named twice is released once");
    assert_eq!(release_at(&mut ledger, "x", &["a"], 0), 0);
}

#[test]
fn releasing_an_excluded_address_or_the_gateway_does_not_make_it_free() {
    let bare = excluding(with_gateway(four(), "192.168.0.1"), &[("192.168.0.2", "192.168.0.2")]);
    let mut ledger = ledger(&[bare]);
    for addr in ["192.168.0.1", "192.168.0.2"] {
        take(&mut ledger, &asking("x", &["a"], &[addr])).unwrap();
        release_at(&mut ledger, "x", &["a"], 0);
    }
    assert_eq!(["x", "y", "z"].map(|c| next(&mut ledger, c)), ["192.168.0.3", "192.168.0.4", "Exhausted"]);
}
