//! What people are told about a pool: conditions that stand, and events when something turns.

use ipam_core::PoolKey;
use ipam_core::plan::{Plan, Standing, Usage};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::conditions::{DEGRADED, EXHAUSTED, READY, RELEASING, Verdict, bounded_list};
use super::releases::{Cause, Releases};
use super::{NoPlace, Note, Observation, exhausted_reason, room};
use crate::index::Leaving;
use crate::pool::{FORCE_RELEASE, PoolRecord};

/// How a pool stands, whatever its spec says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outlook {
    /// It serves nodes.
    Serving,
    /// It is being deleted.
    Deleting,
    /// This older pool has addresses of it.
    Overlap(PoolKey),
}

/// What is wrong beyond what the plan tells, in words.
pub(super) struct Troubles<'a> {
    /// Addresses that two nodes hold.
    pub(super) contradictions: &'a [String],
    /// Nodes that may hold an address which is to be a gateway.
    pub(super) gateways: &'a [String],
    /// Nodes that hold addresses and have no block of them.
    pub(super) without_block: &'a [String],
}

/// An event for each block that comes free is told only of the last few.
const LAST_FEW: usize = 8;

pub(super) fn verdicts(
    seen: &Observation<'_>,
    releases: &Releases<'_>,
    outlook: &Outlook,
    plan: &Plan,
    troubles: &Troubles<'_>,
) -> Vec<Verdict> {
    let named = |standing| {
        let of_it = plan.assignments.iter().filter(move |a| a.standing == standing);
        of_it.map(|a| described(releases, &a.node)).collect::<Vec<_>>()
    };
    let (departed, outdated) = (named(Standing::Departed), named(Standing::Outdated));
    let degraded = match outdated.len() {
        _ if !troubles.contradictions.is_empty() => {
            Verdict::new(DEGRADED, true, "Contradiction", bounded_list(troubles.contradictions, "; "))
        }
        0 => Verdict::new(DEGRADED, false, "AsSpecified", String::new()),
        _ => Verdict::new(DEGRADED, true, "OutdatedBlocks", outdated_text(&outdated)),
    };
    let ready = ready(seen, outlook, plan, &departed, &outdated, troubles.gateways);
    vec![ready, exhausted(seen, outlook, plan), degraded, releasing(seen, &departed, troubles.without_block)]
}

fn releasing(seen: &Observation<'_>, departed: &[String], without_block: &[String]) -> Verdict {
    let blocks = (!departed.is_empty()).then(|| releasing_text(seen, departed));
    let addresses = (!without_block.is_empty()).then(|| without_block_text(seen, without_block));
    let reason = match (&blocks, &addresses) {
        (Some(_), _) => "BlocksInUse",
        (None, Some(_)) => "HeldWithoutBlock",
        (None, None) => return Verdict::new(RELEASING, false, "NothingToRelease", String::new()),
    };
    let texts: Vec<String> = blocks.into_iter().chain(addresses).collect();
    Verdict::new(RELEASING, true, reason, texts.join("; "))
}

/// What tells that a message speaks of such addresses.
const WITHOUT_BLOCK: &str = "addresses are in use without a block";

fn without_block_text(seen: &Observation<'_>, nodes: &[String]) -> String {
    let PoolRecord { key, namespace, .. } = seen.pool;
    format!(
        "{WITHOUT_BLOCK} of this pool on {}; other nodes do not get them; they become free when the pods there are deleted; if the \
         machine is lost for good, delete the Node, then (an address that is still in use would be assigned twice): kubectl annotate \
         -n {namespace} {} {} {FORCE_RELEASE}=NODE",
        counted_list(nodes),
        key.kind.kind().to_lowercase(),
        key.name
    )
}

