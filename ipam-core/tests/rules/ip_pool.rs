//! `IPPool.spec`: what is refused, and how the subnet is cut.

use ipam_core::Pool;
use ipam_core::spec::{CommonSpec, IpPoolSpec, NodeSelectorSpec, PoolSpec};
use rstest::rstest;

use super::support::{
    blocks, excluding, exclusion, found, found_in_ip, fresh, ip_pool, ip_spec, labels, messages, places, rendered,
    requirement, selector,
};

fn with(common: CommonSpec) -> IpPoolSpec {
    IpPoolSpec { common, gateway: Some("192.168.0.1".into()), ..ip_spec("192.168.0.0/24", 16) }
}

#[test]
fn blocks_of_four_start_behind_the_network_address() {
    let pool = ip_pool(IpPoolSpec { gateway: Some("192.168.0.1".into()), ..ip_spec("192.168.0.0/16", 4) });
    let expected = [
        "node1: 192.168.0.1-192.168.0.4 gw=192.168.0.1 Active",
        "node2: 192.168.0.5-192.168.0.8 gw=192.168.0.1 Active",
    ];
    let plan = fresh(&pool, &["node1", "node2"]);
    assert_eq!(rendered(&plan), expected);
    assert_eq!(pool.capacity(&plan.assignments[0].block), 3, "the gateway lies in node1's block");
    assert_eq!(pool.capacity(&plan.assignments[1].block), 4);
    assert_eq!(plan.capacity, 7);
}

#[test]
fn the_documented_workers_get_blocks_of_twenty_four_in_name_order() {
    let role = selector(&[requirement("kubernetes.io/role", "In", &["worker"])]);
    let common = CommonSpec { node_selector: Some(role), ..CommonSpec::default() };
    let pool = ip_pool(IpPoolSpec { gateway: Some("192.168.0.1".into()), common, ..ip_spec("192.168.0.0/16", 24) });
    let (worker, other) = (labels(&[("kubernetes.io/role", "worker")]), labels(&[]));
    let node = |name, labels| ipam_core::NodeRef { name, labels };
    let nodes = [
        node("k8s-master", &worker),
        node("host-c", &worker),
        node("host-b", &worker),
        node("host-a", &worker),
        node("z", &other),
    ];
    let plan = ipam_core::plan(&pool, &nodes, &[], &super::support::unknown);
    let expected = [
        "host-a: 192.168.0.1-192.168.0.24",
        "host-b: 192.168.0.25-192.168.0.48",
        "host-c: 192.168.0.49-192.168.0.72",
        "k8s-master: 192.168.0.73-192.168.0.96",
    ];
    assert_eq!(blocks(&plan), expected);
    assert_eq!(plan.unserved, [""; 0], "a node that is not selected is not missing one");
}

#[rstest]
#[case("172.16.0.0/24", 50, &["n1: 172.16.0.1-172.16.0.50", "n2: 172.16.0.51-172.16.0.100"])]
#[case("fd52:2eb5:44::/48", 500, &["n1: fd52:2eb5:44::1-fd52:2eb5:44::1f4", "n2: fd52:2eb5:44::1f5-fd52:2eb5:44::3e8"])]
#[case("10.0.0.0/30", 1, &["n1: 10.0.0.1-10.0.0.1", "n2: 10.0.0.2-10.0.0.2"])]
#[case("10.0.0.0/30", 2, &["n1: 10.0.0.1-10.0.0.2"])]
#[case("10.0.0.0/31", 1, &["n1: 10.0.0.0-10.0.0.0", "n2: 10.0.0.1-10.0.0.1"])]
#[case("10.0.0.0/31", 2, &["n1: 10.0.0.0-10.0.0.1"])]
#[case("10.0.0.9/32", 1, &["n1: 10.0.0.9-10.0.0.9"])]
#[case("fd00::/127", 1, &["n1: fd00::-fd00::", "n2: fd00::1-fd00::1"])]
#[case("fd00::9/128", 1, &["n1: fd00::9-fd00::9"])]
#[case("fd00::/126", 1, &["n1: fd00::1-fd00::1", "n2: fd00::2-fd00::2"])]
fn the_subnet_is_cut_from_its_first_host(#[case] subnet: &str, #[case] size: i64, #[case] expected: &[&str]) {
    assert_eq!(blocks(&fresh(&ip_pool(ip_spec(subnet, size)), &["n1", "n2"])), expected);
}

