//! The conditions of a pool, and the events when one changes. Each message has the state, the cause and the next step.

use std::collections::BTreeSet;

use ipam_core::plan::{Assignment, BlockPhase, Plan, Usage};
use ipam_core::{PoolKey, PoolKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::condition_merge::{
    ALLOCATION_PAUSED, ConditionUpdate, DEGRADED, EXHAUSTED, READY, RELEASING, bounded_list, clipped, with_steps,
};
use super::releases::{Cause, Releases};
use super::{CreateBlocked, DecisionInput, PoolEvent, exhausted_reason, status_size};
use crate::cluster_cache::{CORDON, Leaving};
use crate::pool::{FORCE_RELEASE, PoolRecord, RELEASE_POOLS};

/// Whether a pool serves nodes, apart from errors in its spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PoolPhase {
    /// It serves nodes.
    Serving {
        /// Whether its status has no room for all blocks.
        is_full: bool,
        /// Nodes that get a block once their names are gone from the annotation force-release.
        withheld: BTreeSet<String>,
    },
    /// It is being deleted.
    Deleting,
    /// This older pool has addresses of it.
    Overlap(PoolKey),
}

/// Problems that are not in the plan, as text.
pub(super) struct Problems<'a> {
    /// Addresses that two nodes use.
    pub(super) duplicates: &'a [String],
    /// Nodes that may use an address which is to be a gateway.
    pub(super) gateways: &'a [String],
    /// Nodes that use addresses and have no block of them.
    pub(super) without_block: &'a [String],
}

pub(super) fn condition_updates(
    seen: &DecisionInput<'_>,
    releases: &Releases<'_>,
    outlook: &PoolPhase,
    plan: &Plan,
    troubles: &Problems<'_>,
) -> Vec<ConditionUpdate> {
    let named = |phase| {
        let of_it = plan.assignments.iter().filter(move |a| a.phase == phase);
        of_it.map(|a| described(releases, &a.node)).collect::<Vec<_>>()
    };
    let (departed, outdated) = (named(BlockPhase::Releasing), named(BlockPhase::Stale));
    // The condition Ready of a deleted pool shows it.
    let refused = seen.no_place.filter(|_| !seen.pool.life.deleting).map(|why| (why, without_ipam_node(seen, plan)));
    let refused = refused.filter(|(_, nodes)| !nodes.is_empty());
    let is_refused = |node: &String| refused.as_ref().is_some_and(|(_, nodes)| nodes.contains(node));
    let with_error = |given: &Assignment| Some((given.node.clone(), (seen.write_error)(&given.node)?));
    let unwritten = plan.assignments.iter().filter_map(with_error).filter(|(node, _)| !is_refused(node));
    let unwritten: Vec<(String, String)> = unwritten.collect();
    let duplicates = troubles.duplicates;
    let degraded = [
        (!duplicates.is_empty()).then(|| (DUPLICATE, duplicate_text(duplicates))),
        refused.as_ref().map(|(why, nodes)| (REFUSED, refused_text(*why, nodes))),
        (!unwritten.is_empty()).then(|| (NOT_WRITTEN, not_written_text(&unwritten))),
        (!outdated.is_empty()).then(|| ("StaleBlocks", with_steps(&[stale_text(&outdated)], &[stale_step()]))),
    ];
    let degraded = ConditionUpdate::of(DEGRADED, degraded.into_iter().flatten().collect(), "AsSpecified", &[]);
    let ready = ready(seen, outlook, plan, &departed, &outdated, troubles.gateways);
    let served = plan.assignments.iter().filter(|given| given.phase == BlockPhase::Active);
    let forced = served.filter(|given| seen.pool.life.force_releases(&given.node));
    let forced: Vec<String> = forced.map(|given| described(releases, &given.node)).collect();
    let releasing = releasing(seen, &departed, troubles.without_block, &forced);
    vec![ready, exhausted(seen, outlook, plan), degraded, releasing, allocation_paused(seen, outlook)]
}

/// The text in messages about IPAMNodes that cannot be written.
const UNWRITTEN: &str = "cannot be written";
/// The text in messages about IPAMNodes that cannot be created.
const ACCEPTS_NONE: &str = "accepts no IPAMNodes";

/// The reason while IPAMNodes cannot be written.
const NOT_WRITTEN: &str = "NodesNotUpdated";

