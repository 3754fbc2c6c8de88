//! What clients that stall can take of the memory of a real operator.

use std::time::Duration;

use ipam_e2e::reviews::{Client, stall};
use ipam_e2e::webhook::Replica;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::stage::plane;

/// Stalled clients of each kind.
const EACH: usize = 500;
/// What each of them sends of a body: of all together eight times what the server takes.
const SENT: usize = 512 << 10;
/// Bytes of all bodies that the server takes at a time, twice, for a buffer that grows holds its old content too.
const BODIES: u64 = 2 * (32 << 20);
/// For the state of one connection, TLS's buffers included; a tenth of this is used.
const PER_CONNECTION: u64 = 64 << 10;
/// Ample for the operator's answer to a body that comes byte by byte.
const PATIENCE: Duration = Duration::from_mins(2);
const ALLOWED: u64 = BODIES + 1000 * PER_CONNECTION;

/// A real operator with a certificate, a client of it, and what it takes of memory once it has answered, in KiB.
async fn served(name: &str) -> (Replica, Client, u64) {
    let plane = plane();
    let namespace = plane.namespace(name).unwrap();
    let (mut replica, client) = Client::with_replica(plane, &namespace).unwrap();
    for number in 0..20 {
        client.review(&format!("before-{number}")).await.unwrap();
    }
    let (before, _) = replica.operator.process().memory().unwrap();
    (replica, client, before)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_stall_take_no_more_memory_than_is_set_aside_for_them() {
    let (mut replica, client, before) = served("wh-memory").await;
    let stalled = stall(&client, EACH, SENT).await.unwrap();
    assert!(stalled.bodies.len() > EACH / 2, "only {} bodies were begun", stalled.bodies.len());
    client.review("meanwhile").await.unwrap();

    let (_, most) = replica.operator.process().memory().unwrap();
    let (grown, allowed) = (most.saturating_sub(before), ALLOWED >> 10);
    eprintln!("grown by {grown} KiB of {allowed}, from {before} KiB");
    assert!(grown <= allowed, "from {before} to {most} KiB, {grown} more where {allowed} may be taken");
    drop(stalled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_byte_by_byte_takes_no_more_memory_than_one_that_comes_at_once() {
    const BYTES: u64 = 300_000;
    let (mut replica, client, before) = served("wh-bytes").await;
    let mut stream = client.begin_chunked().await.unwrap();
    let mut chunks = b"1\r\n \r\n".repeat(usize::try_from(BYTES).unwrap());
    chunks.extend_from_slice(b"0\r\n\r\n");
    // Only its answer shows that all of it was taken in; until then most of it may wait in the kernel.
    let mut status = [0; b"HTTP/1.1 400".len()];
    let exchange = async {
        stream.write_all(&chunks).await?;
        stream.read_exact(&mut status).await
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("the operator does not answer in time").unwrap();
    assert_eq!(&status, b"HTTP/1.1 400", "{}", String::from_utf8_lossy(&status));

    let (_, most) = replica.operator.process().memory().unwrap();
    let (grown, allowed) = (most.saturating_sub(before), (4 * BYTES + 2 * PER_CONNECTION) >> 10);
    eprintln!("grown by {grown} KiB of {allowed}, from {before} KiB");
    assert!(grown <= allowed, "from {before} to {most} KiB, {grown} more where {allowed} may be taken");
}
