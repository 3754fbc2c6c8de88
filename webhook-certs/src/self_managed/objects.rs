//! Reads the two API objects into plain data, and changes them.
//!
//! Decides which program manages them: a Secret or a configuration that another program manages is not changed. Must never
//! change more of a configuration than its `caBundle`s, or lose a field that this build does not know.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, ObjectMeta};
use serde_json::Value;

use super::decide::{Configuration, Der};
use super::material::{self, Data};

/// The annotation with the time when the last leaf of the old CAs in `ca.crt` expires.
pub(super) const RETIRE_AFTER: &str = "nv-ipam.nvidia.com/retire-old-cas-after";

/// Annotations of Secrets that other programs manage, and these programs.
const SECRET_KEEPERS: [(&str, &str); 4] = [
    ("cert-manager.io/certificate-name", "cert-manager"),
    ("service.beta.openshift.io/originating-service-name", "OpenShift's service CA"),
    ("service.alpha.openshift.io/originating-service-name", "OpenShift's service CA"),
    ("service.beta.openshift.io/expiry", "OpenShift's service CA"),
];

/// Annotations that make other programs write `caBundle`, and these programs.
const INJECTORS: [(&str, &str); 5] = [
    ("cert-manager.io/inject-ca-from", "cert-manager"),
    ("cert-manager.io/inject-ca-from-secret", "cert-manager"),
    ("cert-manager.io/inject-apiserver-ca", "cert-manager"),
    ("service.beta.openshift.io/inject-cabundle", "OpenShift's service CA"),
    ("service.alpha.openshift.io/inject-cabundle", "OpenShift's service CA"),
];

/// If another program manages the Secret, a message with its name and a remedy.
pub(super) fn secret_keeper(secret: &Secret) -> Option<String> {
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let (annotation, who) = found(&secret.metadata, &SECRET_KEEPERS)?;
    Some(format!(
        "the Secret {name} is kept by {who} (annotation {annotation}), so it is not written: \
         mount it and use --webhook-certificates=files, or name another Secret"
    ))
}

/// The contents of the Secret.
pub(super) fn data(secret: &Secret) -> Data {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

/// The time in the annotation [`RETIRE_AFTER`]. An invalid time counts as absent.
pub(super) fn retire_after(secret: &Secret) -> Option<Timestamp> {
    secret.metadata.annotations.as_ref()?.get(RETIRE_AFTER)?.parse().ok()
}

/// A Secret that is yet to be created.
pub(super) fn new_secret(namespace: &str, name: &str) -> Secret {
    let labels = BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "nv-ipam".to_owned())]);
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    Secret { metadata, type_: Some("kubernetes.io/tls".to_owned()), ..Secret::default() }
}

/// Replaces all contents of the Secret. Its type is immutable, so a Secret that another client created keeps its type.
pub(super) fn fill(secret: &mut Secret, data: Data, retire_after: Option<Timestamp>) {
    secret.data = Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect());
    let annotations = secret.metadata.annotations.get_or_insert_default();
    match retire_after {
        Some(time) => annotations.insert(RETIRE_AFTER.to_owned(), time.to_string()),
        None => annotations.remove(RETIRE_AFTER),
    };
}

/// The CAs in the configuration, or why another program manages it.
pub(super) fn configuration(object: Option<&DynamicObject>) -> Configuration {
    let Some(object) = object else { return Configuration::Absent };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if let Some((annotation, who)) = found(&object.metadata, &INJECTORS) {
        return Configuration::Foreign(format!(
            "the caBundle of the ValidatingWebhookConfiguration {name} is written by {who} (annotation {annotation}), \
             so it is left alone: remove the annotation, or use --webhook-certificates=files"
        ));
    }
    let bundle = |webhook: &Value| bundled(&webhook["clientConfig"]["caBundle"]);
    Configuration::Bundles(webhooks(object).iter().map(bundle).collect())
}

/// Writes these CAs into every webhook.
pub(super) fn trust(object: &mut DynamicObject, ders: &[Der]) {
    let bundle = serde_json::json!(ByteString(material::bundle(ders.iter()).into_bytes()));
    let webhooks = object.data.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        if let Some(client) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) {
            client.insert("caBundle".to_owned(), bundle.clone());
        }
    }
}

fn webhooks(object: &DynamicObject) -> &[Value] {
    object.data.get("webhooks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn bundled(base64: &Value) -> Vec<Der> {
    let pem: ByteString = serde_json::from_value(base64.clone()).unwrap_or_default();
    material::bundled(&pem.0)
}

fn found(metadata: &ObjectMeta, known: &[(&'static str, &'static str)]) -> Option<(&'static str, &'static str)> {
    let annotations = metadata.annotations.as_ref()?;
    // An injector treats "false" as disabled, and an empty name refers to nothing.
    let says =
        |annotation: &str| annotations.get(annotation).is_some_and(|value| !value.is_empty() && value != "false");
    known.iter().copied().find(|(annotation, _)| says(annotation))
}

#[cfg(test)]
mod tests;
