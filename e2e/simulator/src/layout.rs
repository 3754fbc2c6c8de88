//! A pool's spec as the model reads it: its blocks, the allocatable addresses of each, and the selected nodes. It is
//! independent of the code that it checks. The networks here are small, so that it lists what that code computes.

use std::net::IpAddr;

use ipam_core::{AddrRange, Family, PoolKey, PoolKind};
use serde_json::Value;

use super::admin::may_share;
use super::server::{Server, text};

/// Maximum number of blocks listed of a network: there are at most twelve nodes, and few blocks are ever assigned to them.
const MOST_BLOCKS: u128 = 64;

/// A block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// All addresses of the block, as a status records it.
    pub(super) range: AddrRange,
    /// The addresses from which an agent allocates, including exclusions and the gateway.
    pub(super) hosts: AddrRange,
    pub(super) gateway: Option<IpAddr>,
    /// Whether a static allocation names it, and for which node.
    pub(super) is_static: bool,
    pub(super) static_for: Option<String>,
}

/// A pool.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of the object of its own")]
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) key: PoolKey,
    pub(super) network: AddrRange,
    pub(super) prefix_len: u8,
    pub(super) blocks: Vec<Block>,
    /// Whether the spec is valid.
    pub(super) is_valid: bool,
    pub(super) exclusions: Vec<AddrRange>,
    /// Excluded offsets within a block, counted from its first address.
    pub(super) per_node: Vec<(u128, u128)>,
    pub(super) routes: Vec<String>,
    pub(super) default_gateway: bool,
    pub(super) is_deleting: bool,
    pub(super) may_share: bool,
    created: String,
    selector: Value,
}

impl Layout {
    /// Whether no block is assigned and none released, because the spec is invalid and the pool is not being deleted.
    pub(super) fn is_frozen(&self) -> bool {
        !self.is_valid && !self.is_deleting
    }

    /// All pools.
    pub(super) fn all(server: &Server) -> Vec<Self> {
        let kinds = super::records::POOL_KINDS.into_iter();
        kinds
            .flat_map(|(plural, kind)| server.list(plural).filter_map(move |object| Self::read(kind, object)))
            .collect()
    }

    /// Reads the manifest of a pool.
    pub(super) fn read(kind: PoolKind, object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        let cidr = spec["subnet"].as_str().or(spec["cidr"].as_str())?;
        let (addr, prefix_len) = cidr.split_once('/')?;
        let addr: IpAddr = addr.parse().ok()?;
        let prefix_len: u8 = prefix_len.parse().ok()?;
        let network = network(addr, prefix_len)?;
        let has_host_bits = network.first() != addr;
        let mut layout = Self {
            key: PoolKey::new(kind, text(object, "/metadata/name")),
            network,
            prefix_len,
            blocks: Vec::new(),
            is_valid: true,
            exclusions: ranges(&spec["exclusions"]),
            per_node: places(&spec["perNodeExclusions"]),
            routes: words(&spec["routes"], "dst"),
            default_gateway: spec["defaultGateway"] == true,
            is_deleting: !object["metadata"]["deletionTimestamp"].is_null(),
            may_share: may_share(object),
            created: text(object, "/metadata/creationTimestamp"),
            selector: spec["nodeSelector"].clone(),
        };
        let gateway: Option<IpAddr> = spec["gateway"].as_str().and_then(|text| text.parse().ok());
        layout.is_valid = match kind {
            PoolKind::IpPool => gateway.is_none_or(|gateway| network.contains(gateway)),
            PoolKind::CidrPool => !has_host_bits,
        };
        layout.blocks = match kind {
            PoolKind::IpPool => layout.runs(spec["perNodeBlockSize"].as_u64()?.into(), gateway),
            PoolKind::CidrPool => layout.prefixes(spec)?,
        };
        Some(layout)
    }

    fn runs(&self, size: u128, gateway: Option<IpAddr>) -> Vec<Block> {
        let hosts = hosts(&self.network);
        let (first, last) = hosts.numbers();
        let starts = (0..MOST_BLOCKS).map(|index| first + index * size).take_while(|start| start + size - 1 <= last);
        let block = |start| {
            let range = AddrRange::from_numbers(hosts.family(), start, start + size - 1)?;
            Some(Block { range, hosts: range, gateway, is_static: false, static_for: None })
        };
        starts.filter_map(block).collect()
    }

    fn prefixes(&self, spec: &Value) -> Option<Vec<Block>> {
        let length = u8::try_from(spec["perNodeNetworkPrefix"].as_u64()?).ok()?;
        let (first, last) = self.network.numbers();
        let size = 1_u128 << (bits(self.network.family()) - length);
        let index: Option<u128> = spec["gatewayIndex"].as_u64().map(u128::from);
        let statics = spec["staticAllocations"].as_array().cloned().unwrap_or_default();
        let starts = (0..MOST_BLOCKS).map(|place| first + place * size).take_while(|start| *start <= last);
        let block = |start: u128| {
            let family = self.network.family();
            let range = AddrRange::from_numbers(family, start, start + size - 1)?;
            let own = statics.iter().find(|entry| text(entry, "/prefix") == format!("{}/{length}", range.first()));
            let named = own.and_then(|entry| entry["gateway"].as_str()?.parse().ok());
            let gateway = named.or_else(|| Some(family.addr(start + index?)));
            let static_for = own.and_then(|entry| Some(entry["nodeName"].as_str()?.to_owned()));
            Some(Block { range, hosts: hosts(&range), gateway, is_static: own.is_some(), static_for })
        };
        Some(starts.filter_map(block).collect())
    }

