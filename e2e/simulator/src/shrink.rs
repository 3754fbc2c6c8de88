//! The shortest history that still breaks the same law, by leaving out ever smaller pieces.

use super::known::address;
use super::{Failure, Simulator};

/// Removes from a failing history all actions that it does not need to break the same law, for the same address if the law names one.
pub fn shrink(simulator: &Simulator, mut failure: Failure) -> Failure {
    let mut piece = failure.history.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut shrunk = false;
        while start < failure.history.len() {
            let end = (start + piece).min(failure.history.len());
            let mut shorter = failure.history.clone();
            shorter.drain(start..end);
            match simulator.play(&shorter) {
                Err(still) if still.history.len() < failure.history.len() && is_same(&still, &failure) => {
                    failure = still;
                    shrunk = true;
                }
                _ => start = end,
            }
        }
        if piece == 1 && !shrunk {
            return failure;
        }
        piece = if shrunk { piece } else { piece.div_ceil(2) };
        piece = piece.min(failure.history.len()).max(1);
    }
}

fn is_same(one: &Failure, other: &Failure) -> bool {
    one.law.law == other.law.law && address(one) == address(other)
}
