//! What tests play on: the shared control plane with our CRDs, a namespace with an operator, and two nodes with agents.

use std::sync::OnceLock;

use ipam_e2e::ControlPlane;
use ipam_e2e::cluster::{Operator, install_crds};
use serde_json::{Value, json};

use crate::api::Api;

/// Label that tells the nodes of one test from those of others; its value is the test's namespace.
pub(crate) const GROUP: &str = "e2e.nv-ipam.invalid/group";

/// The shared control plane, with the CRDs of the repository.
pub(crate) fn plane() -> &'static ControlPlane {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let plane = ControlPlane::shared().unwrap();
    READY.get_or_init(|| install_crds(plane).map_err(|error| format!("{error:#}"))).as_ref().unwrap();
    plane
}

/// A namespace with an operator, and nodes that only its pools select.
pub(crate) struct Stage {
    pub(crate) operator: Operator,
    pub(crate) api: Api,
    pub(crate) namespace: String,
    pub(crate) plane: &'static ControlPlane,
}

impl Stage {
    pub(crate) fn set(prefix: &str) -> Self {
        let plane = plane();
        let namespace = plane.namespace(prefix).unwrap();
        let operator = Operator::start(plane, &namespace, &[]).unwrap();
        Self { operator, api: Api::new(plane, &namespace), namespace, plane }
    }

    /// A spec that selects this stage's nodes.
    pub(crate) fn for_us(&self, spec: Value) -> Value {
        selecting(spec, &self.namespace)
    }

    /// The full name of a node of this stage.
    pub(crate) fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.namespace)
    }

    /// Registers a node that this stage's pools select.
    pub(crate) fn join(&self, short: &str) -> String {
        let name = self.name(short);
        self.api.create_node(&name, &json!({GROUP: self.namespace}));
        name
    }

    /// Ends the operator as a power cut would, and starts another.
    pub(crate) fn crash_operator(&mut self) {
        self.operator.process().kill().unwrap();
        self.operator = Operator::start(self.plane, &self.namespace, &[]).unwrap();
    }
}

/// A spec that selects the nodes whose group is `group`.
pub(crate) fn selecting(mut spec: Value, group: &str) -> Value {
    let expression = json!({"key": GROUP, "operator": "In", "values": [group]});
    spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    spec
}
