//! Self-managed certificates, for clusters without another issuer: a CA and a leaf in a Secret, and a correct `caBundle` in
//! the webhook configuration.
//!
//! [`decide`] determines the next step, and this module reads and writes. Every replica does the same. A replica whose write
//! conflicts with another one reads again, and uses what the other has written.
//!
//! Must never overwrite what another program manages, write more of a configuration than its `caBundle`s, or serve a leaf
//! that the configuration does not trust.
//!
//! It repairs a Secret that is deleted, emptied or damaged, a `caBundle` that is cleared or overwritten, and the effects of a
//! wrong clock. It reports each repair in the log, in the metric `webhook_certificate_repairs` and in an event on the Secret.
//! The reasons are `WebhookCAIssued`, `WebhookCertificateIssued`, `WebhookCARetired`, `WebhookCAKept`,
//! `WebhookCABundleWritten`.
//!
//! RBAC, in the namespace of the Secret:
//!
//! | group | resource | names | verbs |
//! | --- | --- | --- | --- |
//! | | secrets | | create |
//! | | secrets | the Secret's | get, update |
//! | events.k8s.io | events | | create |
//!
//! and in the cluster:
//!
//! | group | resource | names | verbs |
//! | --- | --- | --- | --- |
//! | admissionregistration.k8s.io | validatingwebhookconfigurations | the configuration's | get, update |
//!
//! To distrust a stolen key, delete the Secret and restart all replicas at once. Without the restart the old CA stays in the
//! bundle until its last leaf has expired.

pub mod decide;
mod events;
mod material;
mod objects;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::problem::Problem;
use crate::served::{Offer, ServerCertificates};
use decide::{Cause, Configuration, Der, Lives, Served, Step, View};
use events::{Events, Note};
use material::{Data, Material};

/// How often the Secret and the configuration are read. A cleared `caBundle` may stay cleared for this long.
pub const PERIOD: Duration = Duration::from_secs(5);

/// Longest wait for an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most steps in a row. Serving from an empty state needs three, and each conflict one more. If more are needed, another
/// program undoes the changes.
const STEPS: u32 = 12;

/// What is managed, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the ValidatingWebhookConfiguration.
    pub configuration: String,
    /// DNS names that the API server calls: `SERVICE.NAMESPACE.svc` at least.
    pub names: Vec<String>,
    /// This replica, in events.
    pub instance: String,
    /// Pause between two checks; [`PERIOD`] in production.
    pub period: Duration,
    /// Lifetimes of the certificates.
    pub lives: Lives,
}

/// Manages the certificates for one replica.
pub struct SelfManaged {
    secrets: Api<Secret>,
    configurations: Api<DynamicObject>,
    events: Events,
    settings: Settings,
    certificates: ServerCertificates,
    served: Option<Served>,
    /// The CA that signs, and since when the configuration has been seen to trust it.
    trusted: Option<(Der, Instant)>,
}

/// The objects that one check has read.
struct Seen {
    secret: Option<Secret>,
    material: Option<Material>,
    state: decide::Secret,
    object: Option<DynamicObject>,
    configuration: Configuration,
}

/// A call that did not succeed.
#[derive(Debug)]
enum Failure {
    /// Another client wrote first: read again.
    Conflict,
    /// Any other failure, with its message.
    Other(String),
}

impl SelfManaged {
    /// Creates the manager, which reads and writes nothing yet.
    pub fn new(client: Client, settings: Settings, certificates: ServerCertificates) -> Self {
        let kind = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
        Self {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            // Untyped, because fields of a newer API server must survive a write.
            configurations: Api::all_with(client.clone(), &kind),
            events: Events::new(client, &settings.namespace, settings.instance.clone()),
            settings,
            certificates,
            served: None,
            trusted: None,
        }
    }

