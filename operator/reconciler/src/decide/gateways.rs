//! Gateways that are to become addresses that pods may hold.
//!
//! No pod is told a gateway that another pod has. So where an edit makes an address the gateway, nodes keep the gateway
//! that they were told before until the agents of all nodes that could give that address have said, about an entry that
//! bars it, that nobody holds it. What no agent has said counts as held.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, Plan, Standing};
use ipam_core::{Block, PoolKind};
use ipam_crds::{BlockState, NodeBlock};

use super::Observation;
use super::elsewhere::is_let_go;
use crate::ipam_node::{IpamNodeRecord, held_ranges};

/// What waits, and for whom.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Deferred {
    /// Node → the address that it may hold and that is to be a gateway.
    pub(super) holders: BTreeMap<String, IpAddr>,
}

impl Deferred {
    /// In words, for a condition.
    pub(super) fn described(&self) -> Vec<String> {
        self.holders.iter().map(|(node, gateway)| format!("{node} (may use {gateway})")).collect()
    }
}

/// Puts the gateways of before into `plan` where those of the spec have to wait.
pub(super) fn defer(seen: &Observation<'_>, plan: &mut Plan) -> Deferred {
    let (mut deferred, mut free) = (Deferred::default(), BTreeSet::new());
    let mut kept: BTreeMap<usize, Option<IpAddr>> = BTreeMap::new();
    for (place, gateway, told) in changing(seen, &plan.assignments) {
        if free.contains(&gateway) {
            continue;
        }
        // An IPPool's gateway is one for all: asked about once.
        let is_known = seen.pool.key.kind == PoolKind::IpPool && !deferred.holders.is_empty();
        let holders =
            if is_known { Vec::new() } else { holders(seen, &plan.assignments, &plan.assignments[place], gateway) };
        if holders.is_empty() && !is_known {
            free.insert(gateway);
            continue;
        }
        deferred.holders.extend(holders.into_iter().map(|node| (node, gateway)));
        kept.insert(place, told);
    }
    let of_all = kept.values().next().copied().filter(|_| seen.pool.key.kind == PoolKind::IpPool);
    for (place, assignment) in plan.assignments.iter_mut().enumerate() {
        let is_new = || entry(seen, assignment).is_none();
        let gateway = kept.get(&place).copied().or_else(|| of_all.filter(|_| is_new()));
        if let Some(gateway) = gateway.filter(|_| assignment.standing == Standing::Serving) {
            assignment.block.gateway = gateway;
        }
    }
    deferred
}

/// Assignments whose node was told another gateway than the one that it is to have, or may have been, with both. None as a
/// rule; then this is one comparison with what we told last, or one look at each IPAMNode.
fn changing<'a>(
    seen: &'a Observation<'_>,
    assignments: &'a [Assignment],
) -> impl Iterator<Item = (usize, IpAddr, Option<IpAddr>)> + 'a {
    let mut told = seen.told.iter().peekable();
    let serving = assignments.iter().enumerate().filter(|(_, given)| given.standing == Standing::Serving);
    serving.filter_map(move |(place, given)| {
        while told.next_if(|told| told.node < given.node).is_some() {}
        let gateway = given.block.gateway?;
        let told = told.peek().filter(|told| told.node == given.node);
        if told.is_some_and(|told| told.block == given.block) {
            return None;
        }
        let before = before(seen, given, told.copied())?.gateway;
        (before != Some(gateway)).then_some((place, gateway, before))
    })
}

/// This very block with the gateway that the node of `given` was told last; `told` is what we told it. An entry that a write
/// under way may have changed does not say it, nor does one that is not there: then it is what we told, or what the status
/// says that is served. `None` if the block is new to the node.
fn before(seen: &Observation<'_>, given: &Assignment, told: Option<&Assignment>) -> Option<Block> {
    let entry = entry(seen, given);
    let is_settled = seen.ipam_nodes.get(&given.node).is_some_and(|record| !record.unsettled);
    if let Some(entry) = entry.filter(|_| is_settled) {
        return Some(Block { gateway: gateway_of(entry), ..given.block });
    }
    let told = told.filter(|told| told.standing == Standing::Serving && told.block.range == given.block.range);
    let of_entry = || entry.map(|entry| Block { gateway: gateway_of(entry), ..given.block });
    told.map(|told| told.block).or_else(of_entry).or_else(|| recorded(seen, given))
}

