//! What is to be said about one pool, given all that is known. Pure: the same observation gives the same decision.
//!
//! Never takes away what an invalid spec gave before, never frees a block that may be in use, never moves a condition's
//! transition time without the status having flipped, and says nothing twice: what was said stands in the status itself,
//! so a restart repeats nothing.

mod claims;
mod conditions;
mod elsewhere;
mod former;
mod gateways;
mod releases;
mod room;
mod status;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use ipam_core::occupancy::{Evidence, Fact};
use ipam_core::plan::{Assignment, Claim, NodeRef, Plan, Standing, plan_beside, wind_down};
use ipam_core::{AddrRange, Occupancy, Pool, PoolKey, PoolKind, Violation};
use jiff::Timestamp;

use crate::absence::Absences;
use crate::index::{IpamNodes, Leaving};
use crate::pool::{PoolRecord, StatusRecord, Summary};
use conditions::{ERROR_BYTES, Verdict, bounded, clipped, merge, stands};
use releases::Releases;
use verdicts::{Outlook, Troubles};

pub use elsewhere::Elsewhere;

pub use conditions::{CONDITIONS, DEGRADED, EXHAUSTED, READY, RELEASING};

/// Longest note that the API server takes in an event, in bytes.
const NOTE_BYTES: usize = 1024;

/// All that a decision about a pool rests on.
pub struct Observation<'a> {
    /// The pool.
    pub pool: &'a PoolRecord,
    /// Every node of the cluster, by name.
    pub nodes: &'a [NodeRef<'a>],
    /// Those of them that leave: no pool serves them.
    pub leaving: &'a BTreeMap<String, Leaving>,
    /// Every IPAMNode.
    pub ipam_nodes: &'a IpamNodes,
    /// Which node may use which addresses, by all records.
    pub occupancy: &'a Occupancy,
    /// Who has which block by what nodes were told since this operator leads, by node name; empty if nothing was.
    pub told: &'a [Assignment],
    /// Nodes whose block was free until a status write of this leader assigned it, and that have had no entry of it since.
    pub just_assigned: &'a BTreeSet<String>,
    /// Gateways of before that were barred by what nodes were told; `None` if nothing was told since this operator leads.
    pub former: Option<&'a [AddrRange]>,
    /// What other pools mean for this one.
    pub beside: &'a Beside,
    /// How long a block waits for its agent's word once its Node is gone; `None` for ever.
    pub grace: Option<Duration>,
    /// How long Nodes are missing by what this operator has seen.
    pub absences: &'a Absences,
    /// Why no IPAMNode can be made, in which agents would report.
    pub no_place: Option<NoPlace>,
    /// Whether it is time to write a status in which nothing but counts of addresses is new.
    pub counts_due: bool,
    /// The wall clock, for transition times and the grace.
    pub now: Timestamp,
    /// The clock that nobody sets, for what this operator has seen.
    pub instant: Instant,
}

/// What other pools mean for a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// The older pool that has addresses of this one; while there is one, this one serves nobody.
    pub in_the_way: Option<PoolKey>,
    /// The facts by which addresses of the pool are unavailable: those of other pools, and those that no record of this one covers.
    pub unavailable: Vec<Fact>,
    /// The pools that may have the same addresses as this one, because all of them allow it.
    pub sharing: BTreeSet<PoolKey>,
    /// The pools in `unavailable` that are older than this one.
    pub older: BTreeSet<PoolKey>,
    /// Blocks of the pool whose records are lost, reserved for their nodes.
    pub reserved: Vec<Claim>,
    /// Nodes that may use any address, because records are lost and their agents have not reported since. While there are some,
    /// no new block is assigned.
    pub unreported: Vec<String>,
    /// The longest time that new blocks wait for them; `None` without a limit.
    pub limit: Option<Duration>,
}

impl Observation<'_> {
    /// The addresses of the pool that nodes may use of other pools, with the node: a whole block until the agent has reported that it
    /// allocates no more from it, then what is in use. A node may still allocate from a block of an earlier network.
    fn in_use_of_others(&self, assignments: &[Assignment]) -> Vec<(&str, AddrRange)> {
        let own = &self.pool.key;
        let network = self.pool.network();
        let beyond = outside_of(network.as_ref(), assignments);
        let beyond: Vec<&Fact> = beyond.flat_map(|range| self.occupancy.overlapping(range)).collect();
        let is_of_another = |fact: &&Fact| *fact.pool != *own && !self.beside.sharing.contains(&*fact.pool);
        let others = || self.beside.unavailable.iter().chain(beyond.iter().copied()).filter(is_of_another);
        let stopped = others().filter(|fact| fact.evidence == Evidence::StoppedEntry);
        let stopped: HashSet<(&PoolKey, &str, AddrRange)> = stopped.map(of_fact).collect();
        let in_use = others().filter(|fact| match fact.evidence {
            Evidence::Recorded | Evidence::Entry => !stopped.contains(&of_fact(fact)),
            Evidence::StoppedEntry => false,
            Evidence::InUse | Evidence::Gateway | Evidence::OutsideBlock | Evidence::Reserved => true,
        });
        let in_use: BTreeSet<(&str, AddrRange)> = in_use.map(|fact| (&*fact.node, fact.range)).collect();
        in_use.into_iter().collect()
    }
}

