//! The election of one replica: the real loop, with the simulator in control of its calls. Anything may happen between a
//! read of the Lease and the write that follows from it, and between a write and its answer.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use ipam_operator::election::LEASE_NAME;
use ipam_operator::election::algorithm::RETRY_PERIOD;
use ipam_operator::election::campaign::{Campaign, Next, Tried};
use ipam_operator::election::marker::{MarkerHandle, MarkerWriter, marker};
use ipam_reconciler::allocation_state::{LeaseRequest, LeaseState};
use jiff::Timestamp;

use super::action::Fate;
use super::clock::Clock;
use super::server::{NAMESPACE, Server};
use super::wire::{Answer, Wire};

/// How much later than a real leader a simulated one renews its Lease, so that there is less to play.
const LATE_RENEWAL: Duration = RETRY_PERIOD.saturating_mul(2);

/// A call about the Lease.
enum Call {
    /// On its way to the server.
    Sent(Next),
    /// On its way back.
    Answered(Answer),
    /// No answer comes.
    Unanswered,
}

/// The result of a step.
#[derive(Default)]
pub(super) struct Stepped {
    /// Leadership is lost.
    pub(super) lost: bool,
    /// The call that is abandoned and still on its way.
    pub(super) late: Option<Next>,
}

/// One process in the election.
pub(super) struct Election {
    name: String,
    campaign: Campaign,
    marker: MarkerHandle,
    keeper: MarkerWriter,
    call: Option<Call>,
    /// When the next step is due.
    due: Duration,
    written: bool,
}

impl Election {
    /// A process that starts now. `number` is the seed of its pauses.
    pub(super) fn new(name: &str, number: u32, clock: Clock) -> Self {
        let mut rng = fastrand::Rng::with_seed(number.into());
        let jitter = Box::new(move || rng.f64());
        let (marker, keeper) = marker();
        let campaign = Campaign::new(name.to_owned(), NAMESPACE, clock.instant(), jitter);
        let name = name.to_owned();
        Self { name, campaign, marker, keeper, call: None, due: Duration::ZERO, written: false }
    }

    /// What is on its way arrives, and what is due begins.
    pub(super) fn step(&mut self, wire: &Wire, fate: Fate, clock: Clock, wall: Timestamp) -> Stepped {
        let mut late = None;
        match self.call.take() {
            Some(Call::Sent(call)) if fate == Fate::Late => {
                late = Some(call);
                self.call = Some(Call::Unanswered);
            }
            Some(Call::Sent(call)) => self.call = Some(Call::Answered(wire.vote(call, fate))),
            Some(Call::Answered(Answer::Read(answer))) => self.campaign.was_read(answer, clock.instant()),
            Some(Call::Answered(Answer::Written(answer))) => self.campaign.was_written(answer, clock.instant()),
            unanswered @ (Some(Call::Unanswered) | None) => self.call = unanswered,
        }
        let (lost, given_up) = self.go_on(clock, wall);
        Stepped { lost, late: late.or(given_up) }
    }

    /// Takes the next step. Returns whether leadership is lost, and the call that is abandoned on its way.
    fn go_on(&mut self, clock: Clock, wall: Timestamp) -> (bool, Option<Next>) {
        let next = self.campaign.next(clock.instant(), wall, self.keeper.request());
        self.keeper.publish(self.campaign.state());
        if let Some(tried) = self.campaign.take_tried() {
            self.written = matches!(tried, Tried::Written | Tried::Altered);
            // A call that is still under way is of a try that has ended.
            let call = self.call.take();
            self.due = self.due_at(&next, clock);
            return (matches!(next, Next::LeadershipLost(_)), sent(call));
        }
        match next {
            Next::LeadershipLost(_) => return (true, sent(self.call.take())),
            Next::Wait(_) => self.due = self.due_at(&next, clock),
            call => {
                self.call = Some(Call::Sent(call));
                self.due = clock.elapsed;
            }
        }
        (false, None)
    }

    fn due_at(&self, next: &Next, clock: Clock) -> Duration {
        let Next::Wait(until) = next else { return clock.elapsed };
        if self.is_under_way() && !matches!(self.call, Some(Call::Unanswered)) {
            return clock.elapsed;
        }
        let late = if self.written && self.call.is_none() { LATE_RENEWAL } else { Duration::ZERO };
        until.saturating_duration_since(clock.start) + late
    }

    /// When the next step is due.
    pub(super) const fn due(&self) -> Duration {
        self.due
    }

    /// Whether a call is under way.
    pub(super) const fn is_under_way(&self) -> bool {
        self.call.is_some()
    }

    /// Whether the call under way, if there is one, is answered or will be.
    pub(super) const fn goes_on(&self) -> bool {
        matches!(self.call, Some(Call::Sent(_) | Call::Answered(_)))
    }

    /// Whether a read is on its way to the server.
    pub(super) const fn reads(&self) -> bool {
        matches!(self.call, Some(Call::Sent(Next::Read)))
    }

    /// Whether a call is on its way to the server.
    pub(super) const fn sends(&self) -> bool {
        matches!(self.call, Some(Call::Sent(_)))
    }

    /// Whether a write failed because another process has written the Lease by now.
    pub(super) fn has_collided(&self, server: &Server) -> bool {
        let lease = server.get("leases", LEASE_NAME).and_then(|object| object.lease());
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty());
        let is_refused = matches!(&self.call, Some(Call::Answered(Answer::Written(Err(_)))));
        is_refused && holder.is_some_and(|holder| holder != self.name)
    }

    /// When leadership ends, by the process's own clock. A stopped process cannot know that it has lost the Lease.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.campaign.leads_until()
    }

    /// The state of the Lease that the leader may rely on.
    pub(super) fn state(&self) -> LeaseState {
        self.marker.state()
    }

    /// The leader requests this of the Lease. If calls wait for it, the next try is due at once.
    pub(super) fn want(&mut self, request: LeaseRequest, clock: Clock) {
        self.marker.send(request);
        if !self.is_under_way() && self.keeper.unfulfilled().now_or_never().is_some() {
            self.campaign.press(clock.instant());
            self.due = clock.elapsed;
        }
    }

    /// The write that releases the Lease, for a process that stops, if it has it.
    pub(super) fn release(&mut self, wall: Timestamp) -> Option<Next> {
        self.campaign.release(wall, self.keeper.request()).map(Next::Replace)
    }

    /// The call about the Lease that may arrive after the end of the process.
    pub(super) fn into_sent(self) -> Option<Next> {
        sent(self.call)
    }
}

fn sent(call: Option<Call>) -> Option<Next> {
    match call {
        Some(Call::Sent(call)) => Some(call),
        Some(Call::Answered(_) | Call::Unanswered) | None => None,
    }
}
