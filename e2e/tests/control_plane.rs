//! The harness's control plane is a real one: RBAC, tokens, a store that survives the server, and a sure end.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ipam_e2e::{ControlPlane, Watched, child, eventually_blocking};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;

#[tokio::test]
async fn a_client_and_kubectl_see_the_same_objects() {
    let plane = ControlPlane::shared().unwrap();
    let namespace = plane.namespace("seen").unwrap();
    plane.kubectl().run(&["create", "configmap", "hello", "--from-literal=a=b", "-n", &namespace]).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await.unwrap(), &namespace);
    assert_eq!(maps.get("hello").await.unwrap().data.unwrap()["a"], "b");
}

#[tokio::test]
async fn a_pod_is_accepted_without_any_controller_around() {
    let plane = ControlPlane::shared().unwrap();
    let namespace = plane.namespace("pods").unwrap();
    plane.kubectl().run(&["run", "p", "--image=example.invalid/none", "-n", &namespace]).unwrap();
    let pods: Api<Pod> = Api::namespaced(plane.client().await.unwrap(), &namespace);
    assert!(pods.get("p").await.unwrap().metadata.uid.is_some());
}

#[test]
fn a_service_account_may_do_what_rbac_grants_and_nothing_else() {
    let plane = ControlPlane::shared().unwrap();
    let namespace = plane.namespace("rbac").unwrap();
    let config = plane.service_account(&namespace, "reader").unwrap();
    let try_it = |verb: &[&str]| {
        let mut command = Command::new(plane.kubectl().program());
        let output = child::output(command.args(verb).env("KUBECONFIG", &config)).unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let list = ["get", "configmaps", "-n", &namespace];
    let (allowed, said) = try_it(&list);
    assert!(!allowed && said.contains("forbidden"), "{said}");
    let account = format!("--serviceaccount={namespace}:reader");
    let grant = |arguments: &[&str]| plane.kubectl().run(&[arguments, &["-n", &namespace]].concat()).unwrap();
    grant(&["create", "role", "read", "--verb=list", "--resource=configmaps"]);
    grant(&["create", "rolebinding", "read", "--role=read", &account]);
    eventually_blocking("the grant is known", Duration::from_secs(20), || match try_it(&list) {
        (true, _) => Ok(()),
        (false, said) => Err(said),
    })
    .unwrap();
    assert!(!try_it(&["create", "configmap", "x", "-n", &namespace]).0, "only reading was granted");
}

#[test]
fn objects_outlive_the_api_server() {
    let plane = ControlPlane::start().unwrap();
    plane.kubectl().run(&["create", "namespace", "kept"]).unwrap();
    plane.kill_apiserver().unwrap();
    let error = plane.kubectl().run(&["get", "namespace", "kept", "--request-timeout=2s"]).unwrap_err().to_string();
    assert!(error.contains("refused"), "the connection is to be refused, not the object to be missing: {error}");
    plane.start_apiserver().unwrap();
    plane.kubectl().run(&["get", "namespace", "kept"]).unwrap();
}

#[test]
fn nothing_is_left_when_the_harness_is_killed() {
    let program = Command::new(env!("CARGO_BIN_EXE_control-plane"));
    let mut harness = Watched::start(program, Duration::from_mins(30)).unwrap();
    let kubeconfig = PathBuf::from(harness.line("export KUBECONFIG=").unwrap().trim());
    let directory = kubeconfig.parent().unwrap();
    assert!(directory.is_dir());
    assert!(processes_naming(directory).len() >= 2, "both servers run below {}", directory.display());
    drop(harness);
    eventually_blocking("processes and files go", Duration::from_secs(20), || {
        let left = processes_naming(directory);
        if left.is_empty() && !directory.exists() { Ok(()) } else { Err(left.join("\n")) }
    })
    .unwrap();
}

/// Command lines of running processes that mention the path.
fn processes_naming(path: &Path) -> Vec<String> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .filter(|line| line.contains(path.to_str().unwrap()))
        .collect()
}
