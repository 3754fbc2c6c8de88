//! Grants: a node allocates from a confirmed grant alone, and never from one that has ended.

use std::collections::BTreeSet;

use ipam_core::ledger::{Change, GrantStep, Ledger, MOST_ENDED, SpecVersion};
use ipam_core::node_pool::PoolState;
use ipam_core::{GrantId, NodePool};
use proptest::prelude::*;

use crate::support::*;

fn granted(id: u64) -> NodePool {
    NodePool { grant: Some(GrantId::from_number(id)), ..four() }
}

fn releasing(id: u64) -> NodePool {
    NodePool { state: PoolState::Releasing, ..granted(id) }
}

/// A spec of the API server arrives.
fn spec(ledger: &mut Ledger, pools: &[NodePool]) {
    ledger.configure(pools.to_vec());
    settle(ledger);
}

fn settle(ledger: &mut Ledger) {
    let steps = ledger.grant_steps();
    apply(ledger, &steps);
}

fn confirm(ledger: &mut Ledger, id: u64) {
    let changes = ledger.confirm(&[(key("a"), GrantId::from_number(id))]);
    apply(ledger, &changes);
}

/// The step of the configured grant of pool "a".
fn step(ledger: &Ledger) -> Option<GrantStep> {
    ledger.holdings(8).into_iter().find(|holding| holding.key == key("a"))?.grant.map(|grant| grant.step)
}

#[test]
fn a_grant_allocates_once_it_is_confirmed() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    assert_eq!((next(&mut ledger, "x").as_str(), step(&ledger)), ("Unconfirmed", Some(GrantStep::Seen)));
    confirm(&mut ledger, 8);
    assert_eq!(next(&mut ledger, "x"), "Unconfirmed", "another grant was confirmed");
    confirm(&mut ledger, 7);
    assert_eq!((next(&mut ledger, "x").as_str(), step(&ledger)), ("192.168.0.1", Some(GrantStep::Confirmed)));
    assert_eq!(ledger.confirm(&[(key("a"), GrantId::from_number(7))]), [], "once is enough");
}

#[test]
fn a_grant_that_the_journal_does_not_have_is_not_reported_and_allocates_nothing() {
    let mut ledger = Ledger::new(0);
    ledger.configure(vec![granted(7)]);
    assert_eq!((step(&ledger), next(&mut ledger, "x").as_str()), (None, "Unconfirmed"));
    confirm(&mut ledger, 7);
    assert_eq!(next(&mut ledger, "x"), "Unconfirmed");
}

#[test]
fn a_grant_that_leaves_the_spec_has_ended_when_it_comes_back() {
    for between in [Vec::new(), vec![granted(8)]] {
        let mut ledger = Ledger::new(0);
        spec(&mut ledger, &[granted(7)]);
        confirm(&mut ledger, 7);
        spec(&mut ledger, &between);
        spec(&mut ledger, &[granted(7)]);
        assert_eq!((step(&ledger), next(&mut ledger, "x").as_str()), (Some(GrantStep::Ended), "Unconfirmed"));
        confirm(&mut ledger, 7);
        assert_eq!(step(&ledger), Some(GrantStep::Ended), "no step goes back");
        let mut ledger = restarted(&ledger, &[granted(7)]);
        confirm(&mut ledger, 7);
        assert_eq!(step(&ledger), Some(GrantStep::Ended), "after a restart, too");
        spec(&mut ledger, &[granted(9)]);
        confirm(&mut ledger, 9);
        assert_eq!(next(&mut ledger, "x"), "192.168.0.1");
    }
}

#[test]
fn a_grant_that_was_never_confirmed_ends_too() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    spec(&mut ledger, &[]);
    spec(&mut ledger, &[granted(7)]);
    assert_eq!(step(&ledger), Some(GrantStep::Ended));
}

