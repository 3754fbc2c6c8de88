//! The size of the cluster, and the names of its nodes.

/// Machines that exist from the start.
pub(super) const NODES: u8 = 4;
/// Maximum number of machines. Those after the first [`NODES`] exist once an action names them.
pub(super) const MOST_NODES: u8 = 12;
/// Maximum number of replicas of the operator.
pub(super) const REPLICAS: u8 = 3;

/// The least age of a backup that is restored, in seconds.
pub(super) const BACKUP_SECONDS: i64 = 360;

/// The name of a node.
pub(super) fn node_name(node: u8) -> String {
    format!("node-{}", node % MOST_NODES)
}
