//! A namespace with a webhook configuration that calls two replicas for every ConfigMap, and the replicas, each with a clock
//! of its own and with the rights that the crate's documentation lists, no more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ipam_e2e::{ControlPlane, control_plane, eventually};
use ipam_webhook_certs::ServerCertificates;
use ipam_webhook_certs::self_managed::decide::Lives;
use ipam_webhook_certs::self_managed::{SelfManaged, Settings};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::reviewer::Reviewer;

/// Ample for a loaded machine.
pub(crate) const SOON: Duration = Duration::from_mins(2);

pub(crate) const SECRET: &str = "nv-ipam-webhook-server-cert";

pub(crate) struct Cluster {
    pub(crate) namespace: String,
    /// The administrator's.
    pub(crate) admin: Client,
    /// The one of the replicas' service account.
    account: Client,
    pub(crate) replicas: [Replica; 2],
}

pub(crate) struct Replica {
    pub(crate) certificates: ServerCertificates,
    ahead: Arc<AtomicI64>,
    reviewer: Reviewer,
}

/// Ends the replicas' work when it is dropped.
pub(crate) struct Running {
    _stop: DropGuard,
}

impl Replica {
    async fn new() -> Self {
        let ahead = Arc::new(AtomicI64::new(0));
        let hand = ahead.clone();
        let clock = move || Timestamp::now() + SignedDuration::from_hours(hand.load(Ordering::Relaxed));
        let certificates = ServerCertificates::new(Arc::new(clock));
        let reviewer = Reviewer::start(&certificates).await;
        Self { certificates, ahead, reviewer }
    }

    /// Turns its clock to so many days ahead of the time.
    pub(crate) fn turn(&self, days: i64) {
        self.ahead.store(days * 24, Ordering::Relaxed);
    }

    pub(crate) fn serial(&self) -> Option<String> {
        self.certificates.current().map(|info| info.serial)
    }

    /// The value of a metric, by the beginning of its line.
    pub(crate) fn metric(&self, line: &str) -> u64 {
        let mut registry = prometheus_client::registry::Registry::default();
        self.certificates.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = text.lines().find_map(|told| told.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or_default()
    }
}

impl Cluster {
    /// Everything but the certificates: a configuration without `caBundle`, so that nothing can be created yet.
    pub(crate) async fn new(plane: &ControlPlane) -> Self {
        let namespace = plane.namespace("certs").unwrap();
        let replicas = [Replica::new().await, Replica::new().await];
        grant(plane, &namespace);
        let webhook = |replica: &Replica, at: usize| {
            json!({
                "name": format!("replica-{at}.{namespace}.example.org"),
                "clientConfig": {"url": format!("https://127.0.0.1:{}/validate", replica.reviewer.port)},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
            })
        };
        let webhooks = [webhook(&replicas[0], 0), webhook(&replicas[1], 1)];
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "webhooks": webhooks,
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": namespace}});
        plane.kubectl().apply(&configuration.to_string()).unwrap();
        let account = control_plane::client(&plane.service_account(&namespace, "operator").unwrap()).await.unwrap();
        Self { namespace, admin: plane.client().await.unwrap(), account, replicas }
    }

    /// Starts both replicas' work at once.
    pub(crate) fn start(&self, lives: Lives) -> Running {
        let stop = CancellationToken::new();
        for (at, replica) in self.replicas.iter().enumerate() {
            let settings = Settings {
                namespace: self.namespace.clone(),
                secret: SECRET.to_owned(),
                configuration: self.namespace.clone(),
                names: vec!["127.0.0.1".to_owned(), format!("nv-ipam-webhook.{}.svc", self.namespace)],
                instance: format!("replica-{at}"),
                period: Duration::from_millis(50),
                lives,
            };
            let work = SelfManaged::new(self.account.clone(), settings, replica.certificates.clone());
            tokio::spawn(work.run(stop.clone()));
        }
        Running { _stop: stop.drop_guard() }
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub(crate) async fn secret(&self) -> Option<Secret> {
        self.secrets().get_opt(SECRET).await.unwrap()
    }

    pub(crate) async fn change_secret(&self, patch: serde_json::Value) {
        let patch = Patch::Merge(patch);
        self.secrets().patch(SECRET, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The `caBundle` of each webhook.
    pub(crate) async fn bundles(&self) -> Vec<Vec<u8>> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.admin.clone());
        let webhooks = configurations.get(&self.namespace).await.unwrap().webhooks.unwrap_or_default();
        webhooks.into_iter().map(|webhook| webhook.client_config.ca_bundle.unwrap_or_default().0).collect()
    }

    /// Writes this `caBundle` into each webhook, as somebody who should not.
    pub(crate) async fn overwrite_bundles(&self, bundle: &[u8]) {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.admin.clone());
        let write = async || {
            let mut configuration = configurations.get(&self.namespace).await?;
            for webhook in configuration.webhooks.iter_mut().flatten() {
                webhook.client_config.ca_bundle = Some(ByteString(bundle.to_vec()));
            }
            configurations.replace(&self.namespace, &PostParams::default(), &configuration).await
        };
        eventually("the bundles are overwritten", SOON, write).await.unwrap();
    }

