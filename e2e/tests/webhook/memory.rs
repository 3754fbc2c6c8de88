//! What clients that stall can take of the memory of a real operator.

use std::net::SocketAddr;
use std::time::Duration;

use ipam_e2e::reviews::{Client, Known};
use ipam_e2e::webhook::{Authority, Mount, Replica};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::stage::plane;

/// Stalled clients of each kind.
const EACH: usize = 500;
/// What each of them sends of a body, and half of what it promises: eight times what the server takes of all together.
const SENT: usize = 512 << 10;
/// Bytes of all bodies that the server takes at a time, twice, for a buffer that grows holds its old content too.
const BODIES: u64 = 2 * (32 << 20);
/// For the state of one connection, TLS's buffers included; a tenth of this is used.
const PER_CONNECTION: u64 = 64 << 10;
const ALLOWED: u64 = BODIES + 1000 * PER_CONNECTION;
/// Long enough for any server that takes what it is sent; one that does not has cut the client off, which is as good.
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients that have sent half of what they promised, or have been cut off over it.
async fn half_bodies(client: &Client) -> Vec<impl Sized> {
    let body = vec![b' '; SENT];
    let mut stalled = Vec::new();
    for _ in 0..EACH {
        let Ok(mut stream) = client.begin(2 * SENT).await else { continue };
        // Whether all of it is taken is the server's choice.
        drop(timeout(PATIENCE, stream.write_all(&body)).await);
        stalled.push(stream);
    }
    stalled
}

/// Clients that have begun to greet.
async fn half_handshakes(address: SocketAddr) -> Vec<TcpStream> {
    let mut stalled = Vec::new();
    for _ in 0..EACH {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        stalled.push(stream);
    }
    stalled
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_stall_take_no_more_memory_than_is_set_aside_for_them() {
    let plane = plane();
    let namespace = plane.namespace("wh-memory").unwrap();
    let authority = Authority::new().unwrap();
    let mut mount = Mount::create(&plane.directory().join(format!("{namespace}.secret"))).unwrap();
    mount.exchange(&authority.issue(Duration::from_hours(1)).unwrap()).unwrap();
    let mut replica = Replica::start(plane, &namespace, mount.directory(), &[]).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], replica.port()));
    let client = Client::new(address, &namespace, &authority.pem(), Known::default()).unwrap();
    for number in 0..20 {
        client.review(&format!("before-{number}")).await.unwrap();
    }
    let (before, _) = replica.operator.process().memory().unwrap();

    let bodies = half_bodies(&client).await;
    assert!(bodies.len() > EACH / 2, "only {} bodies were begun", bodies.len());
    let handshakes = half_handshakes(address).await;
    client.review("meanwhile").await.unwrap();

    let (_, most) = replica.operator.process().memory().unwrap();
    let (grown, allowed) = (most.saturating_sub(before), ALLOWED >> 10);
    eprintln!("grown by {grown} KiB of {allowed}, from {before} KiB");
    assert!(grown <= allowed, "from {before} to {most} KiB, {grown} more where {allowed} may be taken");
    drop((bodies, handshakes));
}
