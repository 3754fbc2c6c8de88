//! Gateways that have to wait, because pods may use the new gateway as their own address.
//!
//! No pod gets a gateway that another pod has as its address. So if an edit makes an address the gateway, nodes keep their previous gateway
//! at first, and new nodes get the previous one, too. All nodes that could allocate the address get an entry in which it is unavailable.
//! The new gateway follows when their agents have since reported the address as free. Without such a report, the address counts as in use.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, BlockPhase, Plan};
use ipam_core::{Block, PoolKind};
use ipam_crds::{BlockState, NodeBlock};

use super::DecisionInput;
use super::unavailable_addresses::is_revoked;
use crate::ipam_node::{IpamNodeRecord, held_ranges};

/// The nodes that new gateways wait for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Deferred {
    /// Node → the address that it may use and that is to be a gateway.
    pub(super) holders: BTreeMap<String, IpAddr>,
}

impl Deferred {
    /// The nodes and addresses as text for a condition.
    pub(super) fn described(&self) -> Vec<String> {
        self.holders.iter().map(|(node, gateway)| format!("{node} (may use {gateway})")).collect()
    }
}

/// Puts the previous gateways into `plan` where those of the spec have to wait.
pub(super) fn defer(seen: &DecisionInput<'_>, plan: &mut Plan) -> Deferred {
    let (mut deferred, mut free) = (Deferred::default(), BTreeSet::new());
    let mut kept: BTreeMap<usize, Option<IpAddr>> = BTreeMap::new();
    for (place, gateway, told) in changing(seen, &plan.assignments) {
        if free.contains(&gateway) {
            continue;
        }
        // An IPPool has one gateway for all nodes, so its users are looked up once.
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
        if let Some(gateway) = gateway.filter(|_| gets_gateway(seen, assignment)) {
            assignment.block.gateway = gateway;
        }
    }
    deferred
}

/// Nodes with a block of an earlier spec that contains the gateway of the spec, and that gateway. Their entries have another gateway. Usually
/// there are none.
pub(super) fn in_stale_blocks<'a>(
    seen: &'a DecisionInput<'_>,
    assignments: &'a [Assignment],
) -> impl Iterator<Item = (String, IpAddr)> + 'a {
    let gateway = seen.pool.spec.as_ref().ok().and_then(|pool| pool.gateway());
    let stale = assignments.iter().filter(|given| given.phase == BlockPhase::Stale);
    gateway.into_iter().flat_map(move |gateway| {
        let with_gateway = stale.clone().filter(move |given| given.block.range.contains(gateway));
        let has_another = move |entry: &NodeBlock| gateway_of(entry) != Some(gateway);
        let those = with_gateway.filter(move |given| entry(seen, given).is_some_and(has_another));
        those.map(move |given| (given.node.clone(), gateway))
    })
}

/// Whether the entry of this block gets the gateway of the plan. An entry of a block that the node loses, or that is of an earlier spec,
/// keeps the gateway that it has.
fn gets_gateway(seen: &DecisionInput<'_>, given: &Assignment) -> bool {
    match given.phase {
        BlockPhase::Active => true,
        BlockPhase::Releasing => false,
        BlockPhase::Stale => entry(seen, given).is_none(),
    }
}

/// Assignments whose node has, or may have, another gateway than the planned one: place, planned gateway, previous gateway. Usually there
/// are none. Then this is one comparison with the plan in force, or one look at each IPAMNode.
fn changing<'a>(
    seen: &'a DecisionInput<'_>,
    assignments: &'a [Assignment],
) -> impl Iterator<Item = (usize, IpAddr, Option<IpAddr>)> + 'a {
    let mut told = seen.told.iter().peekable();
    let of_another = LazyCell::new(|| block_with_another_gateway(seen, assignments));
    let to_set = assignments.iter().enumerate().filter(|(_, given)| gets_gateway(seen, given));
    to_set.filter_map(move |(place, given)| {
        while told.next_if(|told| told.node < given.node).is_some() {}
        let gateway = given.block.gateway?;
        let told = told.peek().filter(|told| told.node == given.node);
        // The entry of a block that was Releasing or Stale has the gateway of before.
        if told.is_some_and(|told| told.phase == BlockPhase::Active && told.block == given.block) {
            return None;
        }
        let before = before(seen, given, told.copied()).or(*of_another)?.gateway;
        (before != Some(gateway)).then_some((place, gateway, before))
    })
}

