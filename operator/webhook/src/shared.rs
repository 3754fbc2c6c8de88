//! What the accept loop and all connections share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::Router;
use tokio_rustls::TlsAcceptor;

use super::connections::ConnectionTable;
use super::limits::Limits;
use super::metrics::WebhookMetrics;

/// Returns when the certificate that is served now expires, or `None` if there is none.
pub type Expiry = Arc<dyn Fn() -> Option<SystemTime> + Send + Sync>;

/// Returns the wall-clock time, by which certificates expire. It may jump, unlike the server's own monotonic clock.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The state that connections share.
pub(super) struct Shared {
    pub(super) acceptor: TlsAcceptor,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) metrics: WebhookMetrics,
    pub(super) roster: Mutex<ConnectionTable>,
    pub(super) closing: AtomicBool,
    pub(super) expiry: Expiry,
    pub(super) wall: WallClock,
}

impl Shared {
    pub(super) fn roster(&self) -> MutexGuard<'_, ConnectionTable> {
        // No code panics while it holds this lock.
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) fn expiry(&self) -> Option<SystemTime> {
        (self.expiry)()
    }

    pub(super) fn wall(&self) -> SystemTime {
        (self.wall)()
    }
}
