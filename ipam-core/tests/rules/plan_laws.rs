//! Laws of plans, on small pools of any shape.

use std::collections::BTreeMap;

use ipam_core::spec::{
    CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, PoolSpec, StaticAllocationSpec,
};
use ipam_core::{AddrRange, BlockPhase, Cidr, Claim, ClaimSource, Family, Plan, Pool, Usage};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;

use super::model::NaivePool;
use super::support::{plan_for, recorded};

/// Low bits of the network: at most 64 addresses.
const MAX_BITS: u8 = 6;

/// Numbers from which a spec is made that is valid whatever they are.
#[derive(Clone, Debug)]
struct Seeds {
    is_v6: bool,
    host_bits: u8,
    block: u8,
    gateway: Option<u8>,
    exclusions: Vec<(u8, u8)>,
    places: Vec<(u8, u8)>,
    statics: BTreeMap<u8, (Option<u8>, Option<u8>)>,
}

fn seeds() -> impl Strategy<Value = Seeds> {
    let pairs = || vec(prop_oneof![(any::<u8>(), any::<u8>()), any::<u8>().prop_map(|at| (at, at))], 0..6);
    let statics = btree_map(any::<u8>(), (of(0_u8..6), of(any::<u8>())), 0..3);
    (any::<bool>(), 0..=MAX_BITS, any::<u8>(), of(any::<u8>()), pairs(), pairs(), statics).prop_map(
        |(is_v6, host_bits, block, gateway, exclusions, places, statics)| Seeds {
            is_v6,
            host_bits,
            block,
            gateway,
            exclusions,
            places,
            statics,
        },
    )
}

impl Seeds {
    fn network(&self) -> Cidr {
        let (base, bits) = if self.is_v6 { ("fd00::40", 128) } else { ("10.0.0.64", 32) };
        Cidr::containing(base.parse().unwrap(), bits - self.host_bits).unwrap()
    }

    /// Some address of `range`.
    fn addr(range: &AddrRange, seed: u8) -> String {
        let (first, _) = range.numbers();
        range.family().addr(first + u128::from(seed) % range.size()).to_string()
    }

    fn common(&self, block_size: u128) -> CommonSpec {
        let range = self.network().range();
        let exclusions = self.exclusions.iter().map(|&(a, b)| {
            let in_order = |a: u8, b: u8| u128::from(a) % range.size() <= u128::from(b) % range.size();
            let (a, b) = if in_order(a, b) { (a, b) } else { (b, a) };
            ExclusionSpec { start_ip: Self::addr(&range, a), end_ip: Self::addr(&range, b) }
        });
        let places = self.places.iter().map(|&(a, b)| {
            let place = |seed: u8| i64::try_from(u128::from(seed) % block_size).unwrap();
            IndexRangeSpec { start_index: place(a).min(place(b)), end_index: place(a).max(place(b)) }
        });
        CommonSpec { exclusions: exclusions.collect(), per_node_exclusions: places.collect(), ..CommonSpec::default() }
    }

    fn ip(&self) -> PoolSpec {
        let network = self.network();
        let block_size = 1 + u128::from(self.block) % network.hosts().size().min(9);
        PoolSpec::Ip(IpPoolSpec {
            subnet: network.to_string(),
            per_node_block_size: i64::try_from(block_size).unwrap(),
            gateway: self.gateway.map(|seed| Self::addr(&network.range(), seed)),
            common: self.common(block_size),
        })
    }

    fn cidr(&self) -> PoolSpec {
        let network = self.network();
        let len = network.prefix_len() + self.block % (self.host_bits + 1);
        let sample = Cidr::containing(network.network(), len).unwrap();
        let (base, _) = sample.range().numbers();
        let gateway_index = self.gateway.map(|seed| {
            let hosts = sample.hosts();
            i64::try_from(hosts.numbers().0 - base + u128::from(seed) % hosts.size()).unwrap()
        });
        PoolSpec::Cidr(CidrPoolSpec {
            cidr: network.to_string(),
            per_node_network_prefix: i64::from(len),
            gateway_index,
            static_allocations: self.statics(&network, len),
            common: self.common(sample.range().size()),
        })
    }

    fn statics(&self, network: &Cidr, len: u8) -> Vec<StaticAllocationSpec> {
        let (mut prefixes, mut nodes) = (Vec::new(), Vec::new());
        let mut entries = Vec::new();
        for (&at, &(node, gateway)) in &self.statics {
            let addr = Self::addr(&network.range(), at).parse().unwrap();
            let prefix = Cidr::containing(addr, len).unwrap();
            if prefixes.contains(&prefix) || (node.is_some() && nodes.contains(&node)) {
                continue;
            }
            prefixes.push(prefix);
            nodes.push(node);
            entries.push(StaticAllocationSpec {
                node_name: node.map(|node| format!("n{node}")),
                gateway: gateway.map(|seed| Self::addr(&prefix.range(), seed)),
                prefix: prefix.to_string(),
            });
        }
        entries
    }
}

