//! The ledger against a model that is simple enough to be seen right: lists, and a walk over every address.
//!
//! The ranges are small, so the walk is short and every case (full, wrapped, excluded, cooling) comes up often.

mod naive;

use ipam_core::AddrRange;
use ipam_core::ledger::{Ledger, Owner, Pick, Refusal, Request};
use ipam_core::node_pool::PoolState;
use proptest::prelude::*;

use crate::support::*;
use naive::{Naive, NaivePool};

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        pools: Vec<usize>,
        owner: usize,
        wish: Wish,
    },
    Release {
        pools: Vec<usize>,
        owner: usize,
    },
    Check {
        pools: Vec<usize>,
        owner: usize,
        expected: Vec<(usize, u128)>,
    },
    Configure(Vec<NaivePool>),
    /// A new ledger that reads the snapshot.
    Restart,
    /// Seconds that the clock goes on, or is set back.
    Pass(i64),
    Expire,
}

#[derive(Clone, Debug)]
enum Wish {
    Next,
    Gateway,
    Index(i32),
    /// (Pool of the catalogue, offset from its subnet's network address.)
    Addrs(Vec<(usize, u128)>),
}

const COOLDOWN: i64 = 20;
/// Network addresses of the catalogue's pools: two IPv4 ones apart from each other, one IPv6.
const SUBNETS: [&str; 3] = ["10.0.0.0/28", "10.0.1.0/29", "fd00::/124"];

fn any_pool(index: usize) -> impl Strategy<Value = NaivePool> {
    let size = cidr(SUBNETS[index]).range().size();
    let runs = proptest::collection::vec((0..size, 0..4_u128), 0..4);
    let ends = (1..size - 1, 0..size);
    (ends, runs, proptest::option::of(0..size), proptest::bool::weighted(0.1)).prop_map(
        move |(ends, runs, gateway, releasing)| {
            let last = (ends.0 + ends.1).min(size - 2);
            NaivePool {
                name: index,
                state: if releasing { PoolState::Releasing } else { PoolState::Active },
                subnet: cidr(SUBNETS[index]),
                first: ends.0,
                last,
                gateway,
                excluded: runs.into_iter().map(|(first, length)| (first, first + length)).collect(),
            }
        },
    )
}

fn any_configuration() -> impl Strategy<Value = Vec<NaivePool>> {
    let present = |index| proptest::option::weighted(0.9, any_pool(index));
    (present(0), present(1), present(2)).prop_map(|(a, b, c)| [a, b, c].into_iter().flatten().collect())
}

/// Mostly one or two different pools; sometimes none, a double, or three.
fn any_pools() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        8 => (0..3_usize).prop_map(|pool| vec![pool]),
        8 => (0..3_usize, 1..3_usize).prop_map(|(pool, step)| vec![pool, (pool + step) % 3]),
        1 => proptest::collection::vec(0..3_usize, 0..4),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let addr = || (0..3_usize, 0..17_u128);
    let wish = prop_oneof![
        10 => Just(Wish::Next),
        1 => Just(Wish::Gateway),
        2 => (-1..16).prop_map(Wish::Index),
        3 => proptest::collection::vec(addr(), 1..3).prop_map(Wish::Addrs),
    ];
    let owner = || 0..12_usize;
    let allocate = (any_pools(), owner(), wish);
    prop_oneof![
        12 => allocate.prop_map(|(pools, owner, wish)| Step::Allocate { pools, owner, wish }),
        8 => (any_pools(), owner()).prop_map(|(pools, owner)| Step::Release { pools, owner }),
        2 => (any_pools(), owner(), proptest::collection::vec(addr(), 0..3))
            .prop_map(|(pools, owner, expected)| Step::Check { pools, owner, expected }),
        1 => any_configuration().prop_map(Step::Configure),
        1 => Just(Step::Restart),
        3 => (0..15_i64).prop_map(Step::Pass),
        1 => (-30..0_i64).prop_map(Step::Pass),
        1 => Just(Step::Expire),
    ]
}

