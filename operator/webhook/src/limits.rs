//! Limits on the resources of this process that a client of the webhook may use, and for how long.
//!
//! The clients are the API servers of one cluster: a handful, each with some persistent connections. Anything beyond that is
//! an error or an attack, and is limited here.

use std::time::Duration;

/// The limits. All times are measured by the server's own monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, including those in the handshake. If all places are taken, the server closes the connection
    /// longest in its handshake or in a request's head. Without one it closes the one longest idle, first those that never
    /// had a request. If all have requests in progress, it closes the new connection.
    pub connections: usize,
    /// From the accepted connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request (HTTP/1.1), or from the handshake to the first request (HTTP/2), to the end of its head.
    pub head: Duration,
    /// From the end of a request's head to the end of its body. By then the API server has usually stopped waiting: its
    /// webhook timeout is 10 s by default, and 30 s at most.
    pub body: Duration,
    /// Longest time that a complete body waits to be reviewed. With the time to receive the body, this is most of the API
    /// server's timeout.
    pub turn: Duration,
    /// Longest time that a connection may be without a request. Longer than the 90 s after which an API server's client
    /// closes an idle connection: if the server closed first, a request sent in the same moment would be lost.
    pub idle: Duration,
    /// Age at which a connection's client is asked to reconnect. This spreads the API servers over the replicas again after
    /// one of them was restarted.
    pub life: Duration,
    /// Time for requests in progress at shutdown, after the server has stopped accepting connections.
    pub finish: Duration,
    /// Bytes of one request's head.
    pub head_bytes: usize,
    /// Bytes of one request's body. The API server accepts objects of 3 MiB, and sends the old object along with the new one.
    pub body_bytes: usize,
    /// Bytes of all bodies in memory, including those that wait to be reviewed and those being reviewed. When more arrive,
    /// the server aborts the oldest request that is not being reviewed.
    pub all_body_bytes: usize,
    /// Requests at a time, from the head of each until its answer is sent. This is more than `connections`, so only HTTP/2
    /// can reach it. When more arrive, the server aborts the oldest request that is not being reviewed. If that one is
    /// answered, its connection is closed. Each request takes 21 KiB in addition to its body.
    pub requests: usize,
    /// Requests at a time on one connection (HTTP/2). A client with more opens another connection.
    pub streams: u32,
    /// A larger body is reviewed on a thread of its own, so that other requests do not wait for it.
    pub aside_bytes: usize,
    /// A larger body waits only for others of its size, and smaller bodies do not wait for it.
    pub large_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(5),
            body: Duration::from_secs(10),
            turn: Duration::from_secs(5),
            idle: Duration::from_secs(150),
            life: Duration::from_mins(15),
            finish: Duration::from_secs(5),
            head_bytes: 32 << 10,
            body_bytes: 8 << 20,
            all_body_bytes: 32 << 20,
            requests: 1536,
            streams: 64,
            aside_bytes: 32 << 10,
            large_bytes: 1 << 20,
        }
    }
}
