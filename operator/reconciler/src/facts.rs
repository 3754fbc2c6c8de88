//! The facts of each record about who may use which addresses. [`ipam_core::occupancy`] keeps them.

use ipam_core::occupancy::{Evidence, Fact, Occupancy};
use ipam_core::{AddrRange, Pool, PoolKey};
use ipam_crds::{BlockUse, NodeBlock};

use crate::ipam_node::{IpamNodeRecord, claim_of, gateway_of, held_ranges, key_of};
use crate::pool::StatusRecord;

/// Facts of a pool's statuses: the blocks that they record.
pub fn of_statuses<'a>(
    occupancy: &mut Occupancy,
    pool: &PoolKey,
    statuses: impl Iterator<Item = &'a StatusRecord>,
) -> Vec<Fact> {
    let claims = statuses.flat_map(StatusRecord::claims);
    claims.map(|claim| occupancy.fact(pool, &claim.node, claim.range, Evidence::Recorded)).collect()
}

/// The facts by which addresses of `pool` are unavailable to nodes that do not have them. `shares` accepts the pools that may have the same
/// addresses.
pub fn unavailable(occupancy: &Occupancy, pool: &Pool, shares: &dyn Fn(&PoolKey) -> bool) -> Vec<Fact> {
    let (key, network) = (pool.key(), pool.network().range());
    // No node allocates the gateway of its pool.
    let is_gateway = |fact: &&Fact| {
        fact.evidence == Evidence::Gateway && *fact.pool == *key && pool.gateway() == Some(fact.range.first())
    };
    occupancy.unavailable(key, &network, shares).filter(|fact| !is_gateway(fact)).cloned().collect()
}

/// Facts of an IPAMNode: its entries, and what its agent reports. `sent` are the blocks of writes whose outcome is unknown.
pub fn of_ipam_node(
    occupancy: &mut Occupancy,
    node: &str,
    record: &IpamNodeRecord,
    sent: &[Vec<NodeBlock>],
) -> Vec<Fact> {
    let mut facts = Vec::new();
    for entry in record.blocks.iter().chain(record.intended_blocks.iter().flatten()) {
        let key = key_of(entry);
        let is_released = record.has_released(&key) && record.intended_blocks.is_none();
        let Some(claim) = claim_of(node, entry).filter(|_| !is_released) else { continue };
        // If the grant is over, the record in the status counts until the operator has released the block.
        let is_stopped = has_stopped(record, &key, sent) && record.block(&key) == Some(entry) && !record.is_over(&key);
        let evidence = if is_stopped { Evidence::StoppedEntry } else { Evidence::Entry };
        facts.push(occupancy.fact(&key, node, claim.range, evidence));
    }
    for report in record.reports.iter().filter(|report| report.used > 0) {
        let key = PoolKey::new(report.pool_type.into(), report.name.as_str());
        let in_use = in_use(node, record, report, sent);
        facts.extend(in_use.into_iter().map(|(range, evidence)| occupancy.fact(&key, node, range, evidence)));
    }
    facts
}

/// Whether the agent allocates no more from the entry of the pool, whichever write takes effect.
fn has_stopped(record: &IpamNodeRecord, key: &PoolKey, sent: &[Vec<NodeBlock>]) -> bool {
    let entry = record.block(key);
    let keeps = |blocks: &Vec<NodeBlock>| blocks.iter().find(|block| key_of(block) == *key) == entry;
    record.has_stopped(key) && (!record.write_in_flight || (!sent.is_empty() && sent.iter().all(keeps)))
}

/// The addresses that the agent reports in use, except those inside a block from which it may still allocate.
fn in_use(
    node: &str,
    record: &IpamNodeRecord,
    report: &BlockUse,
    sent: &[Vec<NodeBlock>],
) -> Vec<(AddrRange, Evidence)> {
    let key = &PoolKey::new(report.pool_type.into(), report.name.as_str());
    let own = record.claim(node, key).map(|claim| claim.range);
    // A pod on any node may have the gateway of its pool, by `allocateDefaultGateway`.
    let gateway = record.block(key).and_then(gateway_of);
    let gateway = gateway.and_then(|addr| AddrRange::new(addr, addr));
    let evidence = |range: &AddrRange| {
        if own.is_some_and(|own| own.contains_range(range)) {
            has_stopped(record, key, sent).then_some(Evidence::InUse)
        } else if gateway == Some(*range) {
            Some(Evidence::Gateway)
        } else {
            Some(Evidence::OutsideBlock)
        }
    };
    held_ranges(report).into_iter().filter_map(|range| Some((range, evidence(&range)?))).collect()
}
