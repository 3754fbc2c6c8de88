//! Which node may use which addresses, of which pool, and by which evidence.
//!
//! Every record that the operator has is a source: the status of a pool, an IPAMNode, a reservation. A source has facts.
//! [`Occupancy::replace`] replaces all facts of one source and returns what has changed. A pool must be reconciled again
//! if [`Touched::concerns`] it, or if it starts or stops sharing addresses with other pools.
//!
//! While the agent may allocate from a block, the block is the fact, and not the addresses in use inside it. So the
//! number of facts grows with the number of blocks, not of addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use slab::Slab;

use crate::{AddrRange, Family, PoolKey, RangeSet};

/// Why a node may use addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The status of the pool records the block, or a status write whose outcome is unknown may record it.
    Recorded,
    /// The IPAMNode of the node has an entry for the block, and the agent may allocate from it.
    Entry,
    /// The IPAMNode has an entry for the block, and the agent has reported that it no longer allocates from it. Addresses
    /// that are still in use are [`Evidence::InUse`].
    StoppedEntry,
    /// The agent reports addresses in use inside a block of [`Evidence::StoppedEntry`].
    InUse,
    /// The agent reports the gateway of its entry in use, outside the block of its node. A pod on any node may have the gateway.
    Gateway,
    /// The agent reports addresses in use outside the block of its node.
    OutsideBlock,
    /// No record of the block is left: it is reserved for its node.
    Reserved,
}

/// One node may use these addresses of one pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fact {
    /// The pool that the addresses were assigned from.
    pub pool: Arc<PoolKey>,
    /// The name of the node.
    pub node: Arc<str>,
    /// The addresses.
    pub range: AddrRange,
    /// Why the node may use the addresses.
    pub evidence: Evidence,
}

/// A record that has facts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The status of a pool, and its status writes whose outcome is unknown.
    Status(PoolKey),
    /// The IPAMNode of a node, with its report.
    IpamNode(String),
    /// The last report of a deleted IPAMNode of this name, until the agent reports in a new one.
    DeletedIpamNode(String),
    /// The blocks that recovery reserves for a node.
    Reservations(String),
}

/// All facts, by source and by address.
#[derive(Clone, Default, Debug)]
pub struct Occupancy {
    facts: Slab<Fact>,
    /// Source → the places of its facts, in the order of the facts.
    sources: HashMap<Source, Vec<usize>>,
    v4: Index,
    v6: Index,
    /// Pool → the places of its facts of [`Evidence::OutsideBlock`]. There are few.
    outside: BTreeMap<PoolKey, BTreeSet<usize>>,
    names: Names,
}

impl Occupancy {
    /// An occupancy without facts.
    pub fn new() -> Self {
        Self::default()
    }

    /// A fact, with names that are shared with the other facts.
    pub fn fact(&mut self, pool: &PoolKey, node: &str, range: AddrRange, evidence: Evidence) -> Fact {
        Fact { pool: self.names.pool(pool), node: self.names.node(node), range, evidence }
    }

    /// Replaces all facts of the source with these, in whatever order. Returns what has changed.
    pub fn replace(&mut self, source: &Source, mut facts: Vec<Fact>) -> Touched {
        facts.sort_unstable();
        facts.dedup();
        let mut touched = Touched::default();
        let mut places = Vec::with_capacity(facts.len());
        let mut before = self.sources.remove(source).unwrap_or_default().into_iter().peekable();
        for fact in facts {
            while let Some(gone) = before.next_if(|place| self.facts.get(*place).is_some_and(|known| *known < fact)) {
                self.remove(gone, &mut touched);
            }
            let same = before.next_if(|place| self.facts.get(*place) == Some(&fact));
            places.push(same.unwrap_or_else(|| self.insert(fact, &mut touched)));
        }
        before.for_each(|gone| self.remove(gone, &mut touched));
        if !places.is_empty() {
            self.sources.insert(source.clone(), places);
        }
        self.names.forget_unused();
        touched
    }

