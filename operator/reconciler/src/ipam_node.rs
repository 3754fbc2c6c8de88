//! The operator's record of an IPAMNode, and the entries that its spec is to have.
//!
//! The operator writes the spec, and the agent writes the status. This module reads both and derives the spec from the statuses of pools
//! alone. So an IPAMNode never assigns a block that the first record does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::plan::{Assignment, BlockPhase, Claim, ClaimSource, Usage};
use ipam_core::{AddrRange, Block, Cidr, GrantId, NodePool, Pool, PoolKey, PoolKind, RangeSet};
use ipam_crds::{
    AddressRange, BlockState, BlockUse, IPAMNodeSpec, IPAMNodeStatus, NodeBlock, PoolType, RouteDestination,
};
use serde_json::value::RawValue;

use crate::objects::RawObject;

/// The finalizer of an IPAMNode that has blocks, or whose agent reports addresses in use. The first block comes in the same
/// patch as the finalizer.
pub const FINALIZER: &str = "nv-ipam.nvidia.com/node-in-use";

/// An IPAMNode as read from the API server, with what this leader knows about it.
#[derive(Clone, PartialEq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct IpamNodeRecord {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`: changes with the spec.
    pub generation: i64,
    /// `metadata.resourceVersion`: changes with anything.
    pub resource_version: String,
    /// `spec.pools`; empty if the spec does not parse, and then written again.
    pub blocks: Vec<NodeBlock>,
    /// The `blocks` that the operator intended, if another writer has changed them under this leader. Usually `None`.
    pub intended_blocks: Option<Vec<NodeBlock>>,
    /// `spec.reportRequest`.
    pub request: Option<String>,
    /// `status.reportRequest`: the request that the report answers.
    pub answers: Option<String>,
    /// Whether the report may be from an earlier time, such as before a restore. Then it releases no block.
    pub is_doubted: bool,
    /// Generation of the spec that the agent works with.
    pub observed_generation: Option<i64>,
    /// `status.pools`, the counts of the agent; empty if the status does not parse.
    pub reports: Vec<BlockUse>,
    /// Grants of current entries, and of entries before an edit by hand, that the agent has reported since this leader started.
    pub reported: BTreeSet<String>,
    /// Pool of each Releasing entry → the first generation in which this leader has seen the entry Releasing.
    pub releasing: BTreeMap<PoolKey, i64>,
    /// `metadata.finalizers`, ours and those of others.
    pub finalizers: Vec<String>,
    /// Whether it is being deleted, and a finalizer keeps it.
    pub deleting: bool,
    /// Whether the object has changed since this leader first listed it. Then a write that a former leader sent names an earlier version,
    /// and the API server refuses it.
    pub fenced: bool,
    /// Whether a write of this leader at this version may have succeeded, or may still succeed. Then the object may have other entries than
    /// `blocks`. A newer version settles that, because such a write succeeds only at its own version.
    pub write_in_flight: bool,
}

impl IpamNodeRecord {
    /// Reads `object`.
    pub fn read(object: &RawObject) -> Self {
        let spec: IPAMNodeSpec = read_or_default(object.spec.as_deref());
        let status: IPAMNodeStatus = read_or_default(object.status.as_deref());
        let mut record = Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            resource_version: object.resource_version().to_owned(),
            blocks: spec.pools,
            request: spec.report_request,
            answers: status.report_request,
            observed_generation: status.observed_generation,
            reports: status.pools,
            finalizers: object.metadata.finalizers.clone().unwrap_or_default(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            ..Self::default()
        };
        record.is_doubted = record.is_unanswered();
        record
    }

    /// Whether a report was requested that the agent has not made.
    pub fn is_unanswered(&self) -> bool {
        self.request.is_some() && self.request != self.answers
    }

