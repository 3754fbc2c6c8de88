//! What a node reports of a pool: how many addresses are in use, and which, as runs.
//!
//! It only describes the records. A report must have a bounded length. So beyond a number of runs it has fewer and longer
//! ones that cover all addresses in use. It must never omit an address: another node may allocate what it does not name.

use std::net::IpAddr;

use std::collections::BTreeSet;

use super::GrantStep;
use crate::addr::number;
use crate::{AddrRange, Family, GrantId, PoolKey, RangeSet};

/// The addresses of one pool in use, whether the node still has a block of it or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The pool.
    pub key: PoolKey,
    /// The addresses from which the node allocates. For a pool that is not configured: from the first to the last address
    /// in use. If a pool of this name was of both families, only the first family counts.
    pub range: AddrRange,
    /// Number of addresses of this pool in use, including those outside `range`. Zero means that the node uses no address of it.
    pub used: u64,
    /// Addresses that can be allocated dynamically when none is in use, saturating; zero if the pool is not configured.
    pub capacity: u128,
    /// Runs in rising order that cover all addresses in use, and no others if they have `used` addresses in all.
    pub runs: Vec<AddrRange>,
    /// The grant of the configured block, and its step; `None` if the pool is not configured or the grant is not recorded.
    pub grant: Option<GrantUse>,
}

/// A grant and the step that it has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantUse {
    /// The grant.
    pub id: GrantId,
    /// The step.
    pub step: GrantStep,
}

impl Holding {
    /// The use of a pool that is not configured, as at most `most` runs (2 or more); `None` without any.
    pub fn unconfigured(key: PoolKey, held: &[AddrRange], most: usize) -> Option<Self> {
        let first = *held.iter().min()?;
        let last = held.iter().filter(|run| run.family() == first.family()).map(AddrRange::last).max()?;
        let range = AddrRange::new(first.first(), last)?;
        let mut holding = Self { key, range, used: 0, capacity: 0, runs: Vec::new(), grant: None };
        holding.join(held, most);
        Some(holding)
    }

    /// Adds unavailable addresses, because they may be in use, too. Some may be counted already. `most` is 2 or more.
    pub fn join(&mut self, held: &[AddrRange], most: usize) {
        let more = [Family::V4, Family::V6].map(|family| set(held, family).without(&set(&self.runs, family)).size());
        let more = more.into_iter().fold(0, u128::saturating_add);
        self.used = self.used.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        if self.capacity > 0 {
            // The capacity was without them, and they count as used.
            let (first, last) = self.range.numbers();
            let own = set(held, self.range.family()).clipped(first, last).size();
            self.capacity = self.capacity.saturating_add(own);
        }
        let mut all: Vec<_> = self.runs.iter().chain(held).copied().collect();
        all.sort_unstable();
        let mut merged: Vec<AddrRange> = Vec::with_capacity(all.len());
        for run in all {
            let met = merged.pop_if(|before| before.overlaps(&run) || follows(before.last(), run.first()));
            let whole = met.and_then(|before| AddrRange::new(before.first(), before.last().max(run.last())));
            merged.push(whole.unwrap_or(run));
        }
        self.runs = covered(merged, &self.range, most);
    }
}

/// The addresses of one family.
fn set(ranges: &[AddrRange], family: Family) -> RangeSet {
    ranges.iter().filter(|range| range.family() == family).map(AddrRange::numbers).collect()
}

/// Addresses of both families, as runs: IPv4 first.
#[derive(Clone, Default, Debug)]
pub(super) struct Runs([RangeSet; 2]);

impl Runs {
    pub(super) fn insert(&mut self, addr: IpAddr) {
        self.of(Family::of(addr)).insert(number(addr), number(addr));
    }

    pub(super) fn remove(&mut self, addr: IpAddr) {
        self.of(Family::of(addr)).remove(number(addr));
    }

    fn of(&mut self, family: Family) -> &mut RangeSet {
        let [v4, v6] = &mut self.0;
        if family == Family::V4 { v4 } else { v6 }
    }

    /// Maximal runs, in rising order.
    pub(super) fn all(&self) -> Vec<AddrRange> {
        let [v4, v6] = &self.0;
        let ranges = |set: &RangeSet, family: Family| {
            let range = |(first, last)| AddrRange::new(family.addr(first), family.addr(last));
            set.runs().filter_map(range).collect::<Vec<_>>()
        };
        [ranges(v4, Family::V4), ranges(v6, Family::V6)].concat()
    }

    /// Those in the range, as numbers.
    pub(super) fn within(&self, range: &AddrRange) -> RangeSet {
        let [v4, v6] = &self.0;
        let (first, last) = range.numbers();
        if range.family() == Family::V4 { v4.clipped(first, last) } else { v6.clipped(first, last) }
    }
}

/// The same runs, or at most `most` runs that cover them. `most` is at least 2, since the two families cannot be joined.
/// The narrowest gaps within `own` are closed first: other nodes cannot allocate these addresses anyway. Outside it, the
/// runs are as exact as possible, because what they cover is unavailable to other nodes.
pub(super) fn covered(runs: Vec<AddrRange>, own: &AddrRange, most: usize) -> Vec<AddrRange> {
    let surplus = runs.len().saturating_sub(most);
    if surplus == 0 {
        return runs;
    }
    let gaps = runs.windows(2).enumerate();
    let mut gaps: Vec<_> = gaps.filter_map(|(at, pair)| Some((price(&pair[0], &pair[1], own)?, at))).collect();
    if surplus < gaps.len() {
        gaps.select_nth_unstable(surplus);
        gaps.truncate(surplus);
    }
    let closed: BTreeSet<usize> = gaps.into_iter().map(|(_, at)| at).collect();
    let mut cover: Vec<AddrRange> = Vec::with_capacity(most);
    for (at, run) in runs.into_iter().enumerate() {
        let before = cover.pop_if(|_| at.checked_sub(1).is_some_and(|gap| closed.contains(&gap)));
        let first = before.map_or(run.first(), |before| before.first());
        cover.extend(AddrRange::new(first, run.last()));
    }
    cover
}

/// The cost of closing the gap between two neighbours: first by its place, then by its length. `None` between families.
fn price(before: &AddrRange, after: &AddrRange, own: &AddrRange) -> Option<(u8, u128)> {
    let hull = AddrRange::new(before.first(), after.last())?;
    let place = if own.contains_range(&hull) {
        0
    } else if hull.overlaps(own) {
        2
    } else {
        1
    };
    Some((place, number(after.first()) - number(before.last())))
}

/// From the first address to the last one of the same family, of runs in rising order; `None` without any.
pub(super) fn hull(runs: &[AddrRange]) -> Option<AddrRange> {
    let first = runs.first()?;
    let last = runs.iter().rfind(|run| run.family() == first.family()).unwrap_or(first);
    AddrRange::new(first.first(), last.last())
}

fn follows(before: IpAddr, addr: IpAddr) -> bool {
    Family::of(before) == Family::of(addr) && number(before).checked_add(1) == Some(number(addr))
}
