//! What an older store records of an address that has another owner here, or of an owner that has another address here.

use ipam_core::ledger::{Change, Ledger, Reservation};

use crate::support::*;

/// "x" has .1 here. By an older store "y" has .1, and "x" has .3.
fn contested() -> Ledger {
    let mut ledger = ledger(&[four()]);
    take(&mut ledger, &request("x", &["a"])).unwrap();
    let of_older = |container: &str, addr: &str| {
        let attachment = request(container, &["a"]).attachment;
        Reservation { pool: key("a"), owner: owner(container), addr: ip(addr), attachment, created: 0 }
    };
    let changes = [of_older("y", "192.168.0.1"), of_older("x", "192.168.0.3")]
        .map(|reservation| Change::Contested { reservation });
    apply(&mut ledger, &changes);
    ledger
}

#[test]
fn no_pod_gets_a_contested_address() {
    for mut ledger in [contested(), restarted(&contested(), &[four()])] {
        let given: Vec<_> = ["1", "2", "3"].map(|container| next(&mut ledger, container)).into();
        assert_eq!(given, ["192.168.0.2", "192.168.0.4", "Exhausted"]);
        let asked = ledger.allocate(&asking("3", &["a"], &["192.168.0.3"]), 0).unwrap_err();
        assert!(asked.to_string().contains("held by pod ns/x"), "{asked}");
    }
}

#[test]
fn a_contested_address_is_reported_as_in_use_once() {
    let ledger = contested();
    let holding = &ledger.holdings(8)[0];
    let runs: Vec<_> = holding.runs.iter().map(ToString::to_string).collect();
    assert_eq!(
        (holding.used, runs),
        (2, vec!["192.168.0.1-192.168.0.1".to_owned(), "192.168.0.3-192.168.0.3".to_owned()])
    );
    assert_eq!((ledger.usage()[0].used, ledger.reservations().count()), (2, 3));
}

#[test]
fn a_page_has_all_owners_of_a_contested_address() {
    let ledger = contested();
    let read = |behind: Option<&str>, most| -> Vec<_> {
        let behind = behind.map(|addr| (key("a"), ip(addr)));
        let page = ledger.page(behind.as_ref(), most).into_iter();
        page.map(|held| format!("{} {}", held.owner.container_id, held.addr)).collect()
    };
    assert_eq!(read(None, 1), ["x 192.168.0.1", "y 192.168.0.1"]);
    assert_eq!(read(None, 9), ["x 192.168.0.1", "y 192.168.0.1", "x 192.168.0.3"]);
    assert_eq!(read(Some("192.168.0.1"), 1), ["x 192.168.0.3"]);
    assert_eq!(read(Some("192.168.0.3"), 1), [""; 0]);
}

#[test]
fn an_address_is_free_once_each_owner_has_released_it() {
    let mut ledger = contested();
    ledger.check(&[key("a")], &owner("y"), &[ip("192.168.0.1")]).unwrap();
    release_at(&mut ledger, "x", &["a"], 0);
    let given: Vec<_> = ["1", "2", "3", "4"].map(|container| next(&mut ledger, container)).into();
    assert_eq!(given, ["192.168.0.2", "192.168.0.3", "192.168.0.4", "Exhausted"], "y still has .1");
    release_at(&mut ledger, "y", &["a"], 0);
    assert_eq!(next(&mut ledger, "4"), "192.168.0.1");
    assert!(!snapshot(&ledger).iter().any(|change| matches!(change, Change::Contested { .. })));
}

#[test]
fn a_contested_address_of_a_pool_that_is_gone_is_free_in_another_pool_once_it_is_released() {
    let mut ledger = contested();
    let renamed = pool("new", "192.168.0.1", "192.168.0.3", "192.168.0.0/16");
    ledger.configure(vec![renamed]);
    assert_eq!(take(&mut ledger, &request("1", &["new"])).unwrap(), [ip("192.168.0.2")]);
    for container in ["x", "y"] {
        assert_eq!(release_at(&mut ledger, container, &["a"], 0), 1);
    }
    let taken = ["2", "3"].map(|container| take(&mut ledger, &request(container, &["new"])).unwrap()[0]);
    assert_eq!(taken, [ip("192.168.0.3"), ip("192.168.0.1")]);
}

#[test]
fn the_digest_of_an_imported_store_is_known_after_a_restart() {
    let mut ledger = ledger(&[]);
    for digest in [[1; 32], [2; 32]] {
        apply(&mut ledger, &[Change::Imported { source: "/store".to_owned(), digest }]);
    }
    let ledger = restarted(&ledger, &[]);
    assert_eq!((ledger.imported("/store"), ledger.imported("/other")), (Some(&[2; 32]), None));
}
