//! Clients of other gRPC libraries, which send the path of the socket as `:authority`.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::Home;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
/// END_STREAM and END_HEADERS.
const END: [u8; 2] = [0x1, 0x4];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A header as a literal that enters the table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0x40], text(name), text(value)].concat()
}

/// The type of the first frame with which the agent answers the call of this stream, and its payload.
async fn answer(socket: &mut UnixStream, stream: u8) -> (u8, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        socket.read_exact(&mut payload).await.unwrap();
        if head[8] == stream && matches!(head[3], HEADERS | RST_STREAM) {
            return (head[3], payload);
        }
    }
}

#[tokio::test]
async fn a_call_is_served_whatever_its_authority_is() {
    let home = Home::new().with_spec();
    let (_agent, _client) = home.start().await;
    for authority in ["/var/lib/cni/nv-ipam/daemon.sock", "%2Fvar%2Flib%2Fdaemon.sock", "unix:daemon.sock", "localhost"]
    {
        let mut socket = UnixStream::connect(home.path("daemon.sock")).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        socket.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        // The second call finds the headers of the first one in the table, in which the last that entered has the index 62.
        let path = literal(":path", "/nvidia.ipam.node.v1.IPAMService/IsAllocated");
        let rest = [literal("te", "trailers"), literal("content-type", "application/grpc")].concat();
        let first = [&[0x83, 0x86], &path[..], &literal(":authority", authority), &rest].concat();
        let second = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        for (stream, headers) in [(1, &first[..]), (3, &second)] {
            socket.write_all(&frame(HEADERS, END[1], stream, headers)).await.unwrap();
            socket.write_all(&frame(0, END[0], stream, &[0; 5])).await.unwrap();
            let (kind, payload) = answer(&mut socket, stream).await;
            // Index 8 of the static table is `:status: 200`.
            assert_eq!((kind, payload.first()), (HEADERS, Some(&0x88)), "{authority}, stream {stream}");
        }
    }
}