fn ready(
    seen: &Observation<'_>,
    outlook: &Outlook,
    plan: &Plan,
    departed: &[String],
    outdated: &[String],
    gateways: &[String],
) -> Verdict {
    match outlook {
        Outlook::Deleting => {
            let way_out = seen.no_place.filter(|_| !departed.is_empty()).map(|why| way_out(seen, why));
            let waits = format!("being deleted; waits for the blocks of {}", counted_list(departed));
            let text = waits + &way_out.unwrap_or_default();
            Verdict::new(READY, false, "Deleting", text)
        }
        Outlook::Overlap(older) => {
            let text = format!(
                "{older}, which is older, has addresses of this pool: nobody is served until it is gone, this one has other \
                 addresses, or both carry the annotation {}: \"true\"",
                ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION
            );
            Verdict::new(READY, false, "Overlap", text)
        }
        Outlook::Serving if !outdated.is_empty() || !gateways.is_empty() => {
            let blocks = (!outdated.is_empty()).then(|| outdated_text(outdated));
            let gateways = (!gateways.is_empty()).then(|| gateways_text(gateways));
            let texts: Vec<String> = blocks.into_iter().chain(gateways).collect();
            Verdict::new(READY, false, "EditDeferred", texts.join("; "))
        }
        Outlook::Serving => {
            let matches_none = plan.unserved.is_empty() && plan.assignments.len() == departed.len();
            let text = if matches_none { "no node matches nodeSelector" } else { "" };
            Verdict::new(READY, true, "Valid", text.to_owned())
        }
    }
}

/// What ends the waiting for agents that have nothing left to report in.
fn way_out(seen: &Observation<'_>, why: NoPlace) -> String {
    format!(
        "; their agents can report no more, for IPAMNodes cannot be made: {why}; to end the waiting, whatever pods hold: \
         ipam-controller {} --ippools-namespace={}",
        crate::release_pools::NAME,
        seen.pool.namespace
    )
}

fn outdated_text(outdated: &[String]) -> String {
    format!(
        "nodes that are served by an earlier spec until the addresses that they hold are given back: {}",
        counted_list(outdated)
    )
}

fn gateways_text(gateways: &[String]) -> String {
    format!(
        "the gateway stays what it was until the address that is to be it is known to be held by nobody on {}",
        counted_list(gateways)
    )
}

fn releasing_text(seen: &Observation<'_>, departed: &[String]) -> String {
    let PoolRecord { key, namespace, .. } = seen.pool;
    let by_time = match seen.grace {
        Some(grace) => format!(", or when its Node has been gone for {}", span(grace)),
        None => String::new(),
    };
    format!(
        "blocks are being taken back from {}; each is free once its agent reports it empty{by_time}; to let go of one at \
         once, though pods may use it: kubectl annotate -n {namespace} {} {} {FORCE_RELEASE}=NODE",
        counted_list(departed),
        key.kind.kind().to_lowercase(),
        key.name
    )
}