    /// Whether it has our finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// The finalizers to write, in the order of the present ones: those of others, and ours if the object `is_kept`. The API server accepts
    /// no new finalizer for an object that is being deleted.
    pub fn finalizers_for(&self, is_kept: bool) -> Vec<String> {
        let mut finalizers = self.finalizers.clone();
        if !is_kept {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        } else if !self.deleting && !self.has_finalizer() {
            finalizers.push(FINALIZER.to_owned());
        }
        finalizers
    }

    /// Whether the agent has reported in this object, after it saved the spec on disk.
    pub fn has_reported(&self) -> bool {
        self.observed_generation.is_some()
    }

    /// The entry of a pool.
    pub fn block(&self, key: &PoolKey) -> Option<&NodeBlock> {
        self.blocks.iter().find(|block| is_of(key, block.pool_type, &block.name))
    }

    /// The entry of a pool as the operator wrote it, whatever another writer has made of it since.
    pub fn told(&self, key: &PoolKey) -> Option<&NodeBlock> {
        let blocks = self.intended_blocks.as_ref().unwrap_or(&self.blocks);
        blocks.iter().find(|block| is_of(key, block.pool_type, &block.name))
    }

    /// The agent's report about a pool.
    pub fn report(&self, key: &PoolKey) -> Option<&BlockUse> {
        self.reports.iter().find(|report| is_of(key, report.pool_type, &report.name))
    }

    /// Number of addresses of the pool in use on the node, by the last report.
    pub fn used(&self, key: &PoolKey) -> u64 {
        self.report(key).map_or(0, |report| u64::try_from(report.used).unwrap_or(0))
    }

    /// Whether the node's block of a pool is released: the operator can assign it to another node.
    ///
    /// True if the operator has revoked the grant, or if the agent reports that the grant has ended and that no address is in use.
    /// Both are final: the agent never allocates from an ended grant again. A write whose outcome is unknown may have made another
    /// grant meanwhile, and so may one that a former leader sent.
    ///
    /// A report from an earlier time releases nothing: the node may use the block by a later grant.
    pub fn has_released(&self, key: &PoolKey) -> bool {
        let is_revoked = self.told(key).is_some_and(|told| told.state == BlockState::Revoked);
        !self.write_in_flight && self.fenced && (is_revoked || !self.is_doubted) && self.is_over(key)
    }

    /// Whether the grant of the node's entry is over, whatever a write in flight makes of the entry.
    pub fn is_over(&self, key: &PoolKey) -> bool {
        let Some(told) = self.told(key).filter(|told| self.is_there(told)) else { return false };
        let is_unused = self.report(key).is_some_and(|report| report.used == 0);
        told.state == BlockState::Revoked || (is_unused && self.has_ended(told))
    }

    /// Whether the agent reports that the grant of this entry has ended.
    pub fn has_ended(&self, entry: &NodeBlock) -> bool {
        self.report_about(entry).is_some_and(|report| report.ended)
    }

    /// Whether no address of this entry is in use at this version of the object. Before the agent allocates one, it makes a report that
    /// this version does not have. So a write that names this version revokes the grant.
    ///
    /// Either the agent reports that the grant is idle. Or it was never used: the block was free when the grant was made, no report has the
    /// grant, and none has an address of the pool in use. An agent that reports no grants may allocate from any entry.
    pub fn is_unused(&self, entry: &NodeBlock) -> bool {
        let is_idle = self.report_about(entry).is_some_and(|report| report.idle && report.used == 0);
        !self.is_doubted && self.is_there(entry) && (is_idle || self.was_never_used(entry))
    }

    /// Whether a Releasing entry has a grant that is idle or was never used.
    pub fn has_unused_releasing(&self) -> bool {
        self.blocks.iter().any(|block| block.state == BlockState::Releasing && self.is_unused(block))
    }

    fn was_never_used(&self, entry: &NodeBlock) -> bool {
        let is_empty = |report: &BlockUse| report.used == 0 && report.grant.is_some();
        let is_reported = self.report_about(entry).is_some() || self.reported.contains(&entry.grant);
        let others = self.report(&key_of(entry));
        entry.never_used && !is_reported && others.is_none_or(is_empty)
    }

