//! What is to be said about one pool, given all that is known. Pure: the same observation gives the same decision.
//!
//! Never takes away what an invalid spec gave before, never moves a condition's transition time without the status
//! having flipped, and says nothing twice: what was said stands in the status itself, so a restart repeats nothing.

mod claims;
mod conditions;

use std::collections::HashMap;
use std::hash::BuildHasher;

use ipam_core::plan::{Assignment, Claim, ClaimSource, NodeRef, Plan, Standing, Usage, plan};
use ipam_core::{Pool, PoolKind, Violation};
use ipam_crds::{AddressCounts, BlockCounts, NodeCounts};
use jiff::Timestamp;

use crate::ipam_node::IpamNodeRecord;
use crate::pool::{PoolRecord, StatusRecord, Summary};
use conditions::{Verdict, bounded_list, clipped, merge, stands};

pub use conditions::{DEGRADED, EXHAUSTED, READY};

/// Longest note that the API server takes in an event, in bytes.
const NOTE_BYTES: usize = 1024;

/// All that a decision about a pool rests on.
pub struct Observation<'a, S> {
    /// The pool.
    pub pool: &'a PoolRecord,
    /// Every node of the cluster.
    pub nodes: &'a [NodeRef<'a>],
    /// Every IPAMNode, by name.
    pub ipam_nodes: &'a HashMap<String, IpamNodeRecord, S>,
    /// Who has which block by what nodes were told since this operator leads, by node name; empty if nothing was.
    pub told: &'a [Assignment],
    /// Whether it is time to write a status in which nothing but the count of used addresses is new.
    pub counts_due: bool,
    /// The wall clock, for transition times.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Decision {
    /// The status to be written; `None` if the one that was read is right.
    pub status: Option<StatusRecord>,
    /// Who has which block, by node name; `None` if the spec is invalid and what was given before stands.
    pub assignments: Option<Vec<Assignment>>,
    /// Warnings to be published once the status is written.
    pub notes: Vec<Note>,
    /// Records that were not honoured, for the log.
    pub dropped: Vec<String>,
    /// Whether only a new count of used addresses waits for its time.
    pub counts_deferred: bool,
}

/// A Warning event about the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// `InvalidSpec`, `NoFreeRanges` or `NoFreePrefixes`.
    pub reason: &'static str,
    /// For people; short enough for the API.
    pub text: String,
}

impl Note {
    fn new(reason: &'static str, text: &str) -> Self {
        Self { reason, text: clipped(text, NOTE_BYTES).to_owned() }
    }
}

/// Decides about one pool.
pub fn decide<S: BuildHasher>(seen: &Observation<'_, S>) -> Decision {
    match &seen.pool.spec {
        Ok(pool) => serve(seen, pool),
        Err(violations) => refuse(seen, violations),
    }
}

/// The reason word for a pool of `kind` that has no block left.
pub const fn exhausted_reason(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::IpPool => "NoFreeRanges",
        PoolKind::CidrPool => "NoFreePrefixes",
    }
}

fn refuse<S>(seen: &Observation<'_, S>, violations: &[Violation]) -> Decision {
    let pool = seen.pool;
    let said: Vec<String> = violations.iter().map(Violation::to_string).collect();
    let verdict = Verdict::new(READY, false, "InvalidSpec", bounded_list(&said, "; "));
    let before = &pool.status.summary;
    if before.observed_generation == Some(pool.generation) && stands(&before.conditions, &verdict, pool.generation) {
        return Decision::default();
    }
    let note = Note::new("InvalidSpec", &verdict.message);
    let summary = Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&before.conditions, vec![verdict], pool.generation, seen.now),
        ..before.clone()
    };
    let status = StatusRecord { summary, ..pool.status.clone() };
    Decision { status: Some(status), notes: vec![note], ..Decision::default() }
}

