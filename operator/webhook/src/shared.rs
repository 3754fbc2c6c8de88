//! What the accept loop and all connections share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::Router;
use tokio_rustls::TlsAcceptor;

use super::limits::Limits;
use super::metrics::WebhookMetrics;
use super::roster::Roster;

/// When the certificate that is served now ends; `None` while there is none.
pub type Expiry = Arc<dyn Fn() -> Option<SystemTime> + Send + Sync>;

/// What the clock on the wall says, by which certificates end. It may jump, as the server's own, monotonic one does not.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What connections share.
pub(super) struct Shared {
    pub(super) acceptor: TlsAcceptor,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) metrics: WebhookMetrics,
    pub(super) roster: Mutex<Roster>,
    pub(super) closing: AtomicBool,
    pub(super) expiry: Expiry,
    pub(super) wall: WallClock,
}

impl Shared {
    pub(super) fn roster(&self) -> MutexGuard<'_, Roster> {
        // Nothing panics while it is held.
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
