//! What the allocator can be asked, how each is decided on the ledger, and its answer until it may be told.

use std::collections::HashSet;
use std::net::IpAddr;

use ipam_core::ledger::{
    Allocation, Attachment, Change, GrantStep, Holding, Ledger, Owner, Refusal, Request, Reservation, SpecVersion,
};
use ipam_core::node_pool::Pause;
use ipam_core::{GrantId, NodePool, PoolKey};
use ipam_crds::HELD_RUNS;
use tokio::sync::oneshot::Sender;

use super::Failure;
use crate::store::{Position, StoreError, change_bytes};

/// What is held, and where the journal stands with it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Of each pool that is configured or held.
    pub pools: Vec<Holding>,
    /// Where the journal stands.
    pub position: Position,
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
    Release { pools: Vec<PoolKey>, owner: Owner, reply: Sender<Result<usize, Failure>> },
    ReleaseUnlisted { unlisted: Unlisted, reply: Sender<Result<usize, Failure>> },
    ReleaseStale { stale: Vec<Reservation>, reply: Sender<Result<usize, Failure>> },
    Configure { pools: Vec<NodePool>, source: Source, reply: Sender<()> },
    Confirm { grants: Vec<(PoolKey, GrantId)>, reply: Sender<Result<usize, Failure>> },
    Rest { grants: Vec<(PoolKey, GrantId)>, reply: Sender<Result<usize, Failure>> },
    Withdraw { steps: Vec<(PoolKey, GrantId, GrantStep)>, reply: Sender<()> },
    Reservations { reply: Sender<Vec<Reservation>> },
    Holdings { reply: Sender<Holdings> },
    Close,
}

/// An answer that waits for its changes to become durable. Telling it to a caller who is gone does nothing.
pub(super) enum Deferred {
    Allocation(Sender<Result<Allocation, Failure>>, Result<Allocation, Failure>),
    Checked(Sender<Result<(), Failure>>, Result<(), Failure>),
    Released(Sender<Result<usize, Failure>>, usize),
    Done(Sender<()>),
    Reservations(Sender<Vec<Reservation>>, Vec<Reservation>),
    Holdings(Sender<Holdings>, Vec<Holding>),
    Nothing,
}

impl Deferred {
    /// `position` is where the journal stands now that all is durable.
    pub(super) fn tell(self, position: Position) {
        match self {
            Self::Allocation(reply, answer) => drop(reply.send(answer)),
            Self::Checked(reply, answer) => drop(reply.send(answer)),
            Self::Released(reply, count) => drop(reply.send(Ok(count))),
            Self::Done(reply) => drop(reply.send(())),
            Self::Reservations(reply, held) => drop(reply.send(held)),
            Self::Holdings(reply, pools) => drop(reply.send(Holdings { pools, position })),
            Self::Nothing => {}
        }
    }
}

