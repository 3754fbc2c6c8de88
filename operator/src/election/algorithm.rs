//! client-go's algorithm of leader election, as a state machine without clock, calls or randomness.
//!
//! Leadership does not depend on the clocks of two hosts: a Lease is held for its own duration since *this process* saw it change.
//! This process leads no longer than the renew deadline after the start of its last successful write. It relies on no allocation
//! state that the Lease may not have: see [`ipam_reconciler::allocation_state`].

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use ipam_reconciler::allocation_state::AllocationState;

/// How long a Lease is valid after this process saw it change.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the holder may lead without a successful write.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How long the answer to one call is awaited. After that, the next try uses another connection, because this one may be dead.
pub const ANSWER: Duration = Duration::from_secs(4);
/// Pause between two tries.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// After this long without a leader, the API server's store may have been restored from a backup meanwhile.
pub const ABSENCE: Duration = Duration::from_mins(1);
/// A follower's pause is longer by up to this many retry periods, so that followers do not try in step.
pub const JITTER: f64 = 1.2;

/// A candidate in the election.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    identity: String,
    lease: ObjectMeta,
    seen: Option<Seen>,
    renewed: Option<Instant>,
    /// The allocation state that the Lease must have; `None` to keep its state.
    wanted: Option<AllocationState>,
    /// The allocation state to rely on: the lowest of the last successful write and of the writes sent since.
    allocation: AllocationState,
    /// The renew times of the last successful write and of the writes since. A Lease that names this process with another renew time is
    /// from a backup.
    sent: Vec<Option<MicroTime>>,
}

/// The Lease as last read or written, and when this process first saw it so.
#[derive(Clone, PartialEq, Debug)]
struct Seen {
    lease: Lease,
    since: Instant,
}

/// What to do next.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Create this lease.
    Create(Lease),
    /// Replace the lease by this one, which carries the version that it is based on.
    Replace(Lease),
    /// Another process leads.
    Follow {
        /// The identity of that process.
        holder: String,
    },
}

impl Candidate {
    /// Returns the candidate `identity` for the Lease `name` in `namespace`.
    pub fn new(identity: String, namespace: &str, name: &str) -> Self {
        let lease =
            ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
        Self {
            identity,
            lease,
            seen: None,
            renewed: None,
            wanted: None,
            allocation: AllocationState::NoneAllocated,
            sent: Vec::new(),
        }
    }

