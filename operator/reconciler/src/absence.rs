//! How long Nodes are missing by what this process has itself seen: before that is long enough, no block is let go of by time.
//!
//! The moment that a status records was written by whoever led then. Since then the Node may have been back while nobody looked,
//! and its agent may have given addresses. So one who leads counts for itself, by the clock that nobody sets: never from before it
//! led with all it knows in sync, and never across a list that was begun anew, which does not tell who came and went before it.

use std::time::{Duration, Instant};

use crate::index::Map;

/// For this long, or for the whole grace if that is shorter, a leader must have seen a Node missing without a break. A kubelet
/// that can reach the API server registers its Node within seconds of its start; minutes leave room for one that is upgraded.
pub const OBSERVED: Duration = Duration::from_mins(5);

/// Fewer names than this are not worth a look for those that are no longer needed.
const FEW: usize = 1024;

/// Since when Nodes are in sight, and which of them were seen to go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Absences {
    /// Since when nothing that happens to a Node is missed.
    in_sight: Option<Instant>,
    /// Nodes that went since then, and when.
    gone: Map<String, Instant>,
    /// Number of names at which those that went too long ago to matter are dropped.
    full: usize,
}

impl Absences {
    /// From now on nothing that happens to a Node is missed, if that was not so before.
    pub fn keep_sight(&mut self, now: Instant) {
        self.in_sight.get_or_insert(now);
    }

    /// What happens to Nodes may be missed: what was seen before counts no more.
    pub fn lose_sight(&mut self) {
        if self.in_sight.is_some() {
            *self = Self::default();
        }
    }

    /// The Node goes. After `grace` it no longer matters when that was.
    pub fn goes(&mut self, node: &str, now: Instant, grace: Option<Duration>) {
        let (Some(grace), Some(_)) = (grace, self.in_sight) else { return };
        if self.gone.len() >= self.full.max(FEW) {
            let kept = grace.max(OBSERVED);
            self.gone.retain(|_, went| now.saturating_duration_since(*went) <= kept);
            self.full = 2 * self.gone.len();
        }
        self.gone.insert(node.to_owned(), now);
    }

    /// The Node is there.
    pub fn comes(&mut self, node: &str) {
        self.gone.remove(node);
    }

    /// How long ago the Node, which is missing, was seen to go; `None` if it was never there since all were in sight, or that was
    /// longer ago than the grace.
    pub fn went_before(&self, node: &str, now: Instant) -> Option<Duration> {
        self.gone.get(node).map(|went| now.saturating_duration_since(*went))
    }

    /// For how long the Node, which is missing, was seen missing.
    pub fn missing_for(&self, node: &str, now: Instant) -> Duration {
        let since = self.gone.get(node).copied().or(self.in_sight);
        since.map(|since| now.saturating_duration_since(since)).unwrap_or_default()
    }

    /// When the Node, if it stays missing, will have been seen missing for long enough to let go of its blocks after `grace`.
    pub fn observed_at(&self, node: &str, grace: Duration, now: Instant) -> Instant {
        let since = self.gone.get(node).copied().or(self.in_sight);
        since.unwrap_or(now) + grace.min(OBSERVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_node_is_missing_for_as_long_as_it_was_seen_to_be_and_no_longer() {
        let (start, mut absences) = (Instant::now(), Absences::default());
        assert_eq!(absences.observed_at("n", HOUR, start), start + OBSERVED, "nobody looks: never");
        absences.keep_sight(start);
        absences.keep_sight(start + HOUR);
        assert_eq!(absences.observed_at("n", HOUR, start + HOUR), start + OBSERVED);
        assert_eq!(absences.observed_at("n", Duration::from_secs(9), start), start + Duration::from_secs(9));
        assert_eq!(absences.missing_for("n", start + HOUR), HOUR, "it was never there");
        absences.goes("n", start + HOUR, Some(HOUR));
        assert_eq!(absences.observed_at("n", HOUR, start + HOUR), start + HOUR + OBSERVED, "it was there until then");
        assert_eq!(absences.went_before("n", start + HOUR * 2), Some(HOUR));
        assert_eq!(absences.missing_for("n", start + HOUR * 3), HOUR * 2);
        absences.comes("n");
        absences.goes("n", start + HOUR * 2, Some(HOUR));
        assert_eq!(absences.observed_at("n", HOUR, start + HOUR * 2), start + HOUR * 2 + OBSERVED);
        absences.lose_sight();
        absences.keep_sight(start + HOUR * 3);
        assert_eq!(absences.observed_at("n", HOUR, start + HOUR * 3), start + HOUR * 3 + OBSERVED);
    }

    #[test]
    fn those_that_went_long_ago_are_forgotten_and_count_as_missing_all_the_same() {
        let (start, mut absences) = (Instant::now(), Absences::default());
        absences.keep_sight(start);
        for number in 0..10 * FEW {
            let now = start + Duration::from_mins(u64::try_from(number).unwrap());
            absences.goes(&number.to_string(), now, Some(HOUR));
        }
        assert!(absences.gone.len() <= FEW + 61, "{} names", absences.gone.len());
        let now = start + Duration::from_hours(1000);
        assert!(absences.observed_at("0", HOUR, now) < now && absences.went_before("0", now).is_none());
    }
}
