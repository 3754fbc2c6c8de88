//! Faults of the product that are known and not yet removed. Each has a committed history that shows it
//! (`e2e/simulator/known-faults/NAME.json`), and a test plays them: a history that breaks no law any more must go from the list.
//!
//! A fresh seed that shows a known fault is counted, and fails a run only where one fault shows too often ([`MOST`]). A fault is
//! recognised by the law that breaks and by what the shortest history cannot do without: actions in their order, and the node, pool or
//! address that the law names. No fault explains a panic.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_core::{AddrRange, Cidr};

use super::Failure;
use super::action::{Action, Fate};
use super::admin::pool_at;
use super::catalogue::manifest;
use super::layout::Layout;
use super::records::POOL_KINDS;
use super::world::node_name;

/// A fault that is known.
#[derive(Debug)]
pub struct Fault {
    /// The name of its file.
    pub name: &'static str,
    /// The laws that it breaks.
    laws: &'static [&'static str],
    /// Whether a shortest history is one of this fault.
    shows: fn(&Failure) -> bool,
}

/// The most histories in ten thousand that may show one known fault. More of them are likely to be another fault. The most frequent one
/// shows in about one of ten thousand.
pub const MOST: u64 = 5;

/// So many may show it in a run of any length.
pub const FEW: u64 = 5;

/// The laws that a double use of an address breaks.
const TWICE: &[&str] = &["one-holder", "held-is-nobody-elses"];

/// The laws that records which are gone break.
const UNRECORDED: &[&str] = &["one-holder", "held-is-nobody-elses", "held-is-recorded"];

/// The laws that are broken where nobody asks an agent what its pods have, or asks it without end.
const UNASKED: &[&str] = &["one-holder", "held-is-nobody-elses", "held-is-recorded", "selected-node-has-a-block"];

/// All of them.
pub const FAULTS: [Fault; 22] = [
    Fault { name: "ipam-node-deleted-after-a-restore", laws: UNRECORDED, shows: is_of_a_report_lost_after_a_restore },
    Fault { name: "pool-and-ipam-node-deleted-by-hand", laws: UNRECORDED, shows: is_of_a_pool_removed_by_hand },
    Fault { name: "node-leaves-before-it-is-asked", laws: UNASKED, shows: is_of_a_node_that_left },
    Fault { name: "held-address-becomes-the-gateway", laws: TWICE, shows: is_of_a_gateway },
    Fault { name: "watch-lags-after-a-restore", laws: UNRECORDED, shows: is_of_a_lagging_watch },
    Fault {
        name: "block-not-released-after-a-restore",
        laws: &["unused-block-is-released", "assignment-ends"],
        shows: is_of_a_live_restore,
    },
    Fault { name: "block-comes-back-in-two-restores", laws: TWICE, shows: is_of_two_restores },
    Fault { name: "overlapping-pools-after-a-restore", laws: TWICE, shows: is_of_overlapping_pools },
    Fault {
        name: "node-not-served-after-a-restore",
        laws: &["selected-node-has-a-block"],
        shows: is_of_a_live_restore,
    },
    Fault {
        name: "creation-unanswered-beside-an-invalid-pool",
        laws: &["unused-block-is-released"],
        shows: is_of_an_unanswered_creation,
    },
    Fault {
        name: "pool-not-woken-after-a-wiped-status",
        laws: &["selected-node-has-a-block"],
        shows: is_of_a_pool_that_is_not_woken,
    },
    Fault {
        name: "report-kept-of-a-node-that-is-gone",
        laws: &["conditions-agree", "held-elsewhere-is-true", "selected-node-has-a-block"],
        shows: is_of_a_report_that_is_kept,
    },
    Fault {
        name: "node-without-an-agent-is-awaited",
        laws: &["selected-node-has-a-block"],
        shows: is_of_an_awaited_node,
    },
    Fault {
        name: "creation-arrives-after-all-records-are-lost",
        laws: UNRECORDED,
        shows: is_of_a_creation_that_arrives_late,
    },
    Fault {
        name: "last-block-not-seen-before-all-records-are-lost",
        laws: UNRECORDED,
        shows: is_of_a_block_that_is_not_seen,
    },
    Fault {
        name: "pools-that-stop-sharing-write-without-end",
        laws: &["all-comes-to-rest"],
        shows: is_of_pools_that_stop_sharing,
    },
    Fault {
        name: "definitions-deleted-after-a-restore",
        laws: UNRECORDED,
        shows: is_of_definitions_deleted_after_a_restore,
    },
    Fault {
        name: "creation-arrives-after-a-restore",
        laws: &["assigned-is-recorded"],
        shows: is_of_a_creation_after_a_restore,
    },
    Fault { name: "release-reported-before-a-restore", laws: UNRECORDED, shows: is_of_an_early_release },
    Fault { name: "plan-from-before-a-wiped-status", laws: &["assigned-is-recorded"], shows: is_of_a_plan_from_before },
    Fault { name: "pool-stays-after-a-restore", laws: &["deleted-pool-goes"], shows: is_of_a_live_restore },
    Fault { name: "restore-under-a-running-leader", laws: &["one-leader"], shows: is_of_a_live_restore },
];

