//! A short campaign of what `cargo benchmarks reviews` measures at length.

use std::time::Duration;

use ipam_e2e::reviews::{Campaign, run};

use crate::stage::plane;

#[test]
fn no_review_fails_while_the_secret_is_exchanged_and_a_replica_restarts_behind_a_balancer() {
    let plane = plane();
    let namespace = plane.namespace("wh-load").unwrap();
    let lasts = Duration::from_secs(20);
    let campaign = Campaign { rate: 50, lasts, swaps: 4, restarts: 1, life: Duration::from_mins(1) };
    let report = run(plane, &namespace, campaign, |_| Ok(())).unwrap();
    assert_eq!((report.failed, report.expired), (0, 0), "{:#?}", report.failures);
    assert_eq!(report.latencies.len(), 1000);
    // The first pair and three good exchanges; the broken one is seen and not taken.
    assert_eq!((report.steady.swaps, report.steady.refused), (4, 1));
    assert!(report.steady.reviews > 0 && report.steady.reviews < 1000, "{:?}", report.steady);
}
