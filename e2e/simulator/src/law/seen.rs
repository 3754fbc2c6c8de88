//! What the laws read once all has settled.

use ipam_core::{AddrRange, PoolKey};
use serde_json::Value;

use super::condition;
use super::lost::lost;
use crate::agent::Node;
use crate::layout::{Block, Layout};
use crate::records::{plural_of, pool_of_entry, range_of_entry, reported};
use crate::server::{Server, text};
use crate::world::World;

/// No agent runs on a node: its block waits for a report without end.
pub(super) const NO_AGENT: &str = "a node has no agent";

/// The state that these laws read.
pub(super) struct Seen<'a> {
    pub(super) world: &'a World,
    pub(super) server: &'a Server,
    pub(super) layouts: &'a [Layout],
    /// Pools that may not serve, each with the older pool that serves.
    pub(super) overlapped: &'a [(PoolKey, PoolKey)],
}

impl Seen<'_> {
    /// Counts a check of the law, and the first reason that applies. Returns whether the check is left out.
    pub(super) fn leaves_out(&self, law: &'static str, reasons: &[(&'static str, bool)]) -> bool {
        let reason = reasons.iter().find(|(_, holds)| *holds).map(|(reason, _)| *reason);
        self.world.allowed.judge(law, reason)
    }

    /// Whether the pool must serve nodes.
    pub(super) fn serves(&self, layout: &Layout) -> bool {
        layout.is_valid && !layout.is_deleting && !self.is_overlapped(layout)
    }

    pub(super) fn is_overlapped(&self, layout: &Layout) -> bool {
        self.overlapped.iter().any(|(loser, _)| *loser == layout.key)
    }

    pub(super) fn object(&self, layout: &Layout) -> &Value {
        self.server.get(plural_of(&layout.key), &layout.key.name).map_or(&Value::Null, |object| object)
    }

    /// The names of the nodes that the pool must serve.
    pub(super) fn selected(&self, layout: &Layout) -> Vec<String> {
        let nodes = self.server.list("nodes").filter(|node| is_selected(layout, node));
        nodes.map(|node| text(node, "/metadata/name")).collect()
    }

    /// The selected nodes that have no allocation.
    pub(super) fn unserved(&self, layout: &Layout) -> Vec<String> {
        let served = claims(self.object(layout), "allocations");
        self.selected(layout).into_iter().filter(|node| !served.iter().any(|(of, _)| of == node)).collect()
    }

    /// Whether no agent of that name can report any more: there is no IPAMNode, and without a Node none is created.
    pub(super) fn is_out_of_reach(&self, node: &str) -> bool {
        self.server.get("nodes", node).is_none() && self.server.get("ipamnodes", node).is_none()
    }

    /// Whether no agent ever runs there: its block waits for a report without end.
    pub(super) fn is_without_agent(&self, node: &str) -> bool {
        self.world.nodes.iter().any(|it| it.name == node && !it.has_agent())
    }

    /// Whether a report is awaited of a node without an agent: its block of the pool may have been in use, or the
    /// operator requested it.
    pub(super) fn awaits_no_agent(&self, node: &str, key: &PoolKey) -> bool {
        self.is_without_agent(node) && (!self.was_never_used(node, key) || awaits_report(self.server, node))
    }

    /// Whether by the node's IPAMNode the block was free when it was assigned, and no report has named its grant.
    fn was_never_used(&self, node: &str, key: &PoolKey) -> bool {
        let entries = self.server.get("ipamnodes", node).and_then(|object| object["spec"]["pools"].as_array());
        let own = entries.into_iter().flatten().find(|entry| pool_of_entry(entry) == *key);
        own.is_some_and(|entry| {
            let is_reported = self.world.records.is_reported(node, &text(entry, "/grant"));
            entry["neverUsed"] == true && !is_reported
        })
    }

    /// Whether pods of the node have addresses of the pool.
    pub(super) fn is_in_use(&self, node: &str, key: &PoolKey) -> bool {
        let mut nodes = self.world.nodes.iter().filter(|it| it.name == node);
        nodes.any(|it| it.held().any(|(_, held)| held.pool == *key))
    }

    /// Whether pods of the node may have addresses of the pool without a record.
    pub(super) fn has_lost(&self, node: &str, key: &PoolKey) -> bool {
        lost(self.world, node).iter().any(|(pool, _)| pool == key)
    }

    /// Whether the operator awaits reports because records may be missing, by what the model knows, and one of the
    /// reports cannot come.
    pub(super) fn recovers(&self, layout: &Layout) -> bool {
        let awaits =
            condition(self.object(layout), "Exhausted").is_some_and(|it| it["reason"] == "AwaitingAgentReports");
        if !awaits {
            return false;
        }
        // After a restore the wait has a limit. With its IPAMNode, a report of addresses in use outside a block may have been lost, too.
        let may_be_lost = |node: &Node| self.world.allowed.unreported.was_deleted(&node.name);
        let mut awaited =
            self.world.nodes.iter().filter(|node| may_be_lost(node) && may_await_report(self.server, &node.name));
        let unserved = self.unserved(layout);
        awaited.any(|node| !node.has_agent() || (!unserved.contains(&node.name) && self.is_out_of_reach(&node.name)))
    }

    /// Whether the node's agent reports addresses of the pool as in use, of this block or of another.
    pub(super) fn reports(&self, node: &str, key: &PoolKey) -> bool {
        let object = self.server.get("ipamnodes", node);
        let mut reports = object.and_then(|object| object["status"]["pools"].as_array()).into_iter().flatten();
        reports.any(|report| pool_of_entry(report) == *key && !reported(report).is_empty())
    }

    /// Whether a report that `which` accepts, by node and pool, has addresses of the range in use. Reports of pools that
    /// share addresses with this one do not count.
    pub(super) fn is_reported(
        &self,
        layout: &Layout,
        range: &AddrRange,
        which: impl Fn(&str, &PoolKey) -> bool,
    ) -> bool {
        self.server.list("ipamnodes").any(|object| {
            let node = text(object, "/metadata/name");
            let mut reports = object["status"]["pools"].as_array().into_iter().flatten();
            reports.any(|report| {
                let key = pool_of_entry(report);
                self.counts(layout, &key)
                    && which(&node, &key)
                    && reported(report).iter().any(|held| held.overlaps(range))
            })
        })
    }

    /// The same for the addresses that pods have, reported or not.
    pub(super) fn is_held(&self, layout: &Layout, range: &AddrRange, which: impl Fn(&str, &PoolKey) -> bool) -> bool {
        self.world.nodes.iter().any(|node| {
            let counts = |pool: &PoolKey| self.counts(layout, pool) && which(&node.name, pool);
            node.held().any(|(_, held)| range.contains(held.addr) && counts(&held.pool))
        })
    }

    /// Whether addresses of the other pool are unavailable to this one.
    pub(super) fn counts(&self, layout: &Layout, key: &PoolKey) -> bool {
        let other = self.layouts.iter().find(|other| other.key == *key);
        *key == layout.key || other.is_none_or(|other| !other.shares_with(layout))
    }

    /// Whether the pool has a duplicate address.
    pub(super) fn is_contradicted(&self, layout: &Layout) -> bool {
        self.world.nodes.iter().any(|node| self.is_contradicted_on(layout, &node.name))
    }

    /// Whether two agents report an address of the pool that is no gateway. The operator sees that.
    pub(super) fn is_reported_twice(&self, layout: &Layout) -> bool {
        let mut found: Vec<(String, AddrRange)> = Vec::new();
        for object in self.server.list("ipamnodes") {
            let node = text(object, "/metadata/name");
            let gateway = gateway_of(object, layout);
            for report in object["status"]["pools"].as_array().into_iter().flatten() {
                if pool_of_entry(report) == layout.key {
                    // By `allocateDefaultGateway`, pods of several nodes may have the gateway.
                    let ranges = reported(report).into_iter().filter(|range| Some(*range) != gateway);
                    found.extend(ranges.map(|range| (node.clone(), range)));
                }
            }
        }
        let is_twice = |(node, range): &(String, AddrRange)| {
            found.iter().any(|(other, there)| other != node && there.overlaps(range))
        };
        found.iter().any(is_twice)
    }

    /// Whether the agent of this node reports an address of the pool that is also reported or used elsewhere. Elsewhere
    /// is another node, or a pool that may not share it.
    pub(super) fn is_contradicted_on(&self, layout: &Layout, node: &str) -> bool {
        let Some(object) = self.server.get("ipamnodes", node) else { return false };
        let reports = object["status"]["pools"].as_array().into_iter().flatten();
        let mut own = reports.filter(|report| pool_of_entry(report) == layout.key).flat_map(reported);
        let is_other = |other: &str, key: &PoolKey| other != node || *key != layout.key;
        own.any(|range| self.is_reported(layout, &range, is_other) || self.is_held(layout, &range, is_other))
    }

    /// Whether a pod may use the block's gateway, as far as the operator can know, so that nodes keep the earlier one.
    pub(super) fn gateway_waits(&self, layout: &Layout, block: &Block) -> bool {
        let Some(range) = block.gateway.and_then(|gateway| AddrRange::new(gateway, gateway)) else { return false };
        // Another law checks that a block that is being released becomes free.
        let is_released = claims(self.object(layout), "releasing").iter().all(|(_, block)| !block.overlaps(&range));
        // An agent that has lost its records reports those addresses.
        let is_reported = self.is_reported(layout, &range, |_, _| true);
        !is_released || is_reported || self.has_block_without_agent(layout, |block| block.overlaps(&range))
    }

    /// Whether a node without an agent has a block that `which` accepts, of this pool or of one that does not share with it.
    pub(super) fn has_block_without_agent(&self, layout: &Layout, which: impl Fn(&AddrRange) -> bool) -> bool {
        let pools = self.layouts.iter().filter(|other| self.counts(layout, &other.key));
        let lists = pools.map(|other| self.object(other));
        let mut blocks =
            lists.flat_map(|object| claims(object, "allocations").into_iter().chain(claims(object, "releasing")));
        blocks.any(|(node, block)| self.is_without_agent(&node) && which(&block))
    }
}

