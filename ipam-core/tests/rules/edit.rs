//! Which edits displace whom, and what is said of it.

use ipam_core::edit::{left_out, violations};
use ipam_core::spec::{CidrPoolSpec, CommonSpec, IpPoolSpec, NodeSelectorSpec, PoolSpec};
use ipam_core::{AffectedNode, Claim, Held, Pool, RangeSet, Reason, addr, displaced};
use rstest::rstest;

use crate::support::{cidr_spec, claim, exclusion, ip_spec, places, prefix_claim, static_entry};

fn number(text: &str) -> u128 {
    addr::number(text.parse().unwrap())
}

fn holding(runs: &[(&str, &str)]) -> Held {
    Held::Addresses(runs.iter().map(|(first, last)| (number(first), number(last))).collect())
}

/// `node: field, field` for each displaced node.
fn told(found: &[AffectedNode]) -> Vec<String> {
    found.iter().map(|one| format!("{}: {}", one.node, one.fields.join(", "))).collect()
}

fn edit(old: &PoolSpec, new: &PoolSpec, claims: &[Claim], held: &Held) -> Vec<AffectedNode> {
    let pool = Pool::parse("pool1", new).unwrap();
    displaced(&pool, Some(old), new, claims, &|_| held.clone())
}

fn ip(subnet: &str, size: i64) -> PoolSpec {
    PoolSpec::Ip(ip_spec(subnet, size))
}

fn cidr(cidr: &str, len: i64) -> PoolSpec {
    PoolSpec::Cidr(cidr_spec(cidr, len))
}

fn with(spec: PoolSpec, common: CommonSpec) -> PoolSpec {
    match spec {
        PoolSpec::Ip(spec) => PoolSpec::Ip(IpPoolSpec { common, ..spec }),
        PoolSpec::Cidr(spec) => PoolSpec::Cidr(CidrPoolSpec { common, ..spec }),
    }
}

fn excluding(start: &str, end: &str) -> CommonSpec {
    CommonSpec { exclusions: vec![exclusion(start, end)], ..CommonSpec::default() }
}

fn excluding_places(start: i64, end: i64) -> CommonSpec {
    CommonSpec { per_node_exclusions: vec![places(start, end)], ..CommonSpec::default() }
}

fn with_gateway(gateway: &str) -> PoolSpec {
    PoolSpec::Ip(IpPoolSpec { gateway: Some(gateway.into()), ..ip_spec("10.0.0.0/24", 4) })
}

#[rstest]
#[case::grown(ip("10.0.0.0/24", 4), ip("10.0.0.0/16", 4), &[])]
#[case::shrunk_around_the_blocks(ip("10.0.0.0/16", 4), ip("10.0.0.0/28", 4), &[])]
#[case::shrunk_away(ip("10.0.0.0/24", 4), ip("10.0.0.0/30", 2), &["spec.subnet", "spec.perNodeBlockSize"])]
#[case::moved(ip("10.0.0.0/24", 4), ip("10.1.0.0/24", 4), &["spec.subnet"])]
#[case::of_the_other_family(ip("10.0.0.0/24", 4), ip("fd00::/64", 4), &["spec.subnet"])]
#[case::other_size(ip("10.0.0.0/24", 4), ip("10.0.0.0/24", 8), &["spec.perNodeBlockSize"])]
#[case::moved_and_other_size(ip("10.0.0.0/24", 4), ip("10.1.0.0/24", 8), &["spec.subnet", "spec.perNodeBlockSize"])]
fn an_ippool_s_block_is_displaced_by_what_moves_it(
    #[case] old: PoolSpec,
    #[case] new: PoolSpec,
    #[case] fields: &[&str],
) {
    let found = edit(&old, &new, &[claim("a", "10.0.0.5", "10.0.0.8")], &Held::Unknown);
    let said: Vec<String> = found.into_iter().flat_map(|one| one.fields).collect();
    assert_eq!(said, fields);
}

#[test]
fn a_subnet_that_grows_to_the_front_keeps_blocks_that_still_fit_the_cut() {
    let mine = [claim("a", "10.0.1.1", "10.0.1.4")];
    assert_eq!(told(&edit(&ip("10.0.1.0/24", 4), &ip("10.0.0.0/16", 4), &mine, &Held::Unknown)), [""; 0]);
    let mine = [claim("a", "10.0.1.1", "10.0.1.3")];
    assert_eq!(told(&edit(&ip("10.0.1.0/24", 3), &ip("10.0.0.0/16", 3), &mine, &Held::Unknown)), ["a: spec.subnet"]);
}

