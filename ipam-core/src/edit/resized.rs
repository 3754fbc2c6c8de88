//! Blocks that a new spec does not have any more, or does not allow for their node any more.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::{Field, Fields, Held};
use crate::spec::{PoolSpec, StaticAllocationSpec};
use crate::{AddrRange, Cidr, Claim, Pool};

/// The comparison of two block layouts.
pub(super) struct Resized<'a> {
    new: &'a Pool,
    new_spec: &'a PoolSpec,
    /// `None` also if the old spec is invalid: then it is unknown from which spec the blocks are.
    old: Option<Pool>,
    statics: OnceCell<StaticFields<'a>>,
}

impl<'a> Resized<'a> {
    pub(super) fn new(new: &'a Pool, old: Option<&PoolSpec>, new_spec: &'a PoolSpec) -> Self {
        let old = old.and_then(|old| Pool::parse(&new.key().name, old).ok());
        Self { new, new_spec, old, statics: OnceCell::new() }
    }

    /// The fields that remove the claimed block, or an address in use outside it. Empty if there are none.
    pub(super) fn fields(&self, claim: &Claim, held: &Held) -> Fields {
        let had = |pool: &Pool| pool.index_for(&claim.node, &claim.range).is_some();
        if !had(self.new) {
            return if self.old.as_ref().is_none_or(had) { self.blame(claim) } else { Fields::new() };
        }
        let is_lost = self.loses_an_address_outside_blocks(claim, held);
        Fields::from_iter(is_lost.then_some(Field::Network(self.network_field())))
    }

    fn blame(&self, claim: &Claim) -> Fields {
        let Some(sample) = self.new.grid().range(0) else { return Fields::new() };
        let is_inside = self.new.network().range().contains_range(&claim.range);
        let mut fields = Fields::new();
        if sample.size() != claim.range.size() {
            fields.insert(Field::Size(self.size_field()));
            if !is_inside {
                fields.insert(Field::Network(self.network_field()));
            }
        } else if self.new.grid().index_of(&claim.range).is_none() {
            fields.insert(Field::Network(self.network_field()));
        } else {
            fields.extend(self.statics().to_blame(claim));
        }
        fields
    }

    /// Whether an address in use is outside the new network. A pod may have requested an address outside its node's block.
    fn loses_an_address_outside_blocks(&self, claim: &Claim, held: &Held) -> bool {
        let (Held::Addresses(held), Some(old)) = (held, &self.old) else { return false };
        let (new, old) = (self.new.network(), old.network());
        if new.range().contains_range(&old.range()) || claim.range.family() != new.family() {
            return false;
        }
        let (first, last) = new.range().numbers();
        let (old_first, old_last) = old.range().numbers();
        held.clipped(old_first, old_last).runs().any(|run| run.0 < first || run.1 > last)
    }

    fn statics(&self) -> &StaticFields<'a> {
        self.statics.get_or_init(|| StaticFields::of(self.new_spec))
    }

    const fn network_field(&self) -> &'static str {
        match self.new_spec {
            PoolSpec::Ip(_) => "spec.subnet",
            PoolSpec::Cidr(_) => "spec.cidr",
        }
    }

    const fn size_field(&self) -> &'static str {
        match self.new_spec {
            PoolSpec::Ip(_) => "spec.perNodeBlockSize",
            PoolSpec::Cidr(_) => "spec.perNodeNetworkPrefix",
        }
    }
}

/// Indexes of the static entries in the spec.
struct StaticFields<'a> {
    by_node: BTreeMap<&'a str, usize>,
    by_prefix: BTreeMap<AddrRange, usize>,
}

impl<'a> StaticFields<'a> {
    fn of(spec: &'a PoolSpec) -> Self {
        let entries: &[StaticAllocationSpec] = match spec {
            PoolSpec::Ip(_) => &[],
            PoolSpec::Cidr(spec) => &spec.static_allocations,
        };
        let by_node = entries.iter().enumerate().filter_map(|(i, entry)| Some((entry.node_name.as_deref()?, i)));
        let by_prefix = entries
            .iter()
            .enumerate()
            .filter_map(|(i, entry)| Cidr::parse(&entry.prefix).ok().map(|(prefix, _)| (prefix.range(), i)));
        Self { by_node: by_node.collect(), by_prefix: by_prefix.collect() }
    }

    /// The entry that assigns another prefix to the node, and the one that assigns the node's prefix to another node or
    /// only reserves it.
    fn to_blame(&self, claim: &Claim) -> impl Iterator<Item = Field> {
        let of_node = self.by_node.get(claim.node.as_str()).copied().map(Field::StaticPrefix);
        let of_prefix = self.by_prefix.get(&claim.range).copied().map(Field::StaticNode);
        of_node.into_iter().chain(of_prefix)
    }
}
