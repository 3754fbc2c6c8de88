//! The book of one pool: the addresses in use and their owners, the place of the round robin, and the cooldowns.
//!
//! A *stray* is an address in use whose pool is gone, or has another subnet by now. Its owner still uses it, so no other
//! pool may allocate it, although the configured pools do not know of it.
//!
//! One set of runs has all addresses that may not be allocated dynamically. So the next free address is found in
//! logarithmic time, whatever the size of the range. The set is derived from the records and from the configured pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::cooling::Cooling;
use super::holding::{Holding, covered, hull, runs};
use super::{Change, Owner, PoolUsage, Refusal, Reservation};
use crate::addr::number;
use crate::{NodePool, PoolKey, RangeSet};

#[derive(Clone, Debug)]
pub(super) struct Book {
    pool: Option<NodePool>,
    held: BTreeMap<IpAddr, Reservation>,
    /// The address of each owner in `held`: one each.
    owners: BTreeMap<Owner, IpAddr>,
    /// What an older store records of addresses or owners that `held` has otherwise. Usually empty.
    contested: Vec<Reservation>,
    /// The last address found by round robin; it may lie outside the pool's present range.
    cursor: Option<IpAddr>,
    /// Never an address of `held` or `contested`.
    cooling: Cooling,
    /// Strays of other books in the pool's range. Empty without a pool.
    foreign: BTreeSet<IpAddr>,
    /// Of the pool's range: exclusions, unavailable addresses, gateway, `held`, `contested`, `cooling` and `foreign`. Empty without a pool.
    blocked: RangeSet,
}

impl Book {
    pub(super) const fn new(cooldown_seconds: u64) -> Self {
        Self {
            pool: None,
            held: BTreeMap::new(),
            owners: BTreeMap::new(),
            contested: Vec::new(),
            cursor: None,
            cooling: Cooling::new(cooldown_seconds),
            foreign: BTreeSet::new(),
            blocked: RangeSet::new(),
        }
    }

    pub(super) const fn pool(&self) -> Option<&NodePool> {
        self.pool.as_ref()
    }

    pub(super) fn held_by(&self, owner: &Owner) -> Option<&Reservation> {
        let held = self.owners.get(owner).and_then(|addr| self.held.get(addr));
        held.or_else(|| self.contested.iter().find(|held| held.owner == *owner))
    }

    pub(super) fn holder(&self, addr: IpAddr) -> Option<&Reservation> {
        self.held.get(&addr).or_else(|| self.contested.iter().find(|held| held.addr == addr))
    }

