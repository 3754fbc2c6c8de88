//! Addresses that pods of a node may have without a record, after its agent's store was deleted or restored. The model
//! decides when that is possible, and the agent reports which addresses.

use std::sync::Arc;

use ipam_core::{AddrRange, PoolKey};
use ipam_node_agent::standing::DISCARD;

use crate::admin::value_to_discard;
use crate::agent::Node;
use crate::broken::{Broken, broken};
use crate::object::Object;
use crate::wire::lock;
use crate::world::World;

/// Why a check is left out: pods may have addresses of which their agent has no record any more.
pub(super) const LOST: &str = "an agent has lost its records";

/// The addresses that pods of the node may have without a record: its store was lost in this history.
pub(super) fn lost(world: &World, node: &str) -> Vec<(PoolKey, AddrRange)> {
    let nodes = world.nodes.iter().filter(|it| it.name == node && it.has_lost_its_store());
    nodes.flat_map(Node::lost).collect()
}

/// An agent reports addresses without a record only after its store was lost, and until an admin discards them by the
/// command in the IPAMNode's condition.
pub(super) fn ends(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    for node in world.nodes.iter().filter(|node| node.says_lost()) {
        let object = server.get("ipamnodes", &node.name);
        let value = object.and_then(|object| value_to_discard(object));
        if object.is_some() && value.is_none() {
            let what = format!("the condition of {} does not say how to discard the addresses: {object:?}", node.name);
            return broken("lost-records-end", what);
        }
        let annotated = |object: &Arc<Object>| object["metadata"]["annotations"][DISCARD].as_str() == value.as_deref();
        let is_discarded = value.is_some() && object.is_some_and(annotated);
        if is_discarded || !node.has_lost_its_store() {
            let what = format!("the agent of {} still reports addresses without a record: {object:?}", node.name);
            return broken("lost-records-end", what);
        }
    }
    Ok(())
}
