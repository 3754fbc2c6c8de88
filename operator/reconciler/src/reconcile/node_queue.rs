//! The queue of IPAMNodes: which are due for a reconcile, when, and which are being written. A node has one write at a time. The
//! queue does not know what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::timing::{Backoff, LASTING};

/// The queue. A node is in it once, however often it is pushed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeQueue {
    nodes: BTreeMap<String, Work>,
    /// The times of [`Work::later`], [`Work::again`] and [`Work::at_latest`].
    later: BTreeSet<(Instant, String)>,
    /// Nodes that were woken since [`NodeQueue::take_woken`].
    woken: BTreeSet<String>,
    /// How many nodes wait to be written, or are being written.
    active: usize,
}

/// The pending work of one node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Work {
    /// Whether the node is due for a reconcile.
    is_ready: bool,
    /// When the node is due, for another reason than a failed write.
    later: Option<Instant>,
    /// When the last write, which failed, is retried.
    again: Option<Instant>,
    /// When the node is due, unless it is woken before.
    at_latest: Option<Instant>,
    /// The writes that failed in a row.
    failures: Option<Failures>,
    /// `Some` while a write is under way: whether the IPAMNode may have been deleted since the write began.
    writing: Option<bool>,
}

/// Writes of one node that failed in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Failures {
    backoff: Backoff,
    /// Before this time no write is retried.
    until: Instant,
    /// How many were not answered with a conflict.
    errors: u32,
    /// The last of these errors.
    error: String,
}

impl Work {
    fn is_active(&self) -> bool {
        self.is_ready || self.again.is_some() || self.writing.is_some()
    }

    fn times(&self) -> [Option<Instant>; 3] {
        [self.later, self.again, self.at_latest]
    }

    /// Makes the work ready whose time has come.
    fn promote(&mut self, now: Instant) {
        for time in [&mut self.later, &mut self.again, &mut self.at_latest] {
            if time.is_some_and(|at| at <= now) {
                (*time, self.is_ready) = (None, true);
            }
        }
    }
}

/// When a node is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Now.
    Now,
    /// At this instant, unless the node is woken before.
    At(Instant),
    /// Not before the node is woken. A node that is being written waits for the end of the write.
    None,
}

impl NodeQueue {
    fn edit<T>(&mut self, node: &str, change: impl FnOnce(&mut Work) -> T) -> T {
        let work = self.nodes.entry(node.to_owned()).or_default();
        let (was_active, before) = (work.is_active(), work.times());
        let result = change(work);
        let (is_active, after) = (work.is_active(), work.times());
        self.active = self.active - usize::from(was_active) + usize::from(is_active);
        if before != after {
            for at in before.into_iter().flatten() {
                self.later.remove(&(at, node.to_owned()));
            }
            self.later.extend(after.into_iter().flatten().map(|at| (at, node.to_owned())));
        }
        if *work == Work::default() {
            self.nodes.remove(node);
        }
        result
    }

    /// Makes the node due.
    pub(super) fn push(&mut self, node: &str) {
        self.edit(node, |work| work.is_ready = true);
        self.woken.insert(node.to_owned());
    }

    /// Forgets a node that no longer exists.
    pub(super) fn remove(&mut self, node: &str) {
        self.edit(node, |work| *work = Work::default());
        self.woken.remove(node);
    }

    /// Makes the node due no later than `at`.
    pub(super) fn push_at(&mut self, node: &str, at: Instant) {
        self.edit(node, |work| work.later = Some(work.later.map_or(at, |known| known.min(at))));
        self.woken.insert(node.to_owned());
    }

    /// Makes the node due at `at`, unless it is woken before.
    pub(super) fn push_at_latest(&mut self, node: &str, at: Instant) {
        self.edit(node, |work| work.at_latest = Some(at));
        self.woken.insert(node.to_owned());
    }

    /// Returns when the node is due. After [`Turn::Now`] it is no longer due.
    pub(super) fn take(&mut self, node: &str, now: Instant) -> Turn {
        self.edit(node, |work| {
            work.promote(now);
            if work.writing.is_some() {
                return Turn::None;
            }
            let until = work.failures.as_ref().map(|failures| failures.until).filter(|until| *until > now);
            if work.is_ready && until.is_none() {
                (work.is_ready, work.at_latest) = (false, None);
                return Turn::Now;
            }
            let ready = until.filter(|_| work.is_ready);
            work.times().into_iter().chain([ready]).flatten().min().map_or(Turn::None, Turn::At)
        })
    }

    /// Wakes the nodes whose time has come.
    pub(super) fn promote(&mut self, now: Instant) {
        while let Some((_, node)) = self.later.first().filter(|(at, _)| *at <= now).cloned() {
            self.edit(&node, |work| work.promote(now));
            self.woken.insert(node);
        }
    }

