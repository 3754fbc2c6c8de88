//! How much of this process a client of the webhook may take, and for how long.
//!
//! The clients are the API servers of one cluster: a handful, each with some connections that it keeps. Everything beyond that is a
//! mistake or an attack, and is bounded here.

use std::time::Duration;

/// The bounds. All times are measured by the server's own monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, those in the handshake included. When all places are taken, the one that has been stuck in its
    /// handshake or in a request's head for longest makes room, else one that never asked anything, else the one that has been
    /// idle for longest; if all are at work, the newcomer is closed.
    pub connections: usize,
    /// From the accepted connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request (HTTP/1.1), or from the handshake to the first request (HTTP/2), to the end of its head.
    pub head: Duration,
    /// From the end of a request's head to the end of its body. The API server gives a webhook ten seconds unless told
    /// otherwise, and thirty at most; one that is still sending by then has given up waiting.
    pub body: Duration,
    /// How long a body that is here may wait for its turn to be judged. With the time that it took to come, most of what the API
    /// server gives.
    pub turn: Duration,
    /// How long a connection may be without a request. Longer than the 90 s after which an API server's client closes an
    /// idle connection itself: were we first, a request sent in the same moment would be lost.
    pub idle: Duration,
    /// How long a connection is used before it is asked, with an answer, to be opened anew. Spreads the API servers over
    /// the replicas again after one of them was restarted.
    pub life: Duration,
    /// Time for requests under way once connections are closed at the end.
    pub finish: Duration,
    /// Bytes of one request's head.
    pub head_bytes: usize,
    /// Bytes of one request's body. The API server takes objects of 3 MiB and sends the old one along with the new.
    pub body_bytes: usize,
    /// Bytes of all bodies in memory, those that wait for their turn and those that are being judged included. When more come
    /// in, the request that is there for longest and not being judged is given up.
    pub all_body_bytes: usize,
    /// Requests at a time, from their heads until their answers are taken; more than there are connections, so that only HTTP/2
    /// can have so many. When more come, the oldest that is not being judged is given up, with its connection if it is answered.
    /// Each takes 21 KiB beside its body.
    pub requests: usize,
    /// Requests at a time on one connection (HTTP/2). Who has more opens another one.
    pub streams: u32,
    /// A body of more than this is judged on a thread of its own, so that the others need not wait for it.
    pub aside_bytes: usize,
    /// A body of more than this waits for others of its size alone, and not those below for it.
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