#[test]
fn a_releasing_grant_ends_with_its_last_address() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    confirm(&mut ledger, 7);
    next(&mut ledger, "x");
    spec(&mut ledger, &[releasing(7)]);
    assert_eq!(step(&ledger), Some(GrantStep::Confirmed), "a pod uses an address");
    release_at(&mut ledger, "x", &["a"], 0);
    assert_eq!(step(&ledger), Some(GrantStep::Confirmed), "not recorded yet");
    settle(&mut ledger);
    assert_eq!(step(&ledger), Some(GrantStep::Ended));
    spec(&mut ledger, &[granted(7)]);
    assert_eq!(next(&mut ledger, "x"), "Unconfirmed", "Active again, with the same grant");
}

#[test]
fn a_releasing_grant_becomes_active_again_while_an_address_is_in_use() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    confirm(&mut ledger, 7);
    next(&mut ledger, "x");
    spec(&mut ledger, &[releasing(7)]);
    spec(&mut ledger, &[granted(7)]);
    assert_eq!(next(&mut ledger, "y"), "192.168.0.2");
}

fn rest(ledger: &mut Ledger, id: u64) {
    let changes = ledger.rest(&[(key("a"), GrantId::from_number(id))]);
    apply(ledger, &changes);
}

fn wake(ledger: &mut Ledger, pools: &[&str]) {
    let changes = ledger.wake(&pools.iter().map(|pool| key(pool)).collect::<Vec<_>>());
    apply(ledger, &changes);
}

#[test]
fn an_idle_grant_allocates_only_after_another_confirmation() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    rest(&mut ledger, 7);
    assert_eq!(step(&ledger), Some(GrantStep::Seen), "it is not confirmed");
    confirm(&mut ledger, 7);
    next(&mut ledger, "x");
    rest(&mut ledger, 7);
    assert_eq!(step(&ledger), Some(GrantStep::Confirmed), "a pod uses an address");
    release_at(&mut ledger, "x", &["a"], 0);
    rest(&mut ledger, 7);
    assert_eq!((next(&mut ledger, "x").as_str(), step(&ledger)), ("Unconfirmed", Some(GrantStep::Idle)));
    let mut ledger = restarted(&ledger, &[granted(7)]);
    confirm(&mut ledger, 7);
    assert_eq!(step(&ledger), Some(GrantStep::Idle), "the answer to a report from before it was idle");
    wake(&mut ledger, &["a"]);
    assert_eq!((next(&mut ledger, "x").as_str(), step(&ledger)), ("Unconfirmed", Some(GrantStep::Seen)));
    confirm(&mut ledger, 7);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.2");
}

#[test]
fn an_idle_grant_ends_like_any_other() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    confirm(&mut ledger, 7);
    rest(&mut ledger, 7);
    spec(&mut ledger, &[releasing(7)]);
    assert_eq!(step(&ledger), Some(GrantStep::Ended));
    wake(&mut ledger, &["a"]);
    assert_eq!(step(&ledger), Some(GrantStep::Ended));
}

#[test]
fn a_request_wakes_the_idle_grants_of_all_pools_if_it_needs_one() {
    let mut ledger = Ledger::new(0);
    let pools = [granted(7), NodePool { key: key("b"), ..granted(8) }, NodePool { key: key("c"), ..granted(9) }];
    spec(&mut ledger, &pools);
    let all = [("a", 7), ("b", 8), ("c", 9)].map(|(pool, id)| (key(pool), GrantId::from_number(id)));
    let confirmed = ledger.confirm(&all);
    apply(&mut ledger, &confirmed);
    let idle = ledger.rest(&all[..2]);
    apply(&mut ledger, &idle);
    assert_eq!(ledger.wake(&[key("c")]), [], "it is not idle");
    assert_eq!(ledger.wake(&[key("c"), key("b")]).len(), 2);
}