#[rstest]
#[case("10.0.0.0/24", 127, 2)]
#[case("10.0.0.0/24", 128, 1)]
#[case("fd00::/120", 127, 2)]
#[case("fd00::/120", 85, 3)]
#[case("10.0.0.0/31", 1, 2)]
#[case("::/0", 1, u128::MAX)]
#[case("0.0.0.0/0", 1, 4_294_967_294)]
fn no_block_reaches_the_ipv4_broadcast_but_ipv6_has_none(#[case] subnet: &str, #[case] size: i64, #[case] count: u128) {
    assert_eq!(ip_pool(ip_spec(subnet, size)).block_count(), count);
}

#[test]
fn bits_behind_the_subnets_prefix_are_masked() {
    let pool = ip_pool(ip_spec("192.168.7.9/16", 4));
    assert_eq!(pool.network().to_string(), "192.168.0.0/16");
    assert_eq!(blocks(&fresh(&pool, &["n1"])), ["n1: 192.168.0.1-192.168.0.4"]);
}

#[test]
fn a_block_that_is_wholly_excluded_is_skipped() {
    let common = excluding(&[("10.0.0.1", "10.0.0.3"), ("10.0.0.3", "10.0.0.4"), ("10.0.0.9", "10.0.0.11")]);
    let plan = fresh(&ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 4) }), &["n1", "n2"]);
    assert_eq!(blocks(&plan), ["n1: 10.0.0.5-10.0.0.8", "n2: 10.0.0.9-10.0.0.12"]);
    assert_eq!((plan.blocks_total, plan.blocks_free, plan.capacity), (63, 60, 5));
}

#[test]
fn a_block_that_pool_and_per_node_exclusions_cover_together_is_skipped() {
    let mut common = excluding(&[("10.0.0.3", "10.0.0.6")]);
    common.per_node_exclusions = vec![places(0, 1)];
    let pool = ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 4) });
    assert_eq!(blocks(&fresh(&pool, &["n1", "n2"])), ["n1: 10.0.0.5-10.0.0.8", "n2: 10.0.0.9-10.0.0.12"]);
}

#[test]
fn a_block_that_several_exclusions_cover_piece_by_piece_is_skipped() {
    let mut common = excluding(&[("10.0.0.1", "10.0.0.1"), ("10.0.0.4", "10.0.0.5"), ("10.0.0.8", "10.0.0.8")]);
    common.per_node_exclusions = vec![places(1, 2)];
    let plan = fresh(&ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 4) }), &["n1"]);
    assert_eq!(blocks(&plan), ["n1: 10.0.0.9-10.0.0.12"]);
    assert_eq!((plan.blocks_free, plan.capacity), (63 - 2 - 1, 2));
}

#[test]
fn a_block_of_one_that_is_the_gateway_is_skipped() {
    let pool = ip_pool(IpPoolSpec { gateway: Some("10.0.0.1".into()), ..ip_spec("10.0.0.0/29", 1) });
    assert_eq!(blocks(&fresh(&pool, &["n1"])), ["n1: 10.0.0.2-10.0.0.2"]);
}

#[test]
fn a_block_of_which_only_the_gateway_is_left_is_skipped() {
    let common = excluding(&[("10.0.0.2", "10.0.0.4")]);
    let pool = ip_pool(IpPoolSpec { gateway: Some("10.0.0.1".into()), common, ..ip_spec("10.0.0.0/24", 4) });
    assert_eq!(blocks(&fresh(&pool, &["n1"])), ["n1: 10.0.0.5-10.0.0.8"]);
}

