//! The certificate that is presented to clients, and its replacement while connections are open.
//!
//! Decides which pair is served: the last one that was valid when offered, for as long as it is valid. A certificate outside
//! its validity must never be presented, so every handshake checks that, and not a timer.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, crypto};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::pair::{CertificateInfo, Pair};
use crate::problem::Problem;

/// The certificates of one server. Clones share everything.
#[derive(Clone)]
pub struct ServerCertificates {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    serving: ArcSwapOption<Pair>,
    /// The problem of the last offer, which may be the pair that is served.
    problem: Mutex<Option<Problem>>,
    /// Whether the log has reported that the served pair is not valid.
    lapsed: AtomicBool,
    metrics: Metrics,
}

/// The result of an offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offer {
    /// The next handshake uses the offered pair.
    Swapped,
    /// The offered pair is already served.
    Unchanged,
    /// The offered pair is not served. The previous pair is still served while it is valid.
    Refused(Problem),
}

impl ServerCertificates {
    /// The certificates of a server that has none to serve yet.
    pub fn new(clock: Clock) -> Self {
        let shared = Shared {
            clock,
            serving: ArcSwapOption::empty(),
            problem: Mutex::default(),
            lapsed: AtomicBool::default(),
            metrics: Metrics::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Serves the offered pair if it is valid now. The log reports changes, and each problem once. Offering the same pair
    /// again costs nothing, and detects that it has become valid or has expired.
    pub fn offer(&self, offered: &Result<Pair, Problem>) -> Offer {
        let judged = offered.as_ref().map_err(Clone::clone).and_then(|pair| {
            pair.info().valid_at(self.now())?;
            Ok(pair)
        });
        let became = match judged {
            Ok(pair) => self.take(pair),
            Err(problem) => {
                self.refuse(&problem);
                Offer::Refused(problem)
            }
        };
        self.note_validity();
        became
    }

    fn take(&self, pair: &Pair) -> Offer {
        let recovered = self.problem().take().is_some();
        let info = pair.info();
        if self.pair().is_some_and(|serving| *serving == *pair) {
            // `note_validity` logs that the pair is valid again.
            if recovered && !self.shared.lapsed.load(Ordering::Relaxed) {
                info!(serial = info.serial, "the certificate found is the one that the webhook serves");
            }
            return Offer::Unchanged;
        }
        self.shared.serving.store(Some(Arc::new(pair.clone())));
        self.shared.metrics.swapped();
        info!(serial = info.serial, issuer = info.issuer, names = ?info.names, not_after = %info.not_after,
            "the webhook serves this certificate");
        Offer::Swapped
    }

    fn refuse(&self, problem: &Problem) {
        if self.problem().replace(problem.clone()).as_ref() == Some(problem) {
            return;
        }
        self.shared.metrics.refused(problem.reason());
        let keeps = match self.current() {
            Some(serving) => format!("the webhook keeps the one valid until {}", serving.not_after),
            None => "the webhook has no valid certificate to serve".to_owned(),
        };
        warn!(reason = problem.reason(), "{problem}; {keeps}");
    }

    /// Logs when the served pair ceases to be valid, and when a corrected clock makes it valid again. If that pair was
    /// offered again, its refusal is already in the log.
    fn note_validity(&self) {
        let Some(pair) = self.pair() else { return };
        let invalid = pair.info().valid_at(self.now()).err();
        let told = self.shared.lapsed.swap(invalid.is_some(), Ordering::Relaxed);
        match invalid {
            Some(problem) if !told && self.last_problem().as_ref() != Some(&problem) => {
                warn!("the webhook refuses every handshake: {problem}");
            }
            None if told => info!(serial = pair.info().serial, "the webhook's certificate is valid again"),
            _ => {}
        }
    }

    /// The certificate that is served, if it is valid now.
    pub fn current(&self) -> Option<CertificateInfo> {
        self.valid().map(|pair| pair.info().clone())
    }

    /// Whether a client can be served.
    pub fn is_ready(&self) -> bool {
        self.valid().is_some()
    }

    /// The result of a readiness probe: an error with a short reason if no client can be served.
    pub fn readiness(&self) -> Result<(), String> {
        if self.is_ready() {
            return Ok(());
        }
        let expired = self.pair().and_then(|pair| pair.info().valid_at(self.now()).err());
        let why = self.problem().clone().or(expired).map(|problem| problem.to_string());
        Err(format!("the webhook has no valid certificate: {}", why.as_deref().unwrap_or("none was found yet")))
    }

    /// The problem of the last offer. `None` if its pair is served.
    pub fn last_problem(&self) -> Option<Problem> {
        self.problem().clone()
    }

    /// A TLS server's configuration: these certificates, TLS 1.2 and 1.3 by ring, HTTP/2 and HTTP/1.1, no client certificates.
    ///
    /// Sessions are not resumed: a resumed session would continue with the certificate of the first one, even if that has
    /// expired.
    ///
    /// # Errors
    /// If the crypto provider lacks what TLS needs, which never happens.
    pub fn server_config(&self) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Registers counters, and the validity of the served certificate. Names begin with `webhook_certificate`.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.shared.metrics.register(registry);
        registry.register_collector(Box::new(Validity(self.clone())));
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        (self.shared.clock)()
    }

    /// Counts a write for self-managed certificates.
    pub(crate) fn repaired(&self, what: &'static str) {
        self.shared.metrics.repaired(what);
    }

    /// The pair that is served, valid or not.
    pub(crate) fn pair(&self) -> Option<Arc<Pair>> {
        self.shared.serving.load_full()
    }

    fn valid(&self) -> Option<Arc<Pair>> {
        let now = self.now();
        self.pair().filter(|pair| pair.info().valid_at(now).is_ok())
    }

    fn problem(&self) -> MutexGuard<'_, Option<Problem>> {
        // A panic elsewhere leaves the value consistent, because it is only replaced as a whole.
        self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for ServerCertificates {
    /// `None` refuses the handshake. That is better for a client than an expired certificate, because it may try another
    /// replica.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.valid().map(|pair| pair.certified_key().clone())
    }
}

impl fmt::Debug for ServerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificates").field("serving", &self.pair()).finish_non_exhaustive()
    }
}

/// A collector that reads the validity at each scrape, because time passes without an event.
#[derive(Debug)]
struct Validity(ServerCertificates);

impl Collector for Validity {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: i64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let help = "1 if the webhook has a certificate that is valid now";
        gauge("webhook_certificate_ready", help, i64::from(self.0.is_ready()))?;
        let Some(pair) = self.0.pair() else { return Ok(()) };
        let help = "When the certificate that the webhook serves expires, in seconds since 1970";
        gauge("webhook_certificate_not_after_timestamp_seconds", help, pair.info().not_after.as_second())
    }
}
