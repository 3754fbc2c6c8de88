//! Requests that make no sense: every mistake, with the field as it stands on the wire.

use ipam_core::Reason;
use ipam_core::ledger::{Attachment, Ledger, Owner, Pick, Refusal, Request, subject_violations};

use crate::support::*;

fn two_pools() -> Ledger {
    ledger(&[with_gateway(four(), "192.168.0.1"), three()])
}

fn mistakes(request: &Request) -> Vec<(String, Reason)> {
    match two_pools().allocate(request, 0) {
        Err(Refusal::Invalid(violations)) => violations.into_iter().map(|v| (v.field, v.reason)).collect(),
        other => panic!("not refused as invalid: {other:?}"),
    }
}

fn only_mistake(request: &Request) -> String {
    match two_pools().allocate(request, 0) {
        Err(Refusal::Invalid(violations)) if violations.len() == 1 => violations[0].to_string(),
        other => panic!("not one mistake: {other:?}"),
    }
}

#[test]
fn every_missing_field_is_named_at_once() {
    let empty = Request {
        pools: Vec::new(),
        owner: Owner::new("", ""),
        attachment: Attachment::default(),
        requested: Vec::new(),
        pick: Pick::Next,
    };
    let fields = ["pools", "cni_containerid", "cni_ifname", "metadata.k8s_pod_name", "metadata.k8s_pod_namespace"];
    assert_eq!(mistakes(&empty), fields.map(|field| (format!("parameters.{field}"), Reason::Required)));
}

#[test]
fn more_than_two_pools_are_refused() {
    assert_eq!(only_mistake(&request("x", &["a", "b", "c"])), "parameters.pools: names 3 pools; at most 2 are allowed");
}

#[test]
fn without_pools_nothing_is_said_of_the_requested_addresses() {
    assert_eq!(only_mistake(&asking("x", &[], &["192.168.0.2"])), "parameters.pools: must name one or two pools");
}

#[test]
fn a_pool_without_a_name_is_refused() {
    assert_eq!(mistakes(&request("x", &["a", ""])), [("parameters.pools[1]".to_owned(), Reason::Required)]);
}

#[test]
fn a_pool_named_twice_is_refused() {
    assert_eq!(
        only_mistake(&request("x", &["a", "a"])),
        "parameters.pools[1]: names IPPool \"a\" again; one address is given per pool"
    );
}

#[test]
fn release_and_check_need_pools_container_and_interface_but_no_pod() {
    assert_eq!(subject_violations(&[key("a")], &owner("x")), []);
    let fields: Vec<_> = subject_violations(&[], &Owner::new("", "")).into_iter().map(|v| v.field).collect();
    assert_eq!(fields, ["parameters.pools", "parameters.cni_containerid", "parameters.cni_ifname"]);
}

#[test]
fn an_unknown_pool_is_refused_naming_those_there_are() {
    let refusal = two_pools().allocate(&request("x", &["a", "c"]), 0).unwrap_err();
    assert_eq!(refusal.to_string(), "no IPPool \"c\" on this node: it has IPPool \"a\", IPPool \"b\"");
    let refusal = Ledger::new(0).allocate(&request("x", &["a"]), 0).unwrap_err();
    assert_eq!(refusal.to_string(), "no IPPool \"a\" on this node: it has no pools yet");
}

#[test]
fn requested_addresses_gateway_and_index_exclude_one_another() {
    let requested = || asking("x", &["a"], &["192.168.0.2"]);
    let conflict = |field: &str| (format!("parameters.{field}"), Reason::Conflict);
    for pick in [Pick::Gateway, Pick::Index(2)] {
        assert_eq!(mistakes(&Request { pick, ..requested() }), [conflict("requested_ips")]);
    }
    let violation = Pick::from_features(true, Some(2)).unwrap_err();
    assert_eq!((violation.field, violation.reason), conflict("features.allocate_ip_with_index"));
    assert_eq!(Pick::from_features(false, None), Ok(Pick::Next));
    assert_eq!(Pick::from_features(true, None), Ok(Pick::Gateway));
    assert_eq!(Pick::from_features(false, Some(0)), Ok(Pick::Index(0)));
}

