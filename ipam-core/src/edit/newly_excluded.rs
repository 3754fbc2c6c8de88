//! Addresses that a new spec excludes or makes the gateway, and the old spec does not.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Field, Fields, Held};
use crate::addr::{number, parse_addr};
use crate::spec::{CommonSpec, PoolSpec};
use crate::{AddrRange, Claim, Pool, RangeSet};

/// Maximum number of fields that are reported for one node. More would add no information.
const MOST_FIELDS: usize = 8;

/// The exclusions and the gateway that are new.
pub(super) struct NewlyExcluded<'a> {
    new: &'a Pool,
    new_spec: &'a PoolSpec,
    old: Excluded,
    old_gateway: OldGateway,
    /// Addresses that only the new spec excludes.
    added: RangeSet,
    /// Offsets in each block that only the new spec excludes.
    added_places: RangeSet,
    exclusions: Cover,
    per_node: Cover,
}

/// The gateway rule of the old spec.
enum OldGateway {
    Shared(Option<IpAddr>),
    Index(Option<i64>),
}

/// Exclusions of a spec, as far as they can be read.
#[derive(Default)]
struct Excluded {
    addresses: RangeSet,
    places: RangeSet,
}

impl<'a> NewlyExcluded<'a> {
    pub(super) fn new(new: &'a Pool, old: &PoolSpec, new_spec: &'a PoolSpec) -> Self {
        let family = new.network().family();
        let read = |spec: &CommonSpec| Excluded {
            addresses: address_runs(spec)
                .filter(|(_, run)| run.family() == family)
                .map(|(_, run)| run.numbers())
                .collect(),
            places: place_runs(spec).map(|(_, run)| run).collect(),
        };
        let (before, now) = (read(old.common()), read(new_spec.common()));
        let old_gateway = match old {
            PoolSpec::Ip(spec) => OldGateway::Shared(spec.gateway.as_deref().and_then(|text| parse_addr(text).ok())),
            PoolSpec::Cidr(spec) => OldGateway::Index(spec.gateway_index),
        };
        Self {
            new,
            new_spec,
            added: now.addresses.without(&before.addresses),
            added_places: now.places.without(&before.places),
            exclusions: Cover::of(address_runs(new_spec.common()).map(|(i, run)| (i, run.numbers()))),
            per_node: Cover::of(place_runs(new_spec.common())),
            old: before,
            old_gateway,
        }
    }

    /// The fields that newly exclude an address that the claim's node may use, or make it the gateway. Empty if there are none.
    pub(super) fn fields(&self, claim: &Claim, held: &Held) -> Fields {
        if claim.range.family() != self.new.network().family() {
            return Fields::new();
        }
        let possible = self.possible(claim, held);
        let mut fields = Fields::new();
        fields.extend(self.gateway(claim, &possible));
        for (first, last) in possible.runs() {
            let over = self.added.clipped(first, last);
            fields.extend(
                over.runs().filter_map(|(at, _)| self.exclusions.first_in(at)).map(Field::Exclusion).take(MOST_FIELDS),
            );
            fields.extend(self.places(&claim.range, first, last));
            if fields.len() >= MOST_FIELDS {
                break;
            }
        }
        fields
    }

    /// The addresses that may be in use. If it is unknown which are in use, they are those that the old spec does not exclude.
    fn possible(&self, claim: &Claim, held: &Held) -> RangeSet {
        let possible = held.possible(&self.new.hosts(&claim.range));
        if matches!(held, Held::Addresses(_)) {
            return possible;
        }
        let (base, _) = claim.range.numbers();
        let places = self.old.places.runs().map(|(from, to)| (base.saturating_add(from), base.saturating_add(to)));
        possible.without(&self.old.addresses).without(&places.collect())
    }

    /// The new per-node exclusions of the addresses of the block in `first..=last`, which may be in use.
    fn places(&self, block: &AddrRange, first: u128, last: u128) -> Vec<Field> {
        let (base, end) = block.numbers();
        let (first, last) = (first.max(base), last.min(end));
        if first > last {
            return Vec::new();
        }
        let over = self.added_places.clipped(first - base, last - base);
        over.runs()
            .filter_map(|(at, _)| self.per_node.first_in(at))
            .map(Field::PerNodeExclusion)
            .take(MOST_FIELDS)
            .collect()
    }

    fn gateway(&self, claim: &Claim, possible: &RangeSet) -> Option<Field> {
        let index = self.new.index_for(&claim.node, &claim.range)?;
        let gateway = self.new.block(index)?.gateway?;
        let is_new = self.old_gateway_of(claim) != Some(gateway);
        (is_new && possible.contains(number(gateway))).then(|| self.gateway_field(claim, gateway))
    }

    /// The gateway of the block in the old spec. For a CIDRPool the record takes precedence: it has the gateway of the
    /// node, whatever its origin.
    fn old_gateway_of(&self, claim: &Claim) -> Option<IpAddr> {
        match self.old_gateway {
            OldGateway::Shared(gateway) => gateway,
            OldGateway::Index(index) => claim.gateway.or_else(|| {
                let addr = claim.range.numbers().0.checked_add(u128::try_from(index?).ok()?)?;
                Some(claim.range.family().addr(addr))
            }),
        }
    }

    fn gateway_field(&self, claim: &Claim, gateway: IpAddr) -> Field {
        let PoolSpec::Cidr(spec) = self.new_spec else { return Field::Gateway("spec.gateway") };
        let is_of_entry = |text: &str| parse_addr(text) == Ok(gateway);
        let entry = spec.static_allocations.iter().position(|entry| {
            entry.node_name.as_deref() == Some(claim.node.as_str()) && entry.gateway.as_deref().is_some_and(is_of_entry)
        });
        entry.map_or(Field::Gateway("spec.gatewayIndex"), Field::StaticGateway)
    }
}

fn address_runs(spec: &CommonSpec) -> impl Iterator<Item = (usize, AddrRange)> {
    spec.exclusions.iter().enumerate().filter_map(|(i, exclusion)| {
        let (start, end) = (parse_addr(&exclusion.start_ip).ok()?, parse_addr(&exclusion.end_ip).ok()?);
        Some((i, AddrRange::new(start, end)?))
    })
}

fn place_runs(spec: &CommonSpec) -> impl Iterator<Item = (usize, (u128, u128))> {
    spec.per_node_exclusions.iter().enumerate().filter_map(|(i, range)| {
        Some((i, (u128::try_from(range.start_index).ok()?, u128::try_from(range.end_index).ok()?)))
    })
}

/// Finds the first of a list of runs that contains a number.
#[derive(Default)]
struct Cover {
    /// First number → last number and the entry. The parts never overlap.
    parts: BTreeMap<u128, (u128, usize)>,
}

impl Cover {
    fn of(entries: impl Iterator<Item = (usize, (u128, u128))>) -> Self {
        let (mut parts, mut covered) = (BTreeMap::new(), RangeSet::new());
        for (i, (first, last)) in entries {
            let own: RangeSet = [(first, last)].into_iter().collect();
            parts.extend(own.without(&covered).runs().map(|(from, to)| (from, (to, i))));
            covered.insert(first, last);
        }
        Self { parts }
    }

    fn first_in(&self, number: u128) -> Option<usize> {
        let (_, (last, entry)) = self.parts.range(..=number).next_back()?;
        (number <= *last).then_some(*entry)
    }
}
