//! Gateways that have to wait, because pods may use the new gateway as their own address.
//!
//! No pod gets a gateway that another pod has as its address. So if an edit makes an address the gateway, nodes keep their previous gateway
//! at first, and new nodes get the previous one, too. All nodes that could allocate the address get an entry in which it is unavailable.
//! The new gateway follows when their agents have since reported the address as free. Without such a report, the address counts as in use.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::plan::{Assignment, BlockPhase, Plan};
use ipam_core::{Block, PoolKind};
use ipam_crds::{BlockState, NodeBlock};

use super::DecisionInput;
use super::unavailable_addresses::is_revoked;
use crate::ipam_node::{gateway_of, held_ranges};

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

/// Puts the previous gateways into `plan` where those of the spec have to wait. `just_assigned` are the nodes of new blocks.
pub(super) fn defer(seen: &DecisionInput<'_>, just_assigned: &BTreeSet<String>, plan: &mut Plan) -> Deferred {
    keep_of_stale(seen, plan);
    let is_shared = seen.pool.key.kind == PoolKind::IpPool;
    let (mut deferred, mut free) = (Deferred::default(), BTreeSet::new());
    let mut kept: BTreeMap<usize, Option<IpAddr>> = BTreeMap::new();
    for (place, gateway, previous) in changing(seen, just_assigned, &plan.assignments) {
        if free.contains(&gateway) {
            continue;
        }
        // An IPPool has one gateway for all nodes, so its users are looked up once.
        if !is_shared || deferred.holders.is_empty() {
            let given = &plan.assignments[place];
            let holders = holders(seen, just_assigned, &plan.assignments, given, gateway);
            if holders.is_empty() {
                free.insert(gateway);
                continue;
            }
            deferred.holders.extend(holders.into_iter().map(|node| (node, gateway)));
        }
        kept.extend(previous.map(|block| (place, block.gateway)));
    }
    if deferred.holders.is_empty() {
        return deferred;
    }
    // A new node of an IPPool gets the gateway that the others have, if its network contains it.
    let previous = match kept.values().next() {
        Some(of_others) => *of_others,
        None => others(seen).min().and_then(|(_, gateway)| gateway),
    };
    let network = seen.pool.network();
    let previous = previous.filter(|gateway| network.is_some_and(|network| network.contains(*gateway)));
    for (place, assignment) in plan.assignments.iter_mut().enumerate() {
        let gateway = kept.get(&place).copied();
        let is_new = is_shared && gateway.is_none() && entry(seen, assignment).is_none();
        if is_new && gets_gateway(seen, assignment) {
            assignment.block.gateway = previous;
        }
        if let Some(gateway) = gateway {
            assignment.block.gateway = gateway;
        }
    }
    deferred
}

/// A block of an earlier spec keeps the gateway of its entry. So the entry gets this gateway again if the IPAMNode is deleted by hand and
/// written before the next plan.
fn keep_of_stale(seen: &DecisionInput<'_>, plan: &mut Plan) {
    for assignment in plan.assignments.iter_mut().filter(|given| given.phase == BlockPhase::Stale) {
        if let Some(entry) = entry(seen, assignment) {
            assignment.block.gateway = gateway_of(entry);
        }
    }
}

