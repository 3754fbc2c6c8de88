//! Addresses asked for by value, by index, or by being the gateway.

use ipam_core::NodePool;
use ipam_core::addr::number;
use ipam_core::ledger::{Pick, Refusal};

use crate::support::*;

#[test]
fn a_static_request_may_take_any_free_address_of_the_subnet() {
    let excluded = excluding(with_gateway(four(), "192.168.0.1"), &[("192.168.0.2", "192.168.0.2")]);
    let mut ledger = ledger(&[excluded]);
    for (container, addr) in [("gateway", "192.168.0.1"), ("excluded", "192.168.0.2"), ("far", "192.168.255.254")] {
        assert_eq!(take(&mut ledger, &asking(container, &["a"], &[addr])).unwrap(), [ip(addr)], "{container}");
    }
}

#[test]
fn a_taken_address_is_refused_naming_its_holder() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    let refusal = take(&mut ledger, &asking("y", &["a"], &["192.168.0.1"])).unwrap_err();
    let text = "192.168.0.1 of IPPool \"a\" is held by pod ns/x (container \"x\" interface \"net1\")";
    assert_eq!((refusal.reason(), refusal.to_string()), ("AddressTaken", text.to_owned()));
}

#[test]
fn each_requested_address_goes_to_the_pool_whose_subnet_holds_it() {
    let mut ledger = ledger(&[four(), three()]);
    let crossed = asking("x", &["a", "b"], &["fd00::9", "192.168.3.3"]);
    assert_eq!(take(&mut ledger, &crossed).unwrap(), [ip("192.168.3.3"), ip("fd00::9")]);
}

#[test]
fn with_one_requested_address_the_other_pool_gives_its_next() {
    let mut ledger = ledger(&[four(), three()]);
    assert_eq!(take(&mut ledger, &asking("x", &["a", "b"], &["fd00::9"])).unwrap(), [ip("192.168.0.1"), ip("fd00::9")]);
    assert_eq!(next(&mut ledger, "y"), "192.168.0.2");
}

#[test]
fn overlapping_pools_share_requested_addresses_so_that_both_fit() {
    let narrow = pool("b", "192.168.0.1", "192.168.0.4", "192.168.0.0/24");
    let mut ledger = ledger(&[four(), narrow]);
    for requested in [["192.168.0.9", "192.168.9.9"], ["192.168.9.9", "192.168.0.9"]] {
        let allocation = ledger.allocate(&asking("x", &["a", "b"], &requested), 0).unwrap();
        assert_eq!(allocation.grants[0].addr, ip("192.168.9.9"));
        assert_eq!(allocation.grants[1].addr, ip("192.168.0.9"));
    }
    take(&mut ledger, &asking("y", &["b", "a"], &["192.168.0.255", "192.168.0.7"])).unwrap();
}

#[test]
fn the_gateway_feature_gives_the_gateway_and_returns_none() {
    let routed = NodePool { default_gateway: true, ..with_gateway(four(), "192.168.0.1") };
    let mut ledger = ledger(&[routed]);
    let allocation = take_at(&mut ledger, &picking("x", &["a"], Pick::Gateway), 0).unwrap();
    let grant = &allocation.grants[0];
    assert_eq!((grant.addr, grant.prefix_len, grant.gateway), (ip("192.168.0.1"), 16, None));
    assert!(grant.routes.is_empty(), "routes need a gateway");
    let refusal = take(&mut ledger, &picking("y", &["a"], Pick::Gateway)).unwrap_err();
    assert_eq!(refusal.reason(), "AddressTaken");
}

#[test]
fn a_static_answer_carries_the_gateway_also_when_it_is_the_gateway() {
    let mut ledger = ledger(&[with_gateway(four(), "192.168.0.1")]);
    let allocation = take_at(&mut ledger, &asking("x", &["a"], &["192.168.0.1"]), 0).unwrap();
    assert_eq!(allocation.grants[0].gateway, Some(ip("192.168.0.1")));
}

#[test]
fn an_index_counts_from_the_first_address_of_the_range_and_may_mean_an_excluded_one() {
    let mut ledger = ledger(&[excluding(four(), &[("192.168.0.3", "192.168.0.3")])]);
    assert_eq!(take(&mut ledger, &picking("x", &["a"], Pick::Index(0))).unwrap(), [ip("192.168.0.1")]);
    assert_eq!(take(&mut ledger, &picking("y", &["a"], Pick::Index(2))).unwrap(), [ip("192.168.0.3")]);
    assert_eq!(take(&mut ledger, &picking("z", &["a"], Pick::Index(2))).unwrap_err().reason(), "AddressTaken");
}

#[test]
fn what_is_held_on_another_node_is_given_by_no_means() {
    let elsewhere = [(number(ip("192.168.0.1")), number(ip("192.168.0.2")))].into_iter().collect();
    let mut ledger = ledger(&[NodePool { elsewhere, ..with_gateway(four(), "192.168.0.4") }]);
    for request in [picking("x", &["a"], Pick::Index(0)), asking("x", &["a"], &["192.168.0.2"])] {
        assert_eq!(take(&mut ledger, &request).unwrap_err().reason(), "HeldElsewhere");
    }
    assert_eq!(["x", "y"].map(|container| next(&mut ledger, container)), ["192.168.0.3", "Exhausted"]);
    assert_eq!(ledger.holdings(9)[0].capacity, 1);
    release_at(&mut ledger, "x", &["a"], 0);
    assert_eq!(next(&mut ledger, "z"), "192.168.0.3", "and what comes free is given again");
}

#[test]
fn an_index_means_the_same_place_in_both_pools() {
    let mut ledger = ledger(&[four(), three()]);
    assert_eq!(
        take(&mut ledger, &picking("x", &["a", "b"], Pick::Index(2))).unwrap(),
        [ip("192.168.0.3"), ip("fd00::3")]
    );
}

#[test]
fn two_pools_give_both_addresses_or_none() {
    let mut ledger = ledger(&[four(), three()]);
    for n in 0..3 {
        take(&mut ledger, &request(&n.to_string(), &["b"])).unwrap();
    }
    let before = snapshot(&ledger);
    for pools in [["a", "b"], ["b", "a"]] {
        assert!(matches!(take(&mut ledger, &request("x", &pools)), Err(Refusal::Exhausted { .. })));
        assert_eq!(snapshot(&ledger), before);
    }
}