#[test]
fn per_node_exclusions_that_leave_nothing_leave_no_block() {
    let common = CommonSpec { per_node_exclusions: vec![places(0, 1), places(1, 3)], ..CommonSpec::default() };
    let plan = fresh(&ip_pool(IpPoolSpec { common, ..ip_spec("fd00::/8", 4) }), &["n1"]);
    assert_eq!((plan.unserved.as_slice(), plan.blocks_free), (["n1".to_owned()].as_slice(), 0));
}

#[test]
fn an_ipv6_slash_8_with_a_vast_exclusion_is_cut_like_any_other() {
    let common = excluding(&[("fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff0")]);
    let plan = fresh(&ip_pool(IpPoolSpec { common, ..ip_spec("fd00::/8", 7) }), &["n1", "n2", "n3", "n4"]);
    let expected = [
        "n1: fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffeb-fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff1",
        "n2: fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff2-fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff8",
        "n3: fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff9-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ];
    assert_eq!(blocks(&plan), expected, "2^120 - 1 hosts are a multiple of 7");
    assert_eq!((plan.unserved, plan.blocks_free), (vec!["n4".to_owned()], 0));
    assert_eq!(plan.capacity, 1 + 7 + 7);
}

#[rstest]
#[case("", "metadata.name Required")]
#[case("-pool", "metadata.name Malformed")]
#[case("pool/1", "metadata.name Malformed")]
#[case("pööl", "metadata.name Malformed")]
#[case("pool,1", "metadata.name Malformed")]
fn a_name_that_cni_refuses_is_refused(#[case] name: &str, #[case] expected: &str) {
    assert_eq!(found(Pool::parse(name, &PoolSpec::Ip(ip_spec("10.0.0.0/24", 4)))), [expected]);
}

#[rstest]
#[case("pool1")]
#[case("1.a_b-C")]
fn a_name_that_cni_takes_is_taken(#[case] name: &str) {
    assert_eq!(found(Pool::parse(name, &PoolSpec::Ip(ip_spec("10.0.0.0/24", 4)))), [""; 0]);
}

#[rstest]
#[case("", "spec.subnet Required")]
#[case("10.0.0.0", "spec.subnet Malformed")]
#[case("10.0.0.0/33", "spec.subnet OutOfRange")]
#[case(" 10.0.0.0/24", "spec.subnet Malformed")]
#[case("subnet", "spec.subnet Malformed")]
fn a_subnet_must_parse(#[case] subnet: &str, #[case] expected: &str) {
    assert_eq!(found_in_ip(ip_spec(subnet, 4)), [expected]);
}

#[rstest]
#[case("10.0.0.0/24", 254, true)]
#[case("10.0.0.0/24", 255, false)]
#[case("fd00::/120", 255, true)]
#[case("fd00::/120", 256, false)]
#[case("10.0.0.0/31", 2, true)]
#[case("10.0.0.0/31", 3, false)]
#[case("fd00::/127", 2, true)]
#[case("fd00::/127", 3, false)]
#[case("10.0.0.0/32", 1, true)]
#[case("10.0.0.0/32", 2, false)]
#[case("fd00::/128", 1, true)]
#[case("fd00::/128", 2, false)]
#[case("10.0.0.0/24", 1, true)]
#[case("10.0.0.0/24", 0, false)]
#[case("10.0.0.0/24", -4, false)]
#[case("fd00::/8", i64::MAX, true)]
fn a_block_is_of_one_to_all_usable_addresses(#[case] subnet: &str, #[case] size: i64, #[case] is_valid: bool) {
    let expected: &[&str] = if is_valid { &[] } else { &["spec.perNodeBlockSize OutOfRange"] };
    assert_eq!(found_in_ip(ip_spec(subnet, size)), expected);
}

#[rstest]
#[case("192.168.0.300", "spec.gateway Malformed")]
#[case("192.168.0.1/24", "spec.gateway Malformed")]
#[case("192.168.1.1", "spec.gateway OutsidePool")]
#[case("fd00::1", "spec.gateway OutsidePool")]
fn a_gateway_is_an_address_of_the_subnet(#[case] gateway: &str, #[case] expected: &str) {
    let spec = IpPoolSpec { gateway: Some(gateway.into()), ..ip_spec("192.168.0.0/24", 4) };
    assert_eq!(found_in_ip(spec), [expected]);
}

#[test]
fn an_empty_gateway_is_no_gateway() {
    let spec = IpPoolSpec { gateway: Some(String::new()), ..ip_spec("192.168.0.0/24", 4) };
    assert_eq!(rendered(&fresh(&ip_pool(spec), &["n1"])), ["n1: 192.168.0.1-192.168.0.4 Active"]);
}

#[rstest]
#[case("192.168.0.10", "192.168.0.20", &[])]
#[case("192.168.0.10", "192.168.0.10", &[])]
#[case("192.168.0.0", "192.168.0.255", &[])]
#[case("192.168.0.20", "192.168.0.10", &["spec.exclusions[0].endIP Inverted"])]
#[case("192.168.0.x", "192.168.0.10", &["spec.exclusions[0].startIP Malformed"])]
#[case("192.168.0.1", "", &["spec.exclusions[0].endIP Required"])]
#[case("192.168.1.1", "192.168.1.2", &["spec.exclusions[0].startIP OutsidePool", "spec.exclusions[0].endIP OutsidePool"])]
#[case("192.168.0.1", "fd00::1", &["spec.exclusions[0].endIP OutsidePool"])]
#[case("192.168.1.9", "192.168.0.1", &["spec.exclusions[0].startIP OutsidePool", "spec.exclusions[0].endIP Inverted"])]
fn exclusions_parse_and_lie_in_order_in_the_subnet(#[case] start: &str, #[case] end: &str, #[case] expected: &[&str]) {
    assert_eq!(found_in_ip(with(excluding(&[(start, end)]))), expected);
}

#[rstest]
#[case(0, 15, &[])]
#[case(3, 3, &[])]
#[case(0, 16, &["spec.perNodeExclusions[0].endIndex OutOfRange"])]
#[case(-1, 3, &["spec.perNodeExclusions[0].startIndex OutOfRange"])]
#[case(4, 3, &["spec.perNodeExclusions[0].endIndex Inverted"])]
#[case(17, 16, &["spec.perNodeExclusions[0].startIndex OutOfRange", "spec.perNodeExclusions[0].endIndex OutOfRange", "spec.perNodeExclusions[0].endIndex Inverted"])]
fn per_node_exclusions_lie_in_the_block(#[case] start: i64, #[case] end: i64, #[case] expected: &[&str]) {
    let common = CommonSpec { per_node_exclusions: vec![places(start, end)], ..CommonSpec::default() };
    assert_eq!(found_in_ip(with(common)), expected);
}

#[test]
fn an_invalid_node_selector_is_named_by_its_full_path() {
    let common = CommonSpec { node_selector: Some(selector(&[requirement("k", "In", &[])])), ..CommonSpec::default() };
    let expected = ["spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values Required"];
    assert_eq!(found_in_ip(with(common)), expected);
    let common = CommonSpec { node_selector: Some(NodeSelectorSpec::default()), ..CommonSpec::default() };
    assert_eq!(found_in_ip(with(common)), ["spec.nodeSelector.nodeSelectorTerms Required"]);
}

#[test]
fn default_gateway_and_routes_need_a_gateway() {
    let common = CommonSpec { default_gateway: true, routes: vec!["5.5.0.0/24".into()], ..CommonSpec::default() };
    let spec = IpPoolSpec { gateway: None, ..with(common) };
    assert_eq!(found_in_ip(spec.clone()), ["spec.defaultGateway Conflict", "spec.routes Conflict"]);
    let empty = IpPoolSpec { gateway: Some(String::new()), ..spec.clone() };
    assert_eq!(found_in_ip(empty), ["spec.defaultGateway Conflict", "spec.routes Conflict"]);
    let malformed = IpPoolSpec { gateway: Some("x".into()), ..spec };
    assert_eq!(found_in_ip(malformed), ["spec.gateway Malformed"], "a gateway is wanted, only its value is wrong");
}

#[rstest]
#[case("5.5.0.0/24", false, &[])]
#[case("5.5.0.1/24", true, &[])]
#[case("0.0.0.0/0", false, &[])]
#[case("0.0.0.0/0", true, &["spec.routes[0].dst Conflict"])]
#[case("fd00::/64", false, &["spec.routes[0].dst OutsidePool"])]
#[case("5.5.0.0", false, &["spec.routes[0].dst Malformed"])]
#[case("", false, &["spec.routes[0].dst Required"])]
fn a_route_is_a_network_of_the_pools_family(
    #[case] dst: &str,
    #[case] default_gateway: bool,
    #[case] expected: &[&str],
) {
    let common = CommonSpec { default_gateway, routes: vec![dst.into()], ..CommonSpec::default() };
    assert_eq!(found_in_ip(with(common)), expected);
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_fields() {
    let common = CommonSpec {
        exclusions: vec![exclusion("10.1.0.1", "10.1.0.x")],
        per_node_exclusions: vec![places(-1, 9999)],
        node_selector: Some(NodeSelectorSpec::default()),
        default_gateway: true,
        routes: vec!["::/0".into()],
        ..CommonSpec::default()
    };
    let spec = IpPoolSpec {
        subnet: "10.0.0.0/24".into(),
        per_node_block_size: 1000,
        gateway: Some("10.2.0.1".into()),
        common,
    };
    let expected = [
        "metadata.name Malformed",
        "spec.perNodeBlockSize OutOfRange",
        "spec.gateway OutsidePool",
        "spec.exclusions[0].startIP OutsidePool",
        "spec.exclusions[0].endIP Malformed",
        "spec.perNodeExclusions[0].startIndex OutOfRange",
        "spec.perNodeExclusions[0].endIndex OutOfRange",
        "spec.nodeSelector.nodeSelectorTerms Required",
        "spec.routes[0].dst OutsidePool",
        "spec.routes[0].dst Conflict",
    ];
    assert_eq!(found(Pool::parse("!", &PoolSpec::Ip(spec))), expected);
}

#[test]
fn a_bad_subnet_does_not_hide_what_can_be_judged_without_it() {
    let common = CommonSpec {
        exclusions: vec![exclusion("10.0.0.9", "10.0.0.1"), exclusion("10.0.0.1", "fd00::1")],
        per_node_exclusions: vec![places(0, 4)],
        default_gateway: true,
        ..CommonSpec::default()
    };
    let spec = IpPoolSpec { subnet: "x".into(), per_node_block_size: 4, gateway: None, common };
    let expected = [
        "spec.subnet Malformed",
        "spec.exclusions[0].endIP Inverted",
        "spec.exclusions[1].endIP Conflict",
        "spec.perNodeExclusions[0].endIndex OutOfRange",
        "spec.defaultGateway Conflict",
    ];
    assert_eq!(found_in_ip(spec), expected);
    assert_eq!(found_in_ip(ip_spec("x", 0)), ["spec.subnet Malformed", "spec.perNodeBlockSize OutOfRange"]);
}

#[test]
fn messages_name_the_field_and_the_value_and_what_would_be_right() {
    let spec = IpPoolSpec { gateway: Some("1.2.3.4/24".into()), ..ip_spec("10.0.0.0/24", 300) };
    let expected = "\
spec.perNodeBlockSize: 300 is more than the 254 usable addresses of 10.0.0.0/24; write 1 to 254
spec.gateway: \"1.2.3.4/24\" is a network; write the address alone: \"1.2.3.4\"";
    assert_eq!(messages(&PoolSpec::Ip(spec)), expected);
}
