//! Events on the Secret about the writes of this module. The operator may create events in the Secret's namespace. The
//! configuration has no namespace, so an event on it would need permissions in another one.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};

/// The reporting controller of the events.
const REPORTER: &str = "nv-ipam-webhook-certificates";

/// Longest note, in characters. The API server's limit is 1 KiB.
const LONGEST_NOTE: usize = 900;

/// A completed write, to be reported as an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    /// Whether the event is a warning.
    pub(super) warning: bool,
    /// The reason of the event: one word.
    pub(super) reason: &'static str,
    /// What was written, and why.
    pub(super) text: String,
}

/// Posts events.
pub(super) struct Events {
    api: Api<Event>,
    namespace: String,
    instance: String,
}

impl Events {
    /// Posts events in `namespace`. `instance` names this replica.
    pub(super) fn new(client: Client, namespace: &str, instance: String) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned(), instance }
    }

    /// Posts an event. A failure does no harm, because the log has the note already.
    pub(super) async fn post(&self, secret: &Secret, note: &Note, now: Timestamp) {
        let event = self.event(secret, note, now);
        if let Err(error) = self.api.create(&PostParams::default(), &event).await {
            tracing::debug!(reason = note.reason, %error, "event not posted");
        }
    }

    fn event(&self, secret: &Secret, note: &Note, now: Timestamp) -> Event {
        let name = secret.name_any();
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: secret.uid(),
            ..ObjectReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        Event {
            action: Some("KeepCertificates".to_owned()),
            event_time: Some(MicroTime(now)),
            metadata,
            note: Some(note.text.chars().take(LONGEST_NOTE).collect()),
            reason: Some(note.reason.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.chars().take(128).collect()),
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}
