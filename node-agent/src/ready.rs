//! Whether the agent does its duty: the truth behind /readyz and behind the answer to the plugin's STATUS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by all tasks; each part is set by the one that knows. The store has no part: without it nothing runs.
#[derive(Clone, Default, Debug)]
pub struct Readiness(Arc<Parts>);

#[derive(Default, Debug)]
struct Parts {
    serving: AtomicBool,
    blocks_known: AtomicBool,
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
        self.blocks()
    }
}
