//! Where bodies wait that are judged on a thread of their own: the middle-sized apart from the large, which take a second each
//! and would keep them waiting.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Judgements of middle-sized bodies at a time. One would let a second body wait for the first.
const MIDDLE: usize = 2;
/// Judgements of large bodies at a time: what is read of one takes several times its bytes.
const LARGE: usize = 1;
/// Threads that this takes.
pub(super) const THREADS: usize = MIDDLE + LARGE;

/// The two lanes.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    middle: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { middle: Arc::new(Semaphore::new(MIDDLE)), large: Arc::new(Semaphore::new(LARGE)) }
    }
}

impl Lanes {
    /// Waits for a place. It is free again when what is returned is dropped; `None` is never returned, for no lane is ever closed.
    pub(super) async fn enter(&self, is_large: bool) -> Option<OwnedSemaphorePermit> {
        let lane = if is_large { &self.large } else { &self.middle };
        lane.clone().acquire_owned().await.ok()
    }
}
