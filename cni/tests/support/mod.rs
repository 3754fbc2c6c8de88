//! A scripted agent: a real gRPC server on a real socket that answers as told and remembers what it was asked.

#![expect(clippy::unwrap_used, reason = "a failed precondition of a test is a failed test")]
#![allow(dead_code, unreachable_pub, reason = "compiled into each test file, which uses a part of it")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ipam_cni::{Defaults, Invocation, Outcome, run};
use ipam_node_api::v1::ipam_garbage_service_server::{IpamGarbageService, IpamGarbageServiceServer};
use ipam_node_api::v1::ipam_service_server::{IpamService, IpamServiceServer};
use ipam_node_api::v1::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// What the agent answers.
#[derive(Clone)]
pub struct Script {
    pub allocate: Result<Vec<AllocationInfo>, Status>,
    pub is_allocated: Result<(), Status>,
    pub deallocate: Result<(), Status>,
    /// `None`: an agent without the extension.
    pub release: Option<Result<u64, Status>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            allocate: Ok(vec![allocation("pool1", "192.168.0.2/24", "192.168.0.1", &["0.0.0.0/0"])]),
            is_allocated: Ok(()),
            deallocate: Ok(()),
            release: Some(Ok(0)),
        }
    }
}

pub fn allocation(pool: &str, ip: &str, gateway: &str, routes: &[&str]) -> AllocationInfo {
    AllocationInfo {
        pool: pool.into(),
        ip: ip.into(),
        gateway: gateway.into(),
        pool_type: PoolType::Ippool.into(),
        routes: routes.iter().map(|dest| Route { dest: (*dest).into() }).collect(),
    }
}

/// What the agent was asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Allocate(IpamParameters),
    IsAllocated(Option<IpamParameters>),
    Deallocate(IpamParameters),
    Release(ReleaseUnlistedRequest),
}

#[derive(Clone)]
struct Service {
    script: Script,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Service {
    fn asked(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }
}

#[tonic::async_trait]
impl IpamService for Service {
    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        self.asked(Asked::Allocate(request.into_inner().parameters.unwrap()));
        self.script.allocate.clone().map(|allocations| Response::new(AllocateResponse { allocations }))
    }
    async fn is_allocated(
        &self,
        request: Request<IsAllocatedRequest>,
    ) -> Result<Response<IsAllocatedResponse>, Status> {
        self.asked(Asked::IsAllocated(request.into_inner().parameters));
        self.script.is_allocated.clone().map(|()| Response::new(IsAllocatedResponse {}))
    }
    async fn deallocate(&self, request: Request<DeallocateRequest>) -> Result<Response<DeallocateResponse>, Status> {
        self.asked(Asked::Deallocate(request.into_inner().parameters.unwrap()));
        self.script.deallocate.clone().map(|()| Response::new(DeallocateResponse {}))
    }
}

#[tonic::async_trait]
impl IpamGarbageService for Service {
    async fn release_unlisted(
        &self,
        request: Request<ReleaseUnlistedRequest>,
    ) -> Result<Response<ReleaseUnlistedResponse>, Status> {
        self.asked(Asked::Release(request.into_inner()));
        let released = self.script.release.clone().unwrap()?;
        Ok(Response::new(ReleaseUnlistedResponse { released }))
    }
}

/// A running scripted agent, with a directory for its socket, the conf file and the log.
pub struct Agent {
    pub dir: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub fn start(script: Script) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let service = Service { script, asked: Arc::clone(&asked) };
        // Bound here, so that a client that comes at once is queued by the kernel and never refused.
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("daemon.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || serve(service, listener, stopped));
        Self { dir, asked, stop: Some(stop), thread: Some(thread) }
    }

    /// An agent that is away: the same directory, nobody on the socket.
    pub fn away() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), asked: Arc::default(), stop: None, thread: None }
    }

    pub fn socket(&self) -> String {
        format!("unix://{}", self.dir.path().join("daemon.sock").display())
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("cni.log")
    }

    pub fn defaults(&self) -> Defaults {
        Defaults {
            conf_dir: self.dir.path().to_owned(),
            log_file: self.log(),
            daemon_socket: self.socket(),
            call_timeout: Duration::from_secs(20),
        }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The only request so far.
    pub fn asked_once(&self) -> Asked {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked[0].clone()
    }

    /// Runs the plugin with `CNI_COMMAND=command` and a usual environment.
    pub fn run(&self, command: &str, config: &Value) -> Outcome {
        self.run_with(&environment(command), config.to_string().as_bytes())
    }

    pub fn run_with(&self, environment: &[(&str, &str)], stdin: &[u8]) -> Outcome {
        let environment = environment.iter().map(|(key, value)| (OsString::from(key), OsString::from(value))).collect();
        run(Invocation { environment, stdin }, &self.defaults())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the scripted agent panicked");
        }
    }
}

fn serve(service: Service, listener: std::os::unix::net::UnixListener, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap());
        let garbage = service.script.release.is_some().then(|| IpamGarbageServiceServer::new(service.clone()));
        let server = tonic::transport::Server::builder()
            .add_service(IpamServiceServer::new(service))
            .add_optional_service(garbage)
            .serve_with_incoming(incoming);
        tokio::select! {
            end = server => end.unwrap(),
            _ = stopped => {}
        }
    });
}

/// The environment of a runtime, as kubelet and Multus set it.
pub fn environment(command: &str) -> Vec<(&str, &str)> {
    vec![
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c0ffee"),
        ("CNI_IFNAME", "net1"),
        ("CNI_NETNS", "/var/run/netns/x"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", "IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=uid;X=y"),
    ]
}

/// A network configuration with `ipam` in it.
pub fn network(version: &str, ipam: &Value) -> Value {
    json!({"cniVersion": version, "name": "net-a", "type": "macvlan", "ipam": ipam})
}

/// `a` with the members of `b`.
pub fn with(mut a: Value, b: &Value) -> Value {
    for (key, value) in b.as_object().unwrap() {
        a[key] = value.clone();
    }
    a
}

/// Code and message of an error on standard output; panics when it is none.
pub fn error(outcome: &Outcome) -> (u64, String) {
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    (json["code"].as_u64().unwrap(), json["msg"].as_str().unwrap().to_owned())
}

/// Nothing on standard output and a status of 0, as DEL, CHECK, STATUS and GC succeed.
pub fn assert_silent_success(outcome: &Outcome) {
    assert_eq!(outcome, &Outcome::default());
}