/// The known fault that the shortest history shows.
pub fn class(shortest: &Failure) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.laws.contains(&shortest.law.law) && (fault.shows)(shortest))
}

/// Whether what broke the law names this node or pool, as a word.
fn names(failure: &Failure, name: &str) -> bool {
    failure.law.what.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == name)
}

/// The address that what broke the law begins with.
fn address(failure: &Failure) -> Option<IpAddr> {
    failure.law.what.split(' ').next()?.parse().ok()
}

/// What happens after the first action of this kind; nothing if there is none.
fn after(history: &[Action], is_it: impl Fn(Action) -> bool) -> &[Action] {
    history.iter().position(|action| is_it(*action)).map_or(&[], |at| &history[at + 1..])
}

fn has(history: &[Action], is_it: impl Fn(Action) -> bool) -> bool {
    history.iter().copied().any(is_it)
}

const fn is_restore(action: Action) -> bool {
    matches!(action, Action::Restore | Action::RestoreLive { .. })
}

const fn is_live_restore(action: Action) -> bool {
    matches!(action, Action::RestoreLive { .. })
}

const fn is_undefine(action: Action) -> bool {
    matches!(action, Action::Undefine { .. })
}

/// The answer to a call does not tell the caller whether the call was done.
fn is_unanswered(action: Action) -> bool {
    match action {
        Action::WorkAgainst { fate, .. } | Action::Call { fate, .. } => fate != Fate::Done,
        _ => false,
    }
}

/// The IPAMNode of a node that is named is deleted by hand.
fn deletes_ipam_node(failure: &Failure, action: Action) -> bool {
    matches!(action, Action::RemoveIpamNode { node } if names(failure, &node_name(node)))
}

/// A backup is restored, and then an IPAMNode deleted, alone or with the definitions.
fn is_of_a_report_lost_after_a_restore(failure: &Failure) -> bool {
    let later = after(&failure.history, |action| action == Action::Restore);
    has(later, |action| deletes_ipam_node(failure, action) || is_undefine(action))
}

/// A pool that is named, or has the address, goes without its finalizer, and an IPAMNode is deleted.
fn is_of_a_pool_removed_by_hand(failure: &Failure) -> bool {
    let history = &failure.history;
    let pool_of = |action: Action| match action {
        Action::Strip { pool } => Some(pool_at(pool)),
        _ => None,
    };
    let goes = |pool| has(history, |action| matches!(action, Action::Remove { pool: it } if pool_at(it) == pool));
    let mut stripped = history.iter().copied().filter_map(pool_of);
    stripped.any(|pool| (names(failure, pool.1) || pools_with_the_address(failure).contains(pool.1)) && goes(pool))
        && has(history, |action| deletes_ipam_node(failure, action))
        && !has(history, |action| is_restore(action) || matches!(action, Action::Undefine { .. }))
}

/// A Node leaves that the operator waits for, or whose IPAMNode is lost: with all others, alone, or by a restore after which an admin
/// wipes the pool's status, too.
fn is_of_a_node_that_left(failure: &Failure) -> bool {
    let is_of_one = UNRECORDED.contains(&failure.law.law);
    let leaves = |node: Option<u8>| {
        let is_it = |it| node.is_none_or(|node| node == it) && (!is_of_one || names(failure, &node_name(it)));
        has(&failure.history, |action| matches!(action, Action::NodeLeaves { node: it } if is_it(it)))
    };
    let is_named = |action| matches!(action, Action::NodeLeaves { node } if names(failure, &node_name(node)));
    let is_awaited = names(failure, "AgentsSilent") && has(&failure.history, is_named);
    is_awaited
        || has(&failure.history, |action| match action {
            Action::Undefine { .. } => leaves(None),
            Action::RemoveIpamNode { node } => leaves(Some(node)),
            Action::WipeStatus { pool } if names(failure, pool_at(pool).1) => {
                failure.history.contains(&Action::Restore) && leaves(None)
            }
            _ => false,
        })
}

