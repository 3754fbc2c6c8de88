//! Histories: a ledger is what its changes say, and no history breaks it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::PoolKey;
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Reservation};
use proptest::prelude::*;

use crate::support::*;

fn reserve(container: &str, addr: &str, moves_cursor: bool) -> Change {
    let reservation = Reservation {
        pool: key("a"),
        owner: owner(container),
        addr: ip(addr),
        attachment: Attachment::default(),
        created: 7,
    };
    Change::Reserve { reservation, moves_cursor }
}

fn replayed(changes: &[Change], cooldown: i64) -> Ledger {
    let mut ledger = Ledger::new(cooldown);
    apply(&mut ledger, changes);
    ledger
}

#[test]
fn changes_carry_all_that_is_told_of_the_attachment_and_the_time() {
    let mut ledger = ledger(&[four()]);
    let mut request = request("x", &["a"]);
    request.attachment = Attachment {
        pod_name: "p".to_owned(),
        pod_namespace: "ns".to_owned(),
        pod_uid: "uid".to_owned(),
        device_id: "0000:3b:02.0".to_owned(),
        network: "net".to_owned(),
    };
    take_at(&mut ledger, &request, 1234).unwrap();
    let held: Vec<_> = ledger.reservations().collect();
    let expected = Reservation {
        pool: key("a"),
        owner: owner("x"),
        addr: ip("192.168.0.1"),
        attachment: request.attachment,
        created: 1234,
    };
    assert_eq!(held, [expected]);
}

#[test]
fn a_journal_may_be_replayed_before_the_pools_are_known() {
    let mut ledger = replayed(&[reserve("x", "192.168.0.2", true), reserve("y", "192.168.0.3", false)], 0);
    ledger.configure(vec![four()]);
    assert_eq!(["1", "2"].map(|c| next(&mut ledger, c)), ["192.168.0.4", "192.168.0.1"], "the cursor stands at .2");
}

#[test]
fn of_contradicting_changes_the_later_one_wins() {
    let two_owners = replayed(&[reserve("x", "192.168.0.2", false), reserve("y", "192.168.0.2", false)], 0);
    assert_eq!(two_owners.held_by(&key("a"), &owner("x")), None);
    assert!(two_owners.held_by(&key("a"), &owner("y")).is_some());
    let two_addrs = replayed(&[reserve("x", "192.168.0.2", false), reserve("x", "192.168.0.3", false)], 0);
    assert_eq!(two_addrs.reservations().map(|held| held.addr).collect::<Vec<_>>(), [ip("192.168.0.3")]);
}

#[test]
fn of_two_releases_of_one_address_the_later_one_tells_its_cooldown() {
    let cooling = |since| Change::Cooling { pool: key("a"), addr: ip("192.168.0.1"), since };
    let mut ledger = replayed(&[cooling(1000), cooling(1050)], 60);
    ledger.configure(vec![pool("a", "192.168.0.1", "192.168.0.1", "192.168.0.0/16")]);
    let wish = request("x", &["a"]);
    assert_eq!(ledger.allocate(&wish, 1109).unwrap_err().reason(), "Exhausted");
    assert!(ledger.allocate(&wish, 1110).is_ok());
}

#[test]
fn an_address_that_loses_a_contradiction_can_be_given_again() {
    let mut ledger = ledger(&[four()]);
    let history = [reserve("x", "192.168.0.1", false), reserve("x", "192.168.0.2", false)];
    apply(&mut ledger, &history);
    assert_eq!(next(&mut ledger, "y"), "192.168.0.1");
}

fn any_addr() -> impl Strategy<Value = IpAddr> {
    let hosts = (0u32..8).prop_map(|n| IpAddr::from((0xC0A8_0000_u32 + n).to_be_bytes()));
    prop_oneof![8 => hosts, 1 => any::<IpAddr>()]
}

fn any_key() -> impl Strategy<Value = PoolKey> {
    prop_oneof![4 => Just(key("a")), 1 => "[ab]{0,2}".prop_map(|name| key(&name))]
}

fn any_owner() -> impl Strategy<Value = Owner> {
    (0..4_u8).prop_map(|n| owner(&n.to_string()))
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 0..200_i64, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn any_change() -> impl Strategy<Value = Change> {
    let reserve = (any_key(), any_owner(), any_addr(), any_time(), any::<bool>());
    prop_oneof![
        4 => reserve.prop_map(|(pool, owner, addr, created, moves_cursor)| {
            let reservation = Reservation { pool, owner, addr, attachment: Attachment::default(), created };
            Change::Reserve { reservation, moves_cursor }
        }),
        3 => (any_key(), any_owner(), any_time()).prop_map(|(pool, owner, at)| Change::Release { pool, owner, at }),
        1 => (any_key(), any_addr()).prop_map(|(pool, addr)| Change::Cursor { pool, addr }),
        1 => (any_key(), any_addr(), any_time()).prop_map(|(pool, addr, since)| Change::Cooling { pool, addr, since }),
    ]
}

/// Each address of a pool once, each owner once per pool.
fn assert_consistent(ledger: &Ledger) {
    let mut addrs = BTreeSet::new();
    let mut owners = BTreeSet::new();
    for held in ledger.reservations() {
        let (pool, owner) = (held.pool.clone(), held.owner.clone());
        assert!(addrs.insert((pool.clone(), held.addr)), "{} of {pool} is held twice", held.addr);
        assert!(owners.insert((pool.clone(), owner.clone())), "{owner} holds two addresses of {pool}");
        assert_eq!(ledger.addr_of(&pool, &owner), Some(held.addr));
        assert_eq!(ledger.holder(&pool, held.addr).as_ref(), Some(&held));
        assert_eq!(ledger.held_by(&pool, &owner), Some(held));
    }
    for most in 1..4 {
        let mut paged: Vec<Reservation> = Vec::new();
        loop {
            let behind = paged.last().map(|last| (last.pool.clone(), last.addr));
            let page = ledger.page(behind.as_ref(), most);
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, ledger.reservations().collect::<Vec<_>>(), "pages of {most}");
    }
}

proptest! {
    #[test]
    fn any_history_leaves_a_consistent_ledger_that_its_snapshot_restores(
        history in proptest::collection::vec(any_change(), 0..60),
        cooldown in prop_oneof![Just(0), 1..100_i64, Just(i64::MAX), any::<i64>()],
        configured_after in 0..60_usize,
        now in any_time(),
    ) {
        let pools = vec![with_gateway(excluding(four(), &[("192.168.0.2", "192.168.0.2")]), "192.168.0.3")];
        let mut live = Ledger::new(cooldown);
        for (step, change) in history.iter().enumerate() {
            if step == configured_after {
                live.configure(pools.clone());
            }
            live.apply(change);
            assert_consistent(&live);
        }
        live.configure(pools.clone());
        let mut restored = replayed(&snapshot(&live), cooldown);
        restored.configure(pools);
        prop_assert_eq!(snapshot(&restored), snapshot(&live));
        let wish = request("new", &["a"]);
        let given = live.allocate(&wish, now);
        prop_assert_eq!(&restored.allocate(&wish, now), &given);
        live.expire(now);
        prop_assert_eq!(&live.allocate(&wish, now), &given);
        if let Ok(allocation) = given {
            let addr = allocation.grants[0].addr;
            prop_assert!([ip("192.168.0.1"), ip("192.168.0.4")].contains(&addr), "{} is not to be given", addr);
            prop_assert!(live.reservations().all(|held| held.pool != key("a") || held.addr != addr));
        }
    }
}
