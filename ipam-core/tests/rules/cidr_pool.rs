//! `CIDRPool.spec`: what is refused, and how the CIDR is cut.

use ipam_core::Pool;
use ipam_core::spec::{CidrPoolSpec, CommonSpec, PoolSpec, StaticAllocationSpec};
use rstest::rstest;

use super::support::{
    blocks, cidr_pool, cidr_spec, excluding, exclusion, found, found_in_cidr, fresh, messages, places, rendered,
    static_entry,
};

fn with_statics(entries: Vec<StaticAllocationSpec>) -> CidrPoolSpec {
    CidrPoolSpec { static_allocations: entries, ..cidr_spec("192.168.0.0/16", 24) }
}

#[test]
fn prefixes_are_given_in_order_with_the_gateway_at_its_index() {
    let pool = cidr_pool(CidrPoolSpec { gateway_index: Some(1), ..cidr_spec("192.168.0.0/16", 24) });
    let plan = fresh(&pool, &["node2", "node1"]);
    let expected = [
        "node1: 192.168.0.0-192.168.0.255 gw=192.168.0.1 Active",
        "node2: 192.168.1.0-192.168.1.255 gw=192.168.1.1 Active",
    ];
    assert_eq!(rendered(&plan), expected);
    assert_eq!((plan.capacity, plan.blocks_total, plan.blocks_free), (2 * 253, 256, 254));
}

#[test]
fn the_documented_static_entries_are_reserved() {
    let spec = CidrPoolSpec {
        gateway_index: Some(1),
        common: CommonSpec {
            default_gateway: true,
            routes: vec!["5.5.0.0/24".into()],
            ..excluding(&[("192.168.0.10", "192.168.0.20")])
        },
        ..with_statics(vec![
            static_entry("node-33", "192.168.33.0/24", "192.168.33.10"),
            static_entry("", "192.168.1.0/24", ""),
        ])
    };
    let expected = [
        "node-1: 192.168.0.0-192.168.0.255 gw=192.168.0.1 Active",
        "node-2: 192.168.2.0-192.168.2.255 gw=192.168.2.1 Active",
        "node-33: 192.168.33.0-192.168.33.255 gw=192.168.33.10 Active",
    ];
    assert_eq!(rendered(&fresh(&cidr_pool(spec), &["node-1", "node-2", "node-33"])), expected);
}

#[test]
fn a_static_entry_of_a_node_that_is_not_there_is_reserved_all_the_same() {
    let pool = cidr_pool(with_statics(vec![static_entry("away", "192.168.0.0/24", "")]));
    assert_eq!(blocks(&fresh(&pool, &["n1"])), ["n1: 192.168.1.0-192.168.1.255"]);
}

#[test]
fn a_static_entry_without_gateway_has_the_one_at_the_index() {
    let spec = CidrPoolSpec { gateway_index: Some(7), ..with_statics(vec![static_entry("n1", "192.168.9.0/24", "")]) };
    assert_eq!(rendered(&fresh(&cidr_pool(spec), &["n1"])), ["n1: 192.168.9.0-192.168.9.255 gw=192.168.9.7 Active"]);
}

#[rstest]
#[case("fd52:2eb5:44::/48", 120, Some(1), "n1: fd52:2eb5:44::-fd52:2eb5:44::ff gw=fd52:2eb5:44::1 Active")]
#[case("192.168.100.0/24", 31, None, "n1: 192.168.100.0-192.168.100.1 Active")]
#[case("192.168.100.0/24", 31, Some(0), "n1: 192.168.100.0-192.168.100.1 gw=192.168.100.0 Active")]
#[case("192.168.100.0/24", 32, None, "n1: 192.168.100.0-192.168.100.0 Active")]
#[case("192.168.100.0/24", 24, Some(254), "n1: 192.168.100.0-192.168.100.255 gw=192.168.100.254 Active")]
#[case("fd00::/8", 64, Some(1), "n1: fd00::-fd00::ffff:ffff:ffff:ffff gw=fd00::1 Active")]
#[case("::/0", 1, None, "n1: ::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff Active")]
fn a_cidr_is_cut_into_prefixes(
    #[case] cidr: &str,
    #[case] len: i64,
    #[case] gateway_index: Option<i64>,
    #[case] expected: &str,
) {
    let pool = cidr_pool(CidrPoolSpec { gateway_index, ..cidr_spec(cidr, len) });
    assert_eq!(rendered(&fresh(&pool, &["n1"])), [expected]);
}