/// The gateways of an IPPool that a node must not allocate, because other nodes have them or are to have them: those of its Active blocks in
/// the plan, and that of the spec. The node's own entry has another one. Usually there are none.
pub(super) fn of_other_nodes(seen: &DecisionInput<'_>, assignments: &[Assignment]) -> Vec<(String, IpAddr)> {
    let Some(of_spec) = seen.pool.spec.as_ref().ok().and_then(|pool| pool.gateway()) else { return Vec::new() };
    let active = assignments.iter().filter(|given| given.phase == BlockPhase::Active);
    let mut gateways: BTreeSet<IpAddr> = active.filter_map(|given| given.block.gateway).collect();
    gateways.insert(of_spec);
    let own = |given: &Assignment| match given.phase {
        BlockPhase::Active => given.block.gateway,
        BlockPhase::Releasing | BlockPhase::Stale => {
            let is_settled = seen.ipam_nodes.get(&given.node).is_some_and(|record| !record.write_in_flight);
            entry(seen, given).filter(|_| is_settled).and_then(gateway_of)
        }
    };
    let mut found = Vec::new();
    for given in assignments.iter().filter(|given| given.phase != BlockPhase::Releasing) {
        let inside = gateways.iter().filter(|gateway| given.block.range.contains(**gateway));
        found.extend(
            inside.filter(|gateway| own(given) != Some(**gateway)).map(|gateway| (given.node.clone(), *gateway)),
        );
    }
    found
}

/// Whether the entry of this block gets the gateway of the plan. An entry of a block that the node loses, or that is of an earlier spec,
/// keeps the gateway that it has. If it has no entry, that of a stale block gets the gateway of the plan, and the other one gets none.
fn gets_gateway(seen: &DecisionInput<'_>, given: &Assignment) -> bool {
    match given.phase {
        BlockPhase::Active => true,
        BlockPhase::Releasing => false,
        BlockPhase::Stale => entry(seen, given).is_none(),
    }
}

/// Assignments whose node has, or may have, another gateway than the planned one: place, planned gateway, the block with the previous
/// gateway. A new block has no previous gateway; it is among them if a node of the IPPool may have another gateway than the spec. Usually
/// there are none. Then this is one comparison with the plan in force, or one look at each IPAMNode.
fn changing<'a>(
    seen: &'a DecisionInput<'_>,
    just_assigned: &'a BTreeSet<String>,
    assignments: &'a [Assignment],
) -> impl Iterator<Item = (usize, IpAddr, Option<Block>)> + 'a {
    let mut told = seen.told.iter().peekable();
    let differs = LazyCell::new(|| others(seen).next().is_some() || is_unknown(seen, just_assigned, assignments));
    let to_set = assignments.iter().enumerate().filter(|(_, given)| gets_gateway(seen, given));
    to_set.filter_map(move |(place, given)| {
        while told.next_if(|told| told.node < given.node).is_some() {}
        let gateway = given.block.gateway?;
        let told = told.peek().filter(|told| told.node == given.node);
        // Only the entry of an Active block is known to have the gateway of the plan.
        if told.is_some_and(|told| told.phase == BlockPhase::Active && told.block == given.block) {
            return None;
        }
        let previous = before(seen, given, told.copied());
        let changes = previous.map_or_else(|| *differs, |block| block.gateway != Some(gateway));
        changes.then_some((place, gateway, previous))
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
    let told = told.filter(|told| told.block.range == given.block.range);
    let of_told = |told: &Assignment| match (told.phase, entry) {
        (BlockPhase::Active, _) | (BlockPhase::Stale, None) => Some(told.block),
        (_, Some(_)) => None,
        // The entry with the previous gateway is gone.
        (BlockPhase::Releasing, None) => Some(Block { gateway: None, ..given.block }),
    };
    let of_entry = || entry.map(|entry| Block { gateway: gateway_of(entry), ..given.block });
    told.and_then(of_told).or_else(of_entry).or_else(|| recorded(seen, given))
}

/// The nodes of an IPPool whose entries have another gateway than the spec, with that gateway.
fn others<'a>(seen: &'a DecisionInput<'_>) -> impl Iterator<Item = (&'a String, Option<IpAddr>)> + 'a {
    let gateway = seen.pool.spec.as_ref().ok().and_then(|pool| pool.gateway());
    let records = seen.ipam_nodes.all().iter().filter(move |_| gateway.is_some());
    let of_entries = records.filter_map(|(node, record)| Some((node, gateway_of(record.block(&seen.pool.key)?))));
    of_entries.filter(move |(_, of_entry)| *of_entry != gateway)
}

