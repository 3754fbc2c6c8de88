//! What this node held by its own last report where its records are older than that: its store was deleted, or put back from
//! a backup, or another agent of the same node name has reported.
//!
//! Decides without disk and clock. Pods may hold these addresses without a record, so that they are given to nobody, here or
//! on other nodes, by no way of asking. That there is a record of one proves nothing: it may be of a pod that was gone when the
//! report was made, and whose address another had by then. Nobody can tell when all those pods are gone but an admin, who then
//! deletes the IPAMNode.

use ipam_core::ledger::Holding;
use ipam_core::{AddrRange, NodePool, PoolKey};
use ipam_crds::{AddressRange, BlockUse, HELD_RUNS, LedgerPosition, PoolType};
use serde::{Deserialize, Serialize};

use crate::blocks::Problem;
use crate::store::Position;
use crate::watch::Standing;

/// Addresses without a record, until the object that tells of them is replaced.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// The object with the report.
    pub(crate) uid: String,
    pools: Vec<LostOfPool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LostOfPool {
    pool_type: PoolType,
    name: String,
    held: Vec<AddressRange>,
}

impl LostOfPool {
    fn key(&self) -> PoolKey {
        PoolKey::new(self.pool_type.into(), self.name.clone())
    }

    fn ranges(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.held.iter().filter_map(range)
    }
}

impl Lost {
    /// What `standing` tells as held, if the store that was found at the start is behind it. A store that is as far as the
    /// report, or further, has all of it: what it does not hold was given back.
    pub fn find(standing: &Standing, found: Position) -> Option<Self> {
        let LedgerPosition { epoch, sequence } = standing.status.ledger?;
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        if (number(found.epoch), number(found.sequence)) >= (epoch, sequence) {
            return None;
        }
        let reports = standing.status.pools.iter().filter(|report| report.used > 0);
        let pools: Vec<_> = reports.map(of_pool).filter(|pool| !pool.held.is_empty()).collect();
        (!pools.is_empty()).then(|| Self { uid: standing.uid.clone(), pools })
    }

    /// Both together, for the object of this one.
    #[must_use]
    pub fn and(mut self, earlier: Option<Self>) -> Self {
        let known = earlier.filter(|earlier| earlier.uid == self.uid).map(|earlier| earlier.pools).unwrap_or_default();
        // A start that ended before it could report has found the same.
        for pool in known {
            if !self.pools.contains(&pool) {
                self.pools.push(pool);
            }
        }
        self
    }

    /// Keeps the pools from giving what is lost.
    pub fn bar(&self, pools: &mut [NodePool]) {
        for pool in pools {
            let own = self.pools.iter().filter(|lost| lost.key() == pool.key).flat_map(LostOfPool::ranges);
            let of_family = own.filter(|range| range.family() == pool.range.family());
            for (first, last) in of_family.map(|range| range.numbers()) {
                pool.elsewhere.insert(first, last);
            }
        }
    }

    /// What is to be reported as held: what is, and what may be without a record.
    pub fn join(&self, mut holdings: Vec<Holding>) -> Vec<Holding> {
        for lost in &self.pools {
            let ranges: Vec<_> = lost.ranges().collect();
            let key = lost.key();
            match holdings.iter_mut().find(|holding| holding.key == key) {
                Some(holding) => holding.join(&ranges, HELD_RUNS),
                None => holdings.extend(Holding::unconfigured(key, &ranges, HELD_RUNS)),
            }
        }
        holdings
    }

    /// What is wrong, and what to do.
    pub fn problem(&self) -> Problem {
        let of_pool = |lost: &LostOfPool| {
            let ranges: Vec<_> = lost.ranges().map(|range| range.to_string()).collect();
            format!("{} of {}", ranges.join(", "), lost.key())
        };
        let told: Vec<_> = self.pools.iter().map(of_pool).collect();
        let sentence = format!(
            "the store of this agent is behind what this node has reported (it was deleted or put back, the node was set up \
             anew, or another agent runs under this node's name): pods may hold without a record what was reported, which \
             nobody is given; when no pod of this node has these addresses any more, delete this node's IPAMNode: {}",
            told.join("; ")
        );
        Problem { reason: "StoreWentBack", sentence }
    }
}

