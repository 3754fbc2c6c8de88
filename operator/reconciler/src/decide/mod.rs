//! The decision about one pool. Pure: the same input makes the same decision.
//!
//! An invalid spec releases no block. A block that may be in use never becomes free. The transition time of a condition changes only with
//! its status. No event is published twice, also not after a restart, because the status itself shows what was reported before.

mod claims;
mod condition_merge;
mod condition_updates;
mod gateways;
mod previous_gateways;
mod releases;
mod status;
mod status_size;
mod unavailable_addresses;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use ipam_core::occupancy::{Evidence, Fact};
use ipam_core::plan::{Assignment, BlockPhase, Claim, NodeRef, Plan, plan_with_unavailable, release_all};
use ipam_core::{AddrRange, Occupancy, Pool, PoolKey, PoolKind, Violation};
use jiff::Timestamp;

use crate::cluster_cache::{IpamNodes, Leaving};
use crate::node_absence::NodeAbsences;
use crate::pool::{PoolRecord, StatusRecord, Summary};
use condition_merge::{ConditionUpdate, ERROR_BYTES, bounded, clipped, merge, stands};
use condition_updates::{PoolPhase, Problems, counted_list};
use releases::Releases;

pub use unavailable_addresses::UnavailableAddresses;

pub use condition_merge::{ALLOCATION_PAUSED, CONDITIONS, DEGRADED, EXHAUSTED, READY, RELEASING};

/// Longest note of an event that the API server accepts, in bytes.
const NOTE_BYTES: usize = 1024;

/// The input of a decision about a pool.
pub struct DecisionInput<'a> {
    /// The pool.
    pub pool: &'a PoolRecord,
    /// Every node of the cluster, by name.
    pub nodes: &'a [NodeRef<'a>],
    /// The nodes that leave, and why. No pool serves them.
    pub leaving: &'a BTreeMap<String, Leaving>,
    /// Every IPAMNode.
    pub ipam_nodes: &'a IpamNodes,
    /// Which node may use which addresses, by all records.
    pub occupancy: &'a Occupancy,
    /// The assignments of the plan in force, which IPAMNodes are derived from, by node name; empty without such a plan.
    pub told: &'a [Assignment],
    /// Nodes whose block was free until a status write of this leader assigned it, and that have had no entry of it since.
    pub just_assigned: &'a BTreeSet<String>,
    /// Previous gateways that the plan in force makes unavailable; `None` without such a plan.
    pub previous_gateways: Option<&'a [AddrRange]>,
    /// What other pools and recovery require of this one.
    pub other_pools: &'a OtherPools,
    /// How long a block waits for its agent's report once its Node is gone; `None` without a limit.
    pub grace: Option<Duration>,
    /// How long this leader has seen Nodes missing.
    pub absences: &'a NodeAbsences,
    /// Why no IPAMNode can be created, so that no agent can report; `None` otherwise.
    pub no_place: Option<CreateBlocked>,
    /// The error for which an IPAMNode has not been written for a while, by node.
    pub write_error: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a pool with blocks has our finalizer. Otherwise no pool has it.
    pub finalizers: bool,
    /// Whether a status can be written in which only counts of addresses are new.
    pub counts_due: bool,
    /// The wall clock, for transition times and the grace.
    pub now: Timestamp,
    /// The monotonic clock, for the time that this leader has seen Nodes missing.
    pub instant: Instant,
}

/// What other pools and recovery require of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OtherPools {
    /// The older pool that has addresses of this one. While there is one, this pool serves no node.
    pub older_overlap: Option<PoolKey>,
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
    /// Nodes that have still not reported since new blocks no longer wait for them.
    pub late: Vec<String>,
}

impl DecisionInput<'_> {
    /// The addresses of this pool that nodes may use from other pools, with the node. A block counts until the agent has reported that it
    /// no longer allocates from it. Then only addresses in use count. Blocks of an earlier network are included: a node may still allocate
    /// there.
    fn in_use_of_others(&self, assignments: &[Assignment]) -> Vec<(&str, AddrRange)> {
        let own = &self.pool.key;
        let network = self.pool.network();
        let beyond = outside_of(network.as_ref(), assignments);
        let beyond: Vec<&Fact> = beyond.flat_map(|range| self.occupancy.overlapping(range)).collect();
        let is_of_another = |fact: &&Fact| *fact.pool != *own && !self.other_pools.sharing.contains(&*fact.pool);
        let others = || self.other_pools.unavailable.iter().chain(beyond.iter().copied()).filter(is_of_another);
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
    let allocating = assignments.iter().filter(|given| given.phase != BlockPhase::Releasing);
    let blocks = allocating.map(|given| &given.block.range);
    blocks.filter(move |range| network.is_some_and(|network| !network.contains_range(range)))
}

