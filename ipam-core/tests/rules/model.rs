//! The rules once more, as naively as can be: a pool small enough to list all its addresses.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::addr::{number, parse_addr};
use ipam_core::spec::{CidrPoolSpec, CommonSpec, IpPoolSpec, PoolSpec};
use ipam_core::{AddrRange, BlockPhase, Cidr, Claim, ClaimSource, Family, Usage};

/// A pool as lists of addresses.
pub(crate) struct NaivePool {
    family: Family,
    is_cidr: bool,
    /// First and last address of each block.
    pub(crate) blocks: Vec<(u128, u128)>,
    /// Per block: addresses that can be given.
    pub(crate) usable: Vec<Vec<u128>>,
    pub(crate) gateways: Vec<Option<u128>>,
    /// Block → the node it is reserved for.
    statics: BTreeMap<usize, Option<String>>,
}

/// What the naive plan says of a node.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct NaiveAssignment {
    pub(crate) node: String,
    pub(crate) range: (u128, u128),
    pub(crate) phase: BlockPhase,
}

fn value(text: &str) -> u128 {
    number(parse_addr(text).unwrap())
}

impl NaivePool {
    /// The spec must be valid and its network small.
    pub(crate) fn of(spec: &PoolSpec) -> Self {
        match spec {
            PoolSpec::Ip(spec) => Self::of_ip(spec),
            PoolSpec::Cidr(spec) => Self::of_cidr(spec),
        }
    }

    fn of_ip(spec: &IpPoolSpec) -> Self {
        let (subnet, _) = Cidr::parse(&spec.subnet).unwrap();
        let hosts = host_list(&subnet);
        let size = usize::try_from(spec.per_node_block_size).unwrap();
        let blocks: Vec<Vec<u128>> = hosts.chunks_exact(size).map(<[u128]>::to_vec).collect();
        let gateways = vec![spec.gateway.as_deref().map(value); blocks.len()];
        let starts: Vec<u128> = blocks.iter().map(|block| block[0]).collect();
        Self::new(subnet.family(), false, &blocks, &starts, gateways, &spec.common)
    }

    fn of_cidr(spec: &CidrPoolSpec) -> Self {
        let (cidr, _) = Cidr::parse(&spec.cidr).unwrap();
        let len = u8::try_from(spec.per_node_network_prefix).unwrap();
        let prefixes: BTreeSet<Cidr> =
            list(&cidr.range()).into_iter().map(|a| Cidr::containing(cidr.family().addr(a), len).unwrap()).collect();
        let ends: Vec<(u128, u128)> = prefixes.iter().map(|prefix| prefix.range().numbers()).collect();
        let index = spec.gateway_index.map(|index| u128::try_from(index).unwrap());
        let mut gateways: Vec<Option<u128>> = ends.iter().map(|(first, _)| index.map(|index| first + index)).collect();
        let mut statics = BTreeMap::new();
        for entry in &spec.static_allocations {
            let range = Cidr::parse(&entry.prefix).unwrap().0.range().numbers();
            let at = ends.iter().position(|block| *block == range).unwrap();
            gateways[at] = entry.gateway.as_deref().map(value).or(gateways[at]);
            statics.insert(at, entry.node_name.clone());
        }
        let hosts: Vec<Vec<u128>> = prefixes.iter().map(host_list).collect();
        let starts: Vec<u128> = ends.iter().map(|(first, _)| *first).collect();
        let pool = Self::new(cidr.family(), true, &hosts, &starts, gateways, &spec.common);
        Self { blocks: ends, statics, ..pool }
    }

    fn new(
        family: Family,
        is_cidr: bool,
        hosts: &[Vec<u128>],
        starts: &[u128],
        gateways: Vec<Option<u128>>,
        common: &CommonSpec,
    ) -> Self {
        let excluded: Vec<(u128, u128)> =
            common.exclusions.iter().map(|range| (value(&range.start_ip), value(&range.end_ip))).collect();
        let places: Vec<(u128, u128)> = common
            .per_node_exclusions
            .iter()
            .map(|range| (u128::try_from(range.start_index).unwrap(), u128::try_from(range.end_index).unwrap()))
            .collect();
        let within = |ranges: &[(u128, u128)], value: u128| ranges.iter().any(|(a, b)| *a <= value && value <= *b);
        let usable = hosts.iter().zip(starts).zip(&gateways).map(|((block, start), gateway)| {
            let open =
                |addr: &u128| !within(&excluded, *addr) && !within(&places, *addr - start) && Some(*addr) != *gateway;
            block.iter().copied().filter(open).collect()
        });
        let usable = usable.collect();
        let blocks = hosts.iter().map(|block| (block[0], block[block.len() - 1])).collect();
        Self { family, is_cidr, blocks, usable, gateways, statics: BTreeMap::new() }
    }

