//! From the spec of a pool to the first addresses that pods get: the examples of behaviour.md and of the documents, and the
//! same network in other sizes. The whole way within this crate: parse, plan, block, ledger.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::BTreeMap;

use ipam_core::ledger::{Attachment, Ledger, Owner, Pick, Request};
use ipam_core::spec::{CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, PoolSpec};
use ipam_core::{NodeRef, Pool, Usage, plan};
use rstest::rstest;

fn ip(subnet: &str, per_node_block_size: i64, gateway: &str) -> PoolSpec {
    let gateway = Some(gateway.to_owned());
    PoolSpec::Ip(IpPoolSpec { subnet: subnet.into(), per_node_block_size, gateway, ..IpPoolSpec::default() })
}

fn cidr(cidr: &str, per_node_network_prefix: i64, gateway_index: Option<i64>) -> PoolSpec {
    PoolSpec::Cidr(CidrPoolSpec {
        cidr: cidr.into(),
        per_node_network_prefix,
        gateway_index,
        ..CidrPoolSpec::default()
    })
}

/// `first-last first pod/mask, second pod/mask` of each node, in name order.
fn given(spec: &PoolSpec, nodes: &[&str]) -> Vec<String> {
    let pool = Pool::parse("pool1", spec).unwrap();
    let no_labels = BTreeMap::new();
    let nodes: Vec<_> = nodes.iter().map(|name| NodeRef { name, labels: &no_labels }).collect();
    let plan = plan(&pool, &nodes, &[], &|_| Usage::Unknown);
    let of_block = |block| {
        let mut ledger = Ledger::new(0);
        ledger.configure(vec![pool.node_pool(block)]);
        let pods: Vec<_> = ["a", "b"].iter().filter_map(|pod| next(&mut ledger, &pool, pod)).collect();
        format!("{} {}", block.range, pods.join(", "))
    };
    plan.assignments.iter().map(|assignment| of_block(&assignment.block)).collect()
}

/// The address of the next pod with its mask; `None` when there is no more.
fn next(ledger: &mut Ledger, pool: &Pool, pod: &str) -> Option<String> {
    let request = Request {
        pools: vec![pool.key().clone()],
        owner: Owner::new(pod, "net1"),
        attachment: Attachment { pod_name: pod.into(), pod_namespace: "ns".into(), ..Attachment::default() },
        requested: Vec::new(),
        pick: Pick::Next,
    };
    let allocation = ledger.allocate(&request, 0).ok()?;
    allocation.changes.iter().for_each(|change| ledger.apply(change));
    Some(format!("{}/{}", allocation.grants[0].addr, allocation.grants[0].prefix_len))
}

#[rstest]
#[case(ip("192.168.0.0/16", 4, "192.168.0.1"), &["192.168.0.1-192.168.0.4 192.168.0.2/16, 192.168.0.3/16", "192.168.0.5-192.168.0.8 192.168.0.5/16, 192.168.0.6/16"])]
#[case(ip("192.168.0.0/16", 24, "192.168.0.1"), &["192.168.0.1-192.168.0.24 192.168.0.2/16, 192.168.0.3/16", "192.168.0.25-192.168.0.48 192.168.0.25/16, 192.168.0.26/16"])]
#[case(ip("fd52:2eb5:44::/48", 500, "fd52:2eb5:44::1"), &["fd52:2eb5:44::1-fd52:2eb5:44::1f4 fd52:2eb5:44::2/48, fd52:2eb5:44::3/48", "fd52:2eb5:44::1f5-fd52:2eb5:44::3e8 fd52:2eb5:44::1f5/48, fd52:2eb5:44::1f6/48"])]
#[case(cidr("192.168.0.0/16", 24, Some(1)), &["192.168.0.0-192.168.0.255 192.168.0.2/24, 192.168.0.3/24", "192.168.1.0-192.168.1.255 192.168.1.2/24, 192.168.1.3/24"])]
#[case(cidr("192.168.100.0/24", 31, None), &["192.168.100.0-192.168.100.1 192.168.100.0/31, 192.168.100.1/31", "192.168.100.2-192.168.100.3 192.168.100.2/31, 192.168.100.3/31"])]
#[case(cidr("fd52:2eb5:44::/48", 120, Some(1)), &["fd52:2eb5:44::-fd52:2eb5:44::ff fd52:2eb5:44::2/120, fd52:2eb5:44::3/120", "fd52:2eb5:44::100-fd52:2eb5:44::1ff fd52:2eb5:44::102/120, fd52:2eb5:44::103/120"])]
#[case(cidr("10.0.0.0/24", 30, None), &["10.0.0.0-10.0.0.3 10.0.0.1/30, 10.0.0.2/30", "10.0.0.4-10.0.0.7 10.0.0.5/30, 10.0.0.6/30"])]
fn two_nodes_give_their_first_two_pods(#[case] spec: PoolSpec, #[case] expected: &[&str]) {
    assert_eq!(given(&spec, &["n2", "n1"]), expected);
}

#[test]
fn excluded_addresses_of_pool_and_node_are_given_to_no_pod() {
    let common = CommonSpec {
        exclusions: vec![
            ExclusionSpec { start_ip: "192.168.0.2".into(), end_ip: "192.168.0.3".into() },
            ExclusionSpec { start_ip: "192.168.0.3".into(), end_ip: "192.168.0.10".into() },
        ],
        per_node_exclusions: vec![IndexRangeSpec { start_index: 11, end_index: 12 }],
        ..CommonSpec::default()
    };
    let spec = IpPoolSpec { subnet: "192.168.0.0/16".into(), per_node_block_size: 24, common, ..IpPoolSpec::default() };
    assert_eq!(given(&PoolSpec::Ip(spec), &["n1"]), ["192.168.0.1-192.168.0.24 192.168.0.1/16, 192.168.0.11/16"]);
}
