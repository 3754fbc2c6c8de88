//! The ledger: which interface of which sandbox uses which address of which pool, on one node.
//!
//! It decides: [`Ledger::allocate`], [`Ledger::check`] and [`Ledger::release`] change nothing. It records:
//! [`Ledger::apply`] is the only mutation of what is in use. The caller makes the [`Change`]s durable before it answers.
//! The records depend on the applied changes alone, never on the configured pools. So a journal may be replayed before
//! the pools are known. The rules are those of behaviour.md §4.
//!
//! It never reads a clock (time is an argument, in Unix seconds) and never enumerates a range. It never frees an address
//! because a pool's configuration changed or vanished.

mod allocate;
mod book;
mod change;
mod cooling;
mod grants;
mod held;
mod holding;
mod owner;
mod refusal;
mod request;
mod validate;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use crate::node_pool::PoolState;
use crate::{AddrRange, GrantId, NodePool, PoolKey};
use book::Book;
use grants::Grants;

pub use change::{Change, GrantStep, Reservation, SpecVersion};
pub use grants::MOST_ENDED;
pub use holding::{GrantUse, Holding};
pub use owner::{Attachment, Owner};
pub use refusal::{HeldConflict, Refusal};
pub use request::{Allocation, Grant, Pick, Request};
pub use validate::subject_violations;

/// How full one configured pool is on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// The pool.
    pub key: PoolKey,
    /// The addresses from which the node allocates.
    pub range: AddrRange,
    /// Number of addresses of this pool in use. Static requests may take excluded addresses, the gateway and addresses of
    /// the subnet outside `range`, so this may be more than `capacity`. Zero means that the node uses no address of the
    /// pool.
    pub used: u64,
    /// Addresses that can be allocated dynamically when none is in use, saturating.
    pub capacity: u128,
    /// Number of addresses that were freed a short time ago.
    pub cooling: u64,
    /// Number of unavailable addresses of `range`, saturating.
    pub unavailable: u64,
    /// One word for why the node allocates no new addresses from its block; `None` while it does.
    pub pause: Option<&'static str>,
}

/// Where the pools of a node come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// A copy from before the start, or nothing yet.
    Copy,
    /// The API server; without a version if the object does not exist.
    Current(Option<SpecVersion>),
}

/// The addresses in use on one node, and the rules for further allocations.
#[derive(Clone, Debug)]
pub struct Ledger {
    cooldown_seconds: u64,
    /// A book stays when its pool is not configured any more: for addresses in use, and for the cursor if the pool returns.
    books: BTreeMap<PoolKey, Book>,
    grants: Grants,
    /// Where the pools come from.
    source: Source,
    /// Path of each older store that was imported → SHA-256 of its content.
    imported: BTreeMap<String, [u8; 32]>,
    /// What the owner of the ledger records with it.
    note: Option<String>,
}

impl Ledger {
    /// An empty ledger without pools. An address is not allocated dynamically within `cooldown_seconds` of its release;
    /// zero and less mean no such wait.
    pub fn new(cooldown_seconds: i64) -> Self {
        Self {
            cooldown_seconds: u64::try_from(cooldown_seconds).unwrap_or(0),
            books: BTreeMap::new(),
            grants: Grants::default(),
            source: Source::Copy,
            imported: BTreeMap::new(),
            note: None,
        }
    }

    /// Sets the pools of this node: the whole set, of which the first entry for a key counts. Addresses in use stay in
    /// use, also in pools that are not configured any more or whose range changed. If the pool is gone or has another
    /// subnet, no other pool allocates them either. A cursor inside the new range keeps its place; one outside is
    /// ignored, and the order starts at the range's first address.
    pub fn configure(&mut self, pools: Vec<NodePool>) {
        self.source = Source::Current(None);
        self.set_pools(pools);
    }

    /// The same for the spec of an object. If its version is earlier than the recorded one, for example after a restore of etcd, every
    /// grant that the node does not know has ended: the node may have missed its end.
    pub fn configure_spec(&mut self, pools: Vec<NodePool>, version: SpecVersion) {
        self.source = Source::Current(Some(version));
        self.set_pools(pools);
    }

