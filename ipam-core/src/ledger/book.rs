//! The book of one pool: the addresses in use and their owners, the place of the round robin, and the cooldowns.
//!
//! A *stray* is an address in use whose pool is gone, or has another subnet by now. Its owner still uses it, so no other
//! pool may allocate it, although the configured pools do not know of it.
//!
//! One set of runs has all addresses that may not be allocated dynamically. So the next free address is found in
//! logarithmic time, whatever the size of the range. The set is derived from the records and from the configured pool.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::cooling::Cooling;
use super::held::Held;
use super::holding::{Holding, Runs, covered, hull};
use super::{Change, Owner, PoolUsage, Refusal, Reservation};
use crate::addr::number;
use crate::{NodePool, PoolKey, RangeSet};

#[derive(Clone, Debug)]
pub(super) struct Book {
    key: PoolKey,
    pool: Option<NodePool>,
    /// Addresses that the pool allocates dynamically when none is in use; zero without a pool.
    capacity: u128,
    /// Unavailable addresses of the pool's range; zero without a pool.
    unavailable: u64,
    held: Held,
    /// What an older store records of addresses or owners that `held` has otherwise. Usually empty.
    contested: Vec<Reservation>,
    /// The addresses of `held` and `contested`.
    in_use: Runs,
    /// The last address found by round robin; it may lie outside the pool's present range.
    cursor: Option<IpAddr>,
    /// Never an address of `held` or `contested`.
    cooling: Cooling,
    /// Strays of other books in the pool's range. Empty without a pool.
    foreign: BTreeSet<IpAddr>,
    /// Of the pool's range: exclusions, unavailable addresses, gateway, `in_use`, `cooling` and `foreign`. Empty without a pool.
    blocked: RangeSet,
}

impl Book {
    pub(super) fn new(key: PoolKey, cooldown_seconds: u64) -> Self {
        Self {
            key,
            pool: None,
            capacity: 0,
            unavailable: 0,
            held: Held::default(),
            contested: Vec::new(),
            in_use: Runs::default(),
            cursor: None,
            cooling: Cooling::new(cooldown_seconds),
            foreign: BTreeSet::new(),
            blocked: RangeSet::new(),
        }
    }

    pub(super) const fn pool(&self) -> Option<&NodePool> {
        self.pool.as_ref()
    }

    /// The address of the owner.
    pub(super) fn addr_of(&self, owner: &Owner) -> Option<IpAddr> {
        let contested = || self.contested.iter().find(|held| held.owner == *owner).map(|held| held.addr);
        self.held.addr_of(owner).or_else(contested)
    }

    pub(super) fn held_by(&self, owner: &Owner) -> Option<Reservation> {
        let held = self.held.addr_of(owner).and_then(|addr| self.held.get(&self.key, addr));
        held.or_else(|| self.contested.iter().find(|held| held.owner == *owner).cloned())
    }

    pub(super) fn has(&self, addr: IpAddr) -> bool {
        self.held.contains(addr) || self.contested.iter().any(|held| held.addr == addr)
    }

    pub(super) fn holder(&self, addr: IpAddr) -> Option<Reservation> {
        let contested = || self.contested.iter().find(|held| held.addr == addr).cloned();
        self.held.get(&self.key, addr).or_else(contested)
    }

    pub(super) fn reservations(&self) -> impl Iterator<Item = Reservation> {
        self.held.behind(&self.key, None).chain(self.contested.iter().cloned())
    }

    /// The reservations of the next `most` addresses behind `addr`, or of the first ones. An address that is contested has more than one.
    pub(super) fn page(&self, addr: Option<IpAddr>, most: usize) -> Vec<Reservation> {
        let is_behind = |held: &&Reservation| addr.is_none_or(|addr| held.addr > addr);
        let held = self.held.behind(&self.key, addr).take(most);
        let mut page: Vec<_> = held.chain(self.contested.iter().filter(is_behind).cloned()).collect();
        page.sort_by_key(|held| held.addr);
        let next = page.chunk_by(|one, other| one.addr == other.addr).take(most).map(<[_]>::len).sum();
        page.truncate(next);
        page
    }

