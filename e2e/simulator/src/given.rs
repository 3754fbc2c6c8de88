//! What the objects on the server say of blocks given: the mark on the Lease, and the IPAMNodes that tell of blocks.

use std::sync::Arc;

use ipam_operator::election::LEASE_NAME;
use ipam_reconciler::given::Given;

use super::object::Object;
use super::server::Server;

/// What the Lease on the server says of blocks given.
pub(super) fn given(server: &Server) -> Given {
    let lease = server.get("leases", LEASE_NAME).and_then(|object| object.lease());
    lease.map_or(Given::Nothing, |lease| Given::of(&lease))
}

/// The first IPAMNode with blocks, where the Lease does not say that blocks were assigned.
pub(super) fn told_without_mark(server: &Server) -> Option<&Arc<Object>> {
    if given(server) != Given::Nothing {
        return None;
    }
    let is_told = |object: &&Arc<Object>| object["spec"]["pools"].as_array().is_some_and(|pools| !pools.is_empty());
    server.list("ipamnodes").find(is_told)
}
