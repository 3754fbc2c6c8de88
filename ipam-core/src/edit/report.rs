//! Error messages about an edit that affects nodes.

use std::collections::BTreeMap;

use super::AffectedNode;
use crate::spec::PoolSpec;
use crate::words::{counted, listed};
use crate::{AddrRange, Reason, Violation};

/// Nodes that a message names; the rest is counted.
const MOST_NAMED: usize = 5;
/// Maximum number of fields that are reported. The first suffice to see the error.
const MOST_FIELDS: usize = 16;

/// One violation for each field that causes it, with the affected nodes. `old` has the values to keep, as far as they are known.
pub fn violations(displaced: &[AffectedNode], old: Option<&PoolSpec>, new: &PoolSpec) -> Vec<Violation> {
    let mut order: Vec<&str> = Vec::new();
    let mut by_field: BTreeMap<&str, Vec<&AffectedNode>> = BTreeMap::new();
    for one in displaced {
        for field in &one.fields {
            let nodes = by_field.entry(field).or_insert_with(|| {
                order.push(field);
                Vec::new()
            });
            nodes.push(one);
        }
    }
    let said = order.into_iter().take(MOST_FIELDS).filter_map(|field| by_field.get_key_value(field));
    said.map(|(field, nodes)| Violation::new(*field, Reason::InUse, message(field, nodes, old, new))).collect()
}

fn message(field: &str, nodes: &[&AffectedNode], old: Option<&PoolSpec>, new: &PoolSpec) -> String {
    let value = value_of(new, field).map(|value| format!("{value} ")).unwrap_or_default();
    let named = listed(nodes.iter().map(|one| named(&one.node, &one.range, one.held)), MOST_NAMED);
    let kept = match old.filter(|_| !is_element(field)).and_then(|old| value_of(old, field)) {
        Some(kept) => format!("keep {kept}"),
        None if is_element(field) => "leave it out".to_owned(),
        None => "keep the earlier value".to_owned(),
    };
    format!(
        "{value}would take addresses that pods may hold from {}: {named}; {kept} until they are released",
        counted(nodes.len(), "node", "nodes")
    )
}

/// A node, its block, and the number of its addresses in use, if known.
fn named(node: &str, range: &AddrRange, held: Option<u64>) -> String {
    match held {
        Some(held) => format!("{node:?} ({range} has {held} held)"),
        None => format!("{node:?} (use of {range} not reported: counts as held)"),
    }
}

/// Whether the field is in an element of a list, which had no value before.
fn is_element(field: &str) -> bool {
    field.contains('[')
}

/// The value of a field that can cause a violation, as it is written in YAML.
fn value_of(spec: &PoolSpec, field: &str) -> Option<String> {
    if let Some(index) = element(field, "spec.exclusions[") {
        let exclusion = spec.common().exclusions.get(index)?;
        return Some(format!("{}-{}", exclusion.start_ip, exclusion.end_ip));
    }
    if let Some(index) = element(field, "spec.perNodeExclusions[") {
        let range = spec.common().per_node_exclusions.get(index)?;
        return Some(format!("{}-{}", range.start_index, range.end_index));
    }
    match spec {
        PoolSpec::Ip(spec) => match field {
            "spec.subnet" => Some(format!("{:?}", spec.subnet)),
            "spec.perNodeBlockSize" => Some(spec.per_node_block_size.to_string()),
            "spec.gateway" => spec.gateway.as_ref().map(|text| format!("{text:?}")),
            _ => None,
        },
        PoolSpec::Cidr(spec) => match field {
            "spec.cidr" => Some(format!("{:?}", spec.cidr)),
            "spec.perNodeNetworkPrefix" => Some(spec.per_node_network_prefix.to_string()),
            "spec.gatewayIndex" => spec.gateway_index.map(|index| index.to_string()),
            _ => {
                let entry = spec.static_allocations.get(element(field, "spec.staticAllocations[")?)?;
                Some(format!("{:?}", entry.prefix))
            }
        },
    }
}

fn element(field: &str, list: &str) -> Option<usize> {
    field.strip_prefix(list)?.split(']').next()?.parse().ok()
}
