//! One connection to the agent, and the calls over it.
//!
//! A CNI plugin lives for one call, so there is no pool, no reconnect, no balancing and no retry here: an error goes to
//! the caller at once, who tells the runtime. Every step has a deadline; nothing in here may wait for ever.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use crate::AgentAddress;
use crate::v1::ipam_garbage_service_client::IpamGarbageServiceClient;
use crate::v1::ipam_service_client::IpamServiceClient;
use crate::v1::{
    AllocateRequest, AllocationInfo, DeallocateRequest, IpamParameters, IsAllocatedRequest, ReleaseUnlistedRequest,
};

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or the path may not be opened.
    #[error("cannot connect to the agent at {address}: {source}")]
    Connect {
        /// Where the agent was expected.
        address: AgentAddress,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody accepts, and then does not speak HTTP/2.
    #[error("cannot speak HTTP/2 with the agent at {address}: {source}")]
    Handshake {
        /// Where the agent was expected.
        address: AgentAddress,
        /// What the HTTP/2 layer said.
        source: hyper::Error,
    },
    /// The deadline passed first.
    #[error("no connection to the agent at {address} before the deadline")]
    Deadline {
        /// Where the agent was expected.
        address: AgentAddress,
    },
}

/// A connection to the agent. Cheap to clone; needs a tokio runtime with I/O and time.
#[derive(Debug, Clone)]
pub struct AgentClient {
    connection: Connection,
}

impl AgentClient {
    /// Connects, or fails at `deadline`.
    pub async fn connect(address: &AgentAddress, deadline: Instant) -> Result<Self, ConnectError> {
        let connecting = async {
            let refused = |source| ConnectError::Connect { address: address.clone(), source };
            match address {
                AgentAddress::Unix(path) => handshake(address, connect_unix(path).await.map_err(refused)?).await,
                AgentAddress::Tcp(socket) => {
                    handshake(address, TcpStream::connect(socket).await.map_err(refused)?).await
                }
            }
        };
        let connection = timeout_at(deadline, connecting)
            .await
            .map_err(|_| ConnectError::Deadline { address: address.clone() })??;
        Ok(Self { connection })
    }

    /// Reserves addresses; the answer names one per pool, in the order of `parameters.pools`.
    pub async fn allocate(&self, parameters: IpamParameters, deadline: Instant) -> Result<Vec<AllocationInfo>, Status> {
        let request = request(AllocateRequest { parameters: Some(parameters) }, deadline);
        let response = within(deadline, self.ipam().allocate(request)).await?;
        Ok(response.allocations)
    }

    /// Succeeds when the interface holds an address in every pool named.
    pub async fn is_allocated(&self, parameters: IpamParameters, deadline: Instant) -> Result<(), Status> {
        let request = request(IsAllocatedRequest { parameters: Some(parameters) }, deadline);
        within(deadline, self.ipam().is_allocated(request)).await.map(drop)
    }

    /// Gives back what the interface holds; succeeds when that is nothing.
    pub async fn deallocate(&self, parameters: IpamParameters, deadline: Instant) -> Result<(), Status> {
        let request = request(DeallocateRequest { parameters: Some(parameters) }, deadline);
        within(deadline, self.ipam().deallocate(request)).await.map(drop)
    }

    /// Gives back what a network holds beyond the attachments listed; returns how many addresses that were.
    ///
    /// `Unimplemented` from an agent without this extension.
    pub async fn release_unlisted(&self, unlisted: ReleaseUnlistedRequest, deadline: Instant) -> Result<u64, Status> {
        let mut client = IpamGarbageServiceClient::new(self.connection.clone());
        let response = within(deadline, client.release_unlisted(request(unlisted, deadline))).await?;
        Ok(response.released)
    }

    /// Asks for nothing, and succeeds when the agent is up and ready.
    ///
    /// The contract has no call for this. A request without parameters is refused as `InvalidArgument` by every agent
    /// that takes requests at all and changes nothing, so any answer of the agent's own but `Unavailable` is good news.
    pub async fn probe(&self, deadline: Instant) -> Result<(), Status> {
        use tonic::Code::{Cancelled, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
        let request = request(IsAllocatedRequest { parameters: None }, deadline);
        match within(deadline, self.ipam().is_allocated(request)).await {
            Err(status)
                if matches!(
                    status.code(),
                    Unavailable | DeadlineExceeded | Cancelled | Internal | Unimplemented | Unknown
                ) =>
            {
                Err(status)
            }
            _ => Ok(()),
        }
    }

    fn ipam(&self) -> IpamServiceClient<Connection> {
        IpamServiceClient::new(self.connection.clone())
    }
}

/// Connects to a unix socket, and waits when its queue is full: hundreds of pods may start at once.
///
/// Linux answers a non-blocking `connect` to a full queue with `EAGAIN` and tells nobody when there is room again, so
/// the only way to wait is to ask again. The caller's deadline ends this.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    const PAUSE: Duration = Duration::from_millis(2);
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(PAUSE).await,
            connected => return connected,
        }
    }
}

/// Tells the agent how long we shall wait, so that it can drop what nobody waits for any more.
fn request<T>(message: T, deadline: Instant) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    request
}

/// The answer, or `DeadlineExceeded`: an agent that hangs does not watch the deadline for us.
async fn within<T>(deadline: Instant, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    match timeout_at(deadline, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("the agent did not answer before the deadline")),
    }
}

async fn handshake<S>(address: &AgentAddress, stream: S) -> Result<Connection, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|source| ConnectError::Handshake { address: address.clone(), source })?;
    // A broken connection is reported to the call in flight; the driver has nobody else to tell.
    tokio::spawn(async move { drop(driver.await) });
    Ok(Connection { sender })
}

/// The HTTP/2 connection as a service the generated clients can call.
#[derive(Debug, Clone)]
struct Connection {
    sender: http2::SendRequest<tonic::body::Body>,
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<hyper::body::Incoming>, Status>> + Send>>;

impl tower_service::Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    // A `Status`, because a lost connection would otherwise be reported as `Cancelled`, as if the caller had left.
    type Error = Status;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.sender.poll_ready(cx).map_err(lost)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Answer {
        // HTTP/2 wants a full URI. On a unix socket there is no host; gRPC's own clients send "localhost" then.
        let path = request.uri().path_and_query().cloned();
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        parts.authority = Some(http::uri::Authority::from_static("localhost"));
        parts.path_and_query = path.or_else(|| Some(http::uri::PathAndQuery::from_static("/")));
        if let Ok(uri) = http::Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        let sent = self.sender.send_request(request);
        Box::pin(async { sent.await.map_err(lost) })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape `map_err` wants")]
fn lost(error: hyper::Error) -> Status {
    Status::unavailable(format!("connection to the agent lost: {error}"))
}
