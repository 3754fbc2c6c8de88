//! Which IPAMNodes are to be looked at, and which are being written. Keeps writes of one node apart in time and bounds
//! how many are under way; knows nothing of what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::timing::Backoff;

/// Writes of IPAMNodes under way at one time.
const IN_FLIGHT: usize = 48;

/// The queue. A node is in it once, however often it is pushed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeQueue {
    ready: BTreeSet<String>,
    /// Failed writes, by the time to try again.
    paused: BTreeSet<(Instant, String)>,
    /// Nodes with which nothing is wrong, by the time at which they are to be looked at.
    later: BTreeSet<(Instant, String)>,
    /// Nodes whose last write failed, with the time before which none is tried again.
    failures: BTreeMap<String, (Backoff, Instant)>,
    /// Nodes being written, and whether an IPAMNode may have gone since the write began.
    in_flight: BTreeMap<String, bool>,
}

impl NodeQueue {
    /// The node is to be looked at.
    pub(super) fn push(&mut self, node: &str) {
        if !self.ready.contains(node) {
            self.ready.insert(node.to_owned());
        }
    }

    /// The next node to look at, if there is one and a write more may be under way. Nodes being written stay in the
    /// queue until they are done.
    pub(super) fn pop(&mut self, now: Instant) -> Option<String> {
        for waiting in [&mut self.paused, &mut self.later] {
            while waiting.first().is_some_and(|(at, _)| *at <= now) {
                self.ready.extend(waiting.pop_first().map(|(_, node)| node));
            }
        }
        if self.in_flight.len() >= IN_FLIGHT {
            return None;
        }
        let waits = |node: &String| self.failures.get(node).is_some_and(|(_, until)| *until > now);
        let next = self.ready.iter().find(|node| !self.in_flight.contains_key(*node) && !waits(node)).cloned()?;
        self.ready.take(&next)
    }

    /// A write of the node begins.
    pub(super) fn begin(&mut self, node: &str) {
        self.in_flight.insert(node.to_owned(), false);
    }

    /// The node's IPAMNode has gone. An answer that comes after this may be older.
    pub(super) fn lost(&mut self, node: &str) {
        if let Some(lost) = self.in_flight.get_mut(node) {
            *lost = true;
        }
    }

    /// A list began, which may leave out what was written and deleted before it.
    pub(super) fn lost_sight(&mut self) {
        self.in_flight.values_mut().for_each(|lost| *lost = true);
    }

    /// A write of the node is done. Whether what it made may be gone already.
    pub(super) fn succeed(&mut self, node: &str) -> bool {
        self.failures.remove(node);
        self.in_flight.remove(node).unwrap_or(false)
    }

    /// Nothing is to be written of the node: its failures are forgotten.
    pub(super) fn forget(&mut self, node: &str) {
        self.failures.remove(node);
    }

    /// A write of the node failed: it is looked at again after a pause, whatever happens to it meanwhile. After a `conflict` it
    /// may be looked at before that: the event that caused it brings what to decide upon.
    pub(super) fn fail(&mut self, node: &str, conflict: bool, now: Instant) {
        self.in_flight.remove(node);
        let (backoff, until) = self.failures.entry(node.to_owned()).or_insert((Backoff::default(), now));
        let again = now + backoff.pause();
        *until = if conflict { now } else { again };
        self.paused.insert((again, node.to_owned()));
    }

    /// The node is to be looked at no later than `at`.
    pub(super) fn push_at(&mut self, node: &str, at: Instant) {
        self.later.insert((at, node.to_owned()));
    }

    /// When the next node is to be looked at that waits for its time.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let first = [&self.paused, &self.later].map(|waiting| waiting.first().map(|(at, _)| *at));
        first.into_iter().flatten().min()
    }

    /// Nodes waiting to be written, or being written.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.paused.len() + self.in_flight.len()
    }

    /// Whether nothing waits, not even for a time to come, and nothing is being written.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.later.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_node_being_written_waits_for_its_turn() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        queue.push("a");
        queue.push("a");
        assert_eq!(queue.pop(now).as_deref(), Some("a"));
        queue.begin("a");
        queue.push("a");
        assert_eq!(queue.pop(now), None);
        queue.succeed("a");
        assert_eq!(queue.pop(now).as_deref(), Some("a"));
        assert!(queue.is_empty());
    }

    #[test]
    fn no_more_writes_than_allowed_are_under_way() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        for number in 0..IN_FLIGHT + 5 {
            queue.push(&number.to_string());
        }
        while let Some(node) = queue.pop(now) {
            queue.begin(&node);
        }
        assert_eq!((queue.in_flight.len(), queue.ready.len()), (IN_FLIGHT, 5));
    }

    #[test]
    fn a_failed_write_is_tried_again_after_a_pause() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        queue.begin("a");
        queue.fail("a", false, now);
        queue.push("a");
        assert_eq!(queue.pop(now), None, "whatever happens to it");
        let wake = queue.next_wake().unwrap();
        assert!(wake > now && wake < now + Duration::from_secs(2));
        assert_eq!(queue.pop(wake).as_deref(), Some("a"));
    }

    #[test]
    fn a_node_to_be_looked_at_later_is_not_counted_as_waiting_and_comes_in_time() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        let at = now + Duration::from_mins(20);
        queue.push_at("a", at);
        queue.push_at("a", at);
        assert_eq!((queue.len(), queue.is_empty(), queue.next_wake()), (0, false, Some(at)));
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.pop(at).as_deref(), Some("a"));
        assert!(queue.is_empty());
    }
}
