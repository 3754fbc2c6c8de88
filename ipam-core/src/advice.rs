//! Advice about valid specs that may not do what their author expects.
//!
//! Advice rejects nothing: a pool that [`Pool::parse`] accepts is served, whatever the advice is. The webhook and
//! `validate` show the same advice. It is about the spec alone ([`advise`]), its annotation ([`advise_annotation`]), the
//! nodes of the cluster ([`advise_nodes`]), and the nodes that an edit deselects ([`left_out`](crate::edit::left_out)).
//! Every number in a message is computed by the pool itself.

mod exclusions;
mod nodes;
mod shape;

use std::fmt;

use crate::Pool;
use crate::overlap::ALLOW_OVERLAP_ANNOTATION;
use crate::quoted::Quoted;
use crate::spec::PoolSpec;

pub use nodes::advise_nodes;

/// Maximum number of advice items of one code. The last of them counts the rest.
const MOST_OF_A_KIND: usize = 8;

/// The kind of advice, as one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AdviceCode {
    /// The old spelling of a field is used.
    DeprecatedField,
    /// Host bits are set, and are dropped.
    HostBits,
    /// Pods cannot use addresses of this network: loopback, multicast and the like.
    SpecialRange,
    /// The gateway is not a host address: it is a network or broadcast address.
    GatewayIsNoHost,
    /// The gateway is in a node's block, which then has one address less than the others.
    GatewayInBlock,
    /// A large part of the network belongs to no block.
    WastedAddresses,
    /// No block has an address that a pod could get.
    NothingToGive,
    /// Some blocks are excluded as a whole, and no node gets one.
    ExcludedBlocks,
    /// An exclusion has no effect, since its addresses could not be allocated anyway.
    ExclusionWithoutEffect,
    /// Earlier exclusions cover an exclusion.
    RepeatedExclusion,
    /// An exclusion and an earlier one share addresses.
    OverlappingExclusions,
    /// A route occurs twice.
    RepeatedRoute,
    /// A route leads to addresses that pods reach without the gateway.
    RouteInsidePool,
    /// A term of the node selector is empty and matches nothing.
    EmptyTerm,
    /// The prefix reserved for a node leaves no address for pods.
    BarrenStaticPrefix,
    /// No node is selected.
    NoNodeSelected,
    /// A static entry is for a node that does not exist, is not selected, or cannot exist.
    StaticForNoNode,
    /// Fewer nodes can be served than are selected.
    TooSmall,
    /// Many more nodes could be served than are selected.
    TooLarge,
    /// An edit of the selector deselects nodes whose pods may use addresses.
    NodesLeftOut,
    /// An annotation has a value without effect.
    AnnotationWithoutEffect,
}

impl AdviceCode {
    /// All codes.
    pub const ALL: [Self; 21] = [
        Self::DeprecatedField,
        Self::HostBits,
        Self::SpecialRange,
        Self::GatewayIsNoHost,
        Self::GatewayInBlock,
        Self::WastedAddresses,
        Self::NothingToGive,
        Self::ExcludedBlocks,
        Self::ExclusionWithoutEffect,
        Self::RepeatedExclusion,
        Self::OverlappingExclusions,
        Self::RepeatedRoute,
        Self::RouteInsidePool,
        Self::EmptyTerm,
        Self::BarrenStaticPrefix,
        Self::NoNodeSelected,
        Self::StaticForNoNode,
        Self::TooSmall,
        Self::TooLarge,
        Self::NodesLeftOut,
        Self::AnnotationWithoutEffect,
    ];

    /// The code as one word, as in `-o json` and the table of cases.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeprecatedField => "DeprecatedField",
            Self::HostBits => "HostBits",
            Self::SpecialRange => "SpecialRange",
            Self::GatewayIsNoHost => "GatewayIsNoHost",
            Self::GatewayInBlock => "GatewayInBlock",
            Self::WastedAddresses => "WastedAddresses",
            Self::NothingToGive => "NothingToGive",
            Self::ExcludedBlocks => "ExcludedBlocks",
            Self::ExclusionWithoutEffect => "ExclusionWithoutEffect",
            Self::RepeatedExclusion => "RepeatedExclusion",
            Self::OverlappingExclusions => "OverlappingExclusions",
            Self::RepeatedRoute => "RepeatedRoute",
            Self::RouteInsidePool => "RouteInsidePool",
            Self::EmptyTerm => "EmptyTerm",
            Self::BarrenStaticPrefix => "BarrenStaticPrefix",
            Self::NoNodeSelected => "NoNodeSelected",
            Self::StaticForNoNode => "StaticForNoNode",
            Self::TooSmall => "TooSmall",
            Self::TooLarge => "TooLarge",
            Self::NodesLeftOut => "NodesLeftOut",
            Self::AnnotationWithoutEffect => "AnnotationWithoutEffect",
        }
    }
}

impl fmt::Display for AdviceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One piece of advice about a valid spec.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Advice {
    /// Full path of the field, for example `spec.exclusions[2]`.
    pub field: String,
    /// The kind of advice.
    pub code: AdviceCode,
    /// Names the value, its effect and an alternative. Starts with a lower-case letter and does not repeat the field.
    pub message: String,
}

impl Advice {
    pub(crate) fn new(field: impl Into<String>, code: AdviceCode, message: impl Into<String>) -> Self {
        Self { field: field.into(), code, message: message.into() }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The advice about a spec, whatever nodes there are. `pool` is `spec` parsed.
///
/// It is in the order in which [`Pool::parse`] checks the fields. There are at most eight items of each code, the last of
/// which counts the others.
pub fn advise(spec: &PoolSpec, pool: &Pool) -> Vec<Advice> {
    let mut advice = Vec::new();
    shape::advise(spec, pool, &mut advice);
    exclusions::advise(spec, pool, &mut advice);
    shape::advise_rest(spec, pool, &mut advice);
    advice
}

/// The advice about the value of [`ALLOW_OVERLAP_ANNOTATION`], if it is neither `true`, `false` nor empty.
pub fn advise_annotation(value: Option<&str>) -> Option<Advice> {
    let value = value.filter(|value| !matches!(*value, "true" | "false" | ""))?;
    let message = format!(
        "{ALLOW_OVERLAP_ANNOTATION}: {} allows nothing; write \"true\" to let other pools have the same addresses",
        Quoted(value)
    );
    Some(Advice::new("metadata.annotations", AdviceCode::AnnotationWithoutEffect, message))
}

/// Collects advice of one code, and counts what exceeds the limit.
struct OfAKind {
    code: AdviceCode,
    given: Vec<Advice>,
    more: usize,
}

impl OfAKind {
    const fn new(code: AdviceCode) -> Self {
        Self { code, given: Vec::new(), more: 0 }
    }

    fn add(&mut self, field: impl fmt::Display, message: impl FnOnce() -> String) {
        if self.given.len() < MOST_OF_A_KIND {
            self.given.push(Advice::new(field.to_string(), self.code, message()));
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self, advice: &mut Vec<Advice>) {
        if let (Some(last), 1..) = (self.given.last_mut(), self.more) {
            last.message = format!("{} (and {} more like this)", last.message, self.more);
        }
        advice.append(&mut self.given);
    }
}