    /// How many addresses are in use.
    pub(super) fn used(&self) -> u64 {
        u64::try_from(self.held.len() + self.only_contested().len()).unwrap_or(u64::MAX)
    }

    /// The addresses that only an older store has.
    fn only_contested(&self) -> BTreeSet<IpAddr> {
        self.contested.iter().map(|held| held.addr).filter(|addr| !self.held.contains(*addr)).collect()
    }

    /// Whether an older store has an address of the owner that is contested.
    pub(super) fn has_contested(&self, owner: &Owner) -> bool {
        self.contested.iter().any(|held| held.owner == *owner)
    }

    pub(super) fn usage(&self) -> Option<PoolUsage> {
        let pool = self.pool.as_ref()?;
        Some(PoolUsage {
            key: self.key.clone(),
            range: pool.range,
            used: self.used(),
            capacity: self.capacity,
            cooling: self.cooling.len(),
            unavailable: self.unavailable,
            pause: None,
        })
    }

    /// The use of the pool; `None` without a pool and an address in use: then there is nothing to report.
    pub(super) fn holding(&self, most_runs: usize) -> Option<Holding> {
        let runs = self.in_use.all();
        let range = self.pool.as_ref().map(|pool| pool.range).or_else(|| hull(&runs))?;
        Some(Holding {
            key: self.key.clone(),
            range,
            used: self.used(),
            capacity: self.capacity,
            runs: covered(runs, &range, most_runs),
            grant: None,
        })
    }

    /// Whether an address of the pool is in use, inside the configured range or outside.
    pub(super) fn is_in_use(&self) -> bool {
        !self.held.is_empty() || !self.contested.is_empty()
    }

    pub(super) fn snapshot(&self) -> impl Iterator<Item = Change> {
        let pool = || self.key.clone();
        let held = self.held.behind(&self.key, None);
        let reserves = held.map(|reservation| Change::Reserve { reservation, moves_cursor: false });
        let contested = self.contested.iter().map(|held| Change::Contested { reservation: held.clone() });
        let cursor = self.cursor.map(|addr| Change::Cursor { pool: pool(), addr });
        let cooling = self.cooling.iter().map(move |(addr, since)| Change::Cooling { pool: pool(), addr, since });
        reserves.chain(contested).chain(cursor).chain(cooling)
    }

    pub(super) fn configure(&mut self, pool: Option<NodePool>) {
        if self.pool != pool {
            self.capacity = pool.as_ref().map_or(0, NodePool::capacity);
            self.unavailable = pool.as_ref().map_or(0, NodePool::unavailable);
            self.pool = pool;
            self.foreign.clear();
            self.block_anew();
        }
    }

    /// The strays of all books; those of this one are outside its range.
    pub(super) fn set_strays(&mut self, strays: &BTreeSet<IpAddr>) {
        let Some(pool) = &self.pool else { return };
        let inside = strays.range(pool.range.first()..=pool.range.last()).copied();
        let foreign: BTreeSet<_> = inside.collect();
        if self.foreign != foreign {
            self.foreign = foreign;
            self.block_anew();
        }
    }

    /// The strays among the addresses in use here.
    pub(super) fn strays(&self) -> Vec<IpAddr> {
        let contested = self.contested.iter().map(|held| held.addr).filter(|addr| self.is_stray(*addr));
        match &self.pool {
            Some(pool) => {
                self.held.outside(pool.subnet.range().first(), pool.subnet.range().last()).chain(contested).collect()
            }
            None => self.held.addrs().chain(contested).collect(),
        }
    }

    /// Whether the address is in use and a stray of this book.
    pub(super) fn has_stray(&self, addr: IpAddr) -> bool {
        self.is_stray(addr) && self.has(addr)
    }

