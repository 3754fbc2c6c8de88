//! The records of earlier decisions that the plan is based on.
//!
//! The status of a pool is the first record. The IPAMNodes, derived from it, are the second. A status drops no block while the IPAMNode of
//! its node has an entry whose grant is not over. So if the two differ, the status was wiped, edited or restored to an earlier state. Then
//! the IPAMNode counts, because its node may allocate from the block. The same holds for a write whose outcome is unknown. The status
//! counts in two cases: the entry is released, or this leader has itself assigned the block of the status to the node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use ipam_core::occupancy::{Addresses, Evidence, Fact};
use ipam_core::plan::{Assignment, Claim, ClaimSource, NodeRef};
use ipam_core::{AddrRange, Block, Pool, PoolKey};

use super::DecisionInput;
use crate::ipam_node::IpamNodeRecord;

/// The claims that count for the pool `key`, and messages about those that do not.
///
/// A status entry is trusted if the IPAMNode of its node has the same block. An entry of an IPAMNode is trusted if it prevails over the
/// status. Any other status entry is left out if it overlaps a trusted claim, or if its node has one. Reserved blocks come last. They count
/// for nodes of which nothing is recorded, unless another node may use addresses of the block, too.
pub(super) fn gather(key: &PoolKey, seen: &DecisionInput<'_>) -> (Vec<Claim>, Vec<String>) {
    let (mut claims, dropped) = recorded(key, seen);
    let reserved = &seen.other_pools.reserved;
    if !reserved.is_empty() {
        let named: HashSet<String> = claims.iter().map(|claim| claim.node.clone()).collect();
        let mut recorded = Addresses::default();
        for claim in &claims {
            recorded.insert(&claim.range);
        }
        // A pool that assigns no block keeps both claims, so that its finalizer stays until both nodes have reported. The gateway does not
        // count, because a pod on any node may have it.
        let assigns = !seen.pool.life.deleting && seen.other_pools.older_overlap.is_none();
        let is_of_others = |claim: &Claim| {
            let facts = seen.occupancy.overlapping(&claim.range).filter(|fact| *fact.pool == *key);
            let mut others = facts.filter(|fact| *fact.node != *claim.node && fact.evidence != Evidence::Gateway);
            assigns && others.next().is_some()
        };
        let has_room =
            |claim: &&Claim| !named.contains(&claim.node) && !recorded.intersect(&claim.range) && !is_of_others(claim);
        claims.extend(reserved.iter().filter(has_room).cloned());
    }
    (claims, dropped)
}

/// Claims of nodes to the blocks in which their pods use addresses, where no record of a block is left and no other node may use it. So
/// nodes have their blocks again after all records were lost, as in a pool that has as many blocks as nodes.
pub(super) fn by_use(pool: &Pool, seen: &DecisionInput<'_>, claims: &[Claim]) -> Vec<Claim> {
    let key = pool.key();
    let mut facts =
        seen.occupancy.outside_blocks(key).filter(|fact| fact.evidence == Evidence::OutsideBlock).peekable();
    // While reports are awaited, other nodes may use the addresses.
    if facts.peek().is_none() || !seen.other_pools.unreported.is_empty() {
        return Vec::new();
    }
    let named: HashSet<&str> = claims.iter().map(|claim| claim.node.as_str()).collect();
    let is_free = |fact: &Fact, block: &Block| {
        let is_own = |other: &Fact| other.node == fact.node || other.evidence == Evidence::Gateway;
        seen.occupancy.overlapping(&block.range).all(|other| other.pool == fact.pool && is_own(other))
    };
    // The blocks of each node, each with the number of its addresses in use.
    let mut found: BTreeMap<&str, Vec<(u128, Block)>> = BTreeMap::new();
    // A pod on any node may have the gateway.
    let is_gateway = |fact: &Fact| pool.gateway().is_some_and(|addr| AddrRange::new(addr, addr) == Some(fact.range));
    for fact in facts.filter(|fact| !named.contains(&*fact.node) && !is_gateway(fact)) {
        let blocks = found.entry(&fact.node).or_default();
        // A run of addresses may continue in the next block. Of a longer one, the blocks at its ends count.
        let ends = [fact.range.first(), fact.range.last()].map(|addr| pool.block_around(addr));
        let last = ends[1].filter(|last| ends[0].is_none_or(|first| first.range != last.range));
        for block in ends[0].into_iter().chain(last) {
            let inside = fact.range.intersection(&block.range).map_or(0, |range| range.size());
            if let Some((used, _)) = blocks.iter_mut().find(|(_, known)| known.range == block.range) {
                *used += inside;
            } else if is_free(fact, &block) {
                blocks.push((inside, block));
            }
        }
    }
    let is_served = |node: &&NodeRef<'_>| {
        let can_be = pool.selects(node.name, node.labels) && !seen.leaving.contains_key(node.name);
        can_be && pool.static_index(node.name).is_none() && !seen.pool.life.force_releases(node.name)
    };
    let claim = |node: &NodeRef<'_>| {
        // The one with the most addresses in use, and of those the first.
        let (_, block) =
            found.get(node.name)?.iter().max_by_key(|(used, block)| (*used, Reverse(block.range.first())))?;
        let Block { range, gateway } = *block;
        Some(Claim { node: node.name.to_owned(), range, gateway, source: ClaimSource::IpamNode })
    };
    seen.nodes.iter().filter(is_served).filter_map(claim).collect()
}

