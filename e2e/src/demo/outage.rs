//! An outage: the API server stops, then an agent is killed. Pods still start and end.

use std::net::IpAddr;

use anyhow::{Result, ensure};

use super::network::{address, rdma};
use super::pods::POD_NAMESPACE;
use super::scene::{DEADLINE, NAMESPACE, Scene};
use crate::cluster::Agent;
use crate::eventually::eventually_blocking;
use crate::netns::Pod;

/// The pod that starts and ends during the outage.
const NAME: &str = "outage-pod";
/// Index of the node on which the agent is killed.
const NODE: usize = 1;

impl Scene {
    /// Stops the API server, kills an agent, and starts both again. CNI ADD and DEL succeed meanwhile.
    pub(super) fn stop_the_api_server(&mut self) -> Result<()> {
        self.story.step(
            "Stop the API server and kill an agent",
            "pods start and end without the API server, even after kill -9 of the agent, and no address is allocated twice",
        )?;
        let node = self.nodes[NODE].name().to_owned();
        self.plane.kill_apiserver()?;
        let pod = self.nodes[NODE].pod(POD_NAMESPACE, NAME, "uid-outage-pod")?;
        let first = address(&pod.add("net1", &rdma())?)?;
        self.story.line(&format!(
            "The API server is stopped. The agent on {node} still allocates addresses: {first} to a new pod, {NAME}."
        ))?;
        let second = self.kill_agent_and_allocate(&pod, first)?;
        self.story.line(&format!(
            "The agent on {node} is killed (kill -9) and started again. All allocations are in its journal on disk."
        ))?;
        self.story
            .line(&format!("It allocates {second} to a second interface of {NAME}, an address that no pod uses."))?;
        for interface in ["net9", "net1"] {
            pod.del(interface, &rdma())?;
        }
        pod.delete()?;
        self.story.line(&format!("{NAME} is deleted. CNI DEL frees its addresses, still without the API server."))?;
        self.plane.start_apiserver()?;
        self.agents[NODE].await_ready(&self.nodes[NODE])?;
        self.await_used(&node, 2)?;
        self.story.line(&format!(
            "The API server is started again. The agent on {node} reports 2 addresses in use: those of app-3."
        ))
    }

    /// Kills the agent, starts it again, and allocates a second address. It must differ from all addresses in use.
    fn kill_agent_and_allocate(&mut self, pod: &Pod, first: IpAddr) -> Result<IpAddr> {
        self.agents[NODE].process().kill()?;
        ensure!(pod.cni("STATUS", "net1", &rdma()).is_err(), "CNI STATUS must fail without an agent");
        self.agents[NODE] = Agent::launch(&self.plane, &self.nodes[NODE], NAMESPACE, &[])?;
        eventually_blocking("CNI STATUS succeeds after the restart of the agent", DEADLINE, || {
            pod.cni("STATUS", "net1", &rdma())
        })?;
        let second = address(&pod.add("net9", &rdma())?)?;
        let in_use: Vec<IpAddr> = self.pods.iter().map(|pod| pod.rdma.0).chain([first]).collect();
        ensure!(!in_use.contains(&second), "{second} is allocated twice");
        Ok(second)
    }
}
