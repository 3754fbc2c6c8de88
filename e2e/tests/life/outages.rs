//! The short form of what `cargo run -p ipam-e2e --bin outage` does at length.

use std::time::Duration;

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::install_crds;
use ipam_e2e::outage::{Campaign, run};
use ipam_operator::election::algorithm::{LEASE_DURATION, RETRY_PERIOD, follow_pause};

/// Time for everything that waits for no clock: calls, decisions and polls on a busy machine.
const MARGIN: Duration = Duration::from_secs(4);

/// The longest takeover. A follower sees the last renewal one pause late, waits for the duration of the Lease, and acquires the Lease one
/// pause after that.
fn takeover() -> Duration {
    LEASE_DURATION + 2 * follow_pause(1.0) + MARGIN
}

#[test]
fn pods_come_and_go_while_leaders_sleep_and_die_and_the_api_server_is_away() {
    let plane = ControlPlane::start().unwrap();
    install_crds(&plane).unwrap();
    let namespace = plane.namespace("outage").unwrap();
    let campaign = Campaign { rate: 6, away: Duration::from_secs(10), compact: true };
    let report = run(&plane, &namespace, campaign).unwrap();
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert!(report.doubled.is_empty(), "{:#?}", report.doubled);
    assert!(takeover() + RETRY_PERIOD < 2 * LEASE_DURATION, "a takeover that takes two Leases would pass");
    assert!(report.takeover < takeover(), "{:?} until another operator led", report.takeover);
    assert!(report.led < takeover(), "{:?} until an operator led again", report.led);
    assert!(report.settled < 2 * LEASE_DURATION, "{:?} until all statuses were right", report.settled);
    assert!(report.calls_away > 0 && report.calls > report.calls_away, "{} {}", report.calls, report.calls_away);
}
