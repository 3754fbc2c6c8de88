//! Which blocks an edit of a pool would move or drop, or bar addresses of, while pods may hold them.
//!
//! The webhook refuses such an edit, the operator defers it: both by this answer. Growing and additions displace nobody.
//! It must never call a block free that nobody has reported empty: what is not known counts as held.

mod barred;
mod left_out;
mod moved;
mod report;

use std::collections::BTreeSet;

use crate::spec::PoolSpec;
use crate::words::listed;
use crate::{AddrRange, Claim, Pool, RunSet};

use barred::Barred;
pub use left_out::left_out;
use moved::Moved;
pub use report::violations;

/// What is known of the addresses of a pool that a node's pods hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// No agent has told. Every address of the block counts as held.
    Unknown,
    /// So many, but not which. Unless there are none, any address of the block may be one of them.
    Count(u64),
    /// Exactly these, as numbers of the family of the node's block. They may lie outside the block: a pod can ask for any
    /// address of an IPPool's subnet.
    Addresses(RunSet),
}

impl Held {
    /// Whether it is known that nothing is held.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Count(count) => *count == 0,
            Self::Addresses(held) => held.is_empty(),
        }
    }

    /// How many addresses are held, if that is known; saturates.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Count(count) => Some(*count),
            Self::Addresses(held) => Some(u64::try_from(held.size()).unwrap_or(u64::MAX)),
        }
    }

    /// The addresses that may be held, of a node whose block gives from `hosts`.
    fn possible(&self, hosts: &AddrRange) -> RunSet {
        match self {
            Self::Addresses(held) => held.clone(),
            Self::Count(0) => RunSet::new(),
            Self::Unknown | Self::Count(_) => RunSet::from_iter([hosts.numbers()]),
        }
    }
}

/// Those of the nodes whose pods may hold addresses, the first `most` by name, each with how many; `None` if there is none.
pub fn holders_listed(nodes: &[(&str, Held)], most: usize) -> Option<String> {
    let holders: Vec<_> = nodes.iter().filter(|(_, held)| !held.is_empty()).collect();
    let named = holders.iter().map(|(node, held)| match held.count() {
        Some(count) => format!("{node} ({count} held)"),
        None => format!("{node} (not reported)"),
    });
    (!holders.is_empty()).then(|| listed(named, most))
}

/// A node whose addresses an edit would take away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Displaced {
    /// The node's name.
    pub node: String,
    /// Its block.
    pub range: AddrRange,
    /// How many addresses its pods hold; `None` if nobody has told, which counts as held.
    pub held: Option<u64>,
    /// Full paths of the fields to blame, in the order of the spec.
    pub fields: Vec<String>,
}

/// The nodes whose given block the edit from `old` to `new_spec` would move or drop, or of which it would exclude or make
/// the gateway an address that may be held. By node name.
///
/// `new` is `new_spec` parsed. `claims` are the records of who has which block, `usage` tells what is held of it. A block
/// that the old spec did not have either was displaced before and is not blamed on this edit. If there is no `old`,
/// every block must agree with the new spec, and exclusions and gateway are not judged, for nobody can say what of them
/// is new. An `old` that is invalid is compared field by field as far as it can be read.
pub fn displaced(
    new: &Pool,
    old: Option<&PoolSpec>,
    new_spec: &PoolSpec,
    claims: &[Claim],
    usage: &dyn Fn(&str) -> Held,
) -> Vec<Displaced> {
    if old == Some(new_spec) {
        return Vec::new();
    }
    let moved = Moved::new(new, old, new_spec);
    let barred = old.map(|old| Barred::new(new, old, new_spec));
    let mut found: Vec<Displaced> = claims
        .iter()
        .filter_map(|claim| {
            let held = usage(&claim.node);
            if held.is_empty() {
                return None;
            }
            let mut fields = moved.fields(claim, &held);
            if fields.is_empty() {
                fields.extend(barred.iter().flat_map(|barred| barred.fields(claim, &held)));
            }
            (!fields.is_empty()).then(|| Displaced {
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

/// A field of a spec, in the order in which the fields stand there.
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