    /// Whether the object has the grant of this entry, or no entry of its pool. An entry with another grant may be from a write of this
    /// leader whose answer was lost.
    fn is_there(&self, entry: &NodeBlock) -> bool {
        self.block(&key_of(entry)).is_none_or(|block| block.grant == entry.grant)
    }

    /// Takes over from the record `before` which grants were reported, and since when entries are Releasing.
    pub fn follow(&mut self, before: Option<&Self>) {
        let earlier = before.filter(|before| before.uid == self.uid);
        let entries =
            earlier.into_iter().flat_map(|before| before.blocks.iter().chain(before.intended_blocks.iter().flatten()));
        let grants: BTreeSet<&String> = entries.chain(&self.blocks).map(|block| &block.grant).collect();
        let reports = earlier.into_iter().flat_map(|before| &before.reports).chain(&self.reports);
        let reported = earlier.into_iter().flat_map(|before| &before.reported);
        let all = reports.filter_map(|report| report.grant.as_ref()).chain(reported);
        self.reported = all.filter(|grant| grants.contains(grant)).cloned().collect();
        let blocks = earlier.map_or(&[][..], |before| &before.blocks);
        let since = earlier.map(|before| before.releasing.clone()).unwrap_or_default();
        self.note_releasing(blocks, &since);
    }

    /// The object has `blocks` at `generation` in this version, by a write of this leader.
    pub fn written(
        &mut self,
        resource_version: String,
        generation: i64,
        blocks: Vec<NodeBlock>,
        finalizers: Vec<String>,
    ) {
        let before = std::mem::replace(&mut self.blocks, blocks);
        let since = std::mem::take(&mut self.releasing);
        self.fenced |= self.resource_version != resource_version;
        (self.resource_version, self.generation, self.finalizers) = (resource_version, generation, finalizers);
        (self.write_in_flight, self.intended_blocks) = (false, None);
        self.note_releasing(&before, &since);
    }

    /// Records since when entries are Releasing. `before` are the blocks of an earlier version, and `since` are the generations recorded
    /// for them.
    fn note_releasing(&mut self, before: &[NodeBlock], since: &BTreeMap<PoolKey, i64>) {
        let is_same = |one: &NodeBlock, other: &NodeBlock| {
            (key_of(one), &one.grant, one.state) == (key_of(other), &other.grant, other.state)
        };
        let releasing = self.blocks.iter().filter(|block| block.state == BlockState::Releasing);
        let noted = releasing.map(|block| {
            let key = key_of(block);
            let known = before.iter().any(|before| is_same(before, block)).then(|| since.get(&key).copied()).flatten();
            (key, known.unwrap_or(self.generation))
        });
        self.releasing = noted.collect();
    }

    /// The report about the grant of this entry.
    fn report_about(&self, entry: &NodeBlock) -> Option<&BlockUse> {
        let report = self.report(&key_of(entry))?;
        (!entry.grant.is_empty() && report.grant.as_ref() == Some(&entry.grant)).then_some(report)
    }

    /// Whether the agent has reported since the entry of the pool became Releasing. A write whose outcome is unknown may have made another
    /// entry meanwhile.
    pub fn has_stopped(&self, key: &PoolKey) -> bool {
        let (Some(report), Some(block)) = (self.report(key), self.block(key)) else { return false };
        let counted_this = (&report.start_ip, &report.end_ip) == (&block.start_ip, &block.end_ip);
        let has_heard = self.releasing.get(key).is_some_and(|since| self.observed_generation >= Some(*since));
        !self.is_doubted && has_heard && counted_this
    }

    /// Number of addresses of the pool in use by the last report, however old that is.
    pub fn counted(&self, key: &PoolKey) -> Usage {
        let report = self.report(key).and_then(|report| u64::try_from(report.used).ok());
        report.map_or(Usage::Unknown, Usage::Held)
    }

