//! The loop of an election as a state machine: which call about the Lease comes next, how long its answer is awaited, and when the
//! next try begins. It makes no call, reads no clock and takes its randomness from outside.
//!
//! A try of a leader writes at the version that it wrote last, and reads only if that write failed. Any other try reads first.
//! A process that has led never follows again: its leadership is lost.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::algorithm::{ANSWER, Candidate, RETRY_PERIOD, Step, follow_pause};
use super::{LEASE_NAME, LeadershipLost};
use ipam_reconciler::allocation_state::{AllocationState, LeaseRequest, LeaseState};

/// A source of numbers in 0..1, by which the pauses of followers differ.
pub type Jitter = Box<dyn FnMut() -> f64 + Send>;

/// What to do next.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    /// Nothing before this instant. A call under way is cancelled then.
    Wait(Instant),
    /// Read the Lease; [`Campaign::was_read`] takes the answer.
    Read,
    /// Create this Lease; [`Campaign::was_written`] takes the answer.
    Create(Lease),
    /// Replace the Lease at the version that this one names; [`Campaign::was_written`] takes the answer.
    Replace(Lease),
    /// Leadership is lost.
    LeadershipLost(LeadershipLost),
}

/// How a try ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tried {
    /// The Lease was written.
    Written,
    /// The Lease was written, but the API server has stored another allocation state than this process sent.
    Altered,
    /// Another process has the Lease.
    Follows(String),
    /// A call failed, for this reason.
    Failed(String),
}

/// One process in an election.
pub struct Campaign {
    candidate: Candidate,
    state: State,
    has_led: bool,
    /// The last request for a write that a write has answered.
    confirmed: u64,
    tried: Option<Tried>,
    jitter: Jitter,
}

/// The state of a try.
#[derive(Clone, PartialEq, Debug)]
enum State {
    /// The next try begins at this instant.
    Pausing(Instant),
    /// The Lease is to be read next.
    ToRead,
    /// The Lease was read and is to be written next.
    ToWrite,
    /// A call is under way, whose answer is awaited until the instant.
    Calling(Call, Instant),
    LeadershipLost(LeadershipLost),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Call {
    Read,
    /// A write sent at `began`, which answers the requests up to `confirm`. Without a read before it, another process may have written
    /// meanwhile.
    Write {
        began: Instant,
        is_unread: bool,
        confirm: u64,
        state: AllocationState,
    },
}

impl Campaign {
    /// A candidate named `identity` for the Lease in `namespace`. Its first try begins at `now`.
    pub fn new(identity: String, namespace: &str, now: Instant, jitter: Jitter) -> Self {
        let candidate = Candidate::new(identity, namespace, LEASE_NAME);
        Self { candidate, state: State::Pausing(now), has_led: false, confirmed: 0, tried: None, jitter }
    }

    /// Returns the next call or pause. A leader requests `request` of the Lease.
    pub fn next(&mut self, now: Instant, wall: Timestamp, request: LeaseRequest) -> Next {
        self.candidate.want(request.allocation);
        match &self.state {
            State::LeadershipLost(lost) => Next::LeadershipLost(lost.clone()),
            State::Pausing(until) | State::Calling(_, until) if *until > now => Next::Wait(*until),
            State::Pausing(_) => self.begin(now, wall, request.confirm),
            State::Calling(..) => self.give_up(now),
            State::ToRead => self.call(Call::Read, Next::Read, now),
            State::ToWrite => self.write(false, now, wall, request.confirm),
        }
    }

    /// The answer to [`Next::Read`].
    pub fn was_read(&mut self, answer: Result<Option<Lease>, String>, now: Instant) {
        let State::Calling(Call::Read, _) = self.state else { return };
        match answer {
            Ok(lease) => {
                self.candidate.observe(lease, now);
                let is_restored = self.has_led && self.candidate.leads_no_more();
                self.state = if is_restored { State::LeadershipLost(LeadershipLost::Restored) } else { State::ToWrite };
            }
            Err(error) => drop(self.end_try(Tried::Failed(error), now)),
        }
    }