fn not_written_text(unwritten: &[(String, String)]) -> String {
    let nodes: Vec<String> = unwritten.iter().map(|(node, _)| node.clone()).collect();
    let error = unwritten.last().map_or("", |(_, error)| error);
    format!(
        "The IPAMNodes of {} {UNWRITTEN}, so their agents may not know the last change of their blocks. The operator tries again. Last error: {}",
        counted_list(&nodes),
        clipped(error, ERROR_LENGTH)
    )
}

impl PoolEvent {
    /// The event about a pool of which calls fail, which no condition can show. The series keeps its first note, so the last error is
    /// not in it.
    pub(crate) fn not_written() -> Self {
        let text = "Calls of the operator about this pool fail, so nodes may get no block of it, and its status may be old. The operator tries \
                    again. Its log has the error, such as a missing right, an admission policy, or no answer.";
        Self::warning("PoolNotUpdated", text)
    }
}

/// The reason while IPAMNodes cannot be created.
const REFUSED: &str = "IPAMNodesRefused";

fn refused_text(why: CreateBlocked, nodes: &[String]) -> String {
    format!(
        "The API server {ACCEPTS_NONE}: {why}. So the agents of {} do not know their blocks of this pool. Install the \
         CustomResourceDefinitions, or create the namespace.",
        counted_list(nodes)
    )
}

/// The nodes with a block that have no IPAMNode.
fn without_ipam_node(seen: &DecisionInput<'_>, plan: &Plan) -> Vec<String> {
    let nodes = plan.assignments.iter().map(|given| &given.node);
    nodes.filter(|node| seen.ipam_nodes.get(node).is_none()).cloned().collect()
}

/// Most bytes of an error in a message.
const ERROR_LENGTH: usize = 300;

/// The reason while two nodes use one address.
const DUPLICATE: &str = "DuplicateAddress";

fn duplicate_text(duplicates: &[String]) -> String {
    format!(
        "Addresses in use on two nodes: {}. Check the pods, and delete one of the two. If the machine of one is lost, delete its Node.",
        bounded_list(duplicates, "; ")
    )
}

fn releasing(
    seen: &DecisionInput<'_>,
    departed: &[String],
    without_block: &[String],
    forced: &[String],
) -> ConditionUpdate {
    let blocks = (!departed.is_empty()).then(|| ("BlocksInUse", releasing_text(seen, departed)));
    let addresses = (!without_block.is_empty()).then(|| ("InUseWithoutBlock", without_block_text(seen, without_block)));
    let pending = (!forced.is_empty()).then(|| ("ForcedReleasePending", pending_text(forced)));
    let release = format!("release the block or the addresses of a node at once {RISK}: {}", force_release(seen));
    let release = blocks.as_ref().or(addresses.as_ref()).map(|_| release);
    let take_back = format!(
        "make a node leave: kubectl annotate node NODE {CORDON}=true; to take the request back: {}-",
        annotate(seen)
    );
    let take_back = pending.as_ref().map(|_| take_back);
    let problems: Vec<(&str, String)> = [blocks, addresses, pending].into_iter().flatten().collect();
    let steps: Vec<String> = take_back.into_iter().chain(release).collect();
    ConditionUpdate::of(RELEASING, problems, "NothingToRelease", &steps)
}

fn pending_text(nodes: &[String]) -> String {
    format!(
        "A force-release is pending for {}. A block is free as soon as its node is deleted, terminating, cordoned or not selected, or an edit \
         or the deletion of the pool takes it {RISK}.",
        counted_list(nodes)
    )
}

/// The text in messages about addresses in use without a block.
const WITHOUT_BLOCK: &str = "use addresses without a block";

fn without_block_text(seen: &DecisionInput<'_>, nodes: &[String]) -> String {
    format!(
        "Pods {WITHOUT_BLOCK} of this pool on {}. No other node gets these addresses. They are free when the pods are deleted{}.",
        counted_list(nodes),
        by_time(seen)
    )
}

/// The risk of a force-release, for messages.
const RISK: &str = "(addresses in use may be assigned twice)";

/// The command that force-releases the block of a node.
fn force_release(seen: &DecisionInput<'_>) -> String {
    format!("{}=NODE", annotate(seen))
}

