//! A client that treats connections as an API server's does: HTTP/1.1, kept alive, the one used last taken first; closed when the
//! server asks for it. A request goes to another connection only if not a byte of it was sent. After some reviews it leaves a
//! connection by itself, so that a replica that was away is met again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::control_plane::ControlPlane;
use crate::webhook::{Authority, Mount, PATHS, Replica};

/// The API server's own patience.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reviews after which a connection is left. API servers do so only when they are restarted; a campaign is too short for that.
const SERVES: u32 = 50;

/// When which certificate ends, by its DER.
pub type Known = Arc<Mutex<HashMap<Vec<u8>, SystemTime>>>;

/// A client of one address.
pub struct Client {
    address: SocketAddr,
    /// Namespace of the pools that are reviewed.
    namespace: String,
    tls: TlsConnector,
    known: Known,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    send: SendRequest<Full<Bytes>>,
    /// When the certificate that it was made with ends.
    expires: Option<SystemTime>,
    /// Reviews that it has carried.
    served: u32,
}

/// What came back.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Whether it came after the end of the certificate of its connection.
    pub expired: bool,
}

impl Client {
    /// One that trusts the CA in `ca` (PEM), and knows when certificates end from `known`.
    ///
    /// # Errors
    /// When the CA does not parse.
    pub fn new(address: SocketAddr, namespace: &str, ca: &str, known: Known) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { address, namespace: namespace.to_owned(), tls, known, idle: Mutex::default() })
    }

    /// A new replica with a certificate for an hour, and a client that trusts it.
    ///
    /// # Errors
    /// When the replica does not start.
    pub fn with_replica(plane: &ControlPlane, namespace: &str) -> Result<(Replica, Self)> {
        let authority = Authority::new()?;
        let mut mount = Mount::create(&plane.directory().join(format!("{namespace}.secret")))?;
        mount.exchange(&authority.issue(Duration::from_hours(1))?)?;
        let replica = Replica::start(plane, namespace, mount.directory(), &[])?;
        let client = Self::new(
            SocketAddr::from(([127, 0, 0, 1], replica.port())),
            namespace,
            &authority.pem(),
            Known::default(),
        )?;
        Ok((replica, client))
    }

    /// Sends one review and judges the answer: the right uid, and let through.
    ///
    /// # Errors
    /// When there is none in time, or another.
    pub async fn review(&self, uid: &str) -> Result<Answer> {
        timeout(PATIENCE, self.send(uid)).await.context("no answer in time")?
    }

    async fn send(&self, uid: &str) -> Result<Answer> {
        let mut request = request(&self.namespace, uid)?;
        loop {
            let mut connection = match self.pop() {
                Some(connection) => connection,
                None => self.dial().await?,
            };
            match connection.send.try_send_request(request).await {
                Ok(response) => return self.judge(uid, connection, response).await,
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error()).context("the connection broke under a review"),
                },
            }
        }
    }

    async fn judge(&self, uid: &str, mut connection: Connection, response: http::Response<Incoming>) -> Result<Answer> {
        let closes = response.headers().get("connection").is_some_and(|value| value == "close");
        let status = response.status();
        let bytes = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).context("the answer is no JSON")?;
        let expired = connection.expires.is_some_and(|at| at < SystemTime::now());
        ensure!(status == 200, "HTTP {status}: {answer}");
        ensure!(answer["response"]["uid"] == uid, "the answer to another review: {answer}");
        ensure!(answer["response"]["allowed"] == true, "refused: {answer}");
        connection.served += 1;
        if !closes && connection.served < SERVES {
            self.idle().push(connection);
        }
        Ok(Answer { expired })
    }

    fn pop(&self) -> Option<Connection> {
        let mut idle = self.idle();
        // What the server has closed meanwhile is no longer ready.
        while let Some(connection) = idle.pop() {
            if connection.send.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_of(&self, certificate: &[u8]) -> Option<SystemTime> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(certificate).copied()
    }

    /// Opens a connection and begins to greet.
    ///
    /// # Errors
    /// When the server does not take so much.
    pub async fn begin_handshake(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await?;
        Ok(stream)
    }

    /// Opens a connection and sends the head of a request, with a body of `length` bytes to follow.
    ///
    /// # Errors
    /// When the server does not take so much.
    pub async fn begin(&self, length: usize) -> Result<TlsStream<TcpStream>> {
        self.begin_with(&format!("Content-Length: {length}")).await
    }

    /// A request whose body is to be sent by the caller, in chunks.
    ///
    /// # Errors
    /// When the server does not take so much.
    pub async fn begin_chunked(&self) -> Result<TlsStream<TcpStream>> {
        self.begin_with("Transfer-Encoding: chunked").await
    }

    async fn begin_with(&self, framing: &str) -> Result<TlsStream<TcpStream>> {
        let Some((_, path)) = PATHS.first() else { bail!("no path") };
        let mut stream = self.secured().await?;
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.context("the head was not taken")?;
        Ok(stream)
    }

    async fn secured(&self) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        self.tls.connect(name, stream).await.context("the TLS handshake failed")
    }

    async fn dial(&self) -> Result<Connection> {
        let stream = self.secured().await?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|leaf| leaf.to_vec());
        let expires = leaf.and_then(|leaf| self.end_of(&leaf));
        let (send, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection { send, expires, served: 0 })
    }
}

fn request(namespace: &str, uid: &str) -> Result<Request<Full<Bytes>>> {
    let Some((_, path)) = PATHS.first() else { bail!("no path") };
    let request = Request::post(*path).header("host", "localhost").header("content-type", "application/json");
    Ok(request.body(Full::new(Bytes::from(body(namespace, uid))))?)
}

/// A review of a new IPPool with ten exclusions.
pub fn body(namespace: &str, uid: &str) -> String {
    let exclusions: Vec<_> =
        (1..=10).map(|i| json!({"startIP": format!("10.77.{i}.10"), "endIP": format!("10.77.{i}.20")})).collect();
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid, "operation": "CREATE", "namespace": namespace, "name": "reviewed", "dryRun": false,
            "kind": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "kind": "IPPool"},
            "resource": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "resource": "ippools"},
            "userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "oldObject": null,
            "object": {
                "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool",
                "metadata": {"name": "reviewed", "uid": "0", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"subnet": "10.77.0.0/16", "perNodeBlockSize": 100, "gateway": "10.77.0.1", "exclusions": exclusions},
            },
        },
    })
    .to_string()
}
