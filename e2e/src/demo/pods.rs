//! Pods: their addresses, who reaches whom, and how an address goes back.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::network::{address, asking_for, flat, routed};
use super::scene::{POOLS, SOON, Scene};
use crate::cluster::{self, Agent};
use crate::eventually::eventually_blocking;
use crate::netns::{CniError, Pod};

const NAMESPACE: &str = "default";
/// First packets wait for neighbour discovery.
const ANSWERS: Duration = Duration::from_secs(10);

/// A pod that runs, with its addresses on the two networks.
pub(super) struct Placed {
    pod: Pod,
    node: usize,
    flat: (IpAddr, Value),
    routed: (IpAddr, Value),
}

impl Scene {
    /// Two pods on the first node, one on each other; both networks for all.
    pub(super) fn start_pods(&mut self) -> Result<()> {
        self.story.step(
            "Pods: a bridge plugin asks our plugin for addresses",
            "a pod's interfaces carry addresses of its node's blocks, with gateway and routes",
        )?;
        self.prepare_fabric()?;
        for (name, node) in [("web-1", 0), ("web-2", 0), ("web-3", 1), ("web-4", 2)] {
            let pod = cluster::run_pod(&self.plane, &self.nodes[node], NAMESPACE, name)?;
            let (one, two) = (pod.add("net1", &flat())?, pod.add("net2", &routed())?);
            for (interface, result) in [("net1", &one), ("net2", &two)] {
                let given = result["ips"][0]["address"].as_str().unwrap_or_default();
                let seen = pod.addresses(interface)?;
                ensure!(
                    seen == [given],
                    "{name} {interface}: the plugin answered {given}, `ip address` shows {seen:?}"
                );
            }
            self.placed.push(Placed { pod, node, flat: (address(&one)?, one), routed: (address(&two)?, two) });
        }
        let mut rows = vec![["POD", "NODE", "NET1 (flat)", "NET2 (routed)"].map(str::to_owned).to_vec()];
        for placed in &self.placed {
            let node = self.nodes[placed.node].name().to_owned();
            let shown = |result: &Value| result["ips"][0]["address"].as_str().unwrap_or_default().to_owned();
            rows.push(vec![placed.pod.name().to_owned(), node, shown(&placed.flat.1), shown(&placed.routed.1)]);
        }
        self.story.table(&rows)?;
        let first = self.placed[0].pod.clone();
        let seen = self.nodes[0].entrance().run(&["ip", "-n", first.name(), "-brief", "address"])?;
        self.story.shown("ip -n web-1 -brief address     # on node-1", &seen)?;
        let routes = [first.routes(false)?, first.routes(true)?].concat().join("\n");
        self.story.shown("ip -n web-1 route; ip -n web-1 -6 route     # on node-1", &routes)
    }

    /// Every pod reaches every other on both networks, and the flat network's gateway.
    pub(super) fn ping_everywhere(&mut self) -> Result<()> {
        self.story.step(
            "Pings across nodes",
            "every pod reaches every other, on the flat and on the routed network, and its gateway",
        )?;
        let mut count = 0;
        for from in &self.placed {
            for to in self.placed.iter().filter(|to| to.pod.name() != from.pod.name()) {
                from.pod.ping(to.flat.0, ANSWERS)?;
                from.pod.ping(to.routed.0, ANSWERS)?;
                count += 2;
            }
            let gateway = from.flat.1["ips"][0]["gateway"].as_str().context("no gateway in the CNI result")?;
            from.pod.ping(gateway.parse()?, ANSWERS)?;
        }
        let nodes = self.nodes.len();
        self.story.line(&format!(
            "{count} pings between pods on {nodes} nodes and {} to the gateway: all answered.",
            self.placed.len()
        ))
    }