/// The command about the annotation force-release, without its value.
fn annotate(seen: &DecisionInput<'_>) -> String {
    let PoolRecord { key, namespace, .. } = seen.pool;
    format!("kubectl annotate -n {namespace} {} {} {FORCE_RELEASE}", key.kind.kind().to_lowercase(), key.name)
}

fn ready(
    seen: &DecisionInput<'_>,
    outlook: &PoolPhase,
    plan: &Plan,
    departed: &[String],
    outdated: &[String],
    gateways: &[String],
) -> ConditionUpdate {
    match outlook {
        PoolPhase::Deleting => ConditionUpdate::new(READY, false, "Deleting", deleting_text(seen, plan, departed)),
        PoolPhase::Overlap(older) => {
            let text = format!(
                "{older} is older and has addresses of this pool, so this pool assigns no blocks. Delete {older}, or edit one of the two. If \
                 their L2 networks are separate, annotate both with {}=true {RISK}.",
                ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION
            );
            ConditionUpdate::new(READY, false, "Overlap", text)
        }
        PoolPhase::Serving { .. } if !outdated.is_empty() || !gateways.is_empty() => {
            let blocks = (!outdated.is_empty()).then(|| (stale_text(outdated), stale_step()));
            let gateways = (!gateways.is_empty()).then(|| (gateways_text(gateways), gateways_step(seen)));
            let (texts, steps): (Vec<_>, Vec<_>) = blocks.into_iter().chain(gateways).unzip();
            ConditionUpdate::new(READY, false, "EditDeferred", with_steps(&texts, &steps))
        }
        PoolPhase::Serving { withheld, .. } => {
            let left_out = left_out(seen);
            let waits = !plan.unserved.is_empty() || !withheld.is_empty() || left_out.is_some();
            let matches_none = !waits && plan.assignments.len() == departed.len();
            let text = if matches_none { "nodeSelector matches no node." } else { "" };
            ConditionUpdate::new(READY, true, "Valid", left_out.unwrap_or_else(|| text.to_owned()))
        }
    }
}

/// The selected nodes that get no block, because an admin has cordoned them or they are being deleted.
fn left_out(seen: &DecisionInput<'_>) -> Option<String> {
    let pool = seen.pool.spec.as_ref().ok().filter(|_| !seen.leaving.is_empty())?;
    let left_out = seen.nodes.iter().filter(|node| pool.selects(node.name, node.labels));
    let left_out = left_out.filter_map(|node| Some((node.name, *seen.leaving.get(node.name)?)));
    let left_out: Vec<(&str, Leaving)> = left_out.collect();
    let is_cordoned = left_out.iter().any(|(_, why)| *why == Leaving::Cordoned);
    let nodes = left_out.iter().map(|(node, why)| format!("{node} ({})", why_leaving(*why)));
    let nodes: Vec<String> = nodes.collect();
    let texts = (!nodes.is_empty()).then(|| format!("No block is assigned to {}.", counted_list(&nodes)));
    let steps = is_cordoned.then(|| format!("end a cordon: kubectl annotate node NODE {CORDON}-"));
    texts.map(|text| with_steps(&[text], &Vec::from_iter(steps)))
}

/// What ends the wait of a deleted pool.
const DELETE_PODS: &str = "Delete the pods that use it. If a machine is lost, delete its Node.";

fn deleting_text(seen: &DecisionInput<'_>, plan: &Plan, departed: &[String]) -> String {
    if departed.is_empty() {
        return "The pool is being deleted. No node has a block of it.".to_owned();
    }
    let waits = format!("The pool is being deleted and waits for the blocks of {}.", counted_list(departed));
    match seen.no_place.filter(|_| !without_ipam_node(seen, plan).is_empty()) {
        Some(why) => format!(
            "{waits} Their agents cannot report, because the API server accepts no IPAMNodes: {why}. To stop waiting {RISK}: \
             ipam-controller {} --ippools-namespace={}",
            RELEASE_POOLS, seen.pool.namespace
        ),
        None => {
            format!("{waits} {DELETE_PODS} To release a block at once {RISK}: {}", force_release(seen))
        }
    }
}

fn stale_text(outdated: &[String]) -> String {
    format!(
        "Blocks of an earlier spec are in use on {}. Each node gets its new block when the agent reports no address of the old one in use. \
         Until then new pods there use the old one.",
        counted_list(outdated)
    )
}