/// A node's agent reports addresses outside its blocks, after a force-release or a restore, and its Node leaves.
fn is_of_a_report_that_is_kept(failure: &Failure) -> bool {
    let is_cause =
        |action| is_restore(action) || matches!(action, Action::ForceRelease { .. } | Action::ForceAll { .. });
    // A law about another node's entry does not name it.
    let is_of_another = matches!(failure.law.law, "held-elsewhere-is-true" | "selected-node-has-a-block");
    let is_it = |node| is_of_another || names(failure, &node_name(node));
    let later = after(&failure.history, is_cause);
    has(later, |action| matches!(action, Action::NodeLeaves { node } if is_it(node)))
}

/// Records are lost, and the address is the gateway of a spec that is applied.
fn is_of_a_gateway(failure: &Failure) -> bool {
    let is_gateway = |action: Action| match action {
        Action::Apply { pool, spec } => {
            let gateway = manifest(pool, spec).2["spec"]["gateway"].as_str().and_then(|text| text.parse().ok());
            gateway.is_some() && gateway == address(failure)
        }
        _ => false,
    };
    let is_loss =
        |action: Action| matches!(action, Action::Undefine { .. } | Action::Restore | Action::WipeStatus { .. });
    has(&failure.history, is_loss) && has(&failure.history, is_gateway)
}

/// The operator waits for the agent of a node that has none.
fn is_of_an_awaited_node(failure: &Failure) -> bool {
    let is_named = |action: Action| matches!(action, Action::WithoutAgent { node } if names(failure, &node_name(node)));
    names(failure, "AgentsSilent") && has(&failure.history, is_named)
}

/// A backup is put in place under a running leader, whose watches go on.
fn is_of_a_lagging_watch(failure: &Failure) -> bool {
    failure.history.contains(&Action::RestoreLive { breaks: false })
}

/// A backup is put in place under a running leader.
fn is_of_a_live_restore(failure: &Failure) -> bool {
    has(&failure.history, is_live_restore)
}

/// A backup is put in place under a running leader, and then the definitions are deleted.
fn is_of_definitions_deleted_after_a_restore(failure: &Failure) -> bool {
    has(after(&failure.history, is_live_restore), is_undefine)
}

/// A backup is put in place under a running leader, and then a call from before arrives.
fn is_of_a_creation_after_a_restore(failure: &Failure) -> bool {
    let arrives = |action| matches!(action, Action::Orphan { .. } | Action::Call { .. });
    has(after(&failure.history, is_live_restore), arrives)
}

/// A node loses its block before the backup that is put in place under a running leader.
fn is_of_an_early_release(failure: &Failure) -> bool {
    let releases = |action| {
        let of_node = matches!(action, Action::Cordon { .. } | Action::Relabel { .. } | Action::NodeTerminates { .. });
        of_node || matches!(action, Action::NodeLeaves { .. } | Action::Apply { .. } | Action::Remove { .. })
    };
    let pools = failure.history.iter().filter(|action| matches!(action, Action::Apply { .. })).count();
    // The first application of a pool releases nothing.
    let is_release = |action| releases(action) && (!matches!(action, Action::Apply { .. }) || pools > 1);
    let later = after(after(&failure.history, is_release), |action| action == Action::Backup);
    has(later, is_live_restore)
}

/// A call has no answer that tells whether it was done, and a status that is named is wiped.
fn is_of_a_plan_from_before(failure: &Failure) -> bool {
    let is_wipe = |action| matches!(action, Action::WipeStatus { pool } if names(failure, pool_at(pool).1));
    has(after(&failure.history, is_unanswered), is_wipe)
}

/// A backup that was made after a restore is restored, too.
fn is_of_two_restores(failure: &Failure) -> bool {
    let second = after(after(&failure.history, is_restore), |action| action == Action::Backup);
    has(second, is_restore)
}

/// Two pools that overlap are applied, the address is in both, and a backup is restored.
fn is_of_overlapping_pools(failure: &Failure) -> bool {
    pools_with_the_address(failure).len() > 1 && failure.history.contains(&Action::Restore)
}

/// A status is wiped, and a node waits for a block of another pool.
fn is_of_a_pool_that_is_not_woken(failure: &Failure) -> bool {
    let is_full = names(failure, "NoFreeRanges") || names(failure, "NoFreePrefixes");
    is_full
        && has(
            &failure.history,
            |action| matches!(action, Action::WipeStatus { pool } if !names(failure, pool_at(pool).1)),
        )
}

