//! The division of a network into blocks of equal size, as arithmetic: a block is an index, and blocks are never listed.

use crate::{AddrRange, Cidr, Family, RangeSet};

/// Consecutive blocks of equal size, numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlockLayout {
    family: Family,
    /// First address of block 0.
    first: u128,
    /// Addresses in a block, at least 1.
    block_size: u128,
    /// Index of the last block. A count would not fit if all of IPv6 were cut into single addresses.
    last_index: u128,
    /// First and last offset in a block that a host may have.
    hosts: (u128, u128),
}

impl BlockLayout {
    /// Blocks of `block_size` addresses, from the subnet's first host address to at most its last (behaviour.md §3,
    /// IPPool). `None` if no block fits, or the size is 0.
    pub(super) fn of_addresses(subnet: &Cidr, block_size: u128) -> Option<Self> {
        let hosts = subnet.hosts();
        let last_index = hosts.size().checked_div(block_size)?.checked_sub(1)?;
        let (first, _) = hosts.numbers();
        Some(Self { family: subnet.family(), first, block_size, last_index, hosts: (0, block_size - 1) })
    }

    /// All prefixes of `prefix_len` bits in `cidr` (behaviour.md §3, CIDRPool). `None` if the length is 0, shorter than
    /// the CIDR's own, or too large for the family.
    pub(super) fn of_prefixes(cidr: &Cidr, prefix_len: u8) -> Option<Self> {
        let index_bits = prefix_len.checked_sub(cidr.prefix_len())?;
        let block_size = 1_u128.checked_shl(u32::from(cidr.family().bits().checked_sub(prefix_len)?))?;
        let block = Cidr::containing(cidr.network(), prefix_len)?;
        let (first, _) = block.range().numbers();
        let (first_host, last_host) = block.hosts().numbers();
        let last_index = 1_u128.checked_shl(u32::from(index_bits)).map_or(u128::MAX, |count| count - 1);
        let hosts = (first_host - first, last_host - first);
        Some(Self { family: cidr.family(), first, block_size, last_index, hosts })
    }

    /// Index of the last block.
    pub(crate) const fn last_index(&self) -> u128 {
        self.last_index
    }

    /// Number of blocks, saturating.
    pub(crate) const fn count(&self) -> u128 {
        self.last_index.saturating_add(1)
    }

    /// The addresses of the block at `index`; `None` after the last.
    pub(crate) fn range(&self, index: u128) -> Option<AddrRange> {
        if index > self.last_index {
            return None;
        }
        let first = self.first + index * self.block_size;
        AddrRange::from_numbers(self.family, first, first + (self.block_size - 1))
    }

    /// The index of the block that is exactly `range`.
    pub(crate) fn index_of(&self, range: &AddrRange) -> Option<u128> {
        let index = self.index_at(range.numbers().0);
        index.filter(|&index| self.range(index).as_ref() == Some(range))
    }

    /// First and last index of the blocks that share an address with `range`.
    pub(crate) fn touched(&self, range: &AddrRange) -> Option<(u128, u128)> {
        let (first, last) = range.numbers();
        if range.family() != self.family || last < self.first {
            return None;
        }
        let from = first.saturating_sub(self.first) / self.block_size;
        let to = (last - self.first) / self.block_size;
        (from <= self.last_index).then_some((from, to.min(self.last_index)))
    }

    /// Indexes of the blocks without an address that can be allocated. Each host address is blocked, either by its offset
    /// in all blocks (`everywhere`) or by its address (`at`).
    ///
    /// Such a block either is inside one run of `at`, which arithmetic finds, or contains an end of a run, of which there
    /// are two. So the cost depends on the number of runs alone.
    pub(super) fn barren(&self, everywhere: &RangeSet, at: &RangeSet) -> RangeSet {
        let mut barren = RangeSet::new();
        let (Some(low), Some(high)) =
            (everywhere.first_gap(self.hosts.0, self.hosts.1), everywhere.last_gap(self.hosts.0, self.hosts.1))
        else {
            barren.insert(0, self.last_index);
            return barren;
        };
        let mut untested = 0;
        for (first, last) in at.runs() {
            if let Some((from, to)) = self.inside(first, last, low, high) {
                barren.insert(from, to);
            }
            for index in [self.index_at(first), self.index_at(last)].into_iter().flatten() {
                if index >= untested && self.is_barren(index, everywhere, at) {
                    barren.insert(index, index);
                }
                untested = untested.max(index.saturating_add(1));
            }
        }
        barren
    }

    /// First and last index of the blocks whose offsets `low` to `high` are all in `first..=last`.
    fn inside(&self, first: u128, last: u128, low: u128, high: u128) -> Option<(u128, u128)> {
        let from = first.saturating_sub(self.first).saturating_sub(low).div_ceil(self.block_size);
        let to = last.checked_sub(self.first)?.checked_sub(high)? / self.block_size;
        let to = to.min(self.last_index);
        (from <= to).then_some((from, to))
    }

    /// Whether no address of the block at `index` can be allocated. It looks at the offsets that are free in all blocks,
    /// and skips whole runs of blocked addresses.
    fn is_barren(&self, index: u128, everywhere: &RangeSet, at: &RangeSet) -> bool {
        let base = self.first + index * self.block_size;
        let mut place = self.hosts.0;
        while let Some(free) = everywhere.first_gap(place, self.hosts.1) {
            match at.run_of(base + free) {
                None => return false,
                Some((_, last)) if last - base >= self.hosts.1 => return true,
                Some((_, last)) => place = last - base + 1,
            }
        }
        true
    }

    /// The index of the block that has this address of the family of the layout.
    pub(crate) fn index_at(&self, addr: u128) -> Option<u128> {
        let index = addr.checked_sub(self.first)? / self.block_size;
        (index <= self.last_index).then_some(index)
    }
}