fn stale_step() -> String {
    format!(
        "free a block, delete the pods there while the node is cordoned, which stops all pools on it: kubectl annotate node NODE \
         {CORDON}=true; afterwards: kubectl annotate node NODE {CORDON}-"
    )
}

fn gateways_text(gateways: &[String]) -> String {
    format!(
        "Gateway change pending: pods may use the new gateway address on {}. Nodes keep the previous gateway until the agents there report \
         the address as free.",
        counted_list(gateways)
    )
}

fn gateways_step(seen: &DecisionInput<'_>) -> String {
    format!("stop waiting for an agent {RISK}: kubectl annotate node NODE {CORDON}=true; {}", force_release(seen))
}

fn releasing_text(seen: &DecisionInput<'_>, departed: &[String]) -> String {
    format!(
        "Blocks are being released by {}. A block is free when the agent reports no address in use{}.",
        counted_list(departed),
        by_time(seen)
    )
}

/// When the grace releases what a node has.
fn by_time(seen: &DecisionInput<'_>) -> String {
    let after = |grace| format!(", or at the earliest {} after the Node was deleted", span(grace));
    seen.grace.map(after).unwrap_or_default()
}

/// A duration, in the largest unit that shows it exactly.
fn span(time: std::time::Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

fn exhausted(seen: &DecisionInput<'_>, outlook: &PoolPhase, plan: &Plan) -> ConditionUpdate {
    let PoolPhase::Serving { is_full, .. } = outlook else {
        return ConditionUpdate::new(EXHAUSTED, false, "NotServing", String::new());
    };
    let key = &seen.pool.key;
    let without_block = match plan.unserved.len() {
        0 => return ConditionUpdate::new(EXHAUSTED, false, "AllNodesServed", String::new()),
        1 => format!("1 node ({}) has no block", plan.unserved[0]),
        count => format!("{count} nodes ({}) have no block", bounded_list(&plan.unserved, ", ")),
    };
    if !seen.other_pools.unreported.is_empty() {
        let text =
            format!("{without_block}, because new blocks wait for agent reports. See the condition AllocationPaused.");
        return ConditionUpdate::new(EXHAUSTED, true, AWAITING_REPORTS, text);
    }
    if *is_full {
        let text = format!(
            "{without_block}, because the status of the pool has reached its limit of {} kB (etcd stores 1.5 MiB). Split the nodes among \
             several pools by nodeSelector.",
            status_size::MOST_BYTES / 1000
        );
        return ConditionUpdate::new(EXHAUSTED, true, "StatusFull", text);
    }
    let releasing = plan.assignments.iter().any(|given| given.phase == BlockPhase::Releasing);
    let wait = if releasing { ", or wait for the blocks that are being released" } else { "" };
    let strays = seen.occupancy.outside_blocks(key).next().is_some();
    let strays =
        if strays { " Pods use addresses outside the blocks of their nodes, which no other node can get." } else { "" };
    let holders = static_holders(seen, plan);
    let fixed = (!holders.is_empty()).then(|| {
        let holders = bounded_list(&holders, "; ");
        format!("static prefixes are in use: {holders}. Drain the nodes that have them{wait}.")
    });
    let network = if key.kind == PoolKind::IpPool { "subnet" } else { "cidr" };
    let others = (holders.len() < plan.unserved.len())
        .then(|| format!("no block is free. Enlarge spec.{network}, or select fewer nodes{wait}.{strays}"));
    let causes: Vec<String> = fixed.into_iter().chain(others).collect();
    let text = format!("{without_block}, because {}", causes.join(" For other nodes "));
    ConditionUpdate::new(EXHAUSTED, true, exhausted_reason(key.kind), text)
}

/// For nodes without their static blocks, what has addresses of these.
fn static_holders(seen: &DecisionInput<'_>, plan: &Plan) -> Vec<String> {
    let Ok(pool) = &seen.pool.spec else { return Vec::new() };
    let holder = |node: &String| {
        let range = pool.static_block(node)?.range;
        let own = plan.assignments.iter().find(|given| given.block.range.overlaps(&range));
        let other = || seen.other_pools.unavailable.iter().find(|fact| fact.range.overlaps(&range));
        Some(match (own, other()) {
            (Some(given), _) => format!("{node} waits for node {}", given.node),
            (None, Some(fact)) => format!("{node} waits for node {} of {}", fact.node, fact.pool),
            (None, None) => format!("{node} waits for {range}"),
        })
    };
    plan.unserved.iter().filter_map(holder).collect()
}

/// The reason while new blocks wait for reports.
const AWAITING_REPORTS: &str = "AwaitingAgentReports";

/// The reason once new blocks no longer wait for reports, though some are missing.
const REPORTS_MISSING: &str = "ReportsMissing";

fn late_text(late: &[String]) -> String {
    format!(
        "New blocks are assigned, though the agents of {} have not answered the request for a report. Other nodes can get addresses that \
         pods there use outside their recorded blocks. Start these agents, or stop the pods.",
        counted_list(late)
    )
}

/// Whether new blocks wait for reports, for which, and what ends the wait.
fn allocation_paused(seen: &DecisionInput<'_>, outlook: &PoolPhase) -> ConditionUpdate {
    let update = |holds, reason, text| ConditionUpdate::new(ALLOCATION_PAUSED, holds, reason, text);
    if !matches!(outlook, PoolPhase::Serving { .. }) {
        return update(false, "NotServing", String::new());
    }
    if seen.other_pools.unreported.is_empty() {
        return match &seen.other_pools.late {
            late if late.is_empty() => update(false, "RecordsComplete", String::new()),
            late => update(false, REPORTS_MISSING, late_text(late)),
        };
    }
    let limit = match (seen.other_pools.limit, seen.grace) {
        (Some(limit), _) => format!(", for at most {}", span(limit)),
        (None, Some(grace)) => format!(", or until a Node has been gone for {}", span(grace)),
        (None, None) => String::new(),
    };
    let text = format!(
        "Allocation records are missing or may be from an earlier time. New blocks wait for the agent reports of {}{limit}. To stop waiting \
         for a node {RISK}: {}",
        counted_list(&seen.other_pools.unreported),
        force_release(seen)
    );
    update(true, AWAITING_REPORTS, text)
}

pub(super) fn counted_list(nodes: &[String]) -> String {
    match nodes.len() {
        0 => "no node".to_owned(),
        1 => format!("node {}", bounded_list(nodes, ", ")),
        count => format!("{count} nodes: {}", bounded_list(nodes, ", ")),
    }
}

/// Each node with what is known of its block.
pub(super) fn all_described(releases: &Releases<'_>, nodes: &[String]) -> Vec<String> {
    nodes.iter().map(|node| described(releases, node)).collect()
}

/// A node with what is known of its block.
fn described(releases: &Releases<'_>, node: &str) -> String {
    let why = if releases.exists(node) { releases.leaving(node).map(why_leaving) } else { Some("Node gone") };
    let doubt = releases.is_doubted(node).then_some("report requested");
    let known: Vec<String> = [why, doubt].into_iter().flatten().map(|text| format!(", {text}")).collect();
    format!("{node} ({}{})", in_words(releases.counted(node)), known.concat())
}

/// Why no pool serves a node, in a list of nodes.
const fn why_leaving(why: Leaving) -> &'static str {
    match why {
        Leaving::Cordoned => "cordoned",
        Leaving::Terminating => "Node terminating",
    }
}