#[rstest]
#[case("10.0.0.0/8", 24, 65536)]
#[case("10.0.0.0/24", 24, 1)]
#[case("::/0", 128, u128::MAX)]
#[case("::/0", 1, 2)]
#[case("fd00::/8", 127, 1 << 119)]
fn the_number_of_prefixes_is_computed_not_counted(#[case] cidr: &str, #[case] len: i64, #[case] count: u128) {
    assert_eq!(cidr_pool(cidr_spec(cidr, len)).block_count(), count);
}

#[test]
fn a_prefix_that_is_wholly_excluded_is_skipped() {
    let spec = CidrPoolSpec { common: excluding(&[("10.0.0.0", "10.0.1.255")]), ..cidr_spec("10.0.0.0/16", 24) };
    assert_eq!(blocks(&fresh(&cidr_pool(spec), &["n1"])), ["n1: 10.0.2.0-10.0.2.255"]);
}

#[test]
fn a_prefix_of_which_only_network_broadcast_and_gateway_are_left_is_skipped() {
    let common = excluding(&[("10.0.0.2", "10.0.0.254")]);
    let spec = CidrPoolSpec { gateway_index: Some(1), common, ..cidr_spec("10.0.0.0/16", 24) };
    assert_eq!(blocks(&fresh(&cidr_pool(spec), &["n1"])), ["n1: 10.0.1.0-10.0.1.255"]);
}

#[test]
fn a_single_address_prefix_that_is_its_own_gateway_is_never_given() {
    let plan = fresh(&cidr_pool(CidrPoolSpec { gateway_index: Some(0), ..cidr_spec("10.0.0.0/24", 32) }), &["n1"]);
    assert_eq!((plan.unserved.len(), plan.blocks_free), (1, 0));
}

#[test]
fn a_static_entry_is_given_even_if_it_is_wholly_excluded() {
    let common = excluding(&[("192.168.0.0", "192.168.0.255")]);
    let spec = CidrPoolSpec { common, ..with_statics(vec![static_entry("n1", "192.168.0.0/24", "")]) };
    let plan = fresh(&cidr_pool(spec), &["n1"]);
    assert_eq!((blocks(&plan), plan.capacity), (vec!["n1: 192.168.0.0-192.168.0.255".to_owned()], 0));
}

#[test]
fn host_bits_in_the_cidr_are_refused_and_told_the_right_network() {
    let spec = cidr_spec("192.168.0.5/16", 24);
    assert_eq!(
        messages(&PoolSpec::Cidr(spec)),
        "spec.cidr: \"192.168.0.5/16\" has bits set behind the prefix length; write \"192.168.0.0/16\""
    );
}

#[rstest]
#[case("10.0.0.0/16", 16, true)]
#[case("10.0.0.0/16", 32, true)]
#[case("10.0.0.0/16", 15, false)]
#[case("10.0.0.0/16", 33, false)]
#[case("10.0.0.0/16", 0, false)]
#[case("10.0.0.0/16", -1, false)]
#[case("0.0.0.0/0", 0, false)]
#[case("0.0.0.0/0", 1, true)]
#[case("fd00::/48", 128, true)]
#[case("fd00::/48", 129, false)]
#[case("fd00::/48", 47, false)]
fn the_prefix_length_lies_between_the_cidrs_and_the_familys(
    #[case] cidr: &str,
    #[case] len: i64,
    #[case] is_valid: bool,
) {
    let expected: &[&str] = if is_valid { &[] } else { &["spec.perNodeNetworkPrefix OutOfRange"] };
    assert_eq!(found_in_cidr(cidr_spec(cidr, len)), expected);
}

