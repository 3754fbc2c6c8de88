//! Addresses of one pool that were released a short time ago, ordered by when.
//!
//! An address cools down while the time now and the time of its release are less than the cooldown apart, in either
//! direction: a clock set back by less keeps it cooling, one set back by more cannot lock it up for years.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Clone, Debug)]
pub(super) struct Cooling {
    seconds: u64,
    since: BTreeMap<IpAddr, i64>,
    /// The same, by time: what has cooled down stands at the two ends, and is found without a look at the rest.
    order: BTreeSet<(i64, IpAddr)>,
}

impl Cooling {
    pub(super) const fn new(seconds: u64) -> Self {
        Self { seconds, since: BTreeMap::new(), order: BTreeSet::new() }
    }

    pub(super) fn insert(&mut self, addr: IpAddr, since: i64) {
        if self.seconds == 0 {
            return;
        }
        self.remove(addr);
        self.since.insert(addr, since);
        self.order.insert((since, addr));
    }

    /// Removes an address; returns whether it was there.
    pub(super) fn remove(&mut self, addr: IpAddr) -> bool {
        let Some(since) = self.since.remove(&addr) else { return false };
        self.order.remove(&(since, addr))
    }

    /// How many addresses there are.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.since.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        self.since.contains_key(&addr)
    }

    /// The addresses and when they were freed, by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, i64)> + '_ {
        self.since.iter().map(|(&addr, &since)| (addr, since))
    }

    /// The addresses whose cooldown is over at `now`; one may come twice. Costs no more than their number.
    pub(super) fn cooled(&self, now: i64) -> impl Iterator<Item = IpAddr> + '_ {
        let over = move |entry: &&(i64, IpAddr)| self.seconds_left(entry.0, now).is_none();
        let long_ago = self.order.iter().take_while(over);
        let clock_set_back = self.order.iter().rev().take_while(over);
        long_ago.chain(clock_set_back).map(|&(_, addr)| addr)
    }

    /// Removes the addresses whose cooldown is over at `now`, and returns them.
    pub(super) fn prune(&mut self, now: i64) -> Vec<IpAddr> {
        let mut over: Vec<_> = self.cooled(now).collect();
        over.retain(|&addr| self.remove(addr));
        over
    }

    /// Seconds until an address released at `since` has cooled down; `None` if it has.
    pub(super) fn seconds_left(&self, since: i64, now: i64) -> Option<u64> {
        if now.abs_diff(since) >= self.seconds {
            return None;
        }
        u64::try_from(i128::from(since) + i128::from(self.seconds) - i128::from(now)).ok()
    }
}
