//! A server with a certificate of its own, and clients that trust it.

use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ipam_webhook::cache::AdmissionCache;
use ipam_webhook::limits::Limits;
use ipam_webhook::metrics::WebhookMetrics;
use ipam_webhook::routes::{AdmissionService, PATHS};
use ipam_webhook::server::Server;
use ipam_webhook::shared::{Expiry, WallClock};
use ipam_webhook_certs::{Offer, Pair, ServerCertificates, system_clock};
use prometheus_client::registry::Registry;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Nothing here takes a tenth of it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// Where IPPools are reviewed.
pub(crate) const IP_POOLS: &str = PATHS[0].0;

/// Waits for what the server sends. The test fails if the server has not sent it after [`PATIENCE`].
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("the server does not answer in time")
}

/// A running server.
pub(crate) struct Hook {
    pub(crate) port: u16,
    pub(crate) stop: CancellationToken,
    pub(crate) ended: JoinHandle<()>,
    /// Whoever holds its lock keeps every judgement waiting.
    pub(crate) known: Arc<RwLock<AdmissionCache>>,
    roots: RootCertStore,
    registry: Registry,
}

/// A connection for HTTP/1.1 requests.
pub(crate) struct Client(pub(crate) http1::SendRequest<Full<Bytes>>);

/// What is answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) closes: bool,
    pub(crate) body: Value,
}

impl Hook {
    pub(crate) async fn start(limits: Limits, grace: Duration) -> Self {
        Self::with_expiry(limits, grace, Arc::new(|| None)).await
    }

    /// `expiry` says when the certificate ends, whatever stands in it.
    pub(crate) async fn with_expiry(limits: Limits, grace: Duration, expiry: Expiry) -> Self {
        Self::with_clock(limits, grace, expiry, Arc::new(SystemTime::now)).await
    }

    /// The same where `wall` says what time it is.
    pub(crate) async fn with_clock(limits: Limits, grace: Duration, expiry: Expiry, wall: WallClock) -> Self {
        let (certificates, roots) = certificates();
        let metrics = WebhookMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let known = Arc::new(RwLock::new(AdmissionCache::new("pools")));
        let router = AdmissionService::new(known.clone(), metrics.clone(), limits).router();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server =
            Server::new(listener, certificates.server_config().unwrap(), expiry, wall, router, limits, metrics);
        let stop = CancellationToken::new();
        let ended = tokio::spawn(server.run(stop.clone(), grace));
        Self { port, stop, ended, known, roots, registry }
    }

    pub(crate) async fn tcp(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port)).await
    }

    pub(crate) async fn tls(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("webhook.invalid").unwrap();
        let stream = self.tcp().await?;
        in_time(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }

    pub(crate) async fn client(&self) -> Client {
        let stream = self.tls("http/1.1").await.unwrap();
        let (send, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Client(send)
    }

    pub(crate) async fn client2(&self) -> http2::SendRequest<Full<Bytes>> {
        self.client2_that_takes(None).await.0
    }

    /// A client that takes so many bytes of each answer at first; and what ends with its connection.
    pub(crate) async fn client2_that_takes(
        &self,
        window: Option<u32>,
    ) -> (http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
        let stream = TokioIo::new(self.tls("h2").await.unwrap());
        let mut client = http2::Builder::new(TokioExecutor::new());
        let (send, connection) = client.initial_stream_window_size(window).handshake(stream).await.unwrap();
        (send, tokio::spawn(connection))
    }

    /// The value of a metric; 0 if it is not told.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Waits until a metric is as wanted.
    pub(crate) async fn await_metric(&self, name: &str, holds: impl Fn(u64) -> bool) {
        let look = async {
            while !holds(self.metric(name)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, look).await;
        assert!(waited.is_ok(), "{name} is {}", self.metric(name));
    }
}

impl Client {
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        in_time(self.exchange(request)).await
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        self.0.ready().await?;
        let (head, body) = self.0.send_request(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let closes = head.headers.get("connection").is_some_and(|value| value == "close");
        Ok(Answer { status: head.status, closes, body: serde_json::from_slice(&bytes).unwrap() })
    }

    pub(crate) async fn review(&mut self, uid: &str) -> hyper::Result<Answer> {
        self.send(post(IP_POOLS, review(uid, &json!([])).to_string())).await
    }
}

/// A request as the API server sends it.
pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "webhook.invalid").header("content-type", "application/json");
    request.body(Full::new(body.into())).unwrap()
}

/// A request over HTTP/2.
pub(crate) fn post2(body: String) -> Request<Full<Bytes>> {
    let (mut head, body) = post(&format!("https://webhook.invalid{IP_POOLS}"), body).into_parts();
    head.headers.remove("host");
    Request::from_parts(head, body)
}

/// A review of a new pool with these exclusions.
pub(crate) fn review(uid: &str, exclusions: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid, "operation": "CREATE", "namespace": "pools", "name": "p", "dryRun": false,
            "kind": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "kind": "IPPool"},
            "resource": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "resource": "ippools"},
            "oldObject": null,
            "object": {"metadata": {"name": "p", "namespace": "pools"},
                "spec": {"subnet": "10.0.0.0/8", "perNodeBlockSize": 4, "exclusions": exclusions}},
        },
    })
}

fn certificates() -> (ServerCertificates, RootCertStore) {
    let mut params = rcgen::CertificateParams::new(vec!["webhook.invalid".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = (SystemTime::now() - Duration::from_mins(1)).into();
    params.not_after = (SystemTime::now() + Duration::from_hours(1)).into();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let certificates = ServerCertificates::new(system_clock());
    let pair = Pair::parse(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    assert_eq!(certificates.offer(&pair), Offer::Swapped);
    let mut roots = RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()).unwrap();
    (certificates, roots)
}
