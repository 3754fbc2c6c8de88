//! Plans by example: which records are kept, and who gets what.

use std::collections::BTreeMap;

use ipam_core::plan::{plan_with_unavailable, release_all};
use ipam_core::spec::{CidrPoolSpec, IpPoolSpec};
use ipam_core::{AddrRange, Claim, ClaimSource, NodeRef, Pool, Usage};
use rstest::rstest;

use super::support::{
    blocks, cidr_pool, cidr_spec, claim, empty, excluding, fresh, ip_pool, ip_spec, plan_for, prefix_claim, recorded,
    rendered, second_claim, static_entry, unknown,
};

fn fours() -> Pool {
    ip_pool(ip_spec("10.0.0.0/24", 4))
}

fn twenty_fours() -> CidrPoolSpec {
    CidrPoolSpec { gateway_index: Some(1), ..cidr_spec("10.0.0.0/16", 24) }
}

#[test]
fn nodes_are_served_in_name_order_whatever_the_order_of_telling() {
    let plan = fresh(&fours(), &["b", "c", "a", "b"]);
    assert_eq!(blocks(&plan), ["a: 10.0.0.1-10.0.0.4", "b: 10.0.0.5-10.0.0.8", "c: 10.0.0.9-10.0.0.12"]);
}

#[test]
fn a_kept_block_stays_and_a_new_node_gets_the_lowest_free() {
    let claims = [claim("b", "10.0.0.1", "10.0.0.4"), claim("c", "10.0.0.9", "10.0.0.12")];
    let plan = plan_for(&fours(), &["a", "b", "c", "d"], &claims, &empty);
    let expected = ["a: 10.0.0.5-10.0.0.8", "b: 10.0.0.1-10.0.0.4", "c: 10.0.0.9-10.0.0.12", "d: 10.0.0.13-10.0.0.16"];
    assert_eq!(blocks(&plan), expected);
    assert_eq!(plan.dropped, [""; 0]);
}

#[test]
fn nodes_beyond_the_last_block_are_unserved() {
    let plan = fresh(&ip_pool(ip_spec("10.0.0.0/29", 2)), &["e", "d", "c", "b", "a"]);
    assert_eq!(plan.assignments.len(), 3);
    assert_eq!((plan.unserved, plan.blocks_free), (vec!["d".to_owned(), "e".to_owned()], 0));
}

#[rstest]
#[case::gone(&["a"])]
#[case::all_gone(&[])]
fn a_block_of_a_node_that_left_stays_with_its_name(#[case] nodes: &[&str]) {
    let claims = [claim("left", "10.0.0.1", "10.0.0.4")];
    for usage in [Usage::Unknown, Usage::Held(0), Usage::Held(2)] {
        let plan = plan_for(&fours(), nodes, &claims, &|_| usage);
        assert!(rendered(&plan).contains(&"left: 10.0.0.1-10.0.0.4 Releasing".to_owned()), "{plan:?}");
        assert!(!blocks(&plan).contains(&"a: 10.0.0.1-10.0.0.4".to_owned()));
        assert_eq!(plan.capacity, 4 * nodes.len() as u128, "a departed node's addresses do not count");
    }
}

#[test]
fn a_block_of_a_node_that_left_is_free_once_it_is_known_empty() {
    let claims = [claim("left", "10.0.0.1", "10.0.0.4")];
    let plan = plan_for(&fours(), &["a"], &claims, &empty);
    assert_eq!(rendered(&plan), ["a: 10.0.0.1-10.0.0.4 Active"]);
    assert_eq!(plan.dropped, [""; 0], "the normal course of things");
}

#[test]
fn no_new_block_has_an_address_that_others_may_hold() {
    let barred = ["10.0.0.4-10.0.0.5", "10.0.0.12-10.0.0.12", "10.9.0.0-10.9.0.9", "fd00::-fd00::9"].map(range);
    let (names, labels) = (["a", "b", "c"], BTreeMap::new());
    let nodes = names.map(|name| NodeRef { name, labels: &labels });
    let claims = [claim("a", "10.0.0.5", "10.0.0.8")];
    let plan = plan_with_unavailable(&fours(), &nodes, &claims, &unknown, &barred);
    assert_eq!(blocks(&plan), ["a: 10.0.0.5-10.0.0.8", "b: 10.0.0.13-10.0.0.16", "c: 10.0.0.17-10.0.0.20"]);
    assert_eq!(plan.blocks_free, 63 - 5);
}

