//! Pods on both networks: their addresses, pings between them, and the reuse of an address.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::network::{address, rdma, requesting, storage};
use super::scene::{RunningPod, Scene};
use crate::cluster;
use crate::netns::{CniError, Pod};

pub(super) const POD_NAMESPACE: &str = "default";
/// Deadline of a ping. The first packets wait for neighbour discovery.
const PING_DEADLINE: Duration = Duration::from_secs(10);
/// The pods and the index of their node.
const PODS: [(&str, usize); 4] = [("app-1", 0), ("app-2", 0), ("app-3", 1), ("app-4", 2)];
/// The pod that requests a certain address.
const FIXED: &str = "fixed-address";

impl Scene {
    /// Starts two pods on the first node and one on each other node, each on both networks.
    pub(super) fn start_pods(&mut self) -> Result<()> {
        self.story.step(
            "Start pods on two networks",
            "each pod has an address of its node's block on each network, with the gateway and the routes of the pool",
        )?;
        self.prepare_fabric()?;
        self.story.line("Each pod has two interfaces: net1 on the network rdma, and net2 on the network storage.")?;
        self.story.line("The standard CNI plugin bridge creates them and calls the plugin nv-ipam for an address.")?;
        self.story.line("The CNI configurations of the two networks:")?;
        self.story.line(&format!("  {}", rdma()))?;
        self.story.line(&format!("  {}", storage()))?;
        self.story.line(
            "On the network storage the bridge plugin, not nv-ipam, adds the default route (isDefaultGateway).",
        )?;
        for (name, node) in PODS {
            let pod = cluster::run_pod(&self.plane, &self.nodes[node], POD_NAMESPACE, name)?;
            let running = attach(pod, node)?;
            self.pods.push(running);
        }
        self.show_pods()?;
        let first = self.pods[0].pod.clone();
        let name = first.name();
        let addresses = self.nodes[0].entrance().run(&["ip", "-n", name, "-brief", "address"])?;
        self.story.command(&format!("ip -n {name} -brief address     # on node-1"), &addresses)?;
        let routes = [first.routes(false)?, first.routes(true)?].concat().join("\n");
        self.story.command(&format!("ip -n {name} route; ip -n {name} -6 route     # on node-1"), &routes)
    }

    fn show_pods(&mut self) -> Result<()> {
        let mut rows = vec![["POD", "NODE", "NET1 (rdma)", "NET2 (storage)"].map(str::to_owned).to_vec()];
        for RunningPod { pod, node, rdma, storage } in &self.pods {
            let shown = |result: &Value| result["ips"][0]["address"].as_str().unwrap_or_default().to_owned();
            rows.push(vec![
                pod.name().to_owned(),
                self.nodes[*node].name().to_owned(),
                shown(&rdma.1),
                shown(&storage.1),
            ]);
        }
        self.story.table(&rows)
    }

    /// Pings all other pods from each pod on both networks, and the gateway of the rdma network.
    pub(super) fn ping_all_pods(&mut self) -> Result<()> {
        self.story.step(
            "Ping between all pods",
            "each pod reaches all other pods on both networks, and the gateway of the network rdma",
        )?;
        let mut count = 0;
        for from in &self.pods {
            for to in self.pods.iter().filter(|to| to.pod.name() != from.pod.name()) {
                from.pod.ping(to.rdma.0, PING_DEADLINE)?;
                from.pod.ping(to.storage.0, PING_DEADLINE)?;
                count += 2;
            }
            let gateway = from.rdma.1["ips"][0]["gateway"].as_str().context("no gateway in the CNI result")?;
            from.pod.ping(gateway.parse()?, PING_DEADLINE)?;
        }
        let (nodes, pods) = (self.nodes.len(), self.pods.len());
        self.story.line(&format!(
            "All {count} pings between pods on {nodes} nodes succeeded, and all {pods} pings to the gateway."
        ))
    }

