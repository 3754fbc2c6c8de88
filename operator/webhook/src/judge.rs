//! The decision about a review: what is refused, in which words, and what is let through with a warning.
//!
//! Pure: a review and what is known go in, a verdict comes out. The rules are `ipam-core`'s, the same that reconcile goes by; what
//! is decided here is only which of them a change may be held to:
//! * Whoever does not touch the spec is never refused, however bad the spec may be: status, labels, finalizers.
//! * What is not known counts against a change that takes blocks away, and never against anything else.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ipam_core::plan::Claim;
use ipam_core::{
    Advice, Held, Pool, Reason, Violation, advise, advise_annotation, advise_nodes, displaced, edit, overlap,
};

use super::draft::Draft;
use super::known::Known;
use super::review::{Operation, Review};

/// What is answered.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Why not; `None` to let it through.
    pub refusal: Option<Refusal>,
    /// What people are told besides. Short, and few.
    pub warnings: Vec<String>,
}

/// Why something is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The code and word with which the API server refuses such things itself.
    pub status: RefusalStatus,
    /// Every mistake, in the order of the fields; none if the review was not for us.
    pub violations: Vec<Violation>,
    /// The same for people.
    pub message: String,
}

/// The kinds of refusals that the API has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalStatus {
    /// The object can never be right.
    Invalid,
    /// The object would be right at another time or in other company.
    Forbidden,
    /// The request makes no sense.
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

    /// The API's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Forbidden => "Forbidden",
            Self::BadRequest => "BadRequest",
        }
    }
}

/// The specs of a review, judged by themselves: the part that takes time and needs nothing else.
#[derive(Debug)]
pub struct Parsed {
    /// Of the new spec; absent if it is not to be judged.
    new: Option<Result<Pool, Vec<Violation>>>,
    warnings: Vec<String>,
}

impl Parsed {
    /// Reads the new spec, if it is to be judged.
    pub fn of(review: &Review) -> Self {
        let judged = review.new.as_ref().filter(|new| !review.status_only && touches_spec(new, review.old.as_ref()));
        let new = judged.map(Draft::parse);
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

    /// The verdict.
    pub fn judge(self, review: &Review, known: &Known) -> Verdict {
        let served = known.serves(&review.namespace);
        let Self { new: parsed, mut warnings } = self;
        let mut violations = Vec::new();
        if let (Operation::Delete, Some(old), true) = (review.operation, &review.old, served) {
            warnings.extend(farewell(review, old, known));
        }
        if let (Some(new), false) = (&review.new, review.status_only) {
            if served {
                violations.extend(overlap_of(review, new, known));
            }
            match &parsed {
                Some(Ok(pool)) if served => {
                    violations.extend(taken_away(review, new, pool, known));
                    let mut advice = known.nodes().map(|nodes| advise_nodes(pool, &nodes)).unwrap_or_default();
                    advice.extend(left_out(review, new, pool, known));
                    warnings.extend(advice.iter().map(ToString::to_string));
                }
                Some(Ok(_)) => warnings.push(format!(
                    "pools are served in namespace {:?} alone; nothing serves this one",
                    known.namespace()
                )),
                _ => {}
            }
        }
        // What is wrong with the spec itself comes first.
        let mut all = parsed.and_then(Result::err).unwrap_or_default();
        all.append(&mut violations);
        Verdict { refusal: (!all.is_empty()).then(|| Refusal::of(all)), warnings }
    }
}

/// Judges a review.
pub fn judge(review: &Review, known: &Known) -> Verdict {
    Parsed::of(review).judge(review, known)
}

/// The new pool, if it is new or comes with another spec or annotation.
fn annotation_changed(review: &Review) -> Option<&Draft> {
    let (new, old) = (review.new.as_ref().filter(|_| !review.status_only)?, review.old.as_ref());
    let is_other = old.is_some_and(|old| old.allow_overlap != new.allow_overlap);
    (is_other || touches_spec(new, old)).then_some(new)
}

fn touches_spec(new: &Draft, old: Option<&Draft>) -> bool {
    old.is_none_or(|old| !old.has_spec_of(new))
}

/// Other pools with the same addresses, as far as this change brings that about. One that goes away serves nobody anew.
fn overlap_of(review: &Review, new: &Draft, known: &Known) -> Option<Violation> {
    let old = review.old.as_ref();
    let contender = new.contender(review.kind).filter(|_| !new.is_going || touches_spec(new, old))?;
    let before = old.and_then(|old| old.contender(review.kind));
    overlap::violation(&contender, &known.conflicts_made(before.as_ref(), &contender))
}

/// Blocks that the change would move or drop while their addresses may be held.
fn taken_away(review: &Review, new: &Draft, pool: &Pool, known: &Known) -> Vec<Violation> {
    let Some(old) = &review.old else { return Vec::new() };
    let key = review.key();
    let stays = |record: &Record<'_>| !record.is_leaving || known.selects(pool, &record.claim.node) != Some(false);
    let claims: Vec<Claim> =
        records(review, old, known).into_iter().filter(stays).map(|record| record.claim.clone()).collect();
    let found = displaced(pool, Some(&old.spec), &new.spec, &claims, &|node| known.held(&key, node));
    edit::violations(&found, Some(&old.spec), &new.spec)
}

/// Nodes that the change leaves without their blocks, which are taken back once their pods are gone.
fn left_out(review: &Review, new: &Draft, pool: &Pool, known: &Known) -> Option<Advice> {
    let (old, key) = (review.old.as_ref()?, review.key());
    let given = records(review, old, known).into_iter().filter(|record| !record.is_leaving);
    let claims: Vec<Claim> = given.map(|record| record.claim.clone()).collect();
    let is_selected = |node: &str| known.selects(pool, node) != Some(false);
    edit::left_out(&old.spec, &new.spec, &claims, &is_selected, &|node| known.held(&key, node))
}

/// A record of who has which block.
struct Record<'a> {
    claim: &'a Claim,
    /// Whether the block is being taken back. While its node is not selected no spec changes that: it goes once it is empty.
    /// A node that is selected keeps it, if the spec has it.
    is_leaving: bool,
}