fn of_fact(fact: &Fact) -> (&PoolKey, &str, AddrRange) {
    (&fact.pool, &fact.node, fact.range)
}

/// Why no IPAMNode can be created. The message stays the same from one try to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateBlocked {
    /// The namespace has a deletion timestamp.
    #[error("their namespace is being deleted")]
    NamespaceEnds,
    /// The CustomResourceDefinition has a deletion timestamp.
    #[error("their CustomResourceDefinition is being deleted")]
    DefinitionEnds,
    /// The namespace or the CustomResourceDefinition is gone.
    #[error("their namespace or their CustomResourceDefinition is not there")]
    Gone,
}

/// What is to be done about one pool.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Decision {
    /// The change of the pool's metadata, made before any other write.
    pub patch: Option<MetadataPatch>,
    /// Events to publish once the patch is made.
    pub patch_notes: Vec<PoolEvent>,
    /// The status to be written; `None` if the present one stays.
    pub status: Option<StatusRecord>,
    /// Which node has which block, by node name; `None` if the spec is invalid and all blocks stay as they are.
    pub assignments: Option<Vec<Assignment>>,
    /// Nodes whose entries are to be revoked, whatever their agents report.
    pub revoked: BTreeSet<String>,
    /// Nodes whose blocks are free from now on because the grace is over.
    pub expired: BTreeSet<String>,
    /// Addresses that nodes must not allocate from their blocks, because other nodes may use them.
    pub unavailable_addresses: UnavailableAddresses,
    /// Nodes that get a block which was free.
    pub just_assigned: BTreeSet<String>,
    /// Number of duplicate addresses; `None` if it is unchanged.
    pub duplicates: Option<usize>,
    /// When the next grace ends.
    pub expires: Option<Timestamp>,
    /// Events to be published once the status is written.
    pub notes: Vec<PoolEvent>,
    /// Messages for the log about records that do not count.
    pub dropped: Vec<String>,
    /// Whether a status with new counts of addresses waits until counts are due.
    pub counts_deferred: bool,
    /// Whether only counts of addresses are new in the status.
    pub only_counts: bool,
}

/// A change of a pool's metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetadataPatch {
    /// Add our finalizer, before the first block is assigned.
    Seal,
    /// Remove our finalizer: the pool is being deleted, and none of its blocks may be in use. Or the operator works without finalizers.
    Unseal,
    /// Let the annotation force-release name only these nodes. If there are none, remove it.
    Force(BTreeSet<String>),
    /// Make a new version and change nothing else, by a new ID. Only [`crate::reconcile`] makes this patch.
    Fence(String),
}

/// A Kubernetes Event about the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolEvent {
    /// Whether it needs attention. Otherwise it is about an action of the operator.
    pub is_warning: bool,
    /// The reason, such as `InvalidSpec` or `NoFreeRanges`.
    pub reason: &'static str,
    /// The message, short enough for the API.
    pub text: String,
    /// The node that it is about, if it is about one.
    pub node: Option<String>,
}

impl PoolEvent {
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
pub fn decide(seen: &DecisionInput<'_>) -> Decision {
    let outlook = if seen.pool.life.deleting {
        PoolPhase::Deleting
    } else if let Some(older) = &seen.other_pools.older_overlap {
        PoolPhase::Overlap(older.clone())
    } else {
        PoolPhase::Serving { is_full: false, withheld: BTreeSet::new() }
    };
    match (&seen.pool.spec, outlook) {
        (Ok(pool), PoolPhase::Serving { .. }) => serve(seen, pool),
        (Err(violations), PoolPhase::Serving { .. }) => refuse(seen, violations),
        (_, outlook) => end(seen, &outlook),
    }
}

/// The reason for a pool of `kind` that has no block left.
pub const fn exhausted_reason(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::IpPool => "NoFreeRanges",
        PoolKind::CidrPool => "NoFreePrefixes",
    }
}

