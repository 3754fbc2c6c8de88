//! What the node's IPAMNode says about the node.

use ipam_core::ledger::SpecVersion;
use ipam_crds::{IPAMNode, NodeBlock};
use serde::{Deserialize, Serialize};

/// What the operator says about this node.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// `metadata.uid`; empty when the object does not exist.
    pub uid: String,
    /// `metadata.creationTimestamp`, in Unix seconds.
    #[serde(default)]
    pub created: i64,
    /// `metadata.generation`; `None` when the object does not exist.
    pub generation: Option<i64>,
    /// `spec.reportRequest`.
    #[serde(default)]
    pub report_request: Option<String>,
    /// `spec.pools`.
    pub blocks: Vec<NodeBlock>,
}

impl From<&IPAMNode> for NodeSpec {
    fn from(object: &IPAMNode) -> Self {
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            created: object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            generation: object.metadata.generation,
            report_request: object.spec.report_request.clone(),
            blocks: object.spec.pools.clone(),
        }
    }
}

impl NodeSpec {
    /// The version of the spec; `None` when the object does not exist.
    pub fn version(&self) -> Option<SpecVersion> {
        self.generation.map(|generation| SpecVersion { created: self.created, generation })
    }
}