#[rstest]
#[case::grown(cidr("10.0.0.0/16", 24), cidr("10.0.0.0/8", 24), &[])]
#[case::moved(cidr("10.0.0.0/16", 24), cidr("10.1.0.0/16", 24), &["a: spec.cidr"])]
#[case::longer_prefix(cidr("10.0.0.0/16", 24), cidr("10.0.0.0/16", 25), &["a: spec.perNodeNetworkPrefix"])]
#[case::shorter_prefix(cidr("10.0.0.0/16", 24), cidr("10.0.0.0/16", 23), &["a: spec.perNodeNetworkPrefix"])]
fn a_cidrpool_s_prefix_is_displaced_by_what_moves_it(
    #[case] old: PoolSpec,
    #[case] new: PoolSpec,
    #[case] expected: &[&str],
) {
    assert_eq!(told(&edit(&old, &new, &[prefix_claim("a", "10.0.1.0/24", None)], &Held::Count(3))), expected);
}

#[rstest]
#[case::for_itself(static_entry("a", "10.0.1.0/24", ""), &[])]
#[case::other_prefix(static_entry("a", "10.0.9.0/24", ""), &["a: spec.staticAllocations[0].prefix"])]
#[case::for_another(static_entry("b", "10.0.1.0/24", ""), &["a: spec.staticAllocations[0].nodeName"])]
#[case::reserved(static_entry("", "10.0.1.0/24", ""), &["a: spec.staticAllocations[0].nodeName"])]
#[case::elsewhere(static_entry("b", "10.0.9.0/24", ""), &[])]
#[case::gateway_on_a_held_address(static_entry("a", "10.0.1.0/24", "10.0.1.7"), &["a: spec.staticAllocations[0].gateway"])]
#[case::gateway_beside(static_entry("a", "10.0.1.0/24", "10.0.1.9"), &[])]
fn static_entries_displace_who_has_their_prefix(
    #[case] entry: ipam_core::spec::StaticAllocationSpec,
    #[case] expected: &[&str],
) {
    let new = PoolSpec::Cidr(CidrPoolSpec { static_allocations: vec![entry], ..cidr_spec("10.0.0.0/16", 24) });
    let mine = [prefix_claim("a", "10.0.1.0/24", None)];
    let held = holding(&[("10.0.1.7", "10.0.1.7")]);
    assert_eq!(told(&edit(&cidr("10.0.0.0/16", 24), &new, &mine, &held)), expected);
}

#[test]
fn a_static_entry_that_goes_leaves_its_node_the_prefix() {
    let old =
        CidrPoolSpec { static_allocations: vec![static_entry("a", "10.0.1.0/24", "")], ..cidr_spec("10.0.0.0/16", 24) };
    let mine = [prefix_claim("a", "10.0.1.0/24", None)];
    assert_eq!(told(&edit(&PoolSpec::Cidr(old), &cidr("10.0.0.0/16", 24), &mine, &Held::Unknown)), [""; 0]);
}

#[rstest]
#[case::unknown(Held::Unknown, true)]
#[case::some(Held::Count(1), true)]
#[case::none(Held::Count(0), false)]
#[case::told_none(Held::Addresses(RangeSet::new()), false)]
#[case::this_one(holding(&[("10.0.0.6", "10.0.0.6")]), true)]
#[case::another(holding(&[("10.0.0.7", "10.0.0.7")]), false)]
fn an_exclusion_displaces_who_may_hold_one_of_its_addresses(#[case] held: Held, #[case] is_displaced: bool) {
    let old = ip("10.0.0.0/24", 4);
    let mine = [claim("a", "10.0.0.5", "10.0.0.8")];
    let new = with(old.clone(), excluding("10.0.0.6", "10.0.0.6"));
    assert_eq!(!edit(&old, &new, &mine, &held).is_empty(), is_displaced, "by address");
    let new = with(old.clone(), excluding_places(1, 1));
    assert_eq!(!edit(&old, &new, &mine, &held).is_empty(), is_displaced, "by place");
    let PoolSpec::Ip(spec) = old.clone() else { panic!() };
    let new = PoolSpec::Ip(IpPoolSpec { gateway: Some("10.0.0.6".into()), ..spec });
    assert_eq!(!edit(&old, &new, &mine, &held).is_empty(), is_displaced, "by the gateway");
    assert_eq!(edit(&old, &ip("10.1.0.0/24", 4), &mine, &held).is_empty(), held.is_empty(), "by moving");
}

#[test]
fn what_was_excluded_before_can_only_be_held_by_who_says_so() {
    let old = with(ip("10.0.0.0/24", 4), excluding("10.0.0.5", "10.0.0.6"));
    let mine = [claim("a", "10.0.0.5", "10.0.0.8")];
    let split = CommonSpec {
        exclusions: vec![exclusion("10.0.0.5", "10.0.0.5"), exclusion("10.0.0.6", "10.0.0.6")],
        ..CommonSpec::default()
    };
    assert_eq!(told(&edit(&old, &with(ip("10.0.0.0/24", 4), split), &mine, &Held::Unknown)), [""; 0]);
    let by_place = with(ip("10.0.0.0/24", 4), excluding_places(0, 1));
    assert_eq!(told(&edit(&old, &by_place, &mine, &Held::Unknown)), [""; 0]);
    let wider = with(ip("10.0.0.0/24", 4), excluding("10.0.0.5", "10.0.0.7"));
    assert_eq!(told(&edit(&old, &wider, &mine, &Held::Unknown)), ["a: spec.exclusions[0]"]);
}