    /// Takes in the Lease as read, or its absence.
    pub fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        let same = |seen: &Seen| lease.as_ref().is_some_and(|lease| lease.spec == seen.lease.spec);
        let since = self.seen.as_ref().filter(|seen| same(seen)).map_or(now, |seen| seen.since);
        // A deleted Lease is lost only once another process has created it again.
        if lease.as_ref().is_some_and(|lease| !self.holds(lease) || !self.has_sent(lease)) {
            self.renewed = None;
        }
        self.seen = lease.map(|lease| Seen { lease, since });
    }

    /// Sets the allocation state that the next write must have. Only for a leader.
    pub fn want(&mut self, allocation: Option<AllocationState>) {
        self.wanted = allocation;
    }

    /// Returns the allocation state of the Lease to rely on.
    pub fn allocation(&self) -> AllocationState {
        self.allocation
    }

    /// Returns the next step, by the last observation. If it is a write, that may take effect from now on.
    pub fn step(&mut self, now: Instant, wall: Timestamp) -> Step {
        let mut step = self.next_step(now, wall);
        if let Step::Create(lease) | Step::Replace(lease) = &mut step {
            self.next_given(wall).put(lease);
            if self.renewed.is_some() {
                self.sent.push(renew_time(lease));
            }
            self.allocation = self.allocation.min(AllocationState::of(lease));
        }
        step
    }

    /// Returns the allocation state of the next write. For a Lease that was deleted while this process leads, the last state to rely on
    /// counts. A Lease that another process renewed long ago may be from a backup, and so may all records. Then the state is
    /// [`AllocationState::doubted`].
    fn next_given(&self, wall: Timestamp) -> AllocationState {
        let is_old = |lease: &Lease| !self.holds(lease) && is_absent(lease, wall);
        let says = match &self.seen {
            Some(seen) if is_old(&seen.lease) => AllocationState::of(&seen.lease).doubted(),
            Some(seen) => AllocationState::of(&seen.lease),
            None => self.allocation,
        };
        self.wanted.unwrap_or(says)
    }

    /// Whether this process has written the Lease, which names it as the holder.
    fn has_sent(&self, lease: &Lease) -> bool {
        self.renewed.is_none() || self.sent.contains(&renew_time(lease))
    }

    fn next_step(&self, now: Instant, wall: Timestamp) -> Step {
        let Some(seen) = &self.seen else {
            return Step::Create(Lease { metadata: self.lease.clone(), spec: Some(self.spec(0, wall, wall)) });
        };
        let spec = seen.lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.identity;
        if !ours && !holder.is_empty() && seen.since + duration(&spec) > now {
            return Step::Follow { holder };
        }
        let transitions = spec.lease_transitions.unwrap_or_default();
        let (transitions, acquired) = match &spec.acquire_time {
            Some(acquired) if ours => (transitions, acquired.0),
            _ if ours => (transitions, wall),
            _ => (transitions.saturating_add(1), wall),
        };
        let mut lease = seen.lease.clone();
        lease.spec = Some(LeaseSpec { strategy: spec.strategy, ..self.spec(transitions, acquired, wall) });
        Step::Replace(lease)
    }

    /// A write that began at `began` succeeded, and the Lease is now `lease`.
    pub fn wrote(&mut self, lease: Lease, began: Instant, now: Instant) {
        if self.holds(&lease) {
            self.sent = vec![renew_time(&lease)];
            self.renewed = Some(began);
            self.allocation = AllocationState::of(&lease);
        }
        self.observe(Some(lease), now);
    }

    /// Whether a leader sees a Lease that is from a backup: it has no holder, or this process, which did not write it.
    pub fn leads_no_more(&self) -> bool {
        let is_ours_or_free = |lease: &Lease| {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
            holder.is_empty() || holder == self.identity
        };
        self.renewed.is_none() && self.seen.as_ref().is_some_and(|seen| is_ours_or_free(&seen.lease))
    }

    /// Until when this process leads without another write.
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + RENEW_DEADLINE)
    }

    /// Returns the Lease without a holder, so that the next leader need not wait; `None` if this process does not hold it.
    pub fn release(&self, wall: Timestamp) -> Option<Lease> {
        let mut lease = self.seen.as_ref().map(|seen| seen.lease.clone()).filter(|lease| self.holds(lease))?;
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        self.next_given(wall).put(&mut lease);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..self.spec(transitions, wall, wall)
        });
        Some(lease)
    }

    fn holds(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder == Some(&self.identity)
    }

    fn spec(&self, transitions: i32, acquired: Timestamp, renewed: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

/// When the Lease was renewed, to the microsecond, which is what the API keeps.
fn renew_time(lease: &Lease) -> Option<MicroTime> {
    let MicroTime(time) = lease.spec.as_ref()?.renew_time.clone()?;
    Timestamp::from_microsecond(time.as_microsecond()).ok().map(MicroTime)
}

/// Whether the last renewal of the Lease is longer ago than [`ABSENCE`], or in the future by as much. `false` without a renew time.
fn is_absent(lease: &Lease, wall: Timestamp) -> bool {
    let renewed = renew_time(lease).map(|MicroTime(time)| time.duration_until(wall).unsigned_abs());
    renewed.is_some_and(|since| since > ABSENCE)
}

/// The duration that the holder has set in its Lease; [`LEASE_DURATION`] if it has set none.
fn duration(spec: &LeaseSpec) -> Duration {
    let said = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    said.map_or(LEASE_DURATION, Duration::from_secs)
}

/// A follower's pause; `random` is in 0..1.
pub fn follow_pause(random: f64) -> Duration {
    RETRY_PERIOD + RETRY_PERIOD.mul_f64(JITTER * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn candidate(identity: &str) -> Candidate {
        Candidate::new(identity.to_owned(), "ns", "lease")
    }

    /// The Lease that `step` writes, as the server would return it.
    fn written(step: Step, version: &str) -> Lease {
        let (Step::Create(mut lease) | Step::Replace(mut lease)) = step else { panic!("follows: {step:?}") };
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    /// `a` leads since `start`; `b` has seen that.
    fn leader_and_follower(start: Instant) -> (Candidate, Candidate, Lease) {
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        a.observe(None, start);
        let lease = written(a.step(start, wall(0)), "1");
        a.wrote(lease.clone(), start, start);
        b.observe(Some(lease.clone()), start);
        (a, b, lease)
    }

    #[test]
    fn an_absent_lease_is_created_and_led_until_the_renew_deadline() {
        let start = Instant::now();
        let (a, _, lease) = leader_and_follower(start);
        let spec = lease.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
        assert_eq!(a.leads_until(), Some(start + RENEW_DEADLINE));
    }

    #[test]
    fn a_follower_waits_for_the_lease_duration_since_it_saw_the_lease_change() {
        let start = Instant::now();
        let (_, mut b, lease) = leader_and_follower(start);
        // The Lease is seen again without a change: the time does not start over.
        b.observe(Some(lease), start + 14 * SECOND);
        assert_eq!(b.step(start + 14 * SECOND, wall(14)), Step::Follow { holder: "a".to_owned() });
        let taken = written(b.step(start + 15 * SECOND, wall(15)), "2").spec.unwrap();
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("b"), Some(1)));
        assert_eq!(taken.acquire_time, Some(MicroTime(wall(15))));
    }

    #[test]
    fn the_clock_of_the_holder_plays_no_part() {
        let start = Instant::now();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        a.observe(None, start);
        // The holder's clock is a day behind, and it still holds its Lease.
        let lease = written(a.step(start, wall(-86_400)), "1");
        b.observe(Some(lease), start);
        assert!(matches!(b.step(start + SECOND, wall(1)), Step::Follow { .. }));
    }

    #[test]
    fn a_renewal_starts_the_followers_time_anew_and_keeps_the_time_of_acquisition() {
        let start = Instant::now();
        let (mut a, mut b, _) = leader_and_follower(start);
        let renewed = written(a.step(start + 2 * SECOND, wall(2)), "2");
        let spec = renewed.spec.clone().unwrap();
        assert_eq!((spec.acquire_time, spec.lease_transitions), (Some(MicroTime(wall(0))), Some(0)));
        a.wrote(renewed.clone(), start + 2 * SECOND, start + 3 * SECOND);
        assert_eq!(a.leads_until(), Some(start + 12 * SECOND), "counted from when the write began");
        b.observe(Some(renewed), start + 3 * SECOND);
        assert!(matches!(b.step(start + 17 * SECOND, wall(17)), Step::Follow { .. }));
        assert!(matches!(b.step(start + 18 * SECOND, wall(18)), Step::Replace(_)));
    }

    #[test]
    fn a_leader_stops_before_a_follower_may_begin() {
        let start = Instant::now();
        let (a, mut b, _) = leader_and_follower(start);
        let last = a.leads_until().unwrap();
        assert!(matches!(b.step(last, wall(10)), Step::Follow { .. }));
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let start = Instant::now();
        let (a, mut b, _) = leader_and_follower(start);
        assert!(b.release(wall(1)).is_none(), "nobody releases what is another's");
        let released = a.release(wall(1)).unwrap();
        b.observe(Some(released), start + SECOND);
        let spec = written(b.step(start + SECOND, wall(1)), "3").spec.unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
    }

    #[test]
    fn one_who_reads_that_another_holds_the_lease_leads_no_more() {
        let start = Instant::now();
        let (mut a, mut b, _) = leader_and_follower(start);
        let taken = written(b.step(start + 20 * SECOND, wall(20)), "2");
        b.wrote(taken.clone(), start, start);
        a.observe(Some(taken), start + SECOND);
        assert_eq!(a.leads_until(), None);
    }

    #[test]
    fn a_lease_that_was_deleted_is_made_anew_and_led_no_longer_than_before() {
        let start = Instant::now();
        let (mut a, _, _) = leader_and_follower(start);
        a.observe(None, start + SECOND);
        assert_eq!(a.leads_until(), Some(start + RENEW_DEADLINE));
        assert!(matches!(a.step(start + SECOND, wall(1)), Step::Create(_)));
    }

    #[test]
    fn a_lease_is_replaced_at_the_version_and_with_the_metadata_that_were_read() {
        let start = Instant::now();
        let (mut a, _, _) = leader_and_follower(start);
        let mut foreign = written(a.step(start, wall(0)), "41");
        foreign.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
        let mut b = candidate("b");
        b.observe(Some(foreign.clone()), start);
        let lease = written(b.step(start + 15 * SECOND, wall(15)), "42");
        assert_eq!(lease.metadata.labels, foreign.metadata.labels);
        let Step::Replace(sent) = b.step(start + 15 * SECOND, wall(15)) else { panic!("no replacement") };
        assert_eq!(sent.metadata.resource_version.as_deref(), Some("41"));
    }

    #[test]
    fn what_the_lease_says_of_blocks_given_passes_to_the_next_leader_who_may_rely_on_it_once_it_has_written_it() {
        let start = Instant::now();
        let (mut a, mut b, _) = leader_and_follower(start);
        assert_eq!(a.allocation(), AllocationState::NoneAllocated, "a Lease that is new says nothing");
        a.want(Some(AllocationState::Recovering));
        let marked = written(a.step(start + SECOND, wall(1)), "2");
        assert_eq!(a.allocation(), AllocationState::NoneAllocated, "not yet answered");
        a.wrote(marked.clone(), start + SECOND, start + SECOND);
        assert_eq!(
            (a.allocation(), AllocationState::of(&marked)),
            (AllocationState::Recovering, AllocationState::Recovering)
        );
        b.observe(Some(marked), start + SECOND);
        assert_eq!(b.allocation(), AllocationState::NoneAllocated, "that is another's word");
        let taken = written(b.step(start + 16 * SECOND, wall(16)), "3");
        b.wrote(taken.clone(), start + 16 * SECOND, start + 16 * SECOND);
        assert_eq!(
            (b.allocation(), AllocationState::of(&taken)),
            (AllocationState::Recovering, AllocationState::Recovering)
        );
    }

    #[test]
    fn a_lease_that_nobody_has_renewed_for_long_may_be_from_a_backup() {
        let start = Instant::now();
        for (said, after, then) in [
            (AllocationState::Allocated, 60, AllocationState::Allocated),
            (AllocationState::Allocated, 61, AllocationState::Recovering),
            (AllocationState::Allocated, -61, AllocationState::Recovering),
            (AllocationState::NoneAllocated, 61, AllocationState::Doubtful),
            (AllocationState::Recovering, 20, AllocationState::Recovering),
        ] {
            let (mut a, mut b, _) = leader_and_follower(start);
            a.want(Some(said));
            let lease = written(a.step(start, wall(0)), "2");
            b.observe(Some(lease), start);
            let taken = written(b.step(start + 15 * SECOND, wall(after)), "3");
            assert_eq!(AllocationState::of(&taken), then, "{said:?} after {after} s");
        }
    }

    #[test]
    fn a_leader_whose_lease_is_one_that_it_did_not_write_last_leads_no_more() {
        let start = Instant::now();
        let (mut a, _, backup) = leader_and_follower(start);
        let renewed = written(a.step(start + SECOND, wall(1)), "2");
        a.wrote(renewed.clone(), start + SECOND, start + SECOND);
        let unanswered = written(a.step(start + 2 * SECOND, wall(2)), "3");
        for own in [renewed, unanswered] {
            let mut leader = a.clone();
            leader.observe(Some(own), start + 3 * SECOND);
            assert!(leader.leads_until().is_some());
        }
        a.observe(Some(backup), start + 3 * SECOND);
        assert!(a.leads_until().is_none() && a.leads_no_more(), "the Lease is from a backup");
    }

    #[test]
    fn while_the_answer_is_missing_the_lesser_of_two_words_counts_whichever_way_it_turns() {
        let start = Instant::now();
        let (mut a, _, _) = leader_and_follower(start);
        for (from, to) in [
            (AllocationState::Allocated, AllocationState::Recovering),
            (AllocationState::Recovering, AllocationState::Allocated),
        ] {
            a.want(Some(from));
            let known = written(a.step(start, wall(0)), "2");
            a.wrote(known, start, start);
            a.want(Some(to));
            let sent = written(a.step(start, wall(0)), "3");
            assert_eq!(a.allocation(), AllocationState::Allocated, "no agent is asked by a word that may not be there");
            // A read does not show whether the sent write may still arrive. Another write does.
            a.observe(Some(sent), start);
            assert_eq!(a.allocation(), AllocationState::Allocated);
            let again = written(a.step(start, wall(0)), "4");
            a.wrote(again, start, start);
            assert_eq!(a.allocation(), to);
        }
    }

    #[test]
    fn a_lease_that_is_deleted_and_one_that_is_given_up_say_what_they_are_to_say() {
        let start = Instant::now();
        let (mut a, _, _) = leader_and_follower(start);
        a.want(Some(AllocationState::Allocated));
        let marked = written(a.step(start, wall(0)), "2");
        a.wrote(marked, start, start);
        a.want(Some(AllocationState::Recovering));
        assert_eq!(
            AllocationState::of(&a.release(wall(1)).unwrap()),
            AllocationState::Recovering,
            "whoever leads next has to ask"
        );
        a.want(None);
        a.observe(None, start);
        assert_eq!(AllocationState::of(&written(a.step(start, wall(1)), "3")), AllocationState::Allocated);
    }

    #[test]
    fn a_lease_without_a_spec_or_holder_is_free() {
        let mut b = candidate("b");
        b.observe(Some(Lease::default()), Instant::now());
        assert!(matches!(b.step(Instant::now(), wall(0)), Step::Replace(_)));
    }

    #[test]
    fn pauses_of_followers_are_jittered_within_bounds() {
        assert_eq!(follow_pause(0.0), RETRY_PERIOD);
        assert_eq!(follow_pause(1.0), Duration::from_millis(4400));
    }
}
