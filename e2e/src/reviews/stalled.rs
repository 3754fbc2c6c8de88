//! Clients that begin and do not go on.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tokio_rustls::client::TlsStream;

use super::Client;

/// Long enough for any server that takes what it is sent; one that does not has cut the client off, which is as good.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections that stay as they are until dropped, unless the server cuts them off.
pub struct Stalled {
    /// Clients that have sent half of a body, or have been cut off over it.
    pub bodies: Vec<TlsStream<TcpStream>>,
    /// Clients that have begun to greet.
    pub handshakes: Vec<TcpStream>,
}

/// So many clients of each kind. `sent` bytes are what each sends of a body, and half of what it promises.
///
/// # Errors
/// When no connection can be opened.
pub async fn stall(client: &Client, each: usize, sent: usize) -> Result<Stalled> {
    let body = vec![b' '; sent];
    let mut stalled = Stalled { bodies: Vec::new(), handshakes: Vec::new() };
    for _ in 0..each {
        let Ok(mut stream) = client.begin(2 * sent).await else { continue };
        // Whether all of it is taken is the server's choice.
        drop(timeout(PATIENCE, stream.write_all(&body)).await);
        stalled.bodies.push(stream);
    }
    for _ in 0..each {
        stalled.handshakes.push(client.begin_handshake().await?);
    }
    Ok(stalled)
}

/// How long each of so many reviews took, one begun every `every`; sorted.
///
/// # Errors
/// When one is not answered rightly.
pub async fn beside(client: &Client, count: u32, every: Duration) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut at = Instant::now();
    for number in 0..count {
        sleep_until(at.into()).await;
        let began = Instant::now();
        client.review(&format!("beside-{number}")).await?;
        times.push(began.elapsed());
        at += every;
    }
    times.sort_unstable();
    Ok(times)
}
