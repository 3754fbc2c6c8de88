//! The size of the cluster, and the names of its nodes.

/// Machines that there are from the start.
pub(super) const NODES: u8 = 4;
/// Machines that there may be. Those after the first [`NODES`] are there once an action names them.
pub(super) const MOST_NODES: u8 = 12;
/// Replicas of the operator that there may be.
pub(super) const REPLICAS: u8 = 3;

/// The name of a node.
pub(super) fn node_name(node: u8) -> String {
    format!("node-{}", node % MOST_NODES)
}
