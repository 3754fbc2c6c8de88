//! What is refused: by the API server, from the rules in the CRD; by the operator, from the whole of the rules.

use anyhow::{Context, Result, bail, ensure};

use super::scene::{POOLS, SOON, Scene};
use crate::eventually::eventually_blocking;

/// Four mistakes that the CRD's own rules can see.
const WRONG: &str = "
apiVersion: nv-ipam.nvidia.com/v1alpha1
kind: IPPool
metadata: {name: wrong, namespace: kube-system}
spec:
  subnet: 10.20.0.0/24
  perNodeBlockSize: 300
  gateway: 10.21.0.1
  exclusions: [{startIP: 10.20.0.9, endIP: 10.20.0.3}]
  routes: [{dst: 'fd00::/8'}]
";

/// CEL has no order of IPv6 addresses, so this reaches the operator.
const SUBTLE: &str = "
apiVersion: nv-ipam.nvidia.com/v1alpha1
kind: CIDRPool
metadata: {name: subtle, namespace: kube-system}
spec:
  cidr: fd77::/64
  perNodeNetworkPrefix: 120
  exclusions: [{startIP: 'fd77::9', endIP: 'fd77::3'}]
";

impl Scene {
    /// A pool that the API server refuses, and one that the operator does.
    pub(super) fn refuse(&mut self) -> Result<()> {
        self.story.step(
            "Invalid pools",
            "mistakes are refused with all reasons at once, by the CRD where it can, else by the operator",
        )?;
        let output = self.plane.kubectl().output(&["apply", "-f", "-"], WRONG)?;
        if output.status.success() {
            bail!("the API server accepted a pool with four mistakes");
        }
        let reasons = String::from_utf8_lossy(&output.stderr).into_owned();
        for field in ["gateway", "perNodeBlockSize", "exclusions", "routes"] {
            ensure!(reasons.contains(field), "no word about {field} in: {reasons}");
        }
        self.story.shown("kubectl apply -f wrong.yaml", &reasons)?;
        self.plane.kubectl().apply(SUBTLE)?;
        let message = eventually_blocking("the operator judges the pool", SOON, || {
            let pool = self.object("cidrpool", "subtle")?;
            ensure!(pool["status"]["allocations"].as_array().is_none_or(Vec::is_empty), "it was served: {pool}");
            let conditions = pool["status"]["conditions"].as_array().context("no conditions yet")?;
            let ready =
                conditions.iter().find(|condition| condition["type"] == "Ready").context("no Ready condition yet")?;
            ensure!(ready["status"] == "False", "Ready is {}", ready["status"]);
            Ok(format!(
                "{}: {}",
                ready["reason"].as_str().unwrap_or_default(),
                ready["message"].as_str().unwrap_or_default()
            ))
        })?;
        self.show(&["get", "cidrpool", "subtle", "-n", POOLS])?;
        self.story.line(&format!("condition Ready=False, {message}"))?;
        self.plane.kubectl().run(&["delete", "cidrpool", "subtle", "-n", POOLS]).map(|_| ())
    }
}