/// The blocks that nodes may allocate from and that are not in the network of the spec.
pub(crate) fn outside_of<'a>(
    network: Option<&'a AddrRange>,
    assignments: &'a [Assignment],
) -> impl Iterator<Item = &'a AddrRange> {
    let allocating = assignments.iter().filter(|given| given.standing != Standing::Departed);
    let blocks = allocating.map(|given| &given.block.range);
    blocks.filter(move |range| network.is_some_and(|network| !network.contains_range(range)))
}

fn of_fact(fact: &Fact) -> (&PoolKey, &str, AddrRange) {
    (&fact.pool, &fact.node, fact.range)
}

/// Why nothing can be created, in words for people that stay the same from one try to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPlace {
    /// The namespace has a deletion timestamp.
    #[error("their namespace is being deleted")]
    NamespaceEnds,
    /// The CustomResourceDefinition has one.
    #[error("their CustomResourceDefinition is being deleted")]
    DefinitionEnds,
    /// Either of the two is gone.
    #[error("their namespace or their CustomResourceDefinition is not there")]
    Gone,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Decision {
    /// The change of the pool's metadata that comes before all else.
    pub patch: Option<MetadataPatch>,
    /// The status to be written; `None` if the one that was read is right.
    pub status: Option<StatusRecord>,
    /// Who has which block, by node name; `None` if the spec is invalid and what was given before stands.
    pub assignments: Option<Vec<Assignment>>,
    /// Nodes whose entries are to be revoked, whatever their agents report.
    pub let_go: BTreeSet<String>,
    /// What nodes may not give of their blocks, for others hold it.
    pub elsewhere: Elsewhere,
    /// Nodes that get a block which was free.
    pub just_assigned: BTreeSet<String>,
    /// How many times two agents report an address as in use; `None` if that is as before.
    pub duplicates: Option<usize>,
    /// When a grace ends.
    pub expires: Option<Timestamp>,
    /// Events to be published once the status is written.
    pub notes: Vec<Note>,
    /// Records that were not honoured, for the log.
    pub dropped: Vec<String>,
    /// Whether only new counts of addresses wait for their time.
    pub counts_deferred: bool,
    /// Whether only counts of addresses are new in the status.
    pub only_counts: bool,
}

/// A change of a pool's metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetadataPatch {
    /// Put our finalizer on it, before the first block is given.
    Seal,
    /// Take our finalizer off: the pool is being deleted, and none of its blocks may be in use.
    Unseal,
    /// The annotation that lets go of blocks is to name these nodes alone; if none, it has done what it could and goes.
    Force(BTreeSet<String>),
    /// A new version and nothing else, by an ID that was not used before. No decision asks for it: [`crate::reconcile`] does.
    Fence(String),
}

/// A Kubernetes Event about the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Whether it needs attention. Otherwise it says what the operator has done.
    pub is_warning: bool,
    /// A word such as `InvalidSpec` or `NoFreeRanges`.
    pub reason: &'static str,
    /// The message, short enough for the API.
    pub text: String,
    /// The node that it is about, if it is about one.
    pub node: Option<String>,
}

impl Note {
    /// A Warning event.
    pub(crate) fn warning(reason: &'static str, text: &str) -> Self {
        Self { is_warning: true, reason, text: clipped(text, NOTE_BYTES).to_owned(), node: None }
    }

    /// A Normal event.
    pub(crate) fn normal(reason: &'static str, text: &str) -> Self {
        Self { is_warning: false, ..Self::warning(reason, text) }
    }
}

/// Decides about one pool.
pub fn decide(seen: &Observation<'_>) -> Decision {
    let outlook = if seen.pool.life.deleting {
        Outlook::Deleting
    } else if let Some(older) = &seen.beside.in_the_way {
        Outlook::Overlap(older.clone())
    } else {
        Outlook::Serving { is_full: false, withheld: BTreeSet::new() }
    };
    match (&seen.pool.spec, outlook) {
        (Ok(pool), Outlook::Serving { .. }) => serve(seen, pool),
        (Err(violations), Outlook::Serving { .. }) => refuse(seen, violations),
        (_, outlook) => end(seen, &outlook),
    }
}

/// The reason word for a pool of `kind` that has no block left.
pub const fn exhausted_reason(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::IpPool => "NoFreeRanges",
        PoolKind::CidrPool => "NoFreePrefixes",
    }
}

