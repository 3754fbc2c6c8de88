//! In which order addresses are given when none is asked for by name.

use ipam_core::ledger::Pick;
use ipam_core::node_pool::{Pause, PoolState};
use ipam_core::{AddrRange, NodePool};

use crate::support::*;

#[test]
fn addresses_are_given_in_rising_order_from_the_first_of_the_range() {
    let mut ledger = ledger(&[four()]);
    assert_eq!(["x", "y", "z"].map(|c| next(&mut ledger, c)), ["192.168.0.1", "192.168.0.2", "192.168.0.3"]);
}

#[test]
fn a_released_address_is_given_again_only_after_the_rest_of_the_range() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    release_at(&mut ledger, "x", &["a"], 0);
    let given: Vec<_> = (0..4).map(|n| next(&mut ledger, &n.to_string())).collect();
    assert_eq!(given, ["192.168.0.2", "192.168.0.3", "192.168.0.4", "192.168.0.1"]);
}

#[test]
fn the_gateway_is_skipped() {
    let mut ledger = ledger(&[with_gateway(four(), "192.168.0.1")]);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.2", "behaviour.md §3: node1 .1-.4, first pod .2");
}

#[test]
fn excluded_addresses_are_skipped_also_when_exclusions_overlap() {
    let overlapping = [("192.168.0.1", "192.168.0.2"), ("192.168.0.2", "192.168.0.3")];
    let mut ledger = ledger(&[excluding(four(), &overlapping)]);
    assert_eq!(["x", "y"].map(|c| next(&mut ledger, c)), ["192.168.0.4", "Exhausted"]);
}

#[test]
fn addresses_held_by_a_static_request_are_skipped() {
    let mut ledger = ledger(&[four()]);
    take(&mut ledger, &asking("s", &["a"], &["192.168.0.1"])).unwrap();
    assert_eq!(next(&mut ledger, "x"), "192.168.0.2");
}

#[test]
fn only_a_found_address_moves_the_cursor() {
    let mut ledger = ledger(&[with_gateway(pool("a", "192.168.0.1", "192.168.0.9", "192.168.0.0/24"), "192.168.0.6")]);
    next(&mut ledger, "x");
    take(&mut ledger, &asking("static", &["a"], &["192.168.0.4"])).unwrap();
    take(&mut ledger, &picking("index", &["a"], Pick::Index(4))).unwrap();
    take(&mut ledger, &picking("gateway", &["a"], Pick::Gateway)).unwrap();
    assert_eq!(next(&mut ledger, "y"), "192.168.0.2");
}

#[test]
fn the_cursor_survives_a_restart_when_nothing_is_held() {
    let mut before = ledger(&[four()]);
    next(&mut before, "x");
    release_at(&mut before, "x", &["a"], 0);
    assert_eq!(next(&mut restarted(&before, &[four()]), "y"), "192.168.0.2");
}

#[test]
fn each_pool_has_its_own_cursor() {
    let mut ledger = ledger(&[four(), three()]);
    next(&mut ledger, "x");
    assert_eq!(take(&mut ledger, &request("y", &["b", "a"])).unwrap(), [ip("fd00::1"), ip("192.168.0.2")]);
}

#[test]
fn a_cursor_inside_a_changed_range_keeps_its_place() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    next(&mut ledger, "y");
    ledger.configure(vec![pool("a", "192.168.0.1", "192.168.0.99", "192.168.0.0/16")]);
    assert_eq!(next(&mut ledger, "z"), "192.168.0.3");
}

#[test]
fn a_cursor_outside_a_changed_range_is_ignored_until_the_range_returns() {
    let mut ledger = ledger(&[four()]);
    next(&mut ledger, "x");
    ledger.configure(vec![pool("a", "192.168.7.1", "192.168.7.9", "192.168.0.0/16")]);
    assert!(ledger.held_by(&key("a"), &owner("x")).is_some(), "what is held stays held");
    ledger.configure(vec![four()]);
    assert_eq!(next(&mut ledger, "y"), "192.168.0.2");
    ledger.configure(vec![pool("a", "192.168.7.1", "192.168.7.9", "192.168.0.0/16")]);
    assert_eq!(next(&mut ledger, "z"), "192.168.7.1");
}