fn spec() -> impl Strategy<Value = PoolSpec> {
    (seeds(), any::<bool>()).prop_map(|(seeds, is_cidr)| if is_cidr { seeds.cidr() } else { seeds.ip() })
}

fn pool(spec: &PoolSpec) -> Pool {
    Pool::parse("pool1", spec).unwrap()
}

fn nodes() -> impl Strategy<Value = Vec<String>> {
    btree_set(0_u8..8, 0..8).prop_map(|set| set.into_iter().map(|n| format!("n{n}")).collect())
}

/// What a claim is made of: node, source, and either a block of the grid or any range.
type ClaimSeed = (u8, bool, u8, Option<(u8, u8)>);

fn claim_seeds() -> impl Strategy<Value = Vec<ClaimSeed>> {
    let any_range = prop_oneof![2 => Just(None), 1 => (any::<u8>(), 0_u8..12).prop_map(Some)];
    vec((0_u8..8, any::<bool>(), any::<u8>(), any_range), 0..12)
}

fn claims(naive: &NaivePool, seeds: &[ClaimSeed]) -> Vec<Claim> {
    let claim = |&(node, is_status, at, any_range): &ClaimSeed| {
        let (first, last) = match any_range {
            None => naive.blocks[usize::from(at) % naive.blocks.len()],
            Some((offset, extent)) => {
                let first = naive.blocks[0].0 + u128::from(offset);
                (first, first + u128::from(extent))
            }
        };
        let range = AddrRange::from_numbers(naive.family(), first, last).unwrap();
        // A CIDRPool's claim is always a prefix.
        let range = if naive.is_cidr() { Cidr::enclosing(&range).range() } else { range };
        let source = if is_status { ClaimSource::Status } else { ClaimSource::IpamNode };
        Claim { node: format!("n{node}"), range, gateway: None, source }
    };
    seeds.iter().map(claim).collect()
}

fn usage_of(seed: u8) -> impl Fn(&str) -> Usage {
    move |node| match node.bytes().last().map_or(0, |digit| (digit ^ seed) % 3) {
        0 => Usage::Empty,
        1 => Usage::Unknown,
        _ => Usage::Held(3),
    }
}

fn names(nodes: &[String]) -> Vec<&str> {
    nodes.iter().map(String::as_str).collect()
}

