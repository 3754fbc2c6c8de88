//! The one cluster of this binary. A test has it for itself.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ipam_e2e::chart;
use ipam_e2e::kubernetes::Kubernetes;
use ipam_e2e::kubernetes::images::{self, REPOSITORY};
use serde_json::{Value, json};

/// How long anything in the cluster may take to come about on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(2);
/// The namespace of the release and the pools.
pub(crate) const NAMESPACE: &str = "kube-system";

/// The cluster, with two nodes and our image. No other test uses it until the guard is dropped.
pub(crate) fn stage() -> MutexGuard<'static, Kubernetes> {
    static STAGE: OnceLock<Result<Mutex<Kubernetes>, String>> = OnceLock::new();
    let start = || -> anyhow::Result<Mutex<Kubernetes>> {
        let cluster = Kubernetes::start(2)?;
        cluster.import(&images::own(cluster.directory())?)?;
        Ok(Mutex::new(cluster))
    };
    let stage = STAGE.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    // A test that failed leaves the cluster as it is.
    stage.as_ref().unwrap().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the chart with these values and no others, or upgrades to them, and waits until all pods are ready.
pub(crate) fn install(cluster: &Kubernetes, values: &[&str]) {
    let chart = chart::folder().display().to_string();
    let image = format!("image.repository={REPOSITORY}");
    let mut words = vec!["upgrade", "--install", "nv-ipam", &chart, "--namespace", NAMESPACE, "--wait", "--timeout=3m"];
    words.extend(["--reset-values", "--set", &image]);
    for value in values {
        words.extend(["--set", value]);
    }
    cluster.helm(&words).unwrap();
}

/// Applies objects.
pub(crate) fn apply(cluster: &Kubernetes, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    cluster.kubectl().apply(&list.to_string()).unwrap();
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

/// An IPPool of 192.168.0.0/16 with so many addresses for each node.
pub(crate) fn ip_pool(name: &str, block: u32) -> Value {
    pool("IPPool", name, &json!({"subnet": "192.168.0.0/16", "perNodeBlockSize": block, "gateway": "192.168.0.1"}))
}

/// A pool with this spec.
pub(crate) fn pool(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    })
}
