//! What makes a request invalid, whatever is free. Fields are named as on the wire (behaviour.md §5).

use std::net::IpAddr;

use super::request::{DEFAULT_GATEWAY_FIELD, INDEX_FIELD};
use super::{Owner, Pick, Request};
use crate::addr::number;
use crate::{Family, NodePool, PoolKey, Reason, Violation};

/// Pools that one request may name.
const MAX_POOLS: usize = 2;

const POOLS_FIELD: &str = "parameters.pools";
const CONTAINER_FIELD: &str = "parameters.cni_containerid";
const INTERFACE_FIELD: &str = "parameters.cni_ifname";
const POD_NAME_FIELD: &str = "parameters.metadata.k8s_pod_name";
const POD_NAMESPACE_FIELD: &str = "parameters.metadata.k8s_pod_namespace";
const REQUESTED_FIELD: &str = "parameters.requested_ips";

/// The errors of the subject of a call: it needs one or two pools, each once and with a name, a container and an
/// interface. All calls need these (behaviour.md §5).
pub fn subject_violations(pools: &[PoolKey], owner: &Owner) -> Vec<Violation> {
    let mut violations = Vec::new();
    if pools.is_empty() {
        violations.push(Violation::new(POOLS_FIELD, Reason::Required, "must name one or two pools"));
    }
    let too_many = pools.len() > MAX_POOLS;
    if too_many {
        let message = format!("names {} pools; at most {MAX_POOLS} are allowed", pools.len());
        violations.push(Violation::new(POOLS_FIELD, Reason::OutOfRange, message));
    }
    // The work for a request must not grow with its errors, so too many entries are not checked one by one.
    for (index, key) in pools.iter().enumerate().take_while(|_| !too_many) {
        let field = || format!("{POOLS_FIELD}[{index}]");
        if key.name.is_empty() {
            violations.push(Violation::new(field(), Reason::Required, "must be the name of a pool"));
        } else if pools[..index].contains(key) {
            let message = format!("names {key} again; one address is given per pool");
            violations.push(Violation::new(field(), Reason::Duplicate, message));
        }
    }
    require(&mut violations, CONTAINER_FIELD, &owner.container_id, "the container's id");
    require(&mut violations, INTERFACE_FIELD, &owner.if_name, "the name of the interface");
    violations
}

/// The errors of a request for addresses that can be found without its pools.
pub(super) fn request_violations(request: &Request) -> Vec<Violation> {
    let mut violations = subject_violations(&request.pools, &request.owner);
    require(&mut violations, POD_NAME_FIELD, &request.attachment.pod_name, "the pod's name");
    require(&mut violations, POD_NAMESPACE_FIELD, &request.attachment.pod_namespace, "the pod's namespace");
    let beside = match request.pick {
        Pick::Next => return violations,
        Pick::Gateway => DEFAULT_GATEWAY_FIELD,
        Pick::Index(_) => INDEX_FIELD,
    };
    if !request.requested.is_empty() {
        let message = format!("cannot stand together with {beside}; keep one of the two");
        violations.push(Violation::new(REQUESTED_FIELD, Reason::Conflict, message));
    }
    violations
}

/// Whether the number of pools is valid.
pub(super) fn pool_count_is_valid(request: &Request) -> bool {
    (1..=MAX_POOLS).contains(&request.pools.len())
}

/// The address that the request wants of each of `pools`, which are those of the request; `None` is the next free one.
pub(super) fn wanted(request: &Request, pools: &[&NodePool]) -> (Vec<Option<IpAddr>>, Vec<Violation>) {
    let (mut wanted, mut violations) = requested(&request.requested, pools);
    for (slot, pool) in wanted.iter_mut().zip(pools) {
        match picked(request.pick, pool) {
            Ok(Some(addr)) => *slot = Some(addr),
            Ok(None) => {}
            Err(violation) => violations.push(violation),
        }
    }
    (wanted, violations)
}

