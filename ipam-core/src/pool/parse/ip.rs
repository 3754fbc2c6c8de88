//! The rules of `IPPool.spec`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Findings, common, given};
use crate::addr::number;
use crate::pool::{BlockLayout, GatewayRule};
use crate::spec::IpPoolSpec;
use crate::{Cidr, Pool, PoolKey, PoolKind, RangeSet, Reason};

/// Parses the spec and adds its errors to `findings`. `None` only if there are errors.
pub(super) fn parse(name: &str, spec: &IpPoolSpec, findings: &mut Findings) -> Option<Pool> {
    // Host bits are dropped without an error: "subnet: 192.168.0.1/16" has always been accepted.
    let subnet = findings.network(&"spec.subnet", &spec.subnet).map(|(subnet, _)| subnet);
    let block_size = block_size(spec.per_node_block_size, subnet.as_ref(), findings);
    let gateway = gateway(spec, subnet.as_ref(), findings);
    let exclusions = common::exclusions(&spec.common.exclusions, subnet.as_ref(), "subnet", findings);
    let per_node = common::per_node_exclusions(&spec.common.per_node_exclusions, block_size, findings);
    let selector = common::node_selector(spec.common.node_selector.as_ref(), findings);
    let needs_gateway = common::NeedsGateway { field: "spec.gateway", given: given(spec.gateway.as_ref()).is_some() };
    common::default_gateway(&spec.common, &needs_gateway, findings);
    let routes = common::routes(&spec.common, subnet.as_ref(), &needs_gateway, findings);

    let network = subnet?;
    let grid = BlockLayout::of_addresses(&network, block_size?)?;
    let mut blocked = exclusions.clone();
    blocked.extend(gateway.map(number).map(|gateway| (gateway, gateway)));
    let barren = if findings.0.is_empty() { grid.barren(&per_node, &blocked) } else { RangeSet::new() };
    Some(Pool {
        key: PoolKey::new(PoolKind::IpPool, name),
        network,
        grid,
        exclusions,
        per_node,
        gateway: gateway.map_or(GatewayRule::None, GatewayRule::Shared),
        statics: BTreeMap::new(),
        static_by_node: BTreeMap::new(),
        barren,
        selector,
        routes,
        default_gateway: spec.common.default_gateway,
    })
}

/// The block size, even if it is too large for the subnet: other values are checked against it.
fn block_size(size: i64, subnet: Option<&Cidr>, findings: &mut Findings) -> Option<u128> {
    const FIELD: &str = "spec.perNodeBlockSize";
    let usable = subnet.map(|subnet| subnet.hosts().size());
    let Some(positive) = u128::try_from(size).ok().filter(|size| *size > 0) else {
        let upper = usable.map_or_else(|| "or more".to_owned(), |usable| format!("to {usable}"));
        findings.add(FIELD, Reason::OutOfRange, format!("{size} is too small; write 1 {upper}"));
        return None;
    };
    if let (Some(subnet), Some(usable)) = (subnet, usable.filter(|usable| positive > *usable)) {
        let (are, right) = match usable {
            1 => ("the one usable address".to_owned(), "1".to_owned()),
            _ => (format!("the {usable} usable addresses"), format!("1 to {usable}")),
        };
        let message = format!("{size} is more than {are} of {subnet}; write {right}");
        findings.add(FIELD, Reason::OutOfRange, message);
    }
    Some(positive)
}

fn gateway(spec: &IpPoolSpec, subnet: Option<&Cidr>, findings: &mut Findings) -> Option<IpAddr> {
    findings.addr_in(&"spec.gateway", given(spec.gateway.as_ref())?, subnet, "subnet")
}