    /// One object whose creation both replicas review; it is not kept.
    pub(crate) async fn review(&self) -> kube::Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.admin.clone(), &self.namespace);
        let mut object = ConfigMap::default();
        object.metadata.generate_name = Some("reviewed-".to_owned());
        let options = PostParams { dry_run: true, ..PostParams::default() };
        api.create(&options, &object).await.map(drop)
    }

    /// Awaits that both replicas serve what the Secret holds, that the configuration trusts exactly the Secret's CAs, and that
    /// the API server takes the answers of both. Returns the serial number of what is served, and the CAs.
    pub(crate) async fn right(&self, what: &str) -> (String, Vec<u8>) {
        eventually(what, SOON, async || {
            let secret = self.secret().await.ok_or("no Secret")?;
            let value = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.clone());
            let cas = value("ca.crt").ok_or("no ca.crt")?;
            if self.bundles().await.iter().any(|bundle| *bundle != cas) {
                return Err("a caBundle is not what the Secret says".to_owned());
            }
            let pair = ipam_webhook_certs::Pair::parse(
                &value("tls.crt").unwrap_or_default(),
                &value("tls.key").unwrap_or_default(),
            );
            let serial = pair.map_err(|problem| problem.to_string())?.info().serial.clone();
            for replica in &self.replicas {
                replica.certificates.readiness()?;
                if replica.serial().as_ref() != Some(&serial) || replica.certificates.last_problem().is_some() {
                    return Err(format!("{:?} is served, {serial} stands in the Secret", replica.certificates));
                }
            }
            self.review().await.map_err(|error| error.to_string())?;
            Ok((serial, cas))
        })
        .await
        .unwrap()
    }

    /// The reasons of all events so far.
    pub(crate) async fn reasons(&self) -> BTreeSet<String> {
        let api: Api<Event> = Api::namespaced(self.admin.clone(), &self.namespace);
        let events = api.list(&ListParams::default()).await.unwrap();
        events.items.into_iter().filter_map(|event| event.reason).collect()
    }

    /// Awaits an event with this reason: it is posted after the write that it tells of.
    pub(crate) async fn told(&self, reason: &str) {
        let look = async || {
            let reasons = self.reasons().await;
            if reasons.contains(reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
        };
        eventually(reason, SOON, look).await.unwrap();
    }

    /// A metric of both replicas together.
    pub(crate) fn metric(&self, line: &str) -> u64 {
        self.replicas.iter().map(|replica| replica.metric(line)).sum()
    }
}

/// The rights of the crate's documentation, word for word.
fn grant(plane: &ControlPlane, namespace: &str) {
    let subject = json!([{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]);
    let reference = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": namespace});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
    "metadata": {"name": namespace, "namespace": namespace}, "rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get", "update"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ]});
    let cluster_role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
    "metadata": {"name": namespace}, "rules": [
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"],
         "resourceNames": [namespace], "verbs": ["get", "update"]},
    ]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": namespace, "namespace": namespace}, "roleRef": reference("Role"), "subjects": subject});
    let cluster_binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace}, "roleRef": reference("ClusterRole"), "subjects": subject});
    for object in [role, cluster_role, binding, cluster_binding] {
        plane.kubectl().apply(&object.to_string()).unwrap();
    }
}
