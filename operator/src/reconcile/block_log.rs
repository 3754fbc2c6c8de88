//! What a status write changes about blocks, for the log: who had which block when.

use std::collections::HashMap;

use ipam_core::AddrRange;
use ipam_core::plan::Claim;

use crate::pool::StatusRecord;

/// A block whose record changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change<'a> {
    pub(super) node: &'a str,
    pub(super) block: AddrRange,
    /// What happens to it, as the log says it.
    pub(super) what: &'static str,
}

/// The changes from one status to the next, by node: what ends before what begins.
pub(super) fn changes<'a>(before: &'a StatusRecord, after: &'a StatusRecord) -> Vec<Change<'a>> {
    if before.allocations == after.allocations && before.releasing == after.releasing {
        return Vec::new();
    }
    let (was, is) = (by_node(before), by_node(after));
    let mut changes = Vec::new();
    for (&node, &(block, _)) in &was {
        if is.get(node).is_none_or(|(now, _)| *now != block) {
            changes.push(Change { node, block, what: "block released" });
        }
    }
    for (&node, &(block, releases)) in &is {
        let what = match (was.get(node).filter(|(then, _)| *then == block), releases) {
            (None, _) => "block assigned",
            (Some((_, false)), true) => "block releasing",
            (Some((_, true)), false) => "block assigned again",
            (Some(_), _) => continue,
        };
        changes.push(Change { node, block, what });
    }
    changes.sort_by(|a, b| (a.node, a.what != "block released").cmp(&(b.node, b.what != "block released")));
    changes
}

/// Each node's block, and whether it is being released.
fn by_node(status: &StatusRecord) -> HashMap<&str, (AddrRange, bool)> {
    fn entry(claim: &Claim, releases: bool) -> (&str, (AddrRange, bool)) {
        (&claim.node, (claim.range, releases))
    }
    let assigned = status.allocations.iter().map(|claim| entry(claim, false));
    let releasing = status.releasing.iter().map(|release| entry(&release.claim, true));
    assigned.chain(releasing).collect()
}

#[cfg(test)]
mod tests {
    use ipam_core::plan::ClaimSource;

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

    fn told(before: &StatusRecord, after: &StatusRecord) -> Vec<String> {
        let line = |change: Change<'_>| format!("{} {} {}", change.what, change.node, change.block);
        changes(before, after).into_iter().map(line).collect()
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
