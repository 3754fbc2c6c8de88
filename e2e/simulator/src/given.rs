//! What the objects on the server record about assigned blocks: the allocation state of the Lease, and the IPAMNodes with blocks.

use std::sync::Arc;

use ipam_operator::election::LEASE_NAME;
use ipam_reconciler::allocation_state::AllocationState;

use super::object::Object;
use super::server::Server;

/// The allocation state of the Lease on the server.
pub(super) fn given(server: &Server) -> AllocationState {
    let lease = server.get("leases", LEASE_NAME).and_then(|object| object.lease());
    lease.map_or(AllocationState::NoneAllocated, |lease| AllocationState::of(&lease))
}

/// The first IPAMNode with blocks, if the Lease does not record that blocks were assigned.
pub(super) fn told_without_mark(server: &Server) -> Option<&Arc<Object>> {
    if given(server) != AllocationState::NoneAllocated {
        return None;
    }
    let is_told = |object: &&Arc<Object>| object["spec"]["pools"].as_array().is_some_and(|pools| !pools.is_empty());
    server.list("ipamnodes").find(is_told)
}
