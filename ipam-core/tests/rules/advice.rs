//! What is advised of pools that work.

use ipam_core::spec::{CidrPoolSpec, CommonSpec, IpPoolSpec, NodeSelectorTermSpec, PoolSpec};
use ipam_core::{Advice, NodeRef, Pool, advise, advise_nodes};
use rstest::rstest;

use crate::support::{cidr_spec, exclusion, ip_spec, labels, places, requirement, selector, static_entry};

/// `field Code`.
fn words(advice: &[Advice]) -> Vec<String> {
    advice.iter().map(|one| format!("{} {}", one.field, one.code)).collect()
}

fn of(spec: &PoolSpec) -> Vec<Advice> {
    advise(spec, &Pool::parse("pool1", spec).unwrap())
}

fn ip(spec: IpPoolSpec) -> Vec<String> {
    words(&of(&PoolSpec::Ip(spec)))
}

fn cidr(spec: CidrPoolSpec) -> Vec<String> {
    words(&of(&PoolSpec::Cidr(spec)))
}

fn gateway(subnet: &str, size: i64, gateway: &str) -> IpPoolSpec {
    IpPoolSpec { gateway: Some(gateway.into()), ..ip_spec(subnet, size) }
}

fn excluding(list: &[(&str, &str)]) -> CommonSpec {
    CommonSpec { exclusions: list.iter().map(|(start, end)| exclusion(start, end)).collect(), ..CommonSpec::default() }
}

#[rstest]
#[case::nothing_to_say(ip_spec("192.168.0.0/16", 100), &[])]
#[case::host_bits(ip_spec("192.168.3.4/16", 100), &["spec.subnet HostBits"])]
#[case::loopback(ip_spec("127.1.0.0/16", 100), &["spec.subnet SpecialRange"])]
#[case::power_of_two(ip_spec("10.0.0.0/24", 32), &["spec.perNodeBlockSize WastedAddresses"])]
#[case::just_right(ip_spec("10.0.0.0/24", 31), &[])]
#[case::gateway_in_a_block(gateway("10.0.0.0/16", 100, "10.0.0.1"), &["spec.gateway GatewayInBlock"])]
#[case::gateway_behind_the_blocks(gateway("10.0.0.0/24", 28, "10.0.0.254"), &[])]
#[case::gateway_as_a_block(gateway("10.0.0.0/24", 1, "10.0.0.1"), &[])]
#[case::gateway_on_the_network_address(gateway("10.0.0.0/24", 10, "10.0.0.0"), &["spec.gateway GatewayIsNoHost"])]
#[case::gateway_on_the_broadcast_address(gateway("10.0.0.0/24", 10, "10.0.0.255"), &["spec.gateway GatewayIsNoHost"])]
#[case::only_the_gateway(gateway("10.0.0.1/32", 1, "10.0.0.1"), &["spec.perNodeBlockSize NothingToGive"])]
fn an_ippool_s_shape_is_commented_on(#[case] spec: IpPoolSpec, #[case] expected: &[&str]) {
    assert_eq!(ip(spec), expected);
}

#[test]
fn wasted_addresses_are_counted_and_a_better_size_is_told() {
    let found = of(&PoolSpec::Ip(ip_spec("10.0.0.0/24", 128)));
    assert_eq!(
        found[0].to_string(),
        "spec.perNodeBlockSize: 128 makes 1 block of the 254 usable addresses and leaves 126 that no node gets; 127 would \
         make 2 blocks"
    );
}

#[test]
fn an_excluded_gateway_takes_nothing_from_its_block() {
    let spec = IpPoolSpec { common: excluding(&[("10.0.0.1", "10.0.0.1")]), ..gateway("10.0.0.0/16", 100, "10.0.0.1") };
    assert_eq!(ip(spec), [""; 0]);
}