fn in_words(counted: Usage) -> String {
    match counted {
        Usage::Unknown => "not reported".to_owned(),
        Usage::Empty => "0 in use".to_owned(),
        Usage::Held(count) => format!("{count} in use"),
    }
}

/// The events about conditions that changed, and about blocks that are released without a report.
pub(super) fn notes(
    seen: &DecisionInput<'_>,
    releases: &Releases<'_>,
    outlook: &PoolPhase,
    plan: &Plan,
    condition_updates: &[ConditionUpdate],
) -> Vec<PoolEvent> {
    let before = &seen.pool.status.summary.conditions;
    let mut notes = Vec::new();
    for update in condition_updates {
        let old = before.iter().find(|condition| condition.type_ == update.kind);
        // Also a condition that does not hold can be news, such as a pool that is not Ready.
        let itself = (update.reason, update.message.clone());
        let problems = if update.holds { &update.problems } else { std::slice::from_ref(&itself) };
        let news = problems.iter().filter(|(reason, text)| is_news(seen, outlook, plan, (update, reason, text), old));
        notes.extend(news.map(|(reason, text)| event_of(update.kind, reason, text, plan)));
    }
    notes.extend(releases.lost(&plan.assignments).into_iter().map(|(release, cause, counted)| {
        let (reason, why) = match cause {
            Cause::Forced => ("ForcedRelease", "the annotation force-release names the node".to_owned()),
            Cause::Expired => {
                let grace = seen.grace.map(span).unwrap_or_default();
                ("GraceExpired", format!("its Node has been gone for {grace} (--released-block-grace)"))
            }
        };
        let last = match counted {
            Usage::Unknown => "The agent has not reported it.".to_owned(),
            Usage::Empty | Usage::Held(_) => format!("Last report: {}.", in_words(counted)),
        };
        let (node, range) = (&release.claim.node, &release.claim.range);
        let text = format!("Block {range} of node {node} is released, because {why}. {last}");
        PoolEvent { node: Some(node.clone()), ..PoolEvent::warning(reason, &text) }
    }));
    notes
}