#[test]
fn every_exclusion_that_hits_is_named_and_no_other() {
    let old = ip("10.0.0.0/24", 100);
    let mine = [claim("a", "10.0.0.1", "10.0.0.100")];
    let list = [
        ("10.0.0.200", "10.0.0.210"),
        ("10.0.0.10", "10.0.0.20"),
        ("10.0.0.50", "10.0.0.60"),
        ("10.0.0.12", "10.0.0.13"),
    ];
    let exclusions = list.iter().map(|(start, end)| exclusion(start, end)).collect();
    let common = CommonSpec { exclusions, per_node_exclusions: vec![places(98, 99)], ..CommonSpec::default() };
    let held = holding(&[("10.0.0.12", "10.0.0.12"), ("10.0.0.55", "10.0.0.57"), ("10.0.0.99", "10.0.0.99")]);
    let found = edit(&old, &with(old.clone(), common), &mine, &held);
    assert_eq!(told(&found), ["a: spec.exclusions[1], spec.exclusions[2], spec.perNodeExclusions[0]"]);
    assert_eq!(found[0].held, Some(5));
}

#[test]
fn a_gateway_that_stays_displaces_nobody_though_a_pod_holds_it() {
    let (old, mine) = (with_gateway("10.0.0.5"), [claim("a", "10.0.0.5", "10.0.0.8")]);
    let held = holding(&[("10.0.0.5", "10.0.0.5")]);
    let PoolSpec::Ip(spec) = old.clone() else { panic!() };
    let common = CommonSpec { default_gateway: true, routes: vec!["5.5.0.0/16".into()], ..CommonSpec::default() };
    assert_eq!(told(&edit(&old, &PoolSpec::Ip(IpPoolSpec { common, ..spec }), &mine, &held)), [""; 0]);
    assert_eq!(told(&edit(&old, &with_gateway("10.0.0.250"), &mine, &held)), [""; 0], "moved away from it");
    assert_eq!(told(&edit(&with_gateway("10.0.0.250"), &old, &mine, &held)), ["a: spec.gateway"], "moved onto it");
}

#[test]
fn a_gateway_index_displaces_who_may_hold_that_place() {
    let old = cidr("10.0.0.0/16", 24);
    let new = PoolSpec::Cidr(CidrPoolSpec { gateway_index: Some(9), ..cidr_spec("10.0.0.0/16", 24) });
    let mine = [prefix_claim("a", "10.0.0.0/24", None), prefix_claim("b", "10.0.1.0/24", Some("10.0.1.9"))];
    assert_eq!(told(&edit(&old, &new, &mine, &Held::Unknown)), ["a: spec.gatewayIndex"], "b has that gateway already");
    assert_eq!(told(&edit(&old, &new, &mine[..1], &holding(&[("10.0.0.8", "10.0.0.8")]))), [""; 0]);
}

#[test]
fn a_held_address_outside_the_blocks_must_stay_in_the_subnet() {
    let mine = [claim("a", "10.0.0.1", "10.0.0.4")];
    let held = holding(&[("10.0.0.2", "10.0.0.2"), ("10.0.0.200", "10.0.0.200")]);
    assert_eq!(told(&edit(&ip("10.0.0.0/24", 4), &ip("10.0.0.0/25", 4), &mine, &held)), ["a: spec.subnet"]);
    assert_eq!(told(&edit(&ip("10.0.0.0/24", 4), &ip("10.0.0.0/23", 4), &mine, &held)), [""; 0]);
    let excluded = with(ip("10.0.0.0/24", 4), excluding("10.0.0.199", "10.0.0.201"));
    assert_eq!(told(&edit(&ip("10.0.0.0/24", 4), &excluded, &mine, &held)), ["a: spec.exclusions[0]"]);
}

#[test]
fn an_edit_back_to_what_the_blocks_agree_with_is_free() {
    let mine = [claim("a", "10.0.0.5", "10.0.0.8")];
    assert_eq!(told(&edit(&ip("10.0.0.0/24", 7), &ip("10.0.0.0/24", 4), &mine, &Held::Unknown)), [""; 0]);
    assert_eq!(
        told(&edit(&ip("10.0.0.0/24", 7), &ip("10.0.0.0/24", 9), &mine, &Held::Unknown)),
        [""; 0],
        "displaced before"
    );
}

