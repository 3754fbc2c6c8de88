//! From a block to what its node may give.

use ipam_core::spec::{CidrPoolSpec, CommonSpec, IpPoolSpec};
use ipam_core::{AddrRange, Block, NodePool, Pool, PoolState};
use rstest::rstest;

use super::support::{cidr_pool, cidr_spec, excluding, fresh, ip_pool, ip_spec, places};

/// What the node at `at` in the list of nodes gives.
fn node_pool(pool: &Pool, at: usize) -> NodePool {
    let plan = fresh(pool, &["n1", "n2", "n3"]);
    pool.node_pool(&plan.assignments[at].block)
}

fn excluded(node_pool: &NodePool) -> Vec<String> {
    let addr = |value| node_pool.family().addr(value).to_string();
    node_pool.exclusions.runs().map(|(first, last)| format!("{}-{}", addr(first), addr(last))).collect()
}

#[test]
fn an_ip_pool_node_gives_from_its_block_with_the_subnets_mask() {
    let common = CommonSpec { routes: vec!["5.5.0.0/24".into()], ..CommonSpec::default() };
    let pool = ip_pool(IpPoolSpec { gateway: Some("192.168.0.1".into()), common, ..ip_spec("192.168.0.0/16", 4) });
    let node = node_pool(&pool, 1);
    assert_eq!(node.range.to_string(), "192.168.0.5-192.168.0.8");
    assert_eq!(node.subnet.to_string(), "192.168.0.0/16");
    assert_eq!(node.gateway.unwrap().to_string(), "192.168.0.1");
    assert_eq!((&node.key, node.state), (pool.key(), PoolState::Active));
    assert_eq!(node.routes.len(), 1);
}

#[rstest]
#[case("192.168.0.0/16", 24, "192.168.1.1-192.168.1.254", "192.168.1.0/24")]
#[case("192.168.0.0/16", 31, "192.168.0.2-192.168.0.3", "192.168.0.2/31")]
#[case("192.168.0.0/16", 32, "192.168.0.1-192.168.0.1", "192.168.0.1/32")]
#[case("fd00::/48", 120, "fd00::101-fd00::1ff", "fd00::100/120")]
#[case("fd00::/48", 127, "fd00::2-fd00::3", "fd00::2/127")]
#[case("fd00::/48", 128, "fd00::1-fd00::1", "fd00::1/128")]
fn a_cidr_pool_node_gives_the_hosts_of_its_prefix_with_the_prefixs_mask(
    #[case] cidr: &str,
    #[case] len: i64,
    #[case] range: &str,
    #[case] subnet: &str,
) {
    let node = node_pool(&cidr_pool(cidr_spec(cidr, len)), 1);
    assert_eq!((node.range.to_string().as_str(), node.subnet.to_string().as_str()), (range, subnet));
    assert_eq!(node.state, PoolState::Active);
}

#[test]
fn per_node_exclusions_of_an_ip_pool_count_from_the_blocks_first_address() {
    let common = CommonSpec { per_node_exclusions: vec![places(0, 0), places(2, 3)], ..CommonSpec::default() };
    let node = node_pool(&ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 10) }), 1);
    assert_eq!(node.range.to_string(), "10.0.0.11-10.0.0.20");
    assert_eq!(excluded(&node), ["10.0.0.11-10.0.0.11", "10.0.0.13-10.0.0.14"]);
    assert_eq!(node.capacity(), 7);
}

#[test]
fn per_node_exclusions_of_a_cidr_pool_count_from_the_network_address() {
    let common = CommonSpec { per_node_exclusions: vec![places(0, 2)], ..CommonSpec::default() };
    let node = node_pool(&cidr_pool(CidrPoolSpec { common, ..cidr_spec("10.0.0.0/16", 24) }), 1);
    assert_eq!(excluded(&node), ["10.0.1.1-10.0.1.2"], "the network address is not the node's to give anyway");
    assert_eq!(node.capacity(), 252);
}

#[test]
fn exclusions_may_overlap_and_are_united_and_clipped_to_the_range() {
    let mut common = excluding(&[("10.0.0.3", "10.0.0.6"), ("10.0.0.5", "10.0.0.8"), ("10.0.0.1", "10.0.0.1")]);
    common.per_node_exclusions = vec![places(4, 6), places(5, 7)];
    let pool = ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 10) });
    assert_eq!(excluded(&node_pool(&pool, 0)), ["10.0.0.1-10.0.0.1", "10.0.0.3-10.0.0.8"]);
    assert_eq!(excluded(&node_pool(&pool, 1)), ["10.0.0.15-10.0.0.18"]);
}

#[rstest]
#[case(Some("10.0.0.2"), &[], 9)]
#[case(Some("10.0.0.2"), &[("10.0.0.1", "10.0.0.3")], 7)]
#[case(Some("10.0.0.200"), &[], 10)]
#[case(None, &[("10.0.0.0", "10.0.0.255")], 0)]
fn capacity_leaves_out_exclusions_and_a_gateway_in_the_range(
    #[case] gateway: Option<&str>,
    #[case] exclusions: &[(&str, &str)],
    #[case] capacity: u128,
) {
    let common = excluding(exclusions);
    let spec = IpPoolSpec { gateway: gateway.map(str::to_owned), common, ..ip_spec("10.0.0.0/24", 10) };
    let range = AddrRange::new("10.0.0.1".parse().unwrap(), "10.0.0.10".parse().unwrap()).unwrap();
    let block = Block { range, gateway: gateway.map(|text| text.parse().unwrap()) };
    let pool = ip_pool(spec);
    assert_eq!(pool.capacity(&block), capacity);
    assert_eq!(pool.node_pool(&block).capacity(), capacity);
}

#[test]
fn routes_are_sorted_without_doubles_and_the_default_route_joins_them() {
    let common = CommonSpec {
        default_gateway: true,
        routes: vec!["9.0.0.0/8".into(), "5.5.0.7/24".into(), "9.1.2.3/8".into()],
        ..CommonSpec::default()
    };
    let pool = ip_pool(IpPoolSpec { gateway: Some("10.0.0.1".into()), common, ..ip_spec("10.0.0.0/24", 10) });
    let routes: Vec<String> = node_pool(&pool, 0).effective_routes().iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["0.0.0.0/0", "5.5.0.0/24", "9.0.0.0/8"]);
}

#[test]
fn the_default_route_is_of_the_pools_family() {
    let common = CommonSpec { default_gateway: true, ..CommonSpec::default() };
    let pool = cidr_pool(CidrPoolSpec { gateway_index: Some(1), common, ..cidr_spec("fd00::/48", 64) });
    let routes: Vec<String> = node_pool(&pool, 0).effective_routes().iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["::/0"]);
}

#[test]
fn without_a_gateway_there_are_no_routes() {
    let common = CommonSpec { default_gateway: true, routes: vec!["5.5.0.0/24".into()], ..CommonSpec::default() };
    let pool = ip_pool(IpPoolSpec { gateway: Some("10.0.0.1".into()), common, ..ip_spec("10.0.0.0/24", 10) });
    let node = NodePool { gateway: None, ..node_pool(&pool, 0) };
    assert_eq!(node.effective_routes(), []);
}

#[test]
fn capacity_of_a_vast_prefix_saturates_instead_of_wrapping() {
    let node = node_pool(&cidr_pool(cidr_spec("::/0", 1)), 1);
    assert_eq!(node.capacity(), (1 << 127) - 1);
}
