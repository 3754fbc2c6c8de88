//! etcd accepts no object of more than 1.5 MiB. A status that is too large could not be written at all, not even to release a block. So a
//! pool assigns no new block beyond [`MOST_BYTES`]. Releasing a block never makes a status larger than that: entries of `status.releasing`
//! have no times then.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use ipam_core::plan::{Assignment, BlockPhase, Claim, Plan};
use ipam_core::{Family, Pool, PoolKind};

use crate::pool::PoolRecord;

/// Bytes of an object up to which blocks are assigned. 15,000 nodes with short names and IPv4 addresses have 1.2 MB.
pub(super) const MOST_BYTES: usize = 1_400_000;
/// Most bytes of conditions, counts and names of fields. The annotation `force-release` can grow by 128 KiB later. There is room for that
/// up to the limit of etcd. A spec or an annotation of others that grows later is refused itself.
const REST: usize = 16_000;
/// Bytes that the times add to an entry of `status.releasing`.
const TIMES: usize = r#","since":"2026-01-02T03:04:05Z","nodeGoneSince":"2026-01-02T03:04:05Z""#.len();

/// Bytes of an entry without the name of the node, where its addresses have the longest texts.
const fn entry(kind: PoolKind, family: Family) -> usize {
    match (kind, family) {
        (PoolKind::IpPool, Family::V4) => {
            r#"{"nodeName":"","startIP":"255.255.255.255","endIP":"255.255.255.255"},"#.len()
        }
        (PoolKind::IpPool, Family::V6) => {
            r#"{"nodeName":"","startIP":"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff","endIP":"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},"#.len()
        }
        (PoolKind::CidrPool, Family::V4) => {
            r#"{"nodeName":"","prefix":"255.255.255.255/32","gateway":"255.255.255.255"},"#.len()
        }
        (PoolKind::CidrPool, Family::V6) => {
            r#"{"nodeName":"","prefix":"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128","gateway":"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},"#.len()
        }
    }
}

/// The most bytes of an assignment in a status.
fn bytes(pool: &PoolRecord, assignment: &Assignment) -> usize {
    assignment.node.len() + entry(pool.key.kind, assignment.block.range.family())
}

/// The bytes that the entries of the status may have.
fn room(pool: &PoolRecord) -> usize {
    MOST_BYTES.saturating_sub(REST + pool.metadata_bytes + pool.spec_text.len())
}

fn size(pool: &PoolRecord, assignments: &[Assignment]) -> usize {
    assignments.iter().map(|assignment| bytes(pool, assignment)).sum()
}

/// Removes assignments that `is_new` accepts from `plan` if the status has no room for them, so that their nodes are not served. Nodes
/// without one of the `claims` lose theirs first, and of these the last ones by name. Returns whether any were removed.
pub(super) fn fit(
    record: &PoolRecord,
    pool: &Pool,
    plan: &mut Plan,
    claims: &[Claim],
    is_new: &impl Fn(&Assignment) -> bool,
) -> bool {
    let (mut left, room) = (size(record, &plan.assignments), room(record));
    if left <= room {
        return false;
    }
    let had_one: HashSet<&str> = claims.iter().map(|claim| claim.node.as_str()).collect();
    let new = plan.assignments.iter().filter(|given| is_new(given));
    let mut order: Vec<(bool, Reverse<&str>, usize)> =
        new.map(|given| (had_one.contains(&*given.node), Reverse(&*given.node), bytes(record, given))).collect();
    order.sort_unstable();
    let mut dropped = BTreeSet::new();
    for (_, Reverse(node), size) in order {
        if left <= room {
            break;
        }
        left -= size;
        dropped.insert(node.to_owned());
    }
    take_out(pool, plan, &dropped);
    let is_full = !dropped.is_empty();
    plan.unserved.extend(dropped);
    plan.unserved.sort_unstable();
    is_full
}

/// Removes the assignments of these nodes from `plan`.
pub(super) fn take_out(pool: &Pool, plan: &mut Plan, nodes: &BTreeSet<String>) {
    for given in plan.assignments.extract_if(.., |given| nodes.contains(&given.node)) {
        // A static block is not free for other nodes.
        plan.blocks_free = plan.blocks_free.saturating_add(u128::from(pool.static_index(&given.node).is_none()));
        plan.capacity = plan.capacity.saturating_sub(pool.capacity(&given.block));
    }
}

/// Whether the status has room for the times of all entries of `status.releasing`.
pub(super) fn has_room_for_times(pool: &PoolRecord, assignments: &[Assignment]) -> bool {
    let releasing = assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Releasing).count();
    releasing == 0 || size(pool, assignments) + releasing * TIMES <= room(pool)
}
