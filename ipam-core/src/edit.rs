//! Which blocks an edit of a pool would move or remove, or exclude addresses of, while pods may use them.
//!
//! The webhook rejects such an edit, and the operator defers it. Both use this result. An edit that only adds blocks and
//! addresses affects no node. A block counts as free only if an agent has reported it empty: unknown use counts as in
//! use.

mod deselected;
mod newly_excluded;
mod report;
mod resized;

use std::collections::BTreeSet;

use crate::spec::PoolSpec;
use crate::words::listed;
use crate::{AddrRange, Claim, Pool, RangeSet};

pub use deselected::left_out;
use newly_excluded::NewlyExcluded;
pub use report::violations;
use resized::Resized;

/// The addresses of a pool in use on a node, as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// No agent has reported. Every address of the block counts as in use.
    Unknown,
    /// This many, but it is unknown which. Unless it is zero, any address of the block may be one of them.
    Count(u64),
    /// Exactly these, as numbers of the family of the node's block. They may be outside the block: a pod can request any
    /// address of an IPPool's subnet.
    Addresses(RangeSet),
}

impl Held {
    /// Whether it is known that no address is in use.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Count(count) => *count == 0,
            Self::Addresses(held) => held.is_empty(),
        }
    }

    /// Number of addresses in use, if known; saturates.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Count(count) => Some(*count),
            Self::Addresses(held) => Some(u64::try_from(held.size()).unwrap_or(u64::MAX)),
        }
    }

    /// The addresses that may be in use on a node whose block has the host addresses `hosts`.
    fn possible(&self, hosts: &AddrRange) -> RangeSet {
        match self {
            Self::Addresses(held) => held.clone(),
            Self::Count(0) => RangeSet::new(),
            Self::Unknown | Self::Count(_) => RangeSet::from_iter([hosts.numbers()]),
        }
    }
}

/// A list of the nodes whose pods may use addresses, with the number of addresses: the first `most`, and a count of the
/// rest. `None` if there is no such node.
pub fn holders_listed(nodes: &[(&str, Held)], most: usize) -> Option<String> {
    let holders: Vec<_> = nodes.iter().filter(|(_, held)| !held.is_empty()).collect();
    let named = holders.iter().map(|(node, held)| match held.count() {
        Some(count) => format!("{node} ({count} held)"),
        None => format!("{node} (not reported)"),
    });
    (!holders.is_empty()).then(|| listed(named, most))
}

/// A node that would lose addresses by an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AffectedNode {
    /// The node's name.
    pub node: String,
    /// Its block.
    pub range: AddrRange,
    /// Number of addresses in use; `None` if no agent has reported, which counts as in use.
    pub held: Option<u64>,
    /// Full paths of the fields that cause it, in the order of the spec.
    pub fields: Vec<String>,
}

/// The nodes that an edit from `old` to `new_spec` affects, sorted by name. The edit would move or remove their block, or
/// would exclude or make the gateway an address that may be in use.
///
/// `new` is `new_spec` parsed. `claims` are the records of which node has which block, and `usage` returns the addresses
/// in use. A block that is not in the old spec either was affected earlier, and is not reported again. Without `old`,
/// every block must agree with the new spec. Exclusions and gateway are not checked then, because it is unknown which of
/// them are new. An `old` that is invalid is compared field by field as far as it parses.
pub fn displaced(
    new: &Pool,
    old: Option<&PoolSpec>,
    new_spec: &PoolSpec,
    claims: &[Claim],
    usage: &dyn Fn(&str) -> Held,
) -> Vec<AffectedNode> {
    if old == Some(new_spec) {
        return Vec::new();
    }
    let moved = Resized::new(new, old, new_spec);
    let newly_excluded = old.map(|old| NewlyExcluded::new(new, old, new_spec));
    let mut found: Vec<AffectedNode> = claims
        .iter()
        .filter_map(|claim| {
            let held = usage(&claim.node);
            if held.is_empty() {
                return None;
            }
            let mut fields = moved.fields(claim, &held);
            if fields.is_empty() {
                fields.extend(newly_excluded.iter().flat_map(|of_edit| of_edit.fields(claim, &held)));
            }
            (!fields.is_empty()).then(|| AffectedNode {
                node: claim.node.clone(),
                range: claim.range,
                held: held.count(),
                fields: fields.into_iter().map(Field::path).collect(),
            })
        })
        .collect();
    found.sort_by(|a, b| (&a.node, a.range).cmp(&(&b.node, b.range)));
    found.dedup();
    found
}

/// A field of a spec. The variants are in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Field {
    Network(&'static str),
    Size(&'static str),
    Gateway(&'static str),
    Exclusion(usize),
    PerNodeExclusion(usize),
    StaticNode(usize),
    StaticGateway(usize),
    StaticPrefix(usize),
}

impl Field {
    fn path(self) -> String {
        match self {
            Self::Network(path) | Self::Size(path) | Self::Gateway(path) => path.to_owned(),
            Self::Exclusion(i) => format!("spec.exclusions[{i}]"),
            Self::PerNodeExclusion(i) => format!("spec.perNodeExclusions[{i}]"),
            Self::StaticNode(i) => format!("spec.staticAllocations[{i}].nodeName"),
            Self::StaticGateway(i) => format!("spec.staticAllocations[{i}].gateway"),
            Self::StaticPrefix(i) => format!("spec.staticAllocations[{i}].prefix"),
        }
    }
}

type Fields = BTreeSet<Field>;
