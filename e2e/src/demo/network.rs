//! The CNI configurations of the two networks, and the routers and routes that a network admin provides.

use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::pools::{RDMA, STORAGE};
use super::scene::Scene;
use crate::netns::{BRIDGE, PARENT};

/// One Ethernet segment over all nodes. All pods use the same gateway.
pub(super) fn rdma() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": RDMA.name, "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": RDMA.name, "poolType": RDMA.kind},
    })
}

/// One subnet per node with routes between the nodes. The bridge plugin makes each node the gateway of its pods.
pub(super) fn storage() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": STORAGE.name, "type": "bridge", "bridge": "br-storage", "isGateway": true,
        "isDefaultGateway": true, "ipam": {"type": "nv-ipam", "poolName": STORAGE.name, "poolType": STORAGE.kind},
    })
}

/// The network with a request for this address.
pub(super) fn requesting(mut network: Value, address: IpAddr) -> Value {
    network["runtimeConfig"] = json!({"ips": [address.to_string()]});
    network
}

/// The address of a CNI result.
pub(super) fn address(result: &Value) -> Result<IpAddr> {
    let text =
        result["ips"][0]["address"].as_str().with_context(|| format!("no address in the CNI result {result}"))?;
    let plain = text.split('/').next().unwrap_or(text);
    plain.parse().with_context(|| format!("invalid address {text} in the CNI result"))
}

impl Scene {
    /// Adds a router with the gateway address of the rdma pool, and routes to the storage prefix of each node.
    pub(super) fn prepare_fabric(&self) -> Result<()> {
        let rdma = self.object(RDMA.kind, RDMA.name)?;
        let gateway = rdma["spec"]["gateway"].as_str().context("the rdma pool has no gateway")?;
        let subnet = rdma["spec"]["subnet"].as_str().context("the rdma pool has no subnet")?;
        let (_, length) = subnet.split_once('/').context("the subnet of the rdma pool has no prefix length")?;
        self.sandbox.entrance().run(&["ip", "address", "add", &format!("{gateway}/{length}"), "dev", "fabric"])?;
        let storage = self.object(STORAGE.kind, STORAGE.name)?;
        for entry in storage["status"]["allocations"].as_array().into_iter().flatten() {
            let owner = entry["nodeName"].as_str().unwrap_or_default();
            let prefix = entry["prefix"].as_str().unwrap_or_default();
            let node = self.nodes.iter().find(|node| node.name() == owner);
            let [_, via] =
                node.with_context(|| format!("a prefix is assigned to the unknown node {owner}"))?.addresses();
            for other in self.nodes.iter().filter(|node| node.name() != owner) {
                other.entrance().run(&["ip", "-6", "route", "add", prefix, "via", via, "dev", PARENT])?;
            }
        }
        Ok(())
    }
}
