//! Everyone a plan is about: the selected nodes and those that records name, in name order.
//!
//! Names are compared here once; from then on a node is its row. That is most of what makes a plan of thousands of nodes
//! a matter of milliseconds.

use std::iter::Peekable;

use super::{Claim, ClaimSource, NodeRef, Standing};
use crate::{AddrRange, Block, Pool};

/// One node.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    /// Whether the pool's selector takes the node. False for a node that is gone, too.
    pub(super) is_selected: bool,
    /// What the node has, as far as the plan has come.
    pub(super) block: Option<(Block, Standing)>,
}

/// A claim and the row of its node.
#[derive(Clone, Copy)]
pub(super) struct Heard<'a> {
    pub(super) row: usize,
    pub(super) claim: &'a Claim,
}

/// Rows by name, and claims in the order in which they are heard.
pub(super) struct Roster<'a> {
    pub(super) rows: Vec<Row<'a>>,
    pub(super) claims: Vec<Heard<'a>>,
}

impl<'a> Roster<'a> {
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
            rows.push(Row { name: &first.node, is_selected, block: None });
        }
        rows.extend(names.map(selected_row));
        Self { rows, claims: ranked.in_order() }
    }
}

const fn selected_row(name: &str) -> Row<'_> {
    Row { name, is_selected: true, block: None }
}

/// Moves the names that come before `next` into rows.
fn push_before<'a>(rows: &mut Vec<Row<'a>>, names: &mut Peekable<impl Iterator<Item = &'a str>>, next: &str) {
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
    // All fields take part, so that the order of telling has no say. Stable, since it takes the sorted records of the
    // two sources, one behind the other, in one pass.
    sorted.sort_by(|a, b| (&a.node, a.source, a.range, a.gateway).cmp(&(&b.node, b.source, b.range, b.gateway)));
    sorted
}

/// Claims by trust: a record of the pool's status that the node's IPAMNode repeats, then one that it does not, then one
/// that only the IPAMNode has. A spoilt record thus never takes a block from a sound one. Within a rank, by name.
#[derive(Default)]
struct Ranked<'a> {
    repeated: Vec<Heard<'a>>,
    status: Vec<Heard<'a>>,
    second: Vec<Heard<'a>>,
}

impl<'a> Ranked<'a> {
    /// Hears all claims of one node, which are sorted. An IPAMNode's that repeats the status says nothing more.
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
