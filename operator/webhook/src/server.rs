//! The accept loop: accepts connections, enforces their time limits, and shuts down without losing a request.
//!
//! The loop never waits for a client: each connection is a task of its own, including its handshake.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use futures::FutureExt as _;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::connections::{ConnectionTable, Protocol};
use super::limits::Limits;
use super::metrics::WebhookMetrics;
use super::shared::{Expiry, Shared, WallClock};

/// How often all connections are checked; time limits have this accuracy.
const SWEEP: Duration = Duration::from_millis(250);
/// Pause after a failed `accept`. The usual cause is a temporary lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server, ready to run.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: TaskTracker,
}

impl Server {
    /// A server that answers requests on `listener` by `router`.
    pub fn new(
        listener: TcpListener,
        tls: ServerConfig,
        expiry: Expiry,
        wall: WallClock,
        router: Router,
        limits: Limits,
        metrics: WebhookMetrics,
    ) -> Self {
        let shared = Shared {
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            router,
            limits,
            metrics,
            roster: Mutex::new(ConnectionTable::new(limits)),
            closing: AtomicBool::new(false),
            expiry,
            wall,
        };
        Self { listener, shared: Arc::new(shared), connections: TaskTracker::new() }
    }

    /// Runs until `stop` is cancelled, and then shuts down in three steps, so that no request is lost:
    /// 1. For `grace`, it still accepts connections, because API servers learn late that this replica is leaving. Every
    ///    answer asks its client to close the connection.
    /// 2. It accepts no more connections, closes idle ones and finishes the requests in progress.
    /// 3. It closes connections that have not ended after [`Limits::finish`].
    pub async fn run(self, stop: CancellationToken, grace: Duration) {
        let closing = async {
            stop.cancelled().await;
            self.shared.closing.store(true, Ordering::Relaxed);
            self.shared.roster().retire_all(Protocol::Http2);
            tokio::time::sleep(grace).await;
        };
        self.accept_until(closing).await;
        // The system has already accepted the connections in the listener's queue.
        while let Some(Ok((stream, _))) = self.listener.accept().now_or_never() {
            self.take(stream);
        }
        let Self { listener, shared, connections } = self;
        drop(listener);
        shared.roster().retire_all(Protocol::Http1);
        shared.roster().retire_all(Protocol::Http2);
        connections.close();
        if timeout(shared.limits.finish, connections.wait()).await.is_err() {
            let left = shared.roster().len();
            tracing::warn!(left, "webhook connections did not end in time and are cut off");
            shared.roster().cut_all();
        }
    }

    async fn accept_until(&self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut end => return,
                accepted = self.listener.accept() => self.accepted(accepted).await,
                _ = sweep.tick() => self.sweep(),
            }
        }
    }

    async fn accepted(&self, accepted: io::Result<(TcpStream, std::net::SocketAddr)>) {
        match accepted {
            Ok((stream, _)) => self.take(stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a webhook connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    fn take(&self, stream: TcpStream) {
        let entered = self.shared.roster().enter(Instant::now());
        let Some((id, signals)) = entered else {
            return self.shared.metrics.cut_off("turned_away", 1);
        };
        self.shared.metrics.connections(self.shared.roster().len());
        let connection = Connection { id, signals, shared: self.shared.clone() };
        self.connections.spawn(connection.run(stream));
    }

    fn sweep(&self) {
        let swept = self.shared.roster().sweep(Instant::now(), self.shared.wall());
        if swept.handshakes > 0 {
            self.shared.metrics.handshakes_timed_out(swept.handshakes);
        }
        if swept.heads > 0 {
            self.shared.metrics.cut_off("stalled", swept.heads);
        }
    }
}
