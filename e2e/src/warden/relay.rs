//! Carries TCP connections from one network namespace to another. A Unix socket lives in the file system, which the namespaces
//! share; so one relay (TCP to socket) inside a node and one (socket to TCP) outside let the node reach the API server under the
//! very address it has outside, and ending the node's relay cuts that node off.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

/// `tcp:HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp(String),
    Unix(PathBuf),
}

impl Endpoint {
    fn parse(word: &str) -> Result<Self> {
        match word.split_once(':') {
            Some(("tcp", address)) => Ok(Self::Tcp(address.to_owned())),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            _ => bail!("{word}: expected tcp:HOST:PORT or unix:PATH"),
        }
    }

    fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(path) => Box::new(UnixStream::connect(path)?),
        })
    }
}

/// A connection of either kind, which two threads can use at once.
trait Stream: Send + Sync {
    fn pull(&self, buffer: &mut [u8]) -> std::io::Result<usize>;
    fn push(&self, bytes: &[u8]) -> std::io::Result<()>;
    fn end(&self, how: Shutdown);
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn pull(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let mut reader = self;
                reader.read(buffer)
            }
            fn push(&self, bytes: &[u8]) -> std::io::Result<()> {
                let mut writer = self;
                writer.write_all(bytes)
            }
            fn end(&self, how: Shutdown) {
                // The other side may have ended it already.
                let _ = self.shutdown(how);
            }
        }
    };
}
stream!(TcpStream);
stream!(UnixStream);

/// What a relay writes to stdout once it listens.
pub(crate) const LISTENING: &str = "relay is listening";

/// Listens on `from` and carries every connection to `to`, until killed.
pub(super) fn run(from: &str, to: &str) -> Result<ExitCode> {
    let (from, to) = (Endpoint::parse(from)?, Endpoint::parse(to)?);
    match from {
        Endpoint::Tcp(address) => {
            let listener = TcpListener::bind(&address).with_context(|| format!("cannot listen on {address}"))?;
            announce()?;
            for stream in listener.incoming() {
                let stream = stream.context("cannot accept")?;
                stream.set_nodelay(true)?;
                carry(Box::new(stream), &to);
            }
        }
        Endpoint::Unix(path) => {
            let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
            announce()?;
            for stream in listener.incoming() {
                carry(Box::new(stream.context("cannot accept")?), &to);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn announce() -> Result<()> {
    writeln!(std::io::stdout(), "{LISTENING}").context("the harness has gone")
}

/// A target that is away closes the connection, which is what the caller would see without a relay, near enough.
fn carry(near: Box<dyn Stream>, to: &Endpoint) {
    let to = to.clone();
    std::thread::spawn(move || {
        let Ok(far) = to.connect() else { return };
        let (near, far): (Arc<dyn Stream>, Arc<dyn Stream>) = (near.into(), far.into());
        let back = std::thread::spawn({
            let (near, far) = (Arc::clone(&near), Arc::clone(&far));
            move || pump(&*far, &*near)
        });
        pump(&*near, &*far);
        let _ = back.join();
    });
}

/// Copies one direction to its end. A failed read or write ends both directions; an orderly end only this one.
fn pump(from: &dyn Stream, to: &dyn Stream) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.pull(&mut buffer) {
            Ok(0) => return to.end(Shutdown::Write),
            Ok(count) => {
                if to.push(&buffer[..count]).is_err() {
                    return from.end(Shutdown::Both);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return to.end(Shutdown::Both),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::eventually::eventually_blocking;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn endpoints_are_tcp_or_unix_and_nothing_else() {
        assert_eq!(Endpoint::parse("tcp:127.0.0.1:1").unwrap(), Endpoint::Tcp("127.0.0.1:1".into()));
        assert_eq!(Endpoint::parse("unix:/a:b").unwrap(), Endpoint::Unix("/a:b".into()));
        assert!(Endpoint::parse("udp:1").is_err());
    }

    #[test]
    fn bytes_go_both_ways_and_an_end_is_passed_on() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = Endpoint::Tcp(server.local_addr().unwrap().to_string());
        let (mut client, near) = UnixStream::pair().unwrap();
        carry(Box::new(near), &to);
        server.set_nonblocking(true).unwrap();
        let (mut far, _) = eventually_blocking("the relay connects", PATIENCE, || server.accept()).unwrap();
        far.set_nonblocking(false).unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        far.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "question");
        far.write_all(b"answer").unwrap();
        drop(far);
        heard.clear();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answer");
    }
}
