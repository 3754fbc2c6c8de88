//! A large cluster on which each node uses three addresses outside its block, as pods with static addresses do.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipam_crds::AddressRange;
use ipam_operator::election::LEASE_NAME;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::bound::Bound;
use super::finding::Finding;
use super::joins::Joined;
use super::large::{DECISIONS, Large, SECONDS, STILL, one_pool};
use super::reports;
use super::stage::{NAMESPACE, Stage};
use super::stats::Samples;
use ipam_e2e::eventually::eventually_blocking;

/// For all of it.
const LIMIT: Duration = Duration::from_mins(10);
const ADDRESSES: u32 = 3;
/// The excluded part of the subnet that pods pick their static addresses from: a third of it for each address of a node.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 254, 0, 0);
const LAST: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 255);
/// Joins, each of which makes the operator plan.
const JOINS: u32 = 20;
const PLAN_AIM: f64 = 0.01;

pub(super) fn measure(stage: &Stage<'_>, nodes: u32) -> Result<Vec<Finding>> {
    let at = format!("{nodes} nodes with {ADDRESSES} addresses each outside their blocks");
    Bound::run(LIMIT, |bound| {
        bound.begin(format!("{at}: reports taken in"));
        let mut large = Large::begin(stage, nodes, pools())?;
        large.apply(bound.left())?;
        let done = decisions(bound, &mut large, &at);
        large.unless_ended(done)
    })
}

/// Writes the reports, and times the decisions that follow.
fn decisions(bound: &mut Bound, large: &mut Large<'_>, at: &str) -> Result<()> {
    let client = large.client();
    large.block_on(reports::write_all(&client, held))?;
    let before = large.block_on(leases(&client))?;
    at_rest(large, bound.left())?;
    let what = bound.begin(format!("{at}: planning in one decision, its calls left out"));
    let (times, joined) = plans(bound, large)?;
    let after = large.block_on(leases(&client))?;
    let also = format!("a join {}, CPU {}", joined.times().show(50), joined.cpu().show(50));
    let kept = before == after && large.operator.process().ensure_running().is_ok();
    bound.found(Finding::new(what, Samples::times(times)).at_most(PLAN_AIM).demand("Lease kept", kept).also(also));
    Ok(())
}

fn pools() -> Vec<Value> {
    let mut pools = one_pool();
    for pool in &mut pools {
        pool["spec"]["exclusions"] = json!([{"startIP": FIRST, "endIP": LAST}]);
    }
    pools
}

/// Single addresses, no two of which touch.
fn held(node: u32) -> Vec<AddressRange> {
    let third = (LAST.to_bits() - FIRST.to_bits()) / ADDRESSES;
    let address = |place: u32| Ipv4Addr::from_bits(FIRST.to_bits() + place * third + node).to_string();
    (0..ADDRESSES).map(|place| AddressRange { start_ip: address(place), end_ip: address(place) }).collect()
}

/// Waits until the reports are worked off: a second without a decision.
fn at_rest(large: &mut Large<'_>, within: Duration) -> Result<()> {
    let meter = large.meter();
    eventually_blocking("the operator comes to rest", within, || {
        let before = large.counter(DECISIONS)?;
        std::thread::sleep(Duration::from_secs(1));
        let count = large.counter(DECISIONS)? - before;
        ensure!(count == 0, "{count} decisions in a second, after {before}");
        meter.settle(STILL)
    })
}

/// The mean time of a decision in each of some joins.
fn plans(bound: &Bound, large: &mut Large<'_>) -> Result<(Vec<Duration>, Joined)> {
    let (mut times, mut joined) = (Vec::new(), Joined::default());
    for _ in 0..JOINS {
        let (count, seconds) = (large.counter(DECISIONS)?, large.seconds(SECONDS)?);
        joined.add(large, bound.left())?;
        let decisions = u32::try_from(large.counter(DECISIONS)? - count)?;
        ensure!(decisions > 0, "a node joins without a decision");
        times.push(large.seconds(SECONDS)?.saturating_sub(seconds) / decisions);
    }
    Ok((times, joined))
}

/// The holder of the Lease, and how often it has changed.
pub(super) async fn leases(client: &Client) -> Result<(Option<String>, Option<i32>)> {
    let lease = Api::<Lease>::namespaced(client.clone(), NAMESPACE).get(LEASE_NAME).await?;
    let spec = lease.spec.context("a Lease without a spec")?;
    Ok((spec.holder_identity, spec.lease_transitions))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_of_all_nodes_are_distinct_and_excluded() {
        let all: Vec<_> = (0..30_000).flat_map(held).map(|range| range.start_ip.parse::<Ipv4Addr>().unwrap()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 90_000);
        assert!(all.iter().all(|address| (FIRST..=LAST).contains(address)));
    }
}