    /// The answer to [`Next::Create`] or [`Next::Replace`].
    pub fn was_written(&mut self, answer: Result<Lease, String>, now: Instant) {
        let State::Calling(Call::Write { began, is_unread, confirm, state }, _) = self.state else { return };
        match answer {
            Ok(lease) => {
                self.confirmed = confirm;
                let tried = if AllocationState::of(&lease) == state { Tried::Written } else { Tried::Altered };
                self.candidate.wrote(lease, began, now);
                self.has_led |= self.leads_until().is_some();
                self.end_try(tried, now);
            }
            Err(_) if is_unread => self.state = State::ToRead,
            Err(error) => drop(self.end_try(Tried::Failed(error), now)),
        }
    }

    /// Begins the next try of a leader at once, because calls wait for a write of the Lease.
    pub fn press(&mut self, now: Instant) {
        if let State::Pausing(until) = &mut self.state
            && self.has_led
        {
            *until = now.min(*until);
        }
    }

    /// Returns how the last try ended, once for each try.
    pub fn take_tried(&mut self) -> Option<Tried> {
        self.tried.take()
    }

    /// Until when this process leads, without another write.
    pub fn leads_until(&self) -> Option<Instant> {
        self.candidate.leads_until()
    }

    /// Returns the state of the Lease to rely on.
    pub fn state(&self) -> LeaseState {
        LeaseState { allocation: self.candidate.allocation(), confirmed: self.confirmed }
    }

    /// The Lease without a holder, for a process that stops; `None` if this process does not hold it.
    pub fn release(&mut self, wall: Timestamp, request: LeaseRequest) -> Option<Lease> {
        self.candidate.want(request.allocation);
        self.candidate.release(wall)
    }

    fn begin(&mut self, now: Instant, wall: Timestamp, confirm: u64) -> Next {
        if !self.has_led {
            return self.call(Call::Read, Next::Read, now);
        }
        if self.leads_until().is_some_and(|deadline| deadline > now) {
            self.write(true, now, wall, confirm)
        } else {
            self.lose(LeadershipLost::Deadline)
        }
    }

    /// Begins a call. A leader awaits its answer no longer than it leads.
    fn call(&mut self, call: Call, next: Next, now: Instant) -> Next {
        let end = now + ANSWER;
        self.state = State::Calling(call, self.leads_until().map_or(end, |deadline| deadline.min(end)));
        next
    }

    fn write(&mut self, is_unread: bool, now: Instant, wall: Timestamp, confirm: u64) -> Next {
        let (state, next) = match self.candidate.step(now, wall) {
            Step::Follow { holder } if self.has_led => return self.lose(LeadershipLost::Taken(holder)),
            Step::Follow { holder } => return self.end_try(Tried::Follows(holder), now),
            Step::Create(lease) => (AllocationState::of(&lease), Next::Create(lease)),
            Step::Replace(lease) => (AllocationState::of(&lease), Next::Replace(lease)),
        };
        self.call(Call::Write { began: now, is_unread, confirm, state }, next, now)
    }

    /// The call under way was not answered in time.
    fn give_up(&mut self, now: Instant) -> Next {
        self.end_try(Tried::Failed(format!("no answer within {} s", ANSWER.as_secs())), now)
    }

    fn end_try(&mut self, tried: Tried, now: Instant) -> Next {
        self.tried = Some(tried);
        let until = if self.has_led {
            let Some(deadline) = self.leads_until().filter(|deadline| *deadline > now) else {
                return self.lose(LeadershipLost::Deadline);
            };
            deadline.min(now + RETRY_PERIOD)
        } else {
            now + follow_pause((self.jitter)())
        };
        self.state = State::Pausing(until);
        Next::Wait(until)
    }

    fn lose(&mut self, lost: LeadershipLost) -> Next {
        self.state = State::LeadershipLost(lost.clone());
        Next::LeadershipLost(lost)
    }
}

#[cfg(test)]
mod tests;
