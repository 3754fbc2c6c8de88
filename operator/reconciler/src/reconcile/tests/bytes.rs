//! Bytes of statuses.

use super::budget::Budget;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// One second, in which the API server does all that is asked. The statuses that were written.
fn second(world: &mut World) -> Vec<StatusRecord> {
    let mut statuses = Vec::new();
    for call in world.calls_after(SECOND) {
        if let Command::WriteStatus { status, .. } = &call {
            statuses.push(status.clone());
        }
        world.succeed(call);
    }
    statuses
}

#[test]
fn joins_of_a_burst_share_statuses_of_bounded_bytes_and_all_are_served() {
    let mut world = World::new(&["n"], &[blue()], vec![]);
    world.settle();
    world.now += 60 * SECOND;
    let per_minute = 30_000;
    world.reconciler.budget = Budget::new(per_minute);
    let (mut bytes, mut largest) = (0, 0);
    for number in 0..60 {
        world.node_joins(&format!("n{number}"));
        for status in second(&mut world) {
            let size = status.bytes(PoolKind::IpPool);
            (bytes, largest) = (bytes + size, size.max(largest));
        }
    }
    assert!(bytes > per_minute / 3 && bytes <= per_minute + largest, "{bytes}");
    let mut waited = 0;
    while world.status().allocations.len() < 61 {
        second(&mut world);
        waited += 1;
        assert!(waited < 60, "{} served", world.status().allocations.len());
    }
}

#[test]
fn counts_wait_longer_than_a_block() {
    let mut world = World::new(&["n1"], &[blue()], vec![]);
    world.settle();
    world.now += 60 * SECOND;
    world.reconciler.budget = Budget::new(6_000);
    let mut counts = 0;
    for used in 1..=60 {
        report(&mut world, "n1", 1 + used % 2);
        counts += second(&mut world).len();
    }
    // Without a limit they are written every ten seconds.
    assert!((1..=4).contains(&counts), "{counts}");
    report(&mut world, "n1", 1);
    world.node_joins("n2");
    let served = second(&mut world).iter().any(|status| status.allocations.len() == 2);
    assert!(served, "a block does not wait for counts");
}