/// A span of time, to the unit that says it exactly.
fn span(time: std::time::Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

fn exhausted(seen: &Observation<'_>, outlook: &Outlook, plan: &Plan) -> Verdict {
    if *outlook != Outlook::Serving {
        return Verdict::new(EXHAUSTED, false, "NotServing", String::new());
    }
    match plan.unserved.len() {
        0 => Verdict::new(EXHAUSTED, false, "AllNodesServed", String::new()),
        count => {
            let text = format!("selected nodes without a block: {count} ({})", bounded_list(&plan.unserved, ", "));
            if !seen.beside.unreported.is_empty() {
                return Verdict::new(EXHAUSTED, true, AWAITING_REPORTS, format!("{text}. {}", awaiting_text(seen)));
            }
            if room::is_full(seen.pool, plan) {
                return Verdict::new(EXHAUSTED, true, STATUS_FULL, format!("{text}. {}", full_text()));
            }
            Verdict::new(EXHAUSTED, true, exhausted_reason(seen.pool.key.kind), text)
        }
    }
}

/// The reason while the status has no room for another block.
const STATUS_FULL: &str = "StatusFull";

fn full_text() -> String {
    format!(
        "Blocks are free, but the status of the pool has reached the size that etcd can store ({} kB). Split the nodes among several \
         pools by nodeSelector.",
        room::MOST_BYTES / 1000
    )
}

/// The reason while new blocks wait for reports.
const AWAITING_REPORTS: &str = "AwaitingAgentReports";

/// Which reports new blocks wait for, and what ends the wait.
fn awaiting_text(seen: &Observation<'_>) -> String {
    let PoolRecord { key, namespace, .. } = seen.pool;
    let limit = match (seen.beside.limit, seen.grace) {
        (Some(limit), _) => format!(", for at most {}", span(limit)),
        (None, Some(grace)) => format!(", or until a Node has been gone for {}", span(grace)),
        (None, None) => String::new(),
    };
    format!(
        "Records of blocks are missing or may be from an earlier time, so new blocks wait for the agent reports of {}{limit}. Check \
         that these agents run. To stop waiting for a node (addresses in use there may be assigned twice): kubectl annotate -n \
         {namespace} {} {} {FORCE_RELEASE}=NODE",
        counted_list(&seen.beside.unreported),
        key.kind.kind().to_lowercase(),
        key.name
    )
}

fn counted_list(nodes: &[String]) -> String {
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
    let why = match releases.leaving(node) {
        _ if !releases.exists(node) => ", Node gone",
        Some(Leaving::Cordoned) => ", cordoned",
        Some(Leaving::Terminating) => ", Node terminating",
        None => "",
    };
    format!("{node} ({}{why})", in_words(releases.counted(node)))
}

fn in_words(counted: Usage) -> String {
    match counted {
        Usage::Unknown => "not reported".to_owned(),
        Usage::Empty => "0 held".to_owned(),
        Usage::Held(count) => format!("{count} held"),
    }
}

/// What has turned, compared with what the status says.
pub(super) fn notes(
    seen: &Observation<'_>,
    releases: &Releases<'_>,
    outlook: &Outlook,
    plan: &Plan,
    verdicts: &[Verdict],
) -> Vec<Note> {
    let before = &seen.pool.status.summary.conditions;
    let mut notes = Vec::new();
    for verdict in verdicts {
        let old = before.iter().find(|condition| condition.type_ == verdict.kind);
        if is_news(seen, outlook, plan, verdict, old) {
            notes.push(Note::new(word(verdict), &verdict.message));
        }
    }
    notes.extend(releases.lost(&plan.assignments).into_iter().map(|(release, cause, counted)| {
        let (reason, why) = match cause {
            Cause::Forced => ("ForcedRelease", "an admin said so"),
            Cause::Expired => ("GraceExpired", "its Node is gone for long"),
        };
        let (node, range, held) = (&release.claim.node, &release.claim.range, in_words(counted));
        Note::new(reason, &format!("node {node} loses {range} because {why}; by its last word: {held}"))
    }));
    notes
}

/// Whether an event is to tell of a condition that was `old` before.
fn is_news(seen: &Observation<'_>, outlook: &Outlook, plan: &Plan, verdict: &Verdict, old: Option<&Condition>) -> bool {
    let turned = old.is_none_or(|old| old.reason != verdict.reason);
    let reworded = old.is_none_or(|old| old.message != verdict.message);
    let newly_says =
        |words: &str| verdict.message.contains(words) && old.is_none_or(|old| !old.message.contains(words));
    match (verdict.kind, verdict.reason) {
        // One agent after the other is heard.
        (EXHAUSTED, AWAITING_REPORTS) => turned,
        (EXHAUSTED, _) => verdict.holds && reworded,
        (READY, "Overlap") | (DEGRADED, "Contradiction") => turned || reworded,
        (READY, "EditDeferred") => turned || is_of_another_spec(seen, old),
        (READY, "Deleting") => {
            let is_stuck = newly_says(crate::release_pools::NAME);
            !plan.assignments.is_empty() && (turned || is_stuck || fell_to_the_last_few(seen, plan))
        }
        (RELEASING, _) => {
            let is_new = has_newly_departed(seen, plan) || newly_says(WITHOUT_BLOCK);
            verdict.holds && *outlook == Outlook::Serving && is_new
        }
        _ => false,
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict.reason {
        "Deleting" => "PoolInUse",
        "BlocksInUse" => "BlocksReleasing",
        reason => reason,
    }
}

fn is_of_another_spec(seen: &Observation<'_>, old: Option<&Condition>) -> bool {
    old.is_some_and(|old| old.observed_generation != Some(seen.pool.generation))
}

fn has_newly_departed(seen: &Observation<'_>, plan: &Plan) -> bool {
    let recorded: std::collections::HashSet<&str> =
        seen.pool.status.releasing.iter().map(|release| release.claim.node.as_str()).collect();
    let mut departed = plan.assignments.iter().filter(|assignment| assignment.standing == Standing::Departed);
    departed.any(|assignment| !recorded.contains(assignment.node.as_str()))
}

fn fell_to_the_last_few(seen: &Observation<'_>, plan: &Plan) -> bool {
    let left = plan.assignments.len();
    left <= LAST_FEW && left < seen.pool.status.releasing.len()
}