/// What an invalid spec means for the blocks.
const FROZEN: &str = "Until the spec is valid, existing blocks stay, and none is assigned or released.";

fn refuse(seen: &DecisionInput<'_>, violations: &[Violation]) -> Decision {
    let pool = seen.pool;
    let said: Vec<String> =
        violations.iter().map(|one| format!("{}: {}: {}", one.field, one.reason, one.message)).collect();
    let text = format!("{}. {FROZEN}", bounded(&said, "; ", ERROR_BYTES));
    let update = ConditionUpdate::new(READY, false, "InvalidSpec", text);
    let before = &pool.status.summary;
    if before.observed_generation == Some(pool.generation) && stands(&before.conditions, &update, pool.generation) {
        // Its blocks stay, so the pool must stay, too. The condition comes first: it also helps where this patch is refused.
        let patch = finalizer(seen, || !claims::gather(&pool.key, seen).0.is_empty());
        if patch.is_some() {
            return Decision { patch, ..Decision::default() };
        }
        // No block is released until the spec is valid. `*` does not mean nodes that leave before that.
        let releasing = pool.status.releasing.iter().map(|release| &release.claim.node);
        let is_served = |node: &&String| pool.status.allocations.iter().any(|claim| claim.node == **node);
        let unreported = seen.other_pools.unreported.iter().filter(|node| !is_served(node));
        let meant = || releasing.chain(unreported).cloned().collect();
        let patch = pool.life.force_releases_all().then(|| MetadataPatch::Force(meant()));
        return Decision { patch, ..Decision::default() };
    }
    let note = PoolEvent::warning("InvalidSpec", &update.message);
    let summary = Summary {
        observed_generation: Some(pool.generation),
        conditions: merge(&before.conditions, vec![update], pool.generation, seen.now),
        ..before.clone()
    };
    let status = StatusRecord { summary, ..pool.status.clone() };
    Decision { status: Some(status), notes: vec![note], ..Decision::default() }
}

fn serve(seen: &DecisionInput<'_>, pool: &Pool) -> Decision {
    let releases = Releases::new(seen);
    let (mut claims, mut dropped) = claims::gather(pool.key(), seen);
    claims.extend(claims::by_use(pool, seen, &claims));
    let usage = |node: &str| releases.usage(node);
    let open: Vec<NodeRef<'_>>;
    let nodes = if seen.leaving.is_empty() {
        seen.nodes
    } else {
        open = seen.nodes.iter().filter(|node| !seen.leaving.contains_key(node.name)).copied().collect();
        &open
    };
    let unavailable: Vec<AddrRange> = if seen.other_pools.unreported.is_empty() {
        seen.other_pools.unavailable.iter().map(|fact| fact.range).collect()
    } else {
        vec![pool.network().range()]
    };
    let mut plan = plan_with_unavailable(pool, nodes, &claims, &usage, &unavailable);
    dropped.append(&mut plan.dropped);
    let claimed: HashSet<(&str, AddrRange)> = claims.iter().map(|claim| (claim.node.as_str(), claim.range)).collect();
    let is_new = |given: &Assignment| !claimed.contains(&(given.node.as_str(), given.block.range));
    // The annotation force-release names a node because of the block that it has. It gets another once its name is gone.
    let named = plan.assignments.iter().filter(|given| is_new(given) && seen.pool.life.force_releases(&given.node));
    let withheld: BTreeSet<String> = named.map(|given| given.node.clone()).collect();
    status_size::take_out(pool, &mut plan, &withheld);
    let is_full = status_size::fit(seen.pool, pool, &mut plan, &claims, &is_new);
    let new = plan.assignments.iter().filter(|given| is_new(given));
    let just_assigned: BTreeSet<String> = new.map(|given| given.node.clone()).collect();
    let decision =
        conclude(seen, &releases, &PoolPhase::Serving { is_full, withheld }, (plan, &just_assigned), dropped);
    Decision { just_assigned, ..decision }
}

/// Releases all blocks, whatever the spec is.
fn end(seen: &DecisionInput<'_>, outlook: &PoolPhase) -> Decision {
    let releases = Releases::new(seen);
    let (claims, dropped) = claims::gather(&seen.pool.key, seen);
    let mut plan = release_all(&claims, &|node| releases.usage(node));
    plan.blocks_total = seen.pool.spec.as_ref().map_or(0, |pool| pool.block_count());
    conclude(seen, &releases, outlook, (plan, &BTreeSet::new()), dropped)
}

