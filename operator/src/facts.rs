//! The facts of each record about who may use which addresses. [`ipam_core::occupancy`] keeps them.

use ipam_core::occupancy::{Evidence, Fact, Occupancy};
use ipam_core::{AddrRange, PoolKey};
use ipam_crds::BlockUse;

use crate::ipam_node::{IpamNodeRecord, claim_of, held_ranges, key_of};
use crate::pool::StatusRecord;

/// Facts of a pool's status: the blocks that it records.
pub fn of_status(occupancy: &mut Occupancy, pool: &PoolKey, status: &StatusRecord) -> Vec<Fact> {
    let claims = status.claims();
    claims.map(|claim| occupancy.fact(pool, &claim.node, claim.range, Evidence::Recorded)).collect()
}

/// Facts of an IPAMNode: its entries, and what its agent reports.
pub fn of_ipam_node(occupancy: &mut Occupancy, node: &str, record: &IpamNodeRecord) -> Vec<Fact> {
    let mut facts = Vec::new();
    for entry in record.blocks.iter().chain(record.unedited.iter().flatten()) {
        let key = key_of(entry);
        let is_released = record.has_released(&key) && record.unedited.is_none();
        let Some(claim) = claim_of(node, entry).filter(|_| !is_released) else { continue };
        let is_stopped = record.gives_no_more(&key) && record.block(&key) == Some(entry);
        let evidence = if is_stopped { Evidence::StoppedEntry } else { Evidence::Entry };
        facts.push(occupancy.fact(&key, node, claim.range, evidence));
    }
    for report in record.reports.iter().filter(|report| report.used > 0) {
        let key = PoolKey::new(report.pool_type.into(), report.name.as_str());
        let in_use = in_use(node, record, report, &key);
        facts.extend(in_use.into_iter().map(|(range, evidence)| occupancy.fact(&key, node, range, evidence)));
    }
    facts
}

/// The addresses that the agent reports in use, as far as no entry stands for them.
fn in_use(node: &str, record: &IpamNodeRecord, report: &BlockUse, key: &PoolKey) -> Vec<(AddrRange, Evidence)> {
    let own = record.claim(node, key).map(|claim| claim.range);
    // A pod on any node may have the gateway of its pool, by `allocateDefaultGateway`.
    let gateway = record.block(key).and_then(|entry| entry.gateway.as_deref()?.parse().ok());
    let gateway = gateway.and_then(|addr| AddrRange::new(addr, addr));
    let evidence = |range: &AddrRange| {
        if own.is_some_and(|own| own.contains_range(range)) {
            record.gives_no_more(key).then_some(Evidence::InUse)
        } else if gateway == Some(*range) {
            Some(Evidence::InUse)
        } else {
            Some(Evidence::OutsideBlock)
        }
    };
    held_ranges(report).into_iter().filter_map(|range| Some((range, evidence(&range)?))).collect()
}