#[test]
fn a_static_prefix_with_an_address_that_others_may_hold_is_waited_for() {
    let spec = CidrPoolSpec { static_allocations: vec![static_entry("a", "10.0.7.0/24", "")], ..twenty_fours() };
    let labels = BTreeMap::new();
    let nodes = [NodeRef { name: "a", labels: &labels }];
    let plan = plan_with_unavailable(&cidr_pool(spec), &nodes, &[], &unknown, &[range("10.0.7.9-10.0.7.9")]);
    assert_eq!(plan.unserved, ["a"]);
    assert!(plan.dropped[0].contains("may be held elsewhere"), "{:?}", plan.dropped);
}

#[test]
fn a_pool_that_winds_down_keeps_what_is_not_known_empty_and_gives_nothing() {
    let claims = [
        second_claim("c", "10.0.0.1", "10.0.0.4"),
        claim("b", "10.0.0.1", "10.0.0.4"),
        second_claim("a", "10.0.0.9", "10.0.0.12"),
        claim("a", "10.0.0.5", "10.0.0.8"),
    ];
    let usage = |node: &str| if node == "c" { Usage::Empty } else { Usage::Unknown };
    let plan = release_all(&claims, &usage);
    assert_eq!(rendered(&plan), ["a: 10.0.0.5-10.0.0.8 Releasing", "b: 10.0.0.1-10.0.0.4 Releasing"]);
}

fn range(text: &str) -> AddrRange {
    let (first, last) = text.split_once('-').unwrap();
    AddrRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
}

#[test]
fn a_node_that_comes_back_serves_its_old_block() {
    let claims = [claim("back", "10.0.0.9", "10.0.0.12")];
    assert_eq!(rendered(&plan_for(&fours(), &["back"], &claims, &unknown)), ["back: 10.0.0.9-10.0.0.12 Active"]);
}

#[test]
fn of_two_nodes_with_one_block_the_first_by_name_keeps_it() {
    let claims = [claim("b", "10.0.0.1", "10.0.0.4"), claim("a", "10.0.0.1", "10.0.0.4")];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["a: 10.0.0.1-10.0.0.4", "b: 10.0.0.5-10.0.0.8"]);
    assert_eq!(plan.dropped, ["node \"b\": 10.0.0.1-10.0.0.4 is not its block, for node \"a\" has it"]);
}

#[test]
fn a_record_that_the_ipam_node_repeats_outweighs_one_that_it_does_not() {
    let claims = [
        claim("a", "10.0.0.5", "10.0.0.8"),
        claim("b", "10.0.0.5", "10.0.0.8"),
        second_claim("a", "10.0.0.1", "10.0.0.4"),
        second_claim("b", "10.0.0.5", "10.0.0.8"),
    ];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["a: 10.0.0.1-10.0.0.4", "b: 10.0.0.5-10.0.0.8"], "nobody moves");
}

#[test]
fn a_status_record_outweighs_one_of_an_ipam_node_alone() {
    let claims = [claim("b", "10.0.0.1", "10.0.0.4"), second_claim("a", "10.0.0.1", "10.0.0.4")];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["a: 10.0.0.5-10.0.0.8", "b: 10.0.0.1-10.0.0.4"]);
}

#[test]
fn a_wiped_status_is_repaired_from_the_ipam_nodes_without_moving_anything() {
    let pool = fours();
    let claims = [claim("c", "10.0.0.1", "10.0.0.4"), claim("a", "10.0.0.9", "10.0.0.12")];
    let before = plan_for(&pool, &["a", "b", "c"], &claims, &unknown);
    let after = plan_for(&pool, &["a", "b", "c"], &recorded(&before, ClaimSource::IpamNode), &unknown);
    assert_eq!(after, before);
}

#[test]
fn a_status_entry_edited_to_nonsense_is_repaired_from_the_ipam_node() {
    let claims = [
        claim("a", "10.0.0.2", "10.0.0.9"),
        claim("b", "10.0.0.5", "10.0.0.8"),
        second_claim("a", "10.0.0.1", "10.0.0.4"),
        second_claim("b", "10.0.0.5", "10.0.0.8"),
    ];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(rendered(&plan), ["a: 10.0.0.1-10.0.0.4 Active", "b: 10.0.0.5-10.0.0.8 Active"]);
}

#[test]
fn a_node_has_one_block_even_if_the_status_names_two() {
    let claims = [claim("a", "10.0.0.5", "10.0.0.8"), claim("a", "10.0.0.1", "10.0.0.4")];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["a: 10.0.0.1-10.0.0.4", "b: 10.0.0.5-10.0.0.8"]);
    assert_eq!(plan.dropped, ["node \"a\": 10.0.0.5-10.0.0.8 is not its block, for it has 10.0.0.1-10.0.0.4"]);
}

