//! The model: what behaviour.md §4 says, written without a thought for speed and without the crate's own arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_core::ledger::{Owner, Pick, Request};
use ipam_core::node_pool::PoolState;
use ipam_core::{AddrRange, Cidr, NodePool, PoolKey, RangeSet};

use crate::support::{cidr, key};

/// A pool whose addresses are offsets from its subnet's network address.
#[derive(Clone, Debug)]
pub(crate) struct NaivePool {
    pub(crate) name: usize,
    pub(crate) state: PoolState,
    pub(crate) subnet: Cidr,
    pub(crate) first: u128,
    pub(crate) last: u128,
    pub(crate) gateway: Option<u128>,
    pub(crate) excluded: Vec<(u128, u128)>,
}

type Told = Vec<(IpAddr, u8, Option<IpAddr>)>;

pub(crate) struct Naive {
    cooldown: i64,
    pub(crate) pools: Vec<NaivePool>,
    pub(crate) held: Vec<(PoolKey, Owner, IpAddr)>,
    cursors: Vec<(PoolKey, IpAddr)>,
    released: Vec<(PoolKey, IpAddr, i64)>,
}

/// The address `offset` behind the network address of `subnet`.
pub(crate) fn addr(subnet: &str, offset: u128) -> IpAddr {
    match cidr(subnet).network() {
        IpAddr::V4(network) => {
            IpAddr::V4(Ipv4Addr::from(u32::from(network).wrapping_add(u32::try_from(offset).unwrap())))
        }
        IpAddr::V6(network) => IpAddr::V6(Ipv6Addr::from(u128::from(network) + offset)),
    }
}

impl NaivePool {
    fn addr(&self, offset: u128) -> IpAddr {
        addr(&self.subnet.to_string(), offset)
    }

    fn key(&self) -> PoolKey {
        key(&self.name.to_string())
    }

    fn size(&self) -> u128 {
        let bits = if self.subnet.network().is_ipv4() { 32 } else { 128 };
        1 << (bits - self.subnet.prefix_len())
    }

    /// In the subnet, and neither its network nor its IPv4 broadcast address.
    fn has_host(&self, addr: IpAddr) -> bool {
        let end = if addr.is_ipv4() { self.size() - 1 } else { self.size() };
        (1..end).any(|offset| self.addr(offset) == addr)
    }

    pub(crate) fn node_pool(&self) -> NodePool {
        let network = match self.subnet.network() {
            IpAddr::V4(network) => u128::from(u32::from(network)),
            IpAddr::V6(network) => u128::from(network),
        };
        let runs = self.excluded.iter().map(|(first, last)| (network + first, network + last));
        NodePool {
            key: self.key(),
            state: self.state,
            grant: None,
            range: AddrRange::new(self.addr(self.first), self.addr(self.last)).unwrap(),
            subnet: self.subnet,
            gateway: self.gateway.map(|offset| self.addr(offset)),
            exclusions: runs.collect::<RangeSet>().clipped(network + self.first, network + self.last),
            elsewhere: RangeSet::new(),
            routes: Vec::new(),
            default_gateway: false,
        }
    }
}

impl Naive {
    pub(crate) fn new(cooldown: i64) -> Self {
        Self { cooldown, pools: Vec::new(), held: Vec::new(), cursors: Vec::new(), released: Vec::new() }
    }

