//! Kubernetes Events. There is one try for each, and a failure is logged. A condition or the log has the same information.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};

/// The operator's name in events.
const REPORTER: &str = "nv-ipam-controller";
/// An API server can keep events in a separate etcd, which may fail to answer while the main one works.
const PATIENCE: Duration = Duration::from_secs(10);

/// Publishes the events of one replica. Events of one reason about one object and node are one series.
#[derive(Clone)]
pub struct EventPublisher(Recorder);

impl EventPublisher {
    /// Returns the publisher of the replica `instance`.
    pub fn new(client: Client, instance: String) -> Self {
        Self(Recorder::new(client, Reporter { controller: REPORTER.to_owned(), instance: Some(instance) }))
    }

    /// Publishes an event about the object `regarding`, in its namespace.
    pub async fn publish(&self, event: &Event, regarding: &ObjectReference) {
        let error = match tokio::time::timeout(PATIENCE, self.0.publish(event, regarding)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => ipam_daemon::chain(&error),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        let object = regarding.name.as_deref().unwrap_or_default();
        tracing::warn!(object, reason = event.reason, error, "event not published");
    }
}