#[rstest]
#[case("10.0.0.0/16", 24, 1, true)]
#[case("10.0.0.0/16", 24, 254, true)]
#[case("10.0.0.0/16", 24, 0, false)]
#[case("10.0.0.0/16", 24, 255, false)]
#[case("10.0.0.0/16", 24, 256, false)]
#[case("10.0.0.0/16", 24, -1, false)]
#[case("10.0.0.0/16", 31, 0, true)]
#[case("10.0.0.0/16", 31, 1, true)]
#[case("10.0.0.0/16", 31, 2, false)]
#[case("10.0.0.0/16", 32, 0, true)]
#[case("10.0.0.0/16", 32, 1, false)]
#[case("fd00::/48", 120, 255, true)]
#[case("fd00::/48", 120, 0, false)]
#[case("fd00::/48", 120, 256, false)]
#[case("fd00::/48", 127, 0, true)]
#[case("fd00::/48", 128, 0, true)]
fn the_gateway_index_is_a_hosts(#[case] cidr: &str, #[case] len: i64, #[case] index: i64, #[case] is_valid: bool) {
    let expected: &[&str] = if is_valid { &[] } else { &["spec.gatewayIndex OutOfRange"] };
    assert_eq!(found_in_cidr(CidrPoolSpec { gateway_index: Some(index), ..cidr_spec(cidr, len) }), expected);
}

#[rstest]
#[case(0, 255, &[])]
#[case(0, 256, &["spec.perNodeExclusions[0].endIndex OutOfRange"])]
#[case(-2, -1, &["spec.perNodeExclusions[0].startIndex OutOfRange", "spec.perNodeExclusions[0].endIndex OutOfRange"])]
#[case(9, 8, &["spec.perNodeExclusions[0].endIndex Inverted"])]
fn per_node_exclusions_lie_in_the_prefix(#[case] start: i64, #[case] end: i64, #[case] expected: &[&str]) {
    let common = CommonSpec { per_node_exclusions: vec![places(start, end)], ..CommonSpec::default() };
    assert_eq!(found_in_cidr(CidrPoolSpec { common, ..cidr_spec("10.0.0.0/16", 24) }), expected);
}

#[rstest]
#[case("n1", "192.168.5.0/24", "192.168.5.9", &[])]
#[case("n1", "192.168.5.0/24", "", &[])]
#[case("", "192.168.5.0/24", "", &[])]
#[case("n1", "", "", &["prefix Required"])]
#[case("n1", "192.168.5.0", "", &["prefix Malformed"])]
#[case("n1", "192.168.5.1/24", "", &["prefix HostBits"])]
#[case("n1", "192.168.4.0/23", "", &["prefix Conflict"])]
#[case("n1", "10.0.0.0/24", "", &["prefix OutsidePool"])]
#[case("n1", "fd00::/24", "", &["prefix OutsidePool"])]
#[case("n1", "192.168.5.0/24", "192.168.6.9", &["gateway OutsidePool"])]
#[case("n1", "192.168.5.0/24", "fd00::1", &["gateway OutsidePool"])]
#[case("n1", "192.168.5.0/24", "x", &["gateway Malformed"])]
#[case("n1", "10.0.0.1/25", "10.9.0.1", &["gateway OutsidePool", "prefix HostBits", "prefix OutsidePool", "prefix Conflict"])]
fn a_static_entry_is_judged_in_each_of_its_fields(
    #[case] node: &str,
    #[case] prefix: &str,
    #[case] gateway: &str,
    #[case] expected: &[&str],
) {
    let expected: Vec<String> = expected.iter().map(|end| format!("spec.staticAllocations[0].{end}")).collect();
    assert_eq!(found_in_cidr(with_statics(vec![static_entry(node, prefix, gateway)])), expected);
}