fn recorded(key: &PoolKey, seen: &DecisionInput<'_>) -> (Vec<Claim>, Vec<String>) {
    let entries: Vec<&Claim> = seen.pool.status.claims().collect();
    let first: HashMap<&str, &Claim> = entries.iter().map(|claim| (claim.node.as_str(), *claim)).collect();
    let mut trusted = Addresses::default();
    let (mut second, mut confirmed) = (Vec::new(), 0);
    for (node, record) in seen.ipam_nodes.all() {
        let Some(claim) = record.claim(node, key) else { continue };
        match first.get(node.as_str()) {
            Some(entry) if entry.range == claim.range => {
                confirmed += 1;
                trusted.insert(&claim.range);
            }
            entry if stands(key, seen, record, &claim, entry.map(|entry| entry.range)) => {
                trusted.insert(&claim.range);
                second.push(claim);
            }
            _ => {}
        }
    }
    second.extend(being_told(key, seen, &first));
    if confirmed == entries.len() && second.is_empty() {
        return (entries.into_iter().cloned().collect(), Vec::new());
    }
    let is_spurned = |claim: &&Claim| {
        let Some((record, repeated)) = own_claim(key, seen, claim) else { return trusted.intersect(&claim.range) };
        repeated.range != claim.range
            && (trusted.intersect(&claim.range) || stands(key, seen, record, &repeated, Some(claim.range)))
    };
    let (spurned, stays): (Vec<&Claim>, Vec<&Claim>) = entries.into_iter().partition(is_spurned);
    let claims = stays.into_iter().cloned().chain(second).collect();
    let dropped = spurned.iter().map(|claim| {
        format!("node {:?}: {} in the status is not its block, for IPAMNodes say otherwise", claim.node, claim.range)
    });
    (claims, dropped.collect())
}

/// Blocks that the status does not record, and that a write with an unknown outcome may assign. The status that assigned them was wiped
/// before any IPAMNode had them.
fn being_told(key: &PoolKey, seen: &DecisionInput<'_>, first: &HashMap<&str, &Claim>) -> Vec<Claim> {
    let unrecorded = seen.told.iter().filter(|told| !first.contains_key(told.node.as_str()));
    let has_entry = |node: &str| seen.ipam_nodes.get(node).is_some_and(|known| known.claim(node, key).is_some());
    let under_way = unrecorded.filter(|told| !has_entry(&told.node) && !seen.ipam_nodes.has_no_entry(&told.node, key));
    let claim = |told: &Assignment| Claim {
        node: told.node.clone(),
        range: told.block.range,
        gateway: told.block.gateway,
        source: ClaimSource::IpamNode,
    };
    under_way.map(claim).collect()
}

/// The record and the claim of the IPAMNode of the claim's node.
fn own_claim<'a>(key: &PoolKey, seen: &'a DecisionInput<'_>, claim: &Claim) -> Option<(&'a IpamNodeRecord, Claim)> {
    let record = seen.ipam_nodes.get(&claim.node)?;
    Some((record, record.claim(&claim.node, key)?))
}

/// Whether the `claim` of the IPAMNode prevails over a status that records the block `recorded` for the node.
fn stands(
    key: &PoolKey,
    seen: &DecisionInput<'_>,
    record: &IpamNodeRecord,
    claim: &Claim,
    recorded: Option<AddrRange>,
) -> bool {
    match told(seen.told, &claim.node) {
        Some(told) if told == claim.range => true,
        // This leader assigned the block of the status to the node. Another writer has edited the IPAMNode since.
        told @ Some(_) if told == recorded => false,
        _ => !record.has_released(key),
    }
}

/// The block of the node by `told`, the plan in force.
fn told(told: &[Assignment], node: &str) -> Option<AddrRange> {
    let place = told.binary_search_by(|assignment| assignment.node.as_str().cmp(node)).ok()?;
    Some(told.get(place)?.block.range)
}
