//! What an answer says beside the address: mask, gateway, routes.

use ipam_core::ledger::Grant;
use ipam_core::{Cidr, NodePool};

use crate::support::*;

fn grant_of(pool: NodePool) -> Grant {
    ledger(&[pool]).allocate(&request("x", &["a"]), 0).unwrap().grants.remove(0)
}

fn routes(pool: NodePool) -> Vec<String> {
    grant_of(pool).routes.iter().map(Cidr::to_string).collect()
}

#[test]
fn the_mask_is_that_of_the_subnet_and_not_of_the_range() {
    assert_eq!(grant_of(four()).prefix_len, 16);
    assert_eq!(grant_of(pool("a", "10.0.0.1", "10.0.0.254", "10.0.0.0/24")).prefix_len, 24);
}

#[test]
fn the_gateway_of_the_pool_is_returned_also_when_it_lies_outside_the_range() {
    assert_eq!(grant_of(with_gateway(four(), "192.168.99.1")).gateway, Some(ip("192.168.99.1")));
    assert_eq!(grant_of(four()).gateway, None);
}

#[test]
fn routes_are_sorted_without_doubles_and_with_the_default_route_of_a_default_gateway() {
    let listed = ["192.168.9.0/24", "10.0.0.0/8", "192.168.9.0/24"].map(cidr).to_vec();
    let routed = NodePool { routes: listed, ..with_gateway(four(), "192.168.0.4") };
    assert_eq!(routes(routed.clone()), ["10.0.0.0/8", "192.168.9.0/24"]);
    let default = NodePool { default_gateway: true, ..routed };
    assert_eq!(routes(default), ["0.0.0.0/0", "10.0.0.0/8", "192.168.9.0/24"]);
}

#[test]
fn the_default_route_is_of_the_pools_own_family() {
    let six = NodePool { default_gateway: true, key: key("a"), ..with_gateway(three(), "fd00::1") };
    assert_eq!(routes(six), ["::/0"]);
}

#[test]
fn without_a_gateway_there_are_no_routes() {
    let routed = NodePool { routes: vec![cidr("10.0.0.0/8")], default_gateway: true, ..four() };
    assert!(routes(routed).is_empty());
}

#[test]
fn a_point_to_point_subnet_gives_all_of_its_addresses() {
    let mut ledger =
        ledger(&[pool("a", "10.0.0.0", "10.0.0.1", "10.0.0.0/31"), pool("b", "fd00::7", "fd00::7", "fd00::7/128")]);
    assert_eq!(next(&mut ledger, "x"), "10.0.0.0");
    assert_eq!(take(&mut ledger, &asking("y", &["a"], &["10.0.0.1"])).unwrap(), [ip("10.0.0.1")]);
    assert_eq!(take(&mut ledger, &asking("z", &["b"], &["fd00::7"])).unwrap(), [ip("fd00::7")]);
}
