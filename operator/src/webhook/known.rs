//! What the watches have told that a judgement needs besides the object itself.

use crate::reconcile::Observed;

/// What is known.
#[derive(Default, Debug)]
pub struct Known {}

impl Known {
    /// Takes in what a watch tells.
    pub fn observe(&mut self, event: &Observed) {
        let _ = event;
    }
}
