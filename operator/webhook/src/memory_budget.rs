//! Limits on all requests in memory: the bytes of their bodies, and their number, each from its head until its answer is sent.
//!
//! A well-behaved client sends its body within milliseconds and reads the answer as fast. So if there is no room, the oldest
//! request is aborted, whether its body is still arriving, waits to be reviewed, or is answered. If new requests waited
//! instead, a few stalled clients could block all others. A request that is being reviewed is never aborted: there are few of
//! those, and aborting one would not free its memory any sooner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// A budget of `size` units that requests reserve.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    state: Mutex<State>,
    size: usize,
}

#[derive(Default, Debug)]
struct State {
    /// Requests that may be aborted, oldest first.
    waiting: BTreeMap<u64, Waiting>,
    /// Requests that are being reviewed.
    judged: BTreeMap<u64, usize>,
    next: u64,
    /// Units that all requests have reserved.
    held: usize,
}

#[derive(Debug)]
struct Waiting {
    takes: usize,
    give_up: CancellationToken,
}

/// A request's share of the budget. Dropping it releases the share.
#[derive(Debug)]
pub(super) struct Reservation {
    room: Arc<MemoryBudget>,
    id: u64,
}

impl MemoryBudget {
    /// A budget of this size.
    pub(super) fn new(size: usize) -> Self {
        Self { state: Mutex::default(), size }
    }

    /// Registers a request, which reserves nothing yet. `give_up` is cancelled when the request is aborted to make room.
    pub(super) fn begin(self: &Arc<Self>, give_up: CancellationToken) -> Reservation {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, Waiting { takes: 0, give_up });
        Reservation { room: self.clone(), id }
    }

    /// The units reserved.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.state().held
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Reserves `more` units, and aborts the oldest requests until they fit. Returns `false` if this request is itself
    /// aborted, or if no room can be made.
    pub(super) fn grow(&self, more: usize) -> bool {
        let mut state = self.room.state();
        while state.held + more > self.room.size {
            let Some((id, oldest)) = state.waiting.pop_first() else { return false };
            state.held -= oldest.takes;
            oldest.give_up.cancel();
            if id == self.id {
                return false;
            }
        }
        let Some(own) = state.waiting.get_mut(&self.id) else { return false };
        own.takes += more;
        state.held += more;
        true
    }

    /// Marks the request as being reviewed. Returns `false` if it was aborted before.
    pub(super) fn keep(&self) -> bool {
        let mut state = self.room.state();
        let Some(Waiting { takes, .. }) = state.waiting.remove(&self.id) else { return false };
        state.judged.insert(self.id, takes);
        true
    }

    /// Marks the request as answered, with its answer still to be sent. `give_up` replaces the previous token. Returns
    /// `false` if the request was already aborted.
    pub(super) fn wait_again(&self, give_up: CancellationToken) -> bool {
        let mut state = self.room.state();
        let judged = state.judged.remove(&self.id);
        let takes = judged.or_else(|| state.waiting.remove(&self.id).map(|own| own.takes));
        takes.map(|takes| state.waiting.insert(self.id, Waiting { takes, give_up })).is_some()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.room.state();
        let waiting = state.waiting.remove(&self.id).map(|own| own.takes);
        let judged = state.judged.remove(&self.id);
        state.held -= waiting.or(judged).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(room: &Arc<MemoryBudget>) -> (Reservation, CancellationToken) {
        let give_up = CancellationToken::new();
        (room.begin(give_up.clone()), give_up)
    }

    #[test]
    fn the_oldest_is_given_up_when_there_is_no_room() {
        let room = Arc::new(MemoryBudget::new(100));
        let ((old, of_old), (new, of_new)) = (begin(&room), begin(&room));
        assert!(old.grow(60) && new.grow(40));
        assert!(new.grow(1));
        assert!(of_old.is_cancelled() && !of_new.is_cancelled());
        assert_eq!(room.held(), 41);
        assert!(!old.grow(1), "what was given up takes no more room");
    }

    #[test]
    fn what_is_being_judged_keeps_its_room_until_it_is_done() {
        let room = Arc::new(MemoryBudget::new(100));
        let ((judged, of_judged), (waiting, of_waiting), (new, _)) = (begin(&room), begin(&room), begin(&room));
        assert!(judged.grow(60) && judged.keep() && waiting.grow(40));
        assert!(new.grow(40), "the one that waits makes room");
        assert!(!of_judged.is_cancelled() && of_waiting.is_cancelled() && !waiting.keep());
        assert!(!new.grow(1), "nobody is left to make room");
        drop((judged, waiting, new));
        assert_eq!(room.held(), 0);
    }

    #[test]
    fn one_that_needs_more_than_there_is_gives_itself_up_and_all_room_comes_back() {
        let room = Arc::new(MemoryBudget::new(100));
        let (only, of_only) = begin(&room);
        assert!(only.grow(100) && !only.grow(1));
        assert!(of_only.is_cancelled());
        drop(only);
        drop(begin(&room));
        assert_eq!(room.held(), 0);
    }

    #[test]
    fn an_answer_that_is_not_taken_is_as_old_as_its_request() {
        let room = Arc::new(MemoryBudget::new(2));
        let ((answered, of_request), (other, of_other)) = (begin(&room), begin(&room));
        let of_answer = CancellationToken::new();
        assert!(answered.grow(1) && answered.keep() && other.grow(1));
        assert!(answered.wait_again(of_answer.clone()));
        let (new, _) = begin(&room);
        assert!(new.grow(1) && of_answer.is_cancelled() && !of_request.is_cancelled() && !of_other.is_cancelled());
        assert!(!answered.wait_again(CancellationToken::new()), "it was given up before");
        drop((answered, other, new));
        assert_eq!(room.held(), 0);
    }
}
