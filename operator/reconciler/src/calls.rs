//! Calls to the API server as plain data: what is asked for, and what became of it.
//!
//! Every call that changes something names the version that it was decided upon; a creation names none. Who makes the calls decides how.

use ipam_core::PoolKey;
use ipam_crds::NodeBlock;

use crate::decide::{NoPlace, Note};
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
        /// What is to change.
        patch: PoolPatch,
    },
    /// Ask for a pool's current version.
    Confirm {
        /// The pool.
        pool: PoolRef,
    },
    /// Create an IPAMNode, write the spec of one if its version is still this one, or delete it if it is.
    WriteIpamNode(NodeWrite),
}

/// A Kubernetes Event to be published about a pool. Nothing waits for it: conditions or the log say the same.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolEvent {
    /// The pool.
    pub pool: PoolRef,
    /// What the event says.
    pub note: Note,
}

impl Command {
    /// The outcome of a call that is not made, or of which it is unknown whether it was made.
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
    /// All finalizers that it is to have, those of others included.
    Finalizers(Vec<String>),
    /// The annotation of this name is to say this; without a value it is taken away.
    Annotation(&'static str, Option<String>),
}

/// A pool as a call names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolRef {
    /// Kind and name.
    pub key: PoolKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Which call this is. A pool that goes and comes back, as in a restore, keeps its uid: the answer to a call from before is no
    /// answer to one from after.
    pub call: u64,
}

/// A write of an IPAMNode.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeWrite {
    /// The node's name.
    pub node: String,
    /// What is to be done.
    pub action: NodeAction,
}

/// What is to be done with an IPAMNode.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeAction {
    /// Create it without blocks. No version makes a creation conditional, so it may take effect at any later time. It assigns
    /// nothing, whenever that is.
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
        /// The value of an annotation that makes a new version, though nothing else may be new.
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

/// What became of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Command::WriteStatus`], [`Command::PatchPool`] and [`Command::Confirm`]: the version that the pool has now.
    Pool(PoolRef, Result<String, CallError>),
    /// Of [`Command::WriteIpamNode`]: the object's uid, version and generation, or nothing if it was deleted.
    IpamNode(NodeWrite, Result<Option<NodeVersion>, CallError>),
}

/// Which state of an IPAMNode a write has made.
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
    /// The object is not in the state that the call was based on: observe again.
    #[error("the object has changed meanwhile: {0}")]
    Conflict(String),
    /// Nothing can be created where it was to be, and nobody mends that by trying again.
    #[error("there is no place for it: {0}")]
    NoPlace(NoPlace),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}
