//! What an ADD and a DEL cost the ledger by the number of addresses held: it must not matter.
//!
//! Each round gives one address, applies it, gives it back and applies that, at 10, 10,000 and 100,000 held, in an IPv4
//! range half full and in an IPv6 /64; with a cooldown, as a node has it. The ratio of the largest
//! to the smallest is printed at the end.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench ends where it cannot measure, and prints a table"
)]

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Pick, Request};
use ipam_core::node_pool::PoolState;
use ipam_core::{AddrRange, Cidr, NodePool, PoolKey, PoolKind, RangeSet};

const HELD: [u32; 3] = [10, 10_000, 100_000];
const COOLDOWN_SECONDS: i64 = 60;

fn key() -> PoolKey {
    PoolKey::new(PoolKind::IpPool, "pool")
}

fn request(container: u32) -> Request {
    Request {
        pools: vec![key()],
        owner: Owner::new(format!("{container:064x}"), "net1"),
        attachment: Attachment {
            pod_name: format!("pod-{container}"),
            pod_namespace: "default".to_owned(),
            pod_uid: "3b6cfd8e-7b2a-4a5e-9d64-1f0f6f0a8c11".to_owned(),
            device_id: "0000:3b:02.0".to_owned(),
            network: "net".to_owned(),
        },
        requested: Vec::new(),
        pick: Pick::Next,
    }
}

fn node_pool(range: AddrRange, subnet: Cidr) -> NodePool {
    NodePool {
        key: key(),
        state: PoolState::Active,
        grant: None,
        range,
        subnet,
        gateway: Some(range.first()),
        exclusions: RangeSet::new(),
        elsewhere: RangeSet::new(),
        routes: Vec::new(),
        default_gateway: true,
    }
}

/// 10.0.0.0/8, of which the node has room for twice as many as are held, and a thousand more.
fn ipv4(held: u32) -> NodePool {
    let first = 0x0A00_0001_u32;
    let ends = (IpAddr::V4(first.into()), IpAddr::V4((first + 2 * held + 1000).into()));
    let range = AddrRange::new(ends.0, ends.1).expect("a range");
    node_pool(range, Cidr::containing(range.first(), 8).expect("a network"))
}

/// A whole /64.
fn ipv6(_held: u32) -> NodePool {
    let subnet = Cidr::parse("fd00::/64").expect("a network").0;
    node_pool(subnet.hosts(), subnet)
}

/// A ledger with `held` addresses, every other one of the range: the most runs that so many can make.
fn filled(pool: NodePool, held: u32) -> Ledger {
    let mut ledger = Ledger::new(COOLDOWN_SECONDS);
    ledger.configure(vec![pool]);
    for container in 0..2 * held {
        add(&mut ledger, &request(container), 0);
    }
    for container in (0..2 * held).step_by(2) {
        del(&mut ledger, &request(container), 0);
    }
    ledger
}

fn apply(ledger: &mut Ledger, changes: &[Change]) {
    for change in changes {
        ledger.apply(change);
    }
}

fn add(ledger: &mut Ledger, request: &Request, now: i64) {
    let allocation = ledger.allocate(request, now).expect("room");
    apply(ledger, &allocation.changes);
    black_box(allocation.grants);
}

fn del(ledger: &mut Ledger, request: &Request, now: i64) {
    let changes = ledger.release(&request.pools, &request.owner, now);
    apply(ledger, &changes);
}

/// Time for `rounds` of ADD and DEL, at ten a second: 600 addresses cool down at any time.
fn rounds(ledger: &mut Ledger, now: &mut i64, rounds: u64) -> Duration {
    let wish = request(u32::MAX);
    let start = Instant::now();
    for round in 0..rounds {
        *now += i64::from(round % 10 == 0);
        ledger.expire(*now);
        add(ledger, &wish, *now);
        del(ledger, &wish, *now);
    }
    start.elapsed()
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut ratios = Vec::new();
    for (family, pool) in [("ipv4", ipv4 as fn(u32) -> NodePool), ("ipv6", ipv6)] {
        let mut group = criterion.benchmark_group(format!("ledger_add_del_{family}"));
        let mut per_round = Vec::new();
        for held in HELD {
            let (mut ledger, mut now) = (filled(pool(held), held), 1000);
            group.bench_function(BenchmarkId::from_parameter(held), |bench| {
                bench.iter_custom(|count| rounds(&mut ledger, &mut now, count));
            });
            per_round.push(rounds(&mut ledger, &mut now, 20_000).as_secs_f64() / 20_000.0 * 1e6);
        }
        group.finish();
        ratios.push((family, per_round));
    }
    println!("\nADD + DEL by addresses held ({HELD:?}), microseconds:");
    for (family, per_round) in ratios {
        let [few, some, many] = per_round[..] else { continue };
        println!("  {family}: {few:.2} / {some:.2} / {many:.2}, the most to the fewest {:.1}x", many / few);
    }
    criterion.final_summary();
}
