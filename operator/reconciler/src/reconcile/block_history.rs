//! The history of blocks: a log line and a count for each block whose record in a pool's status changes.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::{AddrRange, PoolKey};

use crate::decide::PoolEvent;
use crate::metrics::Metrics;
use crate::pool::StatusRecord;

const ASSIGNED: &str = "block assigned";
const RELEASED: &str = "block released";

/// Logs and counts what changes from one status of the pool to the next. Returns the events about it.
pub(super) fn log(pool: &PoolKey, before: &StatusRecord, after: &StatusRecord, metrics: &Metrics) -> Vec<PoolEvent> {
    let (mut assigned, mut released) = (Vec::new(), Vec::new());
    for (node, block, what) in changes(before, after) {
        tracing::info!(%pool, node, %block, "{what}");
        match what {
            ASSIGNED => assigned.push((node, block)),
            RELEASED => released.push((node, block)),
            _ => {}
        }
    }
    let count = |blocks: &[(&str, AddrRange)]| u64::try_from(blocks.len()).unwrap_or(u64::MAX);
    metrics.blocks_changed(pool, count(&assigned), count(&released));
    let events = [("BlocksAssigned", "assigned to", assigned), ("BlocksReleased", "released by", released)];
    events.into_iter().filter_map(|(reason, what, blocks)| event(reason, what, &blocks)).collect()
}

/// The event about blocks that were assigned or released. Events of one reason about one node are one series, which keeps its first note. So
/// an event about several nodes names none.
fn event(reason: &'static str, what: &str, blocks: &[(&str, AddrRange)]) -> Option<PoolEvent> {
    match blocks {
        [] => None,
        [(node, block)] => {
            let text = format!("Block {block} was {what} node {node}.");
            Some(PoolEvent { node: Some((*node).to_owned()), ..PoolEvent::normal(reason, &text) })
        }
        _ => Some(PoolEvent::normal(
            reason,
            &format!("Blocks were {what} several nodes. The operator's log names each."),
        )),
    }
}

/// Returns each changed block with its node and the change, sorted by node. A release comes before an assignment.
fn changes<'a>(before: &'a StatusRecord, after: &'a StatusRecord) -> Vec<(&'a str, AddrRange, &'static str)> {
    if before.allocations == after.allocations && before.releasing == after.releasing {
        return Vec::new();
    }
    let (before, after) = (by_node(before), by_node(after));
    let nodes: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let mut changes = Vec::new();
    for node in nodes {
        match (before.get(node), after.get(node)) {
            (Some((was, was_releasing)), Some((is, is_releasing))) if was == is => {
                match (was_releasing, is_releasing) {
                    (false, true) => changes.push((node, *is, "block releasing")),
                    (true, false) => changes.push((node, *is, "block assigned again")),
                    _ => {}
                }
            }
            (was, is) => {
                changes.extend(was.map(|(block, _)| (node, *block, RELEASED)));
                changes.extend(is.map(|(block, _)| (node, *block, ASSIGNED)));
            }
        }
    }
    changes
}

/// Each node's block, and whether it is being released.
fn by_node(status: &StatusRecord) -> BTreeMap<&str, (AddrRange, bool)> {
    let assigned = status.allocations.iter().map(|claim| (claim, false));
    let releasing = status.releasing.iter().map(|release| (&release.claim, true));
    assigned.chain(releasing).map(|(claim, releases)| (claim.node.as_str(), (claim.range, releases))).collect()
}

#[cfg(test)]
mod tests {
    use ipam_core::plan::{Claim, ClaimSource};

    use super::*;
    use crate::pool::Release;

    fn claim(node: &str, last: u8) -> Claim {
        let addr = |last: u8| std::net::IpAddr::from([10, 0, 0, last]);
        let range = AddrRange::new(addr(last), addr(last + 3)).unwrap();
        Claim { node: node.to_owned(), range, gateway: None, source: ClaimSource::Status }
    }

    fn status(allocations: &[(&str, u8)], releasing: &[(&str, u8)]) -> StatusRecord {
        let release =
            |(node, last): &(&str, u8)| Release { claim: claim(node, *last), since: None, node_gone_since: None };
        StatusRecord {
            allocations: allocations.iter().map(|(node, last)| claim(node, *last)).collect(),
            releasing: releasing.iter().map(release).collect(),
            ..StatusRecord::default()
        }
    }

    #[test]
    fn assigned_and_released_blocks_are_normal_events() {
        let before = status(&[("a", 1), ("b", 5)], &[("d", 13)]);
        let after = status(&[("a", 1), ("e", 17), ("f", 21)], &[("b", 5)]);
        let metrics = Metrics::default();
        let notes = log(&PoolKey::new(ipam_core::PoolKind::IpPool, "blue"), &before, &after, &metrics);
        let said = notes.iter().map(|note| (note.reason, note.text.as_str(), note.node.as_deref()));
        let several = "Blocks were assigned to several nodes. The operator's log names each.";
        let one = "Block 10.0.0.13-10.0.0.16 was released by node d.";
        assert_eq!(said.collect::<Vec<_>>(), [("BlocksAssigned", several, None), ("BlocksReleased", one, Some("d"))]);
        assert!(notes.iter().all(|note| !note.is_warning));
    }

    fn told(before: &StatusRecord, after: &StatusRecord) -> Vec<String> {
        changes(before, after).into_iter().map(|(node, block, what)| format!("{what} {node} {block}")).collect()
    }

    #[test]
    fn each_block_whose_record_changes_is_named_once() {
        let before = status(&[("a", 1), ("b", 5), ("c", 9)], &[("d", 13), ("e", 17)]);
        let after = status(&[("a", 1), ("b", 21), ("d", 13), ("f", 17)], &[("c", 9)]);
        assert_eq!(
            told(&before, &after),
            [
                "block released b 10.0.0.5-10.0.0.8",
                "block assigned b 10.0.0.21-10.0.0.24",
                "block releasing c 10.0.0.9-10.0.0.12",
                "block assigned again d 10.0.0.13-10.0.0.16",
                "block released e 10.0.0.17-10.0.0.20",
                "block assigned f 10.0.0.17-10.0.0.20",
            ]
        );
        assert!(told(&before, &before).is_empty());
    }
}