/// Who has which block: what the status says, and what the IPAMNodes say besides.
fn records<'a>(review: &Review, old: &'a Draft, known: &'a Known) -> Vec<Record<'a>> {
    let in_status =
        old.claims.iter().map(|claim| (claim, false)).chain(old.releasing.iter().map(|claim| (claim, true)));
    let mut by_node = BTreeMap::new();
    for (claim, is_leaving) in in_status.chain(known.claims(&review.key())) {
        // A status can name one node for thousands of ranges.
        by_node.entry((claim.node.as_str(), claim.range)).or_insert(Record { claim, is_leaving });
    }
    by_node.into_values().collect()
}

/// Nodes that a warning names; the rest is counted.
const MOST_NAMED: usize = 5;

/// What one who deletes a pool is told: who still holds addresses of it.
fn farewell(review: &Review, old: &Draft, known: &Known) -> Option<String> {
    let key = review.key();
    let mut nodes: Vec<&str> =
        records(review, old, known).into_iter().map(|record| record.claim.node.as_str()).collect();
    nodes.dedup();
    let held: Vec<(&str, Held)> = nodes.into_iter().map(|node| (node, known.held(&key, node))).collect();
    let named = edit::holders_listed(&held, MOST_NAMED)?;
    Some(format!("addresses of this pool are still held: {named}; the pool goes once they are given back"))
}

/// Mistakes that are spelled out; of a spec with thousands the first ones tell enough.
pub const VIOLATIONS_SHOWN: usize = 50;

impl Refusal {
    /// A refusal for these mistakes, of which there is at least one.
    pub fn of(violations: Vec<Violation>) -> Self {
        let by_others = |violation: &Violation| is_by_others(violation.reason);
        let status = if violations.iter().all(by_others) { RefusalStatus::Forbidden } else { RefusalStatus::Invalid };
        Self { status, message: message(&violations), violations }
    }
}

/// Whether the mistake lies not in the object but in what else there is.
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