#[rstest]
#[case::wrong_size("10.0.0.1", "10.0.0.8")]
#[case::not_aligned("10.0.0.2", "10.0.0.5")]
#[case::outside_the_subnet("10.9.0.1", "10.9.0.4")]
#[case::other_family("fd00::1", "fd00::4")]
fn a_record_that_disagrees_with_the_spec_is_replaced_only_when_known_empty(#[case] start: &str, #[case] end: &str) {
    let claims = [claim("a", start, end)];
    let replaced = plan_for(&fours(), &["a"], &claims, &empty);
    assert_eq!(rendered(&replaced), ["a: 10.0.0.1-10.0.0.4 Active"]);
    assert_eq!(
        replaced.dropped,
        [format!("node \"a\": {start}-{end} no longer agrees with the spec and is empty; given up")]
    );
    for usage in [Usage::Unknown, Usage::Held(1)] {
        let kept = plan_for(&fours(), &["a"], &claims, &|_| usage);
        assert_eq!(rendered(&kept), [format!("a: {start}-{end} Stale")]);
        assert!(kept.unserved.is_empty() && kept.capacity > 0, "the node allocates from it: {kept:?}");
    }
}

#[test]
fn no_new_block_overlaps_an_outdated_one_that_cuts_across_the_grid() {
    let claims = [claim("a", "10.0.0.3", "10.0.0.9")];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["a: 10.0.0.3-10.0.0.9", "b: 10.0.0.13-10.0.0.16"]);
    assert_eq!(plan.blocks_free, 63 - 3 - 1);
}

#[test]
fn an_outdated_record_never_bars_one_that_agrees() {
    let claims = [claim("a", "10.0.0.3", "10.0.0.9"), claim("b", "10.0.0.5", "10.0.0.8")];
    let plan = plan_for(&fours(), &["a", "b"], &claims, &unknown);
    assert_eq!(rendered(&plan), ["a: 10.0.0.1-10.0.0.4 Active", "b: 10.0.0.5-10.0.0.8 Active"]);
    assert!(plan.dropped[0].contains("overlaps 10.0.0.5-10.0.0.8 of node \"b\""), "{:?}", plan.dropped);
}

#[test]
fn a_departed_node_keeps_an_outdated_block_too_while_it_may_be_held() {
    let claims = [claim("left", "10.0.0.3", "10.0.0.9")];
    assert_eq!(rendered(&plan_for(&fours(), &[], &claims, &unknown)), ["left: 10.0.0.3-10.0.0.9 Releasing"]);
    assert_eq!(rendered(&plan_for(&fours(), &[], &claims, &empty)), [""; 0]);
}

#[test]
fn a_block_that_exclusions_cover_by_now_is_kept_unless_known_empty() {
    let common = excluding(&[("10.0.0.1", "10.0.0.4")]);
    let pool = ip_pool(IpPoolSpec { common, ..ip_spec("10.0.0.0/24", 4) });
    let claims = [claim("a", "10.0.0.1", "10.0.0.4"), second_claim("a", "10.0.0.1", "10.0.0.4")];
    assert_eq!(rendered(&plan_for(&pool, &["a"], &claims, &unknown)), ["a: 10.0.0.1-10.0.0.4 Active"]);
    let replaced = plan_for(&pool, &["a"], &claims, &empty);
    assert_eq!(rendered(&replaced), ["a: 10.0.0.5-10.0.0.8 Active"]);
    assert_eq!(replaced.dropped.len(), 1, "{:?}", replaced.dropped);
    assert_eq!(rendered(&plan_for(&pool, &[], &claims, &unknown)), ["a: 10.0.0.1-10.0.0.4 Releasing"]);
    assert_eq!(rendered(&plan_for(&pool, &[], &claims, &empty)), [""; 0]);
}

#[test]
fn a_changed_gateway_is_updated_in_place() {
    let claims = [prefix_claim("a", "10.0.3.0/24", Some("10.0.3.200"))];
    let plan = plan_for(&cidr_pool(twenty_fours()), &["a"], &claims, &unknown);
    assert_eq!(rendered(&plan), ["a: 10.0.3.0-10.0.3.255 gw=10.0.3.1 Active"]);
}

#[test]
fn an_outdated_prefix_keeps_the_gateway_it_was_given_with() {
    let claims = [prefix_claim("a", "10.0.2.0/23", Some("10.0.2.9"))];
    let pool = cidr_pool(twenty_fours());
    let plan = plan_for(&pool, &["a", "b"], &claims, &unknown);
    assert_eq!(rendered(&plan)[0], "a: 10.0.2.0-10.0.3.255 gw=10.0.2.9 Stale");
    let node = pool.node_pool(&plan.assignments[0].block);
    assert_eq!((node.range.to_string(), node.subnet.to_string()), ("10.0.2.1-10.0.3.254".into(), "10.0.2.0/23".into()));
}

