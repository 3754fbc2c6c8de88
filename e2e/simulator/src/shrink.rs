//! The shortest history that still breaks the same law, by leaving out ever smaller pieces.

use super::known::address;
use super::{Failure, Simulator};

/// The order in which pieces are left out. A history in which the law breaks for two reasons can end as either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The first first.
    Forwards,
    /// The last first.
    Backwards,
}

/// Removes from a failing history all actions that it does not need to break the same law, for the same address if the law names one.
pub fn shrink(simulator: &Simulator, mut failure: Failure, order: Order) -> Failure {
    let mut piece = failure.history.len().div_ceil(2).max(1);
    loop {
        let mut shrunk = false;
        // How much of the history was tried, from the end at which the order begins.
        let mut tried = 0;
        while tried < failure.history.len() {
            let all = failure.history.len();
            let end = (tried + piece).min(all);
            let mut shorter = failure.history.clone();
            drop(match order {
                Order::Forwards => shorter.drain(tried..end),
                Order::Backwards => shorter.drain(all - end..all - tried),
            });
            match simulator.play(&shorter) {
                Err(still) if still.history.len() < all && is_same(&still, &failure) => {
                    failure = still;
                    shrunk = true;
                }
                _ => tried = end,
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