/// What a report tells as held.
fn of_pool(report: &BlockUse) -> LostOfPool {
    let whole = || vec![AddressRange { start_ip: report.start_ip.clone(), end_ip: report.end_ip.clone() }];
    let mut held = if report.held.is_empty() { whole() } else { report.held.clone() };
    held.retain(|told| range(told).is_some());
    LostOfPool { pool_type: report.pool_type, name: report.name.clone(), held }
}

fn range(told: &AddressRange) -> Option<AddrRange> {
    AddrRange::new(told.start_ip.parse().ok()?, told.end_ip.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use ipam_core::PoolKind;
    use ipam_crds::IPAMNodeStatus;

    use super::*;

    fn told(first: &str, last: &str) -> AddressRange {
        AddressRange { start_ip: first.into(), end_ip: last.into() }
    }

    /// A report at epoch 3, sequence 5: .2 to .4 and, by its name, .9 are held of blue.
    fn standing() -> Standing {
        let report = BlockUse {
            name: "blue".into(),
            pool_type: PoolType::IPPool,
            start_ip: "10.0.0.1".into(),
            end_ip: "10.0.0.8".into(),
            used: 4,
            capacity: 7,
            held: vec![told("10.0.0.2", "10.0.0.4"), told("10.0.0.9", "10.0.0.9")],
            ..BlockUse::default()
        };
        let ledger = Some(LedgerPosition { epoch: 3, sequence: 5 });
        Standing {
            uid: "u".into(),
            status: IPAMNodeStatus { pools: vec![report], ledger, ..IPAMNodeStatus::default() },
            arrival: 1,
        }
    }

    fn find(epoch: u64, sequence: u64) -> Option<Lost> {
        Lost::find(&standing(), Position { epoch, sequence })
    }

    #[test]
    fn only_a_store_that_is_behind_the_report_has_lost_something() {
        for (epoch, sequence) in [(3, 5), (3, 6), (4, 0)] {
            assert_eq!(find(epoch, sequence), None, "{epoch} {sequence}");
        }
        for (epoch, sequence) in [(3, 4), (2, 90), (0, 0)] {
            let lost = find(epoch, sequence).unwrap();
            assert_eq!(lost.pools[0].held, [told("10.0.0.2", "10.0.0.4"), told("10.0.0.9", "10.0.0.9")]);
            let Problem { reason, sentence } = lost.problem();
            assert_eq!(reason, "StoreWentBack");
            assert!(sentence.contains("10.0.0.9") && sentence.contains("delete this node's IPAMNode"), "{sentence}");
        }
        let nothing = Lost::find(&Standing::default(), Position::default());
        assert_eq!(nothing, None, "an object without a report");
    }

    #[test]
    fn a_report_without_addresses_may_mean_each_of_its_range() {
        let mut standing = standing();
        standing.status.pools[0].held.clear();
        let lost = Lost::find(&standing, Position::default()).unwrap();
        assert_eq!(lost.pools[0].held, [told("10.0.0.1", "10.0.0.8")]);
        standing.status.pools[0].used = 0;
        assert_eq!(Lost::find(&standing, Position::default()), None);
    }

    #[test]
    fn what_is_lost_is_reported_as_held_beside_what_is_and_an_address_of_both_counts_once() {
        let lost = find(0, 0).unwrap();
        let range = |first: &str, last: &str| AddrRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap();
        let runs = vec![range("10.0.0.3", "10.0.0.3")];
        let key = PoolKey::new(PoolKind::IpPool, "blue");
        // Of the seven the pool gives, two are lost besides the one that is recorded.
        let own = Holding { key, range: range("10.0.0.1", "10.0.0.8"), used: 1, capacity: 4, runs, grant: None };
        let joined = lost.join(vec![own]);
        assert_eq!((joined[0].used, joined[0].capacity), (4, 7));
        assert_eq!(joined[0].runs, [range("10.0.0.2", "10.0.0.4"), range("10.0.0.9", "10.0.0.9")]);
        let alone = lost.join(Vec::new());
        assert_eq!((alone[0].used, alone[0].capacity, alone[0].runs.len()), (4, 0, 2));
    }
}
