//! The reporter: follows what is in use and what is in force, and writes the reports.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, HeaderValue};
use ipam_crds::IPAMNode;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::idle::Unused;
use super::reports::{Next, Outcome, Reports, WRITE_TIMEOUT, Write};
use crate::allocator::{Allocator, Failure};
use crate::metrics::Metrics;
use crate::watch::InForce;

/// Shortest time between two looks at what is held, which costs the allocator time when much is held.
const LOOK: Duration = Duration::from_millis(100);
/// From so many conflicts in a row on, the watch is taken for broken.
const MANY_CONFLICTS: u32 = 4;
/// Longest time that the report of an agent that ends may take.
const LEAVE: Duration = Duration::from_secs(2);
/// What writes of the agent are known by in `metadata.managedFields`.
const MANAGER: &str = "ipam-node";
/// Requests only the metadata of the object in the answer, of which the agent reads the version.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// The API server's answer to a report.
struct Answer {
    /// The version that the report has made.
    resource_version: String,
    /// The whole object, if its spec is of interest.
    object: Option<IPAMNode>,
}

/// Writes reports.
pub struct Reporter {
    client: Client,
    /// Where IPAMNodes are.
    path: String,
    node: String,
    allocator: Allocator,
    in_force: Receiver<Option<InForce>>,
    metrics: Arc<Metrics>,
    reports: Reports,
    relist: Arc<Notify>,
}

impl Reporter {
    /// Nothing is written yet.
    pub fn new(
        client: Client,
        namespace: &str,
        node: &str,
        allocator: Allocator,
        in_force: Receiver<Option<InForce>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (path, node) = (IPAMNode::url_path(&(), Some(namespace)), node.to_owned());
        let reports = Reports::new(Instant::now());
        Self { client, path, node, allocator, in_force, metrics, reports, relist: Arc::default() }
    }

    /// Is signalled when the API server does not have the object that the watch has shown.
    pub fn relist(&self) -> Arc<Notify> {
        Arc::clone(&self.relist)
    }

    /// Reports until `stop`, and then once more: the machine may be gone soon. No request may be under way by then.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.allocator.changes();
        let stopped = stop.cancelled();
        tokio::pin!(stopped);
        loop {
            changes.mark_unchanged();
            self.in_force.mark_unchanged();
            let due = tokio::select! {
                biased;
                () = &mut stopped => return self.leave().await,
                due = self.step() => due,
            };
            let looked = Instant::now();
            let other = async {
                let told = changes.changed().await;
                tokio::time::sleep_until(looked + LOOK).await;
                told
            };
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // What the watch tells comes before the next look: it ends a pause.
                biased;
                () = &mut stopped => return self.leave().await,
                told = self.in_force.changed() => {
                    if told.is_err() { return }
                    // Whoever tells has heard of the API server.
                    self.reports.heard(Instant::now());
                }
                () = pause => {}
                told = other => if told.is_err() { return },
            }
        }
    }

    /// Reports what is in use, and that all grants without an address in use are idle. One try, which may take no longer than [`LEAVE`].
    async fn leave(&mut self) {
        let in_force = self.in_force.borrow().clone();
        let Some(in_force) = in_force.filter(|in_force| in_force.standing.is_some()) else { return };
        let leaving = async {
            let idle = Unused::all(&self.allocator.holdings().await.ok()?);
            drop(self.allocator.rest(idle).await);
            let holdings = self.allocator.holdings().await.ok()?;
            let write = self.reports.last(&in_force, &holdings, jiff::Timestamp::now())?;
            self.send(&write).await.inspect_err(|error| debug!(%error, "the last report is not written")).ok()
        };
        drop(tokio::time::timeout(LEAVE, leaving).await);
    }

    /// Writes a report if one is due; returns when to look again if nothing happens before.
    async fn step(&mut self) -> Option<Instant> {
        let in_force = self.in_force.borrow().clone()?;
        // Without an object that shows a report there is nothing to write to, and no need to ask the allocator.
        in_force.standing.as_ref()?;
        let holdings = self.allocator.holdings().await.ok()?;
        match self.reports.next(&in_force, &holdings, Instant::now(), jiff::Timestamp::now()) {
            Next::Wait => None,
            Next::At(due) => Some(due),
            Next::Rest(grants) => {
                self.reports.rested(&grants);
                drop(self.allocator.rest(grants).await);
                Some(Instant::now())
            }
            Next::Write(write) => {
                self.write(*write).await;
                // Looked at again at once: what changed meanwhile may be due.
                Some(self.reports.not_before())
            }
        }
    }

    async fn write(&mut self, write: Write) {
        let (outcome, error) = match tokio::time::timeout(WRITE_TIMEOUT, self.send(&write)).await {
            Ok(Ok(answer)) => {
                let version = answer.resource_version;
                match self.confirm(&write, answer.object).await {
                    Ok(()) => (Outcome::Written(version), String::new()),
                    Err(failure) => (Outcome::Unconfirmed(version), failure.to_string()),
                }
            }
            Ok(Err(error)) => {
                // The object is gone, or is another one.
                if matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 422)) {
                    self.relist.notify_one();
                }
                (Outcome::from(&error), error.to_string())
            }
            Err(_) => (Outcome::Unreached, format!("no answer within {} s", WRITE_TIMEOUT.as_secs())),
        };
        let attempts = self.reports.ended(write, &outcome, Instant::now());
        match (outcome, attempts) {
            (Outcome::Written(_), 0) => {}
            (Outcome::Written(_), _) => info!(attempts, "status reported again"),
            (Outcome::Conflict, _) => {
                debug!(error, "the IPAMNode has changed, reporting on what it is now");
                if self.reports.conflicts() >= MANY_CONFLICTS {
                    self.metrics.report_failures.inc();
                    self.relist.notify_one();
                }
                if self.reports.conflicts() == MANY_CONFLICTS {
                    warn!(
                        error,
                        "the watch does not show the current IPAMNode, so no report is written; check that the agent may watch IPAMNodes"
                    );
                }
            }
            (outcome, attempts) => {
                self.metrics.report_failures.inc();
                if attempts == 0 && matches!(outcome, Outcome::Unconfirmed(_)) {
                    warn!(error, "cannot record the grants that the API server has confirmed, reporting again");
                } else if attempts == 0 {
                    warn!(error, "cannot report the status, trying again");
                }
            }
        }
    }

    /// Records the grants that the answer confirms.
    async fn confirm(&self, write: &Write, object: Option<IPAMNode>) -> Result<(), Failure> {
        let confirmed = object.map(|object| write.confirmed(&object)).unwrap_or_default();
        if confirmed.is_empty() { Ok(()) } else { self.allocator.confirm(confirmed).await.map(drop) }
    }

    async fn send(&self, write: &Write) -> Result<Answer, kube::Error> {
        let patch = serde_json::from_value(write.patch()).map_err(kube::Error::SerdeError)?;
        let patch: Patch<()> = Patch::Json(patch);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let request = kube::core::Request::new(&self.path);
        let request = request.patch_subresource("status", &self.node, &params, &patch);
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        if write.wants_object() {
            let object: IPAMNode = self.client.request(request).await?;
            return Ok(Answer {
                resource_version: object.resource_version().unwrap_or_default(),
                object: Some(object),
            });
        }
        request.headers_mut().insert(ACCEPT, METADATA_ONLY);
        let written: PartialObjectMeta<IPAMNode> = self.client.request(request).await?;
        Ok(Answer { resource_version: written.resource_version().unwrap_or_default(), object: None })
    }
}