/// Whether a pod may have the gateway of the spec as an ordinary address, from an entry that is gone.
///
/// That is so if the gateway is in a block that is no longer assigned and has no entry. It is also so if an agent reports it outside a block,
/// an earlier leader has assigned a block that has no entry, and no entry has it as the gateway. While all blocks are new, a reported gateway
/// says nothing: after a migration each address in use is outside a block, and a pod can have the gateway by `allocateDefaultGateway`.
fn is_unknown(seen: &DecisionInput<'_>, just_assigned: &BTreeSet<String>, assignments: &[Assignment]) -> bool {
    let Some(gateway) = seen.pool.spec.as_ref().ok().and_then(|pool| pool.gateway()) else { return false };
    let key = &seen.pool.key;
    let without_entry = || assignments.iter().filter(|given| entry(seen, given).is_none());
    let mut entries = seen.ipam_nodes.all().values().filter_map(|record| record.block(key));
    let is_in = |given: &Assignment| given.phase != BlockPhase::Active && given.block.range.contains(gateway);
    without_entry().any(is_in)
        || (seen.occupancy.outside_blocks(key).any(|fact| fact.range.contains(gateway))
            && without_entry().any(|given| !is_new(seen, just_assigned, &given.node))
            && entries.all(|entry| gateway_of(entry) != Some(gateway)))
}

/// Whether this leader has assigned the node its block and has not yet begun to write the entry.
fn is_new(seen: &DecisionInput<'_>, just_assigned: &BTreeSet<String>, node: &str) -> bool {
    let is_written = || seen.ipam_nodes.get(node).is_some_and(|record| record.write_in_flight);
    just_assigned.contains(node) || (seen.just_assigned.contains(node) && !is_written())
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

/// Nodes that may use the address that is to be the gateway of `given`. No pod has an address of a new block.
fn holders(
    seen: &DecisionInput<'_>,
    just_assigned: &BTreeSet<String>,
    all: &[Assignment],
    given: &Assignment,
    gateway: IpAddr,
) -> Vec<String> {
    let key = &seen.pool.key;
    let may_give: Vec<&Assignment> = match key.kind {
        PoolKind::IpPool => all.iter().filter(|other| other.block.range.contains(gateway)).collect(),
        // Prefixes do not overlap, and the gateway of each is inside.
        PoolKind::CidrPool => vec![given],
    };
    let by_block = may_give.into_iter().filter(|other| match entry(seen, other) {
        Some(entry) => !is_free(seen, other, entry, gateway),
        None => !is_new(seen, just_assigned, &other.node),
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

/// Whether the node can no longer allocate the address, and its agent has since reported it as free. `entry` is that of the block.
fn is_free(seen: &DecisionInput<'_>, given: &Assignment, entry: &NodeBlock, gateway: IpAddr) -> bool {
    let Some(record) = seen.ipam_nodes.get(&given.node) else { return false };
    if record.write_in_flight || record.is_doubted {
        // By a write in flight the node may be able to allocate the address. A doubted report proves nothing.
        return false;
    }
    if gateway_of(entry) == Some(gateway) {
        // The entry got this gateway when no pod used the address.
        return true;
    }
    let Some(report) = record.report(&seen.pool.key) else { return false };
    let in_run = |run: &ipam_crds::AddressRange| {
        let ends = (run.start_ip.parse::<IpAddr>(), run.end_ip.parse::<IpAddr>());
        matches!(ends, (Ok(first), Ok(last)) if (first..=last).contains(&gateway))
    };
    let is_unavailable = entry.state == BlockState::Releasing || entry.held_elsewhere.iter().any(in_run);
    let is_last_word = record.observed_generation == Some(record.generation)
        && (&report.start_ip, &report.end_ip) == (&entry.start_ip, &entry.end_ip);
    let is_held = report.used != 0 && held_ranges(report).iter().any(|range| range.contains(gateway));
    is_unavailable && is_last_word && !is_held
}
