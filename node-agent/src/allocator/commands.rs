//! What the allocator can be asked, how each is decided on the ledger, and its answer until it may be told.

use std::collections::HashSet;
use std::net::IpAddr;

use ipam_core::ledger::{
    Allocation, Change, GrantStep, Holding, Ledger, Owner, Refusal, Request, Reservation, SpecVersion,
};
use ipam_core::node_pool::Pause;
use ipam_core::{GrantId, NodePool, PoolKey};
use ipam_crds::HELD_RUNS;
use tokio::sync::oneshot::Sender;

use super::{Failure, PAGE};
use crate::problem::Problem;
use ipam_node_store::{Position, StoreError};

/// What is held, and where the journal stands with it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Of each pool that is configured or held.
    pub pools: Vec<Holding>,
    /// Where the journal stands.
    pub position: Position,
    /// Why the store takes no allocations; `None` while it does.
    pub full: Option<Problem>,
}

/// What a network's garbage collection keeps: everything else that the network holds in the pools is given back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlisted {
    /// The network's name, as recorded with its reservations; not empty.
    pub network: String,
    /// The pools that the network draws from.
    pub pools: Vec<PoolKey>,
    /// The attachments that are still in use.
    pub valid: HashSet<Owner>,
}

/// Where the pools of a node come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The API server, which has the spec in this version; `None` if it has no object.
    ApiServer(Option<SpecVersion>),
    /// A copy on disk from before the start. It may be old.
    Copy,
}

pub(super) enum Command {
    Allocate { request: Request, reply: Sender<Result<Allocation, Failure>> },
    Check { pools: Vec<PoolKey>, owner: Owner, expected: Vec<IpAddr>, reply: Sender<Result<(), Failure>> },
    Release { pools: Vec<PoolKey>, owner: Owner, until: i64, reply: Sender<Result<usize, Failure>> },
    ReleaseStale { stale: Vec<Reservation>, reply: Sender<Result<usize, Failure>> },
    Configure { pools: Vec<NodePool>, source: Source, note: Option<String>, reply: Sender<bool> },
    Confirm { grants: Vec<(PoolKey, GrantId)>, reply: Sender<Result<usize, Failure>> },
    Rest { grants: Vec<(PoolKey, GrantId)>, reply: Sender<Result<usize, Failure>> },
    Withdraw { steps: Vec<(PoolKey, GrantId, GrantStep)>, reply: Sender<()> },
    Page { behind: Option<(PoolKey, IpAddr)>, reply: Sender<Vec<Reservation>> },
    Holdings { reply: Sender<Holdings> },
    LookForRoom { reply: Sender<()> },
    Close,
}

/// An answer that waits for its changes to become durable. Telling it to a caller who is gone does nothing.
pub(super) enum Deferred {
    Allocation(Sender<Result<Allocation, Failure>>, Result<Allocation, Failure>),
    Checked(Sender<Result<(), Failure>>, Result<(), Failure>),
    Released(Sender<Result<usize, Failure>>, Result<usize, Failure>),
    /// Whether the note is recorded.
    Configured(Sender<bool>, bool),
    Done(Sender<()>),
    Page(Sender<Vec<Reservation>>, Vec<Reservation>),
    Holdings(Sender<Holdings>, Vec<Holding>),
    Nothing,
}

impl Deferred {
    /// `position` is where the journal stands now that all is durable, `full` why the store takes no allocations.
    pub(super) fn tell(self, position: Position, full: Option<&Problem>) {
        match self {
            Self::Allocation(reply, answer) => drop(reply.send(answer)),
            Self::Checked(reply, answer) => drop(reply.send(answer)),
            Self::Released(reply, answer) => drop(reply.send(answer)),
            Self::Configured(reply, is_recorded) => drop(reply.send(is_recorded)),
            Self::Done(reply) => drop(reply.send(())),
            Self::Page(reply, held) => drop(reply.send(held)),
            Self::Holdings(reply, pools) => drop(reply.send(Holdings { pools, position, full: full.cloned() })),
            Self::Nothing => {}
        }
    }
}

impl Deferred {
    /// Whether a request is refused until the API server confirms a grant.
    pub(super) const fn waits_for_confirmation(&self) -> bool {
        matches!(self, Self::Allocation(_, Err(Failure::Refused(Refusal::Paused { pause: Pause::Unconfirmed, .. }))))
    }

    /// Whether it tells addresses to a caller.
    pub(super) const fn allocates(&self) -> bool {
        matches!(self, Self::Allocation(_, Ok(_)))
    }