fn refuse(seen: &Observation<'_>, violations: &[Violation]) -> Decision {
    let pool = seen.pool;
    let said: Vec<String> =
        violations.iter().map(|one| format!("{}: {}: {}", one.field, one.reason, one.message)).collect();
    let verdict = Verdict::new(READY, false, "InvalidSpec", bounded(&said, "; ", ERROR_BYTES));
    let before = &pool.status.summary;
    if before.observed_generation == Some(pool.generation) && stands(&before.conditions, &verdict, pool.generation) {
        // Nothing is taken back until the spec is mended, and who leaves meanwhile is not meant.
        let releasing = pool.status.releasing.iter().map(|release| &release.claim.node);
        let is_served = |node: &&String| pool.status.allocations.iter().any(|claim| claim.node == **node);
        let unreported = seen.beside.unreported.iter().filter(|node| !is_served(node));
        let meant = || releasing.chain(unreported).cloned().collect();
        let patch = pool.life.forces_all().then(|| MetadataPatch::Force(meant()));
        return Decision { patch, ..Decision::default() };
    }
    let note = Note::warning("InvalidSpec", &verdict.message);
    let summary = Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&before.conditions, vec![verdict], pool.generation, seen.now),
        ..before.clone()
    };
    let status = StatusRecord { summary, ..pool.status.clone() };
    Decision { status: Some(status), notes: vec![note], ..Decision::default() }
}

fn serve(seen: &Observation<'_>, pool: &Pool) -> Decision {
    let releases = Releases::new(seen);
    let (claims, mut dropped) = claims::gather(pool.key(), seen);
    let usage = |node: &str| releases.usage(node);
    let open: Vec<NodeRef<'_>>;
    let nodes = if seen.leaving.is_empty() {
        seen.nodes
    } else {
        open = seen.nodes.iter().filter(|node| !seen.leaving.contains_key(node.name)).copied().collect();
        &open
    };
    let unavailable: Vec<AddrRange> = if seen.beside.unreported.is_empty() {
        seen.beside.unavailable.iter().map(|fact| fact.range).collect()
    } else {
        vec![pool.network().range()]
    };
    let mut plan = plan_beside(pool, nodes, &claims, &usage, &unavailable);
    dropped.append(&mut plan.dropped);
    let claimed: HashSet<(&str, AddrRange)> = claims.iter().map(|claim| (claim.node.as_str(), claim.range)).collect();
    let is_new = |given: &Assignment| !claimed.contains(&(given.node.as_str(), given.block.range));
    // The annotation force-release names a node because of the block that it has. It gets another once its name is gone.
    let named = plan.assignments.iter().filter(|given| is_new(given) && seen.pool.life.forces(&given.node));
    let withheld: BTreeSet<String> = named.map(|given| given.node.clone()).collect();
    room::take_out(pool, &mut plan, &withheld);
    let is_full = room::fit(seen.pool, pool, &mut plan, &claims, &is_new);
    let new = plan.assignments.iter().filter(|given| is_new(given));
    let just_assigned = new.map(|given| given.node.clone()).collect();
    Decision { just_assigned, ..conclude(seen, &releases, &Outlook::Serving { is_full, withheld }, plan, dropped) }
}

/// Takes back all that was given, whatever the spec says.
fn end(seen: &Observation<'_>, outlook: &Outlook) -> Decision {
    let releases = Releases::new(seen);
    let (claims, dropped) = claims::gather(&seen.pool.key, seen);
    let mut plan = wind_down(&claims, &|node| releases.usage(node));
    plan.blocks_total = seen.pool.spec.as_ref().map_or(0, |pool| pool.block_count());
    conclude(seen, &releases, outlook, plan, dropped)
}

fn conclude(
    seen: &Observation<'_>,
    releases: &Releases<'_>,
    outlook: &Outlook,
    mut plan: Plan,
    dropped: Vec<String>,
) -> Decision {
    let (mut elsewhere, duplicates) = elsewhere::find(seen, &plan.assignments);
    let gateways = gateways::defer(seen, &mut plan);
    elsewhere.bar(&gateways.holders);
    elsewhere.bar_beside(&seen.in_use_of_others(&plan.assignments), &plan.assignments);
    elsewhere.bar_gateways_in_use(seen, &plan.assignments);
    elsewhere.bar_former(former::find(seen, &plan.assignments), &plan.assignments);
    elsewhere.tidy();
    let mut without_block = elsewhere::without_block(seen, &plan.assignments);
    // What is in use there was released by an admin or by the grace.
    without_block.retain(|node| releases.let_go(node).is_none());
    let without_block = verdicts::all_described(releases, &without_block);
    let troubles = Troubles { duplicates: &duplicates, gateways: &gateways.described(), without_block: &without_block };
    let verdicts = verdicts::verdicts(seen, releases, outlook, &plan, &troubles);
    let notes = verdicts::notes(seen, releases, outlook, &plan, &verdicts);
    let status = status::compose(seen, releases, &plan, verdicts);
    let news = status::news(&seen.pool.status, &status);
    let counts_only = news == status::News::CountsOnly;
    let mut decision = Decision {
        let_go: releases.let_go_of(&plan.assignments),
        elsewhere,
        duplicates: Some(duplicates.len()),
        expires: releases.next_expiry(&plan.assignments),
        counts_deferred: counts_only && !seen.counts_due,
        only_counts: counts_only,
        ..Decision::default()
    };
    decision.patch = patch(seen, outlook, &plan, news);
    if news != status::News::Nothing && !decision.counts_deferred {
        decision.status = Some(status);
        decision.notes = notes;
        // New counts are no reason to say again what was said when the blocks were decided upon.
        decision.dropped = if counts_only { Vec::new() } else { dropped };
    }
    decision.assignments = Some(plan.assignments);
    decision
}