#[test]
fn two_requested_addresses_in_one_pool_are_refused() {
    for same in [["192.168.0.2", "192.168.0.3"], ["192.168.0.2", "192.168.0.2"]] {
        let expected = ("parameters.requested_ips[1]".to_owned(), Reason::Duplicate);
        assert_eq!(mistakes(&asking("x", &["a", "b"], &same)), [expected]);
    }
}

#[test]
fn more_requested_addresses_than_pools_can_have_are_refused_as_one_mistake() {
    assert_eq!(
        only_mistake(&asking("x", &["a", "b"], &["192.168.0.2", "fd00::2", "10.0.0.1"])),
        "parameters.requested_ips: names 3 addresses; at most one per pool is allowed"
    );
}

#[test]
fn a_requested_address_that_fits_no_pool_is_refused_naming_pools_and_subnets() {
    assert_eq!(
        only_mistake(&asking("x", &["a", "b"], &["10.0.0.1"])),
        "parameters.requested_ips[0]: 10.0.0.1 is in no pool asked for; \
         these are IPPool \"a\" (192.168.0.0/16), IPPool \"b\" (fd00::/64)"
    );
}

#[test]
fn network_and_broadcast_addresses_cannot_be_asked_for() {
    let all = [("192.168.0.0", "network"), ("192.168.255.255", "broadcast"), ("fd00::", "network")];
    for (addr, what) in all {
        let mistake = only_mistake(&asking("x", &["a", "b"], &[addr]));
        assert!(
            mistake.starts_with(&format!("parameters.requested_ips[0]: {addr} is the {what} address of")),
            "{mistake}"
        );
    }
    let last_of_ipv6 = asking("x", &["b"], &["fd00::ffff:ffff:ffff:ffff"]);
    assert!(two_pools().allocate(&last_of_ipv6, 0).is_ok(), "IPv6 has no broadcast address");
}

#[test]
fn the_gateway_feature_needs_a_gateway_in_every_pool_asked_for() {
    assert_eq!(
        only_mistake(&picking("x", &["a", "b"], Pick::Gateway)),
        "parameters.features.allocate_default_gateway: needs a gateway, and IPPool \"b\" has none on this node"
    );
}

#[test]
fn an_index_outside_the_range_or_on_the_gateway_is_refused() {
    let field = "parameters.features.allocate_ip_with_index";
    for index in [-1, i32::MIN, 4, i32::MAX] {
        let range = "is outside IPPool \"a\", which has 192.168.0.1-192.168.0.4 on this node; write 0 to 3";
        assert_eq!(only_mistake(&picking("x", &["a"], Pick::Index(index))), format!("{field}: {index} {range}"));
    }
    let gateway = format!("{field}: 0 is the gateway of IPPool \"a\", 192.168.0.1; take another");
    assert_eq!(only_mistake(&picking("x", &["a"], Pick::Index(0))), gateway);
}

#[test]
fn mistakes_of_the_request_and_of_its_fit_to_the_pools_come_together() {
    let mut request = asking("x", &["a", "b"], &["10.0.0.1", "192.168.0.0"]);
    request.attachment.pod_name = String::new();
    let fields: Vec<_> = mistakes(&request).into_iter().map(|(field, _)| field).collect();
    assert_eq!(
        fields,
        ["parameters.metadata.k8s_pod_name", "parameters.requested_ips[0]", "parameters.requested_ips[1]"]
    );
}

#[test]
fn a_request_of_a_hundred_thousand_entries_gets_one_short_answer() {
    let pools: Vec<_> = (0..100_000).map(|_| "a").collect();
    let addrs: Vec<_> = (0..100_000).map(|_| "10.0.0.1").collect();
    assert_eq!(mistakes(&asking("x", &pools, &[])).len(), 1);
    assert_eq!(mistakes(&asking("x", &["a"], &addrs)).len(), 1);
}
