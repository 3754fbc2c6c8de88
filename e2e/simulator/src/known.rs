//! Faults of the product that are known and not yet removed. Each has a committed history that shows it
//! (`e2e/simulator/known-faults/NAME.json`), and a test plays them: a history that breaks no law any more must go from the list.
//!
//! A fresh seed that shows a known fault is counted and does not fail a run. A fault is recognised by the law that breaks and by
//! what the shortest history cannot do without, so narrowly that another fault is not taken for it.

use std::collections::BTreeSet;

use super::Failure;
use super::action::Action;
use super::catalogue::manifest;

/// A fault that is known.
#[derive(Debug)]
pub struct Fault {
    /// The name of its file.
    pub name: &'static str,
    /// The laws that it breaks; empty for any.
    laws: &'static [&'static str],
    /// Whether a shortest history is one of this fault.
    shows: fn(&Failure) -> bool,
}

/// The laws that a double use of an address breaks.
const TWICE: &[&str] = &["one-holder", "held-is-nobody-elses"];

/// Every law.
const ANY: &[&str] = &[];

/// All of them.
pub const FAULTS: [Fault; 9] = [
    Fault {
        name: "ipam-node-deleted-after-a-restore",
        laws: TWICE,
        shows: |failure| {
            let restored = failure.history.iter().position(|action| *action == Action::Restore);
            restored.is_some_and(|at| failure.history[at..].iter().copied().any(deletes_ipam_node))
        },
    },
    Fault {
        name: "pool-and-ipam-node-deleted-by-hand",
        laws: TWICE,
        shows: |failure| {
            let is_of = |wanted: fn(Action) -> bool| failure.history.iter().copied().any(wanted);
            is_of(|action| matches!(action, Action::Strip { .. }))
                && is_of(|action| matches!(action, Action::Remove { .. }))
                && is_of(deletes_ipam_node)
                && !is_of(|action| matches!(action, Action::Restore | Action::Undefine { .. }))
        },
    },
    Fault {
        name: "node-leaves-before-it-is-asked",
        laws: &["selected-node-has-a-block"],
        shows: |failure| {
            let lost = failure.history.iter().position(|action| matches!(action, Action::Undefine { .. }));
            let leaves = |action: &Action| matches!(action, Action::NodeLeaves { .. });
            lost.is_some_and(|at| failure.history[at..].iter().any(leaves))
        },
    },
    Fault { name: "held-address-becomes-the-gateway", laws: TWICE, shows: is_of_a_gateway },
    Fault {
        name: "watch-lags-after-a-restore",
        laws: TWICE,
        shows: |failure| failure.history.contains(&Action::RestoreLive { breaks: false }),
    },
    Fault {
        name: "block-not-released-after-a-restore",
        laws: &["unused-block-is-released"],
        shows: is_of_a_live_restore,
    },
    Fault { name: "block-comes-back-in-two-restores", laws: TWICE, shows: is_of_two_restores },
    Fault { name: "overlapping-pools-after-a-restore", laws: TWICE, shows: is_of_two_pools },
    // As wide as this, for nothing of a restore under a running leader is promised today: an admin has to stop the operator first. It is
    // the last, so that what is known in more detail has its own name.
    Fault { name: "restore-under-a-running-leader", laws: ANY, shows: is_of_a_live_restore },
];

/// The known fault that the shortest history shows.
pub fn class(shortest: &Failure) -> Option<&'static Fault> {
    FAULTS
        .iter()
        .find(|fault| (fault.laws.is_empty() || fault.laws.contains(&shortest.law.law)) && (fault.shows)(shortest))
}

fn deletes_ipam_node(action: Action) -> bool {
    matches!(action, Action::RemoveIpamNode { .. })
}

/// A backup is put in place under a running leader.
fn is_of_a_live_restore(failure: &Failure) -> bool {
    failure.history.iter().any(|action| matches!(action, Action::RestoreLive { .. }))
}

/// A backup that was made after a restore is restored, too.
fn is_of_two_restores(failure: &Failure) -> bool {
    let is_restore = |action: &Action| matches!(action, Action::Restore | Action::RestoreLive { .. });
    let Some(first) = failure.history.iter().position(is_restore) else { return false };
    let Some(backup) = failure.history[first..].iter().position(|action| *action == Action::Backup) else {
        return false;
    };
    failure.history[first + backup..].iter().any(is_restore)
}

/// The definitions are deleted, and the address is the gateway of a spec that is applied.
fn is_of_a_gateway(failure: &Failure) -> bool {
    let addr = failure.law.what.split(' ').next().unwrap_or_default();
    let is_gateway = |action: &Action| match action {
        Action::Apply { pool, spec } => manifest(*pool, *spec).2["spec"]["gateway"] == addr,
        _ => false,
    };
    failure.history.iter().any(|action| matches!(action, Action::Undefine { .. }))
        && failure.history.iter().any(is_gateway)
}

/// Two pools are applied, and the store is put back.
fn is_of_two_pools(failure: &Failure) -> bool {
    let pool = |action: &Action| match action {
        Action::Apply { pool, .. } => Some(manifest(*pool, 0).1),
        _ => None,
    };
    let pools: BTreeSet<&str> = failure.history.iter().filter_map(pool).collect();
    pools.len() > 1 && failure.history.contains(&Action::Restore)
}