fn request_of(pools: &[usize], owner: usize, wish: &Wish) -> Request {
    let names: Vec<_> = pools.iter().map(ToString::to_string).collect();
    let mut request = request(&owner.to_string(), &names.iter().map(String::as_str).collect::<Vec<_>>());
    request.owner = owner_of(owner);
    match wish {
        Wish::Next => {}
        Wish::Gateway => request.pick = Pick::Gateway,
        Wish::Index(index) => request.pick = Pick::Index(*index),
        Wish::Addrs(addrs) => {
            request.requested = addrs.iter().map(|&(pool, offset)| naive::addr(SUBNETS[pool], offset)).collect();
        }
    }
    request
}

/// Three containers with four interfaces each, so that neither alone tells owners apart.
fn owner_of(number: usize) -> Owner {
    Owner::new(format!("c{}", number / 4), format!("net{}", number % 4))
}

struct Run {
    ledger: Ledger,
    naive: Naive,
    now: i64,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Allocate { pools, owner, wish } => self.allocate(&request_of(pools, *owner, wish)),
            Step::Release { pools, owner } => {
                let pools: Vec<_> = pools.iter().map(|pool| key(&pool.to_string())).collect();
                let changes = self.ledger.release(&pools, &owner_of(*owner), self.now);
                apply(&mut self.ledger, &changes);
                self.naive.release(&pools, &owner_of(*owner), self.now);
            }
            Step::Check { pools, owner, expected } => {
                let request = request_of(pools, *owner, &Wish::Addrs(expected.clone()));
                let found = self.ledger.check(&request.pools, &request.owner, &request.requested);
                let expected = self.naive.check(&request.pools, &request.owner, &request.requested);
                assert_eq!(found.map_err(|refusal| refusal.reason()), expected);
            }
            Step::Configure(pools) => self.configure(pools.clone()),
            Step::Restart => self.restart(),
            Step::Pass(seconds) => self.now += seconds,
            Step::Expire => {
                self.ledger.expire(self.now);
                self.naive.expire(self.now, None);
            }
        }
        self.compare();
    }

    fn allocate(&mut self, request: &Request) {
        let found = self.ledger.allocate(request, self.now);
        let expected = self.naive.allocate(request, self.now);
        let told = found.as_ref().map(|allocation| {
            allocation.grants.iter().map(|grant| (grant.addr, grant.prefix_len, grant.gateway)).collect::<Vec<_>>()
        });
        assert_eq!(told.map_err(Refusal::reason), expected, "{request:?} at {}", self.now);
        let Ok(allocation) = found else { return };
        apply(&mut self.ledger, &allocation.changes);
        let again = self.ledger.allocate(request, self.now).expect("a repeat is granted");
        assert_eq!((again.grants, again.changes.len()), (allocation.grants, 0));
    }

    fn configure(&mut self, pools: Vec<NaivePool>) {
        self.ledger.configure(pools.iter().map(NaivePool::node_pool).collect());
        self.naive.pools = pools;
    }

    fn restart(&mut self) {
        let before = snapshot(&self.ledger);
        self.ledger = Ledger::new(COOLDOWN);
        apply(&mut self.ledger, &before);
        assert_eq!(snapshot(&self.ledger), before);
        self.configure(self.naive.pools.clone());
    }

    fn compare(&self) {
        let held: Vec<_> = self.ledger.reservations().map(|r| (r.pool.clone(), r.owner.clone(), r.addr)).collect();
        let mut expected = self.naive.held.clone();
        expected.sort_by_key(|(pool, _, addr)| (pool.clone(), *addr));
        assert_eq!(held, expected);
        for usage in self.ledger.usage() {
            let used = expected.iter().filter(|(pool, ..)| *pool == usage.key).count();
            assert_eq!(usage.used, u64::try_from(used).unwrap());
        }
        for holding in self.ledger.holdings(usize::MAX) {
            let runs = holding.runs;
            let count: u128 = runs.iter().map(AddrRange::size).sum();
            assert_eq!(count, u128::from(holding.used));
            let mut of_pool = expected.iter().filter(|(pool, ..)| *pool == holding.key);
            assert!(of_pool.all(|(.., addr)| runs.iter().any(|run| run.contains(*addr))), "{runs:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_ledger_does_what_the_model_does(
        first in any_configuration(),
        steps in proptest::collection::vec(any_step(), 1..80),
    ) {
        let mut run = Run { ledger: Ledger::new(COOLDOWN), naive: Naive::new(COOLDOWN), now: 1000 };
        run.configure(first);
        for step in &steps {
            run.step(step);
        }
    }
}
