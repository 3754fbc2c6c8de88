//! The pools of the demo, the blocks that the operator assigns, and the addresses that agents report.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::scene::{DEADLINE, NAMESPACE, Scene};
use crate::binaries;
use crate::eventually::eventually_blocking;

/// A pool of the demo.
pub(super) struct DemoPool {
    /// `ippool` or `cidrpool`.
    pub(super) kind: &'static str,
    /// `metadata.name`.
    pub(super) name: &'static str,
    /// The manifest, from the root of the repository.
    pub(super) file: &'static str,
    /// What the pool is, for readers.
    meaning: &'static str,
}

/// One IPv4 subnet for all nodes.
pub(super) const RDMA: DemoPool = DemoPool {
    kind: "ippool",
    name: "rdma",
    file: "e2e/demo/rdma.yaml",
    meaning: "An IPPool is one subnet for all nodes. The operator assigns a block of addresses to each node:",
};
/// An IPv6 network with one prefix per node.
pub(super) const STORAGE: DemoPool = DemoPool {
    kind: "cidrpool",
    name: "storage",
    file: "e2e/demo/storage.yaml",
    meaning: "A CIDRPool is one subnet per node. The operator assigns a prefix with its own gateway to each node:",
};

impl Scene {
    /// Applies the pools and waits until the operator has assigned a block of each to each node.
    pub(super) fn create_pools(&mut self) -> Result<()> {
        self.story.step("Create two pools", "the operator assigns a block of each pool to each worker node")?;
        for pool in [RDMA, STORAGE] {
            self.story.line(pool.meaning)?;
            self.apply_file(pool.file)?;
            self.story.line("")?;
        }
        for pool in [RDMA, STORAGE] {
            self.await_blocks(&pool)?;
        }
        self.kubectl(&["get", "ippools,cidrpools", "-n", NAMESPACE])?;
        self.story.line("CAPACITY is the number of addresses in assigned blocks, without exclusions and gateways.")?;
        self.story.line("")?;
        self.story.line("The blocks of the nodes, from status.allocations of both pools:")?;
        self.show_allocations()?;
        let examples = self.check_examples(&binaries::workspace().join("crds/examples"))?;
        self.story.line("")?;
        self.story.line(&format!(
            "All {examples} example manifests in crds/examples pass the API server's validation (kubectl apply --dry-run=server)."
        ))
    }

    /// Prints a manifest and applies it.
    fn apply_file(&mut self, file: &str) -> Result<()> {
        let text = self.print_manifest(file)?;
        let output = self.plane.kubectl().apply(&text)?;
        self.story.command(&format!("kubectl apply --validate=strict -f {file}"), &output)
    }

    /// Prints a manifest and returns it.
    pub(super) fn print_manifest(&mut self, file: &str) -> Result<String> {
        let path = binaries::workspace().join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        self.story.command(&format!("cat {file}"), &text)?;
        Ok(text)
    }

    /// Applies the manifests of a folder as a dry run. Returns their number.
    fn check_examples(&self, folder: &Path) -> Result<usize> {
        let mut examples: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
        examples.sort();
        for example in &examples {
            let file = example.display().to_string();
            self.plane.kubectl().run(&["apply", "--validate=strict", "--dry-run=server", "-f", &file])?;
        }
        Ok(examples.len())
    }

    fn await_blocks(&self, pool: &DemoPool) -> Result<()> {
        let nodes = self.nodes.len();
        eventually_blocking(&format!("{}/{} has a block for each node", pool.kind, pool.name), DEADLINE, || {
            let count = self.object(pool.kind, pool.name)?["status"]["allocations"].as_array().map_or(0, Vec::len);
            ensure!(count == nodes, "{count} of {nodes} nodes have a block");
            Ok(())
        })
    }

    fn show_allocations(&mut self) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let mut rows = vec![["POOL", "NODE", "BLOCK", "GATEWAY"].map(str::to_owned).to_vec()];
        let rdma = self.object(RDMA.kind, RDMA.name)?;
        for entry in rdma["status"]["allocations"].as_array().into_iter().flatten() {
            let block = format!("{} - {}", text(&entry["startIP"]), text(&entry["endIP"]));
            rows.push(vec![RDMA.name.to_owned(), text(&entry["nodeName"]), block, text(&rdma["spec"]["gateway"])]);
        }
        let storage = self.object(STORAGE.kind, STORAGE.name)?;
        for entry in storage["status"]["allocations"].as_array().into_iter().flatten() {
            let block = text(&entry["prefix"]);
            rows.push(vec![STORAGE.name.to_owned(), text(&entry["nodeName"]), block, text(&entry["gateway"])]);
        }
        self.story.table(&rows)
    }

    /// Number of addresses in use on a node, over all pools, as its agent reports it.
    fn used(&self, node: &str) -> Result<i64> {
        let object = self.object("ipamnode", node)?;
        let pools = object["status"]["pools"].as_array().context("the agent has not reported")?;
        Ok(pools.iter().filter_map(|pool| pool["used"].as_i64()).sum())
    }

    /// Waits until the agent of a node reports `wanted` addresses in use.
    pub(super) fn await_used(&self, node: &str, wanted: i64) -> Result<()> {
        eventually_blocking(&format!("{node} reports {wanted} addresses in use"), DEADLINE, || {
            let used = self.used(node)?;
            ensure!(used == wanted, "it reports {used}");
            Ok(())
        })
    }

    /// Waits until the status of each pool counts one address in use per pod.
    pub(super) fn await_totals(&self) -> Result<()> {
        let pods = self.pods.len();
        for DemoPool { kind, name, .. } in [RDMA, STORAGE] {
            eventually_blocking(&format!("{kind}/{name} counts {pods} addresses in use"), DEADLINE, || {
                let used = self.object(kind, name)?["status"]["addresses"]["used"].as_i64();
                let used = used.context("status.addresses.used is missing")?;
                ensure!(usize::try_from(used) == Ok(pods), "it counts {used}");
                Ok(())
            })?;
        }
        Ok(())
    }
}
