//! A valid pool: a network divided into blocks, and the allocatable addresses of each block.
//!
//! [`Pool::parse`] is the only constructor, so the other code relies on the rules of behaviour.md §10 and does not check
//! them again. A pool has no records of nodes: [`crate::plan()`] decides which node has which block.

mod layout;
mod parse;

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::addr::number;
use crate::node_pool::PoolState;
use crate::selector::NodeSelector;
use crate::{AddrRange, Cidr, NodePool, PoolKey, PoolKind, RangeSet};

pub(crate) use layout::BlockLayout;

/// The block of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// IPPool: startIP to endIP. CIDRPool: the whole prefix, network address to last address.
    pub range: AddrRange,
    /// The gateway of this block's pods.
    pub gateway: Option<IpAddr>,
}

/// How a block gets its gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GatewayRule {
    /// No gateway.
    None,
    /// One address for all blocks (IPPool).
    Shared(IpAddr),
    /// The address at this index of each block (CIDRPool).
    Index(u128),
}

/// A prefix that is not assigned dynamically.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StaticEntry {
    /// The node that gets the prefix; without one, the prefix is only reserved.
    node: Option<String>,
    /// The gateway of the prefix. It takes precedence over the pool's rule.
    gateway: Option<IpAddr>,
}

/// A pool whose spec is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    key: PoolKey,
    network: Cidr,
    grid: BlockLayout,
    /// Excluded addresses, as numbers. They are not clipped, since the spec keeps them inside the network.
    exclusions: RangeSet,
    /// Excluded offsets in each block, counted from the block's first address.
    per_node: RangeSet,
    gateway: GatewayRule,
    /// By index of the block in the grid.
    statics: BTreeMap<u128, StaticEntry>,
    /// Node name → index of its static block.
    static_by_node: BTreeMap<String, u128>,
    /// Indexes of the blocks in which no address can be allocated.
    barren: RangeSet,
    selector: Option<NodeSelector>,
    routes: Vec<Cidr>,
    default_gateway: bool,
}

impl Pool {
    /// Which pool this is.
    pub fn key(&self) -> &PoolKey {
        &self.key
    }

    /// `spec.subnet` or `spec.cidr`, without host bits.
    pub fn network(&self) -> Cidr {
        self.network
    }

    /// Whether the pool selects a node with this name and these labels.
    pub fn selects(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(node, labels))
    }

    /// Number of blocks of the network, including static and wholly excluded ones. Saturates.
    pub fn block_count(&self) -> u128 {
        self.grid.count()
    }

    /// Number of addresses that a node can allocate from `block`; saturates.
    pub fn capacity(&self, block: &Block) -> u128 {
        let hosts = self.hosts(&block.range);
        if self.per_node.is_empty() && !self.touches_exclusions(&hosts) {
            let gateway_takes_one = block.gateway.is_some_and(|gateway| hosts.contains(gateway));
            return hosts.size().saturating_sub(u128::from(gateway_takes_one));
        }
        self.node_pool(block).capacity()
    }

    /// The share of the node that has `block` (behaviour.md §4).
    pub fn node_pool(&self, block: &Block) -> NodePool {
        let range = self.hosts(&block.range);
        NodePool {
            key: self.key.clone(),
            state: PoolState::Active,
            grant: None,
            range,
            subnet: self.subnet_of(&block.range),
            gateway: block.gateway,
            exclusions: self.exclusions_in(&block.range, &range),
            elsewhere: RangeSet::new(),
            routes: self.routes.clone(),
            default_gateway: self.default_gateway,
        }
    }

    /// The host addresses of a block, including excluded ones and the gateway.
    pub(crate) fn hosts(&self, range: &AddrRange) -> AddrRange {
        match self.key.kind {
            PoolKind::IpPool => *range,
            // A range that is not a prefix is from a damaged record. Its ends are still a limit.
            PoolKind::CidrPool => Cidr::enclosing(range).hosts().intersection(range).unwrap_or(*range),
        }
    }

    /// The network that defines the prefix length of answers from this block.
    fn subnet_of(&self, range: &AddrRange) -> Cidr {
        match self.key.kind {
            PoolKind::CidrPool => Cidr::enclosing(range),
            PoolKind::IpPool if self.network.range().contains_range(range) => self.network,
            // A block of an earlier subnet. The earlier mask is unknown; the current one is the most likely, if the block fits.
            PoolKind::IpPool => Cidr::containing(range.first(), self.network.prefix_len())
                .filter(|subnet| subnet.range().contains_range(range))
                .unwrap_or_else(|| Cidr::enclosing(range)),
        }
    }

    /// The pool's exclusions and the per-node ones in `hosts`, for a block that begins at the first address of `block`.
    fn exclusions_in(&self, block: &AddrRange, hosts: &AddrRange) -> RangeSet {
        let (base, _) = block.numbers();
        let (first, last) = hosts.numbers();
        let mut set = if self.network.family() == hosts.family() {
            self.exclusions.clipped(first, last)
        } else {
            RangeSet::new()
        };
        for (start, end) in self.per_node.runs() {
            set.insert(base.saturating_add(start).max(first), base.saturating_add(end).min(last));
        }
        set
    }

    fn touches_exclusions(&self, hosts: &AddrRange) -> bool {
        let (first, last) = hosts.numbers();
        self.network.family() == hosts.family() && self.exclusions.intersects(first, last)
    }
}

