//! Invalid pools: the API server rejects one by the CEL rules of the CRD, and the operator reports the other in its
//! condition.

use anyhow::{Context, Result, bail, ensure};

use super::scene::{DEADLINE, NAMESPACE, Scene};
use crate::eventually::eventually_blocking;

/// A pool with four errors that the CEL rules of the CRD find.
const FOUR_ERRORS: &str = "e2e/demo/four-errors.yaml";
/// A pool with an error that CEL rules cannot find: CEL does not compare IPv6 addresses.
const INVERTED_RANGE: &str = "e2e/demo/inverted-range.yaml";
/// The name of that pool.
const INVERTED: &str = "inverted-range";

impl Scene {
    /// Applies a pool that the API server rejects, and a pool that the operator rejects.
    pub(super) fn reject_invalid_pools(&mut self) -> Result<()> {
        self.story.step(
            "Reject invalid pools",
            "the API server rejects an invalid pool with all errors it finds, and the operator reports the other errors",
        )?;
        self.reject_by_api_server()?;
        self.story.line("")?;
        self.story.line(
            "CEL rules cannot compare IPv6 addresses, so the API server accepts the next pool. The operator assigns",
        )?;
        self.story.line(
            "no block of it and reports the error. (The Helm chart adds a webhook that rejects such a pool at once.)",
        )?;
        let text = self.print_manifest(INVERTED_RANGE)?;
        let output = self.plane.kubectl().apply(&text)?;
        self.story.command(&format!("kubectl apply -f {INVERTED_RANGE}"), &output)?;
        let ready = self.await_invalid()?;
        self.kubectl(&["get", "cidrpool", INVERTED, "-n", NAMESPACE])?;
        self.story.line("The condition Ready is False, with this reason and message:")?;
        self.story.line(&format!("  {ready}"))?;
        self.plane.kubectl().run(&["delete", "cidrpool", INVERTED, "-n", NAMESPACE]).map(|_| ())
    }

    fn reject_by_api_server(&mut self) -> Result<()> {
        self.story.line("The CRD has rules that the API server checks. This pool breaks four of them:")?;
        let text = self.print_manifest(FOUR_ERRORS)?;
        let output = self.plane.kubectl().output(&["apply", "-f", "-"], &text)?;
        if output.status.success() {
            bail!("the API server accepted {FOUR_ERRORS}");
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        for field in ["gateway", "perNodeBlockSize", "exclusions", "routes"] {
            ensure!(errors.contains(field), "no error about {field} in: {errors}");
        }
        self.story.command(&format!("kubectl apply -f {FOUR_ERRORS}"), &errors)
    }

    /// Waits until the operator reports the pool as invalid. Returns reason and message of the condition Ready.
    fn await_invalid(&self) -> Result<String> {
        eventually_blocking("the operator reports the pool as invalid", DEADLINE, || {
            let pool = self.object("cidrpool", INVERTED)?;
            let has_blocks = pool["status"]["allocations"].as_array().is_some_and(|blocks| !blocks.is_empty());
            ensure!(!has_blocks, "the operator assigned a block: {pool}");
            let conditions = pool["status"]["conditions"].as_array().context("there are no conditions")?;
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            let ready = ready.context("there is no condition Ready")?;
            ensure!(ready["status"] == "False", "Ready is {}", ready["status"]);
            let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
            Ok(format!("{}: {}", text("reason"), text("message")))
        })
    }
}
