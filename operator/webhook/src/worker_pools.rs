//! Queues of bodies that are reviewed on threads of their own. Middle-sized bodies do not wait for large ones, which take a
//! second each.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Middle-sized bodies reviewed at a time. With one, a second body would wait for the first.
const MIDDLE: usize = 2;
/// Large bodies reviewed at a time. A parsed body takes several times its bytes.
const LARGE: usize = 1;
/// Threads that both queues need.
pub(super) const THREADS: usize = MIDDLE + LARGE;

/// The two queues.
#[derive(Clone, Debug)]
pub(super) struct WorkerPools {
    middle: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for WorkerPools {
    fn default() -> Self {
        Self { middle: Arc::new(Semaphore::new(MIDDLE)), large: Arc::new(Semaphore::new(LARGE)) }
    }
}

impl WorkerPools {
    /// Waits for a place. Dropping the returned permit frees it. Never returns `None`, because no queue is ever closed.
    pub(super) async fn enter(&self, is_large: bool) -> Option<OwnedSemaphorePermit> {
        let lane = if is_large { &self.large } else { &self.middle };
        lane.clone().acquire_owned().await.ok()
    }
}