    /// The claim by the entry of a pool: the second record, in case the status of the pool is lost. `None` if the grant is over, because
    /// the status has released the block or is about to. Also `None` if the grant has ended and all addresses in use are outside the block:
    /// the node has them by a later grant, which a restore undid.
    pub fn claim(&self, node: &str, key: &PoolKey) -> Option<Claim> {
        let entry = self.block(key).filter(|_| !self.is_over(key))?;
        let claim = claim_of(node, entry)?;
        let report = self.report(key).filter(|_| self.has_ended(entry));
        let is_inside = |report: &BlockUse| held_ranges(report).iter().any(|held| held.overlaps(&claim.range));
        report.is_none_or(is_inside).then_some(claim)
    }
}

/// The pool of an entry.
pub fn key_of(block: &NodeBlock) -> PoolKey {
    PoolKey::new(block.pool_type.into(), block.name.as_str())
}

/// The claim by an entry: which block its node has.
pub fn claim_of(node: &str, block: &NodeBlock) -> Option<Claim> {
    match block.pool_type {
        PoolType::IPPool => Claim::from_ip_range(node, &block.start_ip, &block.end_ip, ClaimSource::IpamNode),
        PoolType::CIDRPool => Claim::from_prefix(node, &block.subnet, block.gateway.as_deref(), ClaimSource::IpamNode),
    }
}

/// Whether an entry is about exactly this block, and allows its node no address outside the block.
pub fn is_about(block: &NodeBlock, range: &AddrRange) -> bool {
    let told = range_of(&block.start_ip, &block.end_ip);
    told.is_some_and(|told| range.contains_range(&told))
        && claim_of("-", block).is_some_and(|claim| claim.range == *range)
}

/// Whether a report lists exactly the addresses in use. Otherwise it lists ranges that include free addresses, or lists none.
pub fn is_exact(report: &BlockUse) -> bool {
    let told: u128 = held_ranges(report).iter().map(AddrRange::size).fold(0, u128::saturating_add);
    !report.held.is_empty() && u128::try_from(report.used) == Ok(told)
}

/// The addresses that may be in use by a report: the listed ranges, or the whole counted range if none are listed.
pub fn held_ranges(report: &BlockUse) -> Vec<AddrRange> {
    if report.held.is_empty() {
        return range_of(&report.start_ip, &report.end_ip).into_iter().collect();
    }
    report.held.iter().filter_map(|run| range_of(&run.start_ip, &run.end_ip)).collect()
}

/// Makes these addresses, and no others, unavailable in an entry: pods on other nodes use them, or may, or they are a gateway. They are not
/// exclusions, because a pod can request an excluded address.
pub fn set_unavailable(block: &mut NodeBlock, unavailable_addresses: &[AddrRange]) {
    let Some(own) = range_of(&block.start_ip, &block.end_ip) else { return };
    let inside = unavailable_addresses.iter().filter_map(|held| held.intersection(&own));
    let all: RangeSet = inside.map(|range| range.numbers()).collect();
    block.held_elsewhere = ranges(&own, &all);
}

/// The gateway in an entry.
pub fn gateway_of(block: &NodeBlock) -> Option<IpAddr> {
    block.gateway.as_deref().and_then(|text| parse_addr(text).ok())
}

/// The addresses that are unavailable in an entry: other nodes may use them, or they are a gateway.
pub fn unavailable(block: &NodeBlock) -> impl Iterator<Item = AddrRange> {
    block.held_elsewhere.iter().filter_map(|run| range_of(&run.start_ip, &run.end_ip))
}

/// The range between two addresses of an object.
fn range_of(first: &str, last: &str) -> Option<AddrRange> {
    AddrRange::new(first.parse().ok()?, last.parse().ok()?)
}

