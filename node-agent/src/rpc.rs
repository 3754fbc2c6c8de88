//! The gRPC service on the socket (behaviour.md §5): from the wire to the allocator and back.
//!
//! Decides codes and messages, never addresses. All mistakes of a request are told in one message, each with the name of
//! its field in the `.proto`; the reason words go along as metadata under [`REASON_KEY`].

pub(crate) mod convert;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam_core::ledger::{Allocation, Owner, Refusal};
use ipam_core::node_pool::Pause;
use ipam_core::{PoolKey, Violation};
use ipam_node_api::v1::ipam_garbage_service_server::IpamGarbageService;
use ipam_node_api::v1::ipam_service_server::IpamService;
use ipam_node_api::v1::{
    AllocateRequest, AllocateResponse, DeallocateRequest, DeallocateResponse, IsAllocatedRequest, IsAllocatedResponse,
    ReleaseUnlistedRequest, ReleaseUnlistedResponse,
};
use tonic::{Code, Request, Response, Status};
use tracing::{debug, error, info};

use crate::allocator::{Allocator, Failure};
use crate::metrics::Metrics;
use crate::ready::Readiness;
use crate::text::shortened;
use crate::watch::FIRST_WORD;

/// Metadata key of an error's reason words, comma separated.
pub const REASON_KEY: &str = "ipam-reason";
/// Bytes of a refusal's message. It travels as a header, three bytes for one where it is escaped, and clients take no more
/// than 16 KiB of headers; a list of all pools of a node may be longer.
const MESSAGE: usize = 2048;

/// Time that ADD waits for the end of the agent's own start, or for the confirmation of a new block; a little more than that
/// takes, and less than callers wait.
const START: Duration = FIRST_WORD.saturating_add(Duration::from_secs(1));

/// Both services.
#[derive(Clone)]
pub struct Rpc {
    allocator: Allocator,
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

/// Why a call fails.
enum Refused {
    /// Mistakes of the request.
    Invalid(Vec<Violation>),
    /// The allocator's answer.
    Failed(Failure),
    /// The agent cannot tell yet.
    NotReady(String),
    /// Nothing was asked: the plugin's STATUS, which takes this answer for "well".
    Probe,
}

impl From<Vec<Violation>> for Refused {
    fn from(violations: Vec<Violation>) -> Self {
        Self::Invalid(violations)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(Refusal::Invalid(violations)) => Self::Invalid(violations),
            other => Self::Failed(other),
        }
    }
}

impl Rpc {
    /// The services on top of `allocator`.
    pub fn new(allocator: Allocator, readiness: Readiness, metrics: Arc<Metrics>) -> Self {
        Self { allocator, readiness, metrics }
    }

    /// Without blocks every pool would be unknown; that the agent just started is no reason for a final "no".
    fn blocks_known(&self) -> Result<(), Refused> {
        self.readiness.blocks().map_err(Refused::NotReady)
    }

    async fn try_allocate(&self, request: AllocateRequest, subject: &mut Subject) -> Result<AllocateResponse, Refused> {
        let request = convert::allocate(request)?;
        subject.set(&request.pools, &request.owner);
        self.blocks_known()?;
        let allocation = self.allocated(request).await?;
        let repeated = allocation.changes.is_empty();
        let addresses: Vec<_> = allocation.grants.iter().map(|grant| grant.addr.to_string()).collect();
        let (pools, owner) = (&subject.pools, &subject.owner);
        info!(%pools, container = %owner.container_id, ifname = %owner.if_name, addresses = %addresses.join(","), repeated,
            "address given");
        Ok(AllocateResponse { allocations: allocation.grants.iter().map(convert::info).collect() })
    }

    /// Asks the allocator; again when what it refuses because the agent has just started, or because the grant of the block is
    /// not confirmed, may have changed. A runtime that has to come back later does so after seconds only, and this wait is mostly
    /// over in milliseconds.
    async fn allocated(&self, request: ipam_core::ledger::Request) -> Result<Allocation, Failure> {
        let (mut changes, until) = (self.allocator.changes(), tokio::time::Instant::now() + START);
        loop {
            let result = self.allocator.allocate(request.clone()).await;
            if !matches!(
                &result,
                Err(Failure::Refused(Refusal::Paused { pause: Pause::Starting | Pause::Unconfirmed, .. }))
            ) {
                return result;
            }
            if !matches!(tokio::time::timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                return result;
            }
        }
    }

    async fn try_check(&self, request: IsAllocatedRequest, subject: &mut Subject) -> Result<(), Refused> {
        if request.parameters.is_none() {
            self.readiness.check().map_err(Refused::NotReady)?;
            return Err(Refused::Probe);
        }
        let (pools, owner, expected) = convert::check(request)?;
        subject.set(&pools, &owner);
        Ok(self.allocator.check(pools, owner, expected).await?)
    }

    async fn try_release(&self, request: DeallocateRequest, subject: &mut Subject) -> Result<(), Refused> {
        let (pools, owner) = convert::release(request)?;
        subject.set(&pools, &owner);
        let released = self.allocator.release(pools, owner).await?;
        let Subject { pools, owner: Owner { container_id: container, if_name: ifname } } = &*subject;
        if released > 0 {
            info!(%pools, container, ifname, released, "address given back");
        } else {
            // Runtimes repeat DEL, and send it after an ADD that gave nothing: no news.
            debug!(%pools, container, ifname, "nothing was held, nothing to give back");
        }
        Ok(())
    }