fn serve<S: BuildHasher>(seen: &Observation<'_, S>, pool: &Pool) -> Decision {
    let key = pool.key();
    let usage = |node: &str| seen.ipam_nodes.get(node).map_or(Usage::Unknown, |record| record.usage(key));
    let (claims, mut dropped) = claims::gather(key, seen);
    let mut plan = plan(pool, seen.nodes, &claims, &usage);
    dropped.append(&mut plan.dropped);
    let verdicts = verdicts(key.kind, &plan);
    let notes = notes(seen.pool, &verdicts);
    let summary = summary(seen, &plan, verdicts);

    let before = &seen.pool.status;
    let same_blocks = before.intact && same_allocations(key.kind, &before.allocations, &plan.assignments);
    let is_right = same_blocks && before.summary == summary;
    let only_used = same_blocks && differs_in_used_only(&before.summary, &summary);
    let mut decision = Decision { counts_deferred: !is_right && only_used && !seen.counts_due, ..Decision::default() };
    if !is_right && !decision.counts_deferred {
        let allocations = plan.assignments.iter().map(|assignment| recorded(key.kind, assignment)).collect();
        decision.status = Some(StatusRecord { allocations, intact: true, summary });
        decision.notes = notes;
        // A count of used addresses is no reason to say again what was said when the blocks were decided upon.
        decision.dropped = if only_used { Vec::new() } else { dropped };
    }
    decision.assignments = Some(plan.assignments);
    decision
}

fn verdicts(kind: PoolKind, plan: &Plan) -> Vec<Verdict> {
    let named = |standing| {
        let names = plan.assignments.iter().filter(move |a| a.standing == standing).map(|a| a.node.as_str());
        names.collect::<Vec<_>>()
    };
    let (departed, outdated) = (named(Standing::Departed), named(Standing::Outdated));
    let mut ready = Vec::new();
    if plan.unserved.is_empty() && plan.assignments.len() == departed.len() {
        ready.push("no node matches nodeSelector".to_owned());
    }
    if !departed.is_empty() {
        let (count, list) = (departed.len(), bounded_list(&departed, ", "));
        ready.push(format!("nodes that are gone or no longer selected and keep their blocks: {count} ({list})"));
    }
    let exhausted = match plan.unserved.len() {
        0 => Verdict::new(EXHAUSTED, false, "AllNodesServed", String::new()),
        count => {
            let text = format!("selected nodes without a block: {count} ({})", bounded_list(&plan.unserved, ", "));
            Verdict::new(EXHAUSTED, true, exhausted_reason(kind), text)
        }
    };
    let degraded = match outdated.len() {
        0 => Verdict::new(DEGRADED, false, "AsSpecified", String::new()),
        count => {
            let text = format!(
                "{count} nodes keep a block that the spec no longer has, until its addresses are known to be unheld: {}",
                bounded_list(&outdated, ", ")
            );
            Verdict::new(DEGRADED, true, "OutdatedBlocks", text)
        }
    };
    vec![Verdict::new(READY, true, "Valid", ready.join("; ")), exhausted, degraded]
}

/// A pool that runs out is news when the nodes left out are others than the status says.
fn notes(pool: &PoolRecord, verdicts: &[Verdict]) -> Vec<Note> {
    let exhausted = verdicts.iter().filter(|verdict| verdict.kind == EXHAUSTED && verdict.holds);
    let news = exhausted.filter(|verdict| {
        !pool.status.summary.conditions.iter().any(|old| old.type_ == EXHAUSTED && old.message == verdict.message)
    });
    news.map(|verdict| Note::new(verdict.reason, &verdict.message)).collect()
}

fn summary<S: BuildHasher>(seen: &Observation<'_, S>, plan: &Plan, verdicts: Vec<Verdict>) -> Summary {
    let pool = seen.pool;
    let count = |wanted: Standing| plan.assignments.iter().filter(|assignment| assignment.standing == wanted).count();
    let departed = count(Standing::Departed);
    let used = seen.ipam_nodes.values().fold(0_u64, |sum, record| sum.saturating_add(record.used(&pool.key)));
    Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&pool.status.summary.conditions, verdicts, pool.generation, seen.now),
        nodes: Some(NodeCounts {
            // A node on an outdated block is served: it gives from that block.
            served: saturate(plan.assignments.len() - departed),
            unserved: saturate(plan.unserved.len()),
            departed: saturate(departed),
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

fn differs_in_used_only(old: &Summary, new: &Summary) -> bool {
    let (Some(was), Some(is)) = (old.addresses, new.addresses) else { return false };
    let old = Summary { addresses: Some(AddressCounts { used: is.used, ..was }), ..old.clone() };
    old == *new
}

fn same_allocations(kind: PoolKind, recorded: &[Claim], planned: &[Assignment]) -> bool {
    recorded.len() == planned.len()
        && recorded.iter().zip(planned).all(|(claim, assignment)| {
            claim.node == assignment.node
                && claim.range == assignment.block.range
                && (kind == PoolKind::IpPool || claim.gateway == assignment.block.gateway)
        })
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

#[cfg(test)]
mod tests;
