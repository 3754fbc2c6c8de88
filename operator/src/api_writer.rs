//! The calls to the API server, one function each. Decides nothing, tries nothing twice.
//!
//! What the operator's role must allow, in the namespace of the pools unless said otherwise:
//! | group | resource | verbs |
//! | --- | --- | --- |
//! | (core) | nodes, cluster-wide | list, watch (metadata only) |
//! | nv-ipam.nvidia.com | ippools, cidrpools | get, list, watch, patch (finalizers and one annotation) |
//! | nv-ipam.nvidia.com | ippools/status, cidrpools/status | update |
//! | nv-ipam.nvidia.com | ipamnodes | list, watch, create, patch, delete |
//! | events.k8s.io | events | create, patch; create in the namespace of the Lease |
//! | coordination.k8s.io | leases, in the namespace of `--leader-elect-namespace` | get, create, update |

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use ipam_crds::{GROUP, NodeBlock, VERSION};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Status;
use kube::runtime::events::{Event, EventType};
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;

use crate::election::Leadership;
use crate::events::EventPublisher;
use ipam_reconciler::decide::{CreateBlocked, PoolEvent};
use ipam_reconciler::objects::{Kind, RawObject};
use ipam_reconciler::pool::{FENCED_BY, StatusBody, StatusRecord};
use ipam_reconciler::reconcile::{
    CallError, Command, NodeAction, NodeVersion, NodeWrite, Outcome, PoolPatch, PoolRef, PublishEvent,
};

/// Requests only the metadata of the answer: a status of 5,000 allocations need not come back.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");
/// The operator's name in managed fields.
const FIELD_MANAGER: &str = "nv-ipam-controller";

/// Makes calls to one API server about one namespace.
#[derive(Clone)]
pub struct ApiWriter {
    client: Client,
    events: EventPublisher,
    namespace: String,
    lead: watch::Receiver<Leadership>,
}

impl ApiWriter {
    /// Returns a writer for the pools of `namespace`. `instance` names this replica in events, and `lead` limits when it may act.
    pub fn new(client: Client, namespace: String, instance: String, lead: watch::Receiver<Leadership>) -> Self {
        let events = EventPublisher::new(client.clone(), instance);
        Self { client, events, namespace, lead }
    }

    /// Makes the call and returns its outcome. A call without an answer in time counts as failed, though it may take effect.
    /// Otherwise a server that disappears without closing the connection would block the waiting keys for minutes.
    ///
    /// A process that was suspended since the decision may have lost its leadership without noticing. A late call does no harm: each names
    /// a version, and a CREATE assigns no block. It would only cost the API server work, so it is not sent.
    pub async fn perform(&self, command: Command) -> Outcome {
        if !self.lead.borrow().holds(tokio::time::Instant::now().into_std()) {
            return command.failed(CallError::Failed("not sent: this process leads no more".to_owned()));
        }
        match command {
            Command::WriteStatus { pool, status } => {
                let result = answered(self.write_status(&pool, &status)).await;
                // Dropping the addresses of 5,000 nodes here keeps the status no longer than the call.
                drop(status);
                Outcome::Pool(pool, result)
            }
            Command::PatchPool { pool, patch } => {
                let result = answered(self.patch_pool(&pool, &patch)).await;
                Outcome::Pool(pool, result)
            }
            Command::Confirm { pool } => {
                let result = answered(self.current_version(&pool)).await;
                Outcome::Pool(pool, result)
            }
            Command::WriteIpamNode(write) => {
                let result = answered(self.write_ipam_node(&write)).await;
                Outcome::IpamNode(write, result)
            }
        }
    }

    /// Publishes a Kubernetes Event while this process leads.
    pub async fn publish(&self, PublishEvent { pool, note }: PublishEvent) {
        if !self.lead.borrow().holds(tokio::time::Instant::now().into_std()) {
            return;
        }
        self.events.publish(&event(note), &self.reference(&pool)).await;
    }

