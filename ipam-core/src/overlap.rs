//! When two pools of one namespace stand in each other's way, and which of them serves.
//!
//! The operator settles what is there, the webhook refuses what would come: both by the same rule, from plain data. Two
//! networks either nest or share nothing, so an ordered map of networks answers by looking up the few that could hold
//! the asked one and the run of those inside it. Nothing here compares every pool with every other.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::words::listed;
use crate::{Cidr, Pool, PoolKey, PoolKind, Reason, Violation};

/// Annotation of a pool: with the value `"true"` on both of two pools they may have the same addresses, as isolated L2
/// networks do.
pub const ALLOW_OVERLAP_ANNOTATION: &str = "nv-ipam.nvidia.com/allow-overlap";

/// Other pools that a message names; the rest is counted.
const MOST_NAMED: usize = 3;

/// A pool, as far as another could be in its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contender {
    /// Which pool.
    pub key: PoolKey,
    /// `spec.subnet` or `spec.cidr`, without bits behind the prefix.
    pub network: Cidr,
    /// `metadata.creationTimestamp`, in seconds since 1970. A pool that does not exist yet is the youngest: `i64::MAX`.
    pub created: i64,
    /// Whether [`ALLOW_OVERLAP_ANNOTATION`] is `"true"`.
    pub allows_overlap: bool,
}

impl Contender {
    /// Whether the value of [`ALLOW_OVERLAP_ANNOTATION`] allows overlap: exactly `true`, as Kubernetes spells it. Anything
    /// else, absence included, does not.
    pub fn allows(annotation: Option<&str>) -> bool {
        annotation == Some("true")
    }

    /// Whether the two may not serve both. A pool is never in its own way.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.key != other.key
            && !(self.allows_overlap && other.allows_overlap)
            && self.network.range().overlaps(&other.network.range())
    }

    /// What sorts the older before the younger; equally old are sorted by kind and name, so that all replicas agree.
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

/// Pools by network, kept up as they come and go.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Contenders {
    by_network: BTreeMap<Cidr, BTreeMap<PoolKey, Contender>>,
    networks: BTreeMap<PoolKey, Cidr>,
}

impl Contenders {
    /// No pools.
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

    /// Adds a pool, in the place of an earlier state of the same pool.
    pub fn insert(&mut self, contender: Contender) {
        self.remove(&contender.key);
        self.networks.insert(contender.key.clone(), contender.network);
        self.by_network.entry(contender.network).or_default().insert(contender.key.clone(), contender);
    }

    /// Takes a pool out; does nothing if it is not there.
    pub fn remove(&mut self, key: &PoolKey) {
        let Some(network) = self.networks.remove(key) else { return };
        if let Some(pools) = self.by_network.get_mut(&network) {
            pools.remove(key);
            if pools.is_empty() {
                self.by_network.remove(&network);
            }
        }
    }

    /// The pools that `contender` may not serve beside, oldest first. An earlier state of the same pool is none of them.
    pub fn conflicts(&self, contender: &Contender) -> Vec<&Contender> {
        self.conflicts_among(contender, usize::MAX)
    }

    /// The same where no more than `most` are looked for, in the order of their networks.
    pub fn conflicts_among(&self, contender: &Contender, most: usize) -> Vec<&Contender> {
        let sharing = self.sharing(&contender.network);
        let mut found: Vec<&Contender> = sharing.filter(|other| contender.conflicts_with(other)).take(most).collect();
        found.sort_unstable_by_key(|other| other.seniority());
        found
    }

    /// The conflicts that an edit from `old` to `new` would make: those that the pool had before are no fault of it. Without
    /// `old`, all of them. This is what a review asks; who of two serves is for [`settle`] to say.
    pub fn conflicts_made(&self, old: Option<&Contender>, new: &Contender) -> Vec<&Contender> {
        let mut found = self.conflicts(new);
        found.retain(|other| old.is_none_or(|old| !old.conflicts_with(other)));
        found
    }

    /// The pools whose network shares an address with `network`.
    fn sharing(&self, network: &Cidr) -> impl Iterator<Item = &Contender> {
        let wider = (0..network.prefix_len()).filter_map(|len| Cidr::containing(network.network(), len));
        let wider = wider.filter_map(|outer| self.by_network.get(&outer));
        let inside = self.by_network.range(within(network)).map(|(_, pools)| pools);
        wider.chain(inside).flat_map(BTreeMap::values)
    }
}

impl FromIterator<Contender> for Contenders {
    fn from_iter<T: IntoIterator<Item = Contender>>(contenders: T) -> Self {
        let mut all = Self::new();
        contenders.into_iter().for_each(|contender| all.insert(contender));
        all
    }
}

/// `network` and all inside it, as they are sorted: by first address, the wider first.
fn within(network: &Cidr) -> RangeInclusive<Cidr> {
    let longest = network.family().bits();
    let last = Cidr::containing(network.range().last(), longest).unwrap_or(*network);
    *network..=last
}

/// Which pools may not serve: each with the oldest serving pool that stands in its way.
///
/// By age, then by kind and name, a pool serves if it conflicts with no older one that serves. So the answer depends on
/// the pools alone: every replica and every restart come to the same one.
pub fn settle(contenders: &[Contender]) -> BTreeMap<PoolKey, PoolKey> {
    let mut by_age: Vec<&Contender> = contenders.iter().collect();
    by_age.sort_unstable_by_key(|contender| contender.seniority());
    let (mut serving, mut losers) = (Contenders::new(), BTreeMap::new());
    for contender in by_age {
        match serving.conflicts(contender).first() {
            Some(winner) => drop(losers.insert(contender.key.clone(), winner.key.clone())),
            None => serving.insert(contender.clone()),
        }
    }
    losers
}

/// What to say of a pool that `conflicts` with others, which must be sorted by importance; `None` if there are none.
pub fn violation(contender: &Contender, conflicts: &[&Contender]) -> Option<Violation> {
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
    /// Whether the two pools' networks share an address, so that two nodes or pods could be given the same one.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.network().range().overlaps(&other.network().range())
    }
}