    async fn try_unlisted(&self, request: ReleaseUnlistedRequest, subject: &mut Subject) -> Result<u64, Refused> {
        let unlisted = convert::unlisted(request)?;
        let network = unlisted.network.clone();
        subject.set(&unlisted.pools, &Owner::new("", ""));
        let released = self.allocator.release_unlisted(&unlisted).await?;
        if released > 0 {
            info!(pools = %subject.pools, network, released, "unlisted attachments given back");
        } else {
            debug!(pools = %subject.pools, network, "nothing is held by unlisted attachments");
        }
        Ok(u64::try_from(released).unwrap_or(u64::MAX))
    }

    /// Counts, logs and translates the end of a call.
    fn finish<T>(
        &self,
        method: &'static str,
        started: Instant,
        subject: &Subject,
        result: Result<T, Refused>,
    ) -> Result<Response<T>, Status> {
        let answer = result.map(Response::new).map_err(|refused| {
            let probe = matches!(refused, Refused::Probe);
            let (status, reason) = status(refused);
            if probe {
                return status;
            }
            self.metrics.refused(&reason);
            let Subject { pools, owner } = subject;
            let (container, ifname, why) = (&owner.container_id, &owner.if_name, status.message());
            if status.code() == Code::Internal {
                error!(method, %pools, container, ifname, reason, why, "call failed");
            } else {
                info!(method, %pools, container, ifname, reason, why, "call refused");
            }
            status
        });
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics.called(method, code, started.elapsed());
        debug!(method, ?code, micros = started.elapsed().as_micros(), "call done");
        answer
    }
}

/// Whom a call is about, for the log.
struct Subject {
    pools: String,
    owner: Owner,
}

impl Subject {
    fn unknown() -> Self {
        Self { pools: String::new(), owner: Owner::new("", "") }
    }

    fn set(&mut self, pools: &[PoolKey], owner: &Owner) {
        self.pools = pools.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join(",");
        self.owner = owner.clone();
    }
}

/// The status of a refusal, and its reason words.
fn status(refused: Refused) -> (Status, String) {
    let (code, message, reason) = match refused {
        Refused::Invalid(violations) => {
            let message = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let mut reasons: Vec<_> = violations.iter().map(|violation| violation.reason.as_str()).collect();
            reasons.sort_unstable();
            reasons.dedup();
            (Code::InvalidArgument, message, reasons.join(","))
        }
        Refused::Probe => {
            let message = "parameters: must be told; the agent takes calls".to_owned();
            (Code::InvalidArgument, message, "Required".to_owned())
        }
        Refused::NotReady(why) => (Code::Unavailable, why, "NotReady".to_owned()),
        Refused::Failed(failure) => {
            let (code, reason) = match &failure {
                Failure::Refused(refusal) => (refusal_code(refusal), refusal.reason()),
                Failure::Store { reason, .. } => (Code::Internal, *reason),
                Failure::Busy => (Code::Unavailable, "Busy"),
                Failure::Stopped => (Code::Unavailable, "Stopping"),
            };
            (code, failure.to_string(), reason.to_owned())
        }
    };
    let mut status = Status::new(code, shortened(message, MESSAGE));
    if let Ok(value) = reason.parse() {
        status.metadata_mut().insert(REASON_KEY, value);
    }
    (status, reason)
}

const fn refusal_code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Invalid(_) => Code::InvalidArgument,
        Refusal::UnknownPool { .. } | Refusal::NotReserved { .. } | Refusal::Mismatch { .. } => Code::NotFound,
        Refusal::Exhausted { .. }
        | Refusal::AddressTaken { .. }
        | Refusal::HeldElsewhere { .. }
        | Refusal::Releasing { .. } => Code::ResourceExhausted,
        Refusal::AlreadyHeld { .. } => Code::AlreadyExists,
        Refusal::Paused { .. } => Code::Unavailable,
    }
}

#[tonic::async_trait]
impl IpamService for Rpc {
    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let (started, mut subject) = (Instant::now(), Subject::unknown());
        let result = self.try_allocate(request.into_inner(), &mut subject).await;
        self.finish("Allocate", started, &subject, result)
    }

    async fn is_allocated(
        &self,
        request: Request<IsAllocatedRequest>,
    ) -> Result<Response<IsAllocatedResponse>, Status> {
        let (started, mut subject) = (Instant::now(), Subject::unknown());
        let result = self.try_check(request.into_inner(), &mut subject).await;
        self.finish("IsAllocated", started, &subject, result.map(|()| IsAllocatedResponse {}))
    }

    async fn deallocate(&self, request: Request<DeallocateRequest>) -> Result<Response<DeallocateResponse>, Status> {
        let (started, mut subject) = (Instant::now(), Subject::unknown());
        let result = self.try_release(request.into_inner(), &mut subject).await;
        self.finish("Deallocate", started, &subject, result.map(|()| DeallocateResponse {}))
    }
}

#[tonic::async_trait]
impl IpamGarbageService for Rpc {
    async fn release_unlisted(
        &self,
        request: Request<ReleaseUnlistedRequest>,
    ) -> Result<Response<ReleaseUnlistedResponse>, Status> {
        let (started, mut subject) = (Instant::now(), Subject::unknown());
        let result = self.try_unlisted(request.into_inner(), &mut subject).await;
        self.finish("ReleaseUnlisted", started, &subject, result.map(|released| ReleaseUnlistedResponse { released }))
    }
}
