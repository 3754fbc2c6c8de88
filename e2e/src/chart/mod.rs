//! The chart as a user installs it: by a real helm onto the real API server, with the daemons run as its pods would.
//!
//! What a cluster does around it is done here in the open: there are no controllers that make pods of a Deployment, no kubelet
//! that mounts a Secret, no kube-proxy that leads to a Service ([`pods`], [`mounts`], [`Release::route_webhook`]).

pub mod grants;
pub mod mounts;
pub mod pods;
pub mod service_ca;
pub mod webhook;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::assets::{self, Tool};
use crate::control_plane::ControlPlane;
use crate::{binaries, child};

/// The chart's folder in the repository.
pub fn folder() -> PathBuf {
    binaries::workspace().join("charts/nv-ipam")
}

/// Runs helm without a cluster, as `lint` and `template` do; answers stdout.
///
/// # Errors
/// When it fails; the message is what it said.
pub fn helm(arguments: &[&str]) -> Result<String> {
    let home = tempfile::tempdir()?;
    run(arguments, home.path(), None)
}

/// Runs helm against a cluster; answers stdout. `home` is where it keeps its own files.
///
/// # Errors
/// When it fails; the message is what it said.
pub fn helm_on(kubeconfig: &Path, home: &Path, arguments: &[&str]) -> Result<String> {
    run(arguments, home, Some(kubeconfig))
}

/// The arguments that the chart's default values give to the container of its `Deployment` or `DaemonSet`, as `kind` says.
/// Variables of the pod are not filled in.
///
/// # Errors
/// When helm fails, or the chart has no such object.
pub fn default_arguments(kind: &str) -> Result<Vec<String>> {
    let chart = folder().display().to_string();
    let text = helm(&["template", "nv-ipam", &chart, "--namespace", "kube-system"])?;
    for document in serde_yaml::Deserializer::from_str(&text) {
        let object = Value::deserialize(document).context("helm renders no YAML")?;
        if object["kind"] == kind {
            let arguments = object["spec"]["template"]["spec"]["containers"][0]["args"].clone();
            return serde_json::from_value(arguments).context("arguments that are no strings");
        }
    }
    bail!("the chart renders no {kind}")
}

fn run(arguments: &[&str], home: &Path, kubeconfig: Option<&Path>) -> Result<String> {
    let mut command = Command::new(assets::path(Tool::Helm)?);
    // Nothing of the user's own helm plays a part, nor may a user's cluster be reached by mistake.
    command
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_DATA_HOME", home.join("data"))
        .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")))
        .args(arguments);
    let output = child::output(&mut command).context("helm")?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("helm {}: {}{}", arguments.join(" "), said(&output.stdout), said(&output.stderr));
    }
    Ok(said(&output.stdout))
}

/// An installed release. Dropping it uninstalls nothing: the control plane goes with its test.
pub struct Release<'a> {
    plane: &'a ControlPlane,
    name: String,
    namespace: String,
}

impl<'a> Release<'a> {
    /// `helm install` of a chart folder with `--set` values.
    ///
    /// # Errors
    /// When helm or the API server refuses it; the message is helm's.
    pub fn install(
        plane: &'a ControlPlane,
        name: &str,
        namespace: &str,
        chart: &Path,
        values: &[&str],
    ) -> Result<Self> {
        let release = Self { plane, name: name.to_owned(), namespace: namespace.to_owned() };
        release.apply("install", chart, values)?;
        Ok(release)
    }

    /// `helm upgrade` to a chart folder with these `--set` values and no others; answers what helm says.
    ///
    /// # Errors
    /// When helm or the API server refuses it; the message is helm's.
    pub fn upgrade(&self, chart: &Path, values: &[&str]) -> Result<String> {
        self.apply("upgrade", chart, values)
    }

    /// `helm uninstall`; answers what helm says.
    ///
    /// # Errors
    /// When helm or the API server refuses it; the message is helm's.
    pub fn uninstall(&self) -> Result<String> {
        self.helm(&["uninstall", &self.name])
    }

    fn apply(&self, verb: &str, chart: &Path, values: &[&str]) -> Result<String> {
        let chart = chart.display().to_string();
        let mut words = vec![verb, &self.name, &chart];
        for value in values {
            words.extend(["--set", value]);
        }
        self.helm(&words)
    }

    /// helm about this release's namespace.
    ///
    /// # Errors
    /// When it fails; the message is what it said.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        let words = [arguments, &["--namespace", &self.namespace]].concat();
        run(&words, &self.plane.directory().join("helm"), Some(&self.plane.kubeconfig()))
    }

    /// The control plane.
    pub fn plane(&self) -> &'a ControlPlane {
        self.plane
    }

    /// The release's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// An object of the release's namespace, or of none, as the API server has it.
    ///
    /// # Errors
    /// When it is not there.
    pub fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.plane.kubectl().run(&["get", kind, name, "-n", &self.namespace, "-o", "json"])?;
        serde_json::from_str(&text).context("kubectl answered no JSON")
    }

    /// All objects of a kind that the release has made, in all namespaces.
    ///
    /// # Errors
    /// When the kind is unknown.
    pub fn objects(&self, kind: &str) -> Result<Vec<Value>> {
        let label = format!("app.kubernetes.io/instance={}", self.name);
        let text = self.plane.kubectl().run(&["get", kind, "-A", "-l", &label, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl answered no JSON")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Does for the webhook's Service what kube-proxy does: leads to the process behind it, on a port of this machine. The
    /// release must have been installed with `webhook.servicePort` set to it, since nothing here translates ports.
    ///
    /// # Errors
    /// When the release has not one Service, or the API server refuses the change.
    pub fn route_webhook(&self) -> Result<()> {
        let [service] = &self.objects("services")?[..] else { bail!("the release has not one Service") };
        let service = service["metadata"]["name"].as_str().context("a Service without a name")?;
        let here = json!({"spec": {"type": "ExternalName", "externalName": "localhost", "clusterIP": null, "clusterIPs": null}});
        let kubectl = self.plane.kubectl();
        kubectl.run(&["patch", "service", service, "-n", &self.namespace, "-p", &here.to_string()]).map(|_| ())
    }
}
