//! The decision about a review: what is rejected, with which message, and what is allowed with a warning.
//!
//! Pure: a review and an [`AdmissionCache`] go in, a [`Verdict`] comes out. The rules are those of `ipam-core`, which
//! reconcile also applies. This module only decides which of them apply to a change:
//! * A write of the status, labels or finalizers is never rejected, however invalid the spec is. A write that leaves the spec
//!   unchanged is rejected only if it removes the annotation that permits an overlap.
//! * Unknown use of addresses counts against a change that removes blocks, and against no other change.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ipam_core::plan::Claim;
use ipam_core::{
    Advice, Held, Pool, PoolKey, Reason, Violation, advise, advise_annotation, advise_nodes, displaced, edit, overlap,
};

use super::cache::AdmissionCache;
use super::pool_object::ReviewedPool;
use super::review::{Operation, Review};

/// The decision about a review.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Why the request is rejected; `None` allows it.
    pub refusal: Option<Refusal>,
    /// Warnings for the user. Short, and few.
    pub warnings: Vec<String>,
}

/// Why a request is rejected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status code and reason with which the API server rejects such requests itself.
    pub status: RefusalStatus,
    /// All errors: first those of the spec itself, in the order of the fields. At least one.
    pub violations: Vec<Violation>,
    /// The errors as text for the user.
    pub message: String,
}

/// The status reasons of the API that a rejection may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalStatus {
    /// The object is invalid by itself.
    Invalid,
    /// The object conflicts with other pools, or with addresses in use.
    Forbidden,
    /// The request is invalid.
    BadRequest,
}

impl RefusalStatus {
    /// The HTTP status code.
    pub const fn code(self) -> u16 {
        match self {
            Self::Invalid => 422,
            Self::Forbidden => 403,
            Self::BadRequest => 400,
        }
    }

    /// The status reason of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Forbidden => "Forbidden",
            Self::BadRequest => "BadRequest",
        }
    }
}

/// The specs of a review, validated by themselves. This part takes the most time and needs no other objects.
#[derive(Debug)]
pub struct Parsed {
    /// The new spec; absent if it need not be validated.
    new: Option<Result<Pool, Vec<Violation>>>,
    warnings: Vec<String>,
}

impl Parsed {
    /// Parses the new spec, if it must be validated.
    pub fn of(review: &Review) -> Self {
        let judged = review.new.as_ref().filter(|new| !review.status_only && touches_spec(new, review.old.as_ref()));
        let new = judged.map(ReviewedPool::parse);
        let mut advice = match (judged, &new) {
            (Some(draft), Some(Ok(pool))) => advise(&draft.spec, pool),
            _ => Vec::new(),
        };
        if !matches!(new, Some(Err(_))) {
            advice
                .extend(annotation_changed(review).and_then(|draft| advise_annotation(draft.allow_overlap.as_deref())));
        }
        Self { new, warnings: advice.iter().map(ToString::to_string).collect() }
    }

    /// Decides about the review by its parsed specs and the cache.
    pub fn judge(self, review: &Review, known: &AdmissionCache) -> Verdict {
        let served = known.serves(&review.namespace);
        let Self { new: parsed, mut warnings } = self;
        let mut violations = Vec::new();
        if let (Operation::Delete, Some(old), true) = (review.operation, &review.old, served) {
            warnings.extend(deletion_warnings(review, old, known));
        }
        if let (Some(new), false) = (&review.new, review.status_only) {
            if served {
                violations.extend(overlap_of(review, new, known));
            }
            match &parsed {
                Some(Ok(pool)) if served => {
                    let mut advice = known.nodes().map(|nodes| advise_nodes(pool, &nodes)).unwrap_or_default();
                    if let Some(old) = &review.old {
                        let (displaced, left_out) = judge_edit(&review.key(), old, new, pool, known);
                        violations.extend(displaced);
                        advice.extend(left_out);
                    }
                    warnings.extend(advice.iter().map(ToString::to_string));
                }
                Some(Ok(_)) => warnings.push(format!(
                    "pools are served in namespace {:?} alone; nothing serves this one",
                    known.namespace()
                )),
                _ => {}
            }
        }
        // Errors of the spec itself come first.
        let mut all = parsed.and_then(Result::err).unwrap_or_default();
        all.append(&mut violations);
        Verdict { refusal: (!all.is_empty()).then(|| Refusal::of(all)), warnings }
    }
}

/// Decides about a review.
pub fn judge(review: &Review, known: &AdmissionCache) -> Verdict {
    Parsed::of(review).judge(review, known)
}

/// The new pool, if it is created, or if its spec or annotation changes.
fn annotation_changed(review: &Review) -> Option<&ReviewedPool> {
    let (new, old) = (review.new.as_ref().filter(|_| !review.status_only)?, review.old.as_ref());
    let is_other = old.is_some_and(|old| old.allow_overlap != new.allow_overlap);
    (is_other || touches_spec(new, old)).then_some(new)
}

fn touches_spec(new: &ReviewedPool, old: Option<&ReviewedPool>) -> bool {
    old.is_none_or(|old| !old.has_spec_of(new))
}

