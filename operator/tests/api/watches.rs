//! Watches that fail, and lists that show an earlier state.

use super::*;

/// Sends an error with this code on the watch of `path`. The watch goes on, unless its version has expired (410): then it lists again.
async fn break_watch(server: &mut Server, path: &str, code: u16) {
    let error = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Broken",
        "message": "the watch is broken"});
    server.tell(path, "ERROR", &error).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_watch_of_nodes_begins_a_grace_again() {
    let mut server = missing_with_report().await;
    let begun = tokio::time::Instant::now();
    let before = REPORT_COUNTS / 2;
    assert!(tokio::time::timeout(before, n2_is_served(&mut server)).await.is_err());
    // Without a list, as events may be late while a watch is broken.
    break_watch(&mut server, NODES, 500).await;
    n2_is_served(&mut server).await;
    assert!(begun.elapsed() >= before + REPORT_COUNTS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_list_of_an_earlier_state_lists_all_kinds_again() {
    let mut server = settled().await;
    server.radio_silence().await;
    // The API server is back in an earlier state, with objects that no watch has told of.
    let mut green = pool(6, &json!({"cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 24}), &json!({}));
    green["metadata"]["name"] = json!("green");
    server.hold(IPPOOLS, vec![pool(5, &spec(), &json!({}))]);
    server.hold(CIDRPOOLS, vec![green]);
    server.hold(IPAMNODES, vec![written("n1", 7)]);
    server.hold(NODES, vec![node("n1", 1), node("n2", 8)]);
    break_watch(&mut server, IPPOOLS, 410).await;
    let mut missing = Vec::from([
        format!("PUT {IPPOOLS}/blue/status at 5"),
        format!("PUT {CIDRPOOLS}/green/status at 6"),
        format!("PATCH {IPAMNODES}/n1 at 7"),
        format!("POST {IPAMNODES} at null"),
    ]);
    let mut version = 200;
    while !missing.is_empty() {
        let call = server.call().await;
        let at = call.body["metadata"]["resourceVersion"].as_str().unwrap_or("null");
        let name = format!("{} at {at}", call.name());
        if call.path.starts_with(IPAMNODES) {
            assert!(call.body["spec"]["reportRequest"].is_string(), "{name}: {}", call.body);
        }
        missing.retain(|missing| *missing != name);
        version += 1;
        let object = written(call.body["metadata"]["name"].as_str().unwrap_or("n1"), version);
        call.answer(&object);
    }
}
