//! The status for a plan, and how it differs from the previous one.

use ipam_core::PoolKind;
use ipam_core::plan::{Assignment, BlockPhase, Claim, ClaimSource, Plan};
use ipam_crds::{AddressCounts, BlockCounts, NodeCounts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::DecisionInput;
use super::condition_merge::{ConditionUpdate, merge};
use super::releases::Releases;
use super::status_size;
use crate::pool::{Release, StatusRecord, Summary};

/// How a status differs from the one that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StatusChange {
    /// It does not differ.
    Nothing,
    /// Only in messages, in the number of addresses in use, and in the number of blocks that are free of them.
    CountsOnly,
    /// In the summary, but not in which node has which block.
    Words,
    /// In which node has which block, or the previous status is not intact.
    Blocks,
}

pub(super) fn compose(
    seen: &DecisionInput<'_>,
    releases: &Releases<'_>,
    plan: &Plan,
    condition_updates: Vec<ConditionUpdate>,
) -> StatusRecord {
    let kind = seen.pool.key.kind;
    let has_times = status_size::has_room_for_times(seen.pool, &plan.assignments);
    let (mut allocations, mut releasing) = (Vec::with_capacity(plan.assignments.len()), Vec::new());
    for assignment in &plan.assignments {
        let claim = recorded(kind, assignment);
        match assignment.phase {
            BlockPhase::Active | BlockPhase::Stale => allocations.push(claim),
            BlockPhase::Releasing if has_times => releasing.push(releases.record(claim)),
            BlockPhase::Releasing => releasing.push(Release { claim, since: None, node_gone_since: None }),
        }
    }
    let summary = summary(seen, plan, condition_updates, allocations.len(), releasing.len());
    StatusRecord { allocations, releasing, intact: true, summary }
}

pub(super) fn news(old: &StatusRecord, new: &StatusRecord) -> StatusChange {
    if !old.intact || !same(&old.allocations, &new.allocations) || old.releasing != new.releasing {
        StatusChange::Blocks
    } else if old.summary == new.summary {
        StatusChange::Nothing
    } else if countless(&old.summary) == countless(&new.summary) {
        StatusChange::CountsOnly
    } else {
        StatusChange::Words
    }
}

/// Whether both have the same blocks, whatever their source.
fn same(old: &[Claim], new: &[Claim]) -> bool {
    let alike =
        |(old, new): (&Claim, &Claim)| (&old.node, old.range, old.gateway) == (&new.node, new.range, new.gateway);
    old.len() == new.len() && old.iter().zip(new).all(alike)
}

/// A summary without what addresses in use change: messages, their number, and the number of blocks that are free of them.
fn countless(summary: &Summary) -> Summary {
    let silent = |condition: &Condition| Condition { message: String::new(), ..condition.clone() };
    Summary {
        conditions: summary.conditions.iter().map(silent).collect(),
        addresses: summary.addresses.map(|counts| AddressCounts { used: 0, ..counts }),
        blocks: summary.blocks.map(|counts| BlockCounts { free: 0, ..counts }),
        ..summary.clone()
    }
}

fn summary(
    seen: &DecisionInput<'_>,
    plan: &Plan,
    condition_updates: Vec<ConditionUpdate>,
    served: usize,
    departed: usize,
) -> Summary {
    let pool = seen.pool;
    let records = seen.ipam_nodes.all().values();
    let used = records.fold(0_u64, |sum, record| sum.saturating_add(record.used(&pool.key)));
    Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&pool.status.summary.conditions, condition_updates, pool.generation, seen.now),
        nodes: Some(NodeCounts {
            // A node with a Stale block is served: it allocates from that block.
            served: nodes(served),
            unserved: nodes(plan.unserved.len()),
            releasing: nodes(departed),
        }),
        blocks: Some(BlockCounts { total: large(plan.blocks_total), free: large(plan.blocks_free) }),
        addresses: Some(AddressCounts { capacity: large(plan.capacity), used: large(used.into()) }),
    }
}

/// A count of nodes, at most the largest number of the API.
fn nodes(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A count of blocks or addresses, at most the largest number of the API.
fn large(count: u128) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// An assignment as a status records it. The gateway of an IPPool's block is the pool's and is not recorded.
fn recorded(kind: PoolKind, assignment: &Assignment) -> Claim {
    Claim {
        node: assignment.node.clone(),
        range: assignment.block.range,
        gateway: assignment.block.gateway.filter(|_| kind == PoolKind::CidrPool),
        source: ClaimSource::Status,
    }
}
