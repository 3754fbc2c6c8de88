//! The last door when all others are away: the real API server with the CustomResourceDefinitions alone.

use http::Method;
use ipam_e2e::cases::{Case, Complaint, load};
use serde_json::{Value, json};

use crate::objects::{new, old, pool, ready};
use crate::server::{Server, causes, edited};
use crate::verdict::assert_none;

/// What the server says to the case: as a creation that has no effect, or as an edit of a pool that is there.
fn verdict(server: &Server, case: &Case) -> Vec<Complaint> {
    let old = old(case).map(|old| server.put(&old));
    let new = old.as_ref().map_or_else(|| new(case), |old| edited(old, &new(case)));
    let reply = server.put_to_the_test(case, old.as_ref(), &new);
    if reply.is_success() { Vec::new() } else { complaints(&reply.body) }
}

/// After a structural error the server adds that rules were not asked, which is no error.
pub(crate) fn complaints(status: &Value) -> Vec<Complaint> {
    let said = causes(status).into_iter().map(|[field, _, message]| Complaint { field, message });
    said.filter(|complaint| !complaint.message.contains("some validation rules were not checked")).collect()
}

pub(crate) fn disagreement(case: &Case, mut said: Vec<Complaint>) -> Option<String> {
    let mut missing = Vec::new();
    for wanted in &case.definition {
        let is_it = |one: &Complaint| one.field == wanted.field && one.message.contains(&wanted.message);
        match said.iter().position(is_it) {
            Some(place) => drop(said.swap_remove(place)),
            None => missing.push(wanted),
        }
    }
    let agrees = missing.is_empty() && said.is_empty();
    (!agrees).then(|| format!("{}: missing {missing:?}, not expected {said:?}", case.title()))
}

#[test]
fn the_api_server_gives_every_case_exactly_its_errors() {
    let server = Server::start("definition");
    let cases = load().unwrap().into_iter().enumerate().map(|(number, case)| case.of_pool(&format!("case-{number}")));
    let wrong: Vec<String> = cases.filter_map(|case| disagreement(&case, verdict(&server, &case))).collect();
    assert_none(&wrong);
}

/// An edit of a pool with a block for each of `nodes` nodes, one of which holds an address.
fn edit_of_a_large_pool(server: &Server, nodes: u32, spec: &Value) -> Vec<String> {
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0001 + number).to_string();
    let entry = |node: u32| json!({"nodeName": format!("node-{node:06}"), "startIP": address(4 * node), "endIP": address(4 * node + 3)});
    let mut pool = pool("IPPool", "", None, &json!({"subnet": "10.0.0.0/8", "perNodeBlockSize": 4}));
    pool["metadata"] = json!({"generateName": "large-"});
    pool["status"] = json!({
        "allocations": (0..nodes).map(entry).collect::<Vec<_>>(),
        "addresses": {"capacity": 4 * nodes, "used": 1},
        "conditions": [ready(true)],
    });
    let mut pool = server.put(&pool);
    pool["spec"] = spec.clone();
    let path = format!("{}/{}?dryRun=All", server.path("IPPool"), pool["metadata"]["name"].as_str().unwrap());
    let reply = server.send(&Method::PUT, &path, &pool);
    let said = if reply.is_success() { Vec::new() } else { complaints(&reply.body) };
    said.into_iter().map(|complaint| complaint.message).collect()
}

#[test]
fn the_rules_on_edits_stay_within_the_servers_budget_for_ten_thousand_blocks() {
    let server = Server::start("large");
    let verdict =
        |subnet: &str| edit_of_a_large_pool(&server, 10_000, &json!({"subnet": subnet, "perNodeBlockSize": 4}));
    let moved = verdict("11.0.0.0/8");
    assert!(moved.len() == 1 && moved[0].contains("while pods hold 1 of their addresses"), "{moved:?}");
    // All but the last few blocks would be lost, so all are looked at.
    assert_eq!(verdict("10.0.156.0/23"), [""; 0]);
}

/// What is said of a new pool with as many static entries as there may be, in the first network of class A, in which `cidr` lies.
fn a_pool_of_many_statics(server: &Server, cidr: &str) -> Vec<String> {
    let prefix = |number: u32| format!("{}/24", std::net::Ipv4Addr::from_bits(0x0a00_0000 + (number << 8)));
    let entry = |number: u32| json!({"nodeName": format!("node-{number:06}"), "prefix": prefix(number)});
    let statics: Vec<Value> = (0..8192).map(entry).collect();
    let spec = json!({"cidr": cidr, "perNodeNetworkPrefix": 24, "staticAllocations": statics});
    let pool = pool("CIDRPool", "statics", None, &spec);
    let reply = server.send(&Method::POST, &format!("{}?dryRun=All", server.path("CIDRPool")), &pool);
    let said = if reply.is_success() { Vec::new() } else { complaints(&reply.body) };
    said.into_iter().map(|complaint| complaint.message).collect()
}

#[test]
fn the_rule_on_static_entries_stays_within_the_servers_budget_for_as_many_as_there_may_be() {
    let server = Server::start("statics");
    assert_eq!(a_pool_of_many_statics(&server, "10.0.0.0/8"), [""; 0]);
    let said = a_pool_of_many_statics(&server, "11.0.0.0/8");
    let wanted = "the entry with prefix \"10.0.0.0/24\" does not fit: a prefix is a network inside cidr 11.0.0.0/8";
    assert!(said.len() == 1 && said[0].contains(wanted) && said[0].ends_with("(and 8191 more like this)"), "{said:?}");
}

#[test]
fn what_the_definition_refuses_everyone_refuses() {
    for case in load().unwrap() {
        assert!(
            case.definition.is_empty() || !case.refused.is_empty(),
            "{}: only the definition refuses",
            case.title()
        );
    }
}