    /// The sources that have facts.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.keys()
    }

    /// The facts of a source.
    pub fn of(&self, source: &Source) -> impl Iterator<Item = &Fact> {
        self.sources.get(source).into_iter().flatten().filter_map(|place| self.facts.get(*place))
    }

    /// The facts about any address of `range`. Two sources may have the same one.
    pub fn overlapping(&self, range: &AddrRange) -> impl Iterator<Item = &Fact> {
        let index = match range.family() {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let range = *range;
        index.near(range).filter_map(|place| self.facts.get(place)).filter(move |fact| fact.range.overlaps(&range))
    }

    /// The addresses of the pool that agents report in use outside the blocks of their nodes.
    pub fn outside_blocks(&self, pool: &PoolKey) -> impl Iterator<Item = &Fact> {
        self.outside.get(pool).into_iter().flatten().filter_map(|place| self.facts.get(*place))
    }

    /// Number of names that facts share, including unused names that are not dropped yet.
    pub fn names(&self) -> usize {
        self.names.nodes.len() + self.names.pools.len()
    }

    /// Whether an agent reports addresses in use outside the block of its node.
    pub fn has_outside_blocks(&self) -> bool {
        !self.outside.is_empty()
    }

    /// The facts that make addresses of `network` unavailable to nodes of `pool` that do not have them. These are the
    /// facts of other pools, except pools that `shares` accepts, because both may have the same addresses. The others are
    /// facts that no record of `pool` covers. A gateway in use is among them, also if it is still the gateway of the
    /// pool.
    pub fn unavailable<'a>(
        &'a self,
        pool: &'a PoolKey,
        network: &'a AddrRange,
        shares: &'a dyn Fn(&PoolKey) -> bool,
    ) -> impl Iterator<Item = &'a Fact> {
        self.overlapping(network).filter(move |fact| {
            if *fact.pool != *pool {
                return !shares(&fact.pool);
            }
            match fact.evidence {
                Evidence::OutsideBlock | Evidence::Reserved | Evidence::Gateway => true,
                // A block of an earlier network.
                Evidence::Entry | Evidence::StoppedEntry | Evidence::InUse => !network.contains_range(&fact.range),
                Evidence::Recorded => false,
            }
        })
    }

    fn insert(&mut self, fact: Fact, touched: &mut Touched) -> usize {
        touched.note(&fact);
        let place = self.facts.vacant_key();
        self.index(fact.range.family()).insert(&fact.range, place);
        if fact.evidence == Evidence::OutsideBlock {
            self.outside.entry((*fact.pool).clone()).or_default().insert(place);
        }
        self.facts.insert(fact)
    }

    fn remove(&mut self, place: usize, touched: &mut Touched) {
        let Some(fact) = self.facts.try_remove(place) else { return };
        touched.note(&fact);
        self.index(fact.range.family()).remove(&fact.range, place);
        if let Some(places) = self.outside.get_mut(&*fact.pool).filter(|_| fact.evidence == Evidence::OutsideBlock) {
            places.remove(&place);
            if places.is_empty() {
                self.outside.remove(&*fact.pool);
            }
        }
    }

    fn index(&mut self, family: Family) -> &mut Index {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Places of the facts of one family, by size class and first address. A range of class `c` has less than `2^c`
/// addresses. So if it begins before a range that it overlaps, it begins less than `2^c` addresses before.
#[derive(Clone, Default, Debug)]
struct Index {
    places: BTreeSet<(u32, u128, usize)>,
    /// Class → number of facts.
    classes: BTreeMap<u32, usize>,
}

impl Index {
    fn insert(&mut self, range: &AddrRange, place: usize) {
        if self.places.insert((class(range), range.numbers().0, place)) {
            *self.classes.entry(class(range)).or_default() += 1;
        }
    }

    fn remove(&mut self, range: &AddrRange, place: usize) {
        if !self.places.remove(&(class(range), range.numbers().0, place)) {
            return;
        }
        if let Some(count) = self.classes.get_mut(&class(range)) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&class(range));
            }
        }
    }

    /// Places of all facts that overlap the range, and of few others.
    fn near(&self, range: AddrRange) -> impl Iterator<Item = usize> {
        let (first, last) = range.numbers();
        let in_class = move |class: &u32| {
            let longest = u128::MAX.checked_shr(u128::BITS - *class).unwrap_or_default();
            self.places.range((*class, first.saturating_sub(longest), 0)..=(*class, last, usize::MAX))
        };
        self.classes.keys().flat_map(in_class).map(|(.., place)| *place)
    }
}

/// The number of bits of the size of a range.
const fn class(range: &AddrRange) -> u32 {
    u128::BITS - range.size().leading_zeros()
}

