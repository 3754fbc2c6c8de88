//! Conditions of a pool: how a verdict becomes one, and when its transition time moves (only when the status flips).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// True while nodes are served by the spec. False: `InvalidSpec` and `EditDeferred` while what was given before stands (of
/// all nodes, or of those named), `Overlap` and `Deleting` while nobody is served.
pub const READY: &str = "Ready";
/// True while selected nodes are left without a block.
pub const EXHAUSTED: &str = "Exhausted";
/// True while nodes keep blocks that the spec no longer has.
pub const DEGRADED: &str = "Degraded";
/// True while blocks are being taken back from nodes that may still hold addresses of them.
pub const RELEASING: &str = "Releasing";

/// All of them.
pub const CONDITIONS: [&str; 4] = [READY, EXHAUSTED, DEGRADED, RELEASING];

/// Names beyond this many bytes are only counted, so that messages stay readable. A message with two lists is short enough for an event.
const LIST_BYTES: usize = 300;
/// The same for the errors of a spec.
pub(super) const ERROR_BYTES: usize = 900;

/// What a condition is to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) kind: &'static str,
    pub(super) holds: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Verdict {
    pub(super) fn new(kind: &'static str, holds: bool, reason: &'static str, message: String) -> Self {
        Self { kind, holds, reason, message }
    }

    fn status(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }
}

/// Whether `conditions` say already what `verdict` says, about this generation.
pub(super) fn stands(conditions: &[Condition], verdict: &Verdict, generation: i64) -> bool {
    conditions.iter().any(|old| {
        old.type_ == verdict.kind
            && old.status == verdict.status()
            && old.reason == verdict.reason
            && old.message == verdict.message
            && old.observed_generation == Some(generation)
    })
}

/// The conditions with the verdicts in them: each in the place of its forerunner, new ones at the end, others untouched.
pub(super) fn merge(before: &[Condition], verdicts: Vec<Verdict>, generation: i64, now: Timestamp) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    for verdict in verdicts {
        let place = conditions.iter().position(|old| old.type_ == verdict.kind);
        let since = place
            .map(|place| &conditions[place])
            .filter(|old| old.status == verdict.status())
            .map_or_else(|| Time(whole_seconds(now)), |old| old.last_transition_time.clone());
        let condition = Condition {
            type_: verdict.kind.to_owned(),
            status: verdict.status().to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message,
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

/// The API keeps seconds; a finer time would come back changed and look like news.
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
