//! The nodes of a plan: the selected nodes and those with claims, in name order.
//!
//! Names are compared only here. Later steps use the row of a node. That is the main reason why a plan of thousands of
//! nodes takes milliseconds.

use std::iter::Peekable;

use super::{BlockPhase, Claim, ClaimSource, NodeRef};
use crate::{AddrRange, Block, Pool};

/// One node.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a str,
    /// Whether the pool selects the node. Also false for a node that is gone.
    pub(super) is_selected: bool,
    /// The block of the node, as far as the plan has come.
    pub(super) block: Option<(Block, BlockPhase)>,
}

/// A claim and the row of its node.
#[derive(Clone, Copy)]
pub(super) struct Heard<'a> {
    pub(super) row: usize,
    pub(super) claim: &'a Claim,
}

/// Rows by name, and claims in the order of processing.
pub(super) struct Candidates<'a> {
    pub(super) rows: Vec<Candidate<'a>>,
    pub(super) claims: Vec<Heard<'a>>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(pool: &Pool, nodes: &[NodeRef<'a>], claims: &'a [Claim]) -> Self {
        let mut names = selected_names(pool, nodes).into_iter().peekable();
        let sorted = sorted_claims(claims);
        let mut rows = Vec::with_capacity(nodes.len());
        let mut ranked = Ranked::default();
        for of_node in sorted.chunk_by(|a, b| a.node == b.node) {
            let [first, ..] = of_node else { continue };
            push_before(&mut rows, &mut names, &first.node);
            ranked.hear(rows.len(), of_node);
            let is_selected = names.next_if(|name| *name == first.node).is_some();
            rows.push(Candidate { name: &first.node, is_selected, block: None });
        }
        rows.extend(names.map(selected_row));
        Self { rows, claims: ranked.in_order() }
    }
}

const fn selected_row(name: &str) -> Candidate<'_> {
    Candidate { name, is_selected: true, block: None }
}

/// Moves the names that come before `next` into rows.
fn push_before<'a>(rows: &mut Vec<Candidate<'a>>, names: &mut Peekable<impl Iterator<Item = &'a str>>, next: &str) {
    while let Some(name) = names.next_if(|name| *name < next) {
        rows.push(selected_row(name));
    }
}

fn selected_names<'a>(pool: &Pool, nodes: &[NodeRef<'a>]) -> Vec<&'a str> {
    let mut names: Vec<&str> =
        nodes.iter().filter(|node| pool.selects(node.name, node.labels)).map(|node| node.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn sorted_claims(claims: &[Claim]) -> Vec<&Claim> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    // All fields are compared, so that the order of the claims does not matter. The stable sort merges the records of the
    // two sources, which are sorted and concatenated, in one pass.
    sorted.sort_by(|a, b| (&a.node, a.source, a.range, a.gateway).cmp(&(&b.node, b.source, b.range, b.gateway)));
    sorted
}

/// Claims by trust: first those in both the pool's status and the node's IPAMNode, then those only in the status, then
/// those only in the IPAMNode. So a damaged record never takes a block from a valid one. Within a rank, they are sorted
/// by node name.
#[derive(Default)]
struct Ranked<'a> {
    repeated: Vec<Heard<'a>>,
    status: Vec<Heard<'a>>,
    second: Vec<Heard<'a>>,
}

impl<'a> Ranked<'a> {
    /// Adds all claims of one node, which are sorted. A claim of an IPAMNode that repeats the status is skipped.
    fn hear(&mut self, row: usize, of_node: &[&'a Claim]) {
        let is_told = |range: &AddrRange, source: ClaimSource| {
            of_node.binary_search_by(|other| (other.source, other.range).cmp(&(source, *range))).is_ok()
        };
        for &claim in of_node {
            let heard = Heard { row, claim };
            match claim.source {
                ClaimSource::Status if is_told(&claim.range, ClaimSource::IpamNode) => self.repeated.push(heard),
                ClaimSource::Status => self.status.push(heard),
                ClaimSource::IpamNode if is_told(&claim.range, ClaimSource::Status) => {}
                ClaimSource::IpamNode => self.second.push(heard),
            }
        }
    }

    fn in_order(mut self) -> Vec<Heard<'a>> {
        self.repeated.append(&mut self.status);
        self.repeated.append(&mut self.second);
        self.repeated
    }
}