#[test]
fn an_outdated_ip_pool_block_keeps_the_subnets_mask_and_gateway() {
    let pool = ip_pool(IpPoolSpec { gateway: Some("10.0.0.1".into()), ..ip_spec("10.0.0.0/24", 4) });
    let plan = plan_for(&pool, &["a"], &[claim("a", "10.0.0.9", "10.0.0.16")], &unknown);
    assert_eq!(rendered(&plan), ["a: 10.0.0.9-10.0.0.16 gw=10.0.0.1 Stale"]);
    assert_eq!(pool.node_pool(&plan.assignments[0].block).subnet.to_string(), "10.0.0.0/24");
    let elsewhere = plan_for(&pool, &["a"], &[claim("a", "10.9.0.9", "10.9.0.16")], &unknown);
    assert_eq!(rendered(&elsewhere), ["a: 10.9.0.9-10.9.0.16 Stale"], "the gateway is in another network");
    assert_eq!(pool.node_pool(&elsewhere.assignments[0].block).subnet.to_string(), "10.9.0.0/24");
}

#[test]
fn a_node_with_a_static_entry_moves_to_it_only_when_its_block_is_known_empty() {
    let spec = CidrPoolSpec { static_allocations: vec![static_entry("a", "10.0.7.0/24", "")], ..twenty_fours() };
    let pool = cidr_pool(spec);
    let claims = [prefix_claim("a", "10.0.0.0/24", None)];
    assert_eq!(rendered(&plan_for(&pool, &["a"], &claims, &unknown)), ["a: 10.0.0.0-10.0.0.255 Stale"]);
    let moved = plan_for(&pool, &["a"], &claims, &empty);
    assert_eq!(rendered(&moved), ["a: 10.0.7.0-10.0.7.255 gw=10.0.7.1 Active"]);
}

#[test]
fn a_static_prefix_that_another_node_still_holds_is_waited_for() {
    let entries = vec![static_entry("a", "10.0.0.0/24", ""), static_entry("", "10.0.1.0/24", "")];
    let pool = cidr_pool(CidrPoolSpec { static_allocations: entries, ..twenty_fours() });
    let claims = [prefix_claim("b", "10.0.0.0/24", None)];
    let waiting = plan_for(&pool, &["a", "b"], &claims, &unknown);
    assert_eq!(rendered(&waiting), ["b: 10.0.0.0-10.0.0.255 Stale"]);
    assert_eq!(waiting.unserved, ["a"]);
    assert_eq!(
        waiting.dropped,
        ["node \"a\": its static prefix 10.0.0.0-10.0.0.255 waits, for node \"b\" still has 10.0.0.0-10.0.0.255"]
    );
    let moved = plan_for(&pool, &["a", "b"], &claims, &empty);
    assert_eq!(blocks(&moved), ["a: 10.0.0.0-10.0.0.255", "b: 10.0.2.0-10.0.2.255"]);
}

#[rstest]
#[case("", "10.0.0.1", "10.0.0.4")]
#[case("a", "", "10.0.0.4")]
#[case("a", "10.0.0.1", "x")]
#[case("a", "10.0.0.4", "10.0.0.1")]
#[case("a", "10.0.0.1", "fd00::1")]
fn a_record_that_does_not_parse_is_no_claim(#[case] node: &str, #[case] start: &str, #[case] end: &str) {
    assert_eq!(Claim::from_ip_range(node, start, end, ClaimSource::Status), None);
}

#[rstest]
#[case("", "10.0.0.0/24")]
#[case("a", "10.0.0.0")]
#[case("a", "10.0.0.1/24")]
#[case("a", "")]
fn a_prefix_record_that_does_not_parse_is_no_claim(#[case] node: &str, #[case] prefix: &str) {
    assert_eq!(Claim::from_prefix(node, prefix, None, ClaimSource::Status), None);
}

#[rstest]
#[case(Some("10.0.0.9"), true)]
#[case(Some("10.0.1.9"), false)]
#[case(Some("x"), false)]
#[case(Some(""), false)]
#[case(None, false)]
fn a_spoilt_gateway_does_not_spoil_the_record(#[case] gateway: Option<&str>, #[case] is_read: bool) {
    let claim = Claim::from_prefix("a", "10.0.0.0/24", gateway, ClaimSource::Status).unwrap();
    assert_eq!(claim.gateway.is_some(), is_read);
}

#[test]
fn thousands_of_nodes_with_one_block_cost_no_more_than_others() {
    let names: Vec<String> = (0..20_000).map(|i| format!("node-{i:05}")).collect();
    let claims: Vec<Claim> = names.iter().map(|name| claim(name, "10.0.0.1", "10.0.0.4")).collect();
    let plan = plan_for(&fours(), &["node-00007"], &claims, &unknown);
    assert_eq!(blocks(&plan), ["node-00000: 10.0.0.1-10.0.0.4", "node-00007: 10.0.0.5-10.0.0.8"]);
    assert_eq!(plan.dropped.len(), 19_999);
}
