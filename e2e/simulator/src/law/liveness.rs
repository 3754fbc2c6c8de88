//! Laws that must hold once no fault has happened for a while. They check the objects on the server and the addresses
//! that pods really have, never what the code reports about itself.

use ipam_core::PoolKey;
use serde_json::Value;

use super::lost::{LOST, lost};
use super::seen::{NO_AGENT, Seen, claims};
use super::{conditions, entries};
use crate::allowed::is_guarded;
use crate::broken::{Broken, broken};
use crate::layout::{Block, Layout, overlapped};
use crate::records::{block_of_entry, pool_of_entry};
use crate::server::text;
use crate::unreported::is_reported;
use crate::wire::lock;
use crate::world::World;

/// Checks these laws, once all has settled.
pub(crate) fn check(world: &World) -> Result<(), Broken> {
    let server = lock(&world.server);
    let layouts = Layout::all(&server);
    let overlapped = overlapped(&layouts);
    let seen = Seen { world, server: &server, layouts: &layouts, overlapped: &overlapped };
    for layout in &layouts {
        every_selected_node_has_a_block(&seen, layout)?;
        assignments_end(&seen, layout)?;
        what_is_released_is_free(&seen, layout)?;
        conditions::agree(&seen, layout)?;
        entries::agree(&seen, layout)?;
        pools_in_use_have_a_finalizer(&seen, layout)?;
    }
    deleted_pools_go(&seen)?;
    ipam_nodes_go(&seen)?;
    reports_are_true(&seen)
}

fn every_selected_node_has_a_block(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    let law = "selected-node-has-a-block";
    if !seen.serves(layout) || seen.leaves_out(law, &[("an agent that is not there is awaited", seen.recovers(layout))])
    {
        return Ok(());
    }
    for node in seen.unserved(layout) {
        let own = layout.blocks.iter().find(|block| block.static_for.as_deref() == Some(&node));
        let is_candidate = |block: &&Block| !block.is_static && layout.open(block).next().is_some();
        let candidates: Vec<&Block> = match own {
            Some(own) => vec![own],
            None => layout.blocks.iter().filter(is_candidate).collect(),
        };
        let free = || candidates.iter().filter(|block| is_free(seen, layout, block));
        if free().any(|block| is_reserved(seen, layout, block)) {
            seen.leaves_out(law, &[("a lost block of a node without an agent is reserved", true)]);
        }
        if let Some(free) = free().find(|block| !is_reserved(seen, layout, block)) {
            return broken(
                "selected-node-has-a-block",
                format!(
                    "{node} has no block of {}, although {} is free: {}",
                    layout.key,
                    free.range,
                    seen.object(layout)["status"]["conditions"]
                ),
            );
        }
    }
    Ok(())
}

/// A pool assigns blocks only to nodes that it must serve, and blocks of another spec only while they are in use.
fn assignments_end(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    if layout.is_frozen() {
        return Ok(());
    }
    let selected = if seen.serves(layout) { seen.selected(layout) } else { Vec::new() };
    for (node, range) in claims(seen.object(layout), "allocations") {
        let what = |why: &str| format!("{} still assigns {range} to {node}, {why}", layout.key);
        if !selected.contains(&node) {
            return broken("assignment-ends", what("which it does not serve"));
        }
        let is_kept = layout.block_of(&node, &range).is_none() && !seen.is_in_use(&node, &layout.key);
        let waits = is_kept && seen.awaits_no_agent(&node, &layout.key);
        let is_lost = is_kept && seen.has_lost(&node, &layout.key);
        let is_left_out = seen.leaves_out("assignment-ends", &[(NO_AGENT, waits), (LOST, is_lost)]);
        if is_kept && !is_left_out {
            return broken("assignment-ends", what("which has no address of it, by another spec than its own"));
        }
    }
    Ok(())
}

/// Whether by all records, reports and pods no address of the block may be in use.
fn is_free(seen: &Seen<'_>, layout: &Layout, block: &Block) -> bool {
    let counts = |key: &PoolKey| seen.counts(layout, key);
    let claimed = seen.layouts.iter().filter(|other| counts(&other.key)).any(|other| {
        let object = seen.object(other);
        let mut all = claims(object, "allocations").into_iter().chain(claims(object, "releasing"));
        all.any(|(_, range)| range.overlaps(&block.range))
    });
    let told = seen.server.list("ipamnodes").any(|object| {
        let mut entries = object["spec"]["pools"].as_array().into_iter().flatten();
        let is_told = |entry: &Value| {
            counts(&pool_of_entry(entry)) && block_of_entry(entry).is_some_and(|range| range.overlaps(&block.range))
        };
        entries.any(is_told)
    });
    let reported = seen.is_reported(layout, &block.range, |_, _| true);
    let in_use = seen.is_held(layout, &block.range, |_, _| true);
    !claimed && !told && !reported && !in_use
}

/// Whether an admin destroyed the record of a block with such an address, and the agent that could report its use does not run.
fn is_reserved(seen: &Seen<'_>, layout: &Layout, block: &Block) -> bool {
    let mut lost = seen.world.records.lost().filter(|it| it.range.overlaps(&block.range));
    lost.any(|it| seen.counts(layout, &it.pool) && seen.is_without_agent(&it.node))
}

