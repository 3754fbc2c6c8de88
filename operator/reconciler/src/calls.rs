//! Calls to the API server and their outcomes, as plain data.
//!
//! Every call that changes an object names the version that the decision is based on. A CREATE names none. The caller decides how a call is
//! made.

use ipam_core::PoolKey;
use ipam_crds::NodeBlock;

use crate::decide::{CreateBlocked, PoolEvent};
use crate::pool::StatusRecord;

/// A call to be made.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Write a pool's status, if its version is still this one.
    WriteStatus {
        /// The pool.
        pool: PoolRef,
        /// The status.
        status: StatusRecord,
    },
    /// Change a pool's metadata, if its version is still this one.
    PatchPool {
        /// The pool.
        pool: PoolRef,
        /// The change.
        patch: PoolPatch,
    },
    /// Read a pool's current version.
    Confirm {
        /// The pool.
        pool: PoolRef,
    },
    /// Create an IPAMNode, or update or delete it if its version is still this one.
    WriteIpamNode(NodeWrite),
}

/// A Kubernetes Event to be published about a pool. Nothing waits for it, because conditions or the log show the same.
#[derive(Clone, PartialEq, Debug)]
pub struct PublishEvent {
    /// The pool.
    pub pool: PoolRef,
    /// The event.
    pub note: PoolEvent,
}

impl Command {
    /// The outcome of a call that was not made, or whose result is unknown.
    pub fn failed(self, why: CallError) -> Outcome {
        match self {
            Self::WriteStatus { pool, .. } | Self::PatchPool { pool, .. } | Self::Confirm { pool } => {
                Outcome::Pool(pool, Err(why))
            }
            Self::WriteIpamNode(write) => Outcome::IpamNode(write, Err(why)),
        }
    }
}

/// A change of a pool's metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolPatch {
    /// The new `metadata.finalizers`, those of others included.
    Finalizers(Vec<String>),
    /// The name of an annotation and its new value. `None` removes the annotation.
    Annotation(&'static str, Option<String>),
}

/// The pool of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolRef {
    /// Kind and name.
    pub key: PoolKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Number of the call. A pool that is deleted and restored keeps its uid, so the uid does not show whether an answer belongs to the
    /// call under way.
    pub call: u64,
}

/// A write of an IPAMNode.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeWrite {
    /// The node's name.
    pub node: String,
    /// The action.
    pub action: NodeAction,
}

/// An action on an IPAMNode.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeAction {
    /// Create it without blocks. No version makes a CREATE conditional, so it may take effect at any later time. Even then it assigns
    /// nothing.
    Create {
        /// `spec.reportRequest`.
        request: Option<String>,
    },
    /// Replace the spec and the finalizers, if the version is still this one.
    Update {
        /// `metadata.resourceVersion`.
        version: String,
        /// The new `spec.pools`.
        blocks: Vec<NodeBlock>,
        /// The new `metadata.finalizers`, those of others included.
        finalizers: Vec<String>,
        /// The new `spec.reportRequest`.
        request: Option<String>,
        /// The value of an annotation that makes a new version even if nothing else changes.
        fence: Option<String>,
    },
    /// Delete it, if uid and version are these.
    Delete(String, String),
}

impl NodeAction {
    /// The blocks of the IPAMNode after this.
    pub fn blocks(&self) -> &[NodeBlock] {
        match self {
            Self::Update { blocks, .. } => blocks,
            Self::Create { .. } | Self::Delete(..) => &[],
        }
    }

    /// The `spec.reportRequest` of the IPAMNode after this.
    pub fn request(&self) -> Option<&String> {
        match self {
            Self::Create { request } | Self::Update { request, .. } => request.as_ref(),
            Self::Delete(..) => None,
        }
    }
}

/// The outcome of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Command::WriteStatus`], [`Command::PatchPool`] and [`Command::Confirm`]: the version that the pool has now.
    Pool(PoolRef, Result<String, CallError>),
    /// Of [`Command::WriteIpamNode`]: the object's uid, version and generation, or nothing if it was deleted.
    IpamNode(NodeWrite, Result<Option<NodeVersion>, CallError>),
}

/// The version of an IPAMNode that a write made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeVersion {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The object has changed since the version of the call: observe it again.
    #[error("the object has changed meanwhile: {0}")]
    Conflict(String),
    /// The API server accepts no new IPAMNode, and a retry does not help.
    #[error("there is no place for it: {0}")]
    CreateBlocked(CreateBlocked),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}
