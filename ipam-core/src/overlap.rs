//! Which pools of a namespace overlap, and which of them are served.
//!
//! The operator resolves overlaps of existing pools, and the webhook rejects new overlaps. Both use the same rule. Two
//! networks are either nested or disjoint. So an ordered map finds the overlaps of a network by two look-ups. One is for
//! the few wider networks that can contain it, one for the run of networks inside it. No code here compares every pool
//! with every other.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::words::listed;
use crate::{Cidr, Pool, PoolKey, PoolKind, Reason, Violation};

/// Annotation of a pool. Two pools may have the same addresses if both have it with the value `"true"`, as isolated L2
/// networks do.
pub const ALLOW_OVERLAP_ANNOTATION: &str = "nv-ipam.nvidia.com/allow-overlap";

/// Other pools that a message names; the rest is counted.
const MOST_NAMED: usize = 3;

/// The properties of a pool that decide whether it conflicts with another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverlapCandidate {
    /// The pool.
    pub key: PoolKey,
    /// `spec.subnet` or `spec.cidr`, without host bits.
    pub network: Cidr,
    /// `metadata.creationTimestamp`, in seconds since 1970. A pool that does not exist yet is the youngest: `i64::MAX`.
    pub created: i64,
    /// Whether [`ALLOW_OVERLAP_ANNOTATION`] is `"true"`.
    pub allows_overlap: bool,
}

impl OverlapCandidate {
    /// Whether the value of [`ALLOW_OVERLAP_ANNOTATION`] allows overlap: exactly `true`, as Kubernetes spells it. Anything
    /// else, absence included, does not.
    pub fn allows(annotation: Option<&str>) -> bool {
        annotation == Some("true")
    }

    /// Whether only one of the two pools may be served. A pool never conflicts with itself.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.key != other.key
            && !(self.allows_overlap && other.allows_overlap)
            && self.network.range().overlaps(&other.network.range())
    }

    /// The sort key: the older pool first, then by kind and name, so that all replicas agree.
    fn seniority(&self) -> (i64, &PoolKey) {
        (self.created, &self.key)
    }

    /// The field that holds the network.
    const fn field(&self) -> &'static str {
        match self.key.kind {
            PoolKind::IpPool => "spec.subnet",
            PoolKind::CidrPool => "spec.cidr",
        }
    }
}

/// Pools by network, updated as pools are created and deleted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OverlapCandidates {
    by_network: BTreeMap<Cidr, BTreeMap<PoolKey, OverlapCandidate>>,
    networks: BTreeMap<PoolKey, Cidr>,
}

impl OverlapCandidates {
    /// An empty set of pools.
    pub const fn new() -> Self {
        Self { by_network: BTreeMap::new(), networks: BTreeMap::new() }
    }

    /// Number of pools.
    pub fn len(&self) -> usize {
        self.networks.len()
    }

    /// Whether there is no pool.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Adds a pool. Replaces an earlier state of the same pool.
    pub fn insert(&mut self, contender: OverlapCandidate) {
        self.remove(&contender.key);
        self.networks.insert(contender.key.clone(), contender.network);
        self.by_network.entry(contender.network).or_default().insert(contender.key.clone(), contender);
    }

    /// Removes a pool; does nothing if it is absent.
    pub fn remove(&mut self, key: &PoolKey) {
        let Some(network) = self.networks.remove(key) else { return };
        if let Some(pools) = self.by_network.get_mut(&network) {
            pools.remove(key);
            if pools.is_empty() {
                self.by_network.remove(&network);
            }
        }
    }

    /// The pools that conflict with `contender`, oldest first. An earlier state of the same pool is not one of them.
    pub fn conflicts(&self, contender: &OverlapCandidate) -> Vec<&OverlapCandidate> {
        self.conflicts_among(contender, usize::MAX)
    }

