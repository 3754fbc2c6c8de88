//! The webhook of a release on this machine: a port, a mount for its certificates, and the way from nothing to the first refusal.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::Release;
use super::mounts::SecretMount;
use crate::cluster::Operator;
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::ports::Port;

/// Ample for a loaded machine: a certificate is issued, mounted and trusted within seconds on an idle one.
const SERVES: Duration = Duration::from_mins(2);

/// Where one operator serves its webhook, and what is mounted for it.
pub struct Webhook {
    port: Port,
    mount: SecretMount,
}

impl Webhook {
    /// A free port and an empty mount.
    ///
    /// # Errors
    /// When there is no free port, or the folder cannot be made.
    pub fn new(plane: &ControlPlane) -> Result<Self> {
        let port = Port::reserve()?;
        // Not named by the port, which an earlier one may have had.
        let folder = tempfile::Builder::new().prefix("certificates.").tempdir_in(plane.directory())?;
        let mount = SecretMount::new(folder.keep())?;
        Ok(Self { port, mount })
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `--set` for the chart: nothing here translates the Service's port to the process's.
    pub fn value(&self) -> String {
        format!("webhook.servicePort={}", self.port())
    }

    /// What is mounted.
    pub fn mount(&mut self) -> &mut SecretMount {
        &mut self.mount
    }

    /// The folder in the place of the Secret's mount.
    pub fn certificates(&self) -> String {
        self.mount.folder().display().to_string()
    }
}

/// A pool that no node has a block of, so that it is in nobody's way.
fn pool(release: &Release<'_>, name: &str, subnet: &str) -> String {
    let nobody = json!([{"matchExpressions": [{"key": "nobody", "operator": "Exists"}]}]);
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool",
        "metadata": {"name": name, "namespace": release.namespace()},
        "spec": {"subnet": subnet, "perNodeBlockSize": 8, "nodeSelector": {"nodeSelectorTerms": nobody}},
    })
    .to_string()
}

/// Waits until a good pool is taken, and one that overlaps it is refused by the webhook itself: no rule of the CRD sees two
/// pools. Nobody is restarted on the way. Answers the refusal in kubectl's words.
///
/// # Errors
/// When that does not come about, or the operator ends.
pub fn first_refusal(release: &Release<'_>, operator: &mut Operator) -> Result<String> {
    let kubectl = release.plane().kubectl();
    let good = pool(release, "first", "10.90.0.0/24");
    let what = format!("a pool is taken through the webhook of {}", release.namespace());
    operator.process().ready(&what, SERVES, || kubectl.apply(&good))?;
    let overlapping = pool(release, "second", "10.90.0.128/25");
    let words = ["create", "--dry-run=server", "-f", "-"];
    let said = eventually_blocking("a pool that overlaps is refused", SERVES, || {
        let output = kubectl.output(&words, &overlapping)?;
        if output.status.success() {
            bail!("it is taken: {}", String::from_utf8_lossy(&output.stdout));
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    })?;
    ensure!(said.contains("admission webhook") && said.contains("first"), "another refusal: {said}");
    operator.process().ensure_running()?;
    operator.await_ready()?;
    Ok(said)
}