    /// Checks and repairs until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let period = self.settings.period;
            let look = async {
                self.settle().await;
                tokio::time::sleep(period).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = look => {}
            }
        }
    }

    /// Takes steps until nothing is left to do.
    async fn settle(&mut self) {
        for _ in 0..STEPS {
            match self.step().await {
                Ok(true) | Err(Failure::Conflict) => {}
                Ok(false) => return,
                Err(Failure::Other(why)) => {
                    self.certificates.offer(&Err(Problem::Unkept(why)));
                    return;
                }
            }
        }
        let why = "the Secret or the webhook configuration changes under every write; does another program keep them?";
        self.certificates.offer(&Err(Problem::Unkept(why.to_owned())));
    }

    /// Reads the objects and takes one step. Returns whether another may follow.
    async fn step(&mut self) -> Result<bool, Failure> {
        let seen = self.look().await?;
        let now = self.certificates.now();
        let trusted_for = self.trusted_for(&seen);
        let view =
            View { secret: &seen.state, configuration: &seen.configuration, served: self.served.as_ref(), trusted_for };
        match decide::decide(&view, &self.settings.lives, now) {
            Step::Rest => {
                self.settled(&seen);
                return Ok(false);
            }
            Step::Blocked(why) => {
                self.certificates.offer(&Err(Problem::Blocked(why)));
                return Ok(false);
            }
            Step::Serve => self.serve(seen),
            Step::Trust(ders) => self.trust(seen, &ders, now).await?,
            step => self.write(seen, step, now).await?,
        }
        Ok(true)
    }

    /// Reads the configuration first. The Secret is then at least as new as the one that the configuration was written from.
    /// So a bundle written at this version of the configuration never reverts one that a newer Secret has caused.
    async fn look(&self) -> Result<Seen, Failure> {
        let object = answered(self.configurations.get_opt(&self.settings.configuration)).await?;
        let secret = answered(self.secrets.get_opt(&self.settings.secret)).await?;
        let (state, material) = self.read(secret.as_ref());
        let configuration = objects::configuration(object.as_ref());
        Ok(Seen { secret, material, state, object, configuration })
    }

    fn read(&self, secret: Option<&Secret>) -> (decide::Secret, Option<Material>) {
        let Some(secret) = secret else { return (decide::Secret::Absent, None) };
        if let Some(who) = objects::secret_keeper(secret) {
            return (decide::Secret::Foreign(who), None);
        }
        match Material::read(&objects::data(secret), objects::retire_after(secret), &self.settings.names) {
            Ok(material) => (decide::Secret::Standing(material.standing.clone()), Some(material)),
            Err(why) => (decide::Secret::Damaged(why), None),
        }
    }

    /// How long the configuration has trusted the CA that signs. By the monotonic clock, because the wall clock may jump.
    fn trusted_for(&mut self, seen: &Seen) -> Duration {
        let signer = seen.material.as_ref().map(|material| material.standing.signer().der.clone());
        let trusts = |der: &Der| match &seen.configuration {
            Configuration::Bundles(bundles) => bundles.iter().all(|bundle| bundle.contains(der)),
            _ => false,
        };
        let since = |der: &Der| match &self.trusted {
            Some((known, since)) if known == der => *since,
            _ => Instant::now(),
        };
        self.trusted = signer.filter(trusts).map(|der| {
            let since = since(&der);
            (der, since)
        });
        self.trusted.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    fn serve(&mut self, seen: Seen) {
        let Some((material, pair)) =
            seen.material.and_then(|mut material| material.pair.take().map(|pair| (material, pair)))
        else {
            return;
        };
        // If the clock has jumped since the decision, the next check decides again.
        if !matches!(self.certificates.offer(&Ok(pair)), Offer::Refused(_)) {
            self.served = Served::of(&material.standing);
        }
    }

    /// Clears the last problem, and remembers the CAs of the Secret in case it is deleted.
    fn settled(&mut self, seen: &Seen) {
        if let Some(pair) = self.certificates.pair() {
            self.certificates.offer(&Ok(pair.as_ref().clone()));
        }
        let standing = seen.material.as_ref().and_then(|material| Served::of(&material.standing));
        if let Some(standing) =
            standing.filter(|standing| self.served.as_ref().is_some_and(|s| s.leaf == standing.leaf))
        {
            self.served = Some(standing);
        }
    }

    async fn trust(&self, seen: Seen, ders: &[Der], now: Timestamp) -> Result<(), Failure> {
        let (Some(mut object), Some(secret)) = (seen.object, seen.secret) else { return Ok(()) };
        objects::trust(&mut object, ders);
        let name = &self.settings.configuration;
        replaced(self.configurations.replace(name, &PostParams::default(), &object)).await?;
        let text =
            format!("the caBundle of {name} trusts {} CA(s) of the Secret again, or for the first time", ders.len());
        self.tell(&secret, "bundle", Note { warning: false, reason: "WebhookCABundleWritten", text }, now).await;
        Ok(())
    }

    async fn write(&self, seen: Seen, step: Step, now: Timestamp) -> Result<(), Failure> {
        let (data, retire_after, what, note) = self.contents(&seen, step, now)?;
        let name = &self.settings.secret;
        let options = PostParams::default();
        let written = match seen.secret {
            None => {
                let mut secret = objects::new_secret(&self.settings.namespace, name);
                objects::fill(&mut secret, data, retire_after);
                answered(self.secrets.create(&options, &secret)).await?
            }
            Some(mut secret) => {
                objects::fill(&mut secret, data, retire_after);
                replaced(self.secrets.replace(name, &options, &secret)).await?
            }
        };
        self.tell(&written, what, note, now).await;
        Ok(())
    }

    /// The new contents of the Secret, and how the write is reported.
    fn contents(&self, seen: &Seen, step: Step, now: Timestamp) -> Result<Contents, Failure> {
        let Settings { names, lives, .. } = &self.settings;
        let failed = |error: rcgen::Error| Failure::Other(format!("no certificate could be made: {error}"));
        let standing = || seen.material.as_ref().ok_or(Failure::Conflict);
        match step {
            Step::NewAuthority { cause, keep, retire_after } => {
                let data = Material::create(names, &keep, retire_after, lives, now).map_err(failed)?;
                Ok((data, retire_after, "authority", issued("WebhookCAIssued", "CA and a new certificate", &cause)))
            }
            Step::NewLeaf { cause, names: more } => {
                let material = standing()?;
                let mut all = names.clone();
                all.extend(more.into_iter().filter(|name| !names.contains(name)));
                let data = material.with_new_leaf(&all, lives, now).map_err(failed)?;
                let note = issued("WebhookCertificateIssued", "certificate of the same CA", &cause);
                Ok((data, material.standing.retire_after, "certificate", note))
            }
            Step::KeepAuthorities { keep, retire_after } => {
                let material = standing()?;
                let mut data = seen.secret.as_ref().map(objects::data).unwrap_or_default();
                data.append(&mut material.authorities(&keep));
                Ok((data, retire_after, "authorities", kept(&keep)))
            }
            Step::Trust(_) | Step::Serve | Step::Rest | Step::Blocked(_) => Err(Failure::Conflict),
        }
    }

    async fn tell(&self, secret: &Secret, what: &'static str, note: Note, now: Timestamp) {
        self.certificates.repaired(what);
        let name = secret.name_any();
        if note.warning {
            warn!(secret = name, reason = note.reason, "{}", note.text);
        } else {
            info!(secret = name, reason = note.reason, "{}", note.text);
        }
        let post = self.events.post(secret, &note, now);
        if tokio::time::timeout(PATIENCE, post).await.is_err() {
            tracing::debug!(reason = note.reason, "event not posted in time");
        }
    }
}