    /// Returns the reference to the pool for events.
    fn reference(&self, pool: &PoolRef) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some(pool.key.kind.kind().to_owned()),
            name: Some(pool.key.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(pool.uid.clone()),
            ..ObjectReference::default()
        }
    }

    async fn write_status(&self, pool: &PoolRef, status: &StatusRecord) -> Result<String, CallError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body<'a> {
            api_version: String,
            kind: &'static str,
            metadata: ObjectMeta,
            status: &'a StatusBody,
        }
        let status = status.body(pool.key.kind);
        let body = Body {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: pool.key.kind.kind(),
            metadata: ObjectMeta {
                name: Some(pool.key.name.clone()),
                namespace: Some(self.namespace.clone()),
                uid: Some(pool.uid.clone()),
                resource_version: Some(pool.resource_version.clone()),
                ..ObjectMeta::default()
            },
            status: &status,
        };
        let path = format!("{}/{}/status", self.path(Kind::Pool(pool.key.kind)), pool.key.name);
        let written = self.call(Method::PUT, &path, JSON, &body).await?;
        Ok(written.resource_version().to_owned())
    }

    /// Patches the pool's metadata. A merge patch with uid and version is conditional, and changes only the fields that it names.
    async fn patch_pool(&self, pool: &PoolRef, change: &PoolPatch) -> Result<String, CallError> {
        let mut metadata = json!({"uid": pool.uid, "resourceVersion": pool.resource_version});
        match change {
            PoolPatch::Finalizers(finalizers) => metadata["finalizers"] = json!(finalizers),
            PoolPatch::Annotation(name, value) => metadata["annotations"] = json!({*name: value}),
        }
        let path = format!("{}/{}", self.path(Kind::Pool(pool.key.kind)), pool.key.name);
        let written = self.call(Method::PATCH, &path, MERGE_PATCH, &json!({"metadata": metadata})).await?;
        Ok(written.resource_version().to_owned())
    }

    /// Returns the current version of the pool, read from etcd and not from a cache.
    async fn current_version(&self, pool: &PoolRef) -> Result<String, CallError> {
        let path = format!("{}/{}", self.path(Kind::Pool(pool.key.kind)), pool.key.name);
        let request = Request::get(path).header(ACCEPT, METADATA_ONLY).body(Vec::new());
        let request = request.map_err(|error| CallError::Failed(error.to_string()))?;
        let read: RawObject = self.client.request(request).await.map_err(|error| call_error(error, false))?;
        Ok(read.resource_version().to_owned())
    }

    async fn write_ipam_node(&self, write: &NodeWrite) -> Result<Option<NodeVersion>, CallError> {
        let path = format!("{}/{}", self.path(Kind::IpamNode), write.node);
        match &write.action {
            NodeAction::Create { request } => {
                let body = json!({
                    "apiVersion": format!("{GROUP}/{VERSION}"),
                    "kind": "IPAMNode",
                    "metadata": {"name": write.node, "namespace": self.namespace},
                    "spec": spec(&[], request.as_ref()),
                });
                let made = self.call(Method::POST, &self.path(Kind::IpamNode), JSON, &body).await?;
                Ok(Some(version(&made)))
            }
            NodeAction::Update { version: at, blocks, finalizers, request, fence } => {
                // A merge patch with a version is conditional. It replaces both lists as a whole, and keeps the labels,
                // annotations and owner references of other clients.
                let body = ipam_node_patch(at, blocks, finalizers, request.as_ref(), fence.as_ref());
                let made = self.call(Method::PATCH, &path, MERGE_PATCH, &body).await?;
                Ok(Some(version(&made)))
            }
            NodeAction::Delete(uid, resource_version) => {
                let body = json!({"preconditions": {"uid": uid, "resourceVersion": resource_version}});
                self.call(Method::DELETE, &path, JSON, &body).await?;
                Ok(None)
            }
        }
    }

    fn path(&self, kind: Kind) -> String {
        RawObject::url_path(&kind, Some(&self.namespace))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: &impl Serialize,
    ) -> Result<RawObject, CallError> {
        let creates = method == Method::POST;
        let body = serde_json::to_vec(body).map_err(|error| CallError::Failed(error.to_string()))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?fieldManager={FIELD_MANAGER}"))
            .header(CONTENT_TYPE, content)
            .header(ACCEPT, METADATA_ONLY)
            .body(body)
            .map_err(|error| CallError::Failed(error.to_string()))?;
        self.client.request(request).await.map_err(|error| call_error(error, creates))
    }
}

/// Longer than an API server takes for a write at its worst, admission included.
const CALL_TIMEOUT: Duration = Duration::from_secs(40);

async fn answered<T>(call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = |_| CallError::Failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs()));
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(late).flatten()
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Returns a merge patch. It clears `managedFields`: the API server then keeps no record of field owners for later writes either, so that
/// they cost it less. It begins again with the first server-side apply of another client.
fn ipam_node_patch(
    resource_version: &str,
    blocks: &[NodeBlock],
    finalizers: &[String],
    request: Option<&String>,
    fence: Option<&String>,
) -> serde_json::Value {
    let mut metadata = json!({"resourceVersion": resource_version, "finalizers": finalizers, "managedFields": [{}]});
    if let Some(fence) = fence {
        metadata["annotations"] = json!({FENCED_BY: fence});
    }
    json!({"metadata": metadata, "spec": spec(blocks, request)})
}

/// Returns the spec of an IPAMNode. An absent request is not written, because a request is never removed.
fn spec(blocks: &[NodeBlock], request: Option<&String>) -> serde_json::Value {
    let mut spec = json!({"pools": blocks});
    if let Some(request) = request {
        spec["reportRequest"] = json!(request);
    }
    spec
}

