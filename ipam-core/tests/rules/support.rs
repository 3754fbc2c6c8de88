//! Builders and renderings that keep the tests short.

use std::collections::BTreeMap;

use ipam_core::spec::{
    CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, NodeSelectorSpec, NodeSelectorTermSpec,
    PoolSpec, RequirementSpec, StaticAllocationSpec,
};
use ipam_core::{Claim, ClaimSource, NodeRef, Plan, Pool, Usage, Violation, plan};

pub(crate) fn ip_spec(subnet: &str, block_size: i64) -> IpPoolSpec {
    IpPoolSpec { subnet: subnet.into(), per_node_block_size: block_size, ..IpPoolSpec::default() }
}

pub(crate) fn cidr_spec(cidr: &str, prefix_len: i64) -> CidrPoolSpec {
    CidrPoolSpec { cidr: cidr.into(), per_node_network_prefix: prefix_len, ..CidrPoolSpec::default() }
}

pub(crate) fn ip_pool(spec: IpPoolSpec) -> Pool {
    Pool::parse("pool1", &PoolSpec::Ip(spec)).unwrap()
}

pub(crate) fn cidr_pool(spec: CidrPoolSpec) -> Pool {
    Pool::parse("pool1", &PoolSpec::Cidr(spec)).unwrap()
}

pub(crate) fn exclusion(start: &str, end: &str) -> ExclusionSpec {
    ExclusionSpec { start_ip: start.into(), end_ip: end.into() }
}

pub(crate) fn places(start_index: i64, end_index: i64) -> IndexRangeSpec {
    IndexRangeSpec { start_index, end_index }
}

pub(crate) fn static_entry(node: &str, prefix: &str, gateway: &str) -> StaticAllocationSpec {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    StaticAllocationSpec { node_name: text(node), gateway: text(gateway), prefix: prefix.into() }
}

pub(crate) fn excluding(exclusions: &[(&str, &str)]) -> CommonSpec {
    let exclusions = exclusions.iter().map(|(start, end)| exclusion(start, end)).collect();
    CommonSpec { exclusions, ..CommonSpec::default() }
}

pub(crate) fn requirement(key: &str, operator: &str, values: &[&str]) -> RequirementSpec {
    let values = values.iter().map(|&value| value.to_owned()).collect();
    RequirementSpec { key: key.into(), operator: operator.into(), values }
}

/// A selector of one term with expressions on labels.
pub(crate) fn selector(expressions: &[RequirementSpec]) -> NodeSelectorSpec {
    NodeSelectorSpec {
        terms: vec![NodeSelectorTermSpec { match_expressions: expressions.to_vec(), match_fields: Vec::new() }],
    }
}

/// Violations as `field Reason`, in the order in which they came.
pub(crate) fn found(result: Result<Pool, Vec<Violation>>) -> Vec<String> {
    let violations = result.err().unwrap_or_default();
    violations.iter().map(|violation| format!("{} {}", violation.field, violation.reason)).collect()
}

pub(crate) fn found_in_ip(spec: IpPoolSpec) -> Vec<String> {
    found(Pool::parse("pool1", &PoolSpec::Ip(spec)))
}

pub(crate) fn found_in_cidr(spec: CidrPoolSpec) -> Vec<String> {
    found(Pool::parse("pool1", &PoolSpec::Cidr(spec)))
}

/// The messages of all violations, one per line.
pub(crate) fn messages(spec: &PoolSpec) -> String {
    let violations = Pool::parse("pool1", spec).err().unwrap_or_default();
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The plan for nodes without labels.
pub(crate) fn plan_for(pool: &Pool, nodes: &[&str], claims: &[Claim], usage: &dyn Fn(&str) -> Usage) -> Plan {
    let none = BTreeMap::new();
    let nodes: Vec<NodeRef<'_>> = nodes.iter().map(|name| NodeRef { name, labels: &none }).collect();
    plan(pool, &nodes, claims, usage)
}

/// The plan when nothing was given before.
pub(crate) fn fresh(pool: &Pool, nodes: &[&str]) -> Plan {
    plan_for(pool, nodes, &[], &unknown)
}

pub(crate) fn unknown(_node: &str) -> Usage {
    Usage::Unknown
}

pub(crate) fn empty(_node: &str) -> Usage {
    Usage::Empty
}

/// `node: first-last BlockPhase`, with ` gw=…` where there is a gateway.
pub(crate) fn rendered(plan: &Plan) -> Vec<String> {
    plan.assignments
        .iter()
        .map(|assignment| {
            let gateway = assignment.block.gateway.map(|addr| format!(" gw={addr}")).unwrap_or_default();
            format!("{}: {}{gateway} {:?}", assignment.node, assignment.block.range, assignment.phase)
        })
        .collect()
}

/// `node: first-last`.
pub(crate) fn blocks(plan: &Plan) -> Vec<String> {
    plan.assignments.iter().map(|assignment| format!("{}: {}", assignment.node, assignment.block.range)).collect()
}

pub(crate) fn claim(node: &str, start: &str, end: &str) -> Claim {
    Claim::from_ip_range(node, start, end, ClaimSource::Status).unwrap()
}

pub(crate) fn second_claim(node: &str, start: &str, end: &str) -> Claim {
    Claim::from_ip_range(node, start, end, ClaimSource::IpamNode).unwrap()
}

pub(crate) fn prefix_claim(node: &str, prefix: &str, gateway: Option<&str>) -> Claim {
    Claim::from_prefix(node, prefix, gateway, ClaimSource::Status).unwrap()
}

/// What a status written from `plan` says.
pub(crate) fn recorded(plan: &Plan, source: ClaimSource) -> Vec<Claim> {
    plan.assignments
        .iter()
        .map(|assignment| Claim {
            node: assignment.node.clone(),
            range: assignment.block.range,
            gateway: assignment.block.gateway,
            source,
        })
        .collect()
}
