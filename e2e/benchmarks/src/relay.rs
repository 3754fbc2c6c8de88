//! A TCP relay on loopback that counts. It passes bytes on as they are, TLS included, so that what it counts is what a network
//! between a node and the API server would carry, without the headers of TCP and below.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// Counts what goes through it until dropped.
pub(super) struct CountingRelay {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    stopped: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
    connections: AtomicU64,
}

/// What has gone through so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Traffic {
    /// Bytes from the server.
    pub(super) received: u64,
    /// Bytes to the server.
    pub(super) sent: u64,
    /// Connections opened.
    pub(super) connections: u64,
}

impl Traffic {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            connections: self.connections - before.connections,
        }
    }
}

impl CountingRelay {
    /// Starts one to a port on loopback.
    pub(super) fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let (address, counts) = (listener.local_addr()?, Arc::<Counts>::default());
        let shared = Arc::clone(&counts);
        std::thread::spawn(move || accept(&listener, to, &shared));
        Ok(Self { address, counts })
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn traffic(&self) -> Traffic {
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        let Counts { received, sent, connections, .. } = &*self.counts;
        Traffic { received: read(received), sent: read(sent), connections: read(connections) }
    }
}

impl Drop for CountingRelay {
    fn drop(&mut self) {
        self.counts.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if it cannot be reached it has ended already.
        drop(TcpStream::connect_timeout(&self.address, Duration::from_secs(1)));
    }
}

fn accept(listener: &TcpListener, to: u16, counts: &Arc<Counts>) {
    while let Ok((near, _)) = listener.accept() {
        if counts.stopped.load(Ordering::SeqCst) {
            return;
        }
        // A server that cannot be reached shows as a connection that closes, as it would without us.
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
        let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
        drop((near.set_nodelay(true), far.set_nodelay(true)));
        counts.connections.fetch_add(1, Ordering::SeqCst);
        let (up, down) = (Arc::clone(counts), Arc::clone(counts));
        std::thread::spawn(move || pass(near, far, &up.sent));
        std::thread::spawn(move || pass(far_too, near_too, &down.received));
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length) = from.read(&mut buffer) {
        count.fetch_add(u64::try_from(length).unwrap_or(u64::MAX), Ordering::SeqCst);
        if length == 0 || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // One end has closed; the other learns it, and both threads end.
    drop((from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_passed_on_and_counted_by_direction() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut asked = [0; 3];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(b"answer").unwrap();
            asked
        });
        let relay = CountingRelay::start(port).unwrap();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port())).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(b"ask").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((answering.join().unwrap(), answer.as_str()), (*b"ask", "answer"));
        assert_eq!(relay.traffic(), Traffic { received: 6, sent: 3, connections: 1 });
    }
}
