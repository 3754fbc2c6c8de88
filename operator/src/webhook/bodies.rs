//! How much of all requests' bodies is in memory at a time.
//!
//! An honest body is here within milliseconds, so the one that is there for longest is the one to give up when there is no
//! room, whether it is still coming or waits for its turn. Waiting instead would let a few stalled clients stop all others. What
//! is being judged is never given up: there are few of those, and their memory would not come back any sooner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// The room for bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    state: Mutex<State>,
    room: usize,
}

#[derive(Default, Debug)]
struct State {
    /// Those that may be given up, by age, oldest first.
    coming: BTreeMap<u64, Coming>,
    /// Those that are being judged.
    judged: BTreeMap<u64, usize>,
    next: u64,
    /// Bytes of all.
    held: usize,
}

#[derive(Debug)]
struct Coming {
    bytes: usize,
    give_up: CancellationToken,
}

/// The share that a body has of the room, until dropped.
#[derive(Debug)]
pub(super) struct Share {
    bodies: Arc<Bodies>,
    id: u64,
    /// Cancelled when others need the room more.
    pub(super) give_up: CancellationToken,
}

impl Bodies {
    /// Room for so many bytes.
    pub(super) fn new(room: usize) -> Self {
        Self { state: Mutex::default(), room }
    }

    /// A body begins.
    pub(super) fn begin(self: &Arc<Self>) -> Share {
        let give_up = CancellationToken::new();
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.coming.insert(id, Coming { bytes: 0, give_up: give_up.clone() });
        Share { bodies: self.clone(), id, give_up }
    }

    /// Bytes in memory.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.state().held
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// So many more bytes came. The oldest bodies are given up until they fit, this one perhaps among them: `false` then.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        let mut state = self.bodies.state();
        while state.held + bytes > self.bodies.room {
            let Some((id, oldest)) = state.coming.pop_first() else { return false };
            state.held -= oldest.bytes;
            oldest.give_up.cancel();
            if id == self.id {
                return false;
            }
        }
        let Some(own) = state.coming.get_mut(&self.id) else { return false };
        own.bytes += bytes;
        state.held += bytes;
        true
    }

    /// The body is being judged from now on. `false` if it was given up before.
    pub(super) fn keep(&self) -> bool {
        let mut state = self.bodies.state();
        let Some(Coming { bytes, .. }) = state.coming.remove(&self.id) else { return false };
        state.judged.insert(self.id, bytes);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.bodies.state();
        let coming = state.coming.remove(&self.id).map(|own| own.bytes);
        let judged = state.judged.remove(&self.id);
        state.held -= coming.or(judged).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_body_is_given_up_when_there_is_no_room() {
        let bodies = Arc::new(Bodies::new(100));
        let (old, new) = (bodies.begin(), bodies.begin());
        assert!(old.grow(60) && new.grow(40));
        assert!(new.grow(1));
        assert!(old.give_up.is_cancelled() && !new.give_up.is_cancelled());
        assert_eq!(bodies.held(), 41);
        assert!(!old.grow(1), "what was given up takes no more room");
    }

    #[test]
    fn what_is_being_judged_keeps_its_room_until_it_is_done() {
        let bodies = Arc::new(Bodies::new(100));
        let (judged, waiting, new) = (bodies.begin(), bodies.begin(), bodies.begin());
        assert!(judged.grow(60) && judged.keep() && waiting.grow(40));
        assert!(new.grow(40), "the one that waits makes room");
        assert!(!judged.give_up.is_cancelled() && waiting.give_up.is_cancelled() && !waiting.keep());
        assert!(!new.grow(1), "nobody is left to make room");
        drop((judged, waiting, new));
        assert_eq!(bodies.held(), 0);
    }

    #[test]
    fn a_body_larger_than_the_room_gives_itself_up_and_all_room_comes_back() {
        let bodies = Arc::new(Bodies::new(100));
        let only = bodies.begin();
        assert!(only.grow(100) && !only.grow(1));
        assert!(only.give_up.is_cancelled());
        drop(only);
        drop(bodies.begin());
        assert_eq!(bodies.held(), 0);
    }
}
