//! `--released-ip-cooldown`: how long a released address rests.

use ipam_core::ledger::{Ledger, Refusal};

use crate::support::*;

/// Holds all of pool "a" but what "x" had, which was released at 1000 with a cooldown of 60 s.
fn one_cooling() -> Ledger {
    let mut ledger = ledger_with_cooldown(60, &[four()]);
    fill(&mut ledger);
    release_at(&mut ledger, "x", &["a"], 1000);
    ledger
}

fn fill(ledger: &mut Ledger) {
    for container in ["x", "1", "2", "3"] {
        next(ledger, container);
    }
}

fn given_at(ledger: &Ledger, now: i64) -> Option<String> {
    Some(ledger.allocate(&request("y", &["a"]), now).ok()?.grants[0].addr.to_string())
}

#[test]
fn a_released_address_is_free_again_when_the_cooldown_is_over_and_not_a_second_earlier() {
    let ledger = one_cooling();
    assert_eq!(given_at(&ledger, 1059), None);
    assert_eq!(given_at(&ledger, 1060).as_deref(), Some("192.168.0.1"));
}

#[test]
fn forgetting_what_has_cooled_down_changes_no_decision() {
    let mut ledger = one_cooling();
    ledger.expire(1059);
    assert_eq!(given_at(&ledger, 1059), None);
    ledger.expire(1060);
    assert_eq!(given_at(&ledger, 1060).as_deref(), Some("192.168.0.1"));
}

#[test]
fn the_refusal_says_how_many_cool_down_and_for_how_long() {
    let refusal = one_cooling().allocate(&request("y", &["a"]), 1018).unwrap_err();
    assert!(
        matches!(refusal, Refusal::Exhausted { held: 3, cooling: 1, free_in_seconds: Some(42), .. }),
        "{refusal:?}"
    );
    assert!(refusal.to_string().ends_with("1 released and cooling down, the next is free in 42 s"), "{refusal}");
}

#[test]
fn without_a_cooldown_a_released_address_is_free_at_once() {
    for seconds in [0, -5] {
        let mut ledger = ledger_with_cooldown(seconds, &[four()]);
        fill(&mut ledger);
        release_at(&mut ledger, "x", &["a"], 1000);
        assert_eq!(given_at(&ledger, 1000).as_deref(), Some("192.168.0.1"));
        assert_eq!(snapshot(&ledger).len(), 4, "three held and a cursor");
    }
}

#[test]
fn a_static_request_does_not_wait_for_the_cooldown() {
    let mut ledger = one_cooling();
    let allocation = take_at(&mut ledger, &asking("s", &["a"], &["192.168.0.1"]), 1001).unwrap();
    assert_eq!(allocation.grants[0].addr, ip("192.168.0.1"));
    assert_eq!(given_at(&ledger, 5000), None, "the end of the old cooldown does not free an address held anew");
}

#[test]
fn the_cooldown_goes_on_across_a_restart_and_a_change_of_configuration() {
    let before = one_cooling();
    let mut after = Ledger::new(60);
    apply(&mut after, &snapshot(&before));
    after.configure(vec![pool("a", "192.168.9.1", "192.168.9.1", "192.168.0.0/16")]);
    after.configure(vec![four()]);
    assert_eq!(given_at(&after, 1059), None);
    assert_eq!(given_at(&after, 1060).as_deref(), Some("192.168.0.1"));
}

#[test]
fn the_order_of_the_round_robin_holds_for_what_has_cooled_down_but_is_not_forgotten() {
    let mut ledger = ledger_with_cooldown(60, &[four()]);
    for container in ["p", "q", "r"] {
        next(&mut ledger, container);
    }
    for container in ["q", "p"] {
        release_at(&mut ledger, container, &["a"], 1000);
    }
    let given = ["1", "2", "3"].map(|c| take_at(&mut ledger, &request(c, &["a"]), 2000).unwrap().grants[0].addr);
    assert_eq!(given, ["192.168.0.4", "192.168.0.1", "192.168.0.2"].map(ip));
}

#[test]
fn a_clock_set_back_by_less_than_the_cooldown_keeps_it_and_by_more_does_not_lock_the_address_up() {
    let ledger = one_cooling();
    assert_eq!(given_at(&ledger, 941), None);
    assert_eq!(given_at(&ledger, 940).as_deref(), Some("192.168.0.1"));
    assert_eq!(given_at(&ledger, i64::MIN).as_deref(), Some("192.168.0.1"));
}

#[test]
fn an_excluded_address_is_not_free_when_its_cooldown_ends() {
    let bare = excluding(four(), &[("192.168.0.1", "192.168.0.4")]);
    let mut ledger = ledger_with_cooldown(60, &[bare]);
    take(&mut ledger, &asking("x", &["a"], &["192.168.0.2"])).unwrap();
    release_at(&mut ledger, "x", &["a"], 1000);
    let refusal = ledger.allocate(&request("y", &["a"]), 1001).unwrap_err();
    assert!(matches!(refusal, Refusal::Exhausted { cooling: 0, free_in_seconds: None, .. }), "{refusal:?}");
    assert_eq!(given_at(&ledger, 5000), None);
    ledger.expire(5000);
    assert_eq!(given_at(&ledger, 5000), None);
}

#[test]
fn releases_forget_what_has_cooled_down_so_that_memory_stays_bounded() {
    let mut ledger = ledger_with_cooldown(60, &[pool("a", "fd00::1", "fd00::ffff:ffff", "fd00::/64")]);
    for n in 0..1000 {
        take_at(&mut ledger, &request("x", &["a"]), n * 10).unwrap();
        release_at(&mut ledger, "x", &["a"], n * 10);
    }
    assert!(snapshot(&ledger).len() <= 7, "a cursor and the releases of the last 60 s");
}