fn read_or_default<T: serde::de::DeserializeOwned + Default>(text: Option<&RawValue>) -> T {
    text.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

fn is_of(key: &PoolKey, pool_type: PoolType, name: &str) -> bool {
    pool_type == pool_type_of(key.kind) && name == key.name
}

/// The kind as an IPAMNode spells it.
pub fn pool_type_of(kind: PoolKind) -> PoolType {
    match kind {
        PoolKind::IpPool => PoolType::IPPool,
        PoolKind::CidrPool => PoolType::CIDRPool,
    }
}

/// The entry for `assignment` in the IPAMNode of its node, whose current record is `known`. It has the grant of the known entry, or none.
/// [`grant`] makes a new grant where one is needed.
///
/// * Active: as the spec of the pool has it.
/// * Releasing: the known entry, in state Releasing.
/// * Stale: the known entry, unchanged, because its spec is gone. It stays Active while addresses are in use, so that the last valid spec
///   is served. It becomes Releasing when the agent reports none in use, to find out whether that stays so.
///
/// A block that is to be released is revoked at once if it was never used or its grant is idle.
///
/// The known entry is the one in the object, or the intended one if another writer has changed the object under this leader. If there is
/// none, the current spec describes the block as well as it can; a block that is being released gets no gateway then. With an invalid spec
/// (`None`), the entry has only the addresses and the
/// gateway of the block.
pub fn entry(key: &PoolKey, pool: Option<&Pool>, assignment: &Assignment, known: Option<&IpamNodeRecord>) -> NodeBlock {
    let fresh = || pool.map_or_else(|| bare(key, assignment), |pool| block_of(&pool.node_pool(&assignment.block)));
    let told = known.and_then(|known| same_entry(key, assignment, known));
    let same_grant = |mut entry: NodeBlock| {
        if let Some(told) = told {
            (entry.grant, entry.never_used) = (told.grant.clone(), told.never_used);
        }
        entry
    };
    let kept = |otherwise: NodeBlock| told.cloned().unwrap_or(otherwise);
    match assignment.phase {
        BlockPhase::Active => same_grant(fresh()),
        BlockPhase::Releasing => {
            // A pod may have the gateway of the spec. The entry gets it when the node is served again and no pod may have the address.
            let without_gateway = NodeBlock { gateway: None, ..fresh() };
            NodeBlock { state: losing(BlockState::Releasing, told, known), ..kept(without_gateway) }
        }
        BlockPhase::Stale => NodeBlock { state: losing(outdated_state(told, known), told, known), ..kept(fresh()) },
    }
}

/// The entry of the IPAMNode, if it is about exactly this block.
fn same_entry<'a>(key: &PoolKey, assignment: &Assignment, known: &'a IpamNodeRecord) -> Option<&'a NodeBlock> {
    known.told(key).filter(|told| is_about(told, &assignment.block.range))
}

/// The state of an entry whose block the node loses: `state`, unless the grant is revoked or can be. It can be revoked if it was never used
/// or is idle, or if it is over and the object is not fenced.
fn losing(state: BlockState, told: Option<&NodeBlock>, known: Option<&IpamNodeRecord>) -> BlockState {
    let is_revoked = |told: &NodeBlock| told.state == BlockState::Revoked;
    let is_unused = |told: &NodeBlock| known.is_some_and(|known| known.is_unused(told));
    // This write makes a new version, so that no write of a former leader succeeds after it.
    let is_over = |told: &NodeBlock| {
        known.is_some_and(|known| !known.fenced && !known.is_doubted && known.is_over(&key_of(told)))
    };
    let ends = told.is_some_and(|told| is_revoked(told) || is_unused(told) || is_over(told));
    if ends { BlockState::Revoked } else { state }
}

fn outdated_state(told: Option<&NodeBlock>, known: Option<&IpamNodeRecord>) -> BlockState {
    let report = told.zip(known).and_then(|(told, known)| known.report_about(told));
    if report.is_some_and(|report| report.used == 0) { BlockState::Releasing } else { BlockState::Active }
}

