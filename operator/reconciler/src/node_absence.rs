//! How long this leader has seen Nodes missing. Until that is long enough, time releases no block.
//!
//! The time in a status may be from an earlier leader. Since then the Node may have been back while no leader watched, and its agent may
//! have allocated addresses. So each leader measures absences itself, by the monotonic clock. It starts when it leads and all its lists are
//! in sync. It starts again when a watch lists again, because a list does not show which Nodes came and went before it.

use std::time::{Duration, Instant};

use crate::cluster_cache::Map;

/// How long a leader must have seen a Node missing without a break; the whole grace, if that is shorter. A kubelet that can reach the API
/// server registers its Node within seconds of its start. Minutes leave time for an upgrade of the kubelet.
pub const OBSERVED: Duration = Duration::from_mins(5);

/// Below this number of names, expired ones are not looked for.
const FEW: usize = 1024;

/// Since when this leader misses no event of a Node, and which Nodes went since.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeAbsences {
    /// Since when this leader misses no event of a Node.
    in_sight: Option<Instant>,
    /// Nodes that went since then, and when each went.
    gone: Map<String, Instant>,
    /// Number of names at which expired ones are dropped: those of Nodes that went too long ago to matter.
    full: usize,
}

impl NodeAbsences {
    /// This leader misses no event of a Node from now on, or already from before.
    pub fn resume(&mut self, now: Instant) {
        self.in_sight.get_or_insert(now);
    }

    /// Events of Nodes may be missed. Forgets what was seen before.
    pub fn reset(&mut self) {
        if self.in_sight.is_some() {
            tracing::info!(
                "the times for which Nodes were seen missing start again: some may have come and gone unseen"
            );
            *self = Self::default();
        }
    }

    /// The Node is gone. The time of that matters until both `grace` and [`OBSERVED`] are over.
    pub fn goes(&mut self, node: &str, now: Instant, grace: Option<Duration>) {
        let (Some(grace), Some(_)) = (grace, self.in_sight) else { return };
        if self.gone.len() >= self.full.max(FEW) {
            let kept = grace.max(OBSERVED);
            self.gone.retain(|_, went| now.saturating_duration_since(*went) <= kept);
            self.full = 2 * self.gone.len();
        }
        self.gone.insert(node.to_owned(), now);
    }

    /// The Node exists.
    pub fn comes(&mut self, node: &str) {
        self.gone.remove(node);
    }

    /// How long ago this leader saw the missing Node go. `None` if the Node has not existed since this leader misses no event, or if it
    /// went longer ago than the grace.
    pub fn went_before(&self, node: &str, now: Instant) -> Option<Duration> {
        self.gone.get(node).map(|went| now.saturating_duration_since(*went))
    }

    /// For how long this leader has seen that the Node is missing.
    pub fn missing_for(&self, node: &str, now: Instant) -> Duration {
        let since = self.gone.get(node).copied().or(self.in_sight);
        since.map(|since| now.saturating_duration_since(since)).unwrap_or_default()
    }

    /// When this leader will have seen the Node missing for long enough to release its blocks after `grace`, if the Node stays missing.
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
        let (start, mut absences) = (Instant::now(), NodeAbsences::default());
        assert_eq!(absences.observed_at("n", HOUR, start), start + OBSERVED, "nobody looks: never");
        absences.resume(start);
        absences.resume(start + HOUR);
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
        absences.reset();
        absences.resume(start + HOUR * 3);
        assert_eq!(absences.observed_at("n", HOUR, start + HOUR * 3), start + HOUR * 3 + OBSERVED);
    }

    #[test]
    fn those_that_went_long_ago_are_forgotten_and_count_as_missing_all_the_same() {
        let (start, mut absences) = (Instant::now(), NodeAbsences::default());
        absences.resume(start);
        for number in 0..10 * FEW {
            let now = start + Duration::from_mins(u64::try_from(number).unwrap());
            absences.goes(&number.to_string(), now, Some(HOUR));
        }
        assert!(absences.gone.len() <= FEW + 61, "{} names", absences.gone.len());
        let now = start + Duration::from_hours(1000);
        assert!(absences.observed_at("0", HOUR, now) < now && absences.went_before("0", now).is_none());
    }
}
