//! The rules of `CIDRPool.spec`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, common, given};
use crate::pool::{BlockLayout, GatewayRule, StaticEntry};
use crate::quoted::Quoted;
use crate::spec::{CidrPoolSpec, StaticAllocationSpec};
use crate::{Cidr, Pool, PoolKey, PoolKind, RangeSet, Reason};

/// Parses the spec and adds its errors to `findings`. `None` only if there are errors.
pub(super) fn parse(name: &str, spec: &CidrPoolSpec, findings: &mut Findings) -> Option<Pool> {
    let cidr = findings.exact_network(&"spec.cidr", &spec.cidr);
    let prefix_len = prefix_len(spec.per_node_network_prefix, cidr.as_ref(), findings);
    // Gateway indexes and offsets are checked against a sample: any prefix of this length will do.
    let sample = cidr.zip(prefix_len).and_then(|(cidr, len)| Cidr::containing(cidr.network(), len));
    let block_size = sample.map(|prefix| prefix.range().size());
    let gateway = gateway_index(spec.gateway_index, sample.as_ref(), findings);
    let exclusions = common::exclusions(&spec.common.exclusions, cidr.as_ref(), "pool's cidr", findings);
    let per_node = common::per_node_exclusions(&spec.common.per_node_exclusions, block_size, findings);
    let statics = Statics { cidr, prefix_len }.parse(&spec.static_allocations, findings);
    let selector = common::node_selector(spec.common.node_selector.as_ref(), findings);
    let needs_gateway = common::NeedsGateway { field: "spec.gatewayIndex", given: spec.gateway_index.is_some() };
    common::default_gateway(&spec.common, &needs_gateway, findings);
    let routes = common::routes(&spec.common, cidr.as_ref(), &needs_gateway, findings);

    let network = cidr?;
    let grid = BlockLayout::of_prefixes(&network, prefix_len?)?;
    let mut blocked = per_node.clone();
    blocked.extend(gateway.map(|place| (place, place)));
    let barren = if findings.0.is_empty() { grid.barren(&blocked, &exclusions) } else { RangeSet::new() };
    let (statics, static_by_node) = index_statics(statics, &grid);
    Some(Pool {
        key: PoolKey::new(PoolKind::CidrPool, name),
        network,
        grid,
        exclusions,
        per_node,
        gateway: gateway.map_or(GatewayRule::None, GatewayRule::Index),
        statics,
        static_by_node,
        barren,
        selector,
        routes,
        default_gateway: spec.common.default_gateway,
    })
}

/// The prefix length if it is valid for the family, even if the CIDR's own is longer: other values are checked against it.
fn prefix_len(value: i64, cidr: Option<&Cidr>, findings: &mut Findings) -> Option<u8> {
    let (low, high) = cidr.map_or((1, 128), |cidr| (cidr.prefix_len().max(1), cidr.family().bits()));
    let len = u8::try_from(value).ok().filter(|len| (1..=high).contains(len));
    if len.is_none_or(|len| len < low) {
        let of = cidr.map(|cidr| format!(" of {cidr}")).unwrap_or_default();
        let message = format!("{value} is no length of a prefix{of} for nodes; write {low} to {high}");
        findings.add("spec.perNodeNetworkPrefix", Reason::OutOfRange, message);
    }
    len
}

/// Checks that the gateway is at the index of a host address. Index 0 is the network address, except in prefixes without one.
fn gateway_index(value: Option<i64>, prefix: Option<&Cidr>, findings: &mut Findings) -> Option<u128> {
    let value = value?;
    let index = u128::try_from(value).ok();
    let hosts = prefix.map(|prefix| {
        let ((base, _), (first, last)) = (prefix.range().numbers(), prefix.hosts().numbers());
        (first - base, last - base)
    });
    if index.is_some_and(|index| hosts.is_none_or(|(first, last)| (first..=last).contains(&index))) {
        return index;
    }
    let message = match (prefix, hosts) {
        (Some(prefix), Some((first, last))) => {
            // The type of the field ends there.
            let last = last.min(u128::from(i32::MAX.unsigned_abs()));
            format!("{value} is no host's index in a /{}; write {first} to {last}", prefix.prefix_len())
        }
        _ => format!("{value} is negative; write 0 or more"),
    };
    findings.add("spec.gatewayIndex", Reason::OutOfRange, message);
    None
}

/// The values that static entries are checked against, as far as they are known.
struct Statics {
    cidr: Option<Cidr>,
    prefix_len: Option<u8>,
}

impl Statics {
    fn parse(&self, list: &[StaticAllocationSpec], findings: &mut Findings) -> Vec<(Cidr, StaticEntry)> {
        let (mut nodes, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
        let mut entries = Vec::with_capacity(list.len());
        for (i, spec) in list.iter().enumerate() {
            let field = |name: &str| format!("spec.staticAllocations[{i}].{name}");
            let node = given(spec.node_name.as_ref());
            if let Some(node) = node.filter(|node| !nodes.insert(*node)) {
                let message = format!("{} has an earlier entry already; a node has one prefix", Quoted(node));
                findings.add(field("nodeName"), Reason::Duplicate, message);
            }
            // Errors are in the order of the fields. The prefix is the last one, but the gateway is checked against it.
            let mut of_prefix = Findings::default();
            let prefix = self.prefix(&field("prefix"), &spec.prefix, &mut of_prefix);
            if let Some(prefix) = prefix.filter(|prefix| !prefixes.insert(*prefix)) {
                of_prefix.add(field("prefix"), Reason::Duplicate, format!("\"{prefix}\" stands in an earlier entry"));
            }
            let gateway = given(spec.gateway.as_ref())
                .and_then(|text| findings.addr_in(&field("gateway"), text, prefix.as_ref(), "entry's prefix"));
            findings.0.append(&mut of_prefix.0);
            entries.extend(prefix.map(|prefix| (prefix, StaticEntry { node: node.map(str::to_owned), gateway })));
        }
        entries
    }

    fn prefix(&self, field: &str, text: &str, findings: &mut Findings) -> Option<Cidr> {
        let prefix = findings.exact_network(&field, text)?;
        if let Some(cidr) = self.cidr.filter(|cidr| !cidr.range().contains_range(&prefix.range())) {
            findings.add(field, Reason::OutsidePool, format!("\"{prefix}\" is not in the pool's cidr {cidr}"));
        }
        if let Some(len) = self.prefix_len.filter(|len| *len != prefix.prefix_len()) {
            let message = format!("\"{prefix}\" must be a /{len}, as spec.perNodeNetworkPrefix says");
            findings.add(field, Reason::Conflict, message);
        }
        Some(prefix)
    }
}

type StaticMaps = (BTreeMap<u128, StaticEntry>, BTreeMap<String, u128>);

fn index_statics(entries: Vec<(Cidr, StaticEntry)>, grid: &BlockLayout) -> StaticMaps {
    let (mut statics, mut by_node) = (BTreeMap::new(), BTreeMap::new());
    for (prefix, entry) in entries {
        let Some(index) = grid.index_of(&prefix.range()) else { continue };
        if let Some(node) = &entry.node {
            by_node.insert(node.clone(), index);
        }
        statics.insert(index, entry);
    }
    (statics, by_node)
}
