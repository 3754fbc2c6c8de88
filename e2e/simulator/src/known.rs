//! Known faults of the product that are not removed yet. Each has a committed history that shows it
//! (`e2e/simulator/known-faults/NAME.json`), and a test plays them. If a history breaks no law any more, its fault must
//! be removed from the list.
//!
//! A fresh seed that shows a known fault is counted. It fails a run only if one fault shows too often ([`Fault::most`]). A fault
//! is recognised by the law that breaks and by the necessary parts of the shortest history. These are actions in their
//! order, and the node, pool or address that the law names. If a recogniser does not check a part, its comment has the
//! reason. No fault explains a panic.
//!
//! The test `a_near_miss_is_not_the_known_fault` changes a history of each fault: its cause is missing, too late, or of
//! other objects.

mod loss;
mod order;
mod other;
mod restore;

use super::Failure;
use loss::{is_of_a_node_that_left_before_a_leader, is_of_a_pool_removed_by_hand};
pub(crate) use order::address;
use other::{
    is_of_a_call_between_two_edits, is_of_a_call_of_a_former_leader, is_of_a_last_record_deleted, is_of_a_last_release,
};
use restore::{
    is_of_a_backup_that_seems_current, is_of_a_backup_without_the_lease, is_of_a_deleted_report,
    is_of_a_grant_never_used, is_of_a_lost_store, is_of_an_agent_that_is_down, is_of_an_agent_that_was_down,
};

/// A fault that is known.
#[derive(Debug)]
pub struct Fault {
    /// The name of its file.
    pub name: &'static str,
    /// Histories in a million that show it, by the last long run of 200 steps, rounded up to 5, 10, 30 or 60.
    per_million: u64,
    /// The laws that it breaks.
    laws: &'static [&'static str],
    /// Whether a shortest history is one of this fault.
    shows: fn(&Failure) -> bool,
}

impl Fault {
    /// Maximum number of histories with so many steps together that may show this fault. More of them are likely to be another fault.
    pub const fn most(&self, steps: u64) -> u64 {
        at_most(self.per_million, steps)
    }
}

/// Maximum number of histories with so many steps together: twice as many as in the last long run, and two.
pub const fn at_most(per_million: u64, steps: u64) -> u64 {
    2 + 2 * per_million * steps / (1_000_000 * STEPS)
}

/// Maximum number of histories with so many steps together that may show a known fault, of all faults together.
pub fn most_together(steps: u64) -> u64 {
    at_most(FAULTS.iter().map(|fault| fault.per_million).sum(), steps)
}

/// Steps of each history of a long run.
const STEPS: u64 = 200;

/// The laws that a duplicate address breaks.
const TWICE: &[&str] = &["one-holder", "address-has-one-node"];

/// The laws that missing records break.
const UNRECORDED: &[&str] = &["one-holder", "address-has-one-node", "held-is-recorded"];

/// The laws that a block breaks if it is released while it is in use.
const USED: &[&str] = &["one-holder", "address-has-one-node", "held-is-recorded", "pool-in-use-stays"];

/// The laws that a call of a former leader breaks.
const LATE_CALL: &[&str] =
    &["one-holder", "address-has-one-node", "held-is-recorded", "assigned-is-recorded", other::LEASE_FIRST];

/// All known faults. The first match counts, so a fault with more conditions comes before one with fewer.
pub const FAULTS: [Fault; 13] = [
    Fault {
        name: "agent-is-down-after-a-restore",
        per_million: 10,
        laws: UNRECORDED,
        shows: is_of_an_agent_that_is_down,
    },
    Fault {
        name: "pool-and-ipam-node-deleted-by-hand",
        per_million: 30,
        laws: UNRECORDED,
        shows: is_of_a_pool_removed_by_hand,
    },
    Fault {
        name: "report-deleted-with-its-ipam-node",
        per_million: 30,
        laws: UNRECORDED,
        shows: is_of_a_deleted_report,
    },
    Fault {
        name: "leader-ends-before-it-marks-the-last-release",
        per_million: 5,
        laws: &["selected-node-has-a-block"],
        shows: is_of_a_last_release,
    },
    Fault {
        name: "last-record-deleted-without-a-leader",
        per_million: 5,
        laws: &["selected-node-has-a-block"],
        shows: is_of_a_last_record_deleted,
    },
    Fault {
        name: "node-leaves-before-the-next-leader",
        per_million: 30,
        laws: UNRECORDED,
        shows: is_of_a_node_that_left_before_a_leader,
    },
    Fault {
        name: "call-of-a-former-leader-after-a-wiped-status",
        per_million: 5,
        laws: LATE_CALL,
        shows: is_of_a_call_of_a_former_leader,
    },
    Fault {
        name: "call-of-a-former-leader-after-two-edits",
        per_million: 5,
        laws: &["gateway-is-free"],
        shows: is_of_a_call_between_two_edits,
    },
    Fault { name: "store-lost-beside-a-restore", per_million: 5, laws: TWICE, shows: is_of_a_lost_store },
    Fault { name: "never-used-grant-of-a-backup", per_million: 30, laws: USED, shows: is_of_a_grant_never_used },
    Fault { name: "agent-is-down-before-a-restore", per_million: 5, laws: TWICE, shows: is_of_an_agent_that_was_down },
    Fault {
        name: "backup-without-the-lease",
        per_million: 5,
        laws: UNRECORDED,
        shows: is_of_a_backup_without_the_lease,
    },
    Fault { name: "backup-that-seems-current", per_million: 5, laws: USED, shows: is_of_a_backup_that_seems_current },
];

/// The known fault that the shortest history shows.
pub fn class(shortest: &Failure) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.laws.contains(&shortest.law.law) && (fault.shows)(shortest))
}
