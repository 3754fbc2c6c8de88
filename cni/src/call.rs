//! The call to the agent: connect, one request, and what its answer means to the runtime. The only I/O besides the log
//! and the conf file. One deadline covers everything; nothing is tried twice, because the runtime does that. DEL without an
//! answer leaves its request in the agent's spool.
//!
//! One call is one request. ADD above all never releases anything, however it ends: see [`Agent::add`].

use ipam_node_api::client::AgentClient;
use ipam_node_api::spool::Spool;
use ipam_node_api::v1::{IpamParameters, ReleaseUnlistedRequest};
use tokio::time::Instant;
use tonic::Code as Grpc;

use crate::Command;
use crate::error::{CniError, Code};
use crate::log::{Level, Log};
use crate::plan::{Action, Plan};
use crate::result::{Allocation, add_result};
use crate::version::SpecVersion;

/// Carries the plan out. The text is what belongs on standard output; it is empty for all commands but ADD.
pub(crate) fn call(version: SpecVersion, plan: Plan, log: &mut Log) -> Result<String, CniError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| CniError::new(Code::TryAgainLater, format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let (timeout, deadline) = (plan.timeout, Instant::now() + plan.timeout);
        let result = ask(version, plan, deadline, log).await;
        result.map_err(|error| if Instant::now() < deadline { error } else { error.after(timeout) })
    })
}

async fn ask(version: SpecVersion, plan: Plan, deadline: Instant, log: &mut Log) -> Result<String, CniError> {
    let spool = Spool::of(&plan.agent);
    if let (Action::Add(parameters), Some(spool)) = (&plan.action, &spool) {
        spool.withdraw(parameters).map_err(|error| unspooled(spool, &error))?;
    }
    let connected = AgentClient::connect(&plan.agent, deadline).await.map_err(|error| CniError::unreachable(&error));
    let (agent, action) = match (connected, plan.action) {
        (Err(error), Action::Status) => return Err(CniError { code: Code::NotAvailable, ..error }),
        (Err(error), Action::Del(parameters)) => return leave(spool, &parameters, error, log),
        (Err(error), _) => return Err(error),
        (Ok(client), action) => (Agent { client, deadline }, action),
    };
    match action {
        Action::Add(parameters) => agent.add(version, parameters, log).await,
        Action::Del(parameters) => match agent.del(parameters.clone()).await {
            Err(error) if error.code == Code::TryAgainLater => leave(spool, &parameters, error, log),
            done => done,
        },
        Action::Check(parameters) => agent.check(parameters).await,
        Action::Status => agent.status().await,
        Action::Gc(request) => agent.gc(request, log).await,
    }
}

/// DEL without an answer of the agent: leaves the request in the agent's spool, so that the pod can go away. Without a spool the call fails
/// with `error`, and the runtime repeats it.
fn leave(
    spool: Option<Spool>,
    parameters: &IpamParameters,
    error: CniError,
    log: &mut Log,
) -> Result<String, CniError> {
    match spool.map(|spool| spool.leave(parameters)) {
        Some(Ok(())) => {
            log.line(Level::Warning, "the agent frees the addresses when it is back", &[("error", &error)]);
            Ok(String::new())
        }
        Some(Err(why)) => {
            log.line(Level::Warning, "cannot leave the request in the agent's spool", &[("error", &why)]);
            Err(error)
        }
        None => Err(error),
    }
}

/// A request to free the addresses stays behind, and would free what this ADD gets.
fn unspooled(spool: &Spool, error: &std::io::Error) -> CniError {
    let path = spool.path().display();
    CniError::new(
        Code::TryAgainLater,
        format!(
            "cannot remove the note of an earlier DEL of this interface from {path}, and it would free the new addresses: {error}"
        ),
    )
}

struct Agent {
    client: AgentClient,
    deadline: Instant,
}

impl Agent {
    /// An answer that cannot be passed on is an error and nothing else. The answer does not say whether its addresses
    /// are new or those that an earlier ADD of the same interface delivered; a pod may be using them, and whoever gives
    /// them back here lets the agent give them to another. Giving back is for DEL, which the runtime sends after an ADD
    /// that failed (CNI specification 1.1, "ADD"); what a runtime forgets is found by GC and by the agent's own check for
    /// pods that are gone.
    async fn add(&self, version: SpecVersion, wanted: IpamParameters, log: &mut Log) -> Result<String, CniError> {
        let pools = wanted.pools.clone();
        let allocated = self.client.allocate(wanted, self.deadline).await;
        let answer = allocated.map_err(|status| CniError::refused(Command::Add, &status))?;
        log.line(Level::Debug, "the agent answered", &[("allocations", &format_args!("{answer:?}"))]);
        let result = Allocation::read_all(&pools, &answer).and_then(|given| add_result(version, &given));
        if result.is_err() {
            let message = "no result of this answer, what it names stays reserved until DEL";
            log.line(Level::Warning, message, &[("allocations", &format_args!("{answer:?}"))]);
        }
        result
    }

    /// `NotFound` means that there is nothing to release, whichever way an agent says so.
    async fn del(&self, parameters: IpamParameters) -> Result<String, CniError> {
        match self.client.deallocate(parameters, self.deadline).await {
            Err(status) if status.code() != Grpc::NotFound => Err(CniError::refused(Command::Del, &status)),
            _ => Ok(String::new()),
        }
    }

    async fn check(&self, parameters: IpamParameters) -> Result<String, CniError> {
        let checked = self.client.is_allocated(parameters, self.deadline).await;
        checked.map(|()| String::new()).map_err(|status| CniError::refused(Command::Check, &status))
    }

    async fn status(&self) -> Result<String, CniError> {
        let not_available =
            |status| CniError { code: Code::NotAvailable, ..CniError::refused(Command::Status, &status) };
        self.client.probe(self.deadline).await.map(|()| String::new()).map_err(not_available)
    }

    /// An agent without this extension has its own way to find what is stale, so GC has nothing to do there.
    async fn gc(&self, request: ReleaseUnlistedRequest, log: &mut Log) -> Result<String, CniError> {
        match self.client.release_unlisted(request, self.deadline).await {
            Ok(released) => log.line(Level::Info, "garbage collected", &[("released", &released)]),
            Err(status) if status.code() == Grpc::Unimplemented => {
                log.line(Level::Warning, "this agent knows no GC, nothing was released", &[]);
            }
            Err(status) => return Err(CniError::refused(Command::Gc, &status)),
        }
        Ok(String::new())
    }
}