    /// A held address is refused to others; after the pod's end it can be had again.
    pub(super) fn give_back(&mut self) -> Result<()> {
        self.story.step(
            "A pod goes, its address is free again",
            "a held address is given to nobody else, and a released one is free at once",
        )?;
        let gone = self.placed.remove(0);
        let node = self.nodes[gone.node].name().to_owned();
        let used = i64::try_from(self.placed.iter().filter(|placed| placed.node == gone.node).count())? * 2;
        self.await_used(&node, used + 2)?;
        self.story.line(&format!("{node} reports {} addresses in use.", used + 2))?;
        let heir = cluster::run_pod(&self.plane, &self.nodes[gone.node], NAMESPACE, "heir")?;
        let wish = asking_for(flat(), gone.flat.0);
        let refused = heir.add("net1", &wish);
        let Err(error @ CniError::Refused { .. }) = refused else {
            bail!("{} is held, the answer to a second request for it should be a refusal: {refused:?}", gone.flat.0);
        };
        self.story.line(&format!("heir asks for {}: {error}", gone.flat.0))?;
        // After a failed ADD a runtime calls DEL: the bridge plugin leaves its cable behind.
        heir.del("net1", &wish)?;
        gone.pod.check("net1", &flat(), &gone.flat.1)?;
        for (interface, network) in [("net2", routed()), ("net1", flat())] {
            gone.pod.del(interface, &network)?;
            gone.pod.del(interface, &network).context("DEL of what is gone must succeed")?;
        }
        cluster::forget_pod(&self.plane, NAMESPACE, gone.pod.name())?;
        self.story.line(&format!(
            "{} is deleted: CNI DEL on both interfaces, and once more, which changes nothing.",
            gone.pod.name()
        ))?;
        gone.pod.delete()?;
        self.await_used(&node, used)?;
        self.story.line(&format!("{node} reports {used}."))?;
        let result = heir.add("net1", &wish)?;
        ensure!(address(&result)? == gone.flat.0, "asked for {}, got {result}", gone.flat.0);
        self.story.line(&format!("heir asks again and gets {}.", gone.flat.0))?;
        let second = heir.add("net2", &routed())?;
        let placed =
            Placed { pod: heir, node: gone.node, flat: (gone.flat.0, result), routed: (address(&second)?, second) };
        self.placed.push(placed);
        Ok(())
    }

    /// No API call stands in the way of an ADD; the agent survives kill -9 without the API server.
    pub(super) fn lose_the_api_server(&mut self) -> Result<()> {
        self.story.step(
            "The API server goes away, then the agent is killed",
            "ADD and DEL need no API server, not even after kill -9 of the agent, and no address is given twice",
        )?;
        self.plane.kill_apiserver()?;
        let pod = self.nodes[1].pod(NAMESPACE, "night", "uid-night")?;
        let given = address(&pod.add("net1", &flat())?)?;
        self.story.line(&format!("API server killed. A new pod on {} still gets {given}.", self.nodes[1].name()))?;
        self.agents[1].process().kill()?;
        ensure!(pod.cni("STATUS", "net1", &flat()).is_err(), "CNI STATUS is fine without an agent");
        self.agents[1] = Agent::launch(&self.plane, &self.nodes[1], POOLS, &[])?;
        eventually_blocking("CNI STATUS after the restart", SOON, || pod.cni("STATUS", "net1", &flat()))?;
        let other = pod.add("net9", &flat())?;
        let taken: Vec<IpAddr> = self.placed.iter().map(|placed| placed.flat.0).chain([given]).collect();
        let fresh = address(&other)?;
        ensure!(!taken.contains(&fresh), "{fresh} was given twice");
        self.story
            .line(&format!("kill -9 of the agent, restart: the next ADD gets {fresh}; what was held stays held."))?;
        for interface in ["net9", "net1"] {
            pod.del(interface, &flat())?;
        }
        pod.delete()?;
        self.plane.start_apiserver()?;
        self.agents[1].await_ready(&self.nodes[1])?;
        self.await_used(self.nodes[1].name(), 2)?;
        self.story.line("API server back: DEL has been done meanwhile, and the node's report is right again.")
    }
}