/// Makes a new grant for an entry that needs one. `make` returns its ID for the earliest second that the ID may have. `sent` is this entry
/// in a write whose outcome is unknown: its grant is used again. `is_unused`: the operator has just assigned the block, which was free,
/// or the node runs no agent.
///
/// An entry needs a grant if it has none, or if it is Active with a grant that has ended or was revoked. A revoked entry needs another
/// grant if the object has not changed since this leader first listed it, so that this write changes it.
pub fn grant(
    entry: &mut NodeBlock,
    known: Option<&IpamNodeRecord>,
    sent: Option<&NodeBlock>,
    is_unused: bool,
    make: impl FnOnce(u32) -> GrantId,
) {
    let own = entry.grant.parse::<GrantId>().ok();
    let told = known.and_then(|known| known.told(&key_of(entry))).filter(|told| told.grant == entry.grant);
    let is_over = told.zip(known).is_some_and(|(told, known)| match entry.state {
        BlockState::Active => told.state == BlockState::Revoked || known.has_ended(told),
        BlockState::Releasing => false,
        BlockState::Revoked => told.state == BlockState::Revoked && !known.fenced,
    });
    if own.is_some() && !is_over {
        return;
    }
    if let Some(sent) = sent.filter(|sent| sent.grant != entry.grant) {
        (entry.grant, entry.never_used) = (sent.grant.clone(), sent.never_used);
        return;
    }
    // No address is in use by a grant that has ended without use, or that was revoked because none was in use.
    let was_unused = told.zip(known).is_some_and(|(told, known)| {
        let is_empty = !known.is_doubted && known.has_ended(told) && known.used(&key_of(told)) == 0;
        is_over && (is_empty || (told.state == BlockState::Revoked && known.is_unused(told)))
    });
    entry.never_used = was_unused || (is_unused && !is_over);
    entry.grant = make(own.map_or(0, |own| own.second().saturating_add(1))).to_string();
}

fn bare(key: &PoolKey, assignment: &Assignment) -> NodeBlock {
    let Block { range, gateway } = assignment.block;
    NodeBlock {
        name: key.name.clone(),
        pool_type: pool_type_of(key.kind),
        start_ip: range.first().to_string(),
        end_ip: range.last().to_string(),
        subnet: Cidr::enclosing(&range).to_string(),
        gateway: gateway.map(|gateway| gateway.to_string()),
        ..NodeBlock::default()
    }
}

/// The entry of a block that agrees with the pool. It is Active, as is each block of `Pool::node_pool`.
fn block_of(from: &NodePool) -> NodeBlock {
    NodeBlock {
        name: from.key.name.clone(),
        pool_type: pool_type_of(from.key.kind),
        grant: String::new(),
        never_used: false,
        state: BlockState::Active,
        start_ip: from.range.first().to_string(),
        end_ip: from.range.last().to_string(),
        subnet: from.subnet.to_string(),
        gateway: from.gateway.as_ref().map(IpAddr::to_string),
        exclusions: ranges(&from.range, &from.exclusions),
        held_elsewhere: ranges(&from.range, &from.elsewhere),
        routes: from.routes.iter().map(|route| RouteDestination { dst: route.to_string() }).collect(),
        default_gateway: from.default_gateway.then_some(true),
    }
}

fn ranges(within: &AddrRange, set: &RangeSet) -> Vec<AddressRange> {
    let family = within.family();
    set.runs()
        .map(|(first, last)| AddressRange {
            start_ip: family.addr(first).to_string(),
            end_ip: family.addr(last).to_string(),
        })
        .collect()
}

/// Puts entries in the order that the API promises: by poolType, then by name.
pub fn sort(blocks: &mut [NodeBlock]) {
    blocks.sort_by(|a, b| (type_word(a), &a.name).cmp(&(type_word(b), &b.name)));
}

fn type_word(block: &NodeBlock) -> &'static str {
    match block.pool_type {
        PoolType::CIDRPool => "CIDRPool",
        PoolType::IPPool => "IPPool",
    }
}