/// The gateway that the IPAMNode has for the pool.
fn gateway_of(ipam_node: &Value, layout: &Layout) -> Option<AddrRange> {
    let mut entries = ipam_node["spec"]["pools"].as_array().into_iter().flatten();
    let entry = entries.find(|entry| pool_of_entry(entry) == layout.key)?;
    let gateway = entry["gateway"].as_str()?.parse().ok()?;
    AddrRange::new(gateway, gateway)
}

/// Whether the operator has requested a report of the node that the agent has not made.
fn awaits_report(server: &Server, node: &str) -> bool {
    let object = server.get("ipamnodes", node);
    object.is_some_and(|it| it["spec"]["reportRequest"] != it["status"]["reportRequest"])
}

/// The same, or the operator may wait for it: without an IPAMNode there is no place for the request.
pub(super) fn may_await_report(server: &Server, node: &str) -> bool {
    server.get("ipamnodes", node).is_none() || awaits_report(server, node)
}

/// Whether the pool must serve the Node.
pub(super) fn is_selected(layout: &Layout, node: &Value) -> bool {
    layout.selects(node)
        && node["metadata"]["annotations"][ipam_reconciler::cluster_cache::CORDON] != "true"
        && node["metadata"]["deletionTimestamp"].is_null()
}

/// Nodes and blocks of one list of a pool's status.
pub(super) fn claims(object: &Value, list: &str) -> Vec<(String, AddrRange)> {
    let entries = object["status"][list].as_array().into_iter().flatten();
    let claim = |entry: &Value| {
        let node = text(entry, "/nodeName");
        let prefix = entry["prefix"].as_str().and_then(|prefix| ipam_core::Cidr::parse(prefix).ok());
        let range = prefix.map(|(prefix, _)| prefix.range()).or_else(|| range_of_entry(entry))?;
        Some((node, range))
    };
    entries.filter_map(claim).collect()
}