/// Overlaps with other pools that this change adds. A pool that is being deleted adds none, unless its spec changes.
fn overlap_of(review: &Review, new: &ReviewedPool, known: &AdmissionCache) -> Option<Violation> {
    let old = review.old.as_ref();
    let contender = new.contender(review.kind).filter(|_| !new.is_going || touches_spec(new, old))?;
    let before = old.and_then(|old| old.contender(review.kind));
    overlap::violation(&contender, &known.conflicts_made(before.as_ref(), &contender))
}

/// What the records of blocks say about an edit. `pool` is the new spec, parsed. Errors are about blocks that the edit would
/// move or remove while their addresses may be in use. The advice is about nodes that the edit deselects.
pub fn judge_edit(
    key: &PoolKey,
    old: &ReviewedPool,
    new: &ReviewedPool,
    pool: &Pool,
    known: &AdmissionCache,
) -> (Vec<Violation>, Option<Advice>) {
    (taken_away(key, old, new, pool, known), left_out(key, old, new, pool, known))
}

/// Errors for blocks that the change would move or remove while their addresses may be in use.
fn taken_away(
    key: &PoolKey,
    old: &ReviewedPool,
    new: &ReviewedPool,
    pool: &Pool,
    known: &AdmissionCache,
) -> Vec<Violation> {
    let stays = |record: &Record<'_>| !record.is_leaving || known.selects(pool, &record.claim.node) != Some(false);
    let claims: Vec<Claim> =
        records(key, old, known).into_iter().filter(stays).map(|record| record.claim.clone()).collect();
    let found = displaced(pool, Some(&old.spec), &new.spec, &claims, &|node| known.held(key, node));
    edit::violations(&found, Some(&old.spec), &new.spec)
}

/// A warning about nodes that lose their blocks by the change. The operator releases these blocks once their pods are gone.
fn left_out(
    key: &PoolKey,
    old: &ReviewedPool,
    new: &ReviewedPool,
    pool: &Pool,
    known: &AdmissionCache,
) -> Option<Advice> {
    let given = records(key, old, known).into_iter().filter(|record| !record.is_leaving);
    let claims: Vec<Claim> = given.map(|record| record.claim.clone()).collect();
    let is_selected = |node: &str| known.selects(pool, node) != Some(false);
    edit::left_out(&old.spec, &new.spec, &claims, &is_selected, &|node| known.held(key, node))
}

/// A block of a node, from one record.
struct Record<'a> {
    claim: &'a Claim,
    /// Whether the block is being released. If its node is not selected, no spec changes that: the block is released once it
    /// is empty. A selected node keeps the block if the spec still has it.
    is_leaving: bool,
}

/// The blocks of the pool's nodes: those in the status, and those that only IPAMNodes have.
fn records<'a>(key: &PoolKey, old: &'a ReviewedPool, known: &'a AdmissionCache) -> Vec<Record<'a>> {
    let in_status =
        old.claims.iter().map(|claim| (claim, false)).chain(old.releasing.iter().map(|claim| (claim, true)));
    let mut by_node = BTreeMap::new();
    for (claim, is_leaving) in in_status.chain(known.claims(key)) {
        // A status can name one node for thousands of ranges.
        by_node.entry((claim.node.as_str(), claim.range)).or_insert(Record { claim, is_leaving });
    }
    by_node.into_values().collect()
}

/// Most nodes that a warning names. The others are counted.
const MOST_NAMED: usize = 5;

/// The warning for the deletion of a pool: the nodes where its addresses are still in use.
fn deletion_warnings(review: &Review, old: &ReviewedPool, known: &AdmissionCache) -> Option<String> {
    let key = review.key();
    let mut nodes: Vec<&str> = records(&key, old, known).into_iter().map(|record| record.claim.node.as_str()).collect();
    nodes.dedup();
    let held: Vec<(&str, Held)> = nodes.into_iter().map(|node| (node, known.held(&key, node))).collect();
    let named = edit::holders_listed(&held, MOST_NAMED)?;
    Some(format!("addresses of this pool are still held: {named}; the pool goes once they are given back"))
}

/// Most errors that an answer lists. A spec may have thousands.
pub const VIOLATIONS_SHOWN: usize = 50;

impl Refusal {
    /// A refusal for these errors, of which there is at least one.
    pub fn of(violations: Vec<Violation>) -> Self {
        let by_others = |violation: &Violation| is_by_others(violation.reason);
        let status = if violations.iter().all(by_others) { RefusalStatus::Forbidden } else { RefusalStatus::Invalid };
        Self { status, message: message(&violations), violations }
    }
}

/// Whether the cause is other objects, and not the object itself.
const fn is_by_others(reason: Reason) -> bool {
    matches!(reason, Reason::Overlap | Reason::InUse)
}

fn message(violations: &[Violation]) -> String {
    if let [only] = violations {
        return only.to_string();
    }
    let mut text = format!("{} mistakes:", violations.len());
    for violation in violations.iter().take(VIOLATIONS_SHOWN) {
        let _ = write!(text, "\n* {violation}");
    }
    if let Some(more) = violations.len().checked_sub(VIOLATIONS_SHOWN).filter(|more| *more > 0) {
        let _ = write!(text, "\n* and {more} more");
    }
    text
}

#[cfg(test)]
mod tests;
