//! The plan itself: the rules alone, in this process.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use ipam_core::spec::{CommonSpec, IpPoolSpec, PoolSpec};
use ipam_core::{Claim, ClaimSource, NodeRef, Pool, Usage, plan};

use super::large;
use super::meter::ms;
use super::table::Finding;

const SMALL: usize = 5_000;
const LARGE: usize = 50_000;
/// Plans of one kind and size; the quickest counts, for other programs can only add to it.
const RUNS: usize = 20;
/// Growth of the time per node from the small to the large cluster that still passes for linear: larger data no longer fits the
/// processor's caches, and a plan that grew with n log n would show 1.27, one with n² 10.
const LINEAR: f64 = 1.5;

pub(super) fn measure() -> Result<Vec<Finding>> {
    let mut lines = Vec::new();
    let mut met = true;
    for joins in [false, true] {
        let (small, middle, large) = (quickest(SMALL, joins)?, quickest(LARGE / 2, joins)?, quickest(LARGE, joins)?);
        let growth = large.as_secs_f64() / small.as_secs_f64() / 10.0;
        met &= small < Duration::from_millis(10) && growth <= LINEAR;
        let case = if joins { "one joins" } else { "new pool" };
        lines.push(format!(
            "{case}: {}, at 25,000 {}, at 50,000 {}, {growth:.2} × per node",
            ms(small),
            ms(middle),
            ms(large)
        ));
    }
    Ok(vec![Finding {
        what: "`plan` for 5,000 nodes, one IPPool".to_owned(),
        reference: "–",
        aim: "< 10 ms, linear up to 50,000",
        measured: lines.join("; "),
        met,
    }])
}

/// The quickest of some plans. With `joins` all nodes but one have their blocks already, by both records.
fn quickest(nodes: usize, joins: bool) -> Result<Duration> {
    let spec = IpPoolSpec {
        subnet: large::SUBNET.to_owned(),
        per_node_block_size: large::BLOCK_SIZE,
        gateway: Some(large::GATEWAY.to_owned()),
        common: CommonSpec::default(),
    };
    let pool = Pool::parse("pool", &PoolSpec::Ip(spec)).map_err(|mistakes| anyhow!("{mistakes:?}"))?;
    let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number:05}.example.org")).collect();
    let nodes: Vec<NodeRef<'_>> = names.iter().map(|name| NodeRef { name, labels: &labels }).collect();
    let claims = if joins { claims(&pool, &nodes) } else { Vec::new() };
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let began = Instant::now();
        let plan = black_box(plan(black_box(&pool), &nodes, &claims, &|_| Usage::Unknown));
        best = best.min(began.elapsed());
        ensure!(plan.assignments.len() == nodes.len() && plan.unserved.is_empty(), "a plan that serves not all");
    }
    Ok(best)
}

/// Both records of a full plan, without the last node's.
fn claims(pool: &Pool, nodes: &[NodeRef<'_>]) -> Vec<Claim> {
    let full = plan(pool, &nodes[..nodes.len() - 1], &[], &|_| Usage::Unknown);
    let records = [ClaimSource::Status, ClaimSource::IpamNode];
    let of = |source| {
        full.assignments.iter().map(move |given| Claim {
            node: given.node.clone(),
            range: given.block.range,
            gateway: given.block.gateway,
            source,
        })
    };
    records.into_iter().flat_map(of).collect()
}