    /// Like [`Self::conflicts`], but only of the first `most` conflicting pools in the order of their networks.
    pub fn conflicts_among(&self, contender: &OverlapCandidate, most: usize) -> Vec<&OverlapCandidate> {
        let sharing = self.sharing(&contender.network);
        let mut found: Vec<&OverlapCandidate> =
            sharing.filter(|other| contender.conflicts_with(other)).take(most).collect();
        found.sort_unstable_by_key(|other| other.seniority());
        found
    }

    /// The conflicts that an edit from `old` to `new` adds. Conflicts that the pool had before do not count. Without
    /// `old`, these are all conflicts. The webhook calls this. [`settle`] decides which of two pools is served.
    pub fn conflicts_made(&self, old: Option<&OverlapCandidate>, new: &OverlapCandidate) -> Vec<&OverlapCandidate> {
        let mut found = self.conflicts(new);
        found.retain(|other| old.is_none_or(|old| !old.conflicts_with(other)));
        found
    }

    /// The pools whose network shares an address with `network`.
    fn sharing(&self, network: &Cidr) -> impl Iterator<Item = &OverlapCandidate> {
        let wider = (0..network.prefix_len()).filter_map(|len| Cidr::containing(network.network(), len));
        let wider = wider.filter_map(|outer| self.by_network.get(&outer));
        let inside = self.by_network.range(within(network)).map(|(_, pools)| pools);
        wider.chain(inside).flat_map(BTreeMap::values)
    }
}

impl FromIterator<OverlapCandidate> for OverlapCandidates {
    fn from_iter<T: IntoIterator<Item = OverlapCandidate>>(contenders: T) -> Self {
        let mut all = Self::new();
        contenders.into_iter().for_each(|contender| all.insert(contender));
        all
    }
}

/// `network` and all networks inside it, in the order of the map: by first address, the wider first.
fn within(network: &Cidr) -> RangeInclusive<Cidr> {
    let longest = network.family().bits();
    let last = Cidr::containing(network.range().last(), longest).unwrap_or(*network);
    *network..=last
}

/// The pools that are not served, each with the oldest served pool that conflicts with it.
///
/// Pools are sorted by age, then by kind and name. A pool is served if it conflicts with no earlier pool that is served.
/// So the result depends on the pools alone: every replica computes the same one, also after a restart.
pub fn settle(contenders: &[OverlapCandidate]) -> BTreeMap<PoolKey, PoolKey> {
    let mut by_age: Vec<&OverlapCandidate> = contenders.iter().collect();
    by_age.sort_unstable_by_key(|contender| contender.seniority());
    let (mut serving, mut losers) = (OverlapCandidates::new(), BTreeMap::new());
    for contender in by_age {
        match serving.conflicts(contender).first() {
            Some(winner) => drop(losers.insert(contender.key.clone(), winner.key.clone())),
            None => serving.insert(contender.clone()),
        }
    }
    losers
}

/// The error for a pool with these `conflicts`, which must be sorted by importance; `None` if there are none.
pub fn violation(contender: &OverlapCandidate, conflicts: &[&OverlapCandidate]) -> Option<Violation> {
    if conflicts.is_empty() {
        return None;
    }
    let named = listed(conflicts.iter().map(|other| format!("{} ({})", other.key, other.network)), MOST_NAMED);
    let remedy = if contender.allows_overlap {
        format!("which lack the annotation {ALLOW_OVERLAP_ANNOTATION}: \"true\" that this pool has; both must have it")
    } else {
        format!(
            "write a network of its own, or, if the two are isolated L2 networks, set the annotation \
             {ALLOW_OVERLAP_ANNOTATION}: \"true\" on both"
        )
    };
    let separator = if contender.allows_overlap { ", " } else { "; " };
    let message = format!("\"{}\" shares addresses with {named}{separator}{remedy}", contender.network);
    Some(Violation::new(contender.field(), Reason::Overlap, message))
}

impl Pool {
    /// Whether the networks of the two pools share an address, so that two nodes or pods could get the same one.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.network().range().overlaps(&other.network().range())
    }
}