/// The event about a condition that changed. Events of one reason about one pool and node are a series, which keeps its first note. So a
/// note that changes is about a node, or says where the current state is.
fn event_of(kind: &str, reason: &'static str, text: &str, plan: &Plan) -> PoolEvent {
    match (kind, reason) {
        (RELEASING, "BlocksInUse") => PoolEvent::normal(
            "BlocksReleasing",
            "Nodes lose their blocks. The condition Releasing names them, and what ends it.",
        ),
        (READY, "Deleting") if text.contains(RELEASE_POOLS) => PoolEvent::warning(REFUSED, text),
        (READY, "Deleting") => PoolEvent::normal(
            "PoolInUse",
            "The pool is being deleted and waits for the blocks of nodes. The condition Ready names them, and what ends it.",
        ),
        (EXHAUSTED, reason) => PoolEvent { node: plan.unserved.last().cloned(), ..PoolEvent::warning(reason, text) },
        (_, reason) => PoolEvent::warning(reason, text),
    }
}

/// Whether an event is published about a problem of a condition that was `old` before.
fn is_news(
    seen: &DecisionInput<'_>,
    outlook: &PoolPhase,
    plan: &Plan,
    (update, reason, text): (&ConditionUpdate, &'static str, &str),
    old: Option<&Condition>,
) -> bool {
    let turned = old.is_none_or(|old| old.reason != reason);
    let reworded = old.is_none_or(|old| !old.message.contains(text));
    let newly_says = |words: &str| text.contains(words) && old.is_none_or(|old| !old.message.contains(words));
    match (update.kind, reason) {
        // The condition AllocationPaused has an event of the same reason.
        (EXHAUSTED, AWAITING_REPORTS) => false,
        // The message changes with the report of each agent.
        (ALLOCATION_PAUSED, _) => turned && (update.holds || reason == REPORTS_MISSING),
        (DEGRADED, NOT_WRITTEN) => newly_says(UNWRITTEN),
        (DEGRADED, REFUSED) => newly_says(ACCEPTS_NONE),
        (EXHAUSTED, _) => update.holds && reworded,
        (READY, "Overlap") | (DEGRADED, DUPLICATE) => turned || reworded,
        (READY, "EditDeferred") => turned || is_of_another_spec(seen, old),
        (READY, "Deleting") => !plan.assignments.is_empty() && (turned || newly_says(RELEASE_POOLS)),
        (RELEASING, "BlocksInUse") => matches!(outlook, PoolPhase::Serving { .. }) && has_newly_departed(seen, plan),
        (RELEASING, _) => matches!(outlook, PoolPhase::Serving { .. }) && newly_says(WITHOUT_BLOCK),
        _ => false,
    }
}

fn is_of_another_spec(seen: &DecisionInput<'_>, old: Option<&Condition>) -> bool {
    old.is_some_and(|old| old.observed_generation != Some(seen.pool.generation))
}

fn has_newly_departed(seen: &DecisionInput<'_>, plan: &Plan) -> bool {
    let recorded: std::collections::HashSet<&str> =
        seen.pool.status.releasing.iter().map(|release| release.claim.node.as_str()).collect();
    let mut departed = plan.assignments.iter().filter(|assignment| assignment.phase == BlockPhase::Releasing);
    departed.any(|assignment| !recorded.contains(assignment.node.as_str()))
}
