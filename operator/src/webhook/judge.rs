//! The decision about a review: what is refused, in which words, and what is let through with a warning.
//!
//! Pure: a review and what is known go in, a verdict comes out. The rules are `ipam-core`'s, the same that reconcile goes by; what
//! is decided here is only which of them a change may be held to:
//! * Whoever does not touch the spec is never refused, however bad the spec may be: status, labels, finalizers.
//! * What is not known counts against a change that takes blocks away, and never against anything else.

use ipam_core::{Pool, Reason, Violation};

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
    new: Option<Result<Pool, Vec<Violation>>>,
}

impl Parsed {
    /// Reads the new spec, if it is to be judged.
    pub fn of(review: &Review) -> Self {
        let judged = review.new.as_ref().filter(|new| !review.status_only && touches_spec(new, review.old.as_ref()));
        Self { new: judged.map(parse) }
    }

    /// The verdict.
    pub fn judge(self, review: &Review, known: &Known) -> Verdict {
        let _ = (review.operation == Operation::Delete, known);
        match self.new {
            Some(Err(violations)) => Verdict { refusal: Some(Refusal::of(violations)), warnings: Vec::new() },
            _ => Verdict::default(),
        }
    }
}

/// Judges a review.
pub fn judge(review: &Review, known: &Known) -> Verdict {
    Parsed::of(review).judge(review, known)
}

fn touches_spec(new: &Draft, old: Option<&Draft>) -> bool {
    old.is_none_or(|old| old.spec != new.spec)
}

fn parse(draft: &Draft) -> Result<Pool, Vec<Violation>> {
    let spec = draft.spec.as_ref().map_err(|violation| vec![violation.clone()])?;
    Pool::parse(&draft.name, spec)
}

/// Mistakes that are spelled out; of a spec with thousands the first ones tell enough.
pub const VIOLATIONS_SHOWN: usize = 50;

impl Refusal {
    /// A refusal for these mistakes, of which there is at least one.
    pub fn of(violations: Vec<Violation>) -> Self {
        let by_others = |violation: &Violation| is_by_others(violation.reason);
        let status =
            if violations.iter().all(by_others) { RefusalStatus::Forbidden } else { RefusalStatus::Invalid };
        Self { status, message: message(&violations), violations }
    }
}

/// Whether the mistake lies not in the object but in what else there is.
const fn is_by_others(_reason: Reason) -> bool {
    false
}

fn message(violations: &[Violation]) -> String {
    if let [only] = violations {
        return only.to_string();
    }
    let mut text = format!("{} mistakes:", violations.len());
    for violation in violations.iter().take(VIOLATIONS_SHOWN) {
        text.push_str(&format!("\n* {violation}"));
    }
    if let Some(more) = violations.len().checked_sub(VIOLATIONS_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("\n* and {more} more"));
    }
    text
}
