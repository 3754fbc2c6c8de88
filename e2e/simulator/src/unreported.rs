//! Nodes of which the operator may not know all. Their IPAMNodes were deleted or restored, and their agents have not yet reported all
//! addresses in use since then.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::PoolKey;
use serde_json::Value;

use super::agent::{Held, Node};
use super::records::{pool_of_entry, reported};
use super::server::{Change, Server, text};

/// A pod with the gateway of its pool: pool, address, node and pod.
type WithGateway = (PoolKey, IpAddr, String, String);

/// These nodes, and what was decided without their reports.
#[derive(Default)]
pub(super) struct Unreported {
    /// Since when all addresses in use on the node are reported; `None` if they are not.
    nodes: BTreeMap<String, Option<Duration>>,
    /// Those of them whose IPAMNodes were only restored, and not deleted.
    restored: BTreeSet<String>,
    /// For each of these, how many leaders there had been when its report was lost.
    lost_after: BTreeMap<String, u32>,
    /// How many leaders there have been.
    leaders: u32,
    /// Pods whose address became a gateway while their node was one of these.
    with_gateway: RefCell<BTreeSet<WithGateway>>,
}

impl Unreported {
    /// All reports are those of a backup, or were deleted with the definitions.
    pub(super) fn add_all(&mut self, nodes: &[Node], is_restore: bool) {
        for node in nodes {
            let earlier = self.nodes.insert(node.name.clone(), None);
            self.lost_after.insert(node.name.clone(), self.leaders);
            if !is_restore {
                self.restored.remove(&node.name);
            } else if earlier.is_none() {
                self.restored.insert(node.name.clone());
            }
        }
    }

    /// Reads the changes since the version `since`. `decided` is the time within which an operator acts on a report. A leader that has
    /// not decided since the last change may act on earlier reports.
    pub(super) fn renew(
        &mut self,
        (server, nodes): (&Server, &[Node]),
        since: u64,
        (all_decided, now, decided): (bool, Duration, Duration),
    ) {
        let events = server.since("ipamnodes", since).iter();
        // The operator deletes one that has neither blocks nor addresses in use. That says nothing about the node.
        let deleted = events.filter(|event| event.change == Change::Deleted && has_content(&event.object));
        for name in deleted.map(|event| text(&event.object, "/metadata/name")) {
            self.restored.remove(&name);
            self.lost_after.insert(name.clone(), self.leaders);
            self.nodes.insert(name, None);
        }
        for (name, since) in &mut self.nodes {
            let mut of_name = nodes.iter().filter(|node| node.name == *name);
            let is_reported_since = server.get("ipamnodes", name).is_some_and(|object| {
                // Until it knows the object, the agent allocates from its earlier blocks.
                let uid = text(object, "/metadata/uid");
                of_name.all(|node| node.has_agent() && node.knows_object(server, &uid) && has_reported(server, node))
            });
            *since = if is_reported_since && all_decided { Some(since.unwrap_or(now)) } else { None };
        }
        self.nodes.retain(|_, since| since.is_none_or(|since| since + decided > now));
        self.restored.retain(|name| self.nodes.contains_key(name));
        self.lost_after.retain(|name, _| self.nodes.contains_key(name));
    }

    /// Another replica leads. Returns whether one has led before.
    pub(super) const fn note_leader(&mut self) -> bool {
        self.leaders += 1;
        self.leaders > 1
    }

    /// Those of these nodes whose reports were lost before the last leader led.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = &str> {
        let lost_before = self.lost_after.iter().filter(|(_, leaders)| **leaders < self.leaders);
        lost_before.map(|(name, _)| name.as_str())
    }

    /// These nodes.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Whether the node is one of these.
    pub(super) fn contains(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether the node is one of these, and not only because of a restore.
    pub(super) fn was_deleted(&self, node: &str) -> bool {
        self.contains(node) && !self.restored.contains(node)
    }

    /// Whether the address of the pod became a gateway while the node was one of these.
    pub(super) fn allows_gateway(&self, pool: &PoolKey, addr: IpAddr, node: &str, pod: &str) -> bool {
        let found = (pool.clone(), addr, node.to_owned(), pod.to_owned());
        let mut allowed = self.with_gateway.borrow_mut();
        if self.contains(node) {
            allowed.insert(found);
            return true;
        }
        allowed.contains(&found)
    }

    /// Ends what was allowed for pods whose address is no gateway any more. `with_gateway` are those whose address is one.
    pub(super) fn retain(&self, with_gateway: &BTreeSet<WithGateway>) {
        self.with_gateway.borrow_mut().retain(|found| with_gateway.contains(found));
    }
}

/// Whether the IPAMNode has a block, or reports an address in use.
fn has_content(ipam_node: &Value) -> bool {
    let has_blocks = ipam_node["spec"]["pools"].as_array().is_some_and(|blocks| !blocks.is_empty());
    let mut reports = ipam_node["status"]["pools"].as_array().into_iter().flatten();
    has_blocks || reports.any(|report| !reported(report).is_empty())
}

/// Whether the agent has reported all addresses in use of which it has a record.
pub(super) fn has_reported(server: &Server, node: &Node) -> bool {
    node.held().filter(|(pod, _)| node.is_known(pod)).all(|(_, held)| is_reported(server, &node.name, held))
}

/// Whether the node's agent reports the address as in use.
pub(crate) fn is_reported(server: &Server, node: &str, held: &Held) -> bool {
    let Some(object) = server.get("ipamnodes", node) else { return false };
    let mut reports = object["status"]["pools"].as_array().into_iter().flatten();
    reports
        .any(|report| pool_of_entry(report) == held.pool && reported(report).iter().any(|run| run.contains(held.addr)))
}
