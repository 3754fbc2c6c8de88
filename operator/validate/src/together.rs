//! Checks across pools: duplicate names, and addresses that two pools have.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipam_core::{OverlapCandidate, OverlapCandidates, PoolKey, Reason, overlap};

use super::pool::Judged;
use super::report::{Origin, Problem};

/// Most conflicts that are searched for one pool: files with thousands of overlapping pools must not take hours.
const MOST_CONFLICTS: usize = 100;

/// The pools so far.
#[derive(Default)]
pub(super) struct Together {
    by_namespace: BTreeMap<String, Pools>,
}

#[derive(Default)]
struct Pools {
    origins: HashMap<PoolKey, Origin>,
    networks: OverlapCandidates,
}

impl Together {
    /// Compares a pool with the earlier ones. Of two that overlap the earlier one counts as older, because files have no
    /// other order.
    pub(super) fn add(&mut self, pool: &mut Judged) {
        if pool.key.name.is_empty() {
            return;
        }
        let pools = self.by_namespace.entry(pool.namespace.clone()).or_default();
        if let Some(first) = pools.origins.get(&pool.key) {
            let message = format!("is the name of another {} in this namespace, {}", pool.key.kind, at(first));
            let field = "metadata.name".to_owned();
            pool.problems.push(Problem { field, reason: Reason::Duplicate, message, place: pool.name_at });
            return;
        }
        let created = i64::try_from(pools.origins.len()).unwrap_or(i64::MAX);
        pools.origins.insert(pool.key.clone(), pool.origin.clone());
        let Some(network) = pool.network else { return };
        let contender =
            OverlapCandidate { key: pool.key.clone(), network, created, allows_overlap: pool.allows_overlap };
        let conflicts = pools.networks.conflicts_among(&contender, MOST_CONFLICTS);
        if let Some(violation) = overlap::violation(&contender, &conflicts) {
            let first = conflicts.first().and_then(|other| pools.origins.get(&other.key));
            let place = first.map_or_else(String::new, |first| format!(" (the first stands {})", at(first)));
            let rest = if conflicts.len() < MOST_CONFLICTS { "" } else { "; there may be others" };
            pool.problems.push(Problem {
                field: violation.field,
                reason: violation.reason,
                message: violation.message + &place + rest,
                place: pool.network_at,
            });
        }
        pools.networks.insert(contender);
    }
}

impl Together {
    /// The names of the pools in a namespace.
    pub(super) fn names(&self, namespace: &str) -> BTreeSet<PoolKey> {
        self.by_namespace.get(namespace).into_iter().flat_map(|pools| pools.origins.keys().cloned()).collect()
    }

    /// The names of all pools.
    pub(super) fn keys(&self) -> impl Iterator<Item = &PoolKey> {
        self.by_namespace.values().flat_map(|pools| pools.origins.keys())
    }
}

fn at(origin: &Origin) -> String {
    format!("at {}:{}", origin.file, origin.place)
}