#[test]
fn a_withdrawn_grant_allocates_nothing_from_then_on() {
    let mut ledger = Ledger::new(0);
    spec(&mut ledger, &[granted(7)]);
    confirm(&mut ledger, 7);
    next(&mut ledger, "x");
    ledger.withdraw([(key("a"), GrantId::from_number(7), GrantStep::Idle)]);
    assert_eq!(next(&mut ledger, "y"), "Unconfirmed", "before it is recorded");
    settle(&mut ledger);
    assert_eq!(step(&ledger), Some(GrantStep::Idle));
    wake(&mut ledger, &["a"]);
    confirm(&mut ledger, 7);
    assert_eq!(next(&mut ledger, "y"), "192.168.0.2");
}

#[test]
fn a_grant_that_ended_by_a_later_journal_never_allocates() {
    for is_known in [true, false] {
        let mut ledger = Ledger::new(0);
        if is_known {
            spec(&mut ledger, &[granted(7)]);
            confirm(&mut ledger, 7);
        }
        ledger.withdraw([(key("a"), GrantId::from_number(7), GrantStep::Ended)]);
        if is_known {
            assert_eq!(next(&mut ledger, "y"), "Unconfirmed", "before it is recorded");
        }
        spec(&mut ledger, &[granted(7)]);
        assert_eq!(step(&ledger), Some(GrantStep::Ended));
        confirm(&mut ledger, 7);
        assert_eq!(next(&mut ledger, "y"), "Unconfirmed");
        assert_eq!(ledger.grant_steps(), []);
    }
}

#[test]
fn a_copy_from_before_the_start_ends_no_grant() {
    let mut before = Ledger::new(0);
    spec(&mut before, &[granted(7)]);
    confirm(&mut before, 7);
    let mut ledger = Ledger::new(0);
    apply(&mut ledger, &snapshot(&before));
    ledger.configure_copy(vec![granted(6)]);
    assert_eq!(ledger.grant_steps(), []);
    ledger.configure_copy(vec![granted(7)]);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.1", "a confirmed grant needs no API server");
}

/// The spec of an object in this version arrives.
fn spec_of(ledger: &mut Ledger, created: i64, generation: i64, pools: &[NodePool]) {
    ledger.configure_spec(pools.to_vec(), SpecVersion { created, generation });
    settle(ledger);
}

#[test]
fn an_unknown_grant_in_a_spec_that_went_back_has_ended() {
    for (created, generation) in [(50, 4), (49, 9)] {
        let mut before = Ledger::new(0);
        spec_of(&mut before, 50, 5, &[]);
        let mut ledger = restarted(&before, &[]);
        spec_of(&mut ledger, created, generation, &[granted(7)]);
        assert_eq!(step(&ledger), Some(GrantStep::Ended), "{created} {generation}");
        // What the operator assigns upon that is new.
        spec_of(&mut ledger, created, generation + 1, &[granted(8)]);
        assert_eq!(step(&ledger), Some(GrantStep::Seen), "{created} {generation}");
    }
}

#[test]
fn a_known_grant_goes_on_in_a_spec_that_went_back() {
    let mut ledger = Ledger::new(0);
    spec_of(&mut ledger, 50, 5, &[granted(7)]);
    confirm(&mut ledger, 7);
    spec_of(&mut ledger, 50, 4, &[granted(7)]);
    assert_eq!(next(&mut ledger, "x"), "192.168.0.1");
    spec_of(&mut ledger, 50, 4, &[granted(8)]);
    assert_eq!(step(&ledger), Some(GrantStep::Seen), "the same version again");
}

#[test]
fn an_object_without_a_spec_takes_no_version_back() {
    let mut ledger = Ledger::new(0);
    spec_of(&mut ledger, 50, 5, &[]);
    spec(&mut ledger, &[]);
    spec_of(&mut ledger, 50, 4, &[granted(7)]);
    assert_eq!(step(&ledger), Some(GrantStep::Ended));
    assert_eq!(ledger.grant_steps(), [], "each step is recorded once");
}

