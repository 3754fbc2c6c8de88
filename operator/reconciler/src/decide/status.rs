//! The status that a plan asks for, and how far it is news.

use ipam_core::PoolKind;
use ipam_core::plan::{Assignment, Claim, ClaimSource, Plan, Standing};
use ipam_crds::{AddressCounts, BlockCounts, NodeCounts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::Observation;
use super::conditions::{Verdict, merge};
use super::releases::Releases;
use super::room;
use crate::pool::{Release, StatusRecord, Summary};

/// How a status differs from the one that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// It does not.
    Nothing,
    /// In counts of addresses, and in messages that name them.
    CountsOnly,
    /// In what is said, but not in who has which block.
    Words,
    /// In who has which block.
    Blocks,
}

pub(super) fn compose(
    seen: &Observation<'_>,
    releases: &Releases<'_>,
    plan: &Plan,
    verdicts: Vec<Verdict>,
) -> StatusRecord {
    let kind = seen.pool.key.kind;
    let has_times = room::has_room_for_times(seen.pool, &plan.assignments);
    let (mut allocations, mut releasing) = (Vec::with_capacity(plan.assignments.len()), Vec::new());
    for assignment in &plan.assignments {
        let claim = recorded(kind, assignment);
        match assignment.standing {
            Standing::Serving | Standing::Outdated => allocations.push(claim),
            Standing::Departed if has_times => releasing.push(releases.record(claim)),
            Standing::Departed => releasing.push(Release { claim, since: None, node_gone_since: None }),
        }
    }
    let summary = summary(seen, plan, verdicts, allocations.len(), releasing.len());
    StatusRecord { allocations, releasing, intact: true, summary }
}

pub(super) fn news(old: &StatusRecord, new: &StatusRecord) -> News {
    if !old.intact || !same(&old.allocations, &new.allocations) || old.releasing != new.releasing {
        News::Blocks
    } else if old.summary == new.summary {
        News::Nothing
    } else if countless(&old.summary) == countless(&new.summary) {
        News::CountsOnly
    } else {
        News::Words
    }
}

/// The blocks are compared whatever their source.
fn same(old: &[Claim], new: &[Claim]) -> bool {
    let alike =
        |(old, new): (&Claim, &Claim)| (&old.node, old.range, old.gateway) == (&new.node, new.range, new.gateway);
    old.len() == new.len() && old.iter().zip(new).all(alike)
}

/// A summary without what changes with every address.
fn countless(summary: &Summary) -> Summary {
    let silent = |condition: &Condition| Condition { message: String::new(), ..condition.clone() };
    Summary {
        conditions: summary.conditions.iter().map(silent).collect(),
        addresses: summary.addresses.map(|counts| AddressCounts { used: 0, ..counts }),
        ..summary.clone()
    }
}

fn summary(seen: &Observation<'_>, plan: &Plan, verdicts: Vec<Verdict>, served: usize, departed: usize) -> Summary {
    let pool = seen.pool;
    let records = seen.ipam_nodes.all().values();
    let used = records.fold(0_u64, |sum, record| sum.saturating_add(record.used(&pool.key)));
    Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&pool.status.summary.conditions, verdicts, pool.generation, seen.now),
        nodes: Some(NodeCounts {
            // A node on an outdated block is served: it gives from that block.
            served: saturate(served),
            unserved: saturate(plan.unserved.len()),
            releasing: saturate(departed),
        }),
        blocks: Some(BlockCounts { total: saturate(plan.blocks_total), free: saturate(plan.blocks_free) }),
        addresses: Some(AddressCounts { capacity: saturate(plan.capacity), used: saturate(used) }),
    }
}

/// Counts in a status stop at the largest number that the API can say.
fn saturate<From, To: TryFrom<From> + Bounded>(count: From) -> To {
    To::try_from(count).unwrap_or(To::MOST)
}

trait Bounded {
    const MOST: Self;
}
impl Bounded for i32 {
    const MOST: Self = Self::MAX;
}
impl Bounded for i64 {
    const MOST: Self = Self::MAX;
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