fn conclude(
    seen: &DecisionInput<'_>,
    releases: &Releases<'_>,
    outlook: &PoolPhase,
    (mut plan, just_assigned): (Plan, &BTreeSet<String>),
    dropped: Vec<String>,
) -> Decision {
    let (mut unavailable_addresses, duplicates) = unavailable_addresses::find(seen, &plan.assignments);
    let gateways = gateways::defer(seen, just_assigned, &mut plan);
    unavailable_addresses.add_new_gateways(&gateways.holders);
    unavailable_addresses.add_beside(&seen.in_use_of_others(&plan.assignments), &plan.assignments);
    unavailable_addresses.add_gateways(gateways::of_other_nodes(seen, &plan.assignments));
    unavailable_addresses.add_previous_gateways(previous_gateways::find(seen, &plan.assignments), &plan.assignments);
    unavailable_addresses.tidy();
    let mut without_block = unavailable_addresses::without_block(seen, &plan.assignments);
    // Nodes whose addresses an admin or the end of the grace has released are left out.
    without_block.retain(|node| releases.revoked(node).is_none());
    let without_block = condition_updates::all_described(releases, &without_block);
    let troubles = Problems { duplicates: &duplicates, gateways: &gateways.described(), without_block: &without_block };
    let condition_updates = condition_updates::condition_updates(seen, releases, outlook, &plan, &troubles);
    let notes = condition_updates::notes(seen, releases, outlook, &plan, &condition_updates);
    let status = status::compose(seen, releases, &plan, condition_updates);
    let news = status::news(&seen.pool.status, &status);
    let counts_only = news == status::StatusChange::CountsOnly;
    let mut decision = Decision {
        revoked: releases.revoked_of(&plan.assignments),
        expired: releases.expired(&plan.assignments),
        unavailable_addresses,
        duplicates: Some(duplicates.len()),
        expires: releases.next_expiry(&plan.assignments),
        counts_deferred: counts_only && !seen.counts_due,
        only_counts: counts_only,
        ..Decision::default()
    };
    decision.patch = patch(seen, outlook, &plan, news);
    if let Some(MetadataPatch::Force(named)) = &decision.patch {
        let left_out = forced(seen, outlook, &plan).len().saturating_sub(named.len());
        let ended = names_ended(&seen.pool.life.force_release, named);
        decision.patch_notes = names_left_out(left_out).into_iter().chain(ended).collect();
    }
    if news != status::StatusChange::Nothing && !decision.counts_deferred {
        decision.status = Some(status);
        decision.notes = notes;
        // New counts are no reason to log again what was logged when the blocks were decided.
        decision.dropped = if counts_only { Vec::new() } else { dropped };
    }
    decision.assignments = Some(plan.assignments);
    decision
}

/// The finalizer of a pool that has blocks, or none if the operator works without finalizers. The API server accepts no new finalizer for
/// a pool that is being deleted.
fn finalizer(seen: &DecisionInput<'_>, has_blocks: impl FnOnce() -> bool) -> Option<MetadataPatch> {
    let life = &seen.pool.life;
    match (seen.finalizers, life.is_sealed()) {
        (true, false) => (!life.deleting && has_blocks()).then_some(MetadataPatch::Seal),
        (false, true) => Some(MetadataPatch::Unseal),
        _ => None,
    }
}

/// The change of metadata of a pool that is due, unless its spec is invalid. The finalizer is added before the first block is assigned, and
/// removed when the last block is free. Both name the version of this decision, so that neither is based on an old status. The finalizer is removed only once the status shows
/// that no node has a block. So the events about the last blocks are published while the pool exists. And a later decision about the
/// deleted pool finds no block in its status that would be released again.
fn patch(
    seen: &DecisionInput<'_>,
    outlook: &PoolPhase,
    plan: &Plan,
    news: status::StatusChange,
) -> Option<MetadataPatch> {
    let life = &seen.pool.life;
    let has_blocks = !plan.assignments.is_empty();
    let change = finalizer(seen, || has_blocks);
    if change.is_some() {
        return change;
    }
    if life.deleting && life.is_sealed() && !has_blocks {
        return (news != status::StatusChange::Blocks).then_some(MetadataPatch::Unseal);
    }
    if life.force_release.is_empty() || (life.force_releases_all() && releases_more(seen, plan)) {
        return None;
    }
    // This comes before a status that assigns a node a new block. A name that stays would release a block that the admin did not mean.
    let named = fitting(forced(seen, outlook, plan));
    (named != life.force_release).then_some(MetadataPatch::Force(named))
}

