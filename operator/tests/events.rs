//! The events of behaviour.md §3 as they reach the API server.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test needs and lacks is its failure"
)]

#[path = "api/server.rs"]
#[expect(dead_code, reason = "no call is refused here")]
mod server;

use std::collections::HashMap;

use serde_json::{Value, json};
use server::Server;

const POOLS: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system";

/// A server with two nodes and one pool that has a block for one of them.
fn server_with(plural: &'static str, kind: &str, spec: &Value) -> Server {
    let pool = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"name": "blue", "namespace": "kube-system", "uid": "u", "generation": 1, "resourceVersion": "10"}});
    let node = |name| json!({"metadata": {"name": name, "resourceVersion": "1"}});
    let mut objects = HashMap::from([("/api/v1/nodes", vec![node("n1"), node("n2")])]);
    for list in ["ippools", "cidrpools", "ipamnodes"] {
        let pools = if list == plural { vec![pool.clone()] } else { Vec::new() };
        objects.insert(format!("{POOLS}/{list}").leak(), pools);
    }
    Server::start(objects, true)
}

/// Answers every call until the event comes; tells what the status said and the event.
async fn status_and_event(server: &mut Server) -> (Value, Value) {
    let mut status = Value::Null;
    loop {
        let call = server.call().await;
        if call.path.ends_with("/events") {
            let event = call.body.clone();
            call.answer(&json!({"metadata": {"name": "e"}}));
            return (status, event);
        }
        if call.path.ends_with("/status") {
            status = call.body["status"].clone();
        }
        call.answer(&json!({"metadata": {"name": "x", "uid": "u", "generation": 1, "resourceVersion": "100"}}));
    }
}

#[tokio::test(start_paused = true)]
async fn assigned_blocks_are_one_series_of_normal_events() {
    let spec = json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 4});
    let mut server = server_with("ippools", "IPPool", &spec);
    let (mut status_writes, mut version) = (0, 100);
    while status_writes < 2 {
        let call = server.call().await;
        version += 1;
        let is_status = call.path.ends_with("/status");
        call.answer(
            &json!({"metadata": {"name": "x", "uid": "u", "generation": 1, "resourceVersion": version.to_string()}}),
        );
        if is_status {
            status_writes += 1;
            for name in ["n3", "n4"].into_iter().filter(|_| status_writes == 1) {
                let node = json!({"metadata": {"name": name, "resourceVersion": "2"}});
                server.tell("/api/v1/nodes", "ADDED", &node).await;
            }
        }
    }
    // The event comes beside the calls.
    while server.normal_events.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let events = server.normal_events.lock().unwrap().clone();
    let note = "Blocks were assigned to several nodes. The operator's log names each.";
    assert_eq!((&events[0]["reason"], &events[0]["note"]), (&json!("BlocksAssigned"), &json!(note)));
    assert_eq!(events[0]["series"], Value::Null);
    assert_eq!(
        (&events[1]["metadata"]["name"], &events[1]["series"]["count"]),
        (&events[0]["metadata"]["name"], &json!(2))
    );
}

async fn assert_warns(plural: &'static str, kind: &str, spec: &Value, reason: &str) {
    let mut server = server_with(plural, kind, spec);
    let (status, event) = status_and_event(&mut server).await;
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!(reason)));
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!(kind), &json!("blue")));
    assert!(event["note"].as_str().unwrap().contains("n2"), "{event}");
    assert_eq!(status["allocations"].as_array().unwrap().len(), 1, "{status}");
    let exhausted = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Exhausted").unwrap();
    assert_eq!((&exhausted["status"], &exhausted["reason"]), (&json!("True"), &json!(reason)));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_range_is_a_warning_no_free_ranges() {
    let spec = json!({"subnet": "10.0.0.0/30", "perNodeBlockSize": 2});
    assert_warns("ippools", "IPPool", &spec, "NoFreeRanges").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_prefix_is_a_warning_no_free_prefixes() {
    let spec = json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 24});
    assert_warns("cidrpools", "CIDRPool", &spec, "NoFreePrefixes").await;
}
