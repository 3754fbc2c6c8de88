//! Conditions of a pool: how an update changes them. The transition time changes only with the status.

use std::borrow::Borrow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// True while nodes are served by the spec. False with `InvalidSpec` and `EditDeferred` while blocks or gateways of an earlier spec stay in
/// use. False with `Overlap` and `Deleting` while no node is served.
pub const READY: &str = "Ready";
/// True while selected nodes are left without a block.
pub const EXHAUSTED: &str = "Exhausted";
/// True while nodes keep blocks of an earlier spec, or two nodes use one address.
pub const DEGRADED: &str = "Degraded";
/// True while blocks are being released, or pods use addresses without a block.
pub const RELEASING: &str = "Releasing";

/// True while no new block is assigned, because allocation records may be missing and agents have not reported yet.
pub const ALLOCATION_PAUSED: &str = "AllocationPaused";

/// The types of all conditions of the operator.
pub const CONDITIONS: [&str; 5] = [READY, EXHAUSTED, DEGRADED, RELEASING, ALLOCATION_PAUSED];

/// Names beyond this many bytes are only counted, so that messages stay readable. A message with one list is short enough for an event.
const LIST_BYTES: usize = 300;
/// The same for the errors of a spec.
pub(super) const ERROR_BYTES: usize = 900;

/// The new content of a condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ConditionUpdate {
    pub(super) kind: &'static str,
    pub(super) holds: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The reason and text of each problem in the message.
    pub(super) problems: Vec<(&'static str, String)>,
}

impl ConditionUpdate {
    pub(super) fn new(kind: &'static str, holds: bool, reason: &'static str, message: String) -> Self {
        let problems = if holds { vec![(reason, message.clone())] } else { Vec::new() };
        Self { kind, holds, reason, message, problems }
    }

    /// Holds while there are `problems`, each with its reason and text. The reason is the first of them, or `none`. The message has all texts
    /// and then the steps.
    pub(super) fn of(
        kind: &'static str,
        problems: Vec<(&'static str, String)>,
        none: &'static str,
        steps: &[String],
    ) -> Self {
        let texts: Vec<&str> = problems.iter().map(|(_, text)| text.as_str()).collect();
        let (message, reason) = (with_steps(&texts, steps), problems.first().map(|(reason, _)| *reason));
        Self { kind, holds: reason.is_some(), reason: reason.unwrap_or(none), message, problems }
    }

    fn status(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }
}

/// States and causes, and then the steps, if there are any.
pub(super) fn with_steps<T: Borrow<str>>(texts: &[T], steps: &[String]) -> String {
    let texts = texts.join(" ");
    if steps.is_empty() { texts } else { format!("{texts} To {}", steps.join("; to ")) }
}

/// Whether `conditions` already have the content of `update`, for this generation.
pub(super) fn stands(conditions: &[Condition], update: &ConditionUpdate, generation: i64) -> bool {
    conditions.iter().any(|old| {
        old.type_ == update.kind
            && old.status == update.status()
            && old.reason == update.reason
            && old.message == update.message
            && old.observed_generation == Some(generation)
    })
}

/// The conditions after the updates. Each update replaces the condition of its type, or comes last. Other conditions stay.
pub(super) fn merge(
    before: &[Condition],
    condition_updates: Vec<ConditionUpdate>,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    for update in condition_updates {
        let place = conditions.iter().position(|old| old.type_ == update.kind);
        let since = place
            .map(|place| &conditions[place])
            .filter(|old| old.status == update.status())
            .map_or_else(|| Time(whole_seconds(now)), |old| old.last_transition_time.clone());
        let condition = Condition {
            type_: update.kind.to_owned(),
            status: update.status().to_owned(),
            reason: update.reason.to_owned(),
            message: update.message,
            observed_generation: Some(generation),
            last_transition_time: since,
        };
        match place {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
    }
    conditions
}

/// The time in whole seconds. The API keeps seconds, so a finer time would differ from the one read back.
pub(super) fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The names joined, as many as fit; the rest is counted.
pub(super) fn bounded_list<T: AsRef<str>>(items: &[T], separator: &str) -> String {
    bounded(items, separator, LIST_BYTES)
}

/// The items joined, as many as fit into so many bytes; the rest is counted.
pub(super) fn bounded<T: AsRef<str>>(items: &[T], separator: &str, most: usize) -> String {
    let mut said: Vec<&str> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let item = clipped(item.as_ref(), most);
        bytes += separator.len() + item.len();
        if bytes > most && !said.is_empty() {
            return format!("{} and {} more", said.join(separator), items.len() - said.len());
        }
        said.push(item);
    }
    said.join(separator)
}

/// The longest beginning of `text` that has at most `bytes` bytes.
pub(super) fn clipped(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}
