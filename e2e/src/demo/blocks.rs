//! Pools and the blocks that nodes get of them.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::scene::{POOLS, SOON, Scene};
use crate::binaries;
use crate::eventually::eventually_blocking;

/// The pools of the story: an IPv4 network shared by blocks, and an IPv6 network cut into prefixes.
pub(super) const FLAT: (&str, &str, &str) = ("ippool", "pool1", "ippool-ipv4.yaml");
pub(super) const ROUTED: (&str, &str, &str) = ("cidrpool", "pool1", "cidrpool-ipv6.yaml");

impl Scene {
    /// Applies the example pools; the operator answers with a block for each node.
    pub(super) fn give_blocks(&mut self) -> Result<()> {
        self.story.step(
            "Pools: kubectl apply",
            "every example manifest is valid, and each worker node gets a block of each pool",
        )?;
        let folder = binaries::workspace().join("crds/examples");
        let mut examples: Vec<_> = fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).collect();
        examples.sort();
        for example in &examples {
            self.plane.kubectl().run(&[
                "apply",
                "--validate=strict",
                "--dry-run=server",
                "-f",
                &example.display().to_string(),
            ])?;
        }
        self.story.line(&format!("{} example manifests pass strict validation on the server.", examples.len()))?;
        for (_, _, file) in [FLAT, ROUTED] {
            let path = folder.join(file);
            let said = self.plane.kubectl().run(&["apply", "--validate=strict", "-f", &path.display().to_string()])?;
            self.story.shown(&format!("kubectl apply --validate=strict -f crds/examples/{file}"), &said)?;
        }
        for (kind, name, _) in [FLAT, ROUTED] {
            self.await_blocks(kind, name)?;
        }
        self.show(&["get", "ippools,cidrpools", "-n", POOLS])?;
        self.show_allocations()
    }

    fn await_blocks(&self, kind: &str, name: &str) -> Result<()> {
        let nodes = self.nodes.len();
        eventually_blocking(&format!("{kind}/{name} has a block for each node"), SOON, || {
            let count = self.object(kind, name)?["status"]["allocations"].as_array().map_or(0, Vec::len);
            ensure!(count == nodes, "{count} of {nodes} nodes have one");
            Ok(())
        })
    }

    fn show_allocations(&mut self) -> Result<()> {
        let words = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let mut rows = vec![["POOL", "NODE", "BLOCK", "GATEWAY"].map(str::to_owned).to_vec()];
        let flat = self.object(FLAT.0, FLAT.1)?;
        for entry in flat["status"]["allocations"].as_array().into_iter().flatten() {
            let block = format!("{} - {}", words(&entry["startIP"]), words(&entry["endIP"]));
            rows.push(vec![
                format!("{}/{}", FLAT.0, FLAT.1),
                words(&entry["nodeName"]),
                block,
                words(&flat["spec"]["gateway"]),
            ]);
        }
        let routed = self.object(ROUTED.0, ROUTED.1)?;
        for entry in routed["status"]["allocations"].as_array().into_iter().flatten() {
            let gateway = words(&entry["gateway"]);
            rows.push(vec![
                format!("{}/{}", ROUTED.0, ROUTED.1),
                words(&entry["nodeName"]),
                words(&entry["prefix"]),
                gateway,
            ]);
        }
        self.story.line("")?;
        self.story.table(&rows)
    }

    /// Addresses that a node's agent reports as held, over all pools.
    pub(super) fn used(&self, node: &str) -> Result<i64> {
        let object = self.object("ipamnode", node)?;
        let pools = object["status"]["pools"].as_array().context("no report yet")?;
        Ok(pools.iter().filter_map(|pool| pool["used"].as_i64()).sum())
    }

    /// Waits for an agent's report.
    pub(super) fn await_used(&self, node: &str, wanted: i64) -> Result<()> {
        eventually_blocking(&format!("{node} reports {wanted} addresses in use"), SOON, || {
            let used = self.used(node)?;
            ensure!(used == wanted, "it reports {used}");
            Ok(())
        })
    }

    /// Waits until the operator has added up what the agents report: one address of each pool for each pod.
    pub(super) fn await_totals(&self) -> Result<()> {
        for (kind, name, _) in [FLAT, ROUTED] {
            eventually_blocking(&format!("{kind}/{name} tells how many addresses are in use"), SOON, || {
                let used = self.object(kind, name)?["status"]["addresses"]["used"].as_i64().context("no count yet")?;
                ensure!(usize::try_from(used) == Ok(self.placed.len()), "{used}, with {} pods", self.placed.len());
                Ok(())
            })?;
        }
        Ok(())
    }
}
