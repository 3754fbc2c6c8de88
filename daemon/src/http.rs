//! The small HTTP server behind /healthz, /readyz and /metrics.
//!
//! Serves these three paths, and knows nothing about the content. A slow or hostile client takes one of a limited number of
//! connections, until a deadline closes it. It never delays another client.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// A health check: an error has a short reason.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Connections served at a time; a kubelet and a scraper need two.
const CONNECTIONS: usize = 32;
/// Longest time until a request's head has arrived.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection. Scrapers that keep connections alive open a new one then.
const CONNECTION_LIFE: Duration = Duration::from_mins(2);
/// Pause after a failed `accept`. The usual cause is a temporary lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one port serves; a path whose part is `None` does not exist there.
#[derive(Clone, Default)]
pub struct Site {
    /// `/healthz`: whether the process works at all; the kubelet restarts it after a failure.
    pub live: Option<Check>,
    /// `/readyz`: whether the process can do its work.
    pub ready: Option<Check>,
    /// `/metrics`, in the OpenMetrics text format if the client accepts it, else in the Prometheus text format.
    pub metrics: Option<Arc<Registry>>,
}

impl Site {
    /// A port with the two probes.
    pub fn probes(live: Check, ready: Check) -> Self {
        Self { live: Some(live), ready: Some(ready), metrics: None }
    }

    /// A port with the metrics.
    pub fn metrics(registry: Arc<Registry>) -> Self {
        Self { metrics: Some(registry), ..Self::default() }
    }

