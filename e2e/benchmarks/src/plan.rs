//! The plan itself: the rules alone, in this process.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use ipam_core::spec::{CommonSpec, IpPoolSpec, PoolSpec};
use ipam_core::{Claim, ClaimSource, NodeRef, Pool, Usage, plan};

use super::finding::Finding;
use super::large;
use super::stats::{Samples, Unit, number};

const SMALL: usize = 5_000;
const LARGE: usize = 50_000;
/// Plans of one kind and size, by turns.
const RUNS: usize = 20;
const TIME_AIM: f64 = 0.01;
/// Growth of the time per node from the small to the large cluster that is linear still. A plan that took n log n would show
/// 1.27, one that took n² would show 10.
const LINEAR: f64 = 1.25;

pub(super) fn measure() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (case, joins) in [("new pool", false), ("one node joins", true)] {
        let (small, large) = (Case::new(SMALL, joins)?, Case::new(LARGE, joins)?);
        let pairs = (0..RUNS).map(|_| Ok((small.time()?, large.time()?))).collect::<Result<Vec<_>>>()?;
        let growth = pairs.iter().map(|(small, large)| per_node(*large, LARGE) / per_node(*small, SMALL));
        let larger = Samples::times(pairs.iter().map(|(_, large)| *large)).show(50);
        findings.push(
            Finding::new(format!("`plan`, 5,000 nodes, {case}"), Samples::times(pairs.iter().map(|(small, _)| *small)))
                .at_most(TIME_AIM)
                .also(format!("50,000 nodes: {larger}")),
        );
        let what = format!("`plan`, {case}: time per node at 50,000 against 5,000");
        findings.push(Finding::new(what, Samples::new(Unit::Ratio, growth)).at_most(LINEAR));
    }
    Ok(findings)
}

fn per_node(time: Duration, nodes: usize) -> f64 {
    time.div_f64(number(u64::try_from(nodes).unwrap_or(u64::MAX))).as_secs_f64()
}

/// A pool, its nodes, and what is recorded of them.
struct Case {
    pool: Pool,
    names: Vec<String>,
    labels: BTreeMap<String, String>,
    claims: Vec<Claim>,
}

impl Case {
    /// With `joins` all nodes but one have their blocks already, by both records.
    fn new(nodes: usize, joins: bool) -> Result<Self> {
        let spec = IpPoolSpec {
            subnet: large::SUBNET.to_owned(),
            per_node_block_size: super::stage::BLOCK_SIZE,
            gateway: Some(large::GATEWAY.to_owned()),
            common: CommonSpec::default(),
        };
        let pool = Pool::parse("pool", &PoolSpec::Ip(spec)).map_err(|errors| anyhow!("{errors:?}"))?;
        let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
        let names = (0..nodes).map(|number| format!("node-{number:05}.example.org")).collect();
        let mut case = Self { pool, names, labels, claims: Vec::new() };
        if joins {
            case.claims = claims(&case.pool, &case.nodes());
        }
        Ok(case)
    }

    fn nodes(&self) -> Vec<NodeRef<'_>> {
        self.names.iter().map(|name| NodeRef { name, labels: &self.labels }).collect()
    }

    fn time(&self) -> Result<Duration> {
        let nodes = self.nodes();
        let began = Instant::now();
        let plan = black_box(plan(black_box(&self.pool), &nodes, &self.claims, &|_| Usage::Unknown));
        let took = began.elapsed();
        ensure!(plan.assignments.len() == nodes.len() && plan.unserved.is_empty(), "a plan that serves not all");
        Ok(took)
    }
}

/// Both records of a full plan, without the last node's.
fn claims(pool: &Pool, nodes: &[NodeRef<'_>]) -> Vec<Claim> {
    let full = plan(pool, &nodes[..nodes.len() - 1], &[], &|_| Usage::Unknown);
    let records = [ClaimSource::Status, ClaimSource::IpamNode];
    let of = |source| {
        full.assignments.iter().map(move |assigned| Claim {
            node: assigned.node.clone(),
            range: assigned.block.range,
            gateway: assigned.block.gateway,
            source,
        })
    };
    records.into_iter().flat_map(of).collect()
}
