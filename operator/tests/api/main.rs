//! The wire: exactly which calls reach the API server, in which form, and when none does.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test needs and lacks is its failure"
)]

mod server;
mod watches;

use std::collections::HashMap;
use std::time::Duration;

use http::StatusCode;
use ipam_operator::election::Leadership;
use serde_json::{Value, json};
use server::{Call, Server};

const FINALIZER: &str = "nv-ipam.nvidia.com/pool-in-use";
const NODE_FINALIZER: &str = "nv-ipam.nvidia.com/node-in-use";
const NODES: &str = "/api/v1/nodes";
const IPPOOLS: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/ippools";
const CIDRPOOLS: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/cidrpools";
const IPAMNODES: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/ipamnodes";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/kube-system/events";

fn node(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string(), "labels": {"rack": "1"},
        "annotations": {"beat": version.to_string()}}})
}

fn pool(version: u32, spec: &Value, status: &Value) -> Value {
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "spec": spec, "status": status,
        "metadata": {"name": "blue", "namespace": "kube-system", "uid": "u", "generation": 1, "resourceVersion": version.to_string(),
            "finalizers": [FINALIZER]}})
}

fn spec() -> Value {
    json!({"subnet": "192.168.0.0/16", "perNodeBlockSize": 4, "gateway": "192.168.0.1"})
}

/// Nodes, each with an IPAMNode without blocks, and pools.
fn objects(nodes: &[&str], pools: Vec<Value>) -> HashMap<&'static str, Vec<Value>> {
    let ipam_nodes = nodes.iter().map(|name| written(name, 40)).collect();
    let nodes = nodes.iter().map(|name| node(name, 1)).collect();
    HashMap::from([(NODES, nodes), (IPPOOLS, pools), (CIDRPOOLS, vec![]), (IPAMNODES, ipam_nodes)])
}

fn written(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "uid": "u", "generation": 1, "resourceVersion": version.to_string()}})
}

/// A server whose pool has been written for `n1`.
async fn settled() -> Server {
    settled_with_entry().await.0
}

/// The same, and the entry of the IPAMNode.
async fn settled_with_entry() -> (Server, Value) {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), true);
    status_write(&mut server).await.answer(&written("blue", 100));
    let patch = server.call().await;
    assert_eq!(patch.name(), format!("PATCH {IPAMNODES}/n1"));
    let entry = patch.body["spec"]["pools"][0].clone();
    patch.answer(&written("n1", 101));
    (server, entry)
}

/// The IPAMNode of `n1` with this entry, and its agent's report about the entry's grant.
fn reported(version: u32, entry: &Value, used: u32, ended: bool) -> Value {
    let mut object = written("n1", version);
    object["metadata"]["finalizers"] = json!([NODE_FINALIZER]);
    object["spec"] = json!({ "pools": [entry] });
    let report = json!({"name": "blue", "poolType": "IPPool", "startIP": entry["startIP"], "endIP": entry["endIP"],
        "grant": entry["grant"], "ended": ended, "used": used, "capacity": 3});
    object["status"] = json!({"observedGeneration": 1, "pools": [report]});
    object
}

async fn status_write(server: &mut Server) -> Call {
    let call = server.call().await;
    assert_eq!(call.name(), format!("PUT {IPPOOLS}/blue/status"));
    call
}

#[tokio::test(start_paused = true)]
async fn a_status_write_carries_the_version_read_and_nothing_but_the_status() {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), true);
    let call = status_write(&mut server).await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "10");
    assert_eq!(call.body["metadata"]["uid"], "u");
    assert_eq!(call.body["kind"], "IPPool");
    assert!(call.body.get("spec").is_none());
    assert!(call.query.contains("fieldManager=nv-ipam-controller"), "{}", call.query);
    let expected = json!([{"nodeName": "n1", "startIP": "192.168.0.1", "endIP": "192.168.0.4"}]);
    assert_eq!(call.body["status"]["allocations"], expected);
    assert!(call.accept.contains("as=PartialObjectMetadata"), "the status need not come back");
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_is_there_before_the_first_block_and_goes_at_the_version_decided_upon() {
    let mut new = pool(10, &spec(), &json!({}));
    new["metadata"]["finalizers"] = json!(["others.example/keep"]);
    let mut server = Server::start(objects(&["n1"], vec![new]), true);
    let seal = server.call().await;
    assert_eq!(seal.name(), format!("PATCH {IPPOOLS}/blue"));
    assert_eq!(seal.content_type, "application/merge-patch+json");
    let finalizers = json!(["others.example/keep", FINALIZER]);
    let expected = json!({"metadata": {"uid": "u", "resourceVersion": "10", "finalizers": finalizers}});
    assert_eq!(seal.body, expected, "nothing but the finalizers");
    seal.answer(&written("blue", 90));
    let status = status_write(&mut server).await;
    assert_eq!(status.body["metadata"]["resourceVersion"], "90");
    // It is deleted before it has given anything.
    let mut going = pool(91, &spec(), &json!({}));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.tell(IPPOOLS, "MODIFIED", &going).await;
    status.refuse(StatusCode::CONFLICT, "Conflict");
    let unseal = server.call().await;
    assert_eq!(unseal.body["metadata"], json!({"uid": "u", "resourceVersion": "91", "finalizers": []}));
}

