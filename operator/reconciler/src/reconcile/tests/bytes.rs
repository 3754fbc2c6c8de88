//! Bytes of statuses.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

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

fn eight_pools() -> Vec<RawObject> {
    let spec = |number: u8| SPEC.replace("192.168", &format!("10.{number}"));
    (0..8).map(|number| pool_object(&format!("p{number}"), 10, 1, &spec(number), &json!({}))).collect()
}

/// A node joins each second, and needs a block of each of eight pools. The bytes are for a few statuses of each pool.
#[test]
fn pools_that_wait_for_bytes_are_written_in_turn() {
    let mut world = World::new(&["n"], &eight_pools(), vec![]);
    world.settle();
    world.now += 60 * SECOND;
    world.reconciler.budget = Budget::new(50_000);
    let mut written: BTreeMap<PoolKey, Vec<u32>> = BTreeMap::new();
    for at in 0..120 {
        world.node_joins(&format!("n{at}"));
        for call in world.calls_after(SECOND) {
            if let Command::WriteStatus { pool, .. } = &call {
                written.entry(pool.key.clone()).or_default().push(at);
            }
            world.succeed(call);
        }
    }
    let counts: Vec<usize> = written.values().map(Vec::len).collect();
    let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(counts.len() == 8 && fewest + 1 >= *most && (3..30).contains(most), "{written:?}");
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

/// Decisions about pools so far.
fn decisions(world: &World) -> u64 {
    let (mut text, mut registry) = (String::new(), Registry::default());
    world.reconciler.metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let counts = text.lines().filter_map(|line| line.strip_prefix("plan_duration_seconds_count{kind=\"IPPool\"} "));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Counts of eight pools change every second. The bytes are for a status a second.
#[test]
fn counts_that_wait_for_bytes_are_decided_once() {
    let mut world = World::new(&["n"], &eight_pools(), vec![]);
    world.settle();
    world.now += 60 * SECOND;
    let size = second(&mut world).first().map_or(1_500, |status| status.bytes(PoolKind::IpPool));
    world.reconciler.budget = Budget::new(3 * 60 * size / 4);
    let (before, mut written) = (decisions(&world), 0);
    for used in 0..240 {
        report(&mut world, "n", 1 + used % 3);
        for _ in 0..4 {
            for call in world.calls_after(SECOND / 4) {
                written += u64::from(matches!(call, Command::WriteStatus { .. }));
                world.succeed(call);
            }
        }
    }
    let made = decisions(&world) - before;
    assert!(written > 40, "{written} statuses");
    // One decision finds that the counts must wait, and one writes them.
    assert!(made <= 2 * written + 16, "{made} decisions for {written} statuses");
}
