//! Leader election on a Lease: makes the calls and pauses that [`campaign`] returns.
//!
//! The election ends with an error when leadership is lost. The process then ends too, because another leader may own the
//! work that it has begun. The Lease keeps two replicas from working at the same time. If they do so anyway, the
//! resourceVersion in every write prevents harm.

pub mod algorithm;
pub mod campaign;
pub mod marker;

use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use ipam_reconciler::allocation_state::ALLOCATION_STATE;

use crate::events::EventPublisher;
use algorithm::RENEW_DEADLINE;
use campaign::{Campaign, Next, Tried};
use marker::MarkerWriter;

/// The Lease of NVIDIA nv-ipam, so that its controller and this operator do not work at the same time during an upgrade.
pub const LEASE_NAME: &str = "dd1643cf.nvidia.com";

/// How long an answer is awaited after a stop.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// Leadership is lost. The process must end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeadershipLost {
    /// No renewal succeeded in time.
    #[error("leadership is lost: the Lease could not be renewed within {} s", RENEW_DEADLINE.as_secs())]
    Deadline,
    /// The Lease has no holder, or names this process, which did not write it.
    #[error("leadership is lost: the Lease is not the one that was written last, as after a restore of etcd")]
    Restored,
    /// Another process holds the Lease.
    #[error("leadership is lost: the Lease is held by {0:?}")]
    Taken(String),
}

/// Until when this process may act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leadership {
    /// It does not lead, or no longer.
    No,
    /// It leads until this instant of the monotonic clock, unless it renews its Lease before.
    Until(Instant),
    /// It leads as long as it runs: there is no election.
    Always,
}

impl Leadership {
    /// Whether this process leads at `now`.
    pub fn holds(self, now: Instant) -> bool {
        match self {
            Self::No => false,
            Self::Until(end) => now < end,
            Self::Always => true,
        }
    }
}

/// An election with this process as a candidate.
pub struct Election {
    api: Api<Lease>,
    campaign: Campaign,
    marker: MarkerWriter,
    leading: bool,
    /// The leader that the log named last.
    told: Option<String>,
    failing: bool,
    altered: bool,
    identity: String,
    events: EventPublisher,
    /// The Lease that was written last, for the event.
    lease: ObjectReference,
}

/// The answer to a call.
enum Answer {
    Read(kube::Result<Option<Lease>>),
    Written(kube::Result<Lease>),
}

