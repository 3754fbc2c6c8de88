//! How long a plan takes, for a pool as large clusters have it, and whether the time grows with the nodes alone.
#![expect(clippy::print_stdout, reason = "the ratio is the result of this program")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ipam_core::spec::{CommonSpec, ExclusionSpec, IpPoolSpec, PoolSpec};
use ipam_core::{Claim, ClaimSource, NodeRef, Plan, Pool, Usage, plan};
use rustix::time::{ClockId, clock_gettime};

const SIZES: [usize; 2] = [5_000, 50_000];

struct Cluster {
    pool: Pool,
    names: Vec<String>,
    labels: BTreeMap<String, String>,
}

impl Cluster {
    fn of(nodes: usize) -> Option<Self> {
        let exclusion = |at: u32| {
            let addr = |at: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + at).to_string();
            ExclusionSpec { start_ip: addr(at), end_ip: addr(at + 99) }
        };
        let spec = IpPoolSpec {
            subnet: "10.0.0.0/8".to_owned(),
            per_node_block_size: 64,
            gateway: Some("10.0.0.1".to_owned()),
            common: CommonSpec { exclusions: (0..50).map(|i| exclusion(i * 5_000)).collect(), ..CommonSpec::default() },
        };
        let pool = Pool::parse("pool1", &PoolSpec::Ip(spec)).ok()?;
        let names = (0..nodes).map(|i| format!("node-{i:06}.example.org")).collect();
        let labels = [("kubernetes.io/os".to_owned(), "linux".to_owned())].into_iter().collect();
        Some(Self { pool, names, labels })
    }

    fn plan(&self, claims: &[Claim]) -> Plan {
        let nodes: Vec<NodeRef<'_>> = self.names.iter().map(|name| NodeRef { name, labels: &self.labels }).collect();
        plan(&self.pool, &nodes, claims, &|_| Usage::Unknown)
    }

    /// Both records of a full plan, without the last node's: the case of one node that joins.
    fn claims(&self) -> Vec<Claim> {
        let full = self.plan(&[]);
        let known = &full.assignments[..full.assignments.len() - 1];
        let of = |source| {
            known.iter().map(move |assignment| Claim {
                node: assignment.node.clone(),
                range: assignment.block.range,
                gateway: assignment.block.gateway,
                source,
            })
        };
        of(ClaimSource::Status).chain(of(ClaimSource::IpamNode)).collect()
    }
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for nodes in SIZES {
        let Some(cluster) = Cluster::of(nodes) else { continue };
        let claims = cluster.claims();
        group.bench_function(BenchmarkId::new("new pool", nodes), |bencher| bencher.iter(|| cluster.plan(&[])));
        group.bench_function(BenchmarkId::new("one joins", nodes), |bencher| bencher.iter(|| cluster.plan(&claims)));
    }
    group.finish();
    for (what, is_new) in [("new pool", true), ("one joins", false)] {
        let times = SIZES.map(|nodes| best_of(20, nodes, is_new));
        let [small, large] = times.map(|time| time.as_secs_f64() * 1e3);
        let per_node = (large / small) / 10.0;
        println!(
            "{what}: 5,000 nodes {small:.2} ms, 50,000 nodes {large:.2} ms; time per node grows {per_node:.2}-fold"
        );
    }
}

/// The least processor time of `runs` plans. Other programs take turns on the processor and so cannot spoil it much.
fn best_of(runs: usize, nodes: usize, is_new: bool) -> Duration {
    let Some(cluster) = Cluster::of(nodes) else { return Duration::ZERO };
    let claims = if is_new { Vec::new() } else { cluster.claims() };
    let time = || {
        let start = processor_time();
        black_box(cluster.plan(black_box(&claims)));
        processor_time().saturating_sub(start)
    };
    (0..runs).map(|_| time()).min().unwrap_or_default()
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

criterion_group!(benches, plans);
criterion_main!(benches);