/// A call has no answer that tells whether it was done, a Node leaves, and a pool's spec is invalid.
fn is_of_an_unanswered_creation(failure: &Failure) -> bool {
    let is_invalid = |action: Action| match action {
        Action::Apply { pool, spec } => {
            let (plural, _, object) = manifest(pool, spec);
            let mut kinds = POOL_KINDS.into_iter().filter(|(of, _)| *of == plural);
            kinds.any(|(_, kind)| Layout::read(kind, &object).is_some_and(|layout| layout.is_frozen()))
        }
        _ => false,
    };
    let leaves = |action: Action| matches!(action, Action::NodeLeaves { node } if names(failure, &node_name(node)));
    has(&failure.history, is_unanswered) && has(&failure.history, leaves) && has(&failure.history, is_invalid)
}

/// All records are lost while a call is under way, and it arrives, or the leader dies.
fn is_of_a_creation_that_arrives_late(failure: &Failure) -> bool {
    is_lost_beside_a_call(failure) && is_something_done_after_a_loss(failure)
}

/// All records are lost before the leader's watches show what it wrote last.
fn is_of_a_block_that_is_not_seen(failure: &Failure) -> bool {
    is_lost_beside_a_call(failure) && !is_something_done_after_a_loss(failure)
}

/// The definitions are deleted, and a replica that has decided or called has not looked at its watches since.
fn is_lost_beside_a_call(failure: &Failure) -> bool {
    let history = &failure.history;
    let Some(loss) = history.iter().position(|action| matches!(action, Action::Undefine { .. })) else { return false };
    let calls = |action: &Action| match action {
        Action::Decide { replica } | Action::Call { replica, .. } => Some(*replica),
        _ => None,
    };
    let looks = |action: &Action, of: u8| match action {
        Action::Hear { replica, .. }
        | Action::HearLast { replica, .. }
        | Action::Listen { replica }
        | Action::Work { replica }
        | Action::WorkAgainst { replica, .. }
        | Action::Round { replica } => *replica == of,
        _ => false,
    };
    let before = &history[..loss];
    let last = before.iter().enumerate().filter_map(|(place, action)| Some((place, calls(action)?))).next_back();
    last.is_some_and(|(place, replica)| !before[place..].iter().any(|action| looks(action, replica)))
        && !has(history, is_restore)
}

/// After the definitions' deletion a replica decides, calls or ends.
fn is_something_done_after_a_loss(failure: &Failure) -> bool {
    let later = after(&failure.history, is_undefine);
    has(later, |action| {
        let works = matches!(action, Action::Decide { .. } | Action::Work { .. } | Action::WorkAgainst { .. });
        let calls = matches!(action, Action::Call { .. } | Action::Orphan { .. });
        works || calls || matches!(action, Action::Kill { .. } | Action::Stop { .. })
    })
}

/// Pods have addresses of two pools that overlap, and then one may not share them any more.
fn is_of_pools_that_stop_sharing(failure: &Failure) -> bool {
    let networks = networks(failure);
    let overlaps = |one: usize| {
        networks[one + 1..].iter().any(|(name, range)| {
            let (first, of) = networks[one];
            *name != first && of.overlaps(range)
        })
    };
    let with_pods = after(&failure.history, |action| action == Action::Crowd);
    has(with_pods, |action| matches!(action, Action::Share { .. })) && (0..networks.len()).any(overlaps)
}

/// The names of the applied pools whose network has the address.
fn pools_with_the_address(failure: &Failure) -> BTreeSet<&'static str> {
    let Some(addr) = address(failure) else { return BTreeSet::new() };
    networks(failure).into_iter().filter(|(_, range)| range.contains(addr)).map(|(name, _)| name).collect()
}

/// The names and networks of the pools that are applied.
fn networks(failure: &Failure) -> Vec<(&'static str, AddrRange)> {
    let of_pool = |action: Action| match action {
        Action::Apply { pool, spec } => {
            let (_, name, object) = manifest(pool, spec);
            let network = object["spec"]["subnet"].as_str().or(object["spec"]["cidr"].as_str());
            let (network, _) = network.and_then(|text| Cidr::parse(text).ok())?;
            Some((name, network.range()))
        }
        _ => None,
    };
    failure.history.iter().copied().filter_map(of_pool).collect()
}
