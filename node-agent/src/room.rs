//! Follows whether the store takes allocations: for `/readyz`, for the plugin's STATUS and for the metric.
//!
//! While it has none, no request may come that would find the space. So this task looks for room by itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::allocator::Allocator;
use crate::metrics::Metrics;
use crate::problem::DAMAGED;
use crate::ready::Readiness;

/// Pause between two looks while the disk is full or read-only.
const LOOK: Duration = Duration::from_secs(5);

/// Follows it until `stop`.
pub async fn follow(allocator: Allocator, readiness: Readiness, metrics: Arc<Metrics>, stop: CancellationToken) {
    let mut state = allocator.full();
    // A disk can be full at the start.
    drop(allocator.look_for_room().await);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let full = state.borrow_and_update().clone();
        let is = |reason| i64::from(full.as_ref().is_some_and(|problem| problem.reason == reason));
        metrics.disk_full.set(is("DiskFull"));
        metrics.disk_read_only.set(is("DiskReadOnly"));
        metrics.journal_damaged.set(is(DAMAGED));
        let can_heal = is("DiskFull") + is("DiskReadOnly") == 1;
        readiness.set_no_allocations(full.map(|problem| problem.sentence));
        tokio::select! {
            () = stop.cancelled() => return,
            changed = state.changed() => if changed.is_err() { return },
            // An allocator that is busy or has stopped changes nothing.
            // A change does not delay it: each record that finds no room is one.
            _ = looks.tick(), if can_heal => drop(allocator.look_for_room().await),
        }
    }
}
