//! The validating admission webhook: rejects at once what the operator would otherwise report later in a condition.
//!
//! Data flow of a review: [`server`] (connections) → [`routes`] (requests) → [`review`] (bytes to a review) → [`judge`]
//! (pure, reads [`cache`]) → [`answer`] (bytes). Every replica serves reviews on a thread of its own, so that neither a burst
//! of reconciles nor one of reviews delays the other.
//!
//! The webhook is never the only guard, because reconcile applies the same rules. It delays no requests except those that
//! write pools. It never writes: a review has no side effects.

pub mod answer;
pub mod cache;
mod connection;
mod connections;
pub mod flags;
pub mod judge;
pub mod limits;
mod memory_budget;
pub mod metrics;
pub mod pool_object;
pub mod review;
pub mod routes;
pub mod server;
pub mod shared;
mod worker_pools;

use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use ipam_webhook_certs::self_managed::decide::Lives;
use ipam_webhook_certs::self_managed::{self, SelfManaged, Settings};
use ipam_webhook_certs::{ServerCertificates, files, system_clock};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use cache::AdmissionCache;
use flags::{CertificateSource, WebhookConfig};
use limits::Limits;
use metrics::WebhookMetrics;
use routes::AdmissionService;
use server::Server;

/// A running webhook.
pub struct Webhook {
    source: CertificateSource,
    certificates: ServerCertificates,
    metrics: WebhookMetrics,
    known: Arc<RwLock<AdmissionCache>>,
    leaving: CancellationToken,
    longest_end: Duration,
    ended: oneshot::Receiver<()>,
}

/// The server's thread ended although no shutdown was requested.
#[derive(Debug, thiserror::Error)]
#[error("the webhook server ended by itself")]
pub struct Ended;

impl Webhook {
    /// Starts to listen, and serves until `leaving` is cancelled and the drain is over. Every handshake fails until there is
    /// a certificate.
    ///
    /// # Errors
    /// If the webhook cannot listen on its address, or its TLS configuration or thread cannot be created.
    pub async fn start(config: &WebhookConfig, namespace: &str, leaving: CancellationToken) -> anyhow::Result<Self> {
        let bound = config.bind.bind().await.context("--webhook-bind-address")?;
        let listener = bound.context("--webhook-bind-address is off")?;
        tracing::info!(address = %listener.local_addr()?, "serving the webhook");
        let certificates = ServerCertificates::new(system_clock());
        let (metrics, known, limits) =
            (WebhookMetrics::default(), Arc::new(RwLock::new(AdmissionCache::new(namespace))), Limits::default());
        let router = AdmissionService::new(known.clone(), metrics.clone(), limits).router();
        let expiry = {
            let certificates = certificates.clone();
            Arc::new(move || certificates.current().map(|current| current.not_after.into()))
        };
        let tls = certificates.server_config()?;
        let listener = listener.into_std()?;
        let (stop, grace, source) = (leaving.clone(), config.drain, config.certificates.clone());
        let watched = source.clone();
        let (alive, ended) = oneshot::channel();
        let (served, counted) = (certificates.clone(), metrics.clone());
        let work = async move {
            if let CertificateSource::Files(directory) = watched {
                // Certificates are still renewed while the server drains: this ends with the thread.
                tokio::spawn(files::watch(directory, served, CancellationToken::new()));
            }
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Server::new(listener, tls, expiry, Arc::new(SystemTime::now), router, limits, counted)
                .run(stop, grace)
                .await;
            anyhow::Ok(())
        };
        let runtime = runtime()?;
        std::thread::Builder::new().name("webhook".to_owned()).spawn(move || {
            if let Err(error) = runtime.block_on(work) {
                tracing::error!("webhook: {error:#}");
            }
            // `Webhook::ended` returns when this sender is dropped, also if the thread panics earlier.
            drop(alive);
        })?;
        Ok(Self { source, certificates, metrics, known, leaving, longest_end: grace + limits.finish, ended })
    }

    /// The cache that decisions use. The caller passes watch events to it.
    pub fn known(&self) -> Arc<RwLock<AdmissionCache>> {
        self.known.clone()
    }

    /// Manages the certificates until `stop` is cancelled, if they are self-managed. `instance` names this replica in events.
    pub fn keep_certificates(&self, client: Client, instance: String, stop: CancellationToken) {
        let CertificateSource::SelfManaged { namespace, service, secret, configuration } = self.source.clone() else {
            return;
        };
        let names = ["svc", "svc.cluster.local"].map(|domain| format!("{service}.{namespace}.{domain}")).into();
        let (period, lives) = (self_managed::PERIOD, Lives::default());
        let settings = Settings { namespace, secret, configuration, names, instance, period, lives };
        tokio::spawn(SelfManaged::new(client, settings, self.certificates.clone()).run(stop));
    }

    /// The longest time that a shutdown takes.
    pub fn longest_end(&self) -> Duration {
        self.longest_end
    }

    /// Registers the metrics of reviews and certificates.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.certificates.register(registry);
    }

    /// The readiness check: whether the webhook serves reviews, or a short reason why not.
    pub fn readiness(&self) -> impl Fn() -> Result<(), String> + Send + Sync + use<> {
        let (certificates, leaving) = (self.certificates.clone(), self.leaving.clone());
        move || {
            if leaving.is_cancelled() {
                return Err("the webhook is leaving".to_owned());
            }
            certificates.readiness()
        }
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// If the server ended without a requested shutdown.
    pub async fn ended(self) -> Result<(), Ended> {
        // The thread never sends a value. It drops the sender when it ends.
        drop(self.ended.await);
        if self.leaving.is_cancelled() { Ok(()) } else { Err(Ended) }
    }
}

/// A runtime with one thread for connections and small reviews, and a few for large ones.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(worker_pools::THREADS).build()
}
