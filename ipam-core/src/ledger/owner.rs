//! The owner of an address, and what the address is used for.

use std::fmt;

/// One interface of one sandbox. Always a pair: joined to one string, `a_b` + `c` would be `a` + `b_c`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// `CNI_CONTAINERID`: the sandbox.
    pub container_id: String,
    /// `CNI_IFNAME`: the interface in it.
    pub if_name: String,
}

impl Owner {
    /// An owner.
    pub fn new(container_id: impl Into<String>, if_name: impl Into<String>) -> Self {
        Self { container_id: container_id.into(), if_name: if_name.into() }
    }

    /// The container ID and the name of the interface.
    pub(super) fn parts(&self) -> (&str, &str) {
        (&self.container_id, &self.if_name)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {:?} interface {:?}", self.container_id, self.if_name)
    }
}

/// What an address is used for; kept for users and for garbage collection. An empty text means that it is unknown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Attachment {
    /// Name of the pod.
    pub pod_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// The device that is attached, for example a PCI address.
    pub device_id: String,
    /// Name of the CNI network.
    pub network: String,
}