/// Which change of metadata is due. The finalizer is there before the first block is given and goes when the last is
/// free; both at the version that was decided upon, so that neither rests on an old status. It goes after the status has said
/// that nobody has a block: what became of the last ones is told while there is a pool to tell it of, and whoever looks
/// once more before the pool is gone finds no block in its status that would be taken back all over again.
fn patch(seen: &Observation<'_>, outlook: &Outlook, plan: &Plan, news: status::News) -> Option<MetadataPatch> {
    let life = &seen.pool.life;
    match (life.deleting, life.is_sealed(), plan.assignments.is_empty()) {
        (false, false, false) => return Some(MetadataPatch::Seal),
        (true, true, true) => return (news != status::News::Blocks).then_some(MetadataPatch::Unseal),
        _ => {}
    }
    if life.force_release.is_empty() || (life.forces_all() && releases_more(seen, plan)) {
        return None;
    }
    // Before a status that gives a node a block of which no admin has spoken: a name that stayed on would let go of it.
    let named = forced(seen, outlook, plan);
    (named != life.force_release).then_some(MetadataPatch::Force(named))
}

/// Whether the plan releases a block that is not yet in `status.releasing`. A stale block stays in `status.allocations`.
fn releases_more(seen: &Observation<'_>, plan: &Plan) -> bool {
    let recorded: HashSet<&str> =
        seen.pool.status.releasing.iter().map(|release| release.claim.node.as_str()).collect();
    let mut losing = plan.assignments.iter().filter(|assignment| assignment.standing == Standing::Departed);
    losing.any(|assignment| !recorded.contains(assignment.node.as_str()))
}

/// Most bytes of names that take the place of `*`: an object's annotations together may have 256 KiB.
const FORCED_BYTES: usize = 128 * 1024;

/// The nodes that the annotation is to name from now on: those for which it has work. A name that stayed on would let go
/// of a block that the node gets later, of which no admin has spoken; so would `*`, of everybody's. (Of more names than an
/// annotation holds, the first take its place; the condition goes on naming the others.)
fn forced(seen: &Observation<'_>, outlook: &Outlook, plan: &Plan) -> BTreeSet<String> {
    let life = &seen.pool.life;
    let losing = plan.assignments.iter().filter(|assignment| assignment.standing != Standing::Serving);
    let losing = losing.map(|assignment| &assignment.node).filter(|node| life.forces_all() || life.forces(node));
    // The name of an awaited node ends the wait. `*` stands for none that is served: it is meant for blocks that are released.
    let is_served = |node: &String| {
        let place = plan.assignments.binary_search_by(|given| given.node.cmp(node));
        place.is_ok_and(|place| plan.assignments[place].standing == Standing::Serving)
    };
    let ends_wait = |node: &&String| life.forces(node) || (life.forces_all() && !is_served(node));
    let unreported = seen.beside.unreported.iter().filter(ends_wait);
    // An agent that still reports what was let go of would bar the block again, without the annotation.
    let waits_for_a_block =
        |node: &String| matches!(outlook, Outlook::Serving { withheld, .. } if withheld.contains(node));
    let strays = elsewhere::forced_strays(seen, &plan.assignments).filter(|node| !waits_for_a_block(node));
    // Until the status says that a block is free, the name is what lets go of it.
    let recorded = seen.pool.status.releasing.iter().map(|release| &release.claim.node);
    let recorded = recorded.filter(|node| life.forces_all() || life.forces(node));
    let named = losing.chain(unreported).chain(recorded).cloned().chain(strays).collect::<BTreeSet<_>>();
    let mut bytes = 0;
    let fits = |name: &String| {
        bytes += name.len() + 1;
        bytes <= FORCED_BYTES
    };
    named.into_iter().take_while(fits).collect()
}

#[cfg(test)]
mod tests;
