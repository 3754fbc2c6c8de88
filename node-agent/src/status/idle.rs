//! Which grants become idle: those of which no address has been in use for a while.
//!
//! An idle grant allocates only after the API server has confirmed it again. So the operator can give its block to another node
//! if this one is gone, whatever this node does without the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam_core::ledger::{GrantStep, Holding};
use ipam_core::{GrantId, PoolKey};
use tokio::time::Instant;

use crate::allocator::Holdings;

/// For so long no address of a grant is in use before the grant becomes idle. A pod that is replaced gets its address without a
/// confirmation.
const IDLE_AFTER: Duration = Duration::from_secs(30);

/// Since when no address of a confirmed grant is in use.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Unused {
    since: BTreeMap<PoolKey, (GrantId, Instant)>,
}

impl Unused {
    /// Looks at what is in use. The grants that are to become idle now, and when the next one is.
    pub(super) fn look(&mut self, holdings: &Holdings, now: Instant) -> (Vec<(PoolKey, GrantId)>, Option<Instant>) {
        let unused = holdings.pools.iter().filter_map(unused);
        let since =
            |key: &PoolKey, id: GrantId| self.since.get(key).filter(|(of, _)| *of == id).map(|(_, since)| *since);
        self.since = unused.map(|(key, id)| (key.clone(), (id, since(key, id).unwrap_or(now)))).collect();
        let due = self.since.iter().filter(|(_, (_, since))| *since + IDLE_AFTER <= now);
        let due: Vec<_> = due.map(|(key, (id, _))| (key.clone(), *id)).collect();
        let next = self.since.values().map(|(_, since)| *since + IDLE_AFTER).filter(|end| *end > now).min();
        (due, next)
    }

    /// Every confirmed grant of which no address is in use, however short.
    pub(super) fn all(holdings: &Holdings) -> Vec<(PoolKey, GrantId)> {
        holdings.pools.iter().filter_map(unused).map(|(key, id)| (key.clone(), id)).collect()
    }

    /// The time without use of these grants begins again.
    pub(super) fn restart(&mut self, asked: &[(PoolKey, GrantId)]) {
        self.since.retain(|key, (id, _)| !asked.contains(&(key.clone(), *id)));
    }
}

/// The confirmed grant of the pool, if no address of the pool is in use.
fn unused(holding: &Holding) -> Option<(&PoolKey, GrantId)> {
    let grant = holding.grant.filter(|grant| grant.step == GrantStep::Confirmed && holding.used == 0)?;
    Some((&holding.key, grant.id))
}

#[cfg(test)]
mod tests {
    use ipam_core::PoolKind;
    use ipam_core::ledger::GrantUse;

    use super::*;

    fn holdings(used: u64, id: u64, step: GrantStep) -> Holdings {
        let range = "10.0.0.1".parse().ok().and_then(|addr| ipam_core::AddrRange::new(addr, addr)).unwrap();
        let grant = Some(GrantUse { id: GrantId::from_number(id), step });
        let key = PoolKey::new(PoolKind::IpPool, "a");
        let holding = Holding { key, range, used, capacity: 1, runs: Vec::new(), grant };
        Holdings { pools: vec![holding], ..Holdings::default() }
    }

    #[test]
    fn a_grant_is_idle_after_thirty_seconds_without_an_address_in_use() {
        let (start, mut all) = (Instant::now(), Unused::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let confirmed = |used| holdings(used, 7, GrantStep::Confirmed);
        assert_eq!(all.look(&confirmed(1), at(0)), (vec![], None));
        assert_eq!(all.look(&confirmed(0), at(1)), (vec![], Some(at(31))));
        assert_eq!(all.look(&confirmed(1), at(20)), (vec![], None), "in use again");
        assert_eq!(all.look(&confirmed(0), at(25)), (vec![], Some(at(55))));
        assert_eq!(all.look(&holdings(0, 8, GrantStep::Confirmed), at(50)), (vec![], Some(at(80))), "another grant");
        let (due, next) = all.look(&holdings(0, 8, GrantStep::Confirmed), at(80));
        assert_eq!((due.len(), due[0].1, next), (1, GrantId::from_number(8), None));
        for step in [GrantStep::Seen, GrantStep::Idle, GrantStep::Ended] {
            assert_eq!(all.look(&holdings(0, 8, step), at(200)), (vec![], None));
        }
    }
}
