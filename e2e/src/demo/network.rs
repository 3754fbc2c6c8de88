//! The CNI configurations of the demo's two networks, and what the world around the nodes has to do for them.

use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::blocks::{FLAT, ROUTED};
use super::scene::Scene;
use crate::netns::{BRIDGE, PARENT};

/// One Ethernet segment over all nodes: the pool's gateway is one router for all.
pub(super) fn flat() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "flat", "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": FLAT.1, "poolType": FLAT.0},
    })
}

/// A network per node, routed between nodes: the bridge plugin makes the node the gateway of its own pods.
pub(super) fn routed() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "routed", "type": "bridge", "bridge": "br-routed", "isGateway": true, "isDefaultGateway": true,
        "ipam": {"type": "nv-ipam", "poolName": ROUTED.1, "poolType": ROUTED.0},
    })
}

/// The same network with a request for a certain address.
pub(super) fn asking_for(mut network: Value, address: IpAddr) -> Value {
    network["runtimeConfig"] = json!({"ips": [address.to_string()]});
    network
}

/// The address of a CNI result.
pub(super) fn address(result: &Value) -> Result<IpAddr> {
    let text = result["ips"][0]["address"].as_str().with_context(|| format!("no address in {result}"))?;
    let plain = text.split('/').next().unwrap_or(text);
    plain.parse().with_context(|| format!("{text} is no address"))
}

impl Scene {
    /// The part of the network's owner: a router with the flat pool's gateway address, and routes to each node's prefix.
    pub(super) fn prepare_fabric(&self) -> Result<()> {
        let flat = self.object(FLAT.0, FLAT.1)?;
        let gateway = flat["spec"]["gateway"].as_str().context("the flat pool has no gateway")?;
        let length = flat["spec"]["subnet"].as_str().and_then(|subnet| subnet.split_once('/')).context("no subnet")?.1;
        self.sandbox.entrance().run(&["ip", "address", "add", &format!("{gateway}/{length}"), "dev", "fabric"])?;
        let routed = self.object(ROUTED.0, ROUTED.1)?;
        for entry in routed["status"]["allocations"].as_array().into_iter().flatten() {
            let (owner, prefix) =
                (entry["nodeName"].as_str().unwrap_or_default(), entry["prefix"].as_str().unwrap_or_default());
            let [_, via] = self
                .nodes
                .iter()
                .find(|node| node.name() == owner)
                .context("a block of a node we have not")?
                .addresses();
            for node in self.nodes.iter().filter(|node| node.name() != owner) {
                node.entrance().run(&["ip", "-6", "route", "add", prefix, "via", via, "dev", PARENT])?;
            }
        }
        Ok(())
    }
}
