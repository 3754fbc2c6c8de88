//! Whether the agent does its duty: the truth behind /readyz and behind the answer to the plugin's STATUS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by all tasks; each part is set by the one that knows.
#[derive(Clone, Default, Debug)]
pub struct Readiness(Arc<Parts>);

#[derive(Default, Debug)]
struct Parts {
    serving: AtomicBool,
    blocks_known: AtomicBool,
    no_allocations: Mutex<Option<String>>,
}

impl Readiness {
    /// The socket takes calls, or no longer does.
    pub fn set_serving(&self, serving: bool) {
        self.0.serving.store(serving, Ordering::SeqCst);
    }

    /// A spec was seen, from the API server or from disk.
    pub fn blocks_are_known(&self) {
        self.0.blocks_known.store(true, Ordering::SeqCst);
    }

    /// Why the store takes no allocations; `None` if it does.
    pub fn set_no_allocations(&self, why: Option<String>) {
        *self.0.no_allocations.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Fails until the node's blocks are known.
    pub fn blocks(&self) -> Result<(), String> {
        if self.0.blocks_known.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err("the blocks of this node are not known yet: neither the API server nor the disk has told them".to_owned())
    }

    /// Fails with what is missing.
    pub fn check(&self) -> Result<(), String> {
        if !self.0.serving.load(Ordering::SeqCst) {
            return Err("the socket does not take calls".to_owned());
        }
        if let Some(why) = &*self.0.no_allocations.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(why.clone());
        }
        self.blocks()
    }
}