    /// When the next node that waits for its time is due.
    pub(super) fn next_later(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Returns the next of the woken nodes.
    pub(super) fn take_woken(&mut self) -> Option<String> {
        self.woken.pop_first()
    }

    /// Wakes all nodes with something to do.
    pub(super) fn wake_all(&mut self) {
        self.woken.extend(self.nodes.keys().cloned());
    }

    /// Wakes the node if it has something to do.
    pub(super) fn wake_again(&mut self, node: &str) {
        if self.nodes.contains_key(node) {
            self.woken.insert(node.to_owned());
        }
    }

    /// A write of the node begins.
    pub(super) fn begin(&mut self, node: &str) {
        self.edit(node, |work| work.writing = Some(false));
    }

    /// The node's IPAMNode was deleted. An answer that arrives after this may be older than the deletion.
    pub(super) fn lost(&mut self, node: &str) {
        self.edit(node, |work| work.writing = work.writing.map(|_| true));
    }

    /// A list began. It may lack an object that was written and deleted before it.
    pub(super) fn lost_sight(&mut self) {
        self.nodes.values_mut().for_each(|work| work.writing = work.writing.map(|_| true));
    }

    /// A write of the node succeeded. Returns whether its object may be deleted already.
    pub(super) fn succeed(&mut self, node: &str) -> bool {
        self.edit(node, |work| {
            work.failures = None;
            work.writing.take().unwrap_or(false)
        })
    }

    /// Resets the failures of the node, because it needs no write.
    pub(super) fn forget(&mut self, node: &str) {
        self.edit(node, |work| work.failures = None);
    }

    /// A write of the node failed; `error` is why, unless another write was the cause. The node is due again after a pause, whatever happens
    /// meanwhile. After the write of another, its event may make the node due earlier.
    pub(super) fn fail(&mut self, node: &str, error: Option<String>, now: Instant) {
        self.edit(node, |work| {
            work.writing = None;
            let first = || Failures { backoff: Backoff::default(), until: now, errors: 0, error: String::new() };
            let failures = work.failures.get_or_insert_with(first);
            let again = now + failures.backoff.pause();
            failures.until = if error.is_some() { again } else { now };
            if let Some(error) = error {
                (failures.errors, failures.error) = (failures.errors.saturating_add(1), error);
            }
            work.again = Some(again);
        });
        self.woken.insert(node.to_owned());
    }

    /// Whether the last write of the node failed with this error.
    pub(super) fn had_error(&self, node: &str, error: &str) -> bool {
        let failures = self.nodes.get(node).and_then(|work| work.failures.as_ref());
        failures.is_some_and(|failures| failures.errors > 0 && failures.error == error)
    }

    /// The error of the last write, after [`LASTING`] errors in a row.
    pub(super) fn lasting_error(&self, node: &str) -> Option<&str> {
        let failures = self.nodes.get(node)?.failures.as_ref()?;
        (failures.errors >= LASTING).then_some(failures.error.as_str())
    }

    /// Nodes waiting to be written, or being written.
    pub(super) fn len(&self) -> usize {
        self.active
    }

    /// Whether nothing waits, not even for a time to come, and nothing is being written.
    pub(super) fn is_empty(&self) -> bool {
        self.active == 0 && self.later.is_empty()
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
        assert_eq!((queue.take_woken().as_deref(), queue.take_woken()), (Some("a"), None));
        assert_eq!((queue.take("a", now), queue.take("a", now)), (Turn::Now, Turn::None));
        queue.begin("a");
        queue.push("a");
        assert_eq!((queue.take("a", now), queue.len()), (Turn::None, 1));
        queue.succeed("a");
        assert_eq!(queue.take("a", now), Turn::Now);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_failed_write_is_tried_again_after_a_pause() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        queue.begin("a");
        queue.fail("a", Some("refused".to_owned()), now);
        queue.push("a");
        let Turn::At(wake) = queue.take("a", now) else { panic!("whatever happens to it") };
        assert!(wake > now && wake < now + Duration::from_secs(2));
        assert_eq!(queue.take("a", wake), Turn::Now);
        queue.fail("a", None, wake);
        queue.push("a");
        assert_eq!(queue.take("a", wake), Turn::Now, "after a conflict an event is reason enough");
    }

    #[test]
    fn an_error_lasts_from_the_third_in_a_row_until_a_write_succeeds() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        for (error, lasting) in
            [(Some("x"), None), (None, None), (Some("y"), None), (Some("z"), Some("z")), (None, Some("z"))]
        {
            queue.begin("a");
            queue.fail("a", error.map(str::to_owned), now);
            assert_eq!(queue.lasting_error("a"), lasting, "{error:?}");
        }
        queue.succeed("a");
        assert_eq!(queue.lasting_error("a"), None);
    }

    #[test]
    fn an_error_is_known_until_another_comes() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        queue.begin("a");
        queue.fail("a", None, now);
        assert!(!queue.had_error("a", ""));
        queue.fail("a", Some("x".to_owned()), now);
        assert!(queue.had_error("a", "x") && !queue.had_error("a", "y"));
        queue.succeed("a");
        assert!(!queue.had_error("a", "x"));
    }

    #[test]
    fn a_node_to_be_looked_at_later_is_not_counted_as_waiting_and_comes_in_time() {
        let (now, mut queue) = (Instant::now(), NodeQueue::default());
        let at = now + Duration::from_mins(20);
        queue.push_at("a", at);
        queue.push_at("a", at);
        assert_eq!((queue.len(), queue.is_empty(), queue.next_later()), (0, false, Some(at)));
        assert_eq!((queue.take_woken().as_deref(), queue.take("a", now)), (Some("a"), Turn::At(at)));
        queue.promote(now);
        assert_eq!(queue.take_woken(), None);
        queue.promote(at);
        assert_eq!((queue.take_woken().as_deref(), queue.take("a", at)), (Some("a"), Turn::Now));
        assert!(queue.is_empty());
    }
}