/// The block by the status, which has those of a CIDRPool. Its entries stand by node name; one of a status
/// that was spoilt is not looked for, as the plan does not rest on it either.
fn recorded(seen: &Observation<'_>, given: &Assignment) -> Option<Block> {
    if seen.pool.key.kind == PoolKind::IpPool {
        return None;
    }
    let claims = &seen.pool.status.allocations;
    let place = claims.binary_search_by(|claim| claim.node.cmp(&given.node)).ok()?;
    let claim = claims.get(place).filter(|claim| claim.range == given.block.range)?;
    Some(Block { gateway: claim.gateway, ..given.block })
}

/// The node's entry, if it is about this very block.
fn entry<'a>(seen: &'a Observation<'_>, given: &Assignment) -> Option<&'a NodeBlock> {
    let record = seen.ipam_nodes.get(&given.node)?;
    let is_same = record.claim(&given.node, &seen.pool.key)?.range == given.block.range;
    record.block(&seen.pool.key).filter(|_| is_same)
}

fn gateway_of(entry: &NodeBlock) -> Option<IpAddr> {
    entry.gateway.as_deref().and_then(|text| parse_addr(text).ok())
}

/// Nodes that may hold the address which is to be the gateway of `given`.
fn holders(seen: &Observation<'_>, all: &[Assignment], given: &Assignment, gateway: IpAddr) -> Vec<String> {
    let key = &seen.pool.key;
    let may_give: Vec<&Assignment> = match key.kind {
        PoolKind::IpPool => all.iter().filter(|other| other.block.range.contains(gateway)).collect(),
        // Prefixes are apart, and each has its gateway within.
        PoolKind::CidrPool => vec![given],
    };
    let by_block = may_give.into_iter().filter(|other| {
        let record = seen.ipam_nodes.get(&other.node);
        !record.is_some_and(|record| is_free(seen, record, gateway))
    });
    // No node is kept from allocating what an admin has released by force, so no gateway waits for it either.
    let outside = seen.occupancy.outside_blocks(key).filter(|fact| fact.range.contains(gateway));
    let outside = outside.filter(|fact| !is_let_go(seen, all, &fact.node));
    let mut names: Vec<String> =
        by_block.map(|other| other.node.clone()).chain(outside.map(|fact| fact.node.as_ref().to_owned())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether the node cannot give the address any more, and its agent has said so since that nobody holds it.
fn is_free(seen: &Observation<'_>, record: &IpamNodeRecord, gateway: IpAddr) -> bool {
    let key = &seen.pool.key;
    let (Some(entry), Some(report)) = (record.block(key), record.report(key)) else { return false };
    if record.unsettled || record.is_doubted {
        // It may have been told something else since, by which it could give the address.
        return false;
    }
    if gateway_of(entry) == Some(gateway) {
        // It was told so when nobody held it.
        return true;
    }
    let in_run = |run: &ipam_crds::AddressRange| {
        let ends = (run.start_ip.parse::<IpAddr>(), run.end_ip.parse::<IpAddr>());
        matches!(ends, (Ok(first), Ok(last)) if (first..=last).contains(&gateway))
    };
    let barred = entry.state == BlockState::Releasing || entry.held_elsewhere.iter().any(in_run);
    let is_last_word = record.observed_generation == Some(record.generation)
        && (&report.start_ip, &report.end_ip) == (&entry.start_ip, &entry.end_ip);
    let is_held = report.used != 0 && held_ranges(report).iter().any(|range| range.contains(gateway));
    barred && is_last_word && !is_held
}