#[test]
fn many_ended_grants_are_recorded_by_the_greatest_id() {
    let mut ledger = Ledger::new(0);
    let many = u64::try_from(MOST_ENDED).unwrap() + 10;
    for id in 1..=many {
        spec(&mut ledger, &[granted(id)]);
    }
    let ended = |change: &&Change| matches!(change, Change::Grant { step: GrantStep::Ended, .. });
    assert!(snapshot(&ledger).iter().filter(ended).count() <= MOST_ENDED);
    let mut read = restarted(&ledger, &[granted(many)]);
    assert_eq!(step(&read), Some(GrantStep::Seen), "the current grant stays");
    for id in [1, 5, many - 1] {
        spec(&mut read, &[granted(id)]);
        assert_eq!(step(&read), Some(GrantStep::Ended), "{id}");
    }
    spec(&mut read, &[granted(many + 1)]);
    assert_eq!(step(&read), Some(GrantStep::Seen), "a younger grant is new");
}

#[derive(Clone, Debug)]
enum Event {
    Spec(Option<(u64, bool)>),
    Confirm(u64),
    Add(u8),
    Free(u8),
    Rest(u64),
    Wake,
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        proptest::option::of((1..5_u64, any::<bool>())).prop_map(Event::Spec),
        (1..5_u64).prop_map(Event::Confirm),
        (0..3_u8).prop_map(Event::Add),
        (0..3_u8).prop_map(Event::Free),
        (1..5_u64).prop_map(Event::Rest),
        Just(Event::Wake),
        Just(Event::Restart),
    ]
}

proptest! {
    /// A model with two sets: which grants were confirmed while the spec had them, and which may never allocate again.
    #[test]
    fn no_history_allocates_from_a_grant_that_ended_or_is_not_confirmed(events in proptest::collection::vec(event(), 1..60)) {
        let (mut ledger, mut pools) = (Ledger::new(0), Vec::new());
        let (mut now, mut confirmed, mut ended, mut idle) = (None, BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for event in events {
            match event {
                Event::Spec(wanted) => {
                    pools = wanted.map(|(id, active)| if active { granted(id) } else { releasing(id) }).into_iter().collect();
                    if let Some((id, _)) = now.filter(|(id, _)| wanted.is_none_or(|(next, _)| next != *id)) {
                        ended.insert(id);
                    }
                    now = wanted;
                    spec(&mut ledger, &pools);
                }
                Event::Confirm(id) => {
                    if now.is_some_and(|(current, _)| current == id) && !ended.contains(&id) && !idle.contains(&id) {
                        confirmed.insert(id);
                    }
                    confirm(&mut ledger, id);
                }
                Event::Add(container) => {
                    let held = ledger.held_by(&key("a"), &owner(&container.to_string())).is_some();
                    let allocated = take(&mut ledger, &request(&container.to_string(), &["a"])).is_ok();
                    let may = now.is_some_and(|(id, active)| active && confirmed.contains(&id) && !ended.contains(&id));
                    prop_assert_eq!(allocated, now.is_some() && (held || may));
                }
                Event::Free(container) => {
                    release_at(&mut ledger, &container.to_string(), &["a"], 0);
                    settle(&mut ledger);
                }
                Event::Rest(id) => {
                    let is_used = ledger.reservations().next().is_some();
                    if !is_used && now.is_some_and(|(current, _)| current == id) && !ended.contains(&id) && confirmed.remove(&id) {
                        idle.insert(id);
                    }
                    rest(&mut ledger, id);
                }
                Event::Wake => {
                    if let Some((id, true)) = now {
                        idle.remove(&id);
                    }
                    wake(&mut ledger, &["a"]);
                }
                Event::Restart => {
                    ledger = restarted(&ledger, &pools);
                    settle(&mut ledger);
                }
            }
            let is_used = ledger.reservations().next().is_some();
            if let Some((id, _)) = now.filter(|(_, active)| !active && !is_used) {
                ended.insert(id);
            }
            prop_assert_eq!(ledger.grant_steps(), []);
            if let Some((id, _)) = now {
                prop_assert_eq!(step(&ledger) == Some(GrantStep::Ended), ended.contains(&id));
            }
        }
    }
}
