//! Objects as read from the API server: some of the metadata, and spec and status as JSON text.
//!
//! Decides nothing. Spec and status stay text for two reasons. An object whose spec or status does not parse is an object like any other:
//! no watch stops, and the code that parses the text reports the error. And the status of 5,000 allocations that this operator wrote itself
//! comes back without being parsed at all.
//!
//! Text can be kept only while the type of a watch event comes before its object. Every API server writes them in this order
//! (apimachinery's `WatchEvent`). The other order would make the watch fail with an error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ipam_core::PoolKind;
use ipam_crds::{CIDRPool, IPAMNode, IPPool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::{ClusterResourceScope, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The kinds of objects that the operator reconciles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A pool.
    Pool(PoolKind),
    /// The blocks of one node.
    IpamNode,
    /// A Node. As a [`RawObject`] it is a name; it is read as [`NodeObject`].
    Node,
}

/// An object of our API, with spec and status unparsed.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Parts")]
pub struct RawObject {
    /// Name, namespace, uid, versions, times of creation and deletion, finalizers, and the annotations of our group. Labels, other
    /// annotations and managed fields are dropped while reading.
    pub metadata: ObjectMeta,
    /// The bytes of all metadata as JSON.
    pub metadata_bytes: usize,
    /// `spec` as JSON.
    pub spec: Option<Box<RawValue>>,
    /// `status` as JSON.
    pub status: Option<Box<RawValue>>,
}

/// An object as the API server sends it.
#[derive(Deserialize)]
struct Parts {
    metadata: Box<RawValue>,
    #[serde(default)]
    spec: Option<Box<RawValue>>,
    #[serde(default)]
    status: Option<Box<RawValue>>,
}

impl TryFrom<Parts> for RawObject {
    type Error = serde_json::Error;

    fn try_from(Parts { metadata, spec, status }: Parts) -> Result<Self, Self::Error> {
        let lean: LeanMetadata = serde_json::from_str(metadata.get())?;
        let lean = ObjectMeta { labels: None, ..lean.into() };
        Ok(Self { metadata: lean, metadata_bytes: metadata.get().len(), spec, status })
    }
}

impl RawObject {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl Resource for RawObject {
    type DynamicType = Kind;
    type Scope = DynamicResourceScope;

    fn kind(kind: &Kind) -> Cow<'_, str> {
        match kind {
            Kind::Pool(PoolKind::IpPool) => IPPool::kind(&()),
            Kind::Pool(PoolKind::CidrPool) => CIDRPool::kind(&()),
            Kind::IpamNode => IPAMNode::kind(&()),
            Kind::Node => NodeObject::kind(&()),
        }
    }

    fn group(kind: &Kind) -> Cow<'_, str> {
        if *kind == Kind::Node { NodeObject::group(&()) } else { Cow::Borrowed(ipam_crds::GROUP) }
    }

    fn version(kind: &Kind) -> Cow<'_, str> {
        if *kind == Kind::Node { NodeObject::version(&()) } else { Cow::Borrowed(ipam_crds::VERSION) }
    }

    fn plural(kind: &Kind) -> Cow<'_, str> {
        match kind {
            Kind::Pool(PoolKind::IpPool) => IPPool::plural(&()),
            Kind::Pool(PoolKind::CidrPool) => CIDRPool::plural(&()),
            Kind::IpamNode => IPAMNode::plural(&()),
            Kind::Node => NodeObject::plural(&()),
        }
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A Node, requested and read as metadata only.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeObject {
    /// As in [`RawObject`], and the labels.
    #[serde(deserialize_with = "lean_metadata_with_labels")]
    pub metadata: ObjectMeta,
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("Node")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed("v1")
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("nodes")
    }

    fn metadata_api() -> bool {
        true
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LeanMetadata {
    name: Option<String>,
    /// Commands in conditions name it.
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl From<LeanMetadata> for ObjectMeta {
    fn from(lean: LeanMetadata) -> Self {
        Self {
            creation_timestamp: lean.creation_timestamp,
            deletion_timestamp: lean.deletion_timestamp,
            finalizers: lean.finalizers,
            labels: lean.labels,
            annotations: lean.annotations.and_then(ours),
            name: lean.name,
            namespace: lean.namespace,
            uid: lean.uid,
            resource_version: lean.resource_version,
            generation: lean.generation,
            ..Self::default()
        }
    }
}

/// The annotations of our group.
fn ours(mut annotations: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    annotations.retain(|key, _| key.split_once('/').is_some_and(|(group, _)| group == ipam_crds::GROUP));
    Some(annotations).filter(|ours| !ours.is_empty())
}

fn lean_metadata_with_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    LeanMetadata::deserialize(deserializer).map(ObjectMeta::from)
}

/// Whether version `read` is older than `known`, as in an event from before a write of this leader. The order of versions that are not
/// numbers is unknown. The API server refuses a write that is based on the wrong one.
pub fn is_older(read: &str, known: &str) -> bool {
    matches!((read.parse::<u64>(), known.parse::<u64>()), (Ok(read), Ok(known)) if read < known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_metadata_that_etcd_stores_is_counted() {
        let metadata =
            r#"{"name":"p","labels":{"a":"b"},"annotations":{"example.org/c":"d"},"managedFields":[{"manager":"m"}]}"#;
        let object: RawObject = serde_json::from_str(&format!(r#"{{"metadata":{metadata},"spec":{{}}}}"#)).unwrap();
        assert_eq!(object.metadata_bytes, metadata.len());
    }

    #[test]
    fn an_object_with_a_poisoned_spec_and_status_is_still_an_object() {
        let text = r#"{"apiVersion":"x","kind":"IPPool","metadata":{"name":"p","namespace":"pools","resourceVersion":"7",
            "managedFields":[{"manager":"m"}]},"spec":{"subnet":7},"status":"nonsense"}"#;
        let object: RawObject = serde_json::from_str(text).unwrap();
        assert_eq!((object.name(), object.resource_version()), ("p", "7"));
        assert_eq!(object.metadata.namespace.as_deref(), Some("pools"));
        assert_eq!(object.spec.unwrap().get(), r#"{"subnet":7}"#);
        assert_eq!(object.status.unwrap().get(), r#""nonsense""#);
        assert!(object.metadata.managed_fields.is_none());
    }

    #[test]
    fn a_watch_event_and_a_list_hold_raw_objects() {
        use kube::core::{ObjectList, WatchEvent};
        let event = r#"{"type":"MODIFIED","object":{"metadata":{"name":"p"},"spec":{"a":[1, 2]}}}"#;
        let WatchEvent::Modified(object) = serde_json::from_str::<WatchEvent<RawObject>>(event).unwrap() else {
            panic!("not a modification");
        };
        assert_eq!(object.spec.unwrap().get(), r#"{"a":[1, 2]}"#);
        let list = r#"{"apiVersion":"v","kind":"L","metadata":{},"items":[{"metadata":{"name":"p"},"status":{}}]}"#;
        let list: ObjectList<RawObject> = serde_json::from_str(list).unwrap();
        assert_eq!(list.items[0].status.as_ref().unwrap().get(), "{}");
    }

    #[test]
    fn of_a_node_name_labels_and_our_annotations_are_read() {
        let text = r#"{"metadata":{"name":"n","resourceVersion":"7","labels":{"a":"b"},
            "annotations":{"c":"d","nv-ipam.nvidia.com/cordon":"true"},
            "managedFields":[{"manager":"kubelet","fieldsV1":{"f:status":{}}}]}}"#;
        let node: NodeObject = serde_json::from_str(text).unwrap();
        assert_eq!(node.metadata.labels.unwrap()["a"], "b");
        let annotations = node.metadata.annotations.unwrap();
        assert!(annotations.len() == 1 && annotations[crate::cluster_cache::CORDON] == "true", "{annotations:?}");
        assert!(node.metadata.managed_fields.is_none());
    }

    #[test]
    fn versions_are_compared_as_numbers_and_unknown_ones_never_count_as_older() {
        assert!(is_older("9", "10"));
        assert!(!is_older("10", "10"));
        assert!(!is_older("11", "10"));
        assert!(!is_older("a", "b"));
    }
}