/// Contents of the Secret, the expiry of the last old leaf, the metric label, and the event.
type Contents = (Data, Option<Timestamp>, &'static str, Note);

fn issued(reason: &'static str, what: &str, cause: &Cause) -> Note {
    let why = match cause {
        Cause::Missing => "there was no Secret".to_owned(),
        Cause::Damaged(why) => format!("the Secret could not be used: {why}"),
        Cause::Invalid => "the one that stood there is outside its validity; was a clock wrong?".to_owned(),
        Cause::Due => "two thirds of the life of the one before are over".to_owned(),
    };
    let warning = matches!(cause, Cause::Damaged(_) | Cause::Invalid);
    Note { warning, reason, text: format!("a new {what} for the webhook: {why}") }
}

fn kept(keep: &[decide::Dated]) -> Note {
    if keep.is_empty() {
        let text = "no old CA is trusted any more: the last certificate that one signed has ended".to_owned();
        return Note { warning: false, reason: "WebhookCARetired", text };
    }
    let text = format!("{} old CA(s) stay trusted until nobody serves a certificate of them", keep.len());
    Note { warning: false, reason: "WebhookCAKept", text }
}

/// The result of a replacement. 404 means that the object was deleted after it was read, and counts as a conflict.
async fn replaced<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let gone = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
    let call = async { call.await.map(Some).or_else(|error| if gone(&error) { Ok(None) } else { Err(error) }) };
    answered(call).await?.ok_or(Failure::Conflict)
}

/// The result of a call, within a time limit. 409 means that another client has written or created the object.
async fn answered<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(PATIENCE, call).await;
    match answer.map_err(|_| Failure::Other(format!("no answer within {} s", PATIENCE.as_secs())))? {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(Failure::Conflict),
        Err(kube::Error::Api(status)) => Err(Failure::Other(format!("{} ({})", status.message, status.code))),
        Err(error) => Err(Failure::Other(chain(&error))),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