/// The interface for planning. A block is identified by its index in the grid.
impl Pool {
    pub(crate) fn grid(&self) -> &BlockLayout {
        &self.grid
    }

    /// The block at `index`, with its gateway from the spec.
    pub(crate) fn block(&self, index: u128) -> Option<Block> {
        let range = self.grid.range(index)?;
        Some(Block { range, gateway: self.gateway_of(index, &range) })
    }

    fn gateway_of(&self, index: u128, range: &AddrRange) -> Option<IpAddr> {
        if let Some(gateway) = self.statics.get(&index).and_then(|entry| entry.gateway) {
            return Some(gateway);
        }
        match self.gateway {
            GatewayRule::None => None,
            GatewayRule::Shared(gateway) => Some(gateway),
            GatewayRule::Index(place) => {
                let addr = number(range.first()).checked_add(place)?;
                Some(range.family().addr(addr)).filter(|addr| range.contains(*addr))
            }
        }
    }

    /// The gateway of the spec; `None` if it has none, or each block has its own.
    pub const fn gateway(&self) -> Option<IpAddr> {
        match self.gateway {
            GatewayRule::Shared(gateway) => Some(gateway),
            _ => None,
        }
    }

    /// The gateway of a block outside the grid, if its record has none.
    pub(crate) fn gateway_for_outdated(&self, range: &AddrRange) -> Option<IpAddr> {
        match self.gateway {
            GatewayRule::Shared(gateway) => Some(gateway).filter(|addr| self.subnet_of(range).contains(*addr)),
            GatewayRule::None | GatewayRule::Index(_) => None,
        }
    }

    /// The index of the block that a static entry reserves for `node`.
    pub fn static_index(&self, node: &str) -> Option<u128> {
        self.static_by_node.get(node).copied()
    }

    /// The index of the block that is exactly `range`, if the spec allows it for `node`.
    pub(crate) fn index_for(&self, node: &str, range: &AddrRange) -> Option<u128> {
        let index = self.grid.index_of(range)?;
        let is_allowed = match self.static_index(node) {
            Some(own) => own == index,
            None => !self.is_static(index),
        };
        is_allowed.then_some(index)
    }

    /// The static block of the node, if the spec has one.
    pub fn static_block(&self, node: &str) -> Option<Block> {
        self.block(self.static_index(node)?)
    }

    /// The block with this address, if it can be assigned to any node.
    pub fn block_around(&self, addr: IpAddr) -> Option<Block> {
        let index = self.grid.index_at(number(addr)).filter(|_| self.network.contains(addr))?;
        self.block(index).filter(|_| !self.is_static(index) && !self.is_barren(index))
    }

    /// Whether a static entry names the block, with or without a node.
    pub(crate) fn is_static(&self, index: u128) -> bool {
        self.statics.contains_key(&index)
    }

    /// Indexes of the blocks that are never assigned dynamically: static ones, and those in which no address can be allocated.
    pub(crate) fn not_given(&self) -> RangeSet {
        let mut set = self.barren.clone();
        set.extend(self.statics.keys().map(|&index| (index, index)));
        set
    }

    /// Whether exclusions and gateway leave no address in the block at `index`.
    pub(crate) fn is_barren(&self, index: u128) -> bool {
        self.barren.contains(index)
    }

    /// Number of blocks in which exclusions and gateway leave no address; saturates.
    pub(crate) fn barren_count(&self) -> u128 {
        self.barren.size()
    }

    /// Whether there are exclusions, of addresses or of offsets in blocks.
    pub(crate) fn has_exclusions(&self) -> bool {
        !self.exclusions.is_empty() || !self.per_node.is_empty()
    }

    /// Whether `addr` is in `spec.exclusions`.
    pub(crate) fn excludes(&self, addr: u128) -> bool {
        self.exclusions.contains(addr)
    }

    /// Whether there is a node selector.
    pub(crate) const fn has_selector(&self) -> bool {
        self.selector.is_some()
    }

    /// The nodes of static entries, sorted by name, with their prefixes.
    pub(crate) fn static_nodes(&self) -> impl Iterator<Item = (&str, AddrRange)> {
        self.static_by_node.iter().filter_map(|(node, &index)| Some((node.as_str(), self.grid.range(index)?)))
    }
}