/// The block of `given` with the gateway that its node had last; `told` is its assignment in the plan in force. The entry of the node
/// counts if no write may have changed it. Otherwise the plan in force counts, or else the entry, or else the status. `None` if the block
/// is new to the node.
fn before(seen: &DecisionInput<'_>, given: &Assignment, told: Option<&Assignment>) -> Option<Block> {
    let entry = entry(seen, given);
    let is_settled = seen.ipam_nodes.get(&given.node).is_some_and(|record| !record.write_in_flight);
    if let Some(entry) = entry.filter(|_| is_settled) {
        return Some(Block { gateway: gateway_of(entry), ..given.block });
    }
    let told = told.filter(|told| told.phase == BlockPhase::Active && told.block.range == given.block.range);
    let of_entry = || entry.map(|entry| Block { gateway: gateway_of(entry), ..given.block });
    told.map(|told| told.block).or_else(of_entry).or_else(|| recorded(seen, given))
}

/// A block of the IPPool with its gateway, if that is not the gateway of the spec: by an entry, or because the gateway of the spec is inside
/// and there is no entry.
fn block_with_another_gateway(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> Option<Block> {
    let (key, gateway) = (&seen.pool.key, seen.pool.spec.as_ref().ok()?.gateway()?);
    let of_entry = |(node, record): (&String, &IpamNodeRecord)| {
        let gateway = gateway_of(record.block(key)?);
        Some(Block { range: record.claim(node, key)?.range, gateway })
    };
    let mut of_entries = seen.ipam_nodes.all().iter().filter_map(of_entry);
    let is_unknown = |given: &&Assignment| given.phase != BlockPhase::Active && entry(seen, given).is_none();
    let mut with_gateway = assignments.iter().filter(|given| given.block.range.contains(gateway));
    let unknown = || with_gateway.find(is_unknown).map(|given| Block { gateway: None, ..given.block });
    of_entries.find(|block| block.gateway != Some(gateway)).or_else(unknown)
}

/// The block with the gateway in the status, which has gateways of CIDRPools only. Status entries are in the order of node names. An entry
/// of a damaged status that is not in this order may be missed. The plan does not depend on it either.
fn recorded(seen: &DecisionInput<'_>, given: &Assignment) -> Option<Block> {
    if seen.pool.key.kind == PoolKind::IpPool {
        return None;
    }
    let claims = &seen.pool.status.allocations;
    let place = claims.binary_search_by(|claim| claim.node.cmp(&given.node)).ok()?;
    let claim = claims.get(place).filter(|claim| claim.range == given.block.range)?;
    Some(Block { gateway: claim.gateway, ..given.block })
}

/// The node's entry, if it is about exactly this block.
fn entry<'a>(seen: &'a DecisionInput<'_>, given: &Assignment) -> Option<&'a NodeBlock> {
    let record = seen.ipam_nodes.get(&given.node)?;
    let is_same = record.claim(&given.node, &seen.pool.key)?.range == given.block.range;
    record.block(&seen.pool.key).filter(|_| is_same)
}

fn gateway_of(entry: &NodeBlock) -> Option<IpAddr> {
    entry.gateway.as_deref().and_then(|text| parse_addr(text).ok())
}

/// Nodes that may use the address that is to be the gateway of `given`.
fn holders(seen: &DecisionInput<'_>, all: &[Assignment], given: &Assignment, gateway: IpAddr) -> Vec<String> {
    let key = &seen.pool.key;
    let may_give: Vec<&Assignment> = match key.kind {
        PoolKind::IpPool => all.iter().filter(|other| other.block.range.contains(gateway)).collect(),
        // Prefixes do not overlap, and the gateway of each is inside.
        PoolKind::CidrPool => vec![given],
    };
    let by_block = may_give.into_iter().filter(|other| {
        let record = seen.ipam_nodes.get(&other.node);
        !record.is_some_and(|record| is_free(seen, record, gateway))
    });
    // Addresses that an admin has force-released are available to other nodes, so no gateway waits for them either.
    let outside = seen.occupancy.outside_blocks(key).filter(|fact| fact.range.contains(gateway));
    let outside = outside.filter(|fact| !is_revoked(seen, all, &fact.node));
    let mut names: Vec<String> =
        by_block.map(|other| other.node.clone()).chain(outside.map(|fact| fact.node.as_ref().to_owned())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether the node can no longer allocate the address, and its agent has since reported it as free.
fn is_free(seen: &DecisionInput<'_>, record: &IpamNodeRecord, gateway: IpAddr) -> bool {
    let key = &seen.pool.key;
    let (Some(entry), Some(report)) = (record.block(key), record.report(key)) else { return false };
    if record.write_in_flight || record.is_doubted {
        // By a write in flight the node may be able to allocate the address. A doubted report proves nothing.
        return false;
    }
    if gateway_of(entry) == Some(gateway) {
        // The entry got this gateway when no pod used the address.
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
