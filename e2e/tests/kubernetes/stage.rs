//! The one cluster of this binary. A test has it for itself.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use ipam_e2e::chart;
use ipam_e2e::kubernetes::images::{self, REPOSITORY};
use ipam_e2e::kubernetes::{IDENTITY, Kubernetes};
use serde_json::{Value, json};

/// How long anything in the cluster may take to come about on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(2);
/// The namespace of the release and the pools.
pub(crate) const NAMESPACE: &str = "kube-system";

/// The cluster, with two nodes and our image. No other test uses it until the guard is dropped.
pub(crate) fn stage() -> MutexGuard<'static, Kubernetes> {
    static STAGE: OnceLock<Result<Mutex<Kubernetes>, String>> = OnceLock::new();
    let start = || -> anyhow::Result<Mutex<Kubernetes>> {
        let mut cluster = Kubernetes::start(2)?;
        cluster.import(&images::own(cluster.directory())?)?;
        Ok(Mutex::new(cluster))
    };
    let stage = STAGE.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    stage.as_ref().unwrap().lock().unwrap_or_else(|failed| {
        let mut cluster = failed.into_inner();
        clear(&mut cluster);
        cluster
    })
}

/// Takes away what a test that failed has left.
fn clear(cluster: &mut Kubernetes) {
    for node in cluster.nodes_mut() {
        if node.kubelet().ensure_running().is_err() {
            node.reboot("").unwrap();
        }
    }
    cluster.await_ready().unwrap();
    let _ = cluster.helm(&["uninstall", "nv-ipam", "--namespace", NAMESPACE, "--wait", "--timeout=3m"]);
    let words = ["delete", "deployments,pods,net-attach-def", "--all", "-n", "default", "--force", "--timeout=2m"];
    cluster.kubectl().run(&words).unwrap();
    let words = ["delete", "crd", "-l", "app.kubernetes.io/name=nv-ipam", "--timeout=2m"];
    cluster.kubectl().run(&words).unwrap();
    let erase = "rm -rf /var/lib/cni/nv-ipam";
    cluster.nodes().iter().for_each(|node| drop(node.entrance().script(erase).unwrap()));
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

/// Values by which the agents read the ID of the boot and the UUID of the machine where the nodes of this cluster have theirs.
pub(crate) fn with_identity() -> String {
    let volume = format!("agent.extraVolumes[0].name=identity,agent.extraVolumes[0].hostPath.path={IDENTITY}");
    let mount = "agent.extraVolumeMounts[0].name=identity,agent.extraVolumeMounts[0].mountPath=/identity";
    format!("{volume},{mount},agent.bootIdFile=/identity/boot-id,agent.systemUuidFile=/identity/system-uuid")
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

/// Uninstalls the chart. Pools and the records on the nodes stay.
pub(crate) fn uninstall(cluster: &Kubernetes) {
    cluster.helm(&["uninstall", "nv-ipam", "--namespace", NAMESPACE, "--wait", "--timeout=3m"]).unwrap();
}