#[rstest]
#[case::apart(&[("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.4")], &[])]
#[case::twice(&[("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2")], &["spec.exclusions[1] RepeatedExclusion"])]
#[case::covered_by_two(&[("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.4"), ("10.0.0.2", "10.0.0.3")], &["spec.exclusions[2] RepeatedExclusion"])]
#[case::sharing_a_part(&[("10.0.0.1", "10.0.0.3"), ("10.0.0.3", "10.0.0.4")], &["spec.exclusions[1] OverlappingExclusions"])]
#[case::network_address(&[("10.0.0.0", "10.0.0.0")], &["spec.exclusions[0] ExclusionWithoutEffect"])]
#[case::behind_the_last_block(&[("10.0.0.251", "10.0.0.255")], &["spec.exclusions[0] ExclusionWithoutEffect"])]
#[case::partly_in_a_block(&[("10.0.0.250", "10.0.0.255")], &[])]
#[case::a_whole_block(&[("10.0.0.1", "10.0.0.10")], &["spec.exclusions ExcludedBlocks"])]
#[case::everything(&[("10.0.0.0", "10.0.0.255")], &["spec.perNodeBlockSize NothingToGive"])]
fn exclusions_are_commented_on(#[case] list: &[(&str, &str)], #[case] expected: &[&str]) {
    assert_eq!(ip(IpPoolSpec { common: excluding(list), ..ip_spec("10.0.0.0/24", 10) }), expected);
}

#[test]
fn exclusions_of_addresses_that_no_prefix_gives_have_no_effect() {
    for (start, end, is_idle) in [
        ("10.0.1.0", "10.0.1.0", true),
        ("10.0.1.255", "10.0.2.0", true),
        ("10.0.1.255", "10.0.2.1", false),
        ("10.0.1.254", "10.0.2.0", false),
    ] {
        let spec = CidrPoolSpec { common: excluding(&[(start, end)]), ..cidr_spec("10.0.0.0/16", 24) };
        let expected: &[&str] = if is_idle { &["spec.exclusions[0] ExclusionWithoutEffect"] } else { &[] };
        assert_eq!(cidr(spec), expected, "{start}-{end}");
    }
}

#[test]
fn places_are_commented_on_as_addresses_are() {
    let per_node_exclusions = vec![places(0, 3), places(2, 5), places(1, 1)];
    let common = CommonSpec { per_node_exclusions, ..CommonSpec::default() };
    assert_eq!(
        ip(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 10) }),
        ["spec.perNodeExclusions[2] RepeatedExclusion", "spec.perNodeExclusions[1] OverlappingExclusions"]
    );
    let common = CommonSpec { per_node_exclusions: vec![places(0, 9)], ..CommonSpec::default() };
    assert_eq!(ip(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 10) }), ["spec.perNodeBlockSize NothingToGive"]);
}

#[test]
fn a_prefix_of_which_the_gateway_takes_all_is_told() {
    let spec = CidrPoolSpec { gateway_index: Some(0), ..cidr_spec("10.0.0.0/24", 32) };
    assert_eq!(cidr(spec.clone()), ["spec.perNodeNetworkPrefix NothingToGive"]);
    let static_allocations = vec![static_entry("a", "10.0.0.7/32", "")];
    assert_eq!(
        cidr(CidrPoolSpec { static_allocations, ..spec }),
        ["spec.perNodeNetworkPrefix NothingToGive", "spec.staticAllocations[0].prefix BarrenStaticPrefix"]
    );
}

#[test]
fn a_static_gateway_that_is_no_host_is_told() {
    let entries = ["10.0.1.0", "10.0.1.255", "10.0.1.1"].map(|gateway| static_entry("", "10.0.1.0/24", gateway));
    for (entry, expected) in entries.into_iter().zip([1, 1, 0]) {
        let spec = CidrPoolSpec { static_allocations: vec![entry], ..cidr_spec("10.0.0.0/16", 24) };
        assert_eq!(cidr(spec).len(), expected);
    }
}

#[test]
fn what_stands_behind_the_exclusions_is_commented_on() {
    let mut node_selector = selector(&[requirement("a", "Exists", &[])]);
    node_selector.terms.push(NodeSelectorTermSpec::default());
    let common = CommonSpec {
        node_selector: Some(node_selector),
        deprecated_default_gateway: true,
        routes: ["5.5.0.1/16", "5.5.0.0/16", "10.0.0.0/28", "0.0.0.0/0"].map(str::to_owned).to_vec(),
        ..CommonSpec::default()
    };
    assert_eq!(
        ip(IpPoolSpec { common, ..gateway("10.0.0.0/24", 28, "10.0.0.254") }),
        [
            "spec.nodeSelector.nodeSelectorTerms[1] EmptyTerm",
            "spec.defautGateway DeprecatedField",
            "spec.routes[0].dst HostBits",
            "spec.routes[1].dst RepeatedRoute",
            "spec.routes[2].dst RouteInsidePool"
        ]
    );
}

