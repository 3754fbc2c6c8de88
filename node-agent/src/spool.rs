//! Applies the notes of the spool: requests to free addresses that the plugin could not deliver.
//!
//! At the start before anything is served, later now and then: a plugin that had no answer in time leaves a note, too. A note frees only what
//! was allocated before it.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ipam_node_api::spool::{Note, Spool};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::allocator::Allocator;
use crate::metrics::Metrics;
use crate::rpc::convert;

/// Pause between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// Looks for notes until `stop`.
pub async fn follow(spool: Spool, allocator: Allocator, metrics: Arc<Metrics>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => apply(&spool, &allocator, &metrics).await,
        }
    }
}

/// Applies the notes that are there, the oldest first. One that cannot be applied stays, unless it never can be.
pub async fn apply(spool: &Spool, allocator: &Allocator, metrics: &Metrics) {
    let notes = match spool.notes() {
        Ok(notes) => notes,
        Err(error) => return warn!(path = %spool.path().display(), %error, "cannot read the spool"),
    };
    let mut waiting = 0;
    for note in notes {
        match released(&note, allocator).await {
            Ok(released) => {
                info!(note = %note.path.display(), released, "applied a request that the plugin had left");
                metrics.spool_applied.inc();
                take_away(&note);
            }
            Err(Failed::Never(why)) => {
                warn!(note = %note.path.display(), why, "removed a file of the spool that is no request");
                take_away(&note);
            }
            Err(Failed::Later(why)) => {
                warn!(note = %note.path.display(), why, "cannot apply a request of the spool yet");
                waiting += 1;
            }
        }
    }
    metrics.spool_waiting.set(waiting);
}

enum Failed {
    /// It is no request.
    Never(String),
    /// The allocator does not take it now.
    Later(String),
}

async fn released(note: &Note, allocator: &Allocator) -> Result<usize, Failed> {
    let request = note.request.clone().map_err(Failed::Never)?;
    let (pools, owner) = convert::release(request).map_err(|wrong| Failed::Never(format!("{wrong:?}")))?;
    let since = note.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    allocator.release_until(pools, owner, until).await.map_err(|error| Failed::Later(error.to_string()))
}

/// A note that comes back after a crash frees nothing that is newer.
fn take_away(note: &Note) {
    if let Err(error) = std::fs::remove_file(&note.path) {
        warn!(note = %note.path.display(), %error, "cannot remove a file of the spool");
    }
}
