//! What the tests share: one audited control plane with our definitions, and a few words to say what is looked for.

use std::sync::OnceLock;
use std::time::Duration;

use ipam_e2e::chart::{self, Release};
use ipam_e2e::cluster::{await_crds, install_crds};
use ipam_e2e::{ControlPlane, assets, eventually_blocking};
use serde_json::{Value, json};

/// How long anything in the cluster may take to come about on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The four ways to have certificates.
pub(crate) const WAYS: [&str; 4] = ["cert-manager", "openshift", "self-managed", "none"];

/// A control plane that keeps an audit log, with the definitions of the repository.
pub(crate) fn plane() -> &'static ControlPlane {
    static READY: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
    let start = || -> anyhow::Result<ControlPlane> {
        let plane = ControlPlane::start_audited()?;
        install_crds(&plane)?;
        Ok(plane)
    };
    READY.get_or_init(|| start().map_err(|error| format!("{error:#}"))).as_ref().unwrap()
}

/// A release in a namespace of its own, which is its name too. The definitions are there already.
pub(crate) fn release(prefix: &str, values: &[&str]) -> Release<'static> {
    let plane = plane();
    let name = plane.namespace(prefix).unwrap();
    let values = [&["crds.install=false"], values].concat();
    Release::install(plane, &name, &name, &chart::folder(), &values).unwrap()
}

/// The service account of a component: `operator` or `agent`.
pub(crate) fn account(release: &Release<'_>, component: &str) -> String {
    let accounts = release.objects("serviceaccounts").unwrap();
    let label = "app.kubernetes.io/component";
    let found = accounts.iter().find(|account| account["metadata"]["labels"][label] == component).unwrap();
    found["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Registers a node.
pub(crate) fn node(plane: &ControlPlane, name: &str, labels: &Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    plane.kubectl().apply(&node.to_string()).unwrap();
}

/// A pool whose spec selects the nodes that carry the label `group`.
pub(crate) fn pool(kind: &str, namespace: &str, name: &str, mut spec: Value, group: &str) -> String {
    let expression = json!({"key": "group", "operator": "In", "values": [group]});
    spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

/// Waits until `look` answers true about an object of the release's namespace.
pub(crate) fn until(release: &Release<'_>, kind: &str, name: &str, what: &str, look: impl Fn(&Value) -> bool) -> Value {
    eventually_blocking(&format!("{kind}/{name} {what}"), SOON, || {
        let object = release.object(kind, name)?;
        if look(&object) { Ok(object) } else { Err(anyhow::anyhow!("{object}")) }
    })
    .unwrap()
}

/// The two definitions of cert-manager that the chart has objects of.
pub(crate) fn install_cert_manager_definitions(plane: &ControlPlane) {
    let folder = assets::cert_manager_crds().unwrap();
    for name in ["certificates", "issuers"] {
        let file = folder.join(format!("cert-manager.io_{name}.yaml")).display().to_string();
        plane.kubectl().run(&["apply", "--server-side", "-f", &file]).unwrap();
    }
    await_crds(plane).unwrap();
}