#[test]
fn of_thirty_thousand_repetitions_eight_are_told_and_the_rest_is_counted() {
    let list = vec![("10.0.0.1", "10.0.0.2"); 30_000];
    let spec = PoolSpec::Ip(IpPoolSpec { common: excluding(&list), ..ip_spec("10.0.0.0/24", 10) });
    let found = of(&spec);
    assert_eq!(found.len(), 8);
    assert!(found[7].message.ends_with("(and 29991 more like this)"), "{}", found[7].message);
}

fn among(spec: &PoolSpec, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|i| format!("n{i}")).collect();
    let none = labels(&[]);
    let nodes: Vec<NodeRef<'_>> = names.iter().map(|name| NodeRef { name, labels: &none }).collect();
    words(&advise_nodes(&Pool::parse("pool1", spec).unwrap(), &nodes))
}

#[test]
fn a_pool_is_held_against_the_number_of_nodes() {
    let spec = PoolSpec::Ip(ip_spec("10.0.0.0/24", 25));
    for nodes in [0, 1, 2, 10] {
        assert_eq!(among(&spec, nodes), [""; 0], "{nodes}");
    }
    assert_eq!(among(&spec, 11), ["spec.perNodeBlockSize TooSmall"]);
    assert_eq!(among(&PoolSpec::Ip(ip_spec("fd00::/64", 25)), 1), [""; 0], "IPv6 is meant to be sparse");
}

#[test]
fn a_pool_is_called_large_from_eight_times_the_blocks_and_more_than_sixty_four_too_many() {
    let blocks = |size: i64| PoolSpec::Ip(ip_spec("10.0.0.0/24", size));
    assert_eq!(among(&blocks(4), 1), [""; 0], "62 of 63 blocks stay free");
    assert_eq!(among(&blocks(3), 1), ["spec.perNodeBlockSize TooLarge"], "83 of 84 stay free");
    assert_eq!(among(&blocks(1), 31), ["spec.perNodeBlockSize TooLarge"], "254 blocks are 8 for each");
    assert_eq!(among(&blocks(1), 32), [""; 0], "254 blocks are 7 for each");
}

#[test]
fn what_is_one_is_spoken_of_as_one() {
    let none = labels(&[]);
    let said = |spec: PoolSpec| {
        let nodes = [NodeRef { name: "n0", labels: &none }];
        let pool = Pool::parse("pool1", &spec).unwrap();
        advise_nodes(&pool, &nodes).into_iter().map(|advice| advice.message).collect::<Vec<_>>().join("; ")
    };
    let large = said(PoolSpec::Ip(ip_spec("10.0.0.0/24", 3)));
    assert_eq!(large, "makes 84 blocks, but 1 node is selected: 83 stay free");
    let refused = Pool::parse("pool1", &PoolSpec::Ip(ip_spec("10.0.0.0/32", 2))).unwrap_err();
    assert_eq!(refused[0].message, "2 is more than the one usable address of 10.0.0.0/32; write 1");
}

#[test]
fn static_prefixes_are_held_against_the_nodes() {
    let static_allocations = vec![static_entry("n0", "10.0.0.0/26", ""), static_entry("gone", "10.0.0.64/26", "")];
    let spec = PoolSpec::Cidr(CidrPoolSpec { static_allocations, ..cidr_spec("10.0.0.0/24", 26) });
    assert_eq!(among(&spec, 3), ["spec.staticAllocations StaticForNoNode"]);
    assert_eq!(among(&spec, 4), ["spec.staticAllocations StaticForNoNode", "spec.perNodeNetworkPrefix TooSmall"]);
}

#[test]
fn a_selector_that_matches_no_node_is_told() {
    let node_selector = Some(selector(&[requirement("a", "Exists", &[])]));
    let common = CommonSpec { node_selector, ..CommonSpec::default() };
    let spec = PoolSpec::Ip(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 25) });
    assert_eq!(among(&spec, 3), ["spec.nodeSelector NoNodeSelected"]);
}