    /// Serves until `stop` is cancelled. `None` (a port that is off) returns at once.
    pub async fn serve(self, listener: Option<TcpListener>, stop: CancellationToken) {
        let Some(listener) = listener else { return };
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.take(stream, &room, &stop),
                Err(error) => {
                    warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, room: &Arc<Semaphore>, stop: &CancellationToken) {
        // Beyond the bound a connection is closed at once: waiting would let idle clients block the probes.
        let Ok(place) = Arc::clone(room).try_acquire_owned() else {
            return debug!("too many HTTP connections, one is turned away");
        };
        let (site, stop) = (self.clone(), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = site.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(16 * 1024);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = stop.cancelled() => {}
                // Errors here are caused by clients, for example by a port scan, and are not logged.
                done = timeout(CONNECTION_LIFE, connection) => drop(done),
            }
            drop(place);
        });
    }

    /// The answer to one request.
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let takes =
            |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("application/openmetrics-text"));
        let open = request.headers().get_all(header::ACCEPT).iter().any(takes);
        self.route(request.method(), request.uri().path(), open)
    }

    fn route(&self, method: &Method, path: &str, open_metrics: bool) -> Response<Full<Bytes>> {
        let known = match path {
            "/healthz" => self.live.as_ref().map(checked),
            "/readyz" => self.ready.as_ref().map(checked),
            "/metrics" => self.metrics.as_deref().map(|registry| encoded(registry, open_metrics)),
            _ => None,
        };
        let (status, content_type, body) = match known {
            None => (StatusCode::NOT_FOUND, PLAIN, "not found\n".to_owned()),
            Some(_) if method != Method::GET && method != Method::HEAD => {
                (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are served here\n".to_owned())
            }
            Some(answer) => answer,
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }
}

type Answer = (StatusCode, &'static str, String);

const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

fn checked(check: &Check) -> Answer {
    match check() {
        Ok(()) => (StatusCode::OK, PLAIN, "ok".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
    }
}

fn encoded(registry: &Registry, open_metrics: bool) -> Answer {
    let mut body = String::new();
    match prometheus_client::encoding::text::encode(&mut body, registry) {
        Ok(()) if open_metrics => (StatusCode::OK, OPEN_METRICS, body),
        Ok(()) => (StatusCode::OK, PROMETHEUS, prometheus_text(&body)),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("cannot write the metrics: {error}\n")),
    }
}

/// Converts OpenMetrics text into the older Prometheus text format. There the comments of a counter or an info name it with
/// `_total` or `_info`, as its samples do. An info is a gauge, and `unknown` is `untyped`. Units and the end are not written.
fn prometheus_text(open_metrics: &str) -> String {
    let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let suffixes: HashMap<&str, &str> = types
        .filter_map(|(name, kind)| match kind {
            "counter" => Some((name, "_total")),
            "info" => Some((name, "_info")),
            _ => None,
        })
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let comment = ["# HELP ", "# TYPE "].into_iter().find_map(|start| Some((start, line.strip_prefix(start)?)));
        match comment.and_then(|(start, rest)| Some((start, rest.split_once(' ')?))) {
            Some((start, (name, rest))) => {
                let suffix = suffixes.get(name).copied().unwrap_or_default();
                let rest = match (start, rest) {
                    ("# TYPE ", "unknown") => "untyped",
                    ("# TYPE ", "info") => "gauge",
                    _ => rest,
                };
                text.extend([start, name, suffix, " ", rest, "\n"]);
            }
            None if line.starts_with('#') => {}
            None => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::info::Info;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::BindAddress;

    /// Waits for what the server does. The test fails if that takes half a minute.
    async fn in_time<T>(what: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(30), what).await.expect("the server does not answer in time")
    }

    async fn get(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        in_time(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    async fn start(site: Site) -> (u16, CancellationToken) {
        let listener = BindAddress::parse("127.0.0.1:0").unwrap().bind().await.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        tokio::spawn(site.serve(Some(listener), stop.clone()));
        (port, stop)
    }

    fn request(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn readyz_follows_its_check_and_says_what_is_missing() {
        let ready = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ready);
        let check: Check = Arc::new(move || told.load(Ordering::SeqCst).then_some(()).ok_or("no spec yet".into()));
        let (port, _stop) = start(Site::probes(Arc::new(|| Ok(())), check)).await;
        let answer = get(port, &request("/readyz")).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("no spec yet"), "{answer}");
        ready.store(true, Ordering::SeqCst);
        assert!(get(port, &request("/readyz")).await.starts_with("HTTP/1.1 200"));
        assert!(get(port, &request("/healthz")).await.starts_with("HTTP/1.1 200"));
        assert!(get(port, &request("/metrics")).await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn metrics_are_served_as_open_metrics_to_those_who_ask_for_it_and_as_prometheus_text_to_others() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("things", "Things seen", counter.clone());
        registry.register("build", "Version", Info::new([("version", "1")]));
        counter.inc();
        let (port, _stop) = start(Site::metrics(Arc::new(registry))).await;
        let open = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
            Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5\r\n\r\n";
        let answer = get(port, open).await;
        assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
        assert!(answer.contains("# TYPE things counter\nthings_total 1\n"), "{answer}");
        assert!(answer.contains("# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n"), "{answer}");
        let answer = get(port, &request("/metrics")).await;
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        let expected = "# HELP things_total Things seen.\n# TYPE things_total counter\nthings_total 1\n\
            # HELP build_info Version.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(answer.split_once("\r\n\r\n").unwrap().1, expected);
    }

    #[tokio::test]
    async fn other_methods_and_nonsense_are_refused_and_do_no_harm() {
        let (port, _stop) = start(Site::probes(Arc::new(|| Ok(())), Arc::new(|| Ok(())))).await;
        let posted =
            get(port, "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
        get(port, "\0\u{1}nonsense\r\n\r\n").await;
        assert!(get(port, &request("/healthz")).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn idle_connections_up_to_the_bound_are_held_and_more_are_turned_away() {
        let (port, stop) = start(Site::probes(Arc::new(|| Ok(())), Arc::new(|| Ok(())))).await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let mut turned_away = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(in_time(turned_away.read(&mut [0])).await.unwrap_or(0), 0);
        stop.cancel();
        assert_eq!(in_time(idle[0].read(&mut [0])).await.unwrap_or(0), 0);
    }
}
