//! Advice that depends on the nodes of the cluster.

use std::collections::BTreeSet;

use super::{Advice, AdviceCode, OfAKind};
use crate::names::is_dns_subdomain;
use crate::quoted::Quoted;
use crate::words::counted;
use crate::{Family, NodeRef, Pool, PoolKind};

/// An IPv4 pool is too large if it has at least this many times the blocks it needs, and more than [`MANY_FREE`] stay
/// free. IPv6 ranges are meant to be sparse.
const MUCH_LARGER: u128 = 8;
/// This many free blocks are normal in a small cluster: room for one or two more racks.
const MANY_FREE: u128 = 64;

/// The advice about a pool and these nodes, which must be all nodes of the cluster. Without nodes there is none: a
/// cluster that is being set up gets its pools first.
pub fn advise_nodes(pool: &Pool, nodes: &[NodeRef<'_>]) -> Vec<Advice> {
    let mut advice = Vec::new();
    if nodes.is_empty() {
        return advice;
    }
    let selected: BTreeSet<&str> =
        nodes.iter().filter(|node| pool.selects(node.name, node.labels)).map(|node| node.name).collect();
    if selected.is_empty() && pool.has_selector() {
        let there_are = counted(nodes.len(), "node", "nodes");
        let message = format!("matches none of the cluster's nodes ({there_are}); nobody is served until one matches");
        advice.push(Advice::new("spec.nodeSelector", AdviceCode::NoNodeSelected, message));
    }
    statics(pool, &selected, &mut advice);
    size(pool, &selected, &mut advice);
    advice
}

fn statics(pool: &Pool, selected: &BTreeSet<&str>, advice: &mut Vec<Advice>) {
    // `shape.rs` advises on names that no node can have, which needs no list of nodes.
    let mut unknown = OfAKind::new(AdviceCode::StaticForNoNode);
    for (node, prefix) in pool.static_nodes().filter(|(node, _)| is_dns_subdomain(node) && !selected.contains(node)) {
        unknown.add("spec.staticAllocations".to_owned(), || {
            format!(
                "node {} of prefix {prefix} is no selected node of the cluster; the prefix waits for it",
                Quoted(node)
            )
        });
    }
    unknown.finish(advice);
}

fn size(pool: &Pool, selected: &BTreeSet<&str>, advice: &mut Vec<Advice>) {
    let field = match pool.key().kind {
        PoolKind::IpPool => "spec.perNodeBlockSize",
        PoolKind::CidrPool => "spec.perNodeNetworkPrefix",
    };
    let of_statics = selected.iter().filter(|node| pool.static_index(node).is_some()).count();
    let wanting = u128::try_from(selected.len() - of_statics).unwrap_or(u128::MAX);
    let blocks = pool.not_given().gaps_in(0, pool.grid().last_index());
    if wanting > blocks {
        let message = format!(
            "leaves blocks for {} beside those with a static prefix, but {} selected: {} none; write smaller blocks or a \
             larger network",
            counted(blocks, "node", "nodes"),
            counted(wanting, "is", "are"),
            counted(wanting - blocks, "gets", "get")
        );
        advice.push(Advice::new(field, AdviceCode::TooSmall, message));
    } else if pool.network().family() == Family::V4 && is_much_larger(blocks, wanting) {
        let selected = counted(wanting, "node is", "nodes are");
        let message = format!("makes {blocks} blocks, but {selected} selected: {} stay free", blocks - wanting);
        advice.push(Advice::new(field, AdviceCode::TooLarge, message));
    }
}

/// Whether a pool has so many more blocks than it needs that its size may be a mistake.
const fn is_much_larger(blocks: u128, wanting: u128) -> bool {
    wanting > 0 && blocks / wanting >= MUCH_LARGER && blocks - wanting > MANY_FREE
}
