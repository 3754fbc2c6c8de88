//! The manifests in `deploy/network-operator`, rendered as NVIDIA's network-operator renders the folder of a component.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{binaries, child};

/// The folder in the repository. The network-operator has it as `/manifests/state-nv-ipam-cni`.
pub const FOLDER: &str = "deploy/network-operator/state-nv-ipam-cni";
/// Renders all files of a folder with data: the program is Go's own template package with the functions that the files use.
const PROGRAM: &str = include_str!("network_operator/render.go");

/// What a NicClusterPolicy sets, and where.
#[derive(Clone, Default, Debug)]
pub struct Policy {
    /// `nvIpam.enableWebhook`.
    pub webhook: bool,
    /// Whether the cluster is an OpenShift.
    pub openshift: bool,
    /// `nvIpam.imagePullSecrets`.
    pub pull_secrets: Vec<String>,
    /// `nodeAffinity`.
    pub node_affinity: Value,
    /// `nvIpam.containerResources`, by the name of the container.
    pub resources: Value,
}

impl Policy {
    /// With a value for each field but the webhook.
    pub fn full() -> Self {
        let values = json!({"cpu": "20m", "memory": "64Mi"});
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]});
        Self {
            webhook: false,
            openshift: false,
            pull_secrets: vec!["registry".to_owned()],
            node_affinity: json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}),
            resources: json!({
                "nv-ipam-node": {"Requests": values, "Limits": values}, "nv-ipam-controller": {"Requests": values, "Limits": null},
            }),
        }
    }
}

/// The manifests for a namespace and the image `REPOSITORY/NAME:VERSION`.
///
/// # Errors
/// If Go is missing, or a template does not render.
pub fn render(namespace: &str, repository: &str, name: &str, version: &str, policy: &Policy) -> Result<String> {
    let data = json!({
        "CrSpec": {
            "Repository": repository, "Image": name, "Version": version, "EnableWebhook": policy.webhook,
            "ImagePullSecrets": policy.pull_secrets,
        },
        "RuntimeSpec": {
            "Namespace": namespace, "IsOpenshift": policy.openshift, "CniBinDirectory": "/opt/cni/bin", "ContainerResources": policy.resources,
        },
        "NodeAffinity": policy.node_affinity,
    });
    let folder = tempfile::tempdir().context("cannot create a folder")?;
    let program = folder.path().join("render.go");
    std::fs::write(&program, PROGRAM).context("cannot write the program")?;
    let mut command = Command::new("go");
    command.arg("run").arg(&program).arg(binaries::workspace().join(FOLDER)).arg(data.to_string());
    let output = child::output(&mut command).context("cannot run go")?;
    ensure!(output.status.success(), "go run: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("the manifests are not UTF-8")
}