fn version(written: &RawObject) -> NodeVersion {
    NodeVersion {
        uid: written.metadata.uid.clone().unwrap_or_default(),
        resource_version: written.resource_version().to_owned(),
        generation: written.metadata.generation.unwrap_or_default(),
    }
}

/// Converts an error of a call. 409 means that the object has changed, and 404 that it is gone. For a creation see
/// [`no_place`].
fn call_error(error: kube::Error, creates: bool) -> CallError {
    let kube::Error::Api(status) = error else { return CallError::Failed(ipam_daemon::chain(&error)) };
    if let Some(why) = no_place(&status).filter(|_| creates) {
        return CallError::CreateBlocked(why);
    }
    match status.code {
        404 | 409 => CallError::Conflict(status.message),
        code => CallError::Failed(format!("{} ({code})", status.message)),
    }
}

/// Returns why nothing can be created, if that is the cause of `refusal`. For a terminating namespace, the admission plugin
/// NamespaceLifecycle answers 403 with a cause. For a terminating CRD, the API server's handler of custom resources answers 405, or 403
/// without a cause (Kubernetes 1.36). If the namespace or the CRD does not exist, the answer is 404.
fn no_place(refusal: &Status) -> Option<CreateBlocked> {
    let mut causes = refusal.details.iter().flat_map(|details| &details.causes);
    match refusal.code {
        403 if causes.any(|cause| cause.reason == "NamespaceTerminating") => Some(CreateBlocked::NamespaceEnds),
        403 if refusal.message.ends_with(CRD_ENDS) => Some(CreateBlocked::DefinitionEnds),
        405 => Some(CreateBlocked::DefinitionEnds),
        404 => Some(CreateBlocked::Gone),
        _ => None,
    }
}

/// How the API server says that it creates nothing, because the CRD is being deleted.
const CRD_ENDS: &str = "custom resource definition is terminating";

fn event(note: PoolEvent) -> Event {
    let secondary = note.node.map(|name| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name),
        ..ObjectReference::default()
    });
    Event {
        type_: if note.is_warning { EventType::Warning } else { EventType::Normal },
        reason: note.reason.to_owned(),
        note: Some(note.text),
        action: "Reconcile".to_owned(),
        secondary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(creates: bool, status: &serde_json::Value) -> CallError {
        call_error(kube::Error::Api(serde_json::from_value(status.clone()).unwrap()), creates)
    }

    #[test]
    fn what_cannot_be_created_at_all_is_told_from_what_is_forbidden_or_has_changed() {
        let ends = json!({"code": 403, "message": "m", "details": {"causes": [{"reason": "NamespaceTerminating"}]}});
        assert_eq!(answered(true, &ends), CallError::CreateBlocked(CreateBlocked::NamespaceEnds));
        let message = r#"ipamnodes.nv-ipam.nvidia.com "n1" is forbidden: create not allowed while custom resource definition is terminating"#;
        let crd_ends = json!({"code": 403, "message": message, "reason": "Forbidden"});
        assert_eq!(answered(true, &crd_ends), CallError::CreateBlocked(CreateBlocked::DefinitionEnds));
        for (code, why) in [(405, CreateBlocked::DefinitionEnds), (404, CreateBlocked::Gone)] {
            assert_eq!(answered(true, &json!({"code": code, "message": "m"})), CallError::CreateBlocked(why));
        }
        let forbidden = json!({"code": 403, "message": "m"});
        assert_eq!(answered(true, &forbidden), CallError::Failed("m (403)".to_owned()));
        for code in [404, 409] {
            let changed = json!({"code": code, "message": "m"});
            assert_eq!(answered(false, &changed), CallError::Conflict("m".to_owned()));
        }
        assert_eq!(answered(false, &ends), CallError::Failed("m (403)".to_owned()), "it is there");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_once_the_lease_has_ended() {
        let now = tokio::time::Instant::now().into_std();
        for (leadership, is_sent) in [
            (Leadership::Until(now + Duration::from_secs(1)), true),
            (Leadership::Until(now), false),
            (Leadership::No, false),
        ] {
            let (service, mut requests) =
                tower_test::mock::pair::<Request<kube::client::Body>, http::Response<kube::client::Body>>();
            let (_lead, told) = watch::channel(leadership);
            let writer = ApiWriter::new(Client::new(service, "pools"), "pools".to_owned(), "a".to_owned(), told);
            let write = NodeWrite { node: "n1".to_owned(), action: NodeAction::Create { request: None } };
            // Without an answer the call ends by its time limit.
            let outcome = writer.perform(Command::WriteIpamNode(write)).await;
            let Outcome::IpamNode(_, Err(CallError::Failed(why))) = outcome else { panic!("{outcome:?}") };
            let request = futures::poll!(std::pin::pin!(requests.next_request()));
            assert_eq!((request.is_ready(), why.starts_with("not sent")), (is_sent, !is_sent), "{leadership:?}: {why}");
        }
    }
}
