//! Addresses that pods of a node may have without a record, after its agent's store was deleted or put back. The model says when
//! that may be so; the agent says which addresses.

use ipam_core::{AddrRange, PoolKey};

use super::{Broken, broken};
use crate::server::{Server, text};
use crate::wire::lock;
use crate::world::World;

/// Why a check is left out: pods may have addresses of which their agent has no record any more.
pub(super) const LOST: &str = "an agent has lost its records";

/// The addresses that pods of the node may have without a record: its store was lost in this history, and its IPAMNode is still
/// the one with the report from before.
pub(super) fn lost(world: &World, server: &Server, node: &str) -> Vec<(PoolKey, AddrRange)> {
    let nodes = world.nodes.iter().filter(|it| it.name == node && may_have_lost(world, server, it));
    nodes.flat_map(crate::agent::Node::lost).collect()
}

fn may_have_lost(world: &World, server: &Server, node: &crate::agent::Node) -> bool {
    let Some(object) = server.get("ipamnodes", &node.name) else { return false };
    // An agent keeps to the newest object that it has seen while a live restore shows it an earlier one.
    let is_put_back = node.has_lost_its_store() && world.is_put_back(object);
    node.may_have_lost(&text(object, "/metadata/uid")) || is_put_back
}

/// An agent reports addresses without a record only in the IPAMNode that its store was lost under.
pub(super) fn ends(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    for node in world.nodes.iter().filter(|node| node.says_lost()) {
        let Some(object) = server.get("ipamnodes", &node.name) else { continue };
        if !may_have_lost(world, &server, node) {
            let what = format!("the agent of {} still reports addresses without a record: {object}", node.name);
            return broken("lost-records-end", what);
        }
    }
    Ok(())
}
