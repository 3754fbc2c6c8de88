//! The validating webhook: says at once, and in words, what reconcile would say later in a condition.
//!
//! The way of a review: [`server`] (connections) → [`site`] (requests) → [`review`] (bytes → what is asked) → [`judge`] (pure, by
//! what is [`known`]) → [`answer`] (bytes). It is served on every replica, on a thread of its own, so that neither a burst of
//! reconciling nor one of reviews delays the other.
//!
//! Never: the only guard (reconcile decides by the same rules), a reason to wait for whoever does not write pools, a write of any
//! kind. A review has no side effects.

pub mod answer;
mod connection;
pub mod draft;
pub mod flags;
pub mod judge;
pub mod known;
mod lanes;
pub mod limits;
pub mod metrics;
pub mod review;
mod room;
mod roster;
pub mod server;
pub mod shared;
pub mod site;

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

use flags::{CertificateSource, WebhookConfig};
use known::Known;
use limits::Limits;
use metrics::WebhookMetrics;
use server::Server;
use site::Site;

/// A running webhook.
pub struct Webhook {
    source: CertificateSource,
    certificates: ServerCertificates,
    metrics: WebhookMetrics,
    known: Arc<RwLock<Known>>,
    leaving: CancellationToken,
    longest_end: Duration,
    ended: oneshot::Receiver<()>,
}

/// The server's thread ended without having been asked to.
#[derive(Debug, thiserror::Error)]
#[error("the webhook server ended by itself")]
pub struct Ended;

impl Webhook {
    /// Listens, and serves until `leaving` and for the drain after it. Until there is a certificate every handshake fails.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(config: &WebhookConfig, namespace: &str, leaving: CancellationToken) -> anyhow::Result<Self> {
        let bound = config.bind.bind().await.context("--webhook-bind-address")?;
        let listener = bound.context("--webhook-bind-address is off")?;
        tracing::info!(address = %listener.local_addr()?, "serving the webhook");
        let certificates = ServerCertificates::new(system_clock());
        let (metrics, known, limits) =
            (WebhookMetrics::default(), Arc::new(RwLock::new(Known::new(namespace))), Limits::default());
        let router = Site::new(known.clone(), metrics.clone(), limits).router();
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
            // Whoever waits hears it from the end of the sender, also if this thread panics before.
            drop(alive);
        })?;
        Ok(Self { source, certificates, metrics, known, leaving, longest_end: grace + limits.finish, ended })
    }

    /// What the judgements go by, for whoever hears the news.
    pub fn known(&self) -> Arc<RwLock<Known>> {
        self.known.clone()
    }

    /// Keeps the certificates until `stop`, if that is for us to do; `instance` names this replica in events.
    pub fn keep_certificates(&self, client: Client, instance: String, stop: CancellationToken) {
        let CertificateSource::SelfManaged { namespace, service, secret, configuration } = self.source.clone() else {
            return;
        };
        let names = ["svc", "svc.cluster.local"].map(|domain| format!("{service}.{namespace}.{domain}")).into();
        let (period, lives) = (self_managed::PERIOD, Lives::default());
        let settings = Settings { namespace, secret, configuration, names, instance, period, lives };
        tokio::spawn(SelfManaged::new(client, settings, self.certificates.clone()).run(stop));
    }

    /// The longest time that the end takes.
    pub fn longest_end(&self) -> Duration {
        self.longest_end
    }

    /// Shows the metrics of reviews and certificates.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.certificates.register(registry);
    }

    /// Whether reviews are served, or in a few words why not.
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
    /// If nobody asked for it.
    pub async fn ended(self) -> Result<(), Ended> {
        // Nothing is ever sent: the end of the sender is what tells.
        drop(self.ended.await);
        if self.leaving.is_cancelled() { Ok(()) } else { Err(Ended) }
    }
}

/// One thread for connections and small reviews, and few for large ones.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(lanes::THREADS).build()
}