fn overlapping(plan: &Plan) -> Option<(&str, &str)> {
    let assignments = &plan.assignments;
    assignments.iter().enumerate().find_map(|(i, one)| {
        let two = assignments[i + 1..].iter().find(|two| one.block.range.overlaps(&two.block.range))?;
        Some((one.node.as_str(), two.node.as_str()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_plan_is_what_listing_all_addresses_gives(
        spec in spec(), nodes in nodes(), seeds in claim_seeds(), usage in any::<u8>(),
    ) {
        let (pool, naive) = (pool(&spec), NaivePool::of(&spec));
        let claims = claims(&naive, &seeds);
        let plan = plan_for(&pool, &names(&nodes), &claims, &usage_of(usage));
        let (expected, unserved) = naive.plan(&names(&nodes), &claims, &usage_of(usage));
        let short = |node: &str, range: (u128, u128), phase| (node.to_owned(), range, phase);
        prop_assert_eq!(
            plan.assignments.iter().map(|a| short(&a.node, a.block.range.numbers(), a.phase)).collect::<Vec<_>>(),
            expected.iter().map(|a| short(&a.node, a.range, a.phase)).collect::<Vec<_>>()
        );
        prop_assert_eq!(&plan.unserved, &unserved);
        prop_assert_eq!(plan.blocks_total, naive.blocks.len() as u128);
        prop_assert_eq!(plan.blocks_free, naive.free(&expected) as u128);
    }

    #[test]
    fn a_serving_block_has_the_gateway_and_the_addresses_that_listing_gives(
        spec in spec(), nodes in nodes(), seeds in claim_seeds(), usage in any::<u8>(),
    ) {
        let (pool, naive) = (pool(&spec), NaivePool::of(&spec));
        let claims = claims(&naive, &seeds);
        let plan = plan_for(&pool, &names(&nodes), &claims, &usage_of(usage));
        let mut capacity = 0;
        for assignment in plan.assignments.iter().filter(|a| a.phase == BlockPhase::Active) {
            let at = naive.blocks.iter().position(|block| *block == assignment.block.range.numbers()).unwrap();
            let gateway = naive.gateways[at].map(|value| naive.family().addr(value));
            prop_assert_eq!(assignment.block.gateway, gateway);
            let node_pool = pool.node_pool(&assignment.block);
            let (first, last) = node_pool.range.numbers();
            let usable: Vec<u128> = (first..=last)
                .filter(|value| !node_pool.exclusions.contains(*value))
                .filter(|value| gateway != Some(naive.family().addr(*value)))
                .collect();
            prop_assert_eq!(&usable, &naive.usable[at]);
            prop_assert_eq!(pool.capacity(&assignment.block), usable.len() as u128);
            capacity += usable.len() as u128;
        }
        let stale = plan.assignments.iter().filter(|a| a.phase == BlockPhase::Stale);
        let of_stale: u128 = stale.map(|a| pool.capacity(&a.block)).sum();
        prop_assert_eq!(plan.capacity, capacity + of_stale);
    }

    #[test]
    fn blocks_never_overlap_and_serving_ones_lie_in_the_network(
        spec in spec(), nodes in nodes(), seeds in claim_seeds(), usage in any::<u8>(),
    ) {
        let pool = pool(&spec);
        let claims = claims(&NaivePool::of(&spec), &seeds);
        let plan = plan_for(&pool, &names(&nodes), &claims, &usage_of(usage));
        prop_assert_eq!(overlapping(&plan), None);
        for assignment in plan.assignments.iter().filter(|a| a.phase == BlockPhase::Active) {
            prop_assert!(pool.network().range().contains_range(&assignment.block.range));
        }
    }

    #[test]
    fn the_order_of_telling_changes_nothing(
        spec in spec(), nodes in nodes(), seeds in claim_seeds(), usage in any::<u8>(), turn in any::<prop::sample::Index>(),
    ) {
        let pool = pool(&spec);
        let claims = claims(&NaivePool::of(&spec), &seeds);
        let plan = plan_for(&pool, &names(&nodes), &claims, &usage_of(usage));
        let (mut turned_nodes, mut turned_claims) = (names(&nodes), claims.clone());
        turned_nodes.reverse();
        turned_claims.reverse();
        if !turned_claims.is_empty() {
            let by = turn.index(turned_claims.len());
            turned_claims.rotate_left(by);
        }
        prop_assert_eq!(plan_for(&pool, &turned_nodes, &turned_claims, &usage_of(usage)), plan);
    }

    #[test]
    fn no_block_moves_when_nodes_come_and_go(
        spec in spec(), before in nodes(), after in nodes(), seeds in claim_seeds(), usage in any::<u8>(), from_status: bool,
    ) {
        let pool = pool(&spec);
        let usage = usage_of(usage);
        let first = plan_for(&pool, &names(&before), &claims(&NaivePool::of(&spec), &seeds), &usage);
        let source = if from_status { ClaimSource::Status } else { ClaimSource::IpamNode };
        let second = plan_for(&pool, &names(&after), &recorded(&first, source), &usage);
        for old in &first.assignments {
            // A block that disagrees with the spec, or whose node is not to have one, may go once it is empty.
            let is_wanted = old.phase == BlockPhase::Active && after.contains(&old.node);
            let may_go = usage(&old.node) == Usage::Empty && !is_wanted;
            let new = second.assignments.iter().find(|new| new.node == old.node);
            prop_assert!(may_go || new.is_some_and(|new| new.block.range == old.block.range), "{} moved", old.node);
        }
        prop_assert_eq!(overlapping(&second), None);
    }

    #[test]
    fn planning_twice_changes_nothing(
        spec in spec(), nodes in nodes(), seeds in claim_seeds(), usage in any::<u8>(),
    ) {
        let pool = pool(&spec);
        let usage = usage_of(usage);
        let first = plan_for(&pool, &names(&nodes), &claims(&NaivePool::of(&spec), &seeds), &usage);
        let mut records = recorded(&first, ClaimSource::Status);
        records.extend(recorded(&first, ClaimSource::IpamNode));
        let second = plan_for(&pool, &names(&nodes), &records, &usage);
        prop_assert_eq!(&second.assignments, &first.assignments);
        prop_assert_eq!(second.unserved, first.unserved);
        prop_assert_eq!(second.blocks_free, first.blocks_free);
    }
}

#[test]
fn the_generated_pools_are_of_both_families() {
    let of = |is_v6| Seeds {
        is_v6,
        host_bits: 3,
        block: 1,
        gateway: None,
        exclusions: Vec::new(),
        places: Vec::new(),
        statics: BTreeMap::new(),
    };
    assert_eq!(pool(&of(true).ip()).network().family(), Family::V6);
    assert_eq!(pool(&of(false).cidr()).network().family(), Family::V4);
}
