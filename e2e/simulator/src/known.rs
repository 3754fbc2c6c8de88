//! Faults of the product that are known and not yet removed. Each has a committed history that shows it
//! (`e2e/simulator/known-faults/NAME.json`), and a test plays them: a history that breaks no law any more must go from the list.
//!
//! A fresh seed that shows a known fault is counted, and fails a run only where one fault shows too often ([`MOST`]). A fault is
//! recognised by the law that breaks and by what the shortest history cannot do without: actions in their order, and the node, pool or
//! address that the law names. What a recogniser does not bind, its comment says with the reason. No fault explains a panic.
//!
//! The test `a_near_miss_is_not_the_known_fault` changes the history of each file so that its cause is missing, too late, or of others.

mod loss;
mod order;
mod other;
mod restore;

use super::Failure;
use loss::{is_of_a_node_that_left, is_of_a_node_that_left_before_a_leader, is_of_a_pool_removed_by_hand};
use other::{is_of_a_call_of_a_former_leader, is_of_an_awaited_node};
use restore::{
    is_of_a_deleted_report, is_of_a_grant_never_used, is_of_a_lost_store, is_of_an_agent_that_is_down,
    is_of_an_agent_that_was_down, is_of_pools_that_stopped_sharing,
};

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
const TWICE: &[&str] = &["one-holder", "address-has-one-node"];

/// The laws that records which are gone break.
const UNRECORDED: &[&str] = &["one-holder", "address-has-one-node", "held-is-recorded"];

/// The laws that a block breaks which is released while it is in use.
const USED: &[&str] = &["one-holder", "address-has-one-node", "held-is-recorded", "pool-in-use-stays"];

/// The laws that a call of a former leader breaks.
const LATE_CALL: &[&str] = &["one-holder", "address-has-one-node", other::LEASE_FIRST];

/// All of them. The first that fits counts, so that the one with more conditions stands before the one with fewer.
pub const FAULTS: [Fault; 11] = [
    Fault { name: "agent-is-down-after-a-restore", laws: UNRECORDED, shows: is_of_an_agent_that_is_down },
    Fault { name: "pool-and-ipam-node-deleted-by-hand", laws: UNRECORDED, shows: is_of_a_pool_removed_by_hand },
    Fault {
        name: "node-leaves-before-it-is-asked",
        laws: &["selected-node-has-a-block"],
        shows: is_of_a_node_that_left,
    },
    Fault { name: "report-deleted-with-its-ipam-node", laws: TWICE, shows: is_of_a_deleted_report },
    Fault { name: "pools-stop-sharing-before-a-restore", laws: TWICE, shows: is_of_pools_that_stopped_sharing },
    Fault {
        name: "node-without-an-agent-is-awaited",
        laws: &["selected-node-has-a-block"],
        shows: is_of_an_awaited_node,
    },
    Fault {
        name: "node-leaves-before-the-next-leader",
        laws: UNRECORDED,
        shows: is_of_a_node_that_left_before_a_leader,
    },
    Fault {
        name: "call-of-a-former-leader-after-a-wiped-status",
        laws: LATE_CALL,
        shows: is_of_a_call_of_a_former_leader,
    },
    Fault { name: "store-lost-beside-a-restore", laws: TWICE, shows: is_of_a_lost_store },
    Fault { name: "agent-is-down-before-a-restore", laws: TWICE, shows: is_of_an_agent_that_was_down },
    Fault { name: "never-used-grant-of-a-backup", laws: USED, shows: is_of_a_grant_never_used },
];

/// The known fault that the shortest history shows.
pub fn class(shortest: &Failure) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.laws.contains(&shortest.law.law) && (fault.shows)(shortest))
}