    fn is_stray(&self, addr: IpAddr) -> bool {
        self.pool.as_ref().is_none_or(|pool| !pool.subnet.contains(addr))
    }

    /// Records that `addr` is not a stray any more.
    pub(super) fn end_stray(&mut self, addr: IpAddr) {
        if self.foreign.remove(&addr) && !self.has(addr) && !self.cooling.contains(addr) {
            self.unblock(addr);
        }
    }

    fn block_anew(&mut self) {
        self.blocked = RangeSet::new();
        let Some(pool) = &self.pool else { return };
        let (first, last) = pool.range.numbers();
        self.blocked = pool.exclusions.clipped(first, last);
        self.blocked.extend(pool.elsewhere.clipped(first, last).runs());
        self.blocked.extend(self.in_use.within(&pool.range).runs());
        let cooling = self.cooling.iter().map(|(addr, _)| addr);
        let taken = cooling.chain(self.foreign.iter().copied()).chain(pool.gateway);
        self.blocked.extend(taken.filter(|&addr| pool.range.contains(addr)).map(|addr| (number(addr), number(addr))));
    }

    /// Records a reservation. It replaces another address of this owner, and another owner of this address.
    pub(super) fn reserve(&mut self, reservation: &Reservation, moves_cursor: bool) {
        let addr = reservation.addr;
        if let Some(before) = self.held.addr_of(&reservation.owner) {
            self.held.remove(before);
            self.free(before);
        }
        self.cooling.remove(addr);
        self.occupy(addr);
        self.held.insert(reservation);
        if moves_cursor {
            self.cursor = Some(addr);
        }
    }

    /// Records what an older store has of an address or an owner that has another record here.
    pub(super) fn contest(&mut self, reservation: Reservation) {
        let is_same = |held: &Reservation| (&held.owner, held.addr) == (&reservation.owner, reservation.addr);
        let of_address = self.held.get(&self.key, reservation.addr);
        if of_address.iter().chain(&self.contested).any(is_same) {
            return;
        }
        self.cooling.remove(reservation.addr);
        self.occupy(reservation.addr);
        self.contested.push(reservation);
    }

    /// Frees the addresses of the owner. Cooldowns that are over by then are forgotten: memory stays bounded by the
    /// releases within one cooldown.
    pub(super) fn release(&mut self, owner: &Owner, at: i64) {
        let contested = self.contested.extract_if(.., |held| held.owner == *owner).map(|held| held.addr);
        let mut freed: Vec<IpAddr> = contested.collect();
        if let Some(addr) = self.held.addr_of(owner) {
            self.held.remove(addr);
            freed.push(addr);
        }
        for addr in freed {
            self.free(addr);
            self.cool(addr, at);
            self.expire(at);
        }
    }

    pub(super) fn set_cursor(&mut self, addr: IpAddr) {
        self.cursor = Some(addr);
    }

    pub(super) fn cool(&mut self, addr: IpAddr, since: i64) {
        if self.has(addr) {
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
        let in_use = usize::try_from(self.in_use.within(&pool.range).size()).unwrap_or(usize::MAX);
        Refusal::Exhausted {
            pool: pool.key.clone(),
            range: pool.range,
            held: in_use.saturating_add(self.foreign.len()),
            cooling: waiting.len(),
            free_in_seconds: waiting.into_iter().min(),
        }
    }

    /// The address is in use from now on.
    fn occupy(&mut self, addr: IpAddr) {
        self.in_use.insert(addr);
        self.block(addr);
    }

    /// The address has one reservation less.
    fn free(&mut self, addr: IpAddr) {
        if !self.has(addr) {
            self.in_use.remove(addr);
            self.unblock(addr);
        }
    }

    fn block(&mut self, addr: IpAddr) {
        if self.pool.as_ref().is_some_and(|pool| pool.range.contains(addr)) {
            self.blocked.insert(number(addr), number(addr));
        }
    }

    fn unblock(&mut self, addr: IpAddr) {
        let is_taken = self.foreign.contains(&addr) || self.has(addr);
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
