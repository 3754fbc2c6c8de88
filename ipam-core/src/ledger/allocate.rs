//! From a request to addresses. Decides only; all pools or none.

use std::net::IpAddr;

use super::book::Book;
use super::validate::{pool_count_is_valid, request_violations, wanted};
use super::{Allocation, Change, Grant, HeldConflict, Ledger, Pick, Refusal, Request, Reservation};
use crate::NodePool;
use crate::node_pool::{Pause, PoolState};

impl Ledger {
    /// One address of each pool of the request, or none at all. Changes nothing. The caller must [apply](Ledger::apply)
    /// the changes before it decides the next request, and make them durable before it answers.
    ///
    /// * If the owner already has an address of a pool, the answer is that one, without a change, even if the block has
    ///   changed. In the other pools a new address is allocated. So a repeated request gets the same answer, and one more
    ///   pool adds to it. [`Refusal::AlreadyHeld`] if the request names another address, or if the address is not in the
    ///   pool's subnet any more, so that its mask would be wrong.
    /// * A pool that is not configured is [`Refusal::UnknownPool`], also for a repeated request: mask and gateway are not
    ///   known. The reservation survives, for [`check`](Ledger::check) and [`release`](Ledger::release).
    /// * Addresses named by value, gateway or index may be excluded ones, and need not wait for the cooldown, which only
    ///   prevents accidental early reuse. They must not be in use by another owner, here or on another node.
    pub fn allocate(&self, request: &Request, now: i64) -> Result<Allocation, Refusal> {
        let mut violations = request_violations(request);
        if !pool_count_is_valid(request) {
            return Err(Refusal::Invalid(violations));
        }
        let configured = |key| self.configured(key).ok_or_else(|| self.unknown(key));
        let found: Result<Vec<_>, _> = request.pools.iter().map(configured).collect();
        let mut wanted_addrs = Vec::new();
        if let Ok(found) = &found {
            let pools: Vec<_> = found.iter().map(|(_, pool)| *pool).collect();
            let (addrs, more) = wanted(request, &pools);
            wanted_addrs = addrs;
            violations.extend(more);
        }
        if !violations.is_empty() {
            return Err(Refusal::Invalid(violations));
        }
        let mut allocation = Allocation { grants: Vec::new(), changes: Vec::new() };
        for ((book, pool), wanted) in found?.into_iter().zip(wanted_addrs) {
            let (addr, change) = self.decide(book, pool, wanted, request, now)?;
            allocation.grants.push(grant(pool, addr, request.pick));
            allocation.changes.extend(change);
        }
        Ok(allocation)
    }

    /// The address for one pool, and the change that reserves it if the owner does not have it already.
    fn decide(
        &self,
        book: &Book,
        pool: &NodePool,
        wanted: Option<IpAddr>,
        request: &Request,
        now: i64,
    ) -> Result<(IpAddr, Option<Change>), Refusal> {
        if let Some(held) = book.addr_of(&request.owner) {
            return repeat(pool, held, wanted).map(|addr| (addr, None));
        }
        if let Some(refusal) = self.pause(pool) {
            return Err(refusal);
        }
        let addr = match wanted {
            Some(addr) if pool.is_held_elsewhere(addr) => {
                return Err(Refusal::HeldElsewhere { pool: pool.key.clone(), addr });
            }
            Some(addr) => book.holder(addr).or_else(|| self.stray_holder(addr)).map_or(Ok(addr), |holder| {
                Err(Refusal::AddressTaken { pool: pool.key.clone(), addr, holder: Box::new(holder) })
            }),
            None => book.next_free(pool, now).ok_or_else(|| book.exhausted(pool, now)),
        };
        let reservation = Reservation {
            pool: pool.key.clone(),
            owner: request.owner.clone(),
            addr: addr?,
            attachment: request.attachment.clone(),
            created: now,
        };
        Ok((reservation.addr, Some(Change::Reserve { reservation, moves_cursor: wanted.is_none() })))
    }

    /// Why the node allocates no new addresses of the pool; `None` while it does.
    pub(super) fn pause(&self, pool: &NodePool) -> Option<Refusal> {
        let key = || pool.key.clone();
        match pool.state {
            PoolState::Active if self.allows(pool) => None,
            PoolState::Active => Some(Refusal::Paused { pool: key(), pause: Pause::Unconfirmed }),
            PoolState::Releasing => Some(Refusal::Releasing { pool: key(), range: pool.range }),
            PoolState::Paused(pause) => Some(Refusal::Paused { pool: key(), pause }),
        }
    }

    /// Whether the grant of the pool's block allows new addresses.
    fn allows(&self, pool: &NodePool) -> bool {
        pool.grant.is_none_or(|id| self.grants.allows(&pool.key, id))
    }
}

fn repeat(pool: &NodePool, held: IpAddr, wanted: Option<IpAddr>) -> Result<IpAddr, Refusal> {
    let conflict = match wanted {
        Some(asked) if asked != held => HeldConflict::Asked(asked),
        _ if !pool.subnet.contains(held) => HeldConflict::Subnet(pool.subnet),
        _ => return Ok(held),
    };
    Err(Refusal::AlreadyHeld { pool: pool.key.clone(), held, conflict })
}

fn grant(pool: &NodePool, addr: IpAddr, pick: Pick) -> Grant {
    // The pod that is the gateway needs no gateway. By value the gateway is an address like any other.
    let is_gateway = pick == Pick::Gateway;
    Grant {
        pool: pool.key.clone(),
        addr,
        prefix_len: pool.subnet.prefix_len(),
        gateway: pool.gateway.filter(|_| !is_gateway),
        routes: if is_gateway { Vec::new() } else { pool.effective_routes() },
    }
}
