//! How many blocks the status of a pool has room for.
//!
//! etcd takes no object of more than 1.5 MiB. A status that is too large could not be written at all, not even to release a block. So a
//! pool assigns no new block beyond [`MOST_BYTES`], and releasing one never makes a status larger than that: entries of
//! `status.releasing` have no times then.

use ipam_core::plan::{Assignment, Plan, Standing};
use ipam_core::{Family, PoolKind};

use crate::pool::PoolRecord;

/// Bytes of an object up to which blocks are assigned. 15,000 nodes with short names and IPv4 addresses have 1.2 MB.
pub(super) const MOST_BYTES: usize = 1_400_000;
/// Bytes of conditions and counts at most, and of names of fields. The annotation `force-release` can grow by 128 KiB later, for which there
/// is room up to what etcd takes.
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

/// The bytes of an assignment in a status, at most.
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

/// Takes the assignments that `is_new` accepts out of `plan` for which the status has no room, the last ones first. Their nodes are not
/// served then. Returns whether there were some.
pub(super) fn fit(pool: &PoolRecord, plan: &mut Plan, is_new: impl Fn(&Assignment) -> bool) -> bool {
    let (mut left, room) = (size(pool, &plan.assignments), room(pool));
    if left <= room {
        return false;
    }
    let before = plan.assignments.len();
    let mut kept = Vec::with_capacity(plan.assignments.len());
    while let Some(assignment) = plan.assignments.pop() {
        if left > room && is_new(&assignment) {
            left -= bytes(pool, &assignment);
            plan.blocks_free = plan.blocks_free.saturating_add(1);
            let spec = pool.spec.as_ref().ok();
            let capacity = spec.map_or(0, |spec| spec.capacity(&assignment.block));
            plan.capacity = plan.capacity.saturating_sub(capacity);
            plan.unserved.push(assignment.node);
        } else {
            kept.push(assignment);
        }
    }
    kept.reverse();
    plan.assignments = kept;
    plan.unserved.sort_unstable();
    plan.assignments.len() < before
}

/// Whether the status has room for the times of all entries of `status.releasing`.
pub(super) fn has_room_for_times(pool: &PoolRecord, assignments: &[Assignment]) -> bool {
    let releasing = assignments.iter().filter(|assignment| assignment.standing == Standing::Departed).count();
    releasing == 0 || size(pool, assignments) + releasing * TIMES <= room(pool)
}