impl Command {
    /// Whether nobody waits for the answer any more. Housekeeping is done all the same.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Allocate { reply, .. } => reply.is_closed(),
            Self::Check { reply, .. } => reply.is_closed(),
            Self::Release { reply, .. } | Self::ReleaseUnlisted { reply, .. } => reply.is_closed(),
            Self::ReleaseStale { .. }
            | Self::Configure { .. }
            | Self::Confirm { .. }
            | Self::Rest { .. }
            | Self::Withdraw { .. }
            | Self::Close => false,
            Self::Reservations { reply } => reply.is_closed(),
            Self::Holdings { reply } => reply.is_closed(),
        }
    }

    /// An upper bound of what the decision writes to the journal; 0 if it never writes.
    pub(super) fn journal_bytes(&self, ledger: &Ledger) -> usize {
        match self {
            // What has its record already needs no room: a repeat is answered on a full disk, too.
            Self::Allocate { request, .. } => text_bytes_of_request(request, ledger),
            Self::Release { pools, owner, .. } => {
                let held = pools.iter().filter(|pool| ledger.held_by(pool, owner).is_some());
                held.map(|pool| release_bytes(pool, owner)).sum()
            }
            Self::ReleaseUnlisted { unlisted, .. } => {
                let released = unlisted.held(ledger);
                released.iter().map(|(pool, owner)| release_bytes(pool, owner)).sum()
            }
            Self::ReleaseStale { stale, .. } => stale.iter().map(|held| release_bytes(&held.pool, &held.owner)).sum(),
            Self::Confirm { grants, .. } | Self::Rest { grants, .. } => {
                grants.iter().map(|(pool, _)| change_bytes(pool.name.len())).sum()
            }
            _ => 0,
        }
    }

    /// Whether the answer tells of the whole state, so that it must be the state at the end of its batch.
    pub(super) const fn ends_batch(&self) -> bool {
        matches!(self, Self::Holdings { .. })
    }

    /// Answers that there is no room.
    pub(super) fn refuse(self, full: &StoreError) {
        let failure = Failure::Full(full.to_string());
        match self {
            Self::Allocate { reply, .. } => drop(reply.send(Err(failure))),
            Self::Release { reply, .. }
            | Self::ReleaseUnlisted { reply, .. }
            | Self::ReleaseStale { reply, .. }
            | Self::Confirm { reply, .. }
            | Self::Rest { reply, .. } => drop(reply.send(Err(failure))),
            _ => {}
        }
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
            Self::Release { pools, owner, reply } => released(reply, ledger.release(&pools, &owner, now)),
            Self::ReleaseUnlisted { unlisted, reply } => {
                let held = unlisted.held(ledger);
                released(
                    reply,
                    held.into_iter().map(|(pool, owner)| Change::Release { pool, owner, at: now }).collect(),
                )
            }
            Self::ReleaseStale { stale, reply } => {
                let unchanged = stale.into_iter().filter(|held| ledger.held_by(&held.pool, &held.owner) == Some(held));
                let changes = unchanged.map(|held| Change::Release { pool: held.pool, owner: held.owner, at: now });
                released(reply, changes.collect())
            }
            Self::Configure { pools, source, reply } => {
                match source {
                    Source::ApiServer(Some(version)) => ledger.configure_spec(pools, version),
                    Source::ApiServer(None) => ledger.configure(pools),
                    Source::Copy => ledger.configure_copy(pools),
                }
                (Vec::new(), Deferred::Done(reply))
            }
            Self::Confirm { grants, reply } => released(reply, ledger.confirm(&grants)),
            Self::Rest { grants, reply } => released(reply, ledger.rest(&grants)),
            Self::Withdraw { steps, reply } => {
                ledger.withdraw(steps);
                (Vec::new(), Deferred::Done(reply))
            }
            Self::Reservations { reply } => {
                (Vec::new(), Deferred::Reservations(reply, ledger.reservations().cloned().collect()))
            }
            Self::Holdings { reply } => (Vec::new(), Deferred::Holdings(reply, ledger.holdings(HELD_RUNS))),
            Self::Close => (Vec::new(), Deferred::Nothing),
        }
    }
}

impl Unlisted {
    /// What the network holds and does not list.
    fn held(&self, ledger: &Ledger) -> Vec<(PoolKey, Owner)> {
        let gone = |held: &&Reservation| {
            // An unknown network is somebody else's, or nobody knows whose: never released here.
            !held.attachment.network.is_empty()
                && held.attachment.network == self.network
                && self.pools.contains(&held.pool)
                && !self.valid.contains(&held.owner)
        };
        ledger.reservations().filter(gone).map(|held| (held.pool.clone(), held.owner.clone())).collect()
    }
}

fn released(reply: Sender<Result<usize, Failure>>, changes: Vec<Change>) -> (Vec<Change>, Deferred) {
    let count = changes.len();
    (changes, Deferred::Released(reply, count))
}

fn release_bytes(pool: &PoolKey, owner: &Owner) -> usize {
    change_bytes(pool.name.len() + owner.container_id.len() + owner.if_name.len())
}

/// An upper bound of what granting `request` writes.
fn text_bytes_of_request(request: &Request, ledger: &Ledger) -> usize {
    let Attachment { pod_name, pod_namespace, pod_uid, device_id, network } = &request.attachment;
    let Owner { container_id, if_name } = &request.owner;
    let texts = [pod_name, pod_namespace, pod_uid, device_id, network, container_id, if_name];
    let shared: usize = texts.iter().map(|text| text.len()).sum();
    let missing: Vec<_> =
        request.pools.iter().filter(|pool| ledger.held_by(pool, &request.owner).is_none()).cloned().collect();
    let woken = ledger.wake(&missing);
    let name = |change: &Change| if let Change::Grant { pool, .. } = change { pool.name.len() } else { 0 };
    let wakes: usize = woken.iter().map(|change| change_bytes(name(change))).sum();
    wakes + missing.iter().map(|pool| change_bytes(shared + pool.name.len())).sum::<usize>()
}
