//! The loop of an election as a state machine: which call about the Lease comes next, how long its answer is awaited, and when the
//! next try begins. It makes no call, reads no clock and takes its randomness from outside.
//!
//! A try of a leader writes at the version that it wrote last, and reads only if that write failed. Any other try reads first.
//! A process that has led never follows again: its leadership is lost.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::algorithm::{Candidate, RENEW_DEADLINE, RETRY_PERIOD, Step, follow_pause};
use super::{LEASE_NAME, LeadershipLost};
use ipam_reconciler::allocation_state::{LeaseRequest, LeaseState};

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
    /// The Lease is to be read next. The try ends at the instant.
    ToRead(Instant),
    /// The Lease was read and is to be written next.
    ToWrite(Instant),
    /// A call is under way.
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
            State::ToRead(end) => {
                self.state = State::Calling(Call::Read, *end);
                Next::Read
            }
            State::ToWrite(end) => self.write(*end, false, now, wall, request.confirm),
        }
    }

    /// The answer to [`Next::Read`].
    pub fn was_read(&mut self, answer: Result<Option<Lease>, String>, now: Instant) {
        let State::Calling(Call::Read, end) = self.state else { return };
        match answer {
            Ok(lease) => {
                self.candidate.observe(lease, now);
                let is_restored = self.has_led && self.candidate.leads_no_more();
                self.state =
                    if is_restored { State::LeadershipLost(LeadershipLost::Restored) } else { State::ToWrite(end) };
            }
            Err(error) => self.end_try(Tried::Failed(error), now),
        }
    }

    /// The answer to [`Next::Create`] or [`Next::Replace`].
    pub fn was_written(&mut self, answer: Result<Lease, String>, now: Instant) {
        let State::Calling(Call::Write { began, is_unread, confirm }, end) = self.state else { return };
        match answer {
            Ok(lease) => {
                self.confirmed = confirm;
                self.candidate.wrote(lease, began, now);
                self.has_led |= self.leads_until().is_some();
                self.end_try(Tried::Written, now);
            }
            Err(_) if is_unread => self.state = State::ToRead(end),
            Err(error) => self.end_try(Tried::Failed(error), now),
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
            self.state = State::Calling(Call::Read, now + RENEW_DEADLINE);
            return Next::Read;
        }
        match self.leads_until().filter(|deadline| *deadline > now) {
            Some(deadline) => self.write(deadline, true, now, wall, confirm),
            None => self.lose(LeadershipLost::Deadline),
        }
    }

    fn write(&mut self, end: Instant, is_unread: bool, now: Instant, wall: Timestamp, confirm: u64) -> Next {
        let next = match self.candidate.step(now, wall) {
            Step::Follow { holder } if self.has_led => return self.lose(LeadershipLost::Taken(holder)),
            Step::Follow { holder } => {
                self.end_try(Tried::Follows(holder), now);
                return self.pause();
            }
            Step::Create(lease) => Next::Create(lease),
            Step::Replace(lease) => Next::Replace(lease),
        };
        self.state = State::Calling(Call::Write { began: now, is_unread, confirm }, end);
        next
    }

    /// The call under way was not answered in time.
    fn give_up(&mut self, now: Instant) -> Next {
        if self.has_led {
            return self.lose(LeadershipLost::Deadline);
        }
        self.end_try(Tried::Failed("no answer in time".to_owned()), now);
        self.pause()
    }

    fn end_try(&mut self, tried: Tried, now: Instant) {
        self.tried = Some(tried);
        let pause = if self.has_led { RETRY_PERIOD } else { follow_pause((self.jitter)()) };
        let deadline = self.leads_until().filter(|_| self.has_led);
        self.state = match deadline {
            Some(deadline) if deadline <= now => State::LeadershipLost(LeadershipLost::Deadline),
            None if self.has_led => State::LeadershipLost(LeadershipLost::Deadline),
            deadline => State::Pausing(deadline.map_or(now + pause, |deadline| deadline.min(now + pause))),
        };
    }

    fn pause(&self) -> Next {
        match &self.state {
            State::Pausing(until) => Next::Wait(*until),
            State::LeadershipLost(lost) => Next::LeadershipLost(lost.clone()),
            State::ToRead(end) | State::ToWrite(end) | State::Calling(_, end) => Next::Wait(*end),
        }
    }

    fn lose(&mut self, lost: LeadershipLost) -> Next {
        self.state = State::LeadershipLost(lost.clone());
        Next::LeadershipLost(lost)
    }
}

#[cfg(test)]
mod tests;