#[test]
fn an_invalid_old_spec_frees_no_block_and_its_exclusions_count_as_far_as_they_read() {
    let invalid =
        |common| PoolSpec::Ip(IpPoolSpec { gateway: Some("oops".into()), common, ..ip_spec("10.0.0.0/24", 4) });
    let mine = [claim("a", "10.0.0.5", "10.0.0.8")];
    let new = with(ip("10.0.0.0/24", 4), excluding("10.0.0.6", "10.0.0.6"));
    assert_eq!(told(&edit(&invalid(excluding("10.0.0.6", "10.0.0.6")), &new, &mine, &Held::Unknown)), [""; 0]);
    assert_eq!(told(&edit(&invalid(CommonSpec::default()), &new, &mine, &Held::Unknown)), ["a: spec.exclusions[0]"]);
    let moved = ip("10.0.0.0/24", 5);
    assert_eq!(
        told(&edit(&invalid(CommonSpec::default()), &moved, &mine, &Held::Unknown)),
        ["a: spec.perNodeBlockSize"]
    );
}

#[test]
fn without_an_old_spec_every_block_must_agree_and_nothing_else_is_judged() {
    let judge = |new: &PoolSpec| {
        let pool = Pool::parse("pool1", new).unwrap();
        told(&displaced(&pool, None, new, &[claim("a", "10.0.0.5", "10.0.0.8")], &|_| Held::Unknown))
    };
    assert_eq!(judge(&ip("10.0.0.0/24", 4)), [""; 0]);
    assert_eq!(judge(&with(ip("10.0.0.0/24", 4), excluding("10.0.0.6", "10.0.0.6"))), [""; 0]);
    assert_eq!(judge(&ip("10.0.0.0/24", 8)), ["a: spec.perNodeBlockSize"]);
}

#[test]
fn violations_name_the_nodes_what_they_hold_and_what_to_keep() {
    let mine: Vec<Claim> = (0..7)
        .map(|i| claim(&format!("n{i}"), &format!("10.0.0.{}", 4 * i + 1), &format!("10.0.0.{}", 4 * i + 4)))
        .collect();
    let (old, new) = (ip("10.0.0.0/24", 4), with(ip("10.0.0.0/24", 8), excluding("10.0.0.1", "10.0.0.2")));
    let pool = Pool::parse("pool1", &new).unwrap();
    let usage = |node: &str| if node == "n0" { Held::Unknown } else { Held::Count(2) };
    let found = violations(&displaced(&pool, Some(&old), &new, &mine, &usage), Some(&old), &new);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].field.as_str(), found[0].reason), ("spec.perNodeBlockSize", Reason::InUse));
    assert_eq!(
        found[0].message,
        "8 would take addresses that pods may hold from 7 nodes: \"n0\" (use of 10.0.0.1-10.0.0.4 not reported: counts as \
         held), \"n1\" (10.0.0.5-10.0.0.8 has 2 held), \"n2\" (10.0.0.9-10.0.0.12 has 2 held), \"n3\" (10.0.0.13-10.0.0.16 \
         has 2 held), \"n4\" (10.0.0.17-10.0.0.20 has 2 held) and 2 more; keep 4 until they are released"
    );
    let new = with(old.clone(), excluding("10.0.0.1", "10.0.0.2"));
    let found = violations(&edit(&old, &new, &mine[..1], &Held::Count(1)), Some(&old), &new);
    assert_eq!(
        found[0].to_string(),
        "spec.exclusions[0]: 10.0.0.1-10.0.0.2 would take addresses that pods may hold from 1 node: \"n0\" \
         (10.0.0.1-10.0.0.4 has 1 held); leave it out until they are released"
    );
}

#[test]
fn nodes_that_a_selector_leaves_out_are_named_in_as_many_characters_as_api_servers_show() {
    let claims: Vec<Claim> = (0..7)
        .map(|i| {
            claim(
                &format!("worker-node-{i}.example.internal"),
                &format!("10.0.0.{}", 4 * i + 1),
                &format!("10.0.0.{}", 4 * i + 4),
            )
        })
        .collect();
    let (old, node_selector) = (ip("10.0.0.0/24", 4), Some(NodeSelectorSpec::default()));
    let new = with(old.clone(), CommonSpec { node_selector, ..CommonSpec::default() });
    let said =
        |held: Held| left_out(&old, &new, &claims, &|_| false, &|_| held.clone()).map(|advice| advice.to_string());
    for held in [Held::Unknown, Held::Count(100)] {
        let said = said(held).unwrap();
        assert!(said.contains("worker-node-0.example.internal") && said.ends_with(" and 4 more"), "{said}");
        assert!(said.len() <= 256, "{} characters: {said}", said.len());
    }
    assert_eq!(said(Held::Count(0)), None);
}
