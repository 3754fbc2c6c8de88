//! A report as the API server shows it.

use ipam_crds::{IPAMNode, IPAMNodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::identity::Identity;

/// The annotation of an IPAMNode by which an admin discards the addresses of an earlier report. Its value is the resourceVersion
/// of the object in which the agent found that report. So it never discards what the agent finds later, and it may stay.
pub const DISCARD: &str = "nv-ipam.nvidia.com/discard-report";

/// A report as the API server shows it.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Standing {
    /// `metadata.uid` of the object that it is part of.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`, which is the node's.
    pub name: String,
    /// The version of the object. A report replaces this version and no other.
    pub resource_version: String,
    /// The report; empty if there is none.
    pub status: IPAMNodeStatus,
    /// The value of the annotation [`DISCARD`].
    pub discard: Option<String>,
    /// Counts what the watch has delivered. A restored API server may show once more what it showed before.
    pub arrival: u64,
}

impl Standing {
    /// Of what the report is.
    pub fn identity(&self) -> Identity {
        let IPAMNodeStatus { store_id, system_uuid, boot_id, .. } = &self.status;
        Identity { store: store_id.clone(), machine: system_uuid.clone(), boot: boot_id.clone() }
    }
}

/// With the arrival 0.
impl From<&IPAMNode> for Standing {
    fn from(object: &IPAMNode) -> Self {
        let ObjectMeta { uid, namespace, name, resource_version, annotations, .. } = object.metadata.clone();
        Self {
            uid: uid.unwrap_or_default(),
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            resource_version: resource_version.unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
            discard: annotations.and_then(|mut annotations| annotations.remove(DISCARD)),
            arrival: 0,
        }
    }
}