/// Whether the plan releases a block that is not yet in `status.releasing`. A stale block stays in `status.allocations`.
fn releases_more(seen: &DecisionInput<'_>, plan: &Plan) -> bool {
    let recorded: HashSet<&str> =
        seen.pool.status.releasing.iter().map(|release| release.claim.node.as_str()).collect();
    let mut losing = plan.assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Releasing);
    losing.any(|assignment| !recorded.contains(assignment.node.as_str()))
}

/// Most bytes of the names that replace `*`. All annotations of an object together can have 256 KiB.
const FORCED_BYTES: usize = 128 * 1024;

/// The first of these names, as many as fit into an annotation. The condition still names the other nodes.
fn fitting(named: BTreeSet<String>) -> BTreeSet<String> {
    let mut bytes = 0;
    let fits = |name: &String| {
        bytes += name.len() + 1;
        bytes <= FORCED_BYTES
    };
    named.into_iter().take_while(fits).collect()
}

/// The answer to a force-release of the nodes that the annotation has named `before`, and does not name any more.
fn names_ended(before: &BTreeSet<String>, named: &BTreeSet<String>) -> Option<PoolEvent> {
    let is_over = |name: &&String| *name != "*" || named.is_empty();
    let ended: Vec<String> = before.difference(named).filter(is_over).cloned().collect();
    let text = format!(
        "Nothing of this pool is left to release for {}. So the operator removes what the annotation force-release says of that.",
        counted_list(&ended).replace("node *", "all nodes")
    );
    (!ended.is_empty()).then(|| PoolEvent::normal("ForcedReleaseEnded", &text))
}

/// The answer to a force-release of so many more nodes than fit into an annotation.
fn names_left_out(nodes: usize) -> Option<PoolEvent> {
    let text = format!(
        "The names of {nodes} more nodes do not fit into the annotation force-release. Annotate the pool again for them once the operator \
         has removed the annotation."
    );
    (nodes > 0).then(|| PoolEvent::warning("ForcedReleaseIncomplete", &text))
}

/// The nodes that the annotation should name from now on: those for which something is left to do. The name of a node that is served stays,
/// and acts once the node leaves. Any other name that stays would release a block that the node gets later and that the admin did not mean.
/// `*` would release such blocks of all nodes.
fn forced(seen: &DecisionInput<'_>, outlook: &PoolPhase, plan: &Plan) -> BTreeSet<String> {
    let life = &seen.pool.life;
    let is_named = |given: &&Assignment| {
        life.force_releases(&given.node) || (life.force_releases_all() && given.phase != BlockPhase::Active)
    };
    let with_block = plan.assignments.iter().filter(is_named).map(|given| &given.node);
    // The name of an awaited node ends the wait. `*` does not mean nodes that are served: it is about blocks that are being released.
    let is_served = |node: &String| {
        let place = plan.assignments.binary_search_by(|given| given.node.cmp(node));
        place.is_ok_and(|place| plan.assignments[place].phase == BlockPhase::Active)
    };
    let ends_wait = |node: &&String| life.force_releases(node) || (life.force_releases_all() && !is_served(node));
    let unreported = seen.other_pools.unreported.iter().filter(ends_wait);
    // Without the annotation, addresses that the agent still reports would be unavailable again.
    let waits_for_a_block =
        |node: &String| matches!(outlook, PoolPhase::Serving { withheld, .. } if withheld.contains(node));
    let strays = unavailable_addresses::forced_strays(seen, &plan.assignments).filter(|node| !waits_for_a_block(node));
    // The name releases the block until the status shows it as free, and a reserved block until the plan is in force.
    let recorded = seen.pool.status.releasing.iter().map(|release| &release.claim.node);
    let recorded = recorded.filter(|node| life.force_releases_all() || life.force_releases(node));
    let reserved = seen.other_pools.reserved.iter().map(|claim| &claim.node).filter(|node| life.force_releases(node));
    with_block.chain(unreported).chain(recorded).chain(reserved).cloned().chain(strays).collect()
}

#[cfg(test)]
mod tests;
