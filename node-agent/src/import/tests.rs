use std::net::IpAddr;

use ipam_core::ledger::{Attachment, Owner};
use ipam_core::{PoolKey, PoolKind};

use super::*;

fn reservation(container: &str, addr: &str) -> Reservation {
    let pool = PoolKey::new(PoolKind::IpPool, "blue");
    let owner = Owner::new(container, "net1");
    Reservation { pool, owner, addr: addr.parse().unwrap(), attachment: Attachment::default(), created: 0 }
}

fn reserve(container: &str, addr: &str) -> Change {
    Change::Reserve { reservation: reservation(container, addr), moves_cursor: false }
}

fn import(digest: u8, records: Vec<Change>) -> Import {
    Import { path: "/store".into(), digest: [digest; 32], records, _locks: Vec::new() }
}

fn held(ledger: &Ledger) -> Vec<(String, IpAddr)> {
    ledger.reservations().map(|held| (held.owner.container_id, held.addr)).collect()
}

#[test]
fn a_store_is_imported_once_and_again_after_a_change() {
    let mut ledger = Ledger::new(0);
    import(1, vec![reserve("a", "10.0.0.1"), reserve("b", "10.0.0.2")]).record(&mut ledger);
    let of = |container: &str| reservation(container, "10.0.0.1");
    ledger.apply(&Change::Release { pool: of("a").pool, owner: of("a").owner, at: 0 });
    // A start after a crash before the file was put away.
    import(1, vec![reserve("a", "10.0.0.1"), reserve("b", "10.0.0.2")]).record(&mut ledger);
    assert_eq!(held(&ledger), [("b".to_owned(), "10.0.0.2".parse().unwrap())]);
    import(2, vec![reserve("b", "10.0.0.2"), reserve("c", "10.0.0.3")]).record(&mut ledger);
    let expected =
        [("b", "10.0.0.2"), ("c", "10.0.0.3")].map(|(owner, addr)| (owner.to_owned(), addr.parse().unwrap()));
    assert_eq!(held(&ledger), expected);
}

#[test]
fn another_owner_of_an_address_and_another_address_of_an_owner_are_conflicts() {
    let mut ledger = Ledger::new(0);
    for change in [reserve("a", "10.0.0.1"), reserve("b", "10.0.0.2")] {
        ledger.apply(&change);
    }
    let records = [reserve("a", "10.0.0.1"), reserve("c", "10.0.0.2"), reserve("b", "10.0.0.3")];
    let (changes, conflicts) = missing(&ledger, &records);
    let contested = [reservation("c", "10.0.0.2"), reservation("b", "10.0.0.3")];
    let own = reservation("b", "10.0.0.2");
    assert_eq!(changes, contested.clone().map(|reservation| Change::Contested { reservation }));
    assert_eq!(conflicts, contested.map(|older| Conflict { older, own: own.clone() }));
}

#[test]
fn the_round_robin_of_a_pool_with_addresses_in_use_goes_on() {
    let mut ledger = Ledger::new(0);
    let cursor = || Change::Cursor { pool: reservation("a", "10.0.0.1").pool, addr: "10.0.0.9".parse().unwrap() };
    assert_eq!(missing(&ledger, &[cursor()]).0, [cursor()]);
    ledger.apply(&reserve("a", "10.0.0.1"));
    assert_eq!(missing(&ledger, &[cursor()]).0, []);
}

#[test]
fn an_imported_file_is_kept_and_another_agent_refuses_what_is_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    fs::write(&path, "old").unwrap();
    let import = Import { path: path.clone(), digest: [0; 32], records: Vec::new(), _locks: Vec::new() };
    import.put_away();
    assert_eq!(fs::read_to_string(&path).unwrap(), PLACEHOLDER);
    let kept = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = kept.filter(|found| *found != path).collect();
    assert_eq!(kept.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>(), ["old"]);
    assert!(kept[0].display().to_string().contains("store.imported-2"), "{kept:?}");
}

#[test]
fn the_placeholder_takes_no_place_but_that_of_an_empty_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for (before, after) in [(None, PLACEHOLDER), (Some(""), PLACEHOLDER), (Some("old"), "old")] {
        drop(fs::remove_file(&path));
        if let Some(text) = before {
            fs::write(&path, text).unwrap();
        }
        reserve_place(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
    }
}
