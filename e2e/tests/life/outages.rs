//! The short form of what `cargo run -p ipam-e2e --bin outage` does at length.

use std::time::Duration;

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::install_crds;
use ipam_e2e::outage::{Campaign, run};

#[test]
fn pods_come_and_go_while_leaders_sleep_and_die_and_the_api_server_is_away() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("outage").unwrap();
    let campaign = Campaign { rate: 6, away: Duration::from_secs(10), compact: true };
    let report = run(&plane, &namespace, campaign).unwrap();
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert!(report.doubled.is_empty(), "{:#?}", report.doubled);
    // A Lease is good for 15 s since its last change was seen. The rest is for a busy machine.
    assert!(report.takeover < Duration::from_secs(45), "{:?} until another operator led", report.takeover);
    assert!(report.led < Duration::from_secs(30), "{:?} until an operator led again", report.led);
    assert!(report.settled < Duration::from_secs(30), "{:?} until all statuses were right", report.settled);
    assert!(report.calls_away > 0 && report.calls > report.calls_away, "{} {}", report.calls, report.calls_away);
}
