//! What the pods of the chart may do, and what they need.

use std::path::PathBuf;

use ipam_e2e::control_plane::client;
use ipam_e2e::kubernetes::Kubernetes;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, install, items, stage};

/// A kubeconfig with the token that the kubelet of a node could mount into the agent there.
fn as_agent_of(cluster: &Kubernetes, node: &str) -> PathBuf {
    let agents = items(&cluster.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent"]).unwrap());
    let own = agents.iter().find(|agent| agent["spec"]["nodeName"] == node).unwrap();
    let name = format!("--bound-object-name={}", own["metadata"]["name"].as_str().unwrap());
    let account = own["spec"]["serviceAccountName"].as_str().unwrap();
    let words = ["create", "token", account, "-n", NAMESPACE, "--bound-object-kind=Pod", &name];
    let token = cluster.kubectl().run(&words).unwrap();
    // The administrator's, with another user.
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let path = cluster.directory().join(format!("agent-of-{node}.kubeconfig"));
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Writes a field of an IPAMNode's status.
async fn write_status(client: &kube::Client, node: &str) -> kube::Result<String> {
    let path = format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{NAMESPACE}/ipamnodes/{node}/status");
    let body = json!({"status": {"agentVersion": "0.0.0-test"}}).to_string().into_bytes();
    let request = http::Request::patch(path).header("Content-Type", "application/merge-patch+json").body(body).unwrap();
    client.request_text(request).await
}

#[test]
fn an_agent_writes_the_ipamnode_of_its_own_node_alone() {
    let cluster = stage();
    install(&cluster, &[]);
    let kubeconfig = as_agent_of(&cluster, "node-1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = client(&kubeconfig).await.unwrap();
        write_status(&client, "node-1").await.unwrap();
        let error = write_status(&client, "node-2").await.unwrap_err().to_string();
        assert!(error.contains("ValidatingAdmissionPolicy"), "{error}");
    });
    let kubectl = cluster.kubectl().with(kubeconfig);
    let secret = "nv-ipam-webhook-server-cert";
    let refused: [&[&str]; 4] =
        [&["get", "secrets"], &["get", "secret", secret], &["delete", "ippools", "--all"], &["get", "nodes"]];
    for words in refused {
        let error = kubectl.run(&[words, &["-n", NAMESPACE]].concat()).unwrap_err().to_string();
        assert!(error.contains("forbidden"), "{words:?}: {error}");
    }
}

#[test]
fn the_operator_runs_with_any_user_under_the_restricted_standard() {
    let cluster = stage();
    let values =
        ["operator.podSecurityContext.runAsUser=1000660000", "operator.podSecurityContext.runAsGroup=1000660000"];
    install(&cluster, &values);
    let label = "pod-security.kubernetes.io/enforce=restricted";
    let words = ["label", "namespace", NAMESPACE, label, "--overwrite", "--dry-run=server"];
    let output = cluster.kubectl().output(&words, "").unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // The API server names the pods that it would refuse now.
    assert!(said.contains("nv-ipam-node-"), "the agent needs more than that: {said}");
    assert!(!said.contains("nv-ipam-controller"), "{said}");
    let pods = items(&cluster.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator"]).unwrap());
    // Pods of the earlier values may still end.
    let stays: Vec<&Value> = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
    let is_that_user = |pod: &&Value| pod["spec"]["securityContext"]["runAsUser"] == 1_000_660_000;
    assert!(!stays.is_empty() && stays.iter().all(is_that_user), "{stays:?}");
}
