//! The rules that both kinds of specs share.

use super::Findings;
use crate::addr::number;
use crate::quoted::Quoted;
use crate::selector::NodeSelector;
use crate::spec::{CommonSpec, ExclusionSpec, IndexRangeSpec, NodeSelectorSpec};
use crate::{Cidr, Family, RangeSet, Reason};

/// `spec.exclusions`: both ends parse, lie in the network and are in order. They may overlap one another.
pub(super) fn exclusions(
    list: &[ExclusionSpec],
    network: Option<&Cidr>,
    called: &str,
    findings: &mut Findings,
) -> RangeSet {
    let mut set = RangeSet::new();
    for (i, exclusion) in list.iter().enumerate() {
        let ExclusionSpec { start_ip, end_ip } = exclusion;
        let start = findings.addr_in(&format_args!("spec.exclusions[{i}].startIP"), start_ip, network, called);
        let end = findings.addr_in(&format_args!("spec.exclusions[{i}].endIP"), end_ip, network, called);
        let end_field = || format!("spec.exclusions[{i}].endIP");
        let (Some(start), Some(end)) = (start, end) else { continue };
        let (start_family, end_family) = (Family::of(start), Family::of(end));
        if start_family != end_family {
            // One of the two is outside the network, and that is an error already, unless the network is unknown.
            if network.is_none() {
                let message = format!("\"{end}\" is {end_family}, but startIP is {start_family}");
                findings.add(end_field(), Reason::Conflict, message);
            }
        } else if end < start {
            let message = format!("\"{end}\" lies before startIP \"{start}\"; write the lower address first");
            findings.add(end_field(), Reason::Inverted, message);
        } else {
            set.insert(number(start), number(end));
        }
    }
    set
}

/// `spec.perNodeExclusions`: `0 <= startIndex <= endIndex < block_size`.
pub(super) fn per_node_exclusions(
    list: &[IndexRangeSpec],
    block_size: Option<u128>,
    findings: &mut Findings,
) -> RangeSet {
    let mut set = RangeSet::new();
    for (i, range) in list.iter().enumerate() {
        let end_field = format!("spec.perNodeExclusions[{i}].endIndex");
        let start = index(&format!("spec.perNodeExclusions[{i}].startIndex"), range.start_index, block_size, findings);
        let end = index(&end_field, range.end_index, block_size, findings);
        if range.end_index < range.start_index {
            let message = format!("{} lies before startIndex {}", range.end_index, range.start_index);
            findings.add(end_field, Reason::Inverted, message);
        } else if let (Some(start), Some(end)) = (start, end) {
            set.insert(start, end);
        }
    }
    set
}

fn index(field: &str, value: i64, block_size: Option<u128>, findings: &mut Findings) -> Option<u128> {
    let index = u128::try_from(value).ok();
    if index.is_some_and(|index| block_size.is_none_or(|size| index < size)) {
        return index;
    }
    let upper = block_size.map_or_else(|| "or more".to_owned(), |size| format!("to {}", size.saturating_sub(1)));
    findings.add(field, Reason::OutOfRange, format!("{value} is no place in a node's block; write 0 {upper}"));
    None
}

/// `spec.nodeSelector`.
pub(super) fn node_selector(spec: Option<&NodeSelectorSpec>, findings: &mut Findings) -> Option<NodeSelector> {
    NodeSelector::parse(spec?, "spec.nodeSelector").map_err(|mut found| findings.0.append(&mut found)).ok()
}

/// The field that sets a pool's gateway, and whether it is set, valid or not.
pub(super) struct NeedsGateway {
    pub(super) field: &'static str,
    pub(super) given: bool,
}

/// `spec.defaultGateway` needs a gateway.
pub(super) fn default_gateway(spec: &CommonSpec, needs: &NeedsGateway, findings: &mut Findings) {
    if spec.default_gateway && !needs.given {
        let message = format!("true needs a gateway; set {}", needs.field);
        findings.add("spec.defaultGateway", Reason::Conflict, message);
    }
}

/// `spec.routes` need a gateway and must be of the pool's family. A default route is an error if `defaultGateway` is set.
/// Host bits of a destination are dropped, as in routing tables.
pub(super) fn routes(
    spec: &CommonSpec,
    network: Option<&Cidr>,
    needs: &NeedsGateway,
    findings: &mut Findings,
) -> Vec<Cidr> {
    if !spec.routes.is_empty() && !needs.given {
        findings.add("spec.routes", Reason::Conflict, format!("need a gateway; set {}", needs.field));
    }
    let mut routes = Vec::with_capacity(spec.routes.len());
    for (i, text) in spec.routes.iter().enumerate() {
        let field = format!("spec.routes[{i}].dst");
        let Some((dst, _)) = findings.network(&field, text) else { continue };
        if let Some(network) = network.filter(|network| network.family() != dst.family()) {
            let message = format!("{} is {}, but the pool is {}", Quoted(text), dst.family(), network.family());
            findings.add(&field, Reason::OutsidePool, message);
        }
        if spec.default_gateway && dst.prefix_len() == 0 {
            let message =
                format!("{} is the default route, which spec.defaultGateway already adds; leave one out", Quoted(text));
            findings.add(&field, Reason::Conflict, message);
        }
        routes.push(dst);
    }
    routes
}
