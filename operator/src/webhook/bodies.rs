//! How much of all requests' bodies is in memory at a time.
//!
//! An honest body is here within milliseconds, so the one that has been coming for longest is the one to give up when there
//! is no room. Waiting instead would let a few stalled clients stop all others.

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
    /// By age, oldest first.
    coming: BTreeMap<u64, Coming>,
    next: u64,
    held: usize,
}

#[derive(Debug)]
struct Coming {
    bytes: usize,
    give_up: CancellationToken,
}

/// A body that is coming in, and its share of the room until dropped.
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
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.bodies.state();
        if let Some(own) = state.coming.remove(&self.id) {
            state.held -= own.bytes;
        }
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
