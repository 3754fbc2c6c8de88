//! The metrics that both daemons have: requests to the API server, the build, and the process.
//!
//! Names and units are those of client-go and of Prometheus' client libraries, so that alerts made for other Kubernetes components fit these,
//! too. Labels are fewer: a daemon has one API server, and needs no URL.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tower::{Layer, Service};

/// A registry with the metrics of the process, and those of `requests`. The daemon adds its own ones to a sub-registry with its prefix
/// ([`own`]).
pub fn registry(requests: &Requests) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposed));
    requests.register(&mut registry);
    registry
}

/// The part of `registry` for the metrics of one daemon, which begin with `prefix`. It has the version of the build.
pub fn own<'a>(registry: &'a mut Registry, prefix: &str) -> &'a mut Registry {
    let own = registry.sub_registry_with_prefix(prefix);
    own.register("build", "Version of the program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    own
}

/// Requests to the API server. Clones share their values.
#[derive(Clone, Debug)]
pub struct Requests {
    total: Family<RequestLabels, Counter>,
    duration: Family<MethodLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    /// The HTTP status, or `<error>` as in client-go.
    code: String,
    method: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct MethodLabels {
    method: &'static str,
}

/// A histogram with buckets from 5 ms to 41 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 14))
}

impl Default for Requests {
    fn default() -> Self {
        Self { total: Family::default(), duration: Family::new_with_constructor(durations) }
    }
}

impl Requests {
    fn register(&self, registry: &mut Registry) {
        let help = "Requests to the API server, by status code and method";
        registry.register("rest_client_requests", help, self.total.clone());
        let help = "Time from a request to the API server until the head of its answer";
        registry.register_with_unit("rest_client_request_duration", help, Unit::Seconds, self.duration.clone());
    }

    fn count(&self, method: &'static str, status: Option<StatusCode>, took: Duration) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned());
        self.total.get_or_create(&RequestLabels { code, method }).inc();
        self.duration.get_or_create(&MethodLabels { method }).observe(took.as_secs_f64());
    }
}

/// The label for a method: `other` for those that the Kubernetes API does not use.
fn name(method: &Method) -> &'static str {
    [
        ("GET", Method::GET),
        ("POST", Method::POST),
        ("PUT", Method::PUT),
        ("PATCH", Method::PATCH),
        ("DELETE", Method::DELETE),
    ]
    .into_iter()
    .find_map(|(name, known)| (*method == known).then_some(name))
    .unwrap_or("other")
}

impl<S> Layer<S> for Requests {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Counted<S> {
        Counted { service, requests: self.clone() }
    }
}

/// A client whose requests are counted.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    service: S,
    requests: Requests,
}

impl<S, In, Out> Service<Request<In>> for Counted<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let method = name(request.method());
        let pending = Pending { method, status: None, began: Instant::now(), requests: self.requests.clone() };
        let answer = self.service.call(request);
        Box::pin(async move {
            let mut pending = pending;
            let answer = answer.await;
            pending.status = answer.as_ref().ok().map(Response::status);
            answer
        })
    }
}

/// A request that is counted when it ends, even if its caller no longer waits.
struct Pending {
    method: &'static str,
    status: Option<StatusCode>,
    began: Instant,
    requests: Requests,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.requests.count(self.method, self.status, self.began.elapsed());
    }
}

/// Reads the state of this process at each scrape. Exports nothing if `/proc` cannot be read.
#[derive(Debug)]
struct Exposed;

impl Collector for Exposed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Ok(state) = ProcessState::read() else { return Ok(()) };
        let cpu = ConstCounter::new(state.cpu_seconds);
        let help = "User and system CPU time spent";
        cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)?;
        let gauges = [
            ("process_resident_memory", "Resident memory", Some(Unit::Bytes), state.resident_bytes),
            ("process_virtual_memory", "Virtual memory", Some(Unit::Bytes), state.virtual_bytes),
            ("process_start_time", "Start of the process, since 1970", Some(Unit::Seconds), state.started_at),
            ("process_threads", "Threads", None, state.threads),
            ("process_open_fds", "Open file descriptors", None, state.open_files),
            ("process_max_fds", "File descriptors that the process may open", None, state.most_files),
        ];
        for (name, help, unit, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// The state of this process, from `/proc`.
struct ProcessState {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    /// Seconds since 1970.
    started_at: u64,
    threads: u64,
    open_files: u64,
    most_files: u64,
}

impl ProcessState {
    fn read() -> Result<Self, procfs::ProcError> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second();
        let most_files = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(most) => most,
            LimitValue::Unlimited => u64::MAX,
        };
        Ok(Self {
            cpu_seconds: Duration::from_millis((stat.utime + stat.stime).saturating_mul(1000) / ticks).as_secs_f64(),
            resident_bytes: stat.rss.saturating_mul(procfs::page_size()),
            virtual_bytes: stat.vsize,
            started_at: procfs::boot_time_secs()? + stat.starttime / ticks,
            threads: u64::try_from(stat.num_threads).unwrap_or_default(),
            open_files: u64::try_from(process.fd_count()?).unwrap_or_default(),
            most_files,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use prometheus_client::encoding::text::encode;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    fn value(text: &str, name: &str) -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn the_process_shows_what_prometheus_expects() {
        let text = text(&registry(&Requests::default()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let started = value(&text, "process_start_time_seconds");
        assert!(started <= now + 1.0 && started > now - 86_400.0, "{started} {now}");
        assert!(value(&text, "process_resident_memory_bytes") > 100_000.0, "{text}");
        let (open, most) = (value(&text, "process_open_fds"), value(&text, "process_max_fds"));
        assert!(open >= 3.0 && open <= most, "{text}");
        assert!(value(&text, "process_cpu_seconds_total") >= 0.0 && value(&text, "process_threads") >= 1.0, "{text}");
    }

    #[test]
    fn a_daemons_own_metrics_have_its_prefix_and_version() {
        let mut registry = registry(&Requests::default());
        own(&mut registry, "some_daemon").register("things", "Things", Counter::<u64>::default());
        let text = text(&registry);
        assert!(
            text.contains(&format!("some_daemon_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"))),
            "{text}"
        );
        assert!(text.contains("\nsome_daemon_things_total 0\n"), "{text}");
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_and_method() {
        let requests = Requests::default();
        let server = service_fn(|request: Request<()>| async move {
            let status = if request.uri().path() == "/there" { 200 } else { 404 };
            Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
        });
        let broken = service_fn(|_: Request<()>| async move { Err::<Response<()>, &str>("no connection") });
        for path in ["/there", "/there", "/gone"] {
            requests.layer(server).oneshot(Request::get(path).body(()).unwrap()).await.unwrap();
        }
        requests.layer(broken).oneshot(Request::patch("/there").body(()).unwrap()).await.unwrap_err();
        let hangs = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
        let call = requests.layer(hangs).oneshot(Request::put("/there").body(()).unwrap());
        tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
        let text = text(&registry(&requests));
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"404\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"PATCH\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"PUT\"} 1",
            "rest_client_request_duration_seconds_count{method=\"GET\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