    pub(crate) fn allocate(&mut self, request: &Request, now: i64) -> Result<Told, &'static str> {
        let distinct = request.pools.len() < 2 || request.pools[0] != request.pools[1];
        if !(1..=2).contains(&request.pools.len()) || !distinct {
            return Err("Invalid");
        }
        let find = |key: &PoolKey| self.pools.iter().find(|pool| pool.key() == *key).cloned();
        let pools: Option<Vec<_>> = request.pools.iter().map(find).collect();
        let Some(pools) = pools else { return Err("UnknownPool") };
        let wanted = Self::wanted(request, &pools).ok_or("Invalid")?;
        let mut given = Vec::new();
        for (pool, wanted) in pools.iter().zip(wanted) {
            given.push(self.one(pool, &request.owner, wanted, now)?);
        }
        let mut told = Told::new();
        for (pool, (addr, is_new, moves_cursor)) in pools.iter().zip(given) {
            if is_new {
                self.held.push((pool.key(), request.owner.clone(), addr));
                self.released.retain(|(key, released, _)| (key, released) != (&pool.key(), &addr));
            }
            if moves_cursor {
                self.cursors.retain(|(key, _)| *key != pool.key());
                self.cursors.push((pool.key(), addr));
            }
            let gateway = pool.gateway.filter(|_| request.pick != Pick::Gateway).map(|offset| pool.addr(offset));
            told.push((addr, pool.subnet.prefix_len(), gateway));
        }
        Ok(told)
    }

    /// One wish for each pool; none if the request makes no sense. The model's subnets do not overlap.
    fn wanted(request: &Request, pools: &[NaivePool]) -> Option<Vec<Option<IpAddr>>> {
        if !request.requested.iter().all(|addr| pools.iter().any(|pool| pool.has_host(*addr))) {
            return None;
        }
        let one = |pool: &NaivePool| match request.pick {
            Pick::Next => {
                let mut inside = request.requested.iter().filter(|addr| pool.has_host(**addr));
                let first = inside.next().copied();
                inside.next().is_none().then_some(first)
            }
            Pick::Gateway => pool.gateway.map(|offset| Some(pool.addr(offset))),
            Pick::Index(index) => {
                let offset = pool.first + u128::try_from(index).ok()?;
                (offset <= pool.last && pool.gateway != Some(offset)).then(|| Some(pool.addr(offset)))
            }
        };
        pools.iter().map(one).collect()
    }

    /// The address, whether it is new, and whether the cursor goes there.
    fn one(
        &self,
        pool: &NaivePool,
        owner: &Owner,
        wanted: Option<IpAddr>,
        now: i64,
    ) -> Result<(IpAddr, bool, bool), &'static str> {
        if let Some((.., held)) = self.held.iter().find(|(key, other, _)| (key, other) == (&pool.key(), owner)) {
            let same = wanted.is_none_or(|wanted| wanted == *held);
            return if same { Ok((*held, false, false)) } else { Err("AlreadyHeld") };
        }
        if pool.state == PoolState::Releasing {
            return Err("Releasing");
        }
        match wanted {
            Some(addr) if self.is_held(pool, addr) => Err("AddressTaken"),
            Some(addr) => Ok((addr, true, false)),
            None => self.next(pool, now).map(|addr| (addr, true, true)).ok_or("Exhausted"),
        }
    }

    fn is_held(&self, pool: &NaivePool, addr: IpAddr) -> bool {
        self.held.iter().any(|(key, _, held)| *key == pool.key() && *held == addr)
    }

    /// Walks the range once, beginning behind the cursor.
    fn next(&self, pool: &NaivePool, now: i64) -> Option<IpAddr> {
        let cursor = self.cursors.iter().find(|(key, _)| *key == pool.key()).map(|(_, addr)| *addr);
        let offsets: Vec<_> = (pool.first..=pool.last).collect();
        let place = offsets.iter().position(|&offset| Some(pool.addr(offset)) == cursor);
        let start = place.map_or(0, |place| place + 1);
        let walk = offsets[start..].iter().chain(&offsets[..start]);
        let is_free = |offset: u128| {
            let excluded = pool.excluded.iter().any(|(first, last)| (*first..=*last).contains(&offset));
            let cooling = self.released.iter().any(|(key, addr, since)| {
                *key == pool.key() && *addr == pool.addr(offset) && (now - since).abs() < self.cooldown
            });
            !excluded && !cooling && pool.gateway != Some(offset) && !self.is_held(pool, pool.addr(offset))
        };
        walk.copied().find(|&offset| is_free(offset)).map(|offset| pool.addr(offset))
    }

    pub(crate) fn release(&mut self, pools: &[PoolKey], owner: &Owner, now: i64) {
        for key in pools {
            let place = self.held.iter().position(|(pool, other, _)| (pool, other) == (key, owner));
            let Some(place) = place else { continue };
            let (.., addr) = self.held.remove(place);
            self.released.push((key.clone(), addr, now));
            self.expire(now, Some(key));
        }
    }

    /// Forgets what has cooled down; a clock set back later does not bring it back. Of one pool, or of all.
    pub(crate) fn expire(&mut self, now: i64, only: Option<&PoolKey>) {
        let cooldown = self.cooldown;
        self.released.retain(|(key, _, since)| only.is_some_and(|only| only != key) || (now - since).abs() < cooldown);
    }

    pub(crate) fn check(&self, pools: &[PoolKey], owner: &Owner, expected: &[IpAddr]) -> Result<(), &'static str> {
        if !(1..=2).contains(&pools.len()) || (pools.len() == 2 && pools[0] == pools[1]) {
            return Err("Invalid");
        }
        for key in pools {
            match self.held.iter().find(|(pool, other, _)| (pool, other) == (key, owner)) {
                Some((.., held)) if !expected.is_empty() && !expected.contains(held) => return Err("Mismatch"),
                Some(_) => {}
                None if self.pools.iter().any(|pool| pool.key() == *key) => return Err("NotReserved"),
                None => return Err("UnknownPool"),
            }
        }
        Ok(())
    }
}