#[test]
fn a_full_range_is_exhausted_and_says_so() {
    let mut ledger = ledger(&[four()]);
    take(&mut ledger, &asking("outside", &["a"], &["192.168.7.7"])).unwrap();
    for n in 0..4 {
        next(&mut ledger, &n.to_string());
    }
    let refusal = take(&mut ledger, &request("x", &["a"])).unwrap_err();
    let text = "IPPool \"a\" has no free address on this node: 4 held in 192.168.0.1-192.168.0.4";
    assert_eq!(refusal.to_string(), text);
}

#[test]
fn a_range_that_ends_at_the_last_address_of_its_family_wraps() {
    let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let mut ledger = ledger(&[pool("a", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", last, "ffff::/16")]);
    next(&mut ledger, "x");
    release_at(&mut ledger, "x", &["a"], 0);
    assert_eq!(next(&mut ledger, "y"), last);
    assert!(next(&mut ledger, "z").ends_with("fffe"));
    assert_eq!(next(&mut ledger, "w"), "Exhausted");
}

#[test]
fn the_whole_of_ipv6_is_a_range_like_any_other() {
    let whole = NodePool {
        subnet: cidr("::/0"),
        range: AddrRange::new(ip("::1"), cidr("::/0").range().last()).unwrap(),
        ..four()
    };
    let mut ledger = ledger(&[whole]);
    take(&mut ledger, &picking("i", &["a"], Pick::Index(1))).unwrap();
    assert_eq!(["x", "y"].map(|c| next(&mut ledger, c)), ["::1", "::3"]);
}

#[test]
fn a_releasing_pool_gives_no_new_address_by_any_way_of_asking() {
    let releasing = NodePool { state: PoolState::Releasing, ..with_gateway(four(), "192.168.0.1") };
    let mut ledger = ledger(&[releasing]);
    let requests = [
        request("x", &["a"]),
        asking("x", &["a"], &["192.168.0.2"]),
        picking("x", &["a"], Pick::Gateway),
        picking("x", &["a"], Pick::Index(2)),
    ];
    for request in requests {
        assert_eq!(take(&mut ledger, &request).unwrap_err().reason(), "Releasing", "{request:?}");
    }
}

#[test]
fn a_paused_pool_gives_no_new_address_by_any_way_of_asking_and_says_why() {
    for pause in [Pause::Unconfirmed, Pause::Offline, Pause::Starting] {
        let paused = NodePool { state: PoolState::Paused(pause), ..with_gateway(four(), "192.168.0.1") };
        let mut ledger = ledger(&[paused]);
        let named = [asking("x", &["a"], &["192.168.0.2"]), picking("x", &["a"], Pick::Gateway)];
        for request in named.into_iter().chain([request("x", &["a"]), picking("x", &["a"], Pick::Index(2))]) {
            let refusal = take(&mut ledger, &request).unwrap_err();
            assert_eq!(refusal.reason(), pause.as_str(), "{request:?}");
            assert!(refusal.to_string().contains(&pause.to_string()), "{refusal}");
        }
    }
}

#[test]
fn an_ippool_and_a_cidrpool_of_one_name_are_two_pools() {
    let mut other = three();
    other.key = ipam_core::PoolKey::new(ipam_core::PoolKind::CidrPool, "a");
    let mut ledger = ledger(&[four(), other.clone()]);
    let mut both = request("x", &["a"]);
    both.pools.push(other.key);
    assert_eq!(take(&mut ledger, &both).unwrap(), [ip("192.168.0.1"), ip("fd00::1")]);
}

#[test]
fn of_two_configurations_of_one_pool_the_first_counts() {
    let mut ledger = ledger(&[four(), pool("a", "192.168.7.1", "192.168.7.9", "192.168.0.0/16")]);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.1");
}

#[test]
fn usage_counts_what_is_held_of_each_configured_pool() {
    let mut ledger = ledger(&[with_gateway(four(), "192.168.0.1"), three()]);
    next(&mut ledger, "x");
    take(&mut ledger, &asking("s", &["a"], &["192.168.77.7"])).unwrap();
    let usage: Vec<_> = ledger.usage().into_iter().map(|pool| (pool.key.name, pool.used, pool.capacity)).collect();
    assert_eq!(usage, [("a".to_owned(), 2, 3), ("b".to_owned(), 0, 3)]);
    ledger.configure(vec![three()]);
    assert_eq!(ledger.usage().len(), 1);
    assert_eq!(ledger.reservations().count(), 2, "held also of pools no longer configured");
}