fn what_is_released_is_free(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    if layout.is_frozen() {
        return Ok(());
    }
    for (node, range) in claims(seen.object(layout), "releasing") {
        let law = "unused-block-is-released";
        // The law is about blocks whose agent is empty. An agent that has lost its records is not. `report-is-true`
        // checks, and counts, whether it may report addresses that no pod has.
        let is_reported = || seen.has_lost(&node, &layout.key) && seen.reports(&node, &layout.key);
        let is_kept = !seen.is_in_use(&node, &layout.key) && !is_reported();
        let has_no_end = seen.world.waits_without_end();
        let is_gone = is_kept && seen.is_out_of_reach(&node) && has_no_end;
        // The grace releases the block of a Node that is gone.
        let waits_for_a_report = has_no_end || seen.server.get("nodes", &node).is_some();
        let waits = is_kept && seen.awaits_no_agent(&node, &layout.key) && waits_for_a_report;
        let waits = seen.leaves_out(law, &[("a Node is gone, and the grace has no end", is_gone), (NO_AGENT, waits)]);
        if is_kept && !waits {
            return broken(
                "unused-block-is-released",
                format!("{} does not release {range} of {node}, which has no address of it", layout.key),
            );
        }
    }
    Ok(())
}

fn deleted_pools_go(seen: &Seen<'_>) -> Result<(), Broken> {
    for layout in seen.layouts.iter().filter(|layout| layout.is_deleting) {
        let object = seen.object(layout);
        let has_blocks = ["allocations", "releasing"].into_iter().any(|list| !claims(object, list).is_empty());
        if !has_blocks {
            return broken(
                "deleted-pool-goes",
                format!("{} is being deleted, has no block, and does not go: {object}", layout.key),
            );
        }
    }
    Ok(())
}

/// A pool with blocks has the finalizer, also after an admin has removed it.
fn pools_in_use_have_a_finalizer(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    let object = seen.object(layout);
    let has_blocks = ["allocations", "releasing"].into_iter().any(|list| !claims(object, list).is_empty());
    if !has_blocks || layout.is_deleting || is_guarded(object) {
        return Ok(());
    }
    broken("pool-in-use-has-a-finalizer", format!("{} has blocks and no finalizer: {object}", layout.key))
}

/// Whether the status of the pool records a block of the node.
fn has_block(pool: &Value, node: &str) -> bool {
    ["allocations", "releasing"].into_iter().any(|list| claims(pool, list).iter().any(|(of, _)| of == node))
}

/// An IPAMNode is deleted with its Node once none of its addresses is in use.
fn ipam_nodes_go(seen: &Seen<'_>) -> Result<(), Broken> {
    for object in seen.server.list("ipamnodes") {
        let node = text(object, "/metadata/name");
        let is_in_use = seen.world.nodes.iter().any(|it| it.name == node && it.held().next().is_some());
        let has_blocks = object["spec"]["pools"].as_array().is_some_and(|pools| !pools.is_empty());
        // Only an IPAMNode without a Node must go. Without a grace the leader may await a report that never comes.
        if seen.server.get("nodes", &node).is_some() {
            continue;
        }
        let is_kept = !is_in_use && !has_blocks;
        let waits = is_kept && seen.is_without_agent(&node) && seen.world.waits_without_end();
        let is_lost = is_kept && !lost(seen.world, &node).is_empty();
        // An invalid pool releases nothing.
        let mut invalid = seen.layouts.iter().filter(|layout| layout.is_frozen());
        let is_of_invalid = is_kept && invalid.any(|layout| has_block(seen.object(layout), &node));
        let reasons = [(NO_AGENT, waits), (LOST, is_lost), ("an invalid pool has the block", is_of_invalid)];
        let waits = seen.leaves_out("ipam-node-goes", &reasons);
        if is_kept && !waits {
            return broken(
                "ipam-node-goes",
                format!("the IPAMNode of {node} stays without a Node and without a pod: {object}"),
            );
        }
    }
    Ok(())
}

/// The IPAMNode of each node reports how many addresses its pods have.
fn reports_are_true(seen: &Seen<'_>) -> Result<(), Broken> {
    for node in seen.world.nodes.iter().filter(|node| node.has_agent()) {
        let Some(object) = seen.server.get("ipamnodes", &node.name) else { continue };
        if object["status"]["observedGeneration"] != object["metadata"]["generation"] {
            return broken(
                "agent-reports",
                format!("the agent of {} does not report about its IPAMNode: {object}", node.name),
            );
        }
        let reports: Vec<&Value> = object["status"]["pools"].as_array().into_iter().flatten().collect();
        for layout in seen.layouts {
            let used = reports.iter().find(|report| pool_of_entry(report) == layout.key).map(|it| it["used"].as_u64());
            let used = used.flatten().unwrap_or_default();
            let is_of_it = |pod: &str, key: &PoolKey| *key == layout.key && node.is_known(pod);
            let held: Vec<_> = node.held().filter(|(pod, held)| is_of_it(pod, &held.pool)).collect();
            let unlisted = held.iter().find(|(_, held)| !is_reported(seen.server, &node.name, held));
            let is_wrong = u64::try_from(held.len()).ok() != Some(used) || unlisted.is_some();
            let is_lost = is_wrong && seen.has_lost(&node.name, &layout.key);
            if !seen.leaves_out("report-is-true", &[(LOST, is_lost)]) && is_wrong {
                return broken(
                    "report-is-true",
                    format!(
                        "{} reports {used} addresses of {}, and pods have {}, of which {:?} is not listed",
                        node.name,
                        layout.key,
                        held.len(),
                        unlisted.map(|(_, held)| held.addr)
                    ),
                );
            }
        }
    }
    Ok(())
}