    /// The answer where there is no room for the changes.
    pub(super) fn refused(self, full: &StoreError) -> Self {
        let reason = Problem::of_store(full).map_or("Failed", |problem| problem.reason);
        let failure = Failure::Store { reason, text: full.to_string() };
        match self {
            Self::Allocation(reply, _) => Self::Allocation(reply, Err(failure)),
            Self::Released(reply, _) => Self::Released(reply, Err(failure)),
            Self::Configured(reply, _) => Self::Configured(reply, false),
            // These change nothing.
            Self::Checked(..) | Self::Done(_) | Self::Page(..) | Self::Holdings(..) | Self::Nothing => self,
        }
    }
}

impl Command {
    /// Whether nobody waits for the answer any more. Housekeeping is done all the same.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Allocate { reply, .. } => reply.is_closed(),
            Self::Check { reply, .. } => reply.is_closed(),
            Self::Release { reply, .. } => reply.is_closed(),
            Self::ReleaseStale { .. }
            | Self::Configure { .. }
            | Self::Confirm { .. }
            | Self::Rest { .. }
            | Self::Withdraw { .. }
            | Self::Close => false,
            Self::Page { reply, .. } => reply.is_closed(),
            Self::Holdings { reply } => reply.is_closed(),
            Self::LookForRoom { reply } => reply.is_closed(),
        }
    }

    /// Whether all that the decision writes frees addresses.
    pub(super) const fn frees(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::ReleaseStale { .. })
    }

    /// Whether the answer tells of the whole state, so that it must be the state at the end of its batch.
    pub(super) const fn ends_batch(&self) -> bool {
        matches!(self, Self::Holdings { .. })
    }

    /// The changes to make, and the answer to give once they are durable. Touches what is configured, never what is held.
    pub(super) fn decide(self, ledger: &mut Ledger, now: i64) -> (Vec<Change>, Deferred) {
        match self {
            Self::Allocate { request, reply } => {
                let answer = ledger.allocate(&request, now);
                let changes = match &answer {
                    Ok(allocation) => allocation.changes.clone(),
                    // The caller waits for the confirmation that this requests.
                    Err(Refusal::Paused { pause: Pause::Unconfirmed, .. }) => ledger.wake(&request.pools),
                    Err(_) => Vec::new(),
                };
                (changes, Deferred::Allocation(reply, answer.map_err(Failure::from)))
            }
            Self::Check { pools, owner, expected, reply } => {
                let answer = ledger.check(&pools, &owner, &expected);
                (Vec::new(), Deferred::Checked(reply, answer.map_err(Failure::from)))
            }
            Self::Release { mut pools, owner, until, reply } => {
                pools.retain(|pool| ledger.held_by(pool, &owner).is_none_or(|held| held.created <= until));
                released(reply, ledger.release(&pools, &owner, now))
            }
            Self::ReleaseStale { stale, reply } => {
                let is_unchanged =
                    |held: &Reservation| ledger.held_by(&held.pool, &held.owner).is_some_and(|now| now == *held);
                let unchanged = stale.into_iter().filter(is_unchanged);
                let changes = unchanged.map(|held| Change::Release { pool: held.pool, owner: held.owner, at: now });
                released(reply, changes.collect())
            }
            Self::Configure { pools, source, note, reply } => {
                match source {
                    Source::ApiServer(Some(version)) => ledger.configure_spec(pools, version),
                    Source::ApiServer(None) => ledger.configure(pools),
                    Source::Copy => ledger.configure_copy(pools),
                }
                // The note is recorded together with the steps that follow from the pools, or not at all.
                let noted = note.map(|text| [vec![Change::Note { text }], ledger.grant_steps()].concat());
                (noted.unwrap_or_default(), Deferred::Configured(reply, true))
            }
            Self::Confirm { grants, reply } => released(reply, ledger.confirm(&grants)),
            Self::Rest { grants, reply } => released(reply, ledger.rest(&grants)),
            Self::Withdraw { steps, reply } => {
                ledger.withdraw(steps);
                (Vec::new(), Deferred::Done(reply))
            }
            Self::Page { behind, reply } => (Vec::new(), Deferred::Page(reply, ledger.page(behind.as_ref(), PAGE))),
            Self::Holdings { reply } => (Vec::new(), Deferred::Holdings(reply, ledger.holdings(HELD_RUNS))),
            Self::LookForRoom { reply } => (Vec::new(), Deferred::Done(reply)),
            Self::Close => (Vec::new(), Deferred::Nothing),
        }
    }
}

impl Unlisted {
    /// Whether the reservation is one that the network has and does not list.
    pub(super) fn has(&self, held: &Reservation) -> bool {
        // An unknown network is somebody else's, or nobody knows whose: never released here.
        !held.attachment.network.is_empty()
            && held.attachment.network == self.network
            && self.pools.contains(&held.pool)
            && !self.valid.contains(&held.owner)
    }
}

fn released(reply: Sender<Result<usize, Failure>>, changes: Vec<Change>) -> (Vec<Change>, Deferred) {
    let count = changes.len();
    (changes, Deferred::Released(reply, Ok(count)))
}
