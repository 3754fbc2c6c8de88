//! Clients that send the path of the socket as `:authority` of a call.
//!
//! Many do, for example those of gRPC's C core (Python, C++, Ruby, PHP), grpc-java and older grpc-go: RFC 9113 requires a host there, and a
//! unix socket has none. Servers in Go take any value. `h2`, which this agent uses, resets such a call, so its value is replaced on
//! the way in. Nothing here depends on the value.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::uri::Authority;
use tokio::io::{AsyncRead, ReadBuf};

use super::hpack::with_authority;

/// What a client sends before its first frame.
const PREFACE: usize = 24;
/// Length of the head of a frame: its length in three bytes, type, flags and stream.
const HEAD: usize = 9;
/// Longest payload that a client may send.
const LONGEST: usize = 16_384;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What comes in on a connection, with any `:authority` replaced by a host.
pub(super) struct Incoming {
    frames: Frames,
    /// What is to be read, from `read` on.
    ready: Vec<u8>,
    read: usize,
}

impl Incoming {
    /// Nothing has come yet.
    pub(super) const fn new() -> Self {
        Self { frames: Frames::new(), ready: Vec::new(), read: 0 }
    }

    /// Reads from `io`, like its own `poll_read`. Headers pass once they have come in full.
    pub(super) fn poll_read(
        &mut self,
        mut io: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read == self.ready.len() {
            let mut chunk = [0; 4096];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(io.as_mut().poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // The end. Headers that did not come in full are no call.
                return Poll::Ready(Ok(()));
            }
            self.ready.clear();
            self.read = 0;
            self.frames.pass(chunk.filled(), &mut self.ready);
        }
        let rest = self.ready.get(self.read..).unwrap_or_default();
        let taken = rest.len().min(buf.remaining());
        buf.put_slice(rest.get(..taken).unwrap_or_default());
        self.read += taken;
        Poll::Ready(Ok(()))
    }
}

/// The frames that a client sends.
struct Frames {
    next: Next,
    /// The head of a frame, or a whole frame with headers, as far as it has come.
    held: Vec<u8>,
}

/// What comes next.
#[derive(Clone, Copy)]
enum Next {
    Head,
    /// So many bytes that pass as they are.
    Payload(usize),
    /// Headers in a frame of so many bytes.
    Headers(usize),
}

impl Frames {
    const fn new() -> Self {
        Self { next: Next::Payload(PREFACE), held: Vec::new() }
    }

    /// Passes what has come on to `out`, except headers that have not come in full.
    fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match self.next {
                Next::Payload(left) => {
                    let (now, later) = bytes.split_at(left.min(bytes.len()));
                    out.extend_from_slice(now);
                    bytes = later;
                    self.next = if now.len() == left { Next::Head } else { Next::Payload(left - now.len()) };
                }
                Next::Head => {
                    if let Some(head) = self.hold(&mut bytes, HEAD) {
                        self.next = after(&head);
                        if matches!(self.next, Next::Headers(_)) {
                            self.held = head;
                        } else {
                            out.extend(head);
                        }
                    }
                }
                Next::Headers(length) => {
                    if let Some(frame) = self.hold(&mut bytes, length) {
                        out.extend(changed(&frame).unwrap_or(frame));
                        self.next = Next::Head;
                    }
                }
            }
        }
    }

    /// Moves bytes until so many are held; returns them then.
    fn hold(&mut self, bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
        let (now, later) = bytes.split_at(length.saturating_sub(self.held.len()).min(bytes.len()));
        self.held.extend_from_slice(now);
        *bytes = later;
        (self.held.len() == length).then(|| std::mem::take(&mut self.held))
    }
}

/// What follows this head of a frame. Headers that go on in a further frame pass as they are: no gRPC client sends so many.
fn after(head: &[u8]) -> Next {
    let &[high, middle, low, kind, flags, ..] = head else { return Next::Head };
    let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    match length {
        0 => Next::Head,
        1..=LONGEST if kind == HEADERS && flags & END_HEADERS != 0 => Next::Headers(HEAD + length),
        _ => Next::Payload(length),
    }
}

/// The frame with an authority that is a host, if it has one that is none.
fn changed(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(HEAD)?;
    let flags = *head.get(4)?;
    let padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
    let from = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let until = payload.len().checked_sub(padding)?;
    let block = with_authority(payload.get(from..until)?, host)?;
    let length = from + block.len() + padding;
    let [_, high, middle, low] = u32::try_from(length).ok().filter(|_| length <= LONGEST)?.to_be_bytes();
    let mut frame = vec![high, middle, low];
    for part in [head.get(3..)?, payload.get(..from)?, &block, payload.get(until..)?] {
        frame.extend_from_slice(part);
    }
    Some(frame)
}

/// A host as long as this authority; `None` if that is one, or is empty.
fn host(authority: &[u8]) -> Option<Vec<u8>> {
    let is_host = authority.is_empty() || Authority::try_from(authority).is_ok();
    let letter = |byte: &u8| if byte.is_ascii_alphanumeric() || *byte == b'.' { *byte } else { b'-' };
    (!is_host).then(|| authority.iter().map(letter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[high, middle, low, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn block(authority: &[u8]) -> Vec<u8> {
        [&[0x83, 0x86, 0x41, u8::try_from(authority.len()).unwrap()], authority, &[0x84]].concat()
    }

    /// All that passes if the bytes come in pieces of this length.
    fn passed(bytes: &[u8], length: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::new(), Vec::new());
        bytes.chunks(length).for_each(|piece| frames.pass(piece, &mut out));
        out
    }

    fn sent(headers: &[Vec<u8>]) -> Vec<u8> {
        let settings = frame(4, 0, &[]);
        let data = frame(0, 1, b"/not/a/header");
        [vec![b'P'; PREFACE], settings, headers.concat(), data].concat()
    }

    #[test]
    fn a_path_becomes_a_host_of_its_length_however_the_bytes_come() {
        for (path, host) in
            [("/var/lib/a.sock", "-var-lib-a.sock"), ("%2Frun%2Fa", "-2Frun-2Fa"), ("unix:/a", "unix--a")]
        {
            let padded = |authority: &str| [&[2, 0, 0, 0, 0, 9][..], &block(authority.as_bytes()), &[0, 0]].concat();
            let headers = |authority: &str| {
                let plain = frame(HEADERS, END_HEADERS, &block(authority.as_bytes()));
                let padded = frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded(authority));
                sent(&[plain.clone(), padded, plain])
            };
            for length in 1..64 {
                assert_eq!(passed(&headers(path), length), headers(host), "{path} in pieces of {length}");
            }
        }
    }

    #[test]
    fn all_else_passes_as_it_is() {
        let hosts = ["localhost", "localhost:50051", "[::1]:80", "a.b", ""];
        let mut all: Vec<_> = hosts.map(|host| frame(HEADERS, END_HEADERS, &block(host.as_bytes()))).into();
        // Without the flag the headers go on; and this padding is longer than the payload.
        all.push(frame(HEADERS, 0, &block(b"/a")));
        all.push(frame(HEADERS, END_HEADERS | PADDED, &[200, 0x83]));
        all.push(frame(HEADERS, END_HEADERS, &vec![0x41; LONGEST + 1]));
        all.push(frame(9, END_HEADERS, &block(b"/a")));
        let sent = sent(&all);
        for length in [1, 7, 4096, sent.len()] {
            assert_eq!(passed(&sent, length), sent);
        }
    }
}