    fn static_of(&self, node: &str) -> Option<usize> {
        self.statics.iter().find(|(_, owner)| owner.as_deref() == Some(node)).map(|(at, _)| *at)
    }

    /// The index of a claimed block if the spec would give it to this node today.
    fn agreed(&self, claim: &Claim) -> Option<usize> {
        let at = self.blocks.iter().position(|block| *block == claim.range.numbers())?;
        let is_allowed = self.static_of(&claim.node).map_or(!self.statics.contains_key(&at), |own| own == at);
        (is_allowed && claim.range.family() == self.family).then_some(at)
    }

    /// Assignments by node name, and the nodes left without.
    pub(crate) fn plan(
        &self,
        nodes: &[&str],
        claims: &[Claim],
        usage: &dyn Fn(&str) -> Usage,
    ) -> (Vec<NaiveAssignment>, Vec<String>) {
        let mut given: Vec<(String, AddrRange, BlockPhase)> = Vec::new();
        let ordered = by_trust(claims);
        for must_agree in [true, false] {
            for claim in &ordered {
                let agreed = self.agreed(claim);
                let is_useless = agreed.is_some_and(|at| self.usable[at].is_empty() && !self.statics.contains_key(&at));
                let is_replaceable = agreed.is_none() || is_useless || !nodes.contains(&claim.node.as_str());
                if agreed.is_some() != must_agree
                    || given.iter().any(|(node, range, _)| *node == claim.node || range.overlaps(&claim.range))
                    || (is_replaceable && usage(&claim.node) == Usage::Empty)
                {
                    continue;
                }
                let phase = match (nodes.contains(&claim.node.as_str()), agreed) {
                    (false, _) => BlockPhase::Releasing,
                    (true, Some(_)) => BlockPhase::Active,
                    (true, None) => BlockPhase::Stale,
                };
                given.push((claim.node.clone(), claim.range, phase));
            }
        }
        let mut unserved = Vec::new();
        for node in nodes.iter().copied().collect::<BTreeSet<_>>() {
            if given.iter().any(|(owner, ..)| owner == node) {
                continue;
            }
            let is_free = |at: &usize| given.iter().all(|(_, range, _)| !range.overlaps(&self.range(*at)));
            let is_dynamic = |at: &usize| !self.usable[*at].is_empty() && !self.statics.contains_key(at);
            let at = match self.static_of(node) {
                Some(at) => Some(at).filter(is_free),
                None => (0..self.blocks.len()).find(|at| is_dynamic(at) && is_free(at)),
            };
            match at {
                Some(at) => given.push((node.to_owned(), self.range(at), BlockPhase::Active)),
                None => unserved.push(node.to_owned()),
            }
        }
        given.sort_by(|a, b| a.0.cmp(&b.0));
        let assignments =
            given.into_iter().map(|(node, range, phase)| NaiveAssignment { node, range: range.numbers(), phase });
        (assignments.collect(), unserved)
    }

    fn range(&self, at: usize) -> AddrRange {
        let (first, last) = self.blocks[at];
        AddrRange::from_numbers(self.family, first, last).unwrap()
    }

    /// Blocks that one more node could be given, when these are assigned.
    pub(crate) fn free(&self, assignments: &[NaiveAssignment]) -> usize {
        (0..self.blocks.len())
            .filter(|at| !self.usable[*at].is_empty() && !self.statics.contains_key(at))
            .filter(|at| {
                let (first, last) = self.blocks[*at];
                assignments.iter().all(|assignment| last < assignment.range.0 || assignment.range.1 < first)
            })
            .count()
    }

    pub(crate) fn is_cidr(&self) -> bool {
        self.is_cidr
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }
}

/// Status records that an IPAMNode repeats, other status records, IPAMNode's own; each by node.
fn by_trust(claims: &[Claim]) -> Vec<Claim> {
    let repeated = |claim: &Claim| {
        claims.iter().any(|other| {
            other.source == ClaimSource::IpamNode && other.node == claim.node && other.range == claim.range
        })
    };
    let rank = |claim: &Claim| match claim.source {
        ClaimSource::Status if repeated(claim) => 0,
        ClaimSource::Status => 1,
        ClaimSource::IpamNode => 2,
    };
    let mut sorted = claims.to_vec();
    sorted.sort_by_key(|claim| (rank(claim), claim.node.clone(), claim.range));
    sorted
}

fn list(range: &AddrRange) -> Vec<u128> {
    let (first, last) = range.numbers();
    (first..=last).collect()
}

fn host_list(network: &Cidr) -> Vec<u128> {
    let all = list(&network.range());
    match (all.len(), network.family()) {
        (1 | 2, _) => all,
        (_, Family::V4) => all[1..all.len() - 1].to_vec(),
        (_, Family::V6) => all[1..].to_vec(),
    }
}