#[tokio::test(start_paused = true)]
async fn the_annotation_that_lets_go_of_blocks_is_taken_off_when_there_is_nothing_left_to_do() {
    let mut forced = pool(10, &spec(), &json!({}));
    forced["metadata"]["annotations"] = json!({"nv-ipam.nvidia.com/force-release": "n9", "other": "stays"});
    let mut server = Server::start(objects(&[], vec![forced]), true);
    let call = server.call().await;
    let annotations = json!({"nv-ipam.nvidia.com/force-release": null});
    assert_eq!(call.name(), format!("PATCH {IPPOOLS}/blue"));
    assert_eq!(call.body["metadata"]["annotations"], annotations);
}

#[tokio::test(start_paused = true)]
async fn an_ipam_node_is_created_empty_and_gets_each_block_by_a_patch_at_its_version() {
    let mut server = Server::start(objects(&[], vec![pool(10, &spec(), &json!({}))]), true);
    status_write(&mut server).await.answer(&written("blue", 90));
    server.tell(NODES, "ADDED", &node("n1", 5)).await;
    let create = server.call().await;
    assert_eq!(create.name(), format!("POST {IPAMNODES}"));
    assert_eq!(create.body["metadata"], json!({"name": "n1", "namespace": "kube-system"}));
    assert_eq!(create.body["spec"], json!({"pools": []}));
    create.answer(&written("n1", 99));
    status_write(&mut server).await.answer(&written("blue", 100));
    let patch = server.call().await;
    assert_eq!(patch.name(), format!("PATCH {IPAMNODES}/n1"));
    let metadata = json!({"resourceVersion": "99", "finalizers": [NODE_FINALIZER], "managedFields": [{}]});
    assert_eq!(patch.body["metadata"], metadata);
    let block = &patch.body["spec"]["pools"][0];
    assert_eq!((&block["startIP"], &block["endIP"]), (&json!("192.168.0.1"), &json!("192.168.0.4")));
    assert_eq!((&block["subnet"], &block["state"]), (&json!("192.168.0.0/16"), &json!("Active")));
    assert_eq!((block["grant"].as_str().unwrap().len(), &block["neverUsed"]), (16, &json!(true)));
    patch.answer(&written("n1", 101));
    server.tell(IPAMNODES, "ADDED", &written("n1", 101)).await;

    server.tell(NODES, "DELETED", &node("n1", 5)).await;
    status_write(&mut server).await.answer(&written("blue", 102));
    let patch = server.call().await;
    assert_eq!(patch.name(), format!("PATCH {IPAMNODES}/n1"));
    assert_eq!(patch.content_type, "application/merge-patch+json");
    assert_eq!(
        patch.body["metadata"],
        json!({"resourceVersion": "101", "finalizers": [NODE_FINALIZER], "managedFields": [{}]})
    );
    assert_eq!(patch.body["spec"]["pools"][0]["state"], "Revoked", "no report has the grant");
    assert!(patch.body.get("status").is_none(), "the status is the agent's");
    patch.answer(&written("n1", 103));
    let freed = status_write(&mut server).await;
    assert_eq!(freed.body["status"]["releasing"], Value::Null, "the block waits for nothing more");
    let reasons: Vec<Value> =
        server.normal_events.lock().unwrap().iter().map(|event| event["reason"].clone()).collect();
    assert_eq!(reasons, ["BlocksAssigned", "BlocksReleasing"]);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_by_one_who_slept_until_another_may_lead() {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    let nothing_given = objects(&["n1"], vec![pool(10, &spec(), &json!({}))]);
    let mut server = Server::start_with(nothing_given, Leadership::Until(end.into_std()));
    let call = status_write(&mut server).await;
    tokio::time::sleep_until(end).await;
    call.answer(&written("blue", 100));
    server.radio_silence().await;
    let end = end + Duration::from_mins(5);
    server.lead.send_replace(Leadership::Until(end.into_std()));
    assert_eq!(server.call().await.name(), format!("PATCH {IPAMNODES}/n1"), "what was refused before");
}

#[tokio::test(start_paused = true)]
async fn an_ipam_node_is_emptied_with_its_node_and_deleted_at_its_version() {
    let (mut server, entry) = settled_with_entry().await;
    server.tell(IPAMNODES, "MODIFIED", &reported(102, &entry, 0, false)).await;
    server.radio_silence().await;
    server.tell(NODES, "DELETED", &node("n1", 5)).await;
    status_write(&mut server).await.answer(&written("blue", 103));
    let told = server.call().await;
    assert_eq!(told.name(), format!("PATCH {IPAMNODES}/n1"));
    let metadata = json!({"resourceVersion": "102", "finalizers": [NODE_FINALIZER], "managedFields": [{}]});
    assert_eq!(told.body["metadata"], metadata);
    let mut releasing = entry.clone();
    releasing["state"] = json!("Releasing");
    assert_eq!(told.body["spec"], json!({ "pools": [releasing] }));
    told.answer(&written("n1", 104));
    server.radio_silence().await;
    server.tell(IPAMNODES, "MODIFIED", &reported(105, &releasing, 0, true)).await;
    let freed = status_write(&mut server).await;
    assert_eq!(freed.body["status"]["releasing"], Value::Null, "the block waits for nothing more");
    freed.answer(&written("blue", 106));
    let emptied = server.call().await;
    assert_eq!(emptied.name(), format!("PATCH {IPAMNODES}/n1"));
    assert_eq!(
        emptied.body,
        json!({"metadata": {"resourceVersion": "105", "finalizers": [], "managedFields": [{}]}, "spec": {"pools": []}})
    );
    emptied.answer(&written("n1", 107));
    let deleted = server.call().await;
    assert_eq!(deleted.name(), format!("DELETE {IPAMNODES}/n1"));
    assert_eq!(deleted.body["preconditions"], json!({"uid": "u", "resourceVersion": "107"}));
}

#[tokio::test(start_paused = true)]
async fn new_node_gets_a_block_in_one_status_write() {
    let mut server = settled().await;
    server.tell(NODES, "ADDED", &node("n2", 6)).await;
    let create = server.call().await;
    assert_eq!((create.name(), &create.body["metadata"]["name"]), (format!("POST {IPAMNODES}"), &json!("n2")));
    create.answer(&written("n2", 109));
    let call = status_write(&mut server).await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "100");
    assert_eq!(call.body["status"]["allocations"].as_array().unwrap().len(), 2);
    call.answer(&written("blue", 110));
    let patch = server.call().await;
    assert_eq!(patch.name(), format!("PATCH {IPAMNODES}/n2"));
    patch.answer(&written("n2", 111));
    server.radio_silence().await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_node_of_a_long_list_is_served() {
    let names: Vec<String> = (0..3000).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut server = Server::start(objects(&names, vec![pool(10, &spec(), &json!({}))]), true);
    let call = status_write(&mut server).await;
    assert_eq!(call.body["status"]["nodes"], json!({"served": 3000, "unserved": 0, "releasing": 0}));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_cause_no_call() {
    let mut server = settled().await;
    for version in 1000..1200 {
        server.tell(NODES, "MODIFIED", &node("n1", version)).await;
    }
    server.radio_silence().await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn conflict_means_observe_again() {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), true);
    status_write(&mut server).await.refuse(StatusCode::CONFLICT, "Conflict");
    let status = json!({"allocations": [{"nodeName": "n1", "startIP": "192.168.0.9", "endIP": "192.168.0.12"}]});
    server.tell(IPPOOLS, "MODIFIED", &pool(20, &spec(), &status)).await;
    let call = status_write(&mut server).await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "20");
    assert_eq!(call.body["status"]["allocations"], status["allocations"], "what another wrote stands");
}