    /// Whether the pool selects the Node.
    pub(super) fn selects(&self, node: &Value) -> bool {
        if self.selector.is_null() {
            return true;
        }
        let labels = &node["metadata"]["labels"];
        let holds = |expression: &Value| {
            let value = &labels[expression["key"].as_str().unwrap_or_default()];
            expression["values"].as_array().is_some_and(|values| values.contains(value))
        };
        let mut terms = self.selector["nodeSelectorTerms"].as_array().into_iter().flatten();
        terms.any(|term| term["matchExpressions"].as_array().is_some_and(|all| all.iter().all(holds)))
    }

    /// Whether the address of the block may be allocated dynamically.
    pub(super) fn allows(&self, block: &Block, addr: u128) -> bool {
        let family = block.range.family();
        let place = addr - block.range.numbers().0;
        let from_hosts = addr - block.hosts.numbers().0;
        // The offsets of an IPPool's block begin with its first address, and those of a prefix with its network address.
        let place = if self.key.kind == PoolKind::IpPool { from_hosts } else { place };
        let is_excluded = self.exclusions.iter().any(|range| range.contains(family.addr(addr)))
            || self.per_node.iter().any(|(first, last)| (*first..=*last).contains(&place));
        !is_excluded && block.gateway != Some(family.addr(addr))
    }

    /// The addresses of the block that may be allocated dynamically.
    pub(super) fn open<'a>(&'a self, block: &'a Block) -> impl Iterator<Item = IpAddr> + 'a {
        let (first, last) = block.hosts.numbers();
        let family = block.hosts.family();
        (first..=last).filter(|addr| self.allows(block, *addr)).map(move |addr| family.addr(addr))
    }

    /// The block that is exactly this range.
    fn block(&self, range: &AddrRange) -> Option<&Block> {
        self.blocks.iter().find(|block| block.range == *range)
    }

    /// The block that is exactly this range, if the spec allows it for the node: its own static one, or else one that no
    /// entry names.
    pub(super) fn block_of(&self, node: &str, range: &AddrRange) -> Option<&Block> {
        let own = self.blocks.iter().find(|block| block.static_for.as_deref() == Some(node));
        match own {
            Some(own) => Some(own).filter(|own| own.range == *range),
            None => self.block(range).filter(|block| !block.is_static),
        }
    }

    /// Whether only one of the two may serve.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        self.key != other.key && !self.shares_with(other) && self.network.overlaps(&other.network)
    }

    /// Whether both may have the same addresses.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        self.may_share && other.may_share
    }

    fn seniority(&self) -> (&str, &PoolKey) {
        (&self.created, &self.key)
    }
}

/// For each pool that may not serve, the older one that serves in its place.
pub(super) fn overlapped(layouts: &[Layout]) -> Vec<(PoolKey, PoolKey)> {
    let mut by_age: Vec<&Layout> = layouts.iter().filter(|layout| layout.is_valid).collect();
    by_age.sort_by(|one, other| one.seniority().cmp(&other.seniority()));
    let (mut serving, mut losers) = (Vec::<&Layout>::new(), Vec::new());
    for layout in by_age {
        match serving.iter().find(|older| older.conflicts_with(layout)) {
            Some(older) => losers.push((layout.key.clone(), older.key.clone())),
            None => serving.push(layout),
        }
    }
    losers
}

fn bits(family: Family) -> u8 {
    if family == Family::V4 { 32 } else { 128 }
}

fn network(addr: IpAddr, prefix_len: u8) -> Option<AddrRange> {
    let all = AddrRange::new(addr, addr)?;
    let host_bits = bits(all.family()) - prefix_len;
    let (number, _) = all.numbers();
    let mask = if host_bits == 128 { u128::MAX } else { (1_u128 << host_bits) - 1 };
    AddrRange::from_numbers(all.family(), number & !mask, number | mask)
}

/// The host addresses: without the network address, and in IPv4 without the broadcast address, unless there are two
/// addresses or one.
fn hosts(network: &AddrRange) -> AddrRange {
    let (first, last) = network.numbers();
    if last - first <= 1 {
        return *network;
    }
    let last = if network.family() == Family::V4 { last - 1 } else { last };
    AddrRange::from_numbers(network.family(), first + 1, last).unwrap_or(*network)
}

fn ranges(list: &Value) -> Vec<AddrRange> {
    let end = |entry: &Value, field: &str| entry[field].as_str()?.parse().ok();
    let entries = list.as_array().into_iter().flatten();
    entries.filter_map(|entry| AddrRange::new(end(entry, "startIP")?, end(entry, "endIP")?)).collect()
}

fn places(list: &Value) -> Vec<(u128, u128)> {
    let entries = list.as_array().into_iter().flatten();
    let end = |entry: &Value, field: &str| entry[field].as_u64().map(u128::from);
    entries.filter_map(|entry| Some((end(entry, "startIndex")?, end(entry, "endIndex")?))).collect()
}

fn words(list: &Value, field: &str) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|entry| Some(entry[field].as_str()?.to_owned())).collect()
}