impl Election {
    /// Returns the candidate `identity` for the Lease in `namespace`, which writes the allocation state that `marker` requests. A leader
    /// publishes an event by `events`.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: String,
        marker: MarkerWriter,
        events: EventPublisher,
    ) -> Self {
        let campaign = Campaign::new(identity.clone(), namespace, now(), Box::new(fastrand::f64));
        let (api, lease) = (Api::namespaced(client, namespace), ObjectReference::default());
        let (leading, failing, altered) = (false, false, false);
        Self { api, campaign, marker, leading, told: None, failing, altered, identity, events, lease }
    }

    /// Acquires and renews the Lease until `stop`, and sends to `lead` until when this process leads. Ends earlier only when leadership
    /// is lost. It does not release the Lease: see [`Election::release`].
    ///
    /// After a stop, it still waits for the answer of a call. Without the answer to a call that acquires the Lease, this process could
    /// not release it, and the next leader would wait until it expires.
    pub async fn run(
        &mut self,
        lead: &watch::Sender<Leadership>,
        stop: &CancellationToken,
    ) -> Result<(), LeadershipLost> {
        let mut call: Option<BoxFuture<'static, Answer>> = None;
        let mut out_of_patience = pin!(async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_ANSWER).await;
        });
        loop {
            let next = self.campaign.next(now(), Timestamp::now(), self.marker.request());
            self.say(lead);
            let until = match next {
                Next::Wait(until) => until,
                Next::LeadershipLost(lost) => return Err(lost),
                begun => {
                    call = self.begin(begun);
                    continue;
                }
            };
            tokio::select! {
                biased;
                answer = answered(&mut call) => {
                    call = None;
                    self.take(answer);
                }
                () = stop.cancelled(), if call.is_none() => return Ok(()),
                () = &mut out_of_patience => return Ok(()),
                // Calls wait for a write of the Lease.
                () = self.marker.unfulfilled(), if call.is_none() && self.leading => self.campaign.press(now()),
                () = tokio::time::sleep_until(until.into()) => call = None,
            }
        }
    }

    /// Releases the Lease, so that the next leader need not wait until it expires.
    pub async fn release(&mut self) {
        let Some(lease) = self.campaign.release(Timestamp::now(), self.marker.request()) else { return };
        match self.api.replace(LEASE_NAME, &PostParams::default(), &lease).await {
            Ok(_) => tracing::info!(lease = LEASE_NAME, "lease released"),
            Err(error) => tracing::warn!(lease = LEASE_NAME, %error, "lease not released"),
        }
    }

    /// Returns the call of `next`, if it is one.
    fn begin(&self, next: Next) -> Option<BoxFuture<'static, Answer>> {
        let api = self.api.clone();
        match next {
            Next::Read => Some(async move { Answer::Read(api.get_opt(LEASE_NAME).await) }.boxed()),
            Next::Create(lease) => {
                Some(async move { Answer::Written(api.create(&PostParams::default(), &lease).await) }.boxed())
            }
            Next::Replace(lease) => {
                let replaced = async move { api.replace(LEASE_NAME, &PostParams::default(), &lease).await };
                Some(replaced.map(Answer::Written).boxed())
            }
            Next::Wait(_) | Next::LeadershipLost(_) => None,
        }
    }

    fn take(&mut self, answer: Answer) {
        let why = |error: kube::Error| ipam_daemon::chain(&error);
        match answer {
            Answer::Read(lease) => self.campaign.was_read(lease.map_err(why), now()),
            Answer::Written(lease) => {
                self.lease = lease.as_ref().map(|lease| lease.object_ref(&())).unwrap_or_default();
                self.campaign.was_written(lease.map_err(why), now());
            }
        }
    }

    /// Sends changes to the rest of the process: until when it leads, and the state of the Lease.
    fn say(&mut self, lead: &watch::Sender<Leadership>) {
        self.marker.publish(self.campaign.state());
        let leads = self.campaign.leads_until().map_or(Leadership::No, Leadership::Until);
        lead.send_if_modified(|told| std::mem::replace(told, leads) != leads);
        if leads != Leadership::No && !std::mem::replace(&mut self.leading, true) {
            tracing::info!(lease = LEASE_NAME, "leading");
            self.publish_leading();
        }
        if let Some(tried) = self.campaign.take_tried() {
            self.note(tried);
        }
    }

    /// Publishes that this process is the leader, in the words of client-go. The election does not wait for the API server.
    fn publish_leading(&self) {
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(format!("{} became leader", self.identity)),
            action: "Acquire".to_owned(),
            secondary: None,
        };
        let (events, lease) = (self.events.clone(), self.lease.clone());
        tokio::spawn(async move { events.publish(&event, &lease).await });
    }

    /// Logs changes: which leader this process follows, and when calls begin and cease to fail.
    fn note(&mut self, tried: Tried) {
        let error = match tried {
            Tried::Failed(error) => error,
            Tried::Written | Tried::Altered | Tried::Follows(_) => {
                let altered = tried == Tried::Altered;
                if altered && !std::mem::replace(&mut self.altered, altered) {
                    tracing::warn!(
                        lease = LEASE_NAME,
                        annotation = ALLOCATION_STATE,
                        "the API server changes the annotation of the Lease, so no node gets a first block: check the mutating admission of Leases"
                    );
                }
                self.altered = altered;
                if std::mem::take(&mut self.failing) {
                    tracing::info!(lease = LEASE_NAME, "lease can be read and written again");
                }
                if let Tried::Follows(holder) = tried
                    && self.told.as_ref() != Some(&holder)
                {
                    tracing::info!(lease = LEASE_NAME, %holder, "following");
                    self.told = Some(holder);
                }
                return;
            }
        };
        if std::mem::replace(&mut self.failing, true) {
            tracing::debug!(lease = LEASE_NAME, error, "lease not written");
        } else {
            tracing::warn!(lease = LEASE_NAME, error, "lease not written, trying on");
        }
    }
}

/// Waits for the answer to the call under way; without a call for ever.
async fn answered(call: &mut Option<BoxFuture<'static, Answer>>) -> Answer {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

/// The monotonic clock, which in tests is the paused one.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the name of this process in elections and events: host name and a UUID, as with client-go. The UUID
/// distinguishes a restarted process from the one before.
pub fn identity() -> io::Result<String> {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(format!("{host}_{}", uuid.trim()))
}

#[cfg(test)]
mod tests;