    /// The same for a copy from before the start. It may be old: no grant ends because the copy does not have it.
    pub fn configure_copy(&mut self, pools: Vec<NodePool>) {
        self.source = Source::Copy;
        self.set_pools(pools);
    }

    fn set_pools(&mut self, pools: Vec<NodePool>) {
        let mut configured = BTreeMap::new();
        for pool in pools {
            configured.entry(pool.key.clone()).or_insert(pool);
        }
        for (key, book) in &mut self.books {
            book.configure(configured.remove(key));
        }
        for (key, pool) in configured {
            self.book(&key).configure(Some(pool));
        }
        self.tell_strays();
    }

    /// Whether the owner still has its reservations (CHECK of the CNI plugin): one in each of `pools`, and each among
    /// `expected`, unless `expected` is empty. `expected` may contain addresses of other IPAM plugins too: a CNI
    /// prevResult lists all addresses of the chain. The pools need not be configured, since a reservation outlives that.
    pub fn check(&self, pools: &[PoolKey], owner: &Owner, expected: &[IpAddr]) -> Result<(), Refusal> {
        let violations = subject_violations(pools, owner);
        if !violations.is_empty() {
            return Err(Refusal::Invalid(violations));
        }
        for key in pools {
            let Some(held) = self.books.get(key).and_then(|book| book.addr_of(owner)) else {
                return Err(self.missing(key, owner));
            };
            if !expected.is_empty() && !expected.contains(&held) {
                return Err(Refusal::Mismatch { pool: key.clone(), held, expected: expected.to_vec() });
            }
        }
        Ok(())
    }

    /// The changes that free the addresses of `owner` in `pools`. `now` starts the cooldown. An unknown owner or pool
    /// needs no change: to release twice, or in a pool that is not configured, is not an error.
    pub fn release(&self, pools: &[PoolKey], owner: &Owner, now: i64) -> Vec<Change> {
        let mut changes = Vec::new();
        for (index, key) in pools.iter().enumerate() {
            let held = self.books.get(key).is_some_and(|book| book.addr_of(owner).is_some());
            if held && !pools[..index].contains(key) {
                changes.push(Change::Release { pool: key.clone(), owner: owner.clone(), at: now });
            }
        }
        changes
    }