    /// Requests the address of a pod for another pod, before and after the first pod ends.
    pub(super) fn reuse_an_address(&mut self) -> Result<()> {
        self.story.step(
            "Delete a pod and reuse its address",
            "an address in use is not allocated to another pod, and a freed address is available to other pods",
        )?;
        let old = self.pods.remove(0);
        let node = self.nodes[old.node].name().to_owned();
        let others = self.pods.iter().filter(|pod| pod.node == old.node).count();
        let used = i64::try_from(others)? * 2;
        self.await_used(&node, used + 2)?;
        self.story.line(&format!("The agent on {node} reports {} addresses in use: two for each pod.", used + 2))?;
        let fixed = cluster::run_pod(&self.plane, &self.nodes[old.node], POD_NAMESPACE, FIXED)?;
        self.request_address_in_use(&fixed, &old)?;
        let (rdma_address, node_index) = (old.rdma.0, old.node);
        self.end_pod(old)?;
        self.await_used(&node, used)?;
        self.story.line(&format!(
            "The agent on {node} reports {used} addresses in use. Its report takes up to 10 seconds."
        ))?;
        let result = fixed.add("net1", &requesting(rdma(), rdma_address))?;
        ensure!(address(&result)? == rdma_address, "{FIXED} requested {rdma_address}, but the result is {result}");
        self.story.line(&format!("{FIXED} requests {rdma_address} again. The agent allocates it to {FIXED}."))?;
        let second = fixed.add("net2", &storage())?;
        let storage = (address(&second)?, second);
        self.pods.push(RunningPod { pod: fixed, node: node_index, rdma: (rdma_address, result), storage });
        Ok(())
    }

    /// The agent refuses an address in use, and its pod is not affected.
    fn request_address_in_use(&mut self, fixed: &Pod, user: &RunningPod) -> Result<()> {
        let (wanted, owner) = (user.rdma.0, user.pod.name());
        let network = requesting(rdma(), wanted);
        let answer = fixed.add("net1", &network);
        let Err(error @ CniError::Refused { .. }) = answer else {
            bail!("{owner} uses {wanted}, so CNI ADD for {FIXED} must fail, but the answer is {answer:?}");
        };
        self.story.line(&format!(
            "A new pod, {FIXED}, requests {wanted}, the address of {owner}, by its CNI configuration:"
        ))?;
        self.story.line(&format!("  \"runtimeConfig\":{}", network["runtimeConfig"]))?;
        self.story.line("The agent refuses:")?;
        self.story.line(&format!("  {error}"))?;
        // A runtime calls DEL after a failed ADD: the bridge plugin leaves a veth pair.
        fixed.del("net1", &network)?;
        Ok(user.pod.check("net1", &rdma(), &user.rdma.1)?)
    }

    /// Ends a pod as a runtime does, with a repeated DEL.
    fn end_pod(&mut self, RunningPod { pod, .. }: RunningPod) -> Result<()> {
        for (interface, network) in [("net2", storage()), ("net1", rdma())] {
            pod.del(interface, &network)?;
            pod.del(interface, &network).context("a repeated CNI DEL must succeed")?;
        }
        cluster::forget_pod(&self.plane, POD_NAMESPACE, pod.name())?;
        self.story.line(&format!(
            "{} is deleted: CNI DEL frees both addresses. A second CNI DEL succeeds too and changes nothing.",
            pod.name()
        ))?;
        pod.delete()
    }
}

/// Adds a pod to both networks and compares the CNI results with the addresses of the interfaces.
fn attach(pod: Pod, node: usize) -> Result<RunningPod> {
    let (first, second) = (pod.add("net1", &rdma())?, pod.add("net2", &storage())?);
    for (interface, result) in [("net1", &first), ("net2", &second)] {
        let allocated = result["ips"][0]["address"].as_str().unwrap_or_default();
        let seen = pod.addresses(interface)?;
        let name = pod.name();
        ensure!(
            seen == [allocated],
            "{name} {interface}: the CNI result has {allocated}, but the interface has {seen:?}"
        );
    }
    Ok(RunningPod { pod, node, rdma: (address(&first)?, first), storage: (address(&second)?, second) })
}
