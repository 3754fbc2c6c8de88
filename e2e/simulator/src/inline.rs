//! Questions to an allocator that has no thread.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ipam_node_agent::allocator::Worker;

/// The store has failed, so that the process ends.
#[derive(Debug)]
pub(super) struct StoreFailed;

/// Parts that a question has at most.
const PARTS: usize = 100;

/// The answer of the worker, if there is one, and whether the store still works.
pub(super) fn ask<T>(worker: &mut Worker, question: impl Future<Output = T>) -> (Option<T>, Result<(), StoreFailed>) {
    let mut answer = pin!(question);
    let mut context = Context::from_waker(Waker::noop());
    let mut works = Ok(());
    for _ in 0..PARTS {
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
            return (Some(answer), works);
        }
        if works.is_err() {
            break;
        }
        works = worker.play().map_err(|_| StoreFailed);
    }
    (None, works)
}
