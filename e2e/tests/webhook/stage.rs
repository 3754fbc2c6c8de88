//! A namespace whose pools are reviewed.

use std::sync::OnceLock;
use std::time::Duration;

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::install_crds;
use ipam_e2e::webhook::{Authority, Mount, Replica, register};
use serde_json::{Value, json};

/// How long certificates are valid; longer than any test.
const LIFE: Duration = Duration::from_hours(1);

/// The control plane of all tests, with the CRDs of the repository.
pub(crate) fn plane() -> &'static ControlPlane {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let plane = ControlPlane::shared().unwrap();
    READY.get_or_init(|| install_crds(plane).map_err(|error| format!("{error:#}"))).as_ref().unwrap();
    plane
}

/// An operator whose webhook the API server asks about the pools of one namespace.
pub(crate) struct Stage {
    /// Ends with the stage.
    _replica: Replica,
    pub(crate) namespace: String,
}

impl Stage {
    pub(crate) fn set(prefix: &str) -> Self {
        let plane = plane();
        let namespace = plane.namespace(prefix).unwrap();
        let authority = Authority::new().unwrap();
        let mut mount = Mount::create(&plane.directory().join(format!("{namespace}.secret"))).unwrap();
        mount.exchange(&authority.issue(LIFE).unwrap()).unwrap();
        let replica = Replica::start(plane, &namespace, mount.directory(), &[]).unwrap();
        register(plane, &namespace, replica.port(), &authority.pem()).unwrap();
        Self { _replica: replica, namespace }
    }

    /// A pool's manifest.
    pub(crate) fn pool(&self, kind: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": self.namespace}})
    }

    /// `kubectl apply` of a pool: whether it succeeded, and what a person reads.
    pub(crate) fn apply(&self, pool: &Value) -> (bool, String) {
        self.kubectl(&["apply", "-f", "-"], &pool.to_string())
    }

    /// kubectl in the stage's namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let arguments = [&["--namespace", &self.namespace], arguments].concat();
        let output = plane().kubectl().output(&arguments, input).unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        // For whoever looks at a failure, or wants to see what people see.
        eprintln!("$ kubectl {}\n{said}", arguments.join(" "));
        (output.status.success(), said)
    }
}
