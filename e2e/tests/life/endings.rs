//! A namespace that is deleted with pools in it while pods hold addresses.

use ipam_e2e::eventually_blocking;
use serde_json::{Value, json};

use crate::api::{CIDRPOOLS, IPAMNODES, IPPOOLS, SOON, text};
use crate::stage::{Stage, ip_spec};

/// What the pool says of its deletion once that names a command.
fn way_out(stage: &Stage) -> String {
    eventually_blocking("the pool says the way out", SOON, || {
        let pool = stage.api.get(IPPOOLS, "p");
        let conditions = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready =
            conditions.iter().find(|condition| condition["type"] == "Ready").map(|ready| text(&ready["message"]));
        ready.filter(|said| said.contains("ipam-controller")).ok_or_else(|| pool["status"].to_string())
    })
    .unwrap()
}

/// Deletes the namespace with all that it has of our kinds, as the controller of namespaces does, of which none runs here. The Lease
/// stays: an operator that outlives the namespace of its pools has it elsewhere.
fn delete_namespace(stage: &Stage) {
    stage.kubectl(&["delete", "namespace", stage.namespace(), "--wait=false"], "");
    for kind in [IPPOOLS, CIDRPOOLS, IPAMNODES] {
        stage.kubectl(&["delete", kind, "--all", "--wait=false"], "");
    }
}

/// Waits until nothing of our kinds is left, with which the controller of namespaces lets the namespace go.
fn await_end(stage: &Stage) {
    stage.await_gone(IPPOOLS, "p");
    stage.await_gone(IPAMNODES, stage.name(0));
    for kind in [IPPOOLS, CIDRPOOLS, IPAMNODES] {
        assert_eq!(stage.api.list(kind), [] as [Value; 0], "{kind}");
    }
    let path = format!("/api/v1/namespaces/{}", stage.namespace());
    let json = "application/json";
    let mut namespace = stage.api.send("GET", &path, json, &Value::Null).unwrap();
    namespace["spec"]["finalizers"] = json!([]);
    stage.api.send("PUT", &format!("{path}/finalize"), json, &namespace).unwrap();
    assert_eq!(stage.api.send("GET", &path, json, &Value::Null).unwrap_err().code, 404);
}

#[test]
fn a_deleted_namespace_ends_when_its_pods_have_freed_their_addresses() {
    let stage = Stage::set("waits", 1);
    stage.pool(IPPOOLS, "p", ip_spec("10.84.1.0/27", 4));
    let pod = stage.resident(0, IPPOOLS, "p");
    delete_namespace(&stage);
    // The finalizer keeps the IPAMNode, so that the agent can report.
    stage.await_releasing(IPPOOLS, "p", &[stage.name(0)]);
    pod.check();
    pod.del();
    await_end(&stage);
}

#[test]
fn a_namespace_that_is_deleted_while_pods_hold_addresses_ends_by_the_command_that_the_pool_says() {
    let stage = Stage::set("ends", 1);
    stage.pool(IPPOOLS, "p", ip_spec("10.84.0.0/27", 4));
    let _pod = stage.resident(0, IPPOOLS, "p");
    delete_namespace(&stage);
    // Without the IPAMNode the agent can report no more, and no other can be created.
    stage.api.merge(IPAMNODES, stage.name(0), &json!({"metadata": {"finalizers": null}}));
    let said = way_out(&stage);
    for words in [stage.name(0), "namespace is being deleted", stage.namespace()] {
        assert!(said.contains(words), "{said}");
    }
    let (_, command) = said.rsplit_once("ipam-controller ").unwrap();
    let done = stage.controller(&command.split_whitespace().collect::<Vec<_>>());
    assert!(done.contains("1 object released"), "{done}");
    await_end(&stage);
}