/// Names of pools and nodes that facts share.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Names {
    pools: HashSet<Arc<PoolKey>>,
    nodes: HashSet<Arc<str>>,
    /// Number of names at which unused names are dropped.
    full: usize,
}

/// Unused names are not dropped while there are fewer names than this.
const FEW_NAMES: usize = 1024;

impl Names {
    fn pool(&mut self, pool: &PoolKey) -> Arc<PoolKey> {
        if let Some(known) = self.pools.get(pool) {
            return known.clone();
        }
        let name = Arc::new(pool.clone());
        self.pools.insert(name.clone());
        name
    }

    fn node(&mut self, node: &str) -> Arc<str> {
        if let Some(known) = self.nodes.get(node) {
            return known.clone();
        }
        let name: Arc<str> = node.into();
        self.nodes.insert(name.clone());
        name
    }

    /// Drops names that no fact uses. Autoscaling creates new node names without end.
    fn forget_unused(&mut self) {
        if self.nodes.len() + self.pools.len() < self.full.max(FEW_NAMES) {
            return;
        }
        self.nodes.retain(|name| Arc::strong_count(name) > 1);
        self.pools.retain(|name| Arc::strong_count(name) > 1);
        self.full = 2 * (self.nodes.len() + self.pools.len());
    }
}

/// What a replacement of facts has changed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Touched {
    /// Pool → addresses of its facts that have changed.
    by_pool: BTreeMap<Arc<PoolKey>, Addresses>,
    /// Pools with a changed fact that matters to the pool itself.
    own: BTreeSet<Arc<PoolKey>>,
}

impl Touched {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.by_pool.is_empty()
    }

    /// Adds what another replacement has changed.
    pub fn extend(&mut self, other: Self) {
        for (pool, addresses) in other.by_pool {
            self.by_pool.entry(pool).or_default().extend(&addresses);
        }
        self.own.extend(other.own);
    }

    /// Whether a pool with this network must be reconciled again. `shares` accepts the pools that may have the same addresses.
    pub fn concerns(&self, pool: &PoolKey, network: Option<&AddrRange>, shares: &dyn Fn(&PoolKey) -> bool) -> bool {
        if self.own.contains(pool) {
            return true;
        }
        let Some(network) = network else { return false };
        let own = self.by_pool.get(pool).is_some_and(|addresses| addresses.reach_beyond(network));
        own || self.reaches(pool, network, shares)
    }

    /// Whether facts of other pools about addresses of `range` have changed. `pool` has these addresses. `shares` accepts
    /// the pools that may have the same addresses.
    pub fn reaches(&self, pool: &PoolKey, range: &AddrRange, shares: &dyn Fn(&PoolKey) -> bool) -> bool {
        let mut others = self.by_pool.iter().filter(|(of, _)| ***of != *pool);
        others.any(|(of, addresses)| addresses.intersect(range) && !shares(of))
    }

    fn note(&mut self, fact: &Fact) {
        self.by_pool.entry(fact.pool.clone()).or_default().insert(&fact.range);
        if matches!(fact.evidence, Evidence::OutsideBlock | Evidence::Reserved | Evidence::Gateway) {
            self.own.insert(fact.pool.clone());
        }
    }
}

/// A set of addresses of both families.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Addresses {
    v4: RangeSet,
    v6: RangeSet,
}

impl Addresses {
    /// Adds a range.
    pub fn insert(&mut self, range: &AddrRange) {
        let (first, last) = range.numbers();
        match range.family() {
            Family::V4 => self.v4.insert(first, last),
            Family::V6 => self.v6.insert(first, last),
        }
    }

    /// Whether an address of `range` is in the set.
    pub fn intersect(&self, range: &AddrRange) -> bool {
        let (first, last) = range.numbers();
        match range.family() {
            Family::V4 => self.v4.intersects(first, last),
            Family::V6 => self.v6.intersects(first, last),
        }
    }

    /// Whether an address of the set is outside of `range`.
    pub fn reach_beyond(&self, range: &AddrRange) -> bool {
        let (first, last) = range.numbers();
        let (own, other) = match range.family() {
            Family::V4 => (&self.v4, &self.v6),
            Family::V6 => (&self.v6, &self.v4),
        };
        !other.is_empty() || own.runs().any(|(from, to)| from < first || last < to)
    }

    fn extend(&mut self, other: &Self) {
        self.v4.extend(other.v4.runs());
        self.v6.extend(other.v6.runs());
    }
}