#[test]
fn nodes_and_prefixes_of_static_entries_are_unique() {
    let spec = with_statics(vec![
        static_entry("n1", "192.168.1.0/24", ""),
        static_entry("n1", "192.168.2.0/24", ""),
        static_entry("", "192.168.1.0/24", ""),
        static_entry("", "192.168.3.0/24", ""),
    ]);
    let expected = ["spec.staticAllocations[1].nodeName Duplicate", "spec.staticAllocations[2].prefix Duplicate"];
    assert_eq!(found_in_cidr(spec), expected);
}

#[test]
fn default_gateway_and_routes_need_a_gateway_index() {
    let common = CommonSpec { default_gateway: true, routes: vec!["5.5.0.0/24".into()], ..CommonSpec::default() };
    let expected = ["spec.defaultGateway Conflict", "spec.routes Conflict"];
    let spec = CidrPoolSpec { common, ..with_statics(vec![static_entry("n1", "192.168.1.0/24", "192.168.1.1")]) };
    assert_eq!(found_in_cidr(spec.clone()), expected, "the gateway of one static entry is not the pool's");
    assert_eq!(found_in_cidr(CidrPoolSpec { gateway_index: Some(1), ..spec }), [""; 0]);
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_fields() {
    let spec = CidrPoolSpec {
        cidr: "10.0.0.1/16".into(),
        per_node_network_prefix: 12,
        gateway_index: Some(-1),
        static_allocations: vec![static_entry("n1", "10.1.0.0/24", "10.2.0.1")],
        common: CommonSpec {
            exclusions: vec![exclusion("10.1.0.1", "10.0.0.1")],
            per_node_exclusions: vec![places(0, 1 << 20)],
            default_gateway: true,
            routes: vec!["0.0.0.0/0".into(), "fd00::/8".into()],
            node_selector: Some(ipam_core::spec::NodeSelectorSpec::default()),
            ..CommonSpec::default()
        },
    };
    let expected = [
        "metadata.name Required",
        "spec.cidr HostBits",
        "spec.perNodeNetworkPrefix OutOfRange",
        "spec.gatewayIndex OutOfRange",
        "spec.exclusions[0].startIP OutsidePool",
        "spec.exclusions[0].endIP Inverted",
        "spec.perNodeExclusions[0].endIndex OutOfRange",
        "spec.staticAllocations[0].gateway OutsidePool",
        "spec.staticAllocations[0].prefix OutsidePool",
        "spec.staticAllocations[0].prefix Conflict",
        "spec.nodeSelector.nodeSelectorTerms Required",
        "spec.routes[0].dst Conflict",
        "spec.routes[1].dst OutsidePool",
    ];
    assert_eq!(found(Pool::parse("", &PoolSpec::Cidr(spec))), expected);
}

#[test]
fn a_bad_cidr_does_not_hide_what_can_be_judged_without_it() {
    let spec = CidrPoolSpec {
        gateway_index: Some(-1),
        static_allocations: vec![static_entry("n1", "10.0.0.1/24", ""), static_entry("n1", "10.0.0.0/24", "10.0.1.1")],
        ..cidr_spec("10.0.0.0", 200)
    };
    let expected = [
        "spec.cidr Malformed",
        "spec.perNodeNetworkPrefix OutOfRange",
        "spec.gatewayIndex OutOfRange",
        "spec.staticAllocations[0].prefix HostBits",
        "spec.staticAllocations[1].nodeName Duplicate",
        "spec.staticAllocations[1].gateway OutsidePool",
        "spec.staticAllocations[1].prefix Duplicate",
    ];
    assert_eq!(found_in_cidr(spec), expected);
}