    /// Records one change. Total: any sequence of changes leaves a ledger in which each address of a pool has one holder
    /// and each owner one address per pool, apart from contested ones. Where a sequence says otherwise (no ledger produces
    /// one) the later change wins.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Reserve { reservation, moves_cursor } => {
                let book = self.book(&reservation.pool);
                book.reserve(reservation, *moves_cursor);
                // No decision makes a stray, but a journal that is replayed after the pools are known may contain one.
                if book.has_stray(reservation.addr) {
                    self.tell_strays();
                }
            }
            Change::Release { pool, owner, at } => {
                let Some(book) = self.books.get_mut(pool) else { return };
                let was_contested = book.has_contested(owner);
                let stray = book.addr_of(owner).filter(|&addr| book.has_stray(addr));
                book.release(owner, *at);
                if let Some(addr) = stray.filter(|&addr| !self.has_stray(addr)) {
                    self.books.values_mut().for_each(|book| book.end_stray(addr));
                }
                if was_contested {
                    self.tell_strays();
                }
            }
            Change::Contested { reservation } => {
                self.book(&reservation.pool).contest(reservation.clone());
                self.tell_strays();
            }
            Change::Imported { source, digest } => drop(self.imported.insert(source.clone(), *digest)),
            Change::Cursor { pool, addr } => self.book(pool).set_cursor(*addr),
            Change::Cooling { pool, addr, since } => self.book(pool).cool(*addr, *since),
            Change::Grant { pool, id, step } => self.grants.apply(pool, *id, *step),
            Change::GrantsEndedTo { id } => self.grants.end_to(*id),
            Change::Spec { version } => self.grants.record(*version),
            Change::Note { text } => self.note = Some(text.clone()),
        }
    }

    /// The steps that grants take because of the configured pools and of the addresses in use. A new grant is seen. A grant
    /// ends if its pool is not configured with it any more, or is Releasing and no address of the pool is in use.
    ///
    /// Call it after [`Ledger::configure`] and after changes that free addresses. Until its answer is applied, new grants
    /// allocate nothing and ended grants are not reported as ended.
    pub fn grant_steps(&self) -> Vec<Change> {
        let Source::Current(version) = self.source else { return Vec::new() };
        let pools = self.books.values().filter_map(|book| Some((book.pool()?, book.is_in_use())));
        self.grants.steps(version, pools)
    }

    /// The changes that confirm those of the grants that are seen and have not ended.
    pub fn confirm(&self, grants: &[(PoolKey, GrantId)]) -> Vec<Change> {
        let seen = grants.iter().filter(|(pool, id)| self.grants.step(pool, *id) == Some(GrantStep::Seen));
        let change =
            |(pool, id): &(PoolKey, GrantId)| Change::Grant { pool: pool.clone(), id: *id, step: GrantStep::Confirmed };
        seen.map(change).collect()
    }

    /// The changes that make those of the grants idle that are confirmed and of whose pool no address is in use.
    pub fn rest(&self, grants: &[(PoolKey, GrantId)]) -> Vec<Change> {
        let can_rest = |(pool, id): &&(PoolKey, GrantId)| {
            let is_in_use = self.books.get(pool).is_some_and(Book::is_in_use);
            !is_in_use && self.grants.step(pool, *id) == Some(GrantStep::Confirmed)
        };
        let change =
            |(pool, id): &(PoolKey, GrantId)| Change::Grant { pool: pool.clone(), id: *id, step: GrantStep::Idle };
        grants.iter().filter(can_rest).map(change).collect()
    }

    /// The changes that let idle grants wait for another confirmation: those of all pools if one of `pools` has an idle grant, because a
    /// pod often has an interface in each. Without a confirmation they allocate nothing.
    pub fn wake(&self, pools: &[PoolKey]) -> Vec<Change> {
        let idle = self.books.values().filter_map(|book| {
            let pool = book.pool().filter(|pool| pool.state == PoolState::Active)?;
            let id = pool.grant.filter(|id| self.grants.step(&pool.key, *id) == Some(GrantStep::Idle))?;
            Some((&pool.key, id))
        });
        let idle: Vec<_> = idle.collect();
        let is_requested = idle.iter().any(|(key, _)| pools.contains(key));
        let seen =
            |(key, id): &(&PoolKey, GrantId)| Change::Grant { pool: (*key).clone(), id: *id, step: GrantStep::Seen };
        if is_requested { idle.iter().map(seen).collect() } else { Vec::new() }
    }

    /// Records that the API server has received from a later journal than this one that these grants are idle or have
    /// ended. They allocate no more, and take these steps with the next [steps](Ledger::grant_steps).
    pub fn withdraw(&mut self, steps: impl IntoIterator<Item = (PoolKey, GrantId, GrantStep)>) {
        self.grants.withdraw(steps);
    }

    /// Forgets the addresses whose cooldown is over at `now`. Decisions are the same without it; only their cost grows
    /// with the number of addresses cooled down and not yet forgotten. Call it before a batch of requests.
    pub fn expire(&mut self, now: i64) {
        for book in self.books.values_mut() {
            book.expire(now);
        }
    }

    /// Every address in use, by pool, also in pools that are not configured. Contested ones are behind the others of their pool, which are in
    /// the order of their addresses.
    pub fn reservations(&self) -> impl Iterator<Item = Reservation> {
        self.books.values().flat_map(Book::reservations)
    }

    /// The next reservations behind an address of a pool, by pool and address, or the first ones: at least `most`, unless no more are
    /// left. All reservations of a contested address are in one page.
    pub fn page(&self, behind: Option<&(PoolKey, IpAddr)>, most: usize) -> Vec<Reservation> {
        let from = behind.map_or(Bound::Unbounded, |(pool, _)| Bound::Included(pool));
        let mut page: Vec<Reservation> = Vec::new();
        for (key, book) in self.books.range::<PoolKey, _>((from, Bound::Unbounded)) {
            let addr = behind.filter(|(pool, _)| pool == key).map(|(_, addr)| *addr);
            page.extend(book.page(addr, most.saturating_sub(page.len())));
            if page.len() >= most {
                break;
            }
        }
        page
    }

    /// The address of `owner` in `pool`.
    pub fn addr_of(&self, pool: &PoolKey, owner: &Owner) -> Option<IpAddr> {
        self.books.get(pool)?.addr_of(owner)
    }

    /// The reservation of `owner` in `pool`.
    pub fn held_by(&self, pool: &PoolKey, owner: &Owner) -> Option<Reservation> {
        self.books.get(pool)?.held_by(owner)
    }

    /// Number of addresses in use, also in pools that are not configured.
    pub fn in_use(&self) -> u64 {
        self.books.values().map(Book::used).sum()
    }

    /// How full each configured pool is, by key.
    pub fn usage(&self) -> Vec<PoolUsage> {
        let usage =
            |book: &Book| Some(PoolUsage { pause: self.pause(book.pool()?).map(|why| why.reason()), ..book.usage()? });
        self.books.values().filter_map(usage).collect()
    }

    /// The use of each pool that is configured or has addresses in use, by key, as no more than `most_runs` runs (at
    /// least 2) in each. Takes time in proportion to the runs of addresses in use.
    pub fn holdings(&self, most_runs: usize) -> Vec<Holding> {
        let holding = |(key, book): (&PoolKey, &Book)| {
            let mut holding = book.holding(most_runs)?;
            let grant = book.pool().and_then(|pool| pool.grant);
            holding.grant = grant.and_then(|id| Some(GrantUse { id, step: self.grants.step(key, id)? }));
            Some(holding)
        };
        self.books.iter().filter_map(holding).collect()
    }

    /// SHA-256 of the content of the older store when it was imported last.
    pub fn imported(&self, source: &str) -> Option<&[u8; 32]> {
        self.imported.get(source)
    }

    /// The last note of the ledger's owner.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The reservation of the address.
    pub fn holder(&self, pool: &PoolKey, addr: IpAddr) -> Option<Reservation> {
        self.books.get(pool)?.holder(addr)
    }

    /// The shortest changes that, applied to a new ledger, make one that decides as this one does: addresses in use,
    /// cursors, cooldowns and grants. The note is among them.
    pub fn snapshot(&self) -> impl Iterator<Item = Change> {
        let books = self.books.values().flat_map(Book::snapshot);
        let imported =
            self.imported.iter().map(|(source, digest)| Change::Imported { source: source.clone(), digest: *digest });
        let note = self.note.iter().map(|text| Change::Note { text: text.clone() });
        books.chain(self.grants.snapshot()).chain(imported).chain(note)
    }

    /// Whether the address is in use and a stray of any pool.
    fn has_stray(&self, addr: IpAddr) -> bool {
        self.books.values().any(|book| book.has_stray(addr))
    }

    /// The reservation of `addr`, if it is a stray of any pool.
    fn stray_holder(&self, addr: IpAddr) -> Option<Reservation> {
        self.books.values().find(|book| book.has_stray(addr))?.holder(addr)
    }

    fn tell_strays(&mut self) {
        if self.books.values().all(|book| book.pool().is_none()) {
            return;
        }
        let strays = self.books.values().flat_map(Book::strays).collect();
        self.books.values_mut().for_each(|book| book.set_strays(&strays));
    }

    fn book(&mut self, key: &PoolKey) -> &mut Book {
        let cooldown = self.cooldown_seconds;
        self.books.entry(key.clone()).or_insert_with(|| Book::new(key.clone(), cooldown))
    }

    /// The configured pool of `key`, with its book.
    fn configured(&self, key: &PoolKey) -> Option<(&Book, &NodePool)> {
        let book = self.books.get(key)?;
        Some((book, book.pool()?))
    }

    fn missing(&self, key: &PoolKey, owner: &Owner) -> Refusal {
        match self.configured(key) {
            Some(_) => Refusal::NotReserved { pool: key.clone(), owner: owner.clone() },
            None => self.unknown(key),
        }
    }

    fn unknown(&self, key: &PoolKey) -> Refusal {
        let known = self.books.iter().filter(|(_, book)| book.pool().is_some()).map(|(key, _)| key.clone()).collect();
        Refusal::UnknownPool { pool: key.clone(), known }
    }
}
