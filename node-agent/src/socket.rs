//! Where the plugin reaches the agent: binding, bounding and serving.
//!
//! Decides who may connect (on a unix socket: root alone) and how much one caller may cost.

mod authority;
mod hpack;

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use ipam_node_api::AgentAddress;
use ipam_node_api::v1::ipam_garbage_service_server::IpamGarbageServiceServer;
use ipam_node_api::v1::ipam_service_server::IpamServiceServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::{info, warn};

use crate::rpc::Rpc;
use authority::Incoming;

/// Connections at a time. A runtime starts some dozen plugins at once, each with one.
const CONNECTIONS: usize = 1024;
/// Calls under way on one connection.
const STREAMS: u32 = 128;
/// Longest message. A request takes some hundred bytes; a GC request lists a node's attachments.
const MESSAGE: usize = 1024 * 1024;
/// Longest call; the plugin gives up earlier.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that does not answer a ping within this is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between two checks that the path still leads to the socket of this agent.
const PATH_CHECK: Duration = Duration::from_secs(1);

/// A bound address.
#[derive(Debug)]
pub enum Listener {
    /// A unix socket, taken away when dropped.
    Unix(UnixListener, SocketFile),
    /// A TCP port.
    Tcp(TcpListener),
}

/// The file of a unix socket; dropping it takes the file away if it still is this one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// The path does not lead to the socket of this agent any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} is not the socket of this agent any more: it was removed, or another agent has put its own there. Two agents on one node \
     assign addresses twice; stop the other one, for example the DaemonSet of NVIDIA's nv-ipam"
)]
pub struct Replaced {
    path: String,
}

impl SocketFile {
    fn is_at(path: &Path, identity: (u64, u64)) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // An agent that ends with calls still under way has let go of the store's lock by now, and the next one may have
        // put its own socket here: to take that away would cut the node off.
        if Self::is_at(&self.path, self.identity) {
            drop(fs::remove_file(&self.path));
        }
    }
}

impl Listener {
    /// Binds. A unix socket that nobody listens on is replaced; one that is in use, or a file of another kind, is an error.
    pub fn bind(address: &AgentAddress) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
        match address {
            AgentAddress::Unix(path) => bind_unix(path).map_err(named),
            AgentAddress::Tcp(socket) => {
                let listener = std::net::TcpListener::bind(socket).map_err(named)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(listener)?))
            }
        }
    }

    /// Waits until the path does not lead to this socket any more. For a TCP port that never happens.
    pub fn replaced(&self) -> impl Future<Output = Replaced> + use<> {
        let socket = match self {
            Self::Unix(_, file) => Some((file.path.clone(), file.identity)),
            Self::Tcp(_) => None,
        };
        async move {
            let Some((path, identity)) = socket else { return std::future::pending().await };
            while SocketFile::is_at(&path, identity) {
                tokio::time::sleep(PATH_CHECK).await;
            }
            Replaced { path: path.display().to_string() }
        }
    }

    /// Serves calls until `stop`, then lets those under way finish.
    pub async fn serve(self, rpc: Rpc, stop: CancellationToken) -> Result<(), tonic::transport::Error> {
        let ipam = IpamServiceServer::new(rpc.clone()).max_decoding_message_size(MESSAGE);
        let garbage = IpamGarbageServiceServer::new(rpc).max_decoding_message_size(MESSAGE);
        let mut server = Server::builder()
            .timeout(CALL_TIMEOUT)
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE));
        let router = server.add_service(ipam).add_service(garbage);
        let stopped = async move { stop.cancelled().await };
        match self {
            Self::Unix(listener, file) => {
                let incoming =
                    bounded(listener, |listener| Box::pin(async { listener.accept().await.map(|(io, _)| io) }));
                let ended = router.serve_with_incoming_shutdown(incoming, stopped).await;
                drop(file);
                ended
            }
            Self::Tcp(listener) => {
                let incoming =
                    bounded(listener, |listener| Box::pin(async { listener.accept().await.map(|(io, _)| io) }));
                router.serve_with_incoming_shutdown(incoming, stopped).await
            }
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file is there that is no socket; move it away",
            ));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there; stop it first"));
        }
        Ok(_) => info!(path = %path.display(), "replacing the socket of an agent that is gone"),
    }
    // Bound under another name first: under its own it is never seen with a wider mode, nor is it ever absent.
    let temporary = path.with_file_name(format!(".{}", std::process::id()));
    drop(fs::remove_file(&temporary));
    let listener = UnixListener::bind(&temporary)?;
    let placed = fs::set_permissions(&temporary, Permissions::from_mode(0o600))
        .and_then(|()| fs::symlink_metadata(&temporary))
        .and_then(|found| fs::rename(&temporary, path).map(|()| (found.dev(), found.ino())));
    match placed {
        Ok(identity) => Ok(Listener::Unix(listener, SocketFile { path: path.to_owned(), identity })),
        Err(error) => {
            drop(fs::remove_file(&temporary));
            Err(error)
        }
    }
}

type Accepting<'a, S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send + 'a>>;

/// Connections of `listener`, at most [`CONNECTIONS`] at a time: a further one waits until another is closed.
fn bounded<L, S>(
    listener: L,
    accept: for<'a> fn(&'a L) -> Accepting<'a, S>,
) -> BoxStream<'static, io::Result<Bounded<S>>>
where
    L: Send + Sync + 'static,
    S: Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    stream::unfold((listener, room), move |(listener, room)| async move {
        loop {
            let permit = Arc::clone(&room).acquire_owned().await.ok()?;
            match accept(&listener).await {
                Ok(io) => {
                    let connection = Bounded { io, incoming: Incoming::new(), _permit: permit };
                    return Some((Ok(connection), (listener, room)));
                }
                Err(error) => {
                    // Mostly a lack of file descriptors, which passes.
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
    .boxed()
}

/// A connection that counts until it is closed.
struct Bounded<S> {
    io: S,
    incoming: Incoming,
    _permit: OwnedSemaphorePermit,
}

impl<S: Connected> Connected for Bounded<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, incoming, .. } = &mut *self;
        incoming.poll_read(Pin::new(io), cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(path: &Path) -> AgentAddress {
        AgentAddress::Unix(path.to_owned())
    }

    #[tokio::test]
    async fn the_socket_is_private_and_so_is_a_directory_made_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/daemon.sock");
        let listener = Listener::bind(&address(&path)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let _held = Listener::bind(&address(&path)).unwrap();
        let refused = Listener::bind(&address(&path)).unwrap_err().to_string();
        assert!(refused.contains("another process listens") && refused.contains("daemon.sock"), "{refused}");
    }

    #[tokio::test]
    async fn the_socket_of_the_next_agent_is_not_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        let ending = Listener::bind(&address(&path)).unwrap();
        let next = directory.path().join("next.sock");
        let _next = std::os::unix::net::UnixListener::bind(&next).unwrap();
        fs::rename(&next, &path).unwrap();
        drop(ending);
        assert!(path.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_learns_that_its_path_leads_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        for other in [true, false] {
            let listener = Listener::bind(&address(&path)).unwrap();
            let mut replaced = Box::pin(listener.replaced());
            assert!(futures::poll!(&mut replaced).is_pending());
            fs::remove_file(&path).unwrap();
            let _other = other.then(|| std::os::unix::net::UnixListener::bind(&path).unwrap());
            assert!(replaced.await.to_string().contains("daemon.sock"));
            drop(listener);
            assert_eq!(path.exists(), other, "the socket of another agent stays");
            drop(fs::remove_file(&path));
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&address(&path)).unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
