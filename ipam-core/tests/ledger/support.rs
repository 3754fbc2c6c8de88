//! Pools, owners and requests in few words.

use std::net::IpAddr;

use ipam_core::addr::number;
use ipam_core::ledger::{Allocation, Attachment, Change, Ledger, Owner, Pick, Refusal, Request};
use ipam_core::node_pool::PoolState;
use ipam_core::{AddrRange, Cidr, NodePool, PoolKey, PoolKind, RangeSet};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn cidr(text: &str) -> Cidr {
    Cidr::parse(text).expect("a network").0
}

pub(crate) fn key(name: &str) -> PoolKey {
    PoolKey::new(PoolKind::IpPool, name)
}

/// An active pool without gateway, exclusions and routes, whose node gives `first` to `last`.
pub(crate) fn pool(name: &str, first: &str, last: &str, subnet: &str) -> NodePool {
    NodePool {
        key: key(name),
        state: PoolState::Active,
        grant: None,
        range: AddrRange::new(ip(first), ip(last)).expect("a range"),
        subnet: cidr(subnet),
        gateway: None,
        exclusions: RangeSet::new(),
        elsewhere: RangeSet::new(),
        routes: Vec::new(),
        default_gateway: false,
    }
}

/// 192.168.0.1 to .4 of 192.168.0.0/16 in pool "a".
pub(crate) fn four() -> NodePool {
    pool("a", "192.168.0.1", "192.168.0.4", "192.168.0.0/16")
}

/// fd00::1 to ::3 of fd00::/64 in pool "b".
pub(crate) fn three() -> NodePool {
    pool("b", "fd00::1", "fd00::3", "fd00::/64")
}

pub(crate) fn excluding(mut pool: NodePool, runs: &[(&str, &str)]) -> NodePool {
    pool.exclusions = runs.iter().map(|(first, last)| (number(ip(first)), number(ip(last)))).collect();
    pool
}

pub(crate) fn with_gateway(pool: NodePool, gateway: &str) -> NodePool {
    NodePool { gateway: Some(ip(gateway)), ..pool }
}

pub(crate) fn ledger(pools: &[NodePool]) -> Ledger {
    ledger_with_cooldown(0, pools)
}

pub(crate) fn ledger_with_cooldown(seconds: i64, pools: &[NodePool]) -> Ledger {
    let mut ledger = Ledger::new(seconds);
    ledger.configure(pools.to_vec());
    ledger
}

pub(crate) fn owner(container: &str) -> Owner {
    Owner::new(container, "net1")
}

/// For the next free address of each pool.
pub(crate) fn request(container: &str, pools: &[&str]) -> Request {
    Request {
        pools: pools.iter().map(|name| key(name)).collect(),
        owner: owner(container),
        attachment: Attachment {
            pod_name: container.to_owned(),
            pod_namespace: "ns".to_owned(),
            ..Attachment::default()
        },
        requested: Vec::new(),
        pick: Pick::Next,
    }
}

pub(crate) fn asking(container: &str, pools: &[&str], addrs: &[&str]) -> Request {
    Request { requested: addrs.iter().map(|addr| ip(addr)).collect(), ..request(container, pools) }
}

pub(crate) fn picking(container: &str, pools: &[&str], pick: Pick) -> Request {
    Request { pick, ..request(container, pools) }
}

/// All that the ledger has.
pub(crate) fn snapshot(ledger: &Ledger) -> Vec<Change> {
    ledger.snapshot().collect()
}

pub(crate) fn apply(ledger: &mut Ledger, changes: &[Change]) {
    for change in changes {
        ledger.apply(change);
    }
}

/// Allocates and applies, as the node agent does, at `now`.
pub(crate) fn take_at(ledger: &mut Ledger, request: &Request, now: i64) -> Result<Allocation, Refusal> {
    let allocation = ledger.allocate(request, now)?;
    apply(ledger, &allocation.changes);
    Ok(allocation)
}

/// The addresses given, or why none.
pub(crate) fn take(ledger: &mut Ledger, request: &Request) -> Result<Vec<IpAddr>, Refusal> {
    Ok(take_at(ledger, request, 0)?.grants.into_iter().map(|grant| grant.addr).collect())
}

/// The next address of pool "a", as text; the reason if there is none.
pub(crate) fn next(ledger: &mut Ledger, container: &str) -> String {
    match take(ledger, &request(container, &["a"])) {
        Ok(addrs) => addrs[0].to_string(),
        Err(refusal) => refusal.reason().to_owned(),
    }
}

pub(crate) fn release_at(ledger: &mut Ledger, container: &str, pools: &[&str], now: i64) -> usize {
    let pools: Vec<_> = pools.iter().map(|name| key(name)).collect();
    let changes = ledger.release(&pools, &owner(container), now);
    apply(ledger, &changes);
    changes.len()
}

/// A ledger that has read the other's snapshot, with these pools.
pub(crate) fn restarted(ledger: &Ledger, pools: &[NodePool]) -> Ledger {
    let mut fresh = Ledger::new(0);
    apply(&mut fresh, &snapshot(ledger));
    fresh.configure(pools.to_vec());
    fresh
}