#[tokio::test(start_paused = true)]
async fn a_follower_calls_nothing_until_it_leads() {
    let mut server = Server::start(objects(&["n1", "n2"], vec![pool(10, &spec(), &json!({}))]), false);
    server.tell(NODES, "MODIFIED", &node("n2", 6)).await;
    server.radio_silence().await;
    server.lead.send_replace(Leadership::Always);
    let call = status_write(&mut server).await;
    assert_eq!(call.body["status"]["allocations"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_everything_anew_before_it_decides() {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), false);
    server.radio_silence().await;
    // What the last leader wrote before it went, and the watches have not told.
    let block = json!({"name": "blue", "poolType": "IPPool", "state": "Active", "startIP": "192.168.0.9",
        "endIP": "192.168.0.12", "subnet": "192.168.0.0/16", "gateway": "192.168.0.1"});
    let mut ipam_node = written("n1", 30);
    ipam_node["spec"] = json!({"pools": [block]});
    server.hold(IPAMNODES, vec![ipam_node]);
    server.lead.send_replace(Leadership::Always);
    let call = status_write(&mut server).await;
    let expected = json!([{"nodeName": "n1", "startIP": "192.168.0.9", "endIP": "192.168.0.12"}]);
    assert_eq!(call.body["status"]["allocations"], expected);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_never_answered_is_given_up_and_made_again() {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), true);
    let _unanswered = status_write(&mut server).await;
    // It may arrive late. A new version of the pool makes it fail.
    let fence = server.call().await;
    assert_eq!(fence.name(), format!("PATCH {IPPOOLS}/blue"));
    fence.answer(&written("blue", 99));
    status_write(&mut server).await.answer(&written("blue", 100));
    assert_eq!(server.call().await.name(), format!("PATCH {IPAMNODES}/n1"));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_spec_is_said_once_in_the_status_and_once_as_an_event() {
    let invalid = pool(10, &json!({"subnet": "x", "perNodeBlockSize": 4}), &json!({}));
    let mut server = Server::start(objects(&["n1"], vec![invalid]), true);
    let call = status_write(&mut server).await;
    assert_eq!(call.body["status"]["conditions"][0]["reason"], "InvalidSpec");
    call.answer(&written("blue", 100));
    let event = server.call().await;
    assert_eq!(event.name(), format!("POST {EVENTS}"));
    assert_eq!((&event.body["reason"], &event.body["type"]), (&json!("InvalidSpec"), &json!("Warning")));
    assert_eq!(event.body["regarding"]["name"], "blue");
    assert!(event.body["note"].as_str().unwrap().contains("spec.subnet"));
    event.answer(&written("e", 101));
    server.tell(NODES, "ADDED", &node("n2", 6)).await;
    let create = server.call().await;
    assert_eq!(create.name(), format!("POST {IPAMNODES}"));
    create.answer(&written("n2", 102));
    server.radio_silence().await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_api_server_does_not_store_holds_up_nothing() {
    let invalid = pool(10, &json!({"subnet": "x", "perNodeBlockSize": 4}), &json!({}));
    let mut server = Server::start(objects(&["n1"], vec![invalid]), true);
    status_write(&mut server).await.answer(&written("blue", 100));
    let event = server.call().await;
    assert_eq!(event.name(), format!("POST {EVENTS}"));
    let begun = tokio::time::Instant::now();
    server.tell(IPPOOLS, "MODIFIED", &pool(110, &spec(), &json!({}))).await;
    let status = status_write(&mut server).await;
    assert_eq!(status.body["status"]["allocations"][0]["nodeName"], "n1");
    status.answer(&written("blue", 120));
    // Nor does the end wait for it, so that the Lease is released.
    server.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(event);
}

/// The time for which the report of `n1` below counts.
const REPORT_COUNTS: Duration = Duration::from_mins(2);

/// `n1` has neither a Node nor an IPAMNode any more. What its agent reported last keeps the only block from `n2`.
async fn missing_with_report() -> Server {
    let one_block = json!({"subnet": "192.168.0.0/24", "perNodeBlockSize": 254});
    let mut all = objects(&["n1", "n2"], vec![pool(10, &one_block, &json!({}))]);
    let mut of_n1 = written("n1", 40);
    let held = json!([{"startIP": "192.168.0.9", "endIP": "192.168.0.9"}]);
    of_n1["spec"] = json!({"pools": []});
    of_n1["status"] = json!({"observedGeneration": 1, "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.9",
        "endIP": "192.168.0.9", "used": 1, "capacity": 0, "held": held}]});
    all.insert(IPAMNODES, vec![of_n1.clone(), written("n2", 40)]);
    let mut server = Server::start(all, true);
    let patch = server.call().await;
    assert_eq!(patch.name(), format!("PATCH {IPAMNODES}/n1"));
    server.tell(IPAMNODES, "DELETED", &of_n1).await;
    server.tell(NODES, "DELETED", &node("n1", 1)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The answer, and no event, leads to the wait.
    patch.answer(&written("n1", 41));
    server
}

/// Answers all calls until a status write assigns the first block to `n2`.
async fn n2_is_served(server: &mut Server) {
    loop {
        let call = server.call_within(2 * REPORT_COUNTS).await;
        let whom = call.body["status"]["allocations"][0]["nodeName"].clone();
        call.answer(&written("blue", 100));
        if whom == "n2" {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_grace_needs_no_event() {
    let mut server = missing_with_report().await;
    let begun = tokio::time::Instant::now();
    n2_is_served(&mut server).await;
    assert!(begun.elapsed() >= REPORT_COUNTS, "{:?}", begun.elapsed());
}

/// The next two calls, in the order of their names: Controllers reconcile side by side.
async fn two_calls(server: &mut Server) -> (Call, Call) {
    let (one, other) = (server.call().await, server.call().await);
    if one.name() <= other.name() { (one, other) } else { (other, one) }
}

#[tokio::test(start_paused = true)]
async fn an_ipam_node_of_which_no_watch_has_told_is_deleted_once_one_does() {
    let mut server = Server::start(objects(&[], vec![pool(10, &spec(), &json!({}))]), true);
    status_write(&mut server).await.answer(&written("blue", 90));
    server.tell(NODES, "ADDED", &node("n1", 5)).await;
    let create = server.call().await;
    assert_eq!(create.name(), format!("POST {IPAMNODES}"));
    create.answer(&written("n1", 99));
    let assigns = status_write(&mut server).await;
    server.tell(NODES, "DELETED", &node("n1", 5)).await;
    assigns.refuse(StatusCode::CONFLICT, "Conflict");
    // The status is right. A new version makes sure that it stays so.
    server.call().await.answer(&written("blue", 100));
    server.radio_silence().await;
    server.tell(IPAMNODES, "ADDED", &written("n1", 99)).await;
    assert_eq!(server.call().await.name(), format!("DELETE {IPAMNODES}/n1"));
}

#[tokio::test(start_paused = true)]
async fn only_a_bounded_number_of_ipam_nodes_is_written_at_once() {
    let names: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut server = Server::start(objects(&names, vec![pool(10, &spec(), &json!({}))]), true);
    status_write(&mut server).await.answer(&written("blue", 90));
    let mut writes = Vec::new();
    for _ in 0..48 {
        writes.push(server.call().await);
    }
    assert!(writes.iter().all(|call| call.name().starts_with(&format!("PATCH {IPAMNODES}/n"))));
    assert!(tokio::time::timeout(Duration::from_secs(5), server.call()).await.is_err(), "one more at one time");
    writes.swap_remove(0).refuse(StatusCode::CONFLICT, "Conflict");
    assert!(server.call().await.name().starts_with(&format!("PATCH {IPAMNODES}/n")));
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_pool_stops_neither_the_watch_nor_the_other_pools() {
    let mut poisoned = pool(10, &json!({"subnet": ["not", "a", "text"]}), &json!(7));
    poisoned["metadata"]["name"] = json!("red");
    let mut server = Server::start(objects(&["n1"], vec![poisoned, pool(11, &spec(), &json!({}))]), true);
    let (first, second) = two_calls(&mut server).await;
    assert_eq!(first.name(), format!("PUT {IPPOOLS}/blue/status"));
    assert_eq!(second.name(), format!("PUT {IPPOOLS}/red/status"));
    let ready = &second.body["status"]["conditions"][0];
    assert_eq!((&ready["reason"], &ready["status"]), (&json!("InvalidSpec"), &json!("False")));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_before_its_first_lists_ends() {
    let mut all = objects(&["n1"], vec![]);
    all.remove(CIDRPOOLS);
    let mut server = Server::start(all, true);
    let list = server.call().await;
    assert_eq!(list.name(), format!("GET {CIDRPOOLS}"));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_finished_before_the_end() {
    let mut server = Server::start(objects(&["n1"], vec![pool(10, &spec(), &json!({}))]), true);
    let call = status_write(&mut server).await;
    let stopping = tokio::spawn(server.stop());
    tokio::task::yield_now().await;
    assert!(!stopping.is_finished());
    call.answer(&written("blue", 100));
    stopping.await.unwrap();
}
