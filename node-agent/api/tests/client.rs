//! The client against real servers on real sockets, and against peers that are away, mute or strangers.

#![expect(clippy::unwrap_used, reason = "a failed precondition of a test is a failed test")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use ipam_node_api::AgentAddress;
use ipam_node_api::client::{AgentClient, ConnectError};
use ipam_node_api::v1::ipam_garbage_service_server::{IpamGarbageService, IpamGarbageServiceServer};
use ipam_node_api::v1::ipam_service_server::{IpamService, IpamServiceServer};
use ipam_node_api::v1::*;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

/// Answers as the agent would, but only with what the request says.
#[derive(Default)]
struct Echo {
    /// What a request without parameters is refused with.
    refusal: Mutex<Option<Status>>,
}

#[tonic::async_trait]
impl IpamService for Echo {
    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        let parameters = request.into_inner().parameters.unwrap();
        let routes = timeout.map(|dest| Route { dest }).into_iter().collect::<Vec<_>>();
        let allocation = |pool| AllocationInfo { pool, routes: routes.clone(), ..AllocationInfo::default() };
        Ok(Response::new(AllocateResponse { allocations: parameters.pools.into_iter().map(allocation).collect() }))
    }
    async fn is_allocated(
        &self,
        request: Request<IsAllocatedRequest>,
    ) -> Result<Response<IsAllocatedResponse>, Status> {
        if request.into_inner().parameters.is_none()
            && let Some(refusal) = self.refusal.lock().unwrap().clone()
        {
            return Err(refusal);
        }
        Ok(Response::new(IsAllocatedResponse {}))
    }
    async fn deallocate(&self, request: Request<DeallocateRequest>) -> Result<Response<DeallocateResponse>, Status> {
        Err(Status::not_found(request.into_inner().parameters.unwrap().cni_ifname))
    }
}

#[tonic::async_trait]
impl IpamGarbageService for Echo {
    async fn release_unlisted(
        &self,
        request: Request<ReleaseUnlistedRequest>,
    ) -> Result<Response<ReleaseUnlistedResponse>, Status> {
        let released = request.into_inner().valid_attachments.len() as u64;
        Ok(Response::new(ReleaseUnlistedResponse { released }))
    }
}

/// Runs `test` against `Echo` on a unix socket; `garbage` says whether the extension is mounted.
async fn with_agent<T: Future<Output = ()>>(agent: Echo, garbage: bool, test: impl FnOnce(AgentAddress) -> T) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::builder()
        .add_service(IpamServiceServer::new(agent))
        .add_optional_service(garbage.then(|| IpamGarbageServiceServer::new(Echo::default())));
    tokio::select! {
        end = server.serve_with_incoming(UnixListenerStream::new(listener)) => panic!("the server ended: {end:?}"),
        () = test(AgentAddress::Unix(path)) => {}
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn for_pools(pools: &[&str]) -> IpamParameters {
    IpamParameters {
        pools: pools.iter().map(ToString::to_string).collect(),
        cni_ifname: "net1".into(),
        ..IpamParameters::default()
    }
}

#[tokio::test]
async fn every_call_reaches_its_method_over_a_unix_socket() {
    with_agent(Echo::default(), true, async |address| {
        let agent = AgentClient::connect(&address, soon()).await.unwrap();
        let given = agent.allocate(for_pools(&["a", "b"]), soon()).await.unwrap();
        assert_eq!(given.iter().map(|one| one.pool.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        agent.is_allocated(for_pools(&["a"]), soon()).await.unwrap();
        let refused = agent.deallocate(for_pools(&["a"]), soon()).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::NotFound, "net1"));
        let listed = ReleaseUnlistedRequest {
            valid_attachments: vec![Attachment::default(), Attachment::default()],
            ..ReleaseUnlistedRequest::default()
        };
        assert_eq!(agent.release_unlisted(listed, soon()).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_call_works_over_tcp() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = Server::builder().add_service(IpamServiceServer::new(Echo::default()));
    let call = async {
        let agent = AgentClient::connect(&address, soon()).await.unwrap();
        agent.is_allocated(for_pools(&["a"]), soon()).await.unwrap();
    };
    tokio::select! {
        end = server.serve_with_incoming(TcpListenerStream::new(listener)) => panic!("the server ended: {end:?}"),
        () = call => {}
    }
}

#[tokio::test]
async fn the_agent_is_told_how_long_the_caller_waits() {
    with_agent(Echo::default(), false, async |address| {
        let agent = AgentClient::connect(&address, soon()).await.unwrap();
        let given = agent.allocate(for_pools(&["a"]), soon()).await.unwrap();
        assert!(given[0].routes[0].dest.ends_with('u') || given[0].routes[0].dest.ends_with('m'), "{given:?}");
    })
    .await;
}

#[tokio::test]
async fn an_agent_without_the_extension_says_unimplemented() {
    with_agent(Echo::default(), false, async |address| {
        let agent = AgentClient::connect(&address, soon()).await.unwrap();
        let refused = agent.release_unlisted(ReleaseUnlistedRequest::default(), soon()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    })
    .await;
}

#[tokio::test]
async fn a_probe_takes_a_refusal_for_life_and_not_ready_for_failure() {
    for (answer, alive) in [
        (Status::invalid_argument("parameters: missing"), true),
        (Status::not_found("no reservation"), true),
        (Status::unavailable("no pools read yet"), false),
        (Status::internal("store broken"), false),
        (Status::unimplemented("another service"), false),
    ] {
        let agent = Echo { refusal: Mutex::new(Some(answer.clone())) };
        with_agent(agent, false, async |address| {
            let agent = AgentClient::connect(&address, soon()).await.unwrap();
            assert_eq!(agent.probe(soon()).await.is_ok(), alive, "{answer}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_absent_agent_is_named_with_its_address() {
    let address: AgentAddress = "unix:///nonexistent/daemon.sock".parse().unwrap();
    let error = AgentClient::connect(&address, soon()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("unix:///nonexistent/daemon.sock"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_mute_peer_costs_no_more_than_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.sock");
    let _mute = UnixListener::bind(&path).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let agent = AgentClient::connect(&AgentAddress::Unix(path), deadline).await.unwrap();
    let error = agent.allocate(for_pools(&["a"]), deadline).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(Instant::now() >= deadline && Instant::now() < deadline + Duration::from_secs(1));
}

#[tokio::test]
async fn a_stranger_on_the_socket_is_an_error_and_not_a_hang() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let stranger = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    };
    let call = async {
        let agent = AgentClient::connect(&AgentAddress::Unix(path.clone()), soon()).await.unwrap();
        agent.is_allocated(for_pools(&["a"]), soon()).await.unwrap_err()
    };
    let ((), error) = tokio::join!(stranger, call);
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_full_queue_of_the_socket_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.sock");
    let socket = tokio::net::UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut queued = Vec::new();
    let full = loop {
        match tokio::net::UnixStream::connect(&path).await {
            Ok(stream) => queued.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock, "the queue must be full");
    let address = AgentAddress::Unix(path);
    let overdue = AgentClient::connect(&address, Instant::now() + Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(overdue, ConnectError::Deadline { .. }), "{overdue:?}");

    let mut connecting = tokio::spawn(async move { AgentClient::connect(&address, soon()).await.map(drop) });
    let waits = tokio::time::timeout(Duration::from_millis(50), &mut connecting).await;
    assert!(waits.is_err(), "the queue is still full: {waits:?}");
    let _room = listener.accept().await.unwrap();
    connecting.await.unwrap().unwrap();
}
