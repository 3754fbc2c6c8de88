//! SIGTERM and SIGINT: the first signal requests a graceful shutdown, the second an immediate one.
//!
//! Never ends the process: `main` does, after [`Shutdown::bounded`] has returned.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The tokens that request a shutdown.
#[derive(Clone, Default, Debug)]
pub struct Shutdown {
    /// Cancelled by the first signal, or by a part of the daemon that must stop it: finish the work in progress.
    pub stop: CancellationToken,
    /// Cancelled by the second signal: exit at once.
    pub abandon: CancellationToken,
}

/// What was under way did not end in time, or was abandoned by a second signal.
#[derive(Debug, thiserror::Error)]
#[error("shutdown did not finish: {0}")]
pub struct Unfinished(&'static str);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on. Needs a tokio runtime.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Self::default();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let told = shutdown.clone();
        tokio::spawn(async move {
            for (token, what) in [(&told.stop, "stopping"), (&told.abandon, "leaving at once")] {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                info!(signal = name, "{what}");
                token.cancel();
            }
        });
        Ok(shutdown)
    }

    /// Runs `work` to its end. After `stop` is cancelled it has `grace` left, and after `abandon` no time.
    pub async fn bounded<T>(&self, grace: Duration, work: impl Future<Output = T>) -> Result<T, Unfinished> {
        let expired = async {
            self.stop.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            done = work => Ok(done),
            () = self.abandon.cancelled() => Err(Unfinished("a second signal came")),
            () = expired => {
                warn!(grace_seconds = grace.as_secs(), "work was still under way when the grace period ended");
                Err(Unfinished("the grace period ended"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_in_time_gives_its_result() {
        let shutdown = Shutdown::default();
        shutdown.stop.cancel();
        let work = tokio::time::sleep(Duration::from_secs(1));
        assert!(shutdown.bounded(Duration::from_secs(2), work).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_left_after_the_grace_period_and_on_a_second_signal() {
        let shutdown = Shutdown::default();
        shutdown.stop.cancel();
        assert!(shutdown.bounded(Duration::from_secs(2), std::future::pending::<()>()).await.is_err());
        let shutdown = Shutdown::default();
        shutdown.abandon.cancel();
        assert!(shutdown.bounded(Duration::MAX, std::future::pending::<()>()).await.is_err());
    }
}
