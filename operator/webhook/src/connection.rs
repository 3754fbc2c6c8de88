//! One connection: handshake, requests, end.
//!
//! It reports its progress to the connection table, and ends when the table signals it. The table decides which connections end.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use super::connections::{Id, Protocol, Signals};
use super::routes::Cut;
use super::shared::Shared;

/// Longest time before a certificate expires at which its clients are asked to reconnect.
const LONGEST_MARGIN: Duration = Duration::from_mins(5);
/// HTTP/2: bytes that a client may send ahead on one stream, and on all of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// HTTP/2: time without data after which the server pings a client, and how long the client has to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(10);

/// A connection with an entry in the connection table. Dropping it removes the entry.
pub(super) struct Connection {
    pub(super) id: Id,
    pub(super) signals: Signals,
    pub(super) shared: Arc<Shared>,
}

/// The certificate of the connection has expired: the connection is closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of this connection has expired")]
struct Expired;

impl Connection {
    /// Serves until the client closes the connection or the connection table ends it.
    pub(super) async fn run(self, stream: TcpStream) {
        let this = Arc::new(self);
        tokio::select! {
            biased;
            () = this.signals.cut.cancelled() => {}
            () = this.clone().serve(stream) => {}
        }
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        // Each answer is written as a whole, so Nagle's algorithm would only delay it.
        drop(stream.set_nodelay(true));
        let before = self.shared.expiry();
        let stream = match self.shared.acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                return self.shared.metrics.handshake_failed();
            }
        };
        let protocol =
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 };
        // The certificate may have been replaced during the handshake. The earlier expiry counts.
        let not_after = before.into_iter().chain(self.shared.expiry()).min();
        let retires = not_after.and_then(|not_after| retires(not_after, self.shared.wall()));
        self.shared.roster().greeted(self.id, Instant::now(), protocol, retires, not_after);
        match protocol {
            Protocol::Http1 => self.http1(stream).await,
            Protocol::Http2 => self.http2(stream).await,
        }
    }

    async fn http1(self: Arc<Self>, stream: TlsStream<TcpStream>) {
        let io = TokioIo::new(Heard { stream, connection: self.clone() });
        let mut server = http1::Builder::new();
        // The connection table closes connections with slow heads. Unlike hyper, it distinguishes them from idle connections.
        server.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(self.shared.limits.head_bytes);
        let answering = self.clone();
        let service = service_fn(move |request| answering.clone().answer(request));
        self.drive(server.serve_connection(io, service)).await;
    }

    async fn http2(self: Arc<Self>, stream: TlsStream<TcpStream>) {
        let limits = &self.shared.limits;
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER)
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let answering = self.clone();
        let service = service_fn(move |request| answering.clone().answer(request));
        self.drive(server.serve_connection(TokioIo::new(stream), service)).await;
    }

    async fn drive<C: GracefulConnection>(&self, connection: C) {
        let mut connection = pin!(connection);
        // Errors here are caused by the client, such as an aborted connection or invalid HTTP.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.signals.retire.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        drop(connection.await);
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<Body>, Expired> {
        let is_in_time = self.shared.roster().begin(self.id, Instant::now(), self.shared.wall());
        let _at_work = AtWork(&self);
        if !is_in_time {
            // With HTTP/2 an error ends only its stream, so the connection is closed here.
            self.signals.cut.cancel();
            return Err(Expired);
        }
        let version = request.version();
        request.extensions_mut().insert(Cut(self.signals.cut.clone()));
        let answered: Result<_, Infallible> = self.shared.router.clone().oneshot(request.map(Body::new)).await;
        let Ok(mut response) = answered;
        let is_last = self.shared.is_closing() || self.shared.roster().is_retiring(self.id, Instant::now());
        if version == Version::HTTP_2 {
            if is_last {
                self.signals.retire.cancel();
            }
        } else if is_last || response.status() != StatusCode::OK {
            // The client closes the connection after it has read the answer, so none of its requests is lost.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut roster = self.shared.roster();
        roster.leave(self.id);
        self.shared.metrics.connections(roster.len());
    }
}

/// The time from which a connection whose certificate expires at `not_after` is asked to close.
fn retires(not_after: SystemTime, wall: SystemTime) -> Option<Instant> {
    let left = not_after.duration_since(wall).unwrap_or_default();
    Instant::now().checked_add(left.saturating_sub(LONGEST_MARGIN.min(left / 10)))
}

/// A request under way.
struct AtWork<'a>(&'a Connection);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.shared.roster().end(self.0.id, Instant::now());
    }
}

/// A stream that reports received data to the connection table.
struct Heard {
    stream: TlsStream<TcpStream>,
    connection: Arc<Connection>,
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.shared.roster().heard(self.connection.id, Instant::now());
        }
        polled
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
