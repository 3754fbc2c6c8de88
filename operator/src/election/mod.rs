//! Leader election on a Lease: the calls and pauses around [`algorithm`].
//!
//! Ends with an error when leadership is lost; the process then ends too, for what it has begun may not be its to
//! finish. A Lease keeps two replicas from working side by side; what keeps them from doing harm if they do is the
//! resourceVersion in every write.

pub mod algorithm;
pub mod given;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use algorithm::{Candidate, RENEW_DEADLINE, RETRY_PERIOD, Step, follow_pause};
use given::Keeper;

/// The Lease of the reference system: during an upgrade the two take turns.
pub const LEASE_NAME: &str = "dd1643cf.nvidia.com";

/// How long an answer is awaited after a stop.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// Leadership is lost. The process must end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// No renewal succeeded in time.
    #[error("leadership is lost: the Lease could not be renewed within {} s", RENEW_DEADLINE.as_secs())]
    Deadline,
    /// Somebody else holds the Lease.
    #[error("leadership is lost: the Lease is held by {0:?}")]
    Taken(String),
}

/// Until when this process may act, for those who are about to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lead {
    /// It does not lead, or no more.
    No,
    /// It leads until this instant of the monotonic clock, unless it renews its Lease before.
    Until(Instant),
    /// It leads as long as it runs: there is no election.
    Always,
}

impl Lead {
    /// Whether this process leads at `now`.
    pub fn holds(self, now: Instant) -> bool {
        match self {
            Self::No => false,
            Self::Until(end) => now < end,
            Self::Always => true,
        }
    }
}

/// An election that we stand in.
pub struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    mark: Keeper,
    /// Who held the Lease at the last try, if not we.
    following: Option<String>,
    /// Whom we have said to follow.
    told: Option<String>,
    failing: bool,
}

impl Election {
    /// Stands for the Lease in `namespace` as `identity`, and keeps in it what `mark` is asked for.
    pub fn new(client: Client, namespace: &str, identity: String, mark: Keeper) -> Self {
        let candidate = Candidate::new(identity, namespace, LEASE_NAME);
        Self { api: Api::namespaced(client, namespace), candidate, mark, following: None, told: None, failing: false }
    }

    /// Tries to lead, tells `lead` until when it does, and renews until `stop`. Ends earlier only when leadership is lost.
    /// The Lease is still held then: see [`Election::release`].
    pub async fn run(&mut self, lead: &watch::Sender<Lead>, stop: &CancellationToken) -> Result<(), Lost> {
        while self.candidate.leads_until().is_none() {
            let tried = self.attempt_until(now() + RENEW_DEADLINE, stop).await;
            self.note(tried.unwrap_or_else(|| Err("no answer in time".to_owned())));
            if stop.is_cancelled() {
                return Ok(());
            }
            if self.candidate.leads_until().is_none() && pause(follow_pause(random()), stop).await.is_err() {
                return Ok(());
            }
        }
        tracing::info!(lease = LEASE_NAME, "leading");
        self.renew(lead, stop).await
    }

    async fn renew(&mut self, lead: &watch::Sender<Lead>, stop: &CancellationToken) -> Result<(), Lost> {
        loop {
            lead.send_replace(self.candidate.leads_until().map_or(Lead::No, Lead::Until));
            let deadline = self.candidate.leads_until().ok_or(Lost::Deadline)?;
            tokio::select! {
                paused = pause(RETRY_PERIOD.min(deadline.saturating_duration_since(now())), stop) => {
                    if paused.is_err() {
                        return Ok(());
                    }
                }
                // Calls wait for the Lease to say more than it does.
                () = self.mark.presses() => {}
            }
            let tried = self.attempt_until(deadline, stop).await;
            if tried.is_none() && stop.is_cancelled() {
                return Ok(());
            }
            let tried = tried.ok_or(Lost::Deadline)?;
            if let Some(holder) = self.following.take() {
                lead.send_replace(Lead::No);
                return Err(Lost::Taken(holder));
            }
            self.note(tried);
        }
    }

    /// Gives the Lease up, so that the next leader need not wait for it to run out.
    pub async fn release(&mut self) {
        self.candidate.want(self.mark.wanted());
        let Some(lease) = self.candidate.release(Timestamp::now()) else { return };
        match self.api.replace(LEASE_NAME, &PostParams::default(), &lease).await {
            Ok(_) => tracing::info!(lease = LEASE_NAME, "lease released"),
            Err(error) => tracing::warn!(lease = LEASE_NAME, %error, "lease not released"),
        }
    }

    /// One try that ends by `deadline`. A stop does not break it off at once: a Lease taken by a call whose answer nobody
    /// awaits could not be given up, and the next leader would have to wait for it to run out.
    async fn attempt_until(&mut self, deadline: Instant, stop: &CancellationToken) -> Option<Result<(), String>> {
        let out_of_patience = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_ANSWER).await;
        };
        tokio::select! {
            tried = tokio::time::timeout_at(deadline.into(), self.attempt()) => tried.ok(),
            () = out_of_patience => None,
        }
    }

    /// One try to get or keep the Lease. The leader writes at the version it wrote last, and reads only if that is not
    /// the current one any more.
    async fn attempt(&mut self) -> Result<(), String> {
        if self.candidate.leads_until().is_some() && self.write().await.is_ok() {
            return Ok(());
        }
        let lease = self.api.get_opt(LEASE_NAME).await.map_err(|error| crate::act::chain(&error))?;
        self.candidate.observe(lease, now());
        self.write().await
    }

    async fn write(&mut self) -> Result<(), String> {
        let began = now();
        let options = PostParams::default();
        self.candidate.want(self.mark.wanted());
        let step = self.candidate.step(began, Timestamp::now());
        self.mark.say(self.candidate.given());
        let written = match step {
            Step::Follow { holder } => {
                self.following = Some(holder);
                return Ok(());
            }
            Step::Create(lease) => self.api.create(&options, &lease).await,
            Step::Replace(lease) => self.api.replace(LEASE_NAME, &options, &lease).await,
        };
        let lease = written.map_err(|error| crate::act::chain(&error))?;
        self.following = None;
        self.candidate.wrote(lease, began, now());
        self.mark.say(self.candidate.given());
        Ok(())
    }
}

impl Election {
    /// Says what changed: who is followed, and when calls begin and cease to fail.
    fn note(&mut self, tried: Result<(), String>) {
        match tried {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!(lease = LEASE_NAME, "lease can be read and written again");
                }
                if let Some(holder) = self.following.take().filter(|holder| self.told.as_ref() != Some(holder)) {
                    tracing::info!(lease = LEASE_NAME, %holder, "following");
                    self.told = Some(holder);
                }
            }
            Err(error) if std::mem::replace(&mut self.failing, true) => {
                tracing::debug!(lease = LEASE_NAME, error, "lease not written");
            }
            Err(error) => tracing::warn!(lease = LEASE_NAME, error, "lease not written, trying on"),
        }
    }
}

/// The monotonic clock, which in tests is the paused one.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits; an error says that it is time to stop.
async fn pause(time: Duration, stop: &CancellationToken) -> Result<(), ()> {
    tokio::select! {
        () = stop.cancelled() => Err(()),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

/// A number in 0..1. It spreads load and guards nothing.
fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}

/// The name of this process in elections and events: host name and a UUID, as client-go's users make it, so that a
/// process that was started anew is not taken for its forerunner.
pub fn identity() -> io::Result<String> {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(format!("{host}_{}", uuid.trim()))
}

#[cfg(test)]
mod tests;