    pub(super) fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.held.values().chain(&self.contested)
    }

    /// The addresses in use, in rising order.
    fn addrs(&self) -> Vec<IpAddr> {
        let mut addrs: Vec<IpAddr> = self.held.keys().copied().chain(self.only_contested()).collect();
        addrs.sort_unstable();
        addrs
    }

    /// How many addresses are in use.
    pub(super) fn used(&self) -> u64 {
        u64::try_from(self.held.len() + self.only_contested().len()).unwrap_or(u64::MAX)
    }

    /// The addresses that only an older store has.
    fn only_contested(&self) -> BTreeSet<IpAddr> {
        self.contested.iter().map(|held| held.addr).filter(|addr| !self.held.contains_key(addr)).collect()
    }

    /// Whether an older store has an address of the owner that is contested.
    pub(super) fn has_contested(&self, owner: &Owner) -> bool {
        self.contested.iter().any(|held| held.owner == *owner)
    }

    pub(super) fn usage(&self) -> Option<PoolUsage> {
        let pool = self.pool.as_ref()?;
        Some(PoolUsage { key: pool.key.clone(), range: pool.range, used: self.used(), capacity: pool.capacity() })
    }

    /// The use of the pool; `None` without a pool and an address in use: then there is nothing to report.
    pub(super) fn holding(&self, key: &PoolKey, most_runs: usize) -> Option<Holding> {
        let held = self.addrs();
        let range = self.pool.as_ref().map(|pool| pool.range).or_else(|| hull(held.iter().copied()))?;
        Some(Holding {
            key: key.clone(),
            range,
            used: self.used(),
            capacity: self.pool.as_ref().map_or(0, NodePool::capacity),
            runs: covered(runs(held.into_iter()), &range, most_runs),
            grant: None,
        })
    }

    /// Whether an address of the pool is in use, inside the configured range or outside.
    pub(super) fn is_in_use(&self) -> bool {
        !self.held.is_empty() || !self.contested.is_empty()
    }

    pub(super) fn snapshot(&self, key: &PoolKey) -> Vec<Change> {
        let held = self.held.values().cloned();
        let reserves = held.map(|reservation| Change::Reserve { reservation, moves_cursor: false });
        let contested = self.contested.iter().map(|held| Change::Contested { reservation: held.clone() });
        let cursor = self.cursor.map(|addr| Change::Cursor { pool: key.clone(), addr });
        let cooling = self.cooling.iter().map(|(addr, since)| Change::Cooling { pool: key.clone(), addr, since });
        reserves.chain(contested).chain(cursor).chain(cooling).collect()
    }

    pub(super) fn configure(&mut self, pool: Option<NodePool>) {
        if self.pool != pool {
            self.pool = pool;
            self.foreign.clear();
            self.block_anew();
        }
    }

    /// The strays of all books; those of this one are outside its range.
    pub(super) fn set_strays(&mut self, strays: &BTreeSet<IpAddr>) {
        let Some(pool) = &self.pool else { return };
        let inside = strays.iter().copied().filter(|&addr| pool.range.contains(addr));
        let foreign: BTreeSet<_> = inside.collect();
        if self.foreign != foreign {
            self.foreign = foreign;
            self.block_anew();
        }
    }

    /// The strays among the addresses in use here.
    pub(super) fn strays(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations().filter(|held| self.is_stray(held.addr))
    }

    /// The reservation of `addr`, if it is a stray of this book.
    pub(super) fn stray_holder(&self, addr: IpAddr) -> Option<&Reservation> {
        self.holder(addr).filter(|held| self.is_stray(held.addr))
    }

    fn is_stray(&self, addr: IpAddr) -> bool {
        self.pool.as_ref().is_none_or(|pool| !pool.subnet.contains(addr))
    }

    /// Records that `addr` is not a stray any more.
    pub(super) fn end_stray(&mut self, addr: IpAddr) {
        if self.foreign.remove(&addr) && self.holder(addr).is_none() && !self.cooling.contains(addr) {
            self.unblock(addr);
        }
    }

    fn block_anew(&mut self) {
        self.blocked = RangeSet::new();
        let Some(pool) = &self.pool else { return };
        let (first, last) = pool.range.numbers();
        self.blocked = pool.exclusions.clipped(first, last);
        self.blocked.extend(pool.elsewhere.clipped(first, last).runs());
        let cooling = self.cooling.iter().map(|(addr, _)| addr);
        let held = self.held.keys().chain(&self.foreign).copied();
        let held = held.chain(self.contested.iter().map(|held| held.addr));
        let taken = held.chain(cooling).chain(pool.gateway);
        self.blocked.extend(taken.filter(|&addr| pool.range.contains(addr)).map(|addr| (number(addr), number(addr))));
    }

    /// Records a reservation. It replaces another address of this owner, and another owner of this address.
    pub(super) fn reserve(&mut self, reservation: Reservation, moves_cursor: bool) {
        let addr = reservation.addr;
        if let Some(before) = self.owners.remove(&reservation.owner) {
            self.held.remove(&before);
            self.unblock(before);
        }
        if let Some(other) = self.held.remove(&addr) {
            self.owners.remove(&other.owner);
        }
        self.cooling.remove(addr);
        self.block(addr);
        self.owners.insert(reservation.owner.clone(), addr);
        self.held.insert(addr, reservation);
        if moves_cursor {
            self.cursor = Some(addr);
        }
    }

    /// Records what an older store has of an address or an owner that has another record here.
    pub(super) fn contest(&mut self, reservation: Reservation) {
        if self.reservations().any(|held| (&held.owner, held.addr) == (&reservation.owner, reservation.addr)) {
            return;
        }
        self.cooling.remove(reservation.addr);
        self.block(reservation.addr);
        self.contested.push(reservation);
    }

    /// Frees the addresses of the owner. Cooldowns that are over by then are forgotten: memory stays bounded by the
    /// releases within one cooldown.
    pub(super) fn release(&mut self, owner: &Owner, at: i64) {
        let contested = self.contested.extract_if(.., |held| held.owner == *owner).map(|held| held.addr);
        let mut freed: Vec<IpAddr> = contested.collect();
        if let Some(addr) = self.owners.remove(owner) {
            self.held.remove(&addr);
            freed.push(addr);
        }
        for addr in freed {
            self.unblock(addr);
            self.cool(addr, at);
            self.expire(at);
        }
    }

    pub(super) fn set_cursor(&mut self, addr: IpAddr) {
        self.cursor = Some(addr);
    }

    pub(super) fn cool(&mut self, addr: IpAddr, since: i64) {
        if self.holder(addr).is_some() {
            return;
        }
        self.cooling.insert(addr, since);
        if self.cooling.contains(addr) {
            self.block(addr);
        }
    }

    pub(super) fn expire(&mut self, now: i64) {
        for addr in self.cooling.prune(now) {
            self.unblock(addr);
        }
    }

    /// The next free address after the cursor, wrapping at the end of the range; `None` if every one is in use or in its
    /// cooldown.
    pub(super) fn next_free(&self, pool: &NodePool, now: i64) -> Option<IpAddr> {
        let (first, last) = pool.range.numbers();
        let start = match self.cursor {
            Some(cursor) if pool.range.contains(cursor) && number(cursor) < last => number(cursor) + 1,
            _ => first,
        };
        let before_start = || start.checked_sub(1).and_then(|end| self.blocked.first_gap(first, end));
        let gap = self.blocked.first_gap(start, last).or_else(before_start);
        // Addresses whose cooldown is over are still among the blocked until they are forgotten.
        let cooled =
            self.cooling.cooled(now).filter(|addr| gives(pool, *addr) && !self.foreign.contains(addr)).map(number);
        let best = cooled.chain(gap).min_by_key(|&candidate| (candidate < start, candidate))?;
        Some(pool.family().addr(best))
    }

    /// Why [`Book::next_free`] has found no address. Looks at all that is in use and cooling in the range.
    pub(super) fn exhausted(&self, pool: &NodePool, now: i64) -> Refusal {
        let waiting: Vec<_> = self
            .cooling
            .iter()
            .filter(|&(addr, _)| gives(pool, addr))
            .filter_map(|(_, since)| self.cooling.seconds_left(since, now))
            .collect();
        Refusal::Exhausted {
            pool: pool.key.clone(),
            range: pool.range,
            held: self.addrs().iter().chain(&self.foreign).filter(|&&addr| pool.range.contains(addr)).count(),
            cooling: waiting.len(),
            free_in_seconds: waiting.into_iter().min(),
        }
    }

    fn block(&mut self, addr: IpAddr) {
        if self.pool.as_ref().is_some_and(|pool| pool.range.contains(addr)) {
            self.blocked.insert(number(addr), number(addr));
        }
    }

    fn unblock(&mut self, addr: IpAddr) {
        let is_taken = self.foreign.contains(&addr) || self.holder(addr).is_some();
        if self.pool.as_ref().is_some_and(|pool| gives(pool, addr)) && !is_taken {
            self.blocked.remove(number(addr));
        }
    }
}

/// Whether `pool` allocates `addr` dynamically if it is not in use.
fn gives(pool: &NodePool, addr: IpAddr) -> bool {
    let barred = pool.exclusions.contains(number(addr)) || pool.is_held_elsewhere(addr);
    pool.range.contains(addr) && pool.gateway != Some(addr) && !barred
}