/// Assigns each requested address to the pool whose subnet contains it.
fn requested(requested: &[IpAddr], pools: &[&NodePool]) -> (Vec<Option<IpAddr>>, Vec<Violation>) {
    let mut wanted = vec![None; pools.len()];
    if requested.len() > MAX_POOLS {
        let message = format!("names {} addresses; at most one per pool is allowed", requested.len());
        return (wanted, vec![Violation::new(REQUESTED_FIELD, Reason::OutOfRange, message)]);
    }
    let mut violations = Vec::new();
    // Pools may overlap on purpose: an address that fits one pool only must not find it taken by one that fits both.
    let mut order: Vec<_> = (0..requested.len()).collect();
    order.sort_by_key(|&index| pools.iter().filter(|pool| pool.subnet.hosts().contains(requested[index])).count());
    for index in order {
        let addr = requested[index];
        let free = (0..pools.len()).find(|&slot| wanted[slot].is_none() && pools[slot].subnet.hosts().contains(addr));
        if let Some(slot) = free {
            wanted[slot] = Some(addr);
        } else {
            let (reason, message) = why_not(addr, &wanted, pools);
            violations.push(Violation::new(format!("{REQUESTED_FIELD}[{index}]"), reason, message));
        }
    }
    (wanted, violations)
}

/// Why `addr` could not be assigned to one of `pools`, some of which have an address already.
fn why_not(addr: IpAddr, wanted: &[Option<IpAddr>], pools: &[&NodePool]) -> (Reason, String) {
    let fitting = pools.iter().zip(wanted).find(|(pool, _)| pool.subnet.hosts().contains(addr));
    if let Some((NodePool { key, .. }, Some(other))) = fitting {
        return (Reason::Duplicate, format!("{addr} and {other} are both of {key}; one address is given per pool"));
    }
    if let Some(NodePool { key, subnet, .. }) = pools.iter().find(|pool| pool.subnet.contains(addr)) {
        let what = if subnet.network() == addr { "network" } else { "broadcast" };
        return (Reason::Unsupported, format!("{addr} is the {what} address of {key} ({subnet}); ask for a host"));
    }
    let subnets: Vec<_> = pools.iter().map(|pool| format!("{} ({})", pool.key, pool.subnet)).collect();
    (Reason::OutsidePool, format!("{addr} is in no pool asked for; these are {}", subnets.join(", ")))
}

/// The one address that `pick` means in `pool`; `None` if any free address will do.
fn picked(pick: Pick, pool: &NodePool) -> Result<Option<IpAddr>, Violation> {
    match pick {
        Pick::Next => Ok(None),
        Pick::Gateway => pool.gateway.map(Some).ok_or_else(|| {
            let message = format!("needs a gateway, and {} has none on this node", pool.key);
            Violation::new(DEFAULT_GATEWAY_FIELD, Reason::Conflict, message)
        }),
        Pick::Index(index) => at_index(index, pool).map(Some),
    }
}

fn at_index(index: i32, pool: &NodePool) -> Result<IpAddr, Violation> {
    let NodePool { key, range, gateway, .. } = pool;
    let (first, last) = range.numbers();
    let found = u128::try_from(index).ok().and_then(|offset| first.checked_add(offset)).filter(|&n| n <= last);
    let Some(found) = found else {
        let message = format!("{index} is outside {key}, which has {range} on this node; write 0 to {}", last - first);
        return Err(Violation::new(INDEX_FIELD, Reason::OutOfRange, message));
    };
    if gateway.is_some_and(|gateway| Family::of(gateway) == range.family() && number(gateway) == found) {
        let message = format!("{index} is the gateway of {key}, {}; take another", range.family().addr(found));
        return Err(Violation::new(INDEX_FIELD, Reason::Conflict, message));
    }
    Ok(range.family().addr(found))
}

fn require(violations: &mut Vec<Violation>, field: &str, value: &str, what: &str) {
    if value.is_empty() {
        violations.push(Violation::new(field, Reason::Required, format!("must be {what}")));
    }
}
